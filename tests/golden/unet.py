"""The ADM UNet family in PyTorch: written from the definitions, parameters created as they are used.

Dhariwal and Nichol, "Diffusion Models Beat GANs on Image Synthesis", 2021. Parameter names are those of that paper's
published code, so a file of its weights would fit. Images are [N, C, H, W] here.
"""

import math
import zlib

import numpy as np
import torch
import torch.nn.functional as F


class Parameters(dict):
    """Name -> float64 tensor. A parameter is drawn when it is first asked for, from its name alone.

    Every value is exact in float32, so that single and double precision start from the same numbers, and none is zero:
    a layer that starts at zero would hide everything before it.
    """

    def get(self, name, shape, centre=0.0, spread=1.0):
        if name not in self:
            draw = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode()))).random(shape)
            value = np.float32(centre + spread * (2 * draw - 1))
            value[value == 0] = np.float32(spread / 2)
            self[name] = torch.tensor(value.astype(np.float64), requires_grad=True)
        assert self[name].shape == torch.Size(shape), name
        return self[name]


def timestep_embedding(t, channels, max_period):
    """[N] -> [N, channels]: cosines, sines, and a zero where `channels` is odd."""
    half = channels // 2
    frequencies = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float64) / half)
    angles = t[:, None] * frequencies[None]
    return F.pad(torch.cat([angles.cos(), angles.sin()], dim=1), (0, channels % 2))


