#include "runtime/check.h"

#include <fmt/format.h>

#include <memory>

#include "ir/error.h"
#include "models/cli/commands.h"
#include "models/cli/flags.h"
#include "models/cli/problem_flags.h"
#include "models/problem/example_values.h"
#include "models/run/console.h"

namespace difuse::models {
namespace {

struct CheckFlags {
  ProblemChoice problem;
  DeviceChoice device;
  std::optional<passes::Precision> precision;
  passes::Prologues prologues = passes::Prologues::automatic;
  std::optional<int64_t> threads;
};

int run_check(const CheckFlags& flags, const CommandContext& context) {
  const Problem problem = load_problem(flags.problem, "check");
  const Backend backend =
      open_backend(flags.device, flags.precision, resolve_threads(flags.threads), context.options, flags.prologues);
  say("{}\n", backend_line(backend));
  say("checking {} node by node against the fp64 reference\n", problem.title);
  const auto executor = compile(problem.graph, context.options, backend);
  write_example_values(*executor, problem);
  say("{:>7} {:>10} {:>10}  {:<5} {}\n", "node", "error", "tolerance", "", "computes (tolerance of)");
  const runtime::NodeCheck* worst = nullptr;
  int failed = 0;
  const auto checks = runtime::check_step(*executor, [](const runtime::NodeCheck& check) {
    say("{:>7} {:>10.2e} {:>10.2e}  {:<5} {} ({})\n", fmt::format("%{}", check.node), check.error, check.tolerance,
        check.passed() ? "ok" : "WRONG", check.name, check.rule);
    std::fflush(stdout);
  });
  for (const runtime::NodeCheck& check : checks) {
    if (!check.passed()) ++failed;
    // By share of what is allowed; what must be equal counts only when it is not.
    if (worst == nullptr || check.share() > worst->share()) worst = &check;
  }
  say("checked: {} nodes, {} wrong", checks.size(), failed);
  if (worst != nullptr)
    say("; the worst is %{} {}: {:.2e} of {:.2e}", worst->node, worst->name, worst->error, worst->tolerance);
  say("\n");
  return failed == 0 ? 0 : static_cast<int>(ExitCode::failed);
}

}  // namespace

Action add_check(CLI::App& app) {
  auto flags = std::make_shared<CheckFlags>();
  add_problem(app, flags->problem);
  add_device(app, flags->device);
  add_dtype(app, flags->precision);
  add_prologue(app, flags->prologues);
  add_threads(app, flags->threads);
  return [flags](const CommandContext& context) { return run_check(*flags, context); };
}

}  // namespace difuse::models
