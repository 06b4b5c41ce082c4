"""One variant in a process of its own, so that it can be stopped and starts as cold as its cache.

    python3 -m torch_adm.worker REQUEST.json RESULT.json

REQUEST: {"config", "variant", "batch", "device", "started", "forward"}. RESULT gets "train", "forward" and then "sample",
each as soon as it is known; forward's "error" is the rms difference from eager f32, as a share of its rms.
"""

import json
import pathlib
import sys

import torch

from .check import relative_error, strict_forward
from .step import Forward, SamplingStep, TrainingStep, measure, set_precision
from .variants import Variant


def main(request_file, result_file):
    request = json.loads(pathlib.Path(request_file).read_text())
    variant, config = Variant(**request["variant"]), request["config"]
    batch, device = request["batch"], request["device"]
    result = {}

    def note(name, value):
        result[name] = value
        pathlib.Path(result_file).write_text(json.dumps(result))

    torch.manual_seed(0)
    set_precision(variant)
    measured, loss = measure(TrainingStep(config, variant, batch, device), request["started"])
    note("train", {**measured, "loss": float(loss)})
    del loss  # It would keep the parameters.
    if request["forward"]:
        work = Forward(config, variant, batch, device)
        measured, output = measure(work, request["started"])
        wanted = strict_forward(config, batch, device)
        note("forward", {**measured, "error": relative_error(output, wanted)})
        del work, output
        note("sample", measure(SamplingStep(config, variant, batch, device), request["started"])[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
