#include <fmt/format.h>

#include <memory>

#include "ir/error.h"
#include "models/cli/commands.h"
#include "models/cli/flags.h"
#include "models/cli/problem_flags.h"
#include "models/run/console.h"
#include "models/run/interrupt.h"
#include "models/run/tuning.h"
#include "runtime/cuda/roofline.h"

namespace difuse::models {
namespace {

struct TuneFlags {
  ProblemChoice problem;
  DeviceChoice device;
  std::optional<passes::Precision> precision;
  passes::Prologues prologues = passes::Prologues::automatic;
  std::optional<double> budget;
  std::optional<int64_t> candidates;
  std::optional<std::string> only;
  bool again = false;
};

/// The compiler's first line says enough.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

void print_site(const runtime::TunedSite& tuned, const runtime::Roofline& roofline, size_t done, size_t total) {
  const codegen::cuda::TileChoice& choice = tuned.site->choice();
  say("\n[{} of {}] {}, batch {}, {} in the step\n", done, total, choice.problem, choice.batch, tuned.site->uses);
  for (size_t i = 0; i < tuned.candidates.size(); ++i) {
    const runtime::TunedCandidate& candidate = tuned.candidates[i];
    if (!candidate.rejected.empty()) {
      say("{:>21}  {}: {}\n", "rejected", candidate.tile, first_line(candidate.rejected));
      continue;
    }
    const double share = 100 * roofline.seconds(tuned.bytes, tuned.flops) / candidate.seconds;
    const bool won = static_cast<int>(i) == tuned.winner;
    say("{:>9.2f} us  {:>3.0f} %  {}  {}{}\n", candidate.seconds * 1e6, share, won ? "->" : "  ", candidate.tile,
        i == 0 ? " (before)" : "");
  }
  std::fflush(stdout);
}

/// An image that convolutions may compute on the way: what the cost model expects, and a step's times.
void print_prologue(const runtime::TunedPrologue& tuned, size_t done, size_t total) {
  const passes::PrologueSite& site = tuned.site;
  say("\n[{} of {}] {}, batch {}, {} in the step\n", done, total, site.site, site.batch, tuned.uses);
  say("{:>9.2f} us spared for {:.2f} us, by the estimate\n", site.spared * 1e6, site.price * 1e6);
  if (!tuned.rejected.empty()) {
    say("{:>12}  {}\n", "not timed", first_line(tuned.rejected));
  } else {
    say("{:>9.2f} us  {}  the step where it is stored\n", tuned.stored_seconds * 1e6, site.computed ? "  " : "->");
    say("{:>9.2f} us  {}  the step where it is computed on the way\n", tuned.computed_seconds * 1e6,
        site.computed ? "->" : "  ");
  }
  std::fflush(stdout);
}

int run_tune(const TuneFlags& flags, const CommandContext& context) {
  const Problem problem = load_problem(flags.problem, "tune");
  const Backend backend =
      open_backend(flags.device, flags.precision, resolve_threads({}), context.options, flags.prologues);
  if (!backend.target.is_cuda()) {
    throw Error(fmt::format("difuse tune needs a GPU{}", backend.why_cpu.empty() ? "" : ": " + backend.why_cpu),
                "the CPU's kernels have nothing to tune; difuse doctor says what this machine has",
                ExitCode::wrong_usage);
  }
  say("{}\n", backend_line(backend));
  const runtime::Roofline roofline =
      runtime::measure_roofline(backend.target.cuda, *backend.target.cache, context.options, backend.precision);
  say("roofline, measured: {:.0f} GB/s copied, {:.1f} TFLOP/s of {}\n", roofline.bandwidth * 1e-9,
      roofline.flops * 1e-12, roofline.products);
  say("tuning {}: each candidate's median time, cold, and its share of the roofline\n", problem.title);
  std::fflush(stdout);

  const InterruptGuard interrupt;
  runtime::TuneSettings settings;
  settings.budget = flags.budget.value_or(context.options.tune_budget);
  if (flags.candidates) settings.most_candidates = static_cast<size_t>(*flags.candidates);
  settings.tiles = flags.only != "prologues";
  settings.prologues = flags.only != "tiles";
  settings.stop = [&] { return interrupt.signal() != 0; };
  settings.each = [&](const runtime::TunedSite& site, size_t done, size_t total) {
    print_site(site, roofline, done, total);
  };
  settings.each_prologue = print_prologue;
  tune(problem.graph, context.options, backend, settings, flags.again);
  return interrupt.signal() == 0 ? 0 : 128 + interrupt.signal();
}

}  // namespace

Action add_tune(CLI::App& app) {
  auto flags = std::make_shared<TuneFlags>();
  add_problem(app, flags->problem);
  add_tune_budget(app, flags->budget);
  add_whole(app, "--candidates", flags->candidates, {1, 1000},
            "Candidates of a kernel to try, the best estimates first", "12");
  add_choice(app, "--only", flags->only, {"tiles", "prologues"},
             "Tune the kernels' tiles alone, or which images convolutions compute on the way", "both");
  app.add_flag("--again", flags->again, "Also kernels that were tuned before");
  add_device(app, flags->device);
  add_dtype(app, flags->precision, "bf16");
  add_prologue(app, flags->prologues);
  return [flags](const CommandContext& context) { return run_tune(*flags, context); };
}

}  // namespace difuse::models
