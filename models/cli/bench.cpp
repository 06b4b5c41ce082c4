#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "ir/error.h"
#include "models/cli/commands.h"
#include "models/cli/flags.h"
#include "models/cli/problem_flags.h"
#include "models/problem/backends_table.h"
#include "models/problem/example_values.h"
#include "models/run/console.h"
#include "models/run/units.h"
#include "runtime/cuda/roofline.h"

namespace difuse::models {
namespace {

constexpr int kWarmUp = 5, kSteps = 20;

struct BenchFlags {
  ProblemChoice problem;
  DeviceChoice device;
  std::optional<passes::Precision> precision;
  passes::Prologues prologues = passes::Prologues::automatic;
  std::optional<int64_t> threads;
  bool per_kernel = false, json = false, backends = false;
  std::string checkpoint;
  std::optional<int64_t> steps;
  std::optional<double> tune_budget;
};

struct ColdStart {
  double compile_seconds = 0;  ///< Passes, plan, kernels compiled or read from the cache, and loaded.
  /// From the command's start to the end of the first step, but for making up the numbers that it is run on.
  double first_step_seconds = 0;
  KernelCount kernels;
};

struct Measured {
  ColdStart cold;
  std::vector<double> steps;                    ///< Seconds of each.
  std::vector<runtime::KernelProfile> kernels;  ///< Of a step, in order; timed where that was asked for.
  bool timed = false;
  std::optional<runtime::Roofline> roofline;  ///< Of a GPU.
};

/// Equal kernels as one row, in the order of their shares.
struct TableRow {
  std::string name;
  int64_t calls = 0, bytes = 0, flops = 0;
  double seconds = 0;
};

std::vector<TableRow> rows_by_time(const std::vector<runtime::KernelProfile>& kernels) {
  std::map<std::string, TableRow> by_name;
  for (const runtime::KernelProfile& k : kernels) {
    TableRow& row = by_name[k.name];
    row.name = k.name;
    row.calls += 1;
    row.bytes += k.bytes;
    row.flops += k.flops;
    row.seconds += k.median;
  }
  std::vector<TableRow> rows;
  for (auto& [name, row] : by_name) rows.push_back(std::move(row));
  std::ranges::stable_sort(rows, [](const TableRow& a, const TableRow& b) { return a.seconds > b.seconds; });
  return rows;
}

void measure(const BenchFlags& flags, const Problem& problem, const Backend& backend, const CommandContext& context,
             runtime::Executor& executor, Measured& measured) {
  measured.cold.first_step_seconds = seconds_since(context.started);
  write_example_values(executor, problem);
  const auto first = std::chrono::steady_clock::now();
  executor.run();
  executor.wait();
  measured.cold.first_step_seconds += seconds_since(first);
  static_cast<void>(executor.time_steps(kWarmUp));
  measured.steps = executor.time_steps(kSteps);
  measured.kernels = executor.profile();
  measured.timed = flags.per_kernel;
  if (!flags.per_kernel) return;
  if (backend.target.is_cuda()) {
    measured.roofline =
        runtime::measure_roofline(backend.target.cuda, *backend.target.cache, context.options, backend.precision);
  }
  executor.enable_profile(true);
  for (int i = 0; i < kSteps; ++i) executor.run();
  executor.enable_profile(false);
  measured.kernels = executor.profile();
}

/// The share of what the card could do in this time; empty without a roofline.
std::string share_text(const Measured& measured, int64_t bytes, int64_t flops, double seconds) {
  if (!measured.roofline || seconds == 0) return "";
  return fmt::format("{:.0f} %", 100 * measured.roofline->seconds(bytes, flops) / seconds);
}

void print_kernels(const Measured& measured) {
  double all = 0, least = 0;
  for (const runtime::KernelProfile& k : measured.kernels) {
    all += k.median;
    if (measured.roofline) least += measured.roofline->seconds(k.bytes, k.flops);
  }
  say("\n{:>10} {:>7} {:>6} {:>10} {:>9} {:>10} {:>9} {:>9}  {}\n", "us", "share", "calls", "MB", "GB/s", "GFLOP",
      "TFLOP/s", "roofline", "kernel");
  for (const TableRow& row : rows_by_time(measured.kernels)) {
    const auto bytes = static_cast<double>(row.bytes), flops = static_cast<double>(row.flops);
    const auto rate = [&](double amount) { return row.seconds > 0 ? amount / row.seconds : 0; };
    say("{:>10.1f} {:>5.1f} % {:>6} {:>10.2f} {:>9.0f} {:>10.3f} {:>9.2f} {:>9}  {}\n", row.seconds * 1e6,
        all > 0 ? 100 * row.seconds / all : 0, row.calls, bytes * 1e-6, rate(bytes) * 1e-9, flops * 1e-9,
        rate(flops) * 1e-12, share_text(measured, row.bytes, row.flops, row.seconds), row.name);
  }
  say("\nkernels one by one: {} in {:.3f} ms", measured.kernels.size(), all * 1e3);
  if (measured.roofline) say("; at the roofline they would take {:.3f} ms ({:.0f} %)", least * 1e3, 100 * least / all);
  say("\n");
}

void print_text(const Measured& measured, const Problem& problem, const runtime::Executor& executor) {
  const double step = runtime::median(measured.steps);
  const auto [fastest, slowest] = std::ranges::minmax(measured.steps);
  say("arena: {}; kernel launches: {}\n", format_bytes(static_cast<uint64_t>(executor.arena_bytes())),
      measured.kernels.size());
  const runtime::OnceKernels once = executor.once_kernels();
  if (once.launches > 0) {
    say("once, after parameters are written, in no step's time: {} kernel launch{}, {}\n", once.launches,
        once.launches == 1 ? "" : "es", format_bytes(static_cast<uint64_t>(once.bytes)));
  }
  say("compiling took {:.2f} s; {:.2f} s from the start to the end of the first step\n", measured.cold.compile_seconds,
      measured.cold.first_step_seconds);
  if (measured.roofline) {
    say("roofline, measured: {:.0f} GB/s copied, {:.1f} TFLOP/s of {}\n", measured.roofline->bandwidth * 1e-9,
        measured.roofline->flops * 1e-12, measured.roofline->products);
  }
  if (measured.timed) print_kernels(measured);
  say("step: {:.3f} ms, median of {} ({:.3f} to {:.3f})", step * 1e3, measured.steps.size(), fastest * 1e3,
      slowest * 1e3);
  if (problem.batch > 0) say("; {:.1f} images/s", static_cast<double>(problem.batch) / step);
  say("\n");
}

void print_json(const Measured& measured, const Problem& problem, const Backend& backend,
                const runtime::Executor& executor) {
  nlohmann::ordered_json out;
  out["problem"] = problem.title;
  out["backend"] = backend_line(backend);
  out["precision"] = std::string(passes::to_string(backend.precision));
  out["arena_bytes"] = executor.arena_bytes();
  out["state_bytes"] = executor.memory().state_bytes;
  out["held_bytes"] = executor.held_bytes();
  out["launches"] = measured.kernels.size();
  const runtime::OnceKernels once = executor.once_kernels();
  out["once"] = {{"launches", once.launches}, {"bytes", once.bytes}};
  out["compile_seconds"] = measured.cold.compile_seconds;
  out["first_step_seconds"] = measured.cold.first_step_seconds;
  out["kernels_compiled"] = measured.cold.kernels.compiled;
  out["kernels_cached"] = measured.cold.kernels.cached;
  out["step_seconds"] = runtime::median(measured.steps);
  out["steps"] = measured.steps;
  if (problem.batch > 0) {
    out["images_per_second"] = static_cast<double>(problem.batch) / runtime::median(measured.steps);
  }
  if (measured.roofline) {
    out["roofline"] = {{"bytes_per_second", measured.roofline->bandwidth},
                       {"flops_per_second", measured.roofline->flops},
                       {"products", measured.roofline->products}};
  }
  for (const runtime::KernelProfile& k : measured.kernels) {
    if (!measured.timed) break;
    nlohmann::ordered_json row;
    row["name"] = k.name;
    row["node"] = k.node;
    row["seconds"] = k.median;
    row["bytes"] = k.bytes;
    row["flops"] = k.flops;
    if (measured.roofline && k.median > 0) {
      row["roofline_share"] = measured.roofline->seconds(k.bytes, k.flops) / k.median;
    }
    out["kernels"].push_back(std::move(row));
  }
  say("{}\n", out.dump(2));
}

/// --backends: another kind of table, of whole images instead of a step.
int run_backends(const BenchFlags& flags, const CommandContext& context) {
  const ProblemChoice& problem = flags.problem;
  if (flags.checkpoint.empty()) {
    missing_flag("bench --backends", "--checkpoint", "difuse bench --backends --checkpoint runs/a");
  }
  if (problem.model || problem.mode || problem.sampler || !problem.graph.empty() || flags.per_kernel) {
    throw Error("--model, --mode, --sampler, --graph and --per-kernel have no meaning with --backends",
                "leave them out: --checkpoint says all about the model", ExitCode::wrong_usage);
  }
  compare_backends({flags.checkpoint, problem.batch, flags.steps, flags.device, flags.precision,
                    resolve_threads(flags.threads), flags.json},
                   with_tuning(context.options, flags.tune_budget));
  return 0;
}

int run_bench(const BenchFlags& flags, const CommandContext& context) {
  if (flags.backends) return run_backends(flags, context);
  if (!flags.checkpoint.empty() || flags.steps || flags.tune_budget) {
    throw Error("--checkpoint, --steps and --tune-budget belong to --backends", "add --backends, or leave them out",
                ExitCode::wrong_usage);
  }
  const Problem problem = load_problem(flags.problem, "bench");
  const Backend backend =
      open_backend(flags.device, flags.precision, resolve_threads(flags.threads), context.options, flags.prologues);
  if (!flags.json) {
    say("{}\n", backend_line(backend));
    say("measuring {}\n", problem.title);
    std::fflush(stdout);
  }
  Measured measured;
  const auto begin = std::chrono::steady_clock::now();
  const auto executor =
      compile(problem.graph, context.options, backend, {.quiet = flags.json, .kernels = &measured.cold.kernels});
  measured.cold.compile_seconds = seconds_since(begin);
  measure(flags, problem, backend, context, *executor, measured);
  if (flags.json) {
    print_json(measured, problem, backend, *executor);
  } else {
    print_text(measured, problem, *executor);
  }
  return 0;
}

}  // namespace

Action add_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  add_problem(app, flags->problem);
  app.add_flag("--per-kernel", flags->per_kernel, "Each kernel's time, bytes, operations and share of the roofline");
  app.add_flag("--json", flags->json, "Print JSON");
  app.add_flag("--backends", flags->backends,
               "Draw --batch images of --checkpoint by the reference and by each backend, fused and not, and compare");
  add_path(app, "--checkpoint", flags->checkpoint, "--backends: what difuse sample draws from");
  add_whole(app, "--steps", flags->steps, {1, 1 << 20}, "--backends: steps of the sampler", "4");
  add_tune_budget(app, flags->tune_budget);
  add_device(app, flags->device);
  add_dtype(app, flags->precision);
  add_prologue(app, flags->prologues);
  add_threads(app, flags->threads);
  return [flags](const CommandContext& context) { return run_bench(*flags, context); };
}

}  // namespace difuse::models
