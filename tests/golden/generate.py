#!/usr/bin/env python3
"""Writes the goldens: what a float64 PyTorch model says of every feature of the UNet and of training.

    tests/golden/generate.py [NAME...]        (needs PyTorch, Debian: python3-torch; without names, every file)

NAME.safetensors, beside this script, holds
    metadata        "unet", "diffusion", "training": configurations as JSON, as difuse's own files spell them
    seed            u32 [2], of all draws
    param/P         f32, the parameter called P; convolutions are [Cout, R, S, Cin]
    model/          one forward and backward. Inputs: x f32 [N, H, W, C], target f32 [N, H, W, out channels], timesteps
                    f32 [N], index i32 [N] and step i32 [] (what dropout is keyed by), label i32 [N] where there are
                    classes. Results in f64: output, shaped like target; loss [], the mean square of output - target
    grad/P          f64, that loss's gradient
    curve/          ten training steps from those parameters. Inputs: pixels u8 [10, N, H, W, C], index i32 [N], label
                    i32 [10, N]. Results in f64 [10]: loss, grad_norm, lr
    final/P, ema/P  f64, the parameters after the ten steps and their average; ema_1/P is a second average
"""

import json
import pathlib
import sys

import numpy as np
import torch

import safetensors_file
from philox import Draws
from unet import Parameters, UNet
from variational import bound_in_bits

TIMESTEP_STREAM, NOISE_STREAM, DROPOUT_STREAM = 1, 2, 1024
SEED = (0x9E3779B9, 0xFEDCBA98)
STEPS = 10
MODEL_STEP = 5

UNET = {
    "image_height": 8, "image_width": 8, "image_channels": 3,
    "model_channels": 4, "channel_mult": [1, 2], "num_res_blocks": 1,
    "attention_resolutions": [], "num_heads": 2, "num_head_channels": 0, "qkv_order": "heads_first",
    "groups": 2, "norm_eps": 1e-5, "use_scale_shift_norm": False,
    "conv_resample": True, "resblock_updown": False, "dropout": 0.0,
    "num_classes": 0, "learn_sigma": False, "max_period": 10000.0,
}  # fmt: skip
DIFFUSION = {"schedule": "linear", "timesteps": 1000}
TRAINING = {
    "batch": 3,
    "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "clip_norm": 0.0,
    "warmup": 0, "schedule": "constant", "total_steps": 0, "ema_decays": [0.4],
}  # fmt: skip

EVERYTHING = {
    "image_height": 8, "image_width": 12, "image_channels": 4,
    "channel_mult": [1, 1.5, 2], "attention_resolutions": [2], "num_head_channels": 2, "qkv_order": "qkv_first",
    "norm_eps": 1e-4, "use_scale_shift_norm": True, "resblock_updown": True, "dropout": 0.1,
    "num_classes": 5, "max_period": 1000.0,
}  # fmt: skip
OPTIMIZER = {
    "beta1": 0.8, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.05, "clip_norm": 0.5,
    "warmup": 4, "schedule": "cosine", "total_steps": 9, "ema_decays": [0.9999, 0.3],
}  # fmt: skip

