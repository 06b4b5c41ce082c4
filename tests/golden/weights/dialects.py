"""Other programs' UNets in PyTorch, restated from their definitions as modules with those programs' parameter names.

guided-diffusion's and unet.cu's come from one class with two sets of names; diffusers' UNet2DModel and the small strided
network from a class each. Only what decides a forward pass is here.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def sinusoid(t, width, max_period=10000, shift=0, cosines_first=True):
    half = width // 2
    frequencies = torch.exp(-math.log(max_period) * torch.arange(half, dtype=t.dtype) / (half - shift))
    angles = t[:, None] * frequencies[None]
    parts = [angles.cos(), angles.sin()] if cosines_first else [angles.sin(), angles.cos()]
    return F.pad(torch.cat(parts, dim=1), (0, width % 2))


def attend(q, k, v, heads):
    """Each [N, C, L]; heads are consecutive channels."""
    n, c, length = q.shape
    q, k, v = (x.reshape(n * heads, c // heads, length) for x in (q, k, v))
    weights = torch.softmax(q.transpose(1, 2) @ k / math.sqrt(c // heads), dim=-1)
    return (v @ weights.transpose(1, 2)).reshape(n, c, length)


def holder(**layers):
    """A module that gives its layers the names `a__0` -> "a.0"."""
    module = nn.Module()
    for name, layer in layers.items():
        at = module
        *path, last = name.split("__")
        for part in path:
            if not hasattr(at, part):
                at.add_module(part, nn.Module())
            at = getattr(at, part)
        at.add_module(last, layer)
    return module


class Residual(nn.Module):
    """`names` in the order norm, convolution, embedding, norm, convolution, skip."""

    def __init__(self, names, c_in, c_out, c_emb, groups, eps, modulated, resample):
        super().__init__()
        self.modulated, self.resample, self.names = modulated, resample, names
        layers = [
            nn.GroupNorm(groups, c_in, eps),
            nn.Conv2d(c_in, c_out, 3, padding=1),
            nn.Linear(c_emb, c_out * (2 if modulated else 1)),
            nn.GroupNorm(groups, c_out, eps),
            nn.Conv2d(c_out, c_out, 3, padding=1),
        ]
        if c_in != c_out:
            layers.append(nn.Conv2d(c_in, c_out, 1))
        for name, layer in zip(names, layers):
            add(self, name, layer)

    def forward(self, x, emb):
        norm1, conv1, linear, norm2, conv2 = (self.get_submodule(name) for name in self.names[:5])
        h = conv1(self.resample(F.silu(norm1(x))))
        row = linear(F.silu(emb))[:, :, None, None]
        if self.modulated:
            scale, shift = row.chunk(2, dim=1)
            h = norm2(h) * (1 + scale) + shift
        else:
            h = norm2(h + row)
        h = conv2(F.silu(h))
        x = self.resample(x)
        if x.shape[1] != h.shape[1]:
            x = self.get_submodule(self.names[5])(x)
        return x + h


def add(module, name, layer):
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = getattr(module, part)
    module.add_module(last, layer)


def same(x):
    return x


def halve(x):
    return F.avg_pool2d(x, 2)


def double(x):
    return F.interpolate(x, scale_factor=2, mode="nearest")


ADM_NAMES = ("in_layers.0", "in_layers.2", "emb_layers.1", "out_layers.0", "out_layers.3", "skip_connection")
ADM_ATTENTION = ("norm", "qkv", "proj_out")
CU_NAMES = ("gn1", "cv3_1", "l_emb", "gn2", "cv3_2", "skip_connection")
CU_ATTENTION = ("gn", "qkv", "proj")
DIFFUSERS_NAMES = ("norm1", "conv1", "time_emb_proj", "norm2", "conv2", "conv_shortcut")


class AdmAttention(nn.Module):
    def __init__(self, names, channels, heads, groups, heads_first):
        super().__init__()
        self.names, self.heads, self.heads_first = names, heads, heads_first
        add(self, names[0], nn.GroupNorm(groups, channels))
        add(self, names[1], nn.Conv1d(channels, 3 * channels, 1))
        add(self, names[2], nn.Conv1d(channels, channels, 1))

    def forward(self, x, emb=None):
        n, c, height, width = x.shape
        norm, qkv, out = (self.get_submodule(name) for name in self.names)
        y = qkv(norm(x.reshape(n, c, -1)))
        if self.heads_first:
            q, k, v = (p.reshape(n, c, -1) for p in y.reshape(n, self.heads, 3, c // self.heads, -1).unbind(2))
        else:
            q, k, v = y.chunk(3, dim=1)
        return x + out(attend(q, k, v, self.heads)).reshape(x.shape)


class Down(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.op = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x, emb):
        return self.op(x)


class Up(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x, emb):
        return self.conv(double(x))


class Plain(nn.Module):
    def __init__(self, resample):
        super().__init__()
        self.resample = resample

    def forward(self, x, emb):
        return self.resample(x)


class Adm(nn.Module):
    """`names`: residual block's and attention's."""

    def __init__(self, c, names=(ADM_NAMES, ADM_ATTENTION)):
        super().__init__()
        self.c = c
        base, groups = c["model_channels"], c["groups"]
        emb = 4 * base
        widths = [int(base * m) for m in c["channel_mult"]]

        def residual(c_in, c_out, resample=same):
            return Residual(names[0], c_in, c_out, emb, groups, 1e-5, c["use_scale_shift_norm"], resample)

        def attention(width):
            heads = width // c["num_head_channels"] if c["num_head_channels"] else c["num_heads"]
            return AdmAttention(names[1], width, heads, groups, c["qkv_order"] == "heads_first")

        def between(width, how, convolution):
            if c["resblock_updown"]:
                return residual(width, width, how)
            return convolution(width) if c["conv_resample"] else Plain(how)

        self.time_embed = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        if c["num_classes"]:
            self.label_emb = nn.Embedding(c["num_classes"], emb)
        self.input_blocks = nn.ModuleList(
            [nn.ModuleList([nn.Conv2d(c["image_channels"] + c["conditioning_channels"], widths[0], 3, padding=1)])]
        )
        channels, skips = widths[0], [widths[0]]
        for level, width in enumerate(widths):
            for _ in range(c["num_res_blocks"]):
                parts = [residual(channels, width)]
                if 2**level in c["attention_resolutions"]:
                    parts.append(attention(width))
                self.input_blocks.append(nn.ModuleList(parts))
                channels = width
                skips.append(width)
            if level + 1 < len(widths):
                self.input_blocks.append(nn.ModuleList([between(width, halve, Down)]))
                skips.append(width)
        self.middle_block = nn.ModuleList([residual(channels, channels), attention(channels), residual(channels, channels)])
        self.output_blocks = nn.ModuleList()
        for level, width in reversed(list(enumerate(widths))):
            for i in range(c["num_res_blocks"] + 1):
                parts = [residual(channels + skips.pop(), width)]
                channels = width
                if 2**level in c["attention_resolutions"]:
                    parts.append(attention(width))
                if level > 0 and i == c["num_res_blocks"]:
                    parts.append(between(width, double, Up))
                self.output_blocks.append(nn.ModuleList(parts))
        out = c["image_channels"] * (2 if c["learn_sigma"] else 1)
        self.out = nn.Sequential(nn.GroupNorm(groups, channels), nn.SiLU(), nn.Conv2d(channels, out, 3, padding=1))

    def forward(self, x, t, labels=None):
        emb = self.time_embed(sinusoid(t, self.c["model_channels"], self.c["max_period"]))
        if self.c["num_classes"]:
            emb = emb + self.label_emb(labels)
        h, skips = self.input_blocks[0][0](x), []
        skips.append(h)
        for block in list(self.input_blocks)[1:]:
            for part in block:
                h = part(h, emb)
            skips.append(h)
        for part in self.middle_block:
            h = part(h, emb)
        for block in self.output_blocks:
            h = torch.cat([h, skips.pop()], dim=1)
            for part in block:
                h = part(h, emb)
        return self.out(h)


class DiffusersAttention(nn.Module):
    def __init__(self, channels, head, groups, eps):
        super().__init__()
        self.heads = channels // head
        if groups is not None:
            self.group_norm = nn.GroupNorm(groups, channels, eps)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x):
        n, c, height, width = x.shape
        y = self.group_norm(x) if hasattr(self, "group_norm") else x
        y = y.reshape(n, c, -1).transpose(1, 2)
        mixed = attend(*(layer(y).transpose(1, 2) for layer in (self.to_q, self.to_k, self.to_v)), self.heads)
        return x + self.to_out[0](mixed.transpose(1, 2)).transpose(1, 2).reshape(x.shape)


class DiffusersDown(nn.Module):
    def __init__(self, channels, padding):
        super().__init__()
        self.conv, self.padding = nn.Conv2d(channels, channels, 3, stride=2, padding=padding), padding

    def forward(self, x, emb):
        return self.conv(F.pad(x, (0, 1, 0, 1)) if self.padding == 0 else x)


class UNet2D(nn.Module):
    """`c`: config.json."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        widths, groups, eps = c["block_out_channels"], c["norm_num_groups"], c["norm_eps"]
        emb, layers = 4 * widths[0], c["layers_per_block"]
        modulated = c["resnet_time_scale_shift"] == "scale_shift"

        def residual(c_in, c_out, resample=same):
            return Residual(DIFFUSERS_NAMES, c_in, c_out, emb, groups, eps, modulated, resample)

        def attention(width, norm_groups=groups):
            return DiffusersAttention(width, c["attention_head_dim"] or width, norm_groups, eps)

        self.conv_in = nn.Conv2d(c["in_channels"], widths[0], 3, padding=1)
        self.time_embedding = holder(linear_1=nn.Linear(widths[0], emb), linear_2=nn.Linear(emb, emb))
        if c["num_class_embeds"]:
            self.class_embedding = nn.Embedding(c["num_class_embeds"], emb)

        channels, skips = widths[0], [widths[0]]
        self.down_blocks = nn.ModuleList()
        for i, (kind, width) in enumerate(zip(c["down_block_types"], widths)):
            block = nn.Module()
            block.resnets = nn.ModuleList()
            if kind.startswith("Attn"):
                block.attentions = nn.ModuleList()
            for _ in range(layers):
                block.resnets.append(residual(channels, width))
                if kind.startswith("Attn"):
                    block.attentions.append(attention(width))
                channels = width
                skips.append(width)
            if i + 1 < len(widths):
                inside = kind == "ResnetDownsampleBlock2D" or (kind.startswith("Attn") and c["downsample_type"] == "resnet")
                way = residual(width, width, halve) if inside else DiffusersDown(width, c["downsample_padding"])
                block.downsamplers = nn.ModuleList([way])
                skips.append(width)
            self.down_blocks.append(block)

        self.mid_block = nn.Module()
        self.mid_block.resnets = nn.ModuleList([residual(channels, channels), residual(channels, channels)])
        if c["add_attention"]:
            middle = c["attn_norm_num_groups"] or (None if modulated else groups)
            self.mid_block.attentions = nn.ModuleList([attention(channels, middle)])

        self.up_blocks = nn.ModuleList()
        for i, (kind, width) in enumerate(zip(c["up_block_types"], reversed(widths))):
            block = nn.Module()
            block.resnets = nn.ModuleList()
            if kind.startswith("Attn"):
                block.attentions = nn.ModuleList()
            for _ in range(layers + 1):
                block.resnets.append(residual(channels + skips.pop(), width))
                if kind.startswith("Attn"):
                    block.attentions.append(attention(width))
                channels = width
            if i + 1 < len(widths):
                inside = kind == "ResnetUpsampleBlock2D" or (kind.startswith("Attn") and c["upsample_type"] == "resnet")
                block.upsamplers = nn.ModuleList([residual(width, width, double) if inside else Up(width)])
            self.up_blocks.append(block)
        self.conv_norm_out = nn.GroupNorm(groups, channels, eps)
        self.conv_out = nn.Conv2d(channels, c["out_channels"], 3, padding=1)

    def forward(self, x, t, labels=None):
        c = self.c
        emb = sinusoid(t, c["block_out_channels"][0], shift=c["freq_shift"], cosines_first=c["flip_sin_to_cos"])
        emb = self.time_embedding.linear_2(F.silu(self.time_embedding.linear_1(emb)))
        if c["num_class_embeds"]:
            emb = emb + self.class_embedding(labels)
        h = self.conv_in(x)
        skips = [h]
        for block in self.down_blocks:
            for i, resnet in enumerate(block.resnets):
                h = resnet(h, emb)
                if hasattr(block, "attentions"):
                    h = block.attentions[i](h)
                skips.append(h)
            if hasattr(block, "downsamplers"):
                h = block.downsamplers[0](h, emb)
                skips.append(h)
        h = self.mid_block.resnets[0](h, emb)
        if hasattr(self.mid_block, "attentions"):
            h = self.mid_block.attentions[0](h)
        h = self.mid_block.resnets[1](h, emb)
        for block in self.up_blocks:
            for i, resnet in enumerate(block.resnets):
                h = resnet(torch.cat([h, skips.pop()], dim=1), emb)
                if hasattr(block, "attentions"):
                    h = block.attentions[i](h)
            if hasattr(block, "upsamplers"):
                h = block.upsamplers[0](h, emb)
        return self.conv_out(F.silu(self.conv_norm_out(h)))


class Strided(nn.Module):
    """Names as difuse has them: the network has no published one."""

    def __init__(self, c):
        super().__init__()
        widths = [c["model_channels"] * m for m in c["channel_mult"]]
        ins = [c["image_channels"] + 1] + widths[:-1]
        outs = [c["image_channels"]] + widths[:-1]
        self.down = nn.ModuleList([nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in zip(ins, widths)])
        self.middle = nn.ModuleList(
            [nn.Conv2d(widths[-1], widths[-1], 3, padding=1) for _ in range(c["num_res_blocks"])]
        )
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(2 * a, b, 3, stride=2, padding=1) for a, b in zip(reversed(widths), reversed(outs))]
        )

    def forward(self, x, t, labels=None):
        h = torch.cat([x, t[:, None, None, None].expand(-1, 1, *x.shape[2:])], dim=1)
        skips, sizes = [], []
        for layer in self.down:
            sizes.append(h.shape[2:])
            h = F.relu(layer(h))
            skips.append(h)
        for layer in self.middle:
            h = F.relu(layer(h))
        for i, layer in enumerate(self.up):
            h = layer(torch.cat([h, skips.pop()], dim=1), output_size=sizes.pop())
            h = F.relu(h) if i + 1 < len(self.up) else h
        return h
