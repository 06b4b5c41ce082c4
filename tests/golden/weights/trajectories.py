"""Whole trajectories of small models, by the samplers of the programs that their weights come from, in float64.

Each model NAME of PLANS gets `NAME.trajectory.safetensors`: "images" [N, H, W, C], the last x of 20 steps, with the
sampler and the process as JSON in the metadata, and for a model that enlarges images "low_res" u8. Any model without a
learned variance also gets "denoised" [SIGMAS, N, H, W, C]: D(sigma z; sigma), the network in EDM's preconditioning.
Noise is what difuse draws for the images 0 .. N - 1 of a seed (philox.py, models/streams.h).

The formulas are written in each program's own quantities (alpha_bar of respaced timesteps; sigma), not in difuse's:

- ADM: guided-diffusion, gaussian_diffusion.py and respace.py: p_sample with a variance learned between two bounds or
  fixed, ddim_sample, on the timesteps of space_timesteps(1000, "20") or "ddim20";
- diffusers: scheduling_ddpm.py and scheduling_ddim.py (step) with "leading" timesteps;
- EDM: Karras et al., 2022, table 1 and algorithm 2; DPM-Solver++(2M): Lu et al., 2022, algorithm 2.
"""

import json
import math

import numpy as np
import torch
import torch.nn.functional as F
from philox import Draws

import safetensors_file

SEED = 1234
INDEX = (0, 1, 2)
START, STEP, CHURN = 3, 4, 7  # Streams.
STEPS = 20
SIGMAS = (0.02, 1.0, 40.0)
EDM = {"process": "edm"}

PLANS = {
    "adm_everything": dict(draw="adm_ancestral", sampler=dict(kind="ddpm", spacing="linear", clipping="clip")),
    "adm_half": dict(draw="adm_ancestral", sampler=dict(kind="ddpm", spacing="linear", clipping="clip"),
                     diffusion=dict(schedule="cosine")),  # fmt: skip
    "adm_upsampler": dict(draw="adm_ddim", diffusion=dict(prediction="x0"),
                          sampler=dict(kind="ddim", spacing="leading", clipping="clip")),  # fmt: skip
    "unet_cu": dict(draw="adm_ancestral", sampler=dict(kind="ddpm", spacing="linear", clipping="clip")),
    "diffusers_plain": dict(draw="diffusers_ddpm", sampler=dict(kind="ddpm", spacing="leading", clipping="clip")),
    "diffusers_ddpm": dict(draw="diffusers_ddim", sampler=dict(kind="ddim", spacing="leading", clipping="none")),
    "diffusers_one_sided": dict(draw="diffusers_ddpm", sampler=dict(kind="ddpm", spacing="leading", clipping="clip")),
    "diffusers_resnet": dict(draw="heun", diffusion=EDM, sampler=dict(kind="heun", spacing="karras", clipping="none",
                                                                      churn=8.0)),  # fmt: skip
    "adm_plain": dict(draw="heun", diffusion=EDM, sampler=dict(kind="heun", spacing="karras", clipping="none")),
    "strided": dict(draw="multistep", diffusion=EDM,
                    sampler=dict(kind="dpm++2m", spacing="karras", clipping="none")),  # fmt: skip
}  # fmt: skip


class Noise:
    def __init__(self, shape):
        self.shape = shape  # [H, W, C]

    def __call__(self, stream, step):
        drawn = Draws((SEED, 0), INDEX, step).normal(stream, self.shape)
        return torch.tensor(drawn).permute(0, 3, 1, 2)


def betas_of(schedule, steps, start=1e-4, end=0.02):
    if schedule == "linear":
        return np.linspace(start, end, steps)
    if schedule == "scaled_linear":
        return np.linspace(start**0.5, end**0.5, steps) ** 2
    bar = lambda s: math.cos((s + 0.008) / 1.008 * math.pi / 2) ** 2
    return np.array([min(1 - bar((i + 1) / steps) / bar(i / steps), 0.999) for i in range(steps)])


