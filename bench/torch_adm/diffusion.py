"""Noise schedules and the loss, with tables on the model's device so that a step can be captured.

Ho et al., 2020; Nichol and Dhariwal, 2021 (cosine schedule, learned variance).
"""

import math

import numpy as np
import torch


def betas(schedule, steps):
    if schedule == "linear":
        return np.linspace(1e-4, 0.02, steps) * 1000 / steps
    f = np.cos((np.arange(steps + 1) / steps + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.minimum(1 - f[1:] / f[:-1], 0.999)


def normal_cdf(z):
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


class Diffusion:
    def __init__(self, config, learned_variance, device):
        self.steps, self.learned_variance = config["timesteps"], learned_variance
        beta = betas(config["schedule"], self.steps)
        bar = np.cumprod(1 - beta)
        before = np.append(1.0, bar[:-1])
        variance = beta * (1 - before) / (1 - bar)
        variance[0] = variance[1]  # The posterior of the first step has none.
        tables = {
            "signal": np.sqrt(bar), "sigma": np.sqrt(1 - bar), "log_beta": np.log(beta),
            "log_variance": np.log(variance), "x0_weight": beta * np.sqrt(before) / (1 - bar),
            "x_weight": (1 - before) * np.sqrt(1 - beta) / (1 - bar),
        }  # fmt: skip
        self.tables = {k: torch.tensor(v, dtype=torch.float32, device=device) for k, v in tables.items()}

    def at(self, name, t):
        return self.tables[name][t][:, None, None, None]

    def loss(self, model, pixels, t, noise, labels=None):
        """`pixels` u8 [N, C, H, W], `t` int64 [N], `noise` like the image."""
        x0 = pixels.float() / 127.5 - 1
        x = self.at("signal", t) * x0 + self.at("sigma", t) * noise
        output = model(x, t.float(), labels)
        if not self.learned_variance:
            return (output - noise).square().mean()
        eps, share = output.chunk(2, dim=1)
        return (eps - noise).square().mean() + self.bound(x0, x, t, eps.detach(), share).mean()

    def bound(self, x0, x, t, eps, output):
        """The t-th term of the variational bound, in bits for each element."""
        log_true = self.at("log_variance", t)
        share = (output + 1) / 2
        log_variance = share * self.at("log_beta", t) + (1 - share) * log_true
        predicted = (x - self.at("sigma", t) * eps) / self.at("signal", t)
        gap = self.at("x0_weight", t) * (x0 - predicted)
        divergence = 0.5 * (log_variance - log_true - 1 + (log_true.exp() + gap.square()) * torch.exp(-log_variance))
        mean = self.at("x0_weight", t) * predicted + self.at("x_weight", t) * x
        inverse = torch.exp(-0.5 * log_variance)
        upper = normal_cdf((x0 - mean + 1 / 255) * inverse)
        lower = normal_cdf((x0 - mean - 1 / 255) * inverse)
        likelihood = torch.where(x0 < -0.999, upper, torch.where(x0 > 0.999, 1 - lower, upper - lower))
        first = (t == 0)[:, None, None, None]
        return torch.where(first, -likelihood.clamp(min=1e-12).log(), divergence) / math.log(2)
