"""GroupNorm with SiLU, attention, and the optimizer over one flat vector."""

import torch
import torch.nn.functional as F

from .case import Case
from .model import forced

NORMS = [(32, 64, 64), (32, 32, 128), (32, 16, 192), (32, 8, 256), (128, 64, 64), (128, 32, 128), (32, 64, 192),
         (32, 32, 384)]  # fmt: skip  N, height and width, channels
# N, height and width, channels, heads
ATTENTIONS = [(32, 16, 192, 6), (32, 8, 256, 8), (128, 16, 256, 1), (32, 32, 384, 6), (32, 16, 576, 9),
              (32, 8, 768, 12)]  # fmt: skip
VECTORS = [20_494_336, 35_746_560]
GROUPS, EPS = 32, 1e-5


def norm_silu(x, weight, bias):
    """By views, so that channels stay last. x [N, H, W, C]."""
    n, h, w, c = x.shape
    grouped = x.float().view(n, h, w, GROUPS, c // GROUPS)
    variance, mean = torch.var_mean(grouped, dim=(1, 2, 4), keepdim=True, unbiased=False)
    normed = ((grouped - mean) * torch.rsqrt(variance + EPS)).view(n, h, w, c)
    return F.silu(normed * weight + bias).to(x.dtype)


def norm_case(backward, n, size, c):
    image, row, per_group = (n, size, size, c), (n, c), c // GROUPS

    def normalised(g, v, mean, rstd):
        spread = lambda value, dims: g.broadcast(value, image, dims)
        centred = g.apply("sub", g.cast(v["x"], "f32"), spread(mean, [0, 3]))
        scale = g.apply("mul", rstd, g.broadcast(v["weight"], row, [1]))
        return centred, scale, g.apply("add", g.apply("mul", centred, spread(scale, [0, 3])), spread(v["bias"], [3]))

    def build_forward(g, v):
        strips = -(-size // 8) * -(-size // 16)
        part = ("f32", (n, strips, c))
        moments = g.add("channel_moments", [v["x"]], {}, part, part)
        attributes = {"groups": GROUPS, "eps": EPS, "height": size, "width": size}
        mean, rstd = g.add("group_finish", moments, attributes, ("f32", row), ("f32", row))
        return {"y": g.cast(g.apply("silu", normalised(g, v, mean, rstd)[2]), "bf16")}

    def build_backward(g, v):
        mean, rstd = v["mean"], v["rstd"]
        centred, scale, z = normalised(g, v, mean, rstd)
        s = g.apply("sigmoid", z)
        slope = g.apply("mul", s, g.apply("add", g.apply("mul", z, g.apply("sub", 1, s)), 1))
        dz = g.apply("mul", g.cast(v["dy"], "f32"), slope)
        sums = g.sum(dz, [1, 2]), g.sum(g.apply("mul", dz, centred), [1, 2])
        weight, grouped = g.broadcast(v["weight"], row, [1]), (n, GROUPS, per_group)

        def over_group(value):
            total = g.sum(g.reshape(g.apply("mul", value, weight), grouped), [2])
            return g.reshape(g.broadcast(total, grouped, [0, 1]), row)

        inverse = 1 / (size * size * per_group)
        shift = g.apply("mul", g.apply("mul", rstd, over_group(sums[0])), -inverse)
        cubed = g.apply("mul", rstd, g.apply("mul", rstd, rstd))
        lean = g.apply("mul", g.apply("mul", cubed, over_group(sums[1])), -inverse)
        spread = lambda value: g.broadcast(value, image, [0, 3])
        dx = g.apply("add", g.apply("mul", dz, spread(scale)), g.apply("mul", centred, spread(lean)))
        dx = g.apply("add", dx, spread(shift))
        dweight = g.sum(g.apply("mul", sums[1], rstd), [0])
        return {"dx": g.cast(dx, "bf16"), "dweight": dweight, "dbias": g.sum(sums[0], [0])}

    def consistent(t):
        x = t["x"].float().view(n, size, size, GROUPS, per_group)
        variance, mean = torch.var_mean(x, dim=(1, 2, 4), unbiased=False)
        over = lambda value: value[:, :, None].expand(n, GROUPS, per_group).reshape(n, c)
        return {**t, "mean": over(mean), "rstd": over(torch.rsqrt(variance + EPS))} if backward else t

    def prepare(t):
        weight, bias = (t[name].detach().requires_grad_(backward) for name in ("weight", "bias"))
        nchw = lambda image: image.permute(0, 3, 1, 2)

        def native(x):
            return F.silu(F.group_norm(x, GROUPS, weight.to(x.dtype), bias.to(x.dtype), EPS))

        def make(forward, form):
            x = form(t["x"]).detach().requires_grad_(backward)
            if not backward:
                return lambda: forward(x)
            y, dy = forward(x), form(t["dy"])
            return lambda: torch.autograd.grad(y, (x, weight, bias), dy, retain_graph=True)

        # The native norm makes its own layout of an image with channels last; the second way spares it that.
        ways = [("native", lambda x: native(nchw(x)).permute(0, 2, 3, 1), lambda image: image)]
        ways.append(("native NCHW", native, lambda image: nchw(image).contiguous()))
        if t["x"].is_cuda:
            by_views = torch.compile(norm_silu, dynamic=False)
            ways.append(("torch.compile", lambda x: by_views(x, weight, bias), lambda image: image))
        return [(name, lambda way=way: make(*way)) for name, *way in ways]

    inputs = {"x": ("bf16", image), "weight": ("f32", (c,)), "bias": ("f32", (c,))}
    if backward:
        inputs.update(dy=("bf16", image), mean=("f32", row), rstd=("f32", row))
    names = ("dx", "dweight", "dbias") if backward else ("y",)
    outputs = lambda made: dict(zip(names, made if backward else [made]))
    # The sums need the image once and what is made of them needs it again.
    times = 5 if backward else 3
    return Case(
        family=f"GroupNorm + SiLU {'backward' if backward else 'forward'}", title=f"N{n} {size}x{size} C{c}",
        dtype="bf16", flops=0, bytes=times * 2 * n * size * size * c, inputs=inputs,
        build=build_backward if backward else build_forward, prepare=prepare, outputs=outputs, consistent=consistent,
    )  # fmt: skip


def attention_case(backward, n, size, c, heads):
    length, width = size * size, c // heads
    attributes = {"heads": heads, "order": "heads_first"}

    def build(g, v):
        types = ("f32", (n, length, c)), ("f32", (n, heads, length))
        if not backward:
            out, lse = g.add("attention", [v["qkv"]], attributes, *types)
            return {"out": g.cast(out, "bf16"), "lse": lse}
        operands = [v[name] for name in ("qkv", "out", "lse", "dout")]
        return {"dqkv": g.cast(g.add("attention_grad", operands, attributes, ("f32", (n, length, 3 * c))), "bf16")}

    def split(qkv):
        return qkv.view(n, length, heads, 3, width).permute(3, 0, 2, 1, 4).unbind(0)

    def consistent(t):
        if not backward:
            return t
        q, k, v = (part.float() for part in split(t["qkv"]))
        scores = q @ k.transpose(2, 3) * width**-0.5
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, c)
        return {**t, "out": out.to(t["qkv"].dtype), "lse": scores.logsumexp(-1)}

    def prepare(t):
        qkv = t["qkv"].detach().requires_grad_(backward)

        def make(kind):
            def forward():
                with forced(kind):
                    out = F.scaled_dot_product_attention(*split(qkv))
                return out.transpose(1, 2).reshape(n, length, c)

            if not backward:
                return forward
            out = forward()
            return lambda: torch.autograd.grad(out, qkv, t["dout"], retain_graph=True)[0]

        kinds = ("flash", "cudnn", "sdpa") if qkv.is_cuda else ("sdpa",)
        return [(kind, lambda kind=kind: make(kind)) for kind in kinds]

    inputs = {"qkv": ("bf16", (n, length, 3 * c))}
    if backward:
        inputs.update(out=("bf16", (n, length, c)), lse=("f32", (n, heads, length)), dout=("bf16", (n, length, c)))
    products = 5 if backward else 2
    return Case(
        family=f"attention {'backward' if backward else 'forward'}",
        title=f"N{n} {size}x{size} C{c}, {heads} x {width}", dtype="bf16", flops=products * 2 * n * length * length * c, bytes=n * length * c * 2 * (8 if backward else 4),
        inputs=inputs, build=build, prepare=prepare, consistent=consistent,
        outputs=lambda made: {"dqkv" if backward else "out": made}, tolerance=2e-2,
    )  # fmt: skip


def optimizer_case(count):
    """AdamW and one average at step 321; the rates are numbers, as both sides read them from memory elsewhere."""
    rate, beta1, beta2, eps, decay, steps = 1e-4, 0.9, 0.999, 1e-8, 0.9999, 322
    names = ("params", "adam_m", "adam_v", "ema")

    def build(g, v):
        p, m, s, ema, grad = (v[name] for name in (*names, "gradient"))
        m = g.apply("add", g.apply("mul", m, beta1), g.apply("mul", grad, 1 - beta1))
        s = g.apply("add", g.apply("mul", s, beta2), g.apply("mul", g.apply("mul", grad, grad), 1 - beta2))
        deviation = g.apply("add", g.apply("mul", g.apply("sqrt", s), (1 - beta2**steps) ** -0.5), eps)
        p = g.apply("sub", p, g.apply("div", g.apply("mul", m, rate / (1 - beta1**steps)), deviation))
        ema = g.apply("add", ema, g.apply("mul", g.apply("sub", p, ema), 1 - decay))
        return dict(zip(names, (p, m, s, ema)))

    def prepare(t):
        p = torch.nn.Parameter(t["params"].clone())
        p.grad = t["gradient"]
        ema = t["ema"].clone()
        options = {"fused": True, "capturable": True} if p.is_cuda else {}
        optimizer = torch.optim.AdamW([p], lr=rate, betas=(beta1, beta2), eps=eps, weight_decay=0.0, **options)
        optimizer.state[p] = {"step": torch.tensor(steps - 1.0, device=p.device), "exp_avg": t["adam_m"].clone(),
                              "exp_avg_sq": t["adam_v"].clone()}  # fmt: skip

        def call():
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_([ema], [p], 1 - decay)
            state = optimizer.state[p]
            return p.detach(), state["exp_avg"], state["exp_avg_sq"], ema

        return [("fused", lambda: call)]

    return Case(
        family="AdamW + average", title=f"{count:,}", dtype="f32", flops=0, bytes=36 * count,
        inputs={name: ("f32", (count,)) for name in (*names, "gradient")}, build=build, prepare=prepare,
        outputs=lambda made: dict(zip(names, made)), states=names,
    )  # fmt: skip


def other_cases(norms=NORMS, attentions=ATTENTIONS, vectors=VECTORS):
    cases = [norm_case(backward, *shape) for shape in norms for backward in (False, True)]
    cases += [attention_case(backward, *shape) for shape in attentions for backward in (False, True)]
    return cases + [optimizer_case(count) for count in vectors]
