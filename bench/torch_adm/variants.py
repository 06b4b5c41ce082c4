"""The ways to run the same step that PyTorch offers, and which of them each workload is compared with."""

import dataclasses

from .model import Choices


@dataclasses.dataclass(frozen=True)
class Variant:
    dtype: str = "bf16"  # "bf16": autocast; "tf32"; "f32": products in full precision
    parameters: str = "f32"  # "bf16": parameters, gradients, moments and average too
    layout: str = "nhwc"  # or "nchw"
    compiled: str = "default"  # torch.compile's mode; "": eager
    force_layout: bool = True  # Inductor keeps NHWC where its own rule would drop it
    norm: str = "nhwc"
    attention: str = "sdpa"

    @property
    def choices(self):
        return Choices(norm=self.norm, attention=self.attention)

    def __str__(self):
        parts = [self.dtype, f"torch.compile {self.compiled}" if self.compiled else "eager", self.layout.upper()]
        parts += [f"{self.parameters} parameters"] if self.parameters != "f32" else []
        parts += ["layout forced"] if self.compiled and self.force_layout else []
        return ", ".join([*parts, f"norm {self.norm}", f"attention {self.attention}", "one CUDA graph"])


AUTOTUNED = "max-autotune-no-cudagraphs"

# Measured by --search; a workload and a dtype that are not here have the plain Variant.
ANCHORS = {}


def anchor(workload, dtype):
    return ANCHORS.get((workload, dtype), Variant(dtype=dtype))


def eager(dtype):
    return Variant(dtype=dtype, compiled="", norm="nn")


def search(dtype):
    """Each differs from the first in one choice, but for the last two, which try how choices go together."""
    first = Variant(dtype=dtype)
    change = lambda **fields: dataclasses.replace(first, **fields)
    variants = [
        first,
        change(force_layout=False),
        change(norm="nn"),
        change(norm="nn", force_layout=False),
        change(attention="cudnn"),
        change(attention="flash"),
        change(compiled=AUTOTUNED),
        change(layout="nchw", norm="nn", force_layout=False),
        eager(dtype),
    ]
    if dtype == "bf16":
        variants[1:1] = [change(parameters="bf16"), change(parameters="bf16", norm="nn", force_layout=False)]
    return variants
