"""A whole training step, or a forward, captured in one CUDA graph and timed."""

import contextlib
import ctypes
import gc
import statistics
import time

import torch

from .diffusion import Diffusion
from .model import UNet, forced
from .product import draw_weights

WARM_UP, REPLAYS = 5, 20


def set_precision(variant):
    tf32 = variant.dtype != "f32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def autocast(variant, device):
    on = variant.dtype == "bf16" and variant.parameters == "f32"
    return torch.autocast(device, dtype=torch.bfloat16) if on else contextlib.nullcontext()


def compiled(function, variant):
    if not variant.compiled:
        return function
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = 64
    torch._inductor.config.force_layout_optimization = variant.force_layout
    mode = None if variant.compiled == "default" else variant.compiled
    return torch.compile(function, mode=mode, fullgraph=True)


def build(config, variant, device):
    """The model with the weights that both sides start from."""
    model = UNet(config["model"], variant.choices)
    draw_weights(model)
    layout = torch.channels_last if variant.layout == "nhwc" else torch.contiguous_format
    return model.to(device).to(memory_format=layout)


def example(config, batch, device, layout="nhwc"):
    """Pixels u8 [N, C, H, W], x and timesteps f32, labels int64 or None; the same for the same seed."""
    m = config["model"]
    random = torch.Generator().manual_seed(7)
    shape = (batch, m["image_channels"], m["image_height"], m["image_width"])
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    place = lambda image: image.to(device).contiguous(memory_format=form)
    pixels = place(torch.randint(0, 256, shape, generator=random, dtype=torch.uint8))
    x = place(torch.randn(shape, generator=random))
    timesteps = torch.randint(0, config["diffusion"]["timesteps"], (batch,), generator=random).float().to(device)
    classes = m["num_classes"]
    labels = torch.randint(0, classes, (batch,), generator=random).to(device) if classes else None
    return pixels, x, timesteps, labels


class TrainingStep:
    def __init__(self, config, variant, batch, device):
        training = config["training"]
        self.variant, self.device = variant, device
        self.model = build(config, variant, device).train()
        if variant.parameters == "bf16":
            frequencies = self.model.frequencies
            self.model.to(torch.bfloat16)
            self.model.frequencies = frequencies
        self.parameters = list(self.model.parameters())
        self.average = [p.detach().clone() for p in self.parameters]
        self.decay = training["ema_decays"][0]
        self.diffusion = Diffusion(config["diffusion"], config["model"]["learn_sigma"], device)
        self.pixels, _, _, self.labels = example(config, batch, device, variant.layout)
        self.loss = compiled(self.diffusion.loss, variant)
        # Neither clipping nor decay, on both sides.
        options = {"fused": True, "capturable": True} if device == "cuda" else {}
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=training["learning_rate"], betas=(training["beta1"], training["beta2"]),
            eps=training["eps"], weight_decay=0.0, **options,
        )  # fmt: skip

    def __call__(self):
        self.optimizer.zero_grad(set_to_none=True)
        t = torch.randint(0, self.diffusion.steps, (self.pixels.shape[0],), device=self.device)
        noise = torch.randn_like(self.pixels, dtype=torch.float32)
        with autocast(self.variant, self.device), forced(self.variant.attention):
            loss = self.loss(self.model, self.pixels, t, noise, self.labels)
            loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1 - self.decay)
        return loss

    def release(self):
        self.optimizer.zero_grad(set_to_none=True)


class Forward:
    """Inference: in bf16 the weights are bf16 too, which saves PyTorch their casts."""

    def __init__(self, config, variant, batch, device):
        self.variant, self.device = variant, device
        self.model = build(config, variant, device).eval().requires_grad_(False)
        _, self.x, self.timesteps, self.labels = example(config, batch, device, variant.layout)
        if variant.dtype == "bf16":
            frequencies = self.model.frequencies
            self.model.to(torch.bfloat16)
            self.model.frequencies = frequencies
        self.function = compiled(self.model, variant)

    def __call__(self):
        with torch.no_grad(), forced(self.variant.attention):
            return self.function(self.x, self.timesteps, self.labels)

    def release(self):
        pass


class SamplingStep(Forward):
    """A step of DDIM, clipped, whose numbers are rows of a table on the device: replayed, it is a whole trajectory."""

    def __init__(self, config, variant, batch, device, steps=50):
        super().__init__(config, variant, batch, device)
        diffusion = Diffusion(config["diffusion"], config["model"]["learn_sigma"], device)
        self.x, self.channels = self.x.clone(), config["model"]["image_channels"]
        t = torch.linspace(0, diffusion.steps - 1, steps, device=device).round().long().flip(0)
        signal, sigma = diffusion.tables["signal"][t], diffusion.tables["sigma"][t]
        end = torch.ones(1, device=device)
        columns = [t.float(), signal, sigma, torch.cat([signal[1:], end]), torch.cat([sigma[1:], 0 * end])]
        self.table = torch.stack(columns, dim=1)
        self.row = torch.zeros(1, dtype=torch.long, device=device)

    def __call__(self):
        with torch.no_grad(), forced(self.variant.attention):
            t, signal, sigma, next_signal, next_sigma = self.table.index_select(0, self.row)[0]
            answer = self.function(self.x, t.expand(self.timesteps.shape), self.labels)
            eps = answer[:, : self.channels].float()
            x0 = ((self.x - sigma * eps) / signal).clamp(-1, 1)
            self.x.copy_(next_signal * x0 + next_sigma * (self.x - signal * x0) / sigma)
            self.row.add_(1).remainder_(len(self.table))
            return self.x


def count_launches(graph):
    """Kernels, copies and fills of a captured graph; nothing where PyTorch does not give it away."""
    try:
        handle = ctypes.c_void_p(graph.raw_cuda_graph())
    except (AttributeError, RuntimeError):
        return None
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    driver.cuGraphGetNodes(handle, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count))
    kinds, kind = [], ctypes.c_int()
    for node in nodes:
        driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        kinds.append(kind.value)
    return sum(k in (0, 1, 2) for k in kinds)


def measure(work, started):
    """Captures and times `work`. `started`: time.time() when the process began."""
    if work.device != "cuda":
        return _measure_on_cpu(work, started)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # The same stream as the capture's, or it fails in the backward.
        for _ in range(3):
            result = work()
        work.release()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()  # What was tried out while warming up is not the step's.
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream):
        result = work()
    graph.instantiate()
    graph.replay()
    torch.cuda.synchronize()
    ready = time.time() - started
    times = replay_times(graph)
    return {
        "step_seconds": statistics.median(times), "steps": times, "first_step_seconds": ready,
        "peak_bytes": torch.cuda.max_memory_allocated(), "launches": count_launches(graph),
    }, result  # fmt: skip


def replay_times(graph, warm_up=WARM_UP, replays=REPLAYS):
    """Seconds of each replay, marks between them: what the host takes is not in them."""
    for _ in range(warm_up):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    for i, mark in enumerate(marks):
        mark.record()
        if i < replays:
            graph.replay()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e-3 for a, b in zip(marks, marks[1:])]


def _measure_on_cpu(work, started):
    result = work()
    ready, times = time.time() - started, []
    for _ in range(3):
        begin = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begin)
    return {
        "step_seconds": statistics.median(times), "steps": times, "first_step_seconds": ready,
        "peak_bytes": None, "launches": None,
    }, result  # fmt: skip
