#!/usr/bin/env python3
"""difuse beside PyTorch, on one card in one call.

    bench/compare_torch.py --workload adm-seed64 --difuse build/release/difuse
    bench/compare_torch.py --workload tiny --batch 2 --device cpu --dtype f32 --eager --difuse build/release/difuse

First both compute the UNet's output from the same weights and inputs; where they differ, or the numbers of parameters
do, nothing is measured. Then PyTorch's variant (the workload's anchor, or with --search each of several) runs in
a process of its own, and `difuse bench` beside it. A step is the whole step: t, noise, forward, loss, backward, AdamW,
average; both replay it as one CUDA graph. Times are medians of 20 replays, measured by events between them. Memory is
the peak that PyTorch allocates (max_memory_allocated) from just before the capture on, and difuse's arena, states and
workspace. "Start" is from the start of the process to the end of the first step, cold with an empty cache of compiled
kernels, warm with a full one. Needs PyTorch and NumPy; on a GPU, PyTorch 2.9 or newer.
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from torch_adm import flags, report
from torch_adm.check import check_output
from torch_adm.product import Product
from torch_adm.variants import AUTOTUNED, anchor, eager, search


PARTS = ("train", "forward", "sample")
DDIM_STEPS = 50


def run_variant(variant, config, args, cache):
    """The worker's result: "train" and "forward" where they were reached, "failure" where it ended before."""
    with tempfile.TemporaryDirectory() as folder:
        request, result = pathlib.Path(folder) / "request.json", pathlib.Path(folder) / "result.json"
        request.write_text(json.dumps({
            "config": config, "variant": dataclasses.asdict(variant), "batch": args.batch, "device": args.device,
            "forward": not args.no_forward, "started": time.time(),
        }))  # fmt: skip
        environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(cache), PYTHONPATH=os.path.dirname(__file__) or ".")
        command = [sys.executable, "-m", "torch_adm.worker", str(request), str(result)]
        failure = None
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=args.timeout)
            if done.returncode != 0:
                failure = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
                print(done.stderr[-3000:], file=sys.stderr)
        except subprocess.TimeoutExpired:
            failure = f"not finished after {args.timeout} s"
        found = json.loads(result.read_text()) if result.exists() else {}
        return {**found, "failure": failure} if failure else found


def milliseconds(part):
    return f"{part['step_seconds'] * 1e3:.3f} ms" if part else "-"


def seconds(part):
    return f"{part['first_step_seconds']:.1f} s" if part and part["first_step_seconds"] else "-"


def megabytes(count):
    return f"{count / 1e6:,.0f} MB" if count else "-"


def show_variant(variant, found):
    parts = [f"{name} {milliseconds(found[name])}" for name in PARTS if name in found]
    if "train" in found:
        parts += [f"start {seconds(found['train'])}", f"memory {megabytes(found['train']['peak_bytes'])}"]
    if "forward" in found:
        parts.append(f"error of the forward {found['forward']['error']:.1e}")
    parts += [found["failure"]] if "failure" in found else []
    print(f"  {variant}: {'; '.join(parts)}", flush=True)


def search_torch(args, config, cache):
    """(variant, result) of each that --variants picks. --jobs of them compile at a time; each is timed alone."""
    numbered = list(enumerate(search(args.dtype)))
    picked = [(i, v) for i, v in numbered if args.variants is None or i in args.variants]
    run = lambda i, variant: run_variant(variant, config, args, f"{cache}/{i}")
    if args.jobs > 1:
        # Not those that time kernels to choose among them.
        apart = [(i, v) for i, v in picked if v.compiled and v.compiled != AUTOTUNED]
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda item: run(*item), apart))
    for i, variant in picked:
        result = run(i, variant)
        show_variant(f"{i} {variant}", result)
        yield variant, result


def run_anchor(args, config, cache):
    """Twice where the first start is a cold one and there is something to compile."""
    variant = eager(args.dtype) if args.eager else anchor(args.workload, args.dtype)
    folder = pathlib.Path(cache)
    is_cold = not folder.exists() or not any(folder.iterdir())
    result = run_variant(variant, config, args, cache)
    show_variant(variant, result)
    if not is_cold and "train" in result:
        result["warm_first_step_seconds"] = result["train"]["first_step_seconds"]
        result["train"]["first_step_seconds"] = None
    elif "train" in result and variant.compiled:
        warm = run_variant(variant, config, args, cache)
        show_variant("the same, warm", warm)
        if "train" in warm:
            result["warm_first_step_seconds"] = warm["train"]["first_step_seconds"]
            result = faster_of(result, warm)
    return variant, result


def measure_torch(args, config, cache):
    """All variants with what they took, fastest training step first."""
    print("PyTorch:", flush=True)
    pairs = search_torch(args, config, cache) if args.search else [run_anchor(args, config, cache)]
    found = [{"variant": dataclasses.asdict(v), "title": str(v), **result} for v, result in pairs]
    slowest = float("inf")
    return sorted(found, key=lambda v: v["train"]["step_seconds"] if "train" in v else slowest)


