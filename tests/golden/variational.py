"""The terms of the variational bound that teach a learned variance, straight from the definitions.

Ho et al., 2020, equations 5 to 7 and 13; Nichol and Dhariwal, 2021, equation 15. Images are [N, C, H, W] here.
"""

import math

import numpy as np
import torch


def normal_cdf(z):
    """The approximation that guided-diffusion uses."""
    return (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2


def bound_in_bits(beta, x0, x, t, eps, variance):
    """Each element's part of the t-th term, in bits.

    `beta`: the schedule; x0 and the diffused x [N, C, H, W]; t int64 [N]; the model's noise and its variance output.
    """
    alpha_bar = np.cumprod(1 - beta)
    before = np.append(1.0, alpha_bar[:-1])
    posterior_variance = beta * (1 - before) / (1 - alpha_bar)
    posterior_variance[0] = posterior_variance[1]  # zero otherwise

    def at_t(table):
        return torch.tensor(table[t])[:, None, None, None]

    def posterior_mean(image):
        return at_t(beta * np.sqrt(before) / (1 - alpha_bar)) * image + at_t(
            (1 - before) * np.sqrt(1 - beta) / (1 - alpha_bar)
        ) * x

    log_true = at_t(np.log(posterior_variance))
    share = (variance + 1) / 2
    log_variance = share * at_t(np.log(beta)) + (1 - share) * log_true
    predicted_x0 = (x - at_t(np.sqrt(1 - alpha_bar)) * eps) / at_t(np.sqrt(alpha_bar))
    mean = posterior_mean(predicted_x0)

    gap = posterior_mean(x0) - mean
    divergence = (log_variance - log_true - 1 + (log_true.exp() + gap.square()) / log_variance.exp()) / 2

    deviation = (log_variance / 2).exp()
    upper = normal_cdf((x0 - mean + 1 / 255) / deviation)
    lower = normal_cdf((x0 - mean - 1 / 255) / deviation)
    likelihood = torch.where(x0 < -0.999, upper, torch.where(x0 > 0.999, 1 - lower, upper - lower))
    likelihood = -likelihood.clamp(min=1e-12).log()

    first = torch.tensor(t == 0)[:, None, None, None]
    return torch.where(first, likelihood, divergence) / math.log(2)
