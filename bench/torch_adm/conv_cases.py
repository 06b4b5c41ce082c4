"""Convolutions, 3x3 with a border of 1: forward (fprop), the image's gradient (dgrad), the weight's (wgrad)."""

import torch

from .case import Case

# N, height and width, K output channels, C input channels
SHAPES = [
    (32, 64, 64, 64), (32, 64, 64, 192), (32, 32, 128, 128), (32, 32, 128, 320), (32, 16, 192, 192), (32, 8, 256, 256),
    (32, 8, 256, 512), (128, 64, 64, 64), (128, 32, 128, 128), (128, 32, 256, 256), (32, 64, 192, 192),
    (32, 32, 384, 384), (32, 16, 576, 576), (32, 8, 768, 768), (32, 64, 192, 576),
]  # fmt: skip


def rounded(g, hero, operands, op, attributes, type):
    """In tf32 the operands are rounded as they are read; in bf16 they are rounded already."""
    if operands[0].dtype == "bf16":
        return g.add(op, operands, attributes, type)

    def body(b, values):
        return [b.add(op, [b.apply("round_tf32", v) for v in values], attributes, type)]

    return g.fuse(hero, operands, body, type)


def conv_case(direction, n, size, k, c, dtype):
    stored = "bf16" if dtype == "bf16" else "f32"
    x, y, w = (n, size, size, c), (n, size, size, k), (k, 3, 3, c)
    shapes = {"fprop": {"x": x, "w": w}, "dgrad": {"dy": y, "w": w}, "wgrad": {"x": x, "dy": y}}[direction]

    def build(g, v):
        if direction == "fprop":
            made = rounded(g, "conv", [v["x"], v["w"]], "conv_fprop", {"stride": 1, "pad": 1}, ("f32", y))
        elif direction == "wgrad":
            attributes = {"stride": 1, "pad": 1, "r": 3, "s": 3}
            return {"dw": rounded(g, "conv", [v["x"], v["dy"]], "conv_wgrad", attributes, ("f32", w))}
        elif stored == "bf16":
            attributes = {"stride": 1, "pad": 1, "height": size, "width": size}
            made = g.add("conv_dgrad", [v["dy"], v["w"]], attributes, ("f32", x))
        else:  # What a dgrad of stride 1 becomes.
            flipped = g.add("repack", [v["w"]], {"layout": "flipped"}, ("f32", (c, 3, 3, k)))
            made = rounded(g, "conv", [v["dy"], flipped], "conv_fprop", {"stride": 1, "pad": 1}, ("f32", x))
        return {"made": g.cast(made, stored)}

    def prepare(t):
        nchw = {name: value.permute(0, 3, 1, 2) for name, value in t.items()}
        if direction == "fprop":
            return [("cuDNN", lambda: lambda: torch.conv2d(nchw["x"], nchw["w"], padding=1))]
        # What the gradient does not read still says its shape.
        unread = lambda shape: torch.empty(shape, device=t["dy"].device, dtype=t["dy"].dtype).permute(0, 3, 1, 2)
        image = nchw["x"] if "x" in nchw else unread(x)
        weight = nchw["w"] if "w" in nchw else unread(w)
        mask, one = [direction == "dgrad", direction == "wgrad", False], [1, 1]
        call = lambda: torch.ops.aten.convolution_backward(
            nchw["dy"], image, weight, None, one, one, one, False, [0, 0], 1, mask
        )[0 if direction == "dgrad" else 1]
        return [("cuDNN", lambda: call)]

    size_of = 2 if stored == "bf16" else 4
    elements = n * size * size * (k + c) + k * c * 9
    return Case(
        family=f"conv 3x3 {direction}", title=f"N{n} {size}x{size} K{k} C{c}", dtype=dtype,
        flops=2 * n * size * size * k * c * 9, bytes=elements * size_of, inputs={name: (stored, shape) for name, shape in shapes.items()}, build=build,
        prepare=prepare, outputs=lambda made: {("dw" if direction == "wgrad" else "made"): made.permute(0, 2, 3, 1)},
    )  # fmt: skip


def conv_cases(dtype, shapes=SHAPES):
    return [conv_case(d, *shape, dtype) for shape in shapes for d in ("fprop", "dgrad", "wgrad")]