class Spaced:
    """A process of the kept timesteps alone, with the alpha_bar that they have in the whole one."""

    def __init__(self, kept, schedule):
        whole = np.cumprod(1 - betas_of(schedule, 1000))
        self.timesteps = kept
        self.bar = whole[kept]
        self.bar_before = np.append(1.0, self.bar[:-1])
        self.beta = 1 - self.bar / self.bar_before
        variance = self.beta * (1 - self.bar_before) / (1 - self.bar)
        self.log_variance = np.log(np.append(variance[1], variance[1:]))
        self.of_x0 = self.beta * np.sqrt(self.bar_before) / (1 - self.bar)
        self.of_x = (1 - self.bar_before) * np.sqrt(1 - self.beta) / (1 - self.bar)


def adm_ancestral(ask, noise, channels, schedule="linear", **_):
    process = Spaced([round(i * 999 / (STEPS - 1)) for i in range(STEPS)], schedule)
    x = noise(START, 0)
    for row, i in enumerate(reversed(range(STEPS))):
        out = ask(x, process.timesteps[i])
        eps, log_variance = out[:, :channels], process.log_variance[i]
        if out.shape[1] == 2 * channels:
            share = (out[:, channels:] + 1) / 2
            log_variance = share * math.log(process.beta[i]) + (1 - share) * log_variance
        x0 = (math.sqrt(1 / process.bar[i]) * x - math.sqrt(1 / process.bar[i] - 1) * eps).clamp(-1, 1)
        x = process.of_x0[i] * x0 + process.of_x[i] * x
        if i > 0:
            x = x + torch.exp(torch.as_tensor(log_variance) / 2) * noise(STEP, row)
    return x


