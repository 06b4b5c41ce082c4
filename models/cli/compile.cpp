#include "runtime/compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <set>

#include "codegen/cuda/join/overlap.h"
#include "ir/dot.h"
#include "ir/error.h"
#include "models/cli/commands.h"
#include "models/cli/flags.h"
#include "models/cli/fusion_listing.h"
#include "models/cli/problem_flags.h"
#include "models/run/compile_progress.h"
#include "models/run/console.h"
#include "models/run/units.h"
#include "runtime/atomic_file.h"
#include "runtime/cuda/device.h"
#include "runtime/kernel_dump.h"

namespace difuse::models {
namespace {

using Kernels = std::vector<std::shared_ptr<const codegen::CompiledKernel>>;

struct CompileFlags {
  ProblemChoice problem;
  std::optional<passes::Precision> precision;
  passes::Prologues prologues = passes::Prologues::automatic;
  std::optional<std::string> arch;
  std::string dump, dot;
  bool report = false;
};

/// What --arch names; an H100 where it is not given.
ir::DeviceSpec device_of(const std::optional<std::string>& arch) {
  const std::string name = arch.value_or("sm_90a");
  if (const ir::DeviceSpec* known = ir::find_device_spec(name)) return *known;
  std::set<std::string> names;
  for (const ir::DeviceSpec& d : ir::known_devices()) names.insert(ir::architecture_name(d));
  throw Error(fmt::format("--arch '{}' is unknown", name),
              fmt::format("give {}, or a card such as a100 or rtx4090", fmt::join(names, ", ")), ExitCode::wrong_usage);
}

std::string grid_text(const codegen::cuda::Grid& grid) {
  std::string text = fmt::format("{}", grid.x);
  if (grid.y > 1 || grid.z > 1) text += fmt::format("x{}", grid.y);
  if (grid.z > 1) text += fmt::format("x{}", grid.z);
  return text;
}

/// `kernels` may be empty: nothing is compiled yet.
void print_kernels(const codegen::cuda::CudaPlan& plan, const Kernels& kernels) {
  say("{:>5} {:>6} {:>14} {:>8} {:>5} {:>9} {:>10} {:>10}  {}\n", "", "node", "blocks", "threads", "regs", "shared",
      "MB", "MFLOP", "kernel");
  const auto print = [&](const codegen::cuda::KernelCall& call, const std::string& place) {
    const auto source = static_cast<size_t>(call.source);
    int64_t shared = call.shared_bytes;
    std::string registers = "-";
    if (!kernels.empty()) {
      shared += kernels[source]->resources.static_shared_bytes;
      registers = fmt::format("{}", kernels[source]->resources.registers);
    }
    const std::string number = fmt::format("{}{}", overlaps(call) ? "+" : "", place);
    say("{:>5} {:>6} {:>14} {:>8} {:>5} {:>9} {:>10.3f} {:>10.1f}  {}\n", number, fmt::format("%{}", call.node),
        grid_text(call.grid), call.threads, registers, shared, static_cast<double>(call.bytes) * 1e-6,
        static_cast<double>(call.flops) * 1e-6, plan.sources[source].name);
  };
  for (const codegen::cuda::KernelCall& call : plan.once) print(call, "once");
  for (size_t i = 0; i < plan.calls.size(); ++i) print(plan.calls[i], std::to_string(i));
}

void print_sums(const codegen::cuda::CudaPlan& plan) {
  int64_t bytes = 0, flops = 0, beside = 0;
  std::set<int> different;
  for (const codegen::cuda::KernelCall& call : plan.calls) {
    different.insert(call.source);
    bytes += call.bytes;
    flops += call.flops;
    beside += overlaps(call) ? 1 : 0;
  }
  const auto text = [](int64_t count) { return format_bytes(static_cast<uint64_t>(count)); };
  say("kernels: {} ({} different)\n", plan.calls.size(), different.size());
  say("bytes moved: {} ({})\n", text(bytes), format_count(bytes));
  say("operations: {:.3f} GFLOP (a multiply-add counts as two)\n", static_cast<double>(flops) * 1e-9);
  say("arena: {}, of it state {}; without reuse of memory it would be {}\n", text(plan.memory.arena_bytes),
      text(plan.memory.state_bytes), text(plan.memory.tensor_bytes));
  say("workspace: {}\n", text(plan.workspace_bytes));
  say("beside the kernel before (+): {}\n", beside);
  if (plan.once.empty()) return;
  int64_t once_bytes = 0;
  for (const codegen::cuda::KernelCall& call : plan.once) once_bytes += call.bytes;
  say("once, when parameters are written: {} (bytes moved: {})\n", plan.once.size(), text(once_bytes));
}

int run_compile(const CompileFlags& flags, const CommandContext& context) {
  using Clock = std::chrono::steady_clock;
  const Problem problem = load_problem(flags.problem, "compile");
  // The machine's own GPU, with what is known of its kernels, where none is named.
  const auto gpu = flags.arch ? nullptr : runtime::CudaDevice::find();
  const ir::DeviceSpec device = gpu ? gpu->spec() : device_of(flags.arch);
  codegen::TuningTable tuned;
  if (gpu) tuned = runtime::known_decisions(context.options, *gpu, &std::cerr);
  CompileProgress progress;
  runtime::CompileSettings settings;
  settings.precision = flags.precision.value_or(passes::Precision::bf16);
  settings.prologues = flags.prologues;
  settings.log = &std::cerr;
  settings.tuned = &tuned;
  passes::FusionReport report;
  settings.report = &report;
  int cached = 0, total = 0;
  settings.progress = [&](const codegen::CompileProgress& now) {
    cached = now.cached, total = now.total;
    progress.show(now);
  };
  say("compiling {} for {} ({}), {}\n", problem.title, ir::architecture_name(device), device.name,
      passes::to_string(settings.precision));
  std::fflush(stdout);
  const auto begin = Clock::now();
  codegen::cuda::CudaPlan plan = runtime::plan_cuda(problem.graph, context.options, device, settings);
  const double plan_seconds = seconds_since(begin);
  // Before anything is compiled: a folder that cannot be written is found at once, and what does not compile can be
  // read.
  if (!flags.dump.empty()) runtime::dump_sources(flags.dump, plan);
  if (!flags.dot.empty()) {
    runtime::AtomicFile file(flags.dot);
    file.write(ir::to_dot(plan.graph));
    file.commit();
  }
  const auto compile_begin = Clock::now();
  Kernels kernels;
  try {
    const auto cache = runtime::open_kernel_cache(context.options, &std::cerr);
    kernels = runtime::compile_kernels(plan, device, tuned, context.options, *cache, 0, settings);
  } catch (const Error&) {
    print_kernels(plan, {});
    print_sums(plan);
    if (!flags.dump.empty()) say("dumped, without code: {}\n", flags.dump);
    throw;
  }
  const double compile_seconds = seconds_since(compile_begin);
  print_kernels(plan, kernels);
  if (flags.report) print_fusions(plan, report);
  print_sums(plan);
  say("compiled: {} of {} in {:.2f} s{}; planning took {:.2f} s\n", total - cached, total, compile_seconds,
      cached > 0 ? ", the others came from the cache" : "", plan_seconds);
  if (!flags.dump.empty()) {
    runtime::dump_sources(flags.dump, plan);  // Again: tiles that the compiler refused gave way to others.
    runtime::dump_code(flags.dump, kernels);
    say("dumped: {}\n", flags.dump);
  }
  return 0;
}

}  // namespace

Action add_compile(CLI::App& app) {
  auto flags = std::make_shared<CompileFlags>();
  add_problem(app, flags->problem);
  add_dtype(app, flags->precision, "bf16");
  add_prologue(app, flags->prologues);
  add_text(app, "--arch", flags->arch, "sm_80|sm_90a|...", "GPU to compile for; none has to be there",
           "this machine's, or sm_90a");
  add_path(app, "--dump", flags->dump, "Folder for each kernel's source (.cu) and code (.cubin)");
  app.add_flag("--report", flags->report,
               "Say what each kernel fused, what that saves, and what was not fused and why");
  add_path(app, "--dot", flags->dot, "File for the fused graph as a drawing, in Graphviz's language");
  return [flags](const CommandContext& context) { return run_compile(*flags, context); };
}

}  // namespace difuse::models
