#!/usr/bin/env python3
"""Single operations of the UNets: difuse beside PyTorch and cuDNN, on one card in one call.

    bench/op_bench.py --difuse build/release/difuse [--only "conv 3x3 fprop"] [--dtype bf16 tf32]
    bench/op_bench.py --device cpu --tiny --difuse build/release/difuse

Both sides replay a CUDA graph with several copies of the operation, each on tensors of its own, inputs and results, so
many that together they are more than twice the L2: what a copy reads is in memory, not in the cache. The time is the
median of 20 replays over the copies. Before it counts, difuse's result is compared with PyTorch's in f32 on the same
tensors. Of the ways that PyTorch has (native or compiled norm; SDPA's backends) the fastest is shown. Needs PyTorch.

Copies need nothing of each other, so difuse's launches overlap and filters' gradients share some, as they do in a step
where there is other work; PyTorch's run one after the other. The other bound is "apart": difuse's launches with an
event between each and the next, their whole latency included, which PyTorch's hide from one another in part. Products
in tf32 are shown by that bound alone: their operands are rounded by launches before them, which are not counted.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import statistics
import tempfile
import time

import torch

from torch_adm import flags, report
from torch_adm.check import relative_error
from torch_adm.conv_cases import conv_cases
from torch_adm.other_cases import other_cases
from torch_adm.product import Product, ProductError
from torch_adm.step import replay_times

TOLERANCES = {"bf16": 5e-3, "tf32": 2e-3, "f32": 1e-5}  # rms, of the rms; the rounding of operands and results
MOST_COPIES = 64
TINY = {"norms": [(2, 8, 64)], "attentions": [(2, 4, 64, 2)], "vectors": [1024]}


def allow_tf32(allowed):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cudnn.benchmark = True


def copies_of(case, l2):
    return max(2, min(MOST_COPIES, -(-int(2.5 * l2) // case.bytes))) if case.bytes < 2.5 * l2 else 1


def strict(case, tensors):
    """PyTorch's first way in f32, on the tensors as they are."""
    allow_tf32(False)
    in_f32 = {name: value.float() for name, value in tensors.items()}
    return case.outputs(case.prepare(in_f32)[0][1]()())


def check(product, case, device, cache):
    """difuse's worst output against PyTorch in f32; ProductError where it is too far off."""
    tensors = case.consistent(case.tensors(device))
    with tempfile.NamedTemporaryFile("w", suffix=".ir") as file:
        file.write(case.text(1))
        file.flush()
        given = {f"{name}0": value for name, value in tensors.items()}
        got = product.run(["--graph", file.name], case.dtype, given, cache)
    worst = max(relative_error(got[f"{name}0"], value) for name, value in strict(case, tensors).items())
    allowed = case.tolerance or TOLERANCES[case.dtype]
    if not worst <= allowed:
        raise ProductError(f"difuse's result is off by {worst:.1e}, allowed are {allowed:.1e}")
    return worst


def torch_times(case, device, copies):
    """Way -> seconds; a way that does not work here is left out."""
    allow_tf32(case.dtype != "f32")
    sets = [case.consistent(case.tensors(device, seed=i)) for i in range(copies)]
    found = {}
    for way in range(len(case.prepare(sets[0]))):
        name = case.prepare(sets[0])[way][0]
        try:
            found[name] = time_calls(lambda: [case.prepare(t)[way][1]() for t in sets], device) / copies
        except RuntimeError as error:
            print(f"  {case.name}, {name}: {str(error).splitlines()[0][:120]}", flush=True)
    return found


def time_calls(make_all, device):
    if device == "cpu":
        calls = make_all()
        begin = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - begin
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls = make_all()
        for _ in range(3):
            results = [call() for call in calls]
    del results
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = [call() for call in calls]  # Kept, so that each has a place of its own.
    return statistics.median(replay_times(graph))


def rate(case, seconds):
    return f"{case.flops / seconds * 1e-12:.0f} TFLOP/s" if case.flops else f"{case.bytes / seconds * 1e-9:.0f} GB/s"


def prepare_graphs(product, cases, copies, folder, cache):
    """A file each; on a GPU their kernels are compiled beforehand, on all cores."""
    files = []
    for i, (case, count) in enumerate(zip(cases, copies)):
        files.append(folder / f"op{i}.ir")
        files[-1].write_text(case.text(count))
    if product.device == "cuda":
        begin = time.time()

        def compile_one(i):
            with contextlib.suppress(ProductError):  # It is named when the case's turn comes.
                product.call(["compile", "--graph", str(files[i]), "--dtype", cases[i].dtype], cache)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, range(len(cases))))
        print(f"difuse: kernels of {len(cases)} graphs compiled in {time.time() - begin:.1f} s", flush=True)
    return files


