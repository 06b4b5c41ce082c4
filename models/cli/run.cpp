#include <memory>

#include "models/cli/commands.h"
#include "models/cli/flags.h"
#include "models/cli/problem_flags.h"
#include "models/problem/step_file.h"
#include "models/run/console.h"
#include "runtime/atomic_file.h"

namespace difuse::models {
namespace {

struct RunFlags {
  ProblemChoice problem;
  std::string in, out;
  DeviceChoice device;
  std::optional<passes::Precision> precision;
  passes::Prologues prologues = passes::Prologues::automatic;
  std::optional<int64_t> threads;
};

int run_run(const RunFlags& flags, const CommandContext& context) {
  const char* const example = "difuse run --model tiny --mode forward --batch 2 --in a.safetensors --out b.safetensors";
  if (flags.in.empty()) missing_flag("run", "--in", example);
  if (flags.out.empty()) missing_flag("run", "--out", example);
  const Problem problem = load_problem(flags.problem, "run");
  runtime::require_writable(flags.out, 0);
  const Backend backend =
      open_backend(flags.device, flags.precision, resolve_threads(flags.threads), context.options, flags.prologues);
  say("{}\n", backend_line(backend));
  say("running {}\n", problem.title);
  const auto executor = compile(problem.graph, context.options, backend);
  read_step(*executor, problem, flags.in);
  executor->run();
  write_step(*executor, problem, flags.out);
  say("{}\n", flags.out);
  return 0;
}

}  // namespace

Action add_run(CLI::App& app) {
  auto flags = std::make_shared<RunFlags>();
  add_problem(app, flags->problem);
  add_path(app, "--in", flags->in, "Every input and state, by name, as safetensors; parameters are params/NAME");
  add_path(app, "--out", flags->out, "Where the outputs and the changed states go, as safetensors");
  add_device(app, flags->device);
  add_dtype(app, flags->precision);
  add_prologue(app, flags->prologues);
  add_threads(app, flags->threads);
  return [flags](const CommandContext& context) { return run_run(*flags, context); };
}

}  // namespace difuse::models
