"""One operation in difuse's text and in PyTorch, on the same tensors."""

import dataclasses
from typing import Callable

import torch

from .graph_text import Graph

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


@dataclasses.dataclass
class Case:
    family: str
    title: str
    dtype: str  # of the products: "bf16", "tf32" or "f32"
    flops: int  # 0 where memory is the limit
    bytes: int  # read and written where the cache keeps nothing
    inputs: dict  # name -> (dtype, shape), channels last
    build: Callable  # (graph, values by name) -> {name: value}: the outputs
    prepare: Callable  # (tensors by name) -> [(name, make)]: PyTorch's ways; make() gives the call to time
    outputs: Callable  # what a call gives -> {name: tensor}, as difuse lays them out
    states: tuple = ()  # inputs that the step changes; their outputs are their next values
    parameters: tuple = ()  # states that no step changes: what is made of them alone is no part of a step
    consistent: Callable = lambda tensors: tensors  # makes inputs that depend on others fit them
    tolerance: float | None = None

    @property
    def name(self):
        return f"{self.family} {self.title} {self.dtype}"

    def text(self, copies):
        """A graph of so many copies, each with tensors of its own."""
        g = Graph("op")
        for i in range(copies):
            values = {
                name: (g.state if name in self.states + self.parameters else g.input)(f"{name}{i}", dtype, shape)
                for name, (dtype, shape) in self.inputs.items()
            }
            for name, value in self.build(g, values).items():
                (g.update if name in self.states else g.output)(f"{name}{i}", value)
        return g.text()

    def tensors(self, device, seed=0):
        random = torch.Generator(device=device).manual_seed(seed)
        made = {}
        for name, (dtype, shape) in self.inputs.items():
            value = torch.randn(shape, generator=random, device=device)
            made[name] = (0.1 + value.abs() if name in self.states else value).to(DTYPES[dtype])
        return made