def adm_ddim(ask, noise, channels, schedule="linear", **_):
    """Of a model that answers x_0, as predict_xstart says."""
    process = Spaced(list(range(0, 1000, 1000 // STEPS)), schedule)
    x = noise(START, 0)
    for i in reversed(range(STEPS)):
        bar, before = process.bar[i], process.bar_before[i]
        x0 = ask(x, process.timesteps[i])[:, :channels].clamp(-1, 1)
        eps = (math.sqrt(1 / bar) * x - x0) / math.sqrt(1 / bar - 1)
        x = math.sqrt(before) * x0 + math.sqrt(1 - before) * eps
    return x


class Scheduler:
    """What scheduler_config.json says; left out it is DDPM's."""

    def __init__(self, c):
        self.count = c.get("num_train_timesteps", 1000)
        betas = betas_of(c.get("beta_schedule", "linear"), self.count, c.get("beta_start", 1e-4), c.get("beta_end", 0.02))
        self.bars = np.cumprod(1 - betas)
        self.prediction = c.get("prediction_type", "epsilon")
        self.stride = self.count // STEPS
        self.timesteps = [i * self.stride for i in reversed(range(STEPS))]

    def bar(self, t):
        return self.bars[t] if t >= 0 else 1.0

    def x0(self, x, out, t):
        a, s = math.sqrt(self.bar(t)), math.sqrt(1 - self.bar(t))
        return {"epsilon": (x - s * out) / a, "sample": out, "v_prediction": a * x - s * out}[self.prediction]


def diffusers_ddim(ask, noise, channels, scheduler=None, **_):
    c = Scheduler(scheduler or {})
    x = noise(START, 0)
    for t in c.timesteps:
        before = c.bar(t - c.stride)
        x0 = c.x0(x, ask(x, t)[:, :channels], t)
        eps = (x - math.sqrt(c.bar(t)) * x0) / math.sqrt(1 - c.bar(t))
        x = math.sqrt(before) * x0 + math.sqrt(1 - before) * eps
    return x


def diffusers_ddpm(ask, noise, channels, scheduler=None, **_):
    c = Scheduler(scheduler or {})
    x = noise(START, 0)
    for row, t in enumerate(c.timesteps):
        bar, before = c.bar(t), c.bar(t - c.stride)
        alpha = bar / before
        x0 = c.x0(x, ask(x, t)[:, :channels], t).clamp(-1, 1)
        x = math.sqrt(before) * (1 - alpha) / (1 - bar) * x0 + math.sqrt(alpha) * (1 - before) / (1 - bar) * x
        if t > 0:
            x = x + math.sqrt((1 - before) / (1 - bar) * (1 - alpha)) * noise(STEP, row)
    return x


def preconditioned(ask, sigma_data=0.5):
    def denoise(x, sigma):
        all_variance = sigma**2 + sigma_data**2
        answer = ask(x / math.sqrt(all_variance), math.log(sigma) / 4)
        return sigma_data**2 / all_variance * x + sigma * sigma_data / math.sqrt(all_variance) * answer

    return denoise


def karras(least=0.002, most=80.0, rho=7):
    steps = [i / (STEPS - 1) for i in range(STEPS)]
    return [(most ** (1 / rho) + s * (least ** (1 / rho) - most ** (1 / rho))) ** rho for s in steps] + [0.0]


def heun(ask, noise, channels, churn=0.0, **_):
    denoise, sigmas = preconditioned(ask), karras()
    x = sigmas[0] * noise(START, 0)
    for i in range(STEPS):
        gamma = min(churn / STEPS, math.sqrt(2) - 1)
        raised, after = sigmas[i] * (1 + gamma), sigmas[i + 1]
        if gamma > 0:
            x = x + math.sqrt(raised**2 - sigmas[i] ** 2) * noise(CHURN, 2 * i)  # Two rows of the table a step.
        slope = (x - denoise(x, raised)) / raised
        there = x + (after - raised) * slope
        if after > 0:
            there = x + (after - raised) * (slope + (there - denoise(there, after)) / after) / 2
        x = there
    return x


def multistep(ask, noise, channels, **_):
    denoise, sigmas = preconditioned(ask), karras()
    x, before = sigmas[0] * noise(START, 0), None
    for i in range(STEPS):
        x0, after = denoise(x, sigmas[i]), sigmas[i + 1]
        data = x0
        if before is not None and after > 0:
            h, h_before = math.log(sigmas[i] / after), math.log(sigmas[i - 1] / sigmas[i])
            r = h_before / h
            data = (1 + 1 / (2 * r)) * x0 - 1 / (2 * r) * before
        x = after / sigmas[i] * x - (after / sigmas[i] - 1) * data
        before = x0
    return x


def write(folder, name, model, shape, conditioning, classes, learned, scheduler=None):
    """`shape`: [H, W, C] of the images; `conditioning`: channels of the low-resolution image, 4 times smaller."""
    plan = PLANS.get(name)
    if plan is None and (learned or conditioning):
        return
    labels = torch.tensor([(0, classes - 1)[i % 2] for i in INDEX]) if classes else None
    tensors, low = {}, None
    if conditioning:
        generator = torch.Generator().manual_seed(99)
        small = torch.randint(0, 256, (2, shape[0] // 4, shape[1] // 4, conditioning), generator=generator).byte()
        tensors["low_res"] = small.numpy()
        chosen = small[[i % 2 for i in INDEX]].permute(0, 3, 1, 2).double() / 127.5 - 1
        low = F.interpolate(chosen, shape[:2], mode="bilinear", align_corners=False)
        # How the low-resolution images of a training are made and seen.
        whole = torch.randn((2, conditioning, *shape[:2]), generator=generator)
        mean = F.interpolate(whole.double(), (shape[0] // 4, shape[1] // 4), mode="area")
        seen = F.interpolate(mean, shape[:2], mode="bilinear", align_corners=False)
        for key, image in (("whole", whole), ("conditioning", seen.float())):
            tensors[key] = image.permute(0, 2, 3, 1).contiguous().numpy()

    def ask(x, t):
        whole = x if low is None else torch.cat([x, low], dim=1)
        with torch.no_grad():
            return model(whole, torch.full((len(INDEX),), float(t), dtype=torch.float64), labels)

    noise, metadata = Noise(shape), {"seed": str(SEED)}
    if not learned and not conditioning:
        denoise = preconditioned(ask)
        found = torch.stack([denoise(sigma * noise(START, 0), sigma) for sigma in SIGMAS])
        tensors["denoised"] = found.permute(0, 1, 3, 4, 2).float().contiguous().numpy()
        metadata["sigmas"] = json.dumps(SIGMAS)
    if plan is not None:
        diffusion, sampler = plan.get("diffusion", {}), {"steps": STEPS, **plan["sampler"]}
        schedule = {key: diffusion[key] for key in ("schedule",) if key in diffusion}
        x = globals()[plan["draw"]](ask, noise, shape[2], scheduler=scheduler, churn=sampler.get("churn", 0.0), **schedule)
        tensors["images"] = x.permute(0, 2, 3, 1).float().contiguous().numpy()
        metadata.update(sampler=json.dumps(sampler), diffusion=json.dumps(diffusion))
    safetensors_file.write(folder / f"{name}.trajectory.safetensors", metadata, tensors)
