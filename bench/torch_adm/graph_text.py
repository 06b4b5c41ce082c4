"""Writes graphs in difuse's text form."""

from collections import namedtuple

Value = namedtuple("Value", "name dtype shape")


def brackets(numbers):
    return "[" + ", ".join(str(n) for n in numbers) + "]"


class Graph:
    def __init__(self, name, indent="  "):
        self.name, self.indent, self.lines, self.nodes = name, indent, [], 0

    def add(self, op, operands, attributes, *types):
        """`types`: (dtype, shape) of each result. One Value, or a list of several."""
        node, self.nodes = f"%{self.nodes}", self.nodes + 1
        read = ", ".join(v.name for v in operands)
        fields = ", ".join(f"{key} = {value}" for key, value in attributes.items())
        words = [node, "=", op, read, f"{{{fields}}}" if fields else "", ":"]
        words.append(", ".join(f"{dtype}{brackets(shape)}" for dtype, shape in types))
        self.lines.append(self.indent + " ".join(word for word in words if word))
        if len(types) == 1:
            return Value(node, *types[0])
        return [Value(f"{node}.{i}", *type) for i, type in enumerate(types)]

    def _leaf(self, kind, name, dtype, shape):
        attributes = {"name": f'"{name}"', "dtype": dtype, "shape": brackets(shape)}
        return self.add(kind, [], attributes, (dtype, tuple(shape)))

    def input(self, name, dtype, shape):
        return self._leaf("input", name, dtype, shape)

    def state(self, name, dtype, shape):
        return self._leaf("state", name, dtype, shape)

    def output(self, name, value):
        self.lines.append(f'{self.indent}output "{name}" = {value.name}')

    def update(self, name, value):
        self.lines.append(f'{self.indent}update "{name}" = {value.name}')

    def text(self):
        return "\n".join([f"graph {self.name} {{", *self.lines, self.indent[2:] + "}"])

    # Elementwise; a number stands for a constant like the other operand.

    def apply(self, op, *operands):
        like = next(v for v in operands if isinstance(v, Value))
        return self.add(op, [self._value(v, like) for v in operands], {}, (like.dtype, like.shape))

    def _value(self, v, like):
        if isinstance(v, Value):
            return v
        attributes = {"value": repr(float(v)), "dtype": like.dtype, "shape": brackets(like.shape)}
        return self.add("constant", [], attributes, (like.dtype, like.shape))

    def cast(self, value, dtype):
        return value if value.dtype == dtype else self.add("cast", [value], {"dtype": dtype}, (dtype, value.shape))

    def broadcast(self, value, shape, dims):
        attributes = {"shape": brackets(shape), "dims": brackets(dims)}
        return self.add("broadcast", [value], attributes, (value.dtype, tuple(shape)))

    def sum(self, value, axes):
        shape = tuple(n for i, n in enumerate(value.shape) if i not in axes)
        return self.add("reduce_sum", [value], {"axes": brackets(axes)}, (value.dtype, shape))

    def reshape(self, value, shape):
        return self.add("reshape", [value], {"shape": brackets(shape)}, (value.dtype, tuple(shape)))

    def fuse(self, hero, operands, build, *types):
        """A fusion whose body `build(graph, values)` returns the list of its results."""
        body = Graph("body", self.indent + "  ")
        results = build(body, [body.input(str(i), v.dtype, v.shape) for i, v in enumerate(operands)])
        for i, result in enumerate(results):
            body.output(str(i), result)
        return self.add("fusion", operands, {"hero": hero, "body": body.text()}, *types)