# name -> what differs from the three configurations above
GOLDENS = {
    "plain": {},
    "scale_shift_norm": {"unet": {"use_scale_shift_norm": True}},
    "resblock_updown": {"unet": {"resblock_updown": True}},
    "parameter_free_resampling": {"unet": {"conv_resample": False}},
    "class_embedding": {"unet": {"num_classes": 5}},
    "learn_sigma": {"unet": {"learn_sigma": True}},
    # So few timesteps that one image of the curve is at t = 0, where the bound is a likelihood of pixels.
    "learn_sigma_first_step": {"unet": {"learn_sigma": True}, "diffusion": {"timesteps": 24}},
    "attention_levels": {"unet": {"attention_resolutions": [1, 2], "num_heads": 4}},
    "head_width": {"unet": {"attention_resolutions": [2], "num_head_channels": 4}},
    "qkv_first": {"unet": {"qkv_order": "qkv_first"}},
    "max_period": {"unet": {"max_period": 100.0}},
    "odd_width": {"unet": {"model_channels": 5, "groups": 1, "num_heads": 5}},
    "wide": {"unet": {"model_channels": 8, "channel_mult": [1.5, 1], "groups": 4}},
    "single_level": {"unet": {"channel_mult": [1], "num_res_blocks": 2}},
    "three_levels": {"unet": {"channel_mult": [1, 1.5, 2.5]}},
    "not_square_grey": {"unet": {"image_height": 8, "image_width": 12, "image_channels": 1}},
    "dropout": {"unet": {"dropout": 0.25}},
    "optimizer": {"training": OPTIMIZER},
    "cosine_noise": {"diffusion": {"schedule": "cosine", "timesteps": 50}},
    "everything": {
        "unet": {**EVERYTHING, "learn_sigma": True}, "diffusion": {"schedule": "cosine"}, "training": OPTIMIZER,
    },
}


