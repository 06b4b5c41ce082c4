"""Whether both sides compute the same: the UNet's output at the same weights and inputs."""

import torch

from .model import UNet
from .product import draw_weights
from .step import autocast, example, set_precision
from .variants import Variant

FLOOR = 1e-5  # Two f32 computations in different orders.
SHARE = 2.0  # In other precisions: of PyTorch's own error.


def relative_error(got, want):
    """rms of the difference, as a share of the rms."""
    got, want = got.double().cpu(), want.double().cpu()
    return ((got - want).square().mean().sqrt() / want.square().mean().sqrt()).item()


def eager_forward(config, batch, device, variant):
    set_precision(variant)
    model = UNet(config["model"], variant.choices)
    draw_weights(model)
    model = model.to(device).eval()
    _, x, timesteps, labels = example(config, batch, device)
    with torch.no_grad(), autocast(variant, device):
        return model, model(x, timesteps, labels).float(), (x, timesteps, labels)


def strict_forward(config, batch, device):
    """Eager, f32 products."""
    return eager_forward(config, batch, device, Variant("f32", norm="nn", attention="math"))[1]


def check_output(product, workload, config, batch, dtype, cache=None):
    """The errors of both sides against PyTorch in f32; SystemExit when difuse's is too large, or a count differs."""
    device = product.device
    model, wanted, inputs = eager_forward(config, batch, device, Variant("f32", norm="nn", attention="math"))
    count, theirs = sum(p.numel() for p in model.parameters()), product.parameter_count(workload)
    if count != theirs:
        raise SystemExit(f"{workload} has {theirs:,} parameters in difuse and {count:,} in PyTorch")
    got = product.forward(workload, model.state_dict(), *inputs, dtype, cache)
    own = eager_forward(config, batch, device, Variant(dtype, norm="nn", attention="math"))[1]
    error, own_error = relative_error(got, wanted), relative_error(own, wanted)
    allowed = max(FLOOR, SHARE * own_error)
    print(f"{workload}: {count:,} parameters on both sides; output against PyTorch's in f32 (rms): "
          f"difuse {dtype} {error:.2e}, PyTorch {dtype} {own_error:.2e}, allowed {allowed:.2e}",
          flush=True)  # fmt: skip
    if not error <= allowed:
        raise SystemExit("the outputs differ: no time counts")
    return {"parameters": count, "difuse_error": error, "torch_error": own_error, "allowed": allowed}
