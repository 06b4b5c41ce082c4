"""The ADM UNet as PyTorch modules, with the parameter names of the paper's published code.

Dhariwal and Nichol, "Diffusion Models Beat GANs on Image Synthesis", 2021. Images are [N, C, H, W], best channels_last.
No block is checkpointed. `Choices` says how the parts that PyTorch offers several ways for are computed.
"""

import contextlib
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Choices:
    norm: str = "nn"  # "nn": F.group_norm; "nhwc": views and var_mean, which keep channels last
    attention: str = "sdpa"  # "sdpa"; "cudnn" or "flash": SDPA forced to that backend; "math": products and softmax


class GroupNorm(nn.Module):
    def __init__(self, groups, channels, eps, choices):
        super().__init__()
        self.groups, self.eps, self.by_views = groups, eps, choices.norm == "nhwc"
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        if not self.by_views:
            return F.group_norm(x, self.groups, self.weight, self.bias, self.eps)
        n, c, h, w = x.shape
        grouped = x.float().view(n, self.groups, c // self.groups, h, w)
        variance, mean = torch.var_mean(grouped, dim=(2, 3, 4), keepdim=True, unbiased=False)
        normed = ((grouped - mean) * torch.rsqrt(variance + self.eps)).view(n, c, h, w)
        return (normed * self.weight.float()[None, :, None, None] + self.bias.float()[None, :, None, None]).to(x.dtype)


def forced(attention):
    """The context in which SDPA uses one backend; nothing is forced by the names "sdpa" and "math"."""
    if attention not in ("cudnn", "flash"):
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION if attention == "cudnn" else SDPBackend.FLASH_ATTENTION)


def attend(q, k, v, attention):
    """q, k, v [N, heads, L, width]."""
    if attention != "math":
        return F.scaled_dot_product_attention(q, k, v)
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(2, 3))
    return torch.matmul(scores.float().softmax(dim=-1).to(v.dtype), v)