def is_rounding(kernel):
    """Of an operand to tf32: in a model the kernel that makes it does that, so it is not counted here."""
    return kernel["name"].startswith("round_tf32")


def measure_case(product, case, count, file, args, cache):
    """The row of the table and what goes with it into the data."""
    about = {"family": case.family, "title": case.title, "dtype": case.dtype}
    try:
        error = None if args.no_check else check(product, case, args.device, cache)
        benched = product.bench(["--graph", str(file), "--per-kernel"], case.dtype, cache)
    except ProductError as failure:
        print(f"{case.name}: {failure}", flush=True)
        return [*about.values(), "failed", *["-"] * 6], {**about, "failure": str(failure)}
    apart = sum(kernel["seconds"] for kernel in benched["kernels"] if not is_rounding(kernel)) / count
    ours = apart if any(map(is_rounding, benched["kernels"])) else benched["step_seconds"] / count
    theirs = torch_times(case, args.device, count)
    way, best = min(theirs.items(), key=lambda item: item[1]) if theirs else ("-", None)
    row = [*about.values(), f"{ours * 1e3:.4f}", rate(case, ours), f"{apart * 1e3:.4f}"]
    row += [f"{best * 1e3:.4f}", rate(case, best), f"{best / ours:.2f}", way] if best else ["-"] * 4
    print("  ".join(row), flush=True)
    return row, {
        **about, "flops": case.flops, "bytes": case.bytes, "copies": count, "launches": benched["launches"] / count,
        "difuse_seconds": ours, "difuse_apart_seconds": apart, "difuse_error": error, "torch_seconds": theirs,
    }  # fmt: skip


def measure(product, cases, args, l2):
    """Interrupted, what there is so far."""
    rows, results = [], []
    copies = [copies_of(case, l2) for case in cases]
    with tempfile.TemporaryDirectory() as scratch:
        cache = f"{scratch}/kernels"
        files = prepare_graphs(product, cases, copies, pathlib.Path(scratch), cache)
        try:
            for case, count, file in zip(cases, copies, files):
                row, result = measure_case(product, case, count, file, args, cache)
                rows.append(row)
                results.append(result)
        except KeyboardInterrupt:
            print(f"interrupted: {len(cases) - len(rows)} operations were not measured", flush=True)
    return rows, results


def arguments():
    parser = flags.parser("single operations: difuse beside PyTorch and cuDNN", "ops-<dtypes>")
    parser.add_argument("--dtype", nargs="+", default=["bf16", "tf32"], choices=["bf16", "tf32"])
    parser.add_argument("--only", action="append", help="operations whose name holds this text; may be repeated")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script out")
    parser.add_argument("--no-check", action="store_true", help="do not compare results first")
    return parser.parse_args()


def main():
    args = arguments()
    product = Product(args.difuse, args.device)
    shapes = {"shapes": [(2, 8, 16, 32)]} if args.tiny else {}
    cases = [case for dtype in args.dtype for case in conv_cases(dtype, **shapes)]
    cases += other_cases(**TINY) if args.tiny else other_cases()
    cases = [case for case in cases if not args.only or any(text in case.name for text in args.only)]
    if not cases:
        raise SystemExit(f"no operation's name holds {' or '.join(args.only)}")
    l2 = torch.cuda.get_device_properties(0).L2_cache_size if args.device == "cuda" else 1 << 20
    if args.device == "cuda":
        # Here, for they are slow to load and make no sense without a GPU.
        from torch._dynamo import config as dynamo
        from torch._functorch import config as functorch

        functorch.donated_buffer = False  # A backward is timed more than once.
        dynamo.recompile_limit = 64
    environment = report.environment(product)
    print(f"{report.versions_line(environment)}; L2 {l2 / 1e6:.0f} MB", flush=True)
    rows, results = measure(product, cases, args, l2)
    columns = ["operation", "shape", "dtype", "difuse ms", "rate", "apart ms",
               "PyTorch ms", "rate", "PyTorch / difuse", "by"]  # fmt: skip
    text = f"{report.table(columns, rows)}\n\n{report.versions_line(environment)}"
    print(f"\n{text}")
    data = {"environment": environment, "l2_bytes": l2, "operations": results}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(data, indent=1) + "\n")
    if args.results:
        report.write(args.results, f"ops-{'-'.join(args.dtype)}", data, text)
    if any("failure" in result for result in results):
        raise SystemExit("what is marked as failed has no time")


if __name__ == "__main__":
    main()