class UNet:
    """Call with x [N, C, H, W], t [N] (float64), labels [N] (int64) or None.

    `dropout_uniform(i, shape)` gives the uniform numbers [N, *shape] of the i-th dropout in the order of the forward,
    shape being (H, W, C); an element is dropped where its number is below the probability.
    """

    def __init__(self, config, parameters, dropout_uniform=None):
        self.config, self.parameters, self.dropout_uniform = config, parameters, dropout_uniform
        self.dropouts = 0

    # Layers

    def linear(self, name, x, out):
        fan_in = x.shape[1]
        weight = self.parameters.get(f"{name}.weight", (out, fan_in), spread=math.sqrt(3 / fan_in))
        return F.linear(x, weight, self.parameters.get(f"{name}.bias", (out,), spread=0.3))

    def conv(self, name, x, out, size, stride=1):
        fan_in = x.shape[1] * size * size
        weight = self.parameters.get(f"{name}.weight", (out, x.shape[1], size, size), spread=math.sqrt(3 / fan_in))
        bias = self.parameters.get(f"{name}.bias", (out,), spread=0.3)
        return F.conv2d(x, weight, bias, stride=stride, padding=size // 2)

    def norm(self, name, x):
        weight = self.parameters.get(f"{name}.weight", (x.shape[1],), centre=1, spread=0.5)
        bias = self.parameters.get(f"{name}.bias", (x.shape[1],), spread=0.3)
        return F.group_norm(x, self.config["groups"], weight, bias, self.config["norm_eps"])

    def dropout(self, x):
        p = self.config["dropout"]
        if p == 0 or self.dropout_uniform is None:
            return x
        n, c, h, w = x.shape
        uniform = torch.tensor(self.dropout_uniform(self.dropouts, (h, w, c))).permute(0, 3, 1, 2)
        self.dropouts += 1
        return x * (uniform >= p) / (1 - p)

    # Blocks

    def residual(self, name, x, embedding, out, resample=lambda x: x):
        h = resample(F.silu(self.norm(f"{name}.in_layers.0", x)))
        h = self.conv(f"{name}.in_layers.2", h, out, 3)
        modulated = self.config["use_scale_shift_norm"]
        row = self.linear(f"{name}.emb_layers.1", F.silu(embedding), 2 * out if modulated else out)[:, :, None, None]
        if modulated:
            scale, shift = row[:, :out], row[:, out:]
            h = self.norm(f"{name}.out_layers.0", h) * (1 + scale) + shift
        else:
            h = self.norm(f"{name}.out_layers.0", h + row)
        h = self.conv(f"{name}.out_layers.3", self.dropout(F.silu(h)), out, 3)
        skip = resample(x)
        if x.shape[1] != out:
            skip = self.conv(f"{name}.skip_connection", skip, out, 1)
        return skip + h

    def attention(self, name, x):
        n, c, height, width = x.shape
        per_head = self.config["num_head_channels"]
        heads = c // per_head if per_head else self.config["num_heads"]
        qkv = self.conv(f"{name}.qkv", self.norm(f"{name}.norm", x), 3 * c, 1).reshape(n, 3 * c, height * width)
        if self.config["qkv_order"] == "heads_first":  # each head's q, k and v lie together
            q, k, v = qkv.reshape(n, heads, 3, c // heads, -1).unbind(2)
        else:  # all of q, then all of k, then all of v
            q, k, v = qkv.reshape(n, 3, heads, c // heads, -1).unbind(1)
        scores = torch.einsum("nhcq,nhck->nhqk", q, k) / math.sqrt(c // heads)
        mixed = torch.einsum("nhqk,nhck->nhcq", scores.softmax(dim=-1), v).reshape(x.shape)
        return x + self.conv(f"{name}.proj_out", mixed, c, 1)

    def downsample(self, name, x, embedding):
        pool = lambda image: F.avg_pool2d(image, 2)
        if self.config["resblock_updown"]:
            return self.residual(name, x, embedding, x.shape[1], pool)
        return self.conv(f"{name}.op", x, x.shape[1], 3, stride=2) if self.config["conv_resample"] else pool(x)

    def upsample(self, name, x, embedding):
        repeat = lambda image: image.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        if self.config["resblock_updown"]:
            return self.residual(name, x, embedding, x.shape[1], repeat)
        return self.conv(f"{name}.conv", repeat(x), x.shape[1], 3) if self.config["conv_resample"] else repeat(x)

    # The whole

    def embed(self, t, labels):
        base = self.config["model_channels"]
        emb = self.linear("time_embed.0", timestep_embedding(t, base, self.config["max_period"]), 4 * base)
        emb = self.linear("time_embed.2", F.silu(emb), 4 * base)
        if self.config["num_classes"]:
            emb = emb + self.parameters.get("label_emb.weight", (self.config["num_classes"], 4 * base))[labels]
        return emb

    def __call__(self, x, t, labels=None):
        c = self.config
        widths = [int(c["model_channels"] * mult) for mult in c["channel_mult"]]
        self.dropouts = 0
        embedding = self.embed(t, labels)

        h = self.conv("input_blocks.0.0", x, widths[0], 3)
        skips = [h]
        for level, width in enumerate(widths):
            for _ in range(c["num_res_blocks"]):
                name = f"input_blocks.{len(skips)}"
                h = self.residual(f"{name}.0", h, embedding, width)
                if 2**level in c["attention_resolutions"]:
                    h = self.attention(f"{name}.1", h)
                skips.append(h)
            if level + 1 < len(widths):
                h = self.downsample(f"input_blocks.{len(skips)}.0", h, embedding)
                skips.append(h)

        h = self.residual("middle_block.0", h, embedding, widths[-1])
        h = self.attention("middle_block.1", h)
        h = self.residual("middle_block.2", h, embedding, widths[-1])

        block = 0
        for level, width in reversed(list(enumerate(widths))):
            for i in range(c["num_res_blocks"] + 1):
                name = f"output_blocks.{block}"
                block, part = block + 1, 1
                h = self.residual(f"{name}.0", torch.cat([h, skips.pop()], dim=1), embedding, width)
                if 2**level in c["attention_resolutions"]:
                    h, part = self.attention(f"{name}.1", h), 2
                if level > 0 and i == c["num_res_blocks"]:
                    h = self.upsample(f"{name}.{part}", h, embedding)
        assert not skips
        out = 2 * c["image_channels"] if c["learn_sigma"] else c["image_channels"]
        return self.conv("out.2", F.silu(self.norm("out.0", h)), out, 3)