class Attention(nn.Module):
    def __init__(self, config, channels, choices):
        super().__init__()
        width = config["num_head_channels"]
        self.heads = channels // width if width else config["num_heads"]
        self.heads_first, self.kind = config["qkv_order"] == "heads_first", choices.attention
        self.norm = GroupNorm(config["groups"], channels, config["norm_eps"], choices)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj_out = nn.Linear(channels, channels)

    def forward(self, x):
        n, c, h, w = x.shape
        qkv = self.qkv(self.norm(x).permute(0, 2, 3, 1).reshape(n, h * w, c))
        if self.heads_first:
            q, k, v = qkv.view(n, h * w, self.heads, 3, c // self.heads).permute(3, 0, 2, 1, 4).unbind(0)
        else:
            q, k, v = qkv.view(n, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = attend(q, k, v, self.kind).transpose(1, 2).reshape(n, h * w, c)
        return x + self.proj_out(mixed).view(n, h, w, c).permute(0, 3, 1, 2)


def conv(in_channels, out_channels, size, stride=1):
    return nn.Conv2d(in_channels, out_channels, size, stride=stride, padding=size // 2)


def average(x):
    return F.avg_pool2d(x, 2)


def repeat(x):
    return F.interpolate(x, scale_factor=2, mode="nearest")


class Residual(nn.Module):
    def __init__(self, config, in_channels, out_channels, choices, resample=None):
        super().__init__()
        norm = lambda channels: GroupNorm(config["groups"], channels, config["norm_eps"], choices)
        self.modulated, self.resample = config["use_scale_shift_norm"], resample
        rows = 2 * out_channels if self.modulated else out_channels
        self.in_layers = nn.Sequential(norm(in_channels), nn.SiLU(), conv(in_channels, out_channels, 3))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(4 * config["model_channels"], rows))
        self.out_layers = nn.Sequential(
            norm(out_channels), nn.SiLU(), nn.Dropout(config["dropout"]), conv(out_channels, out_channels, 3)
        )
        same = in_channels == out_channels
        self.skip_connection = nn.Identity() if same else conv(in_channels, out_channels, 1)

    def forward(self, x, embedding):
        h = self.in_layers[1](self.in_layers[0](x))
        if self.resample is not None:
            h, x = self.resample(h), self.resample(x)
        h = self.in_layers[2](h)
        row = self.emb_layers(embedding)[:, :, None, None].to(h.dtype)
        if self.modulated:
            scale, shift = row.chunk(2, dim=1)
            h = self.out_layers[0](h) * (1 + scale) + shift
        else:
            h = self.out_layers[0](h + row)
        for layer in list(self.out_layers)[1:]:
            h = layer(h)
        return self.skip_connection(x) + h


class Resample(nn.Module):
    """Between two levels, where it is not a residual block: with a convolution of its own, or without parameters."""

    def __init__(self, config, channels, down):
        super().__init__()
        self.down, self.own = down, None
        if config["conv_resample"]:
            self.own = "op" if down else "conv"
            setattr(self, self.own, conv(channels, channels, 3, stride=2 if down else 1))

    def forward(self, x):
        if self.own is None:
            return average(x) if self.down else repeat(x)
        return self.op(x) if self.down else self.conv(repeat(x))


class Stage(nn.Sequential):
    def forward(self, x, embedding):
        for part in self:
            x = part(x, embedding) if isinstance(part, Residual) else part(x)
        return x


class UNet(nn.Module):
    """Call with x [N, C, H, W], timesteps f32 [N] and, where the model has classes, labels int64 [N]."""

    def __init__(self, config, choices=Choices()):
        super().__init__()
        base, mults = config["model_channels"], config["channel_mult"]
        widths = [int(base * m) for m in mults]
        blocks = config["num_res_blocks"]
        residual = lambda i, o, resample=None: Residual(config, i, o, choices, resample)
        attended = lambda level: 2**level in config["attention_resolutions"]

        def between(channels, down):
            if config["resblock_updown"]:
                return residual(channels, channels, average if down else repeat)
            return Resample(config, channels, down)

        half = base // 2
        frequencies = torch.exp(-math.log(config["max_period"]) * torch.arange(half, dtype=torch.float64) / half)
        self.register_buffer("frequencies", frequencies.float(), persistent=False)
        self.odd = base % 2
        self.time_embed = nn.Sequential(nn.Linear(base, 4 * base), nn.SiLU(), nn.Linear(4 * base, 4 * base))
        self.label_emb = nn.Embedding(config["num_classes"], 4 * base) if config["num_classes"] else None

        self.input_blocks = nn.ModuleList([Stage(conv(config["image_channels"], widths[0], 3))])
        channels, skips = widths[0], [widths[0]]
        for level, width in enumerate(widths):
            for _ in range(blocks):
                parts = [residual(channels, width)]
                channels = width
                if attended(level):
                    parts.append(Attention(config, channels, choices))
                self.input_blocks.append(Stage(*parts))
                skips.append(channels)
            if level + 1 < len(widths):
                self.input_blocks.append(Stage(between(channels, down=True)))
                skips.append(channels)
        self.middle_block = Stage(
            residual(channels, channels), Attention(config, channels, choices), residual(channels, channels)
        )
        self.output_blocks = nn.ModuleList()
        for level, width in reversed(list(enumerate(widths))):
            for i in range(blocks + 1):
                parts = [residual(channels + skips.pop(), width)]
                channels = width
                if attended(level):
                    parts.append(Attention(config, channels, choices))
                if level > 0 and i == blocks:
                    parts.append(between(channels, down=False))
                self.output_blocks.append(Stage(*parts))
        out = config["image_channels"] * (2 if config["learn_sigma"] else 1)
        self.out = nn.Sequential(
            GroupNorm(config["groups"], channels, config["norm_eps"], choices), nn.SiLU(), conv(channels, out, 3)
        )

    def forward(self, x, timesteps, labels=None):
        angles = timesteps[:, None] * self.frequencies[None]
        embedding = F.pad(torch.cat([angles.cos(), angles.sin()], dim=1), (0, self.odd))
        embedding = self.time_embed(embedding.to(self.time_embed[0].weight.dtype))
        if self.label_emb is not None:
            embedding = embedding + self.label_emb(labels)
        h = x.to(self.time_embed[0].weight.dtype)
        skips = []
        for stage in self.input_blocks:
            h = stage(h, embedding)
            skips.append(h)
        h = self.middle_block(h, embedding)
        for stage in self.output_blocks:
            h = stage(torch.cat([h, skips.pop()], dim=1), embedding)
        return self.out(h).float()