def betas(diffusion):
    """Ho et al., 2020 (linear; the betas scale with 1000 / steps); Nichol and Dhariwal, 2021, equation 17 (cosine)."""
    steps = diffusion["timesteps"]
    if diffusion["schedule"] == "linear":
        return np.linspace(1e-4, 0.02, steps) * 1000 / steps
    f = np.cos((np.arange(steps + 1) / steps + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.minimum(1 - f[1:] / f[:-1], 0.999)


def to_nchw(images):
    return torch.tensor(np.asarray(images, dtype=np.float64)).permute(0, 3, 1, 2)


def to_stored(tensor, dtype=np.float64):
    """Convolution weights and images have their channels last in the file."""
    array = tensor.detach().numpy()
    return (np.moveaxis(array, 1, 3) if array.ndim == 4 else array).astype(dtype)


def dropout_of(draws):
    return lambda i, shape: draws.uniform(DROPOUT_STREAM + i, shape)


def one_pass(unet, batch, random, parameters):
    """Forward and backward on given data: the tensors "model/..." and "grad/..."."""
    size = (batch, unet["image_height"], unet["image_width"])
    channels = unet["image_channels"]
    tensors = {
        "x": random.standard_normal((*size, channels)).astype(np.float32),
        "target": random.standard_normal((*size, channels * (1 + unet["learn_sigma"]))).astype(np.float32),
        "timesteps": np.float32([0, 431, 999][:batch]),
        "index": np.int32([7, 0, 123][:batch]),
        "step": np.array(MODEL_STEP, dtype=np.int32),
    }
    labels = None
    if unet["num_classes"]:
        tensors["label"] = random.integers(0, unet["num_classes"], batch).astype(np.int32)
        labels = torch.tensor(tensors["label"].astype(np.int64))
    model = UNet(unet, parameters, dropout_of(Draws(SEED, tensors["index"], MODEL_STEP)))
    output = model(to_nchw(tensors["x"]), torch.tensor(tensors["timesteps"].astype(np.float64)), labels)
    loss = (output - to_nchw(tensors["target"])).square().mean()
    loss.backward()
    tensors["output"] = to_stored(output)
    tensors["loss"] = to_stored(loss)
    gradients = {f"grad/{name}": to_stored(p.grad) for name, p in parameters.items()}
    return {**{f"model/{name}": value for name, value in tensors.items()}, **gradients}


def learning_rate(training, step):
    rate = training["learning_rate"]
    if training["warmup"]:
        rate *= min((step + 1) / training["warmup"], 1)
    if training["schedule"] == "cosine":
        rate *= (1 + np.cos(np.pi * min(step / training["total_steps"], 1))) / 2
    return rate


def train(unet, diffusion, training, random, parameters):
    """Ten steps; `parameters` are changed. The tensors "curve/...", "final/..." and "ema.../..."."""
    batch = training["batch"]
    sample = (unet["image_height"], unet["image_width"], unet["image_channels"])
    pixels = random.integers(0, 256, (STEPS, batch, *sample)).astype(np.uint8)
    label = random.integers(0, max(unet["num_classes"], 1), (STEPS, batch)).astype(np.int32)
    index = np.arange(batch, dtype=np.int32)[::-1].copy()
    beta = betas(diffusion)
    alpha_bar = np.cumprod(1 - beta)
    flat = list(parameters.values())
    optimizer = torch.optim.AdamW(
        flat, betas=(training["beta1"], training["beta2"]), eps=training["eps"], weight_decay=training["weight_decay"]
    )
    averages = [{name: p.detach().clone() for name, p in parameters.items()} for _ in training["ema_decays"]]
    curve = {"loss": [], "grad_norm": [], "lr": []}
    for step in range(STEPS):
        draws = Draws(SEED, index, step)
        t = draws.integer(TIMESTEP_STREAM, diffusion["timesteps"])
        noise = to_nchw(draws.normal(NOISE_STREAM, sample))
        a = torch.tensor(alpha_bar[t])[:, None, None, None]
        x0 = to_nchw(pixels[step] / 127.5 - 1)
        x = a.sqrt() * x0 + (1 - a).sqrt() * noise
        labels = torch.tensor(label[step].astype(np.int64)) if unet["num_classes"] else None
        output = UNet(unet, parameters, dropout_of(draws))(x, torch.tensor(t.astype(np.float64)), labels)
        eps, variance = output.split(sample[2], dim=1) if unet["learn_sigma"] else (output, None)
        loss = (eps - noise).square().mean()
        if unet["learn_sigma"]:
            loss = loss + bound_in_bits(beta, x0, x, t, eps.detach(), variance).mean()
        optimizer.zero_grad()
        loss.backward()
        limit = training["clip_norm"] or float("inf")
        curve["grad_norm"].append(torch.nn.utils.clip_grad_norm_(flat, limit).item())
        curve["loss"].append(loss.item())
        curve["lr"].append(learning_rate(training, step))
        for group in optimizer.param_groups:
            group["lr"] = curve["lr"][-1]
        optimizer.step()
        with torch.no_grad():
            for average, limit in zip(averages, training["ema_decays"]):
                decay = min(limit, (1 + step) / (10 + step))
                for name, p in parameters.items():
                    average[name].mul_(decay).add_(p, alpha=1 - decay)
    tensors = {f"curve/{name}": np.float64(values) for name, values in curve.items()}
    tensors.update({"curve/pixels": pixels, "curve/index": index})
    if unet["num_classes"]:
        tensors["curve/label"] = label
    tensors.update({f"final/{name}": to_stored(p) for name, p in parameters.items()})
    for i, average in enumerate(averages):
        tensors.update({f"ema{f'_{i}' if i else ''}/{name}": to_stored(p) for name, p in average.items()})
    return tensors


def golden(name, changes):
    base = {"unet": UNET, "diffusion": DIFFUSION, "training": TRAINING}
    unet, diffusion, training = ({**base[key], **changes.get(key, {})} for key in base)
    random = np.random.Generator(np.random.PCG64(list(name.encode())))
    parameters = Parameters()
    tensors = one_pass(unet, training["batch"], random, parameters)
    tensors["seed"] = np.uint32(SEED)
    tensors.update({f"param/{key}": to_stored(p, np.float32) for key, p in parameters.items()})
    tensors.update(train(unet, diffusion, training, random, parameters))
    metadata = {"unet": json.dumps(unet), "diffusion": json.dumps(diffusion), "training": json.dumps(training)}
    return metadata, tensors


def main(names):
    torch.set_num_threads(1)
    folder = pathlib.Path(__file__).parent
    for name in names or GOLDENS:
        metadata, tensors = golden(name, GOLDENS[name])
        path = folder / f"{name}.safetensors"
        safetensors_file.write(path, metadata, tensors)
        count = sum(value.size for key, value in tensors.items() if key.startswith("param/"))
        print(f"{path.name}: {count} parameters, {path.stat().st_size / 1000:.0f} kB, loss {tensors['model/loss']:.6f}"
              f", curve {tensors['curve/loss'].round(4).tolist()}")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
