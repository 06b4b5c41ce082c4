"""Convolutions that keep the image's size, 3x3 and 1x1: forward (fprop), the image's gradient (dgrad), the weight's
(wgrad). A 1x1 convolution is a matrix product, which PyTorch may also leave to cuBLASLt."""

import torch

from .case import Case

# N, height and width, K output channels, C input channels
SHAPES = [
    (32, 64, 64, 64), (32, 64, 64, 192), (32, 32, 128, 128), (32, 32, 128, 320), (32, 16, 192, 192), (32, 8, 256, 256),
    (32, 8, 256, 512), (128, 64, 64, 64), (128, 32, 128, 128), (128, 32, 256, 256), (32, 64, 192, 192),
    (32, 32, 384, 384), (32, 16, 576, 576), (32, 8, 768, 768), (32, 64, 192, 576),
]  # fmt: skip
# Skips and attention's projections
SHAPES_1X1 = [
    (32, 64, 64, 192), (32, 32, 128, 320), (32, 16, 192, 192), (32, 16, 576, 192), (32, 8, 256, 256), (32, 8, 768, 256),
]  # fmt: skip


def conv_case(direction, n, size, k, c, dtype, window=3):
    stored = "bf16" if dtype == "bf16" else "f32"
    x, y, w = (n, size, size, c), (n, size, size, k), (k, window, window, c)
    pad = window // 2
    shapes = {"fprop": {"x": x, "w": w}, "dgrad": {"dy": y, "w": w}, "wgrad": {"x": x, "dy": y}}[direction]

    def build(g, v):
        if direction == "fprop":
            made = g.add("conv_fprop", [v["x"], v["w"]], {"stride": 1, "pad": pad}, ("f32", y))
        elif direction == "wgrad":
            attributes = {"stride": 1, "pad": pad, "r": window, "s": window}
            return {"dw": g.add("conv_wgrad", [v["x"], v["dy"]], attributes, ("f32", w))}
        else:
            attributes = {"stride": 1, "pad": pad, "height": size, "width": size}
            made = g.add("conv_dgrad", [v["dy"], v["w"]], attributes, ("f32", x))
        return {"made": g.cast(made, stored)}

    def prepare(t):
        ways = [("cuDNN", lambda: convolution(t))]
        return ways if window > 1 else [*ways, ("cuBLASLt", lambda: product(t))]

    def product(t):
        """The same as a call of a matrix product, its result laid out like the convolution's."""
        rows = {name: value.reshape(-1, value.shape[-1]) for name, value in t.items()}
        made = {"fprop": lambda: rows["x"] @ rows["w"].t(), "dgrad": lambda: rows["dy"] @ rows["w"],
                "wgrad": lambda: rows["dy"].t() @ rows["x"]}[direction]  # fmt: skip
        shape = {"fprop": y, "dgrad": x, "wgrad": w}[direction]
        return lambda: made().view(shape).permute(0, 3, 1, 2)

    def convolution(t):
        nchw = {name: value.permute(0, 3, 1, 2) for name, value in t.items()}
        if direction == "fprop":
            return lambda: torch.conv2d(nchw["x"], nchw["w"], padding=pad)
        # What the gradient does not read still says its shape.
        unread = lambda shape: torch.empty(shape, device=t["dy"].device, dtype=t["dy"].dtype).permute(0, 3, 1, 2)
        image = nchw["x"] if "x" in nchw else unread(x)
        weight = nchw["w"] if "w" in nchw else unread(w)
        mask, one, pads = [direction == "dgrad", direction == "wgrad", False], [1, 1], [pad, pad]
        call = lambda: torch.ops.aten.convolution_backward(
            nchw["dy"], image, weight, None, one, pads, one, False, [0, 0], 1, mask
        )[0 if direction == "dgrad" else 1]
        return call

    size_of = 2 if stored == "bf16" else 4
    elements = n * size * size * (k + c) + k * c * window**2
    return Case(
        family=f"conv {window}x{window} {direction}", title=f"N{n} {size}x{size} K{k} C{c}", dtype=dtype,
        flops=2 * n * size * size * k * c * window**2, bytes=elements * size_of, inputs={name: (stored, shape) for name, shape in shapes.items()}, build=build,
        parameters=("w",) if "w" in shapes else (),
        prepare=prepare, outputs=lambda made: {("dw" if direction == "wgrad" else "made"): made.permute(0, 2, 3, 1)},
    )  # fmt: skip


def conv_cases(dtype, shapes=SHAPES, shapes_1x1=SHAPES_1X1):
    sized = [(shape, 3) for shape in shapes] + [(shape, 1) for shape in shapes_1x1]
    return [conv_case(d, *shape, dtype, window) for shape, window in sized for d in ("fprop", "dgrad", "wgrad")]
