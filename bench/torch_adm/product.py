"""What is asked of the `difuse` binary: configurations, forwards on given numbers, measurements."""

import json
import os
import subprocess
import tempfile
import tomllib

import numpy as np
import torch

from . import safetensors_file


class ProductError(SystemExit):
    """The binary ended with an error. Uncaught, it is printed and ends the script with 1."""


class Product:
    def __init__(self, binary, device):
        self.binary, self.device = binary, device

    def call(self, arguments, cache=None):
        """Standard output. `cache` is where compiled kernels are kept, instead of the user's place."""
        environment = dict(os.environ, **({"DIFUSE_CACHE": str(cache)} if cache else {}))
        done = subprocess.run([self.binary, *arguments], capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise ProductError(f"{self.binary} {' '.join(arguments)}\nended with {done.returncode}: {done.stderr}")
        return done.stdout

    def configuration(self, model):
        """The preset's tables "model", "diffusion" and "training"."""
        return tomllib.loads(self.call(["inspect", model, "--toml"]))

    def parameter_count(self, model):
        line = next(line for line in self.call(["inspect", model]).splitlines() if line.startswith("parameters"))
        return int(line.split()[1].replace(",", ""))

    def bench(self, arguments, dtype, cache=None):
        return json.loads(self.call(["bench", *arguments, "--json", *self._where(dtype)], cache))

    def run(self, arguments, dtype, tensors, cache=None):
        """One step on `tensors` (name -> torch tensor); what it gives, in the same form."""
        with tempfile.TemporaryDirectory() as folder:
            given, made = f"{folder}/in.safetensors", f"{folder}/out.safetensors"
            safetensors_file.write(given, tensors)
            self.call(["run", *arguments, "--in", given, "--out", made, *self._where(dtype)], cache)
            return safetensors_file.read(made)

    def forward(self, model, weights, x, timesteps, labels, dtype, cache=None):
        """The UNet's output [N, C, H, W] at x [N, C, H, W]. `weights`: a state_dict of the PyTorch model."""
        tensors = {"x": x.permute(0, 2, 3, 1).contiguous(), "timesteps": timesteps}
        if labels is not None:
            tensors["label"] = labels.to(torch.int32)
        tensors.update({f"params/{name}": stored(name, value) for name, value in weights.items()})
        arguments = ["--model", model, "--mode", "forward", "--batch", str(x.shape[0])]
        return self.run(arguments, dtype, tensors, cache)["output"].permute(0, 3, 1, 2)

    def _where(self, dtype):
        return ["--dtype", dtype, "--device", self.device]


def stored(name, value):
    """A weight as difuse has it: convolutions are [Cout, R, S, Cin], the attention's projections are 1x1 of them."""
    value = value.detach().float().cpu()
    if value.dim() == 4:
        return value.permute(0, 2, 3, 1).contiguous()
    projection = name.endswith(("qkv.weight", "proj_out.weight"))
    return value[:, None, None, :].contiguous() if projection else value.contiguous()


def draw_weights(model, seed=1):
    """Every parameter near PyTorch's default, none zero: a layer that starts at zero would hide what is before it."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            spread = 0.3 if p.dim() == 1 else (3 / (p[0].numel())) ** 0.5
            centre = 1.0 if p.dim() == 1 and name.endswith("weight") else 0.0
            p.copy_(torch.from_numpy(random.uniform(centre - spread, centre + spread, tuple(p.shape)).astype("f4")))