def faster_of(cold, warm):
    """The cold run, with each time that the warm one did better."""
    for name in PARTS:
        if name in cold and name in warm:
            cold[name]["step_seconds"] = min(cold[name]["step_seconds"], warm[name]["step_seconds"])
        elif name in warm:
            cold[name] = warm[name]
    return cold


def measure_difuse(product, args, cache):
    model = ["--model", args.workload, "--batch", str(args.batch)]
    result = {}
    by_ddim = ["sample", "--sampler", "ddim"]
    for name, mode in [("train", ["train"]), ("warm", ["train"]), ("forward", ["forward"]), ("sample", by_ddim)]:
        result[name] = product.bench([*model, "--mode", *mode], args.dtype, cache)
        print(f"difuse: {name} {milliseconds(result[name])}, start {seconds(result[name])}", flush=True)
    return result


def comparison(theirs, ours):
    """Rows of text: what, PyTorch, difuse, PyTorch / difuse."""
    train, forward, sample = (theirs.get(name) for name in PARTS)
    ratio = lambda a, b: f"{a / b:.2f}" if a and b else "-"
    time_row = lambda what, a, b: [what, milliseconds(a), milliseconds(b),
                                   ratio(a and a["step_seconds"], b["step_seconds"])]  # fmt: skip
    rows = [time_row("training step", train, ours["train"]), time_row("forward", forward, ours["forward"])]
    rows.append(time_row("a step of DDIM", sample, ours["sample"]))
    whole = lambda part: part and {"step_seconds": DDIM_STEPS * part["step_seconds"]}
    rows.append(time_row(f"{DDIM_STEPS} steps of DDIM", whole(sample), whole(ours["sample"])))
    warm = theirs.get("warm_first_step_seconds")
    cold = train and train["first_step_seconds"]
    rows.append(["start, cold", seconds(train), seconds(ours["train"]),
                 ratio(cold, ours["train"]["first_step_seconds"])])  # fmt: skip
    rows.append(["start, warm", f"{warm:.1f} s" if warm else "-", seconds(ours["warm"]),
                 ratio(warm, ours["warm"]["first_step_seconds"])])  # fmt: skip
    for name, a, b in [("training", train, ours["train"]), ("forward", forward, ours["forward"])]:
        peak, held = a and a["peak_bytes"], b["held_bytes"]
        rows.append([f"memory, {name}", megabytes(peak), megabytes(held), ratio(peak, held)])
    for name, a, b in [("training", train, ours["train"]), ("forward", forward, ours["forward"])]:
        count = a and a["launches"]
        rows.append([f"launches, {name}", count or "-", b["launches"], ratio(count, b["launches"])])
    return rows


def arguments():
    parser = flags.parser("difuse beside PyTorch, on one card in one call", "compare-<workload>-<batch>-<dtype>")
    parser.add_argument("--workload", default="adm-seed64", help="a preset of difuse")
    parser.add_argument("--batch", type=int, help="images a step; the preset's unless given")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "tf32", "f32"])
    parser.add_argument("--search", action="store_true", help="try every variant; the fastest is compared")
    parser.add_argument("--variants", type=int, nargs="+", metavar="N", help="of --search, by number")
    parser.add_argument("--jobs", type=int, default=1, help="variants of --search that compile at a time")
    parser.add_argument("--eager", "--no-compile", action="store_true", help="PyTorch without torch.compile: quick")
    parser.add_argument("--no-forward", action="store_true", help="leave PyTorch's forward and DDIM out")
    parser.add_argument("--check-only", action="store_true", help="compare the outputs and stop")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each run of a variant")
    parser.add_argument("--torch-cache", help="Inductor's cache folder, kept between calls; empty for a cold start")
    return parser.parse_args()


def main():
    args = arguments()
    product = Product(args.difuse, args.device)
    config = product.configuration(args.workload)
    args.batch = args.batch or config["training"]["batch"]
    with tempfile.TemporaryDirectory() as scratch:
        torch_cache = args.torch_cache or f"{scratch}/torch"
        ours_cache = f"{scratch}/difuse"
        environment = report.environment(product)
        title = f"{args.workload}, batch {args.batch}, {args.dtype}"
        print(f"{title}; {report.versions_line(environment)}", flush=True)
        # The check has a cache of its own: the measured start is to be cold.
        data = {"title": title, "environment": environment, "check": check_output(
            product, args.workload, config, args.batch, args.dtype, f"{scratch}/check")}  # fmt: skip
        if args.check_only:
            return
        data["difuse"] = measure_difuse(product, args, ours_cache)
        data["torch"] = measure_torch(args, config, torch_cache)
    best = data["torch"][0]
    columns = ["", "PyTorch", "difuse", "PyTorch / difuse"]
    text = f"{title}\n\n{report.table(columns, comparison(best, data['difuse']))}\n\nPyTorch: {best['title']}"
    if "failure" in best:
        text += f" ({best['failure']})"
    text += f"\n\n{report.versions_line(environment)}"
    print(f"\n{text}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(data, indent=1) + "\n")
    if args.results:
        report.write(args.results, f"compare-{args.workload}-{args.batch}-{args.dtype}", data, text)


if __name__ == "__main__":
    main()
