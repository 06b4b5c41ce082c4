#include "runtime/tune/tune_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "ir/error.h"
#include "runtime/cuda/executor.h"
#include "runtime/tensor_bytes.h"
#include "runtime/tune/cuda_timer.h"

namespace difuse::runtime {
namespace {

using codegen::TuningTable;
using codegen::cuda::CudaPlan;
using codegen::cuda::TuningSite;
using passes::FusionChoices;

constexpr double kShareOfTiles = 0.6;  // Of the time, where there is something else to tune.

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class StepTuner {
 public:
  StepTuner(const ir::Graph& graph, const ir::Options& options, const Target& target, const CompileSettings& compiling)
      : graph_(graph),
        options_(options),
        device_(target.cuda),
        cache_(target.cache ? target.cache : open_kernel_cache(options, compiling.log)),
        compiling_(compiling),
        store_(tuning_store(options, *device_, compiling.log)),
        before_(store_.all()),
        after_(before_) {}

  StepTuning run(const TuneSettings& wanted, bool again) {
    const double end = seconds_now() + wanted.budget;
    StepTuning tuning;
    tuning.path = store_.path();
    passes::FusionReport report;
    const CudaPlan plan = plan_with(before_, before_.choices(), &report);
    std::vector<TunedPrologue> prologues;
    if (wanted.prologues && compiling_.prologues == passes::Prologues::automatic) {
      prologues = prologues_to_tune(estimate(report.prologues));
      if (!again) tuning.known += std::erase_if(prologues, [&](const TunedPrologue& p) { return is_known(p.site); });
    }
    const FusionChoices all = with_all(prologues);
    const bool are_some = std::ranges::any_of(prologues, [](const TunedPrologue& p) { return p.rejected.empty(); });
    if (wanted.tiles) {
      find_sites(plan, again, tuning);
      if (are_some) find_sites(plan_with(before_, all), again, tuning);
    }
    if (!tuning.sites.empty()) tune_tiles(wanted, are_some ? kShareOfTiles : 1, tuning);
    after_.merge(tuning.result.decisions);
    if (!prologues.empty() && !tuning.result.stopped) {
      // All kernels that will be timed, or nearly, at once; what does not compile is told where it is needed.
      if (are_some) static_cast<void>(open_compiler().compile(plan_with(after_, all).sources, wanted.progress));
      choose_prologues(std::move(prologues), {end - seconds_now(), wanted.stop, wanted.each_prologue}, tuning);
    }
    if (!(wanted.stop && wanted.stop())) compare(tuning);
    return tuning;
  }

 private:
  bool is_known(const passes::PrologueSite& site) const {
    return before_.prologues().contains({site.site, site.batch});
  }

  /// What is spared depends on what else is computed on the way (a concatenation of which only the normalised image is
  /// read is not made at all), so the estimates are those of a plan that follows them. `computed` stays as it is.
  std::vector<passes::PrologueSite> estimate(std::vector<passes::PrologueSite> sites) {
    for (const passes::PrologueSite& site : sites) {
      if (site.computed) was_computed_.insert({site.site, site.batch});
    }
    FusionChoices choices = before_.choices();
    constexpr int kMostPlans = 3;
    for (int i = 0; i < kMostPlans; ++i) {
      const FusionChoices last = choices;
      for (const passes::PrologueSite& site : sites) {
        if (!is_known(site)) choices.prologues.insert_or_assign({site.site, site.batch}, site.estimated);
      }
      if (choices.prologues == last.prologues) break;
      passes::FusionReport report;
      static_cast<void>(plan_with(before_, choices, &report));
      sites = std::move(report.prologues);
    }
    for (passes::PrologueSite& site : sites) site.computed = was_computed_.contains({site.site, site.batch});
    return sites;
  }

  FusionChoices with_all(const std::vector<TunedPrologue>& prologues) const {
    FusionChoices choices = before_.choices();
    for (const TunedPrologue& p : prologues) {
      if (p.rejected.empty()) choices.prologues.insert_or_assign({p.site.site, p.site.batch}, true);
    }
    return choices;
  }

  /// Adds the plan's choices of tiles that are not there yet.
  void find_sites(const CudaPlan& plan, bool again, StepTuning& tuning) {
    for (TuningSite& site : codegen::cuda::tuning_sites(plan, device_->spec())) {
      const codegen::cuda::TileChoice& choice = site.choice();
      if (!seen_.insert({choice.problem, choice.batch}).second) continue;
      if (!again && before_.exact(choice.problem, choice.batch) != nullptr) {
        ++tuning.known;
      } else {
        tuning.sites.push_back(std::move(site));
      }
    }
  }

  void tune_tiles(const TuneSettings& wanted, double share, StepTuning& tuning) {
    TuneSettings settings = wanted;
    settings.budget *= share;
    settings.decided = [&](const TuningTable& news) { tuning.kept = store_.add(news); };
    codegen::KernelCompiler compiler = open_compiler();
    const CudaPlan tools_plan = TimerTools::plan(device_->spec());
    TimerTools tools(device_, codegen::require_all(compiler.compile(tools_plan.sources)));
    const TuneMeans means = {
        .compile = [&](auto sources, const auto& progress) { return compiler.compile(sources, progress); },
        .time =
            [&](const TuningSite& site, const CudaPlan& candidates, const TuneMeans::Kernels& kernels) {
              return std::make_unique<CudaTimer>(tools, site, candidates, kernels);
            },
        .clock = seconds_now};
    tuning.result = tune_sites(tuning.sites, before_, means, settings);
  }

  void choose_prologues(std::vector<TunedPrologue> prologues, const PrologueSettings& settings, StepTuning& tuning) {
    struct Built {
      FusionChoices choices;
      std::unique_ptr<Executor> executor;
    } first, second;
    const auto compare = [&](const FusionChoices& now, const FusionChoices& other) {
      if (second.executor && second.choices.prologues == now.prologues) std::swap(first, second);
      second = {};  // Before memory is taken for another.
      if (!first.executor || first.choices.prologues != now.prologues) {
        first = {};
        first = {now, executor_with(after_, now)};
      }
      second = {other, executor_with(after_, other)};
      return time_by_turns(*first.executor, *second.executor);
    };
    const PrologueMeans means = {compare, seconds_now};
    tuning.prologues = tune_prologues(std::move(prologues), after_.choices(), means, settings);
    after_.merge(tuning.prologues.decisions);
    if (!tuning.prologues.decisions.empty()) tuning.kept = store_.add(tuning.prologues.decisions);
  }

  codegen::KernelCompiler open_compiler() const {
    return {*cache_, {.toolkit = options_.cuda_toolkit, .newest_major = device_->driver().newest_toolkit()}};
  }

  CudaPlan plan_with(const TuningTable& tuned, const FusionChoices& choices,
                     passes::FusionReport* report = nullptr) const {
    CompileSettings settings = compiling_;
    settings.tuned = &tuned;
    settings.report = report;
    if (compiling_.prologues == passes::Prologues::automatic) settings.choices = &choices;
    return plan_cuda(graph_, options_, device_->spec(), settings);
  }

  std::unique_ptr<Executor> executor_with(const TuningTable& tuned, const FusionChoices& choices) const {
    CudaPlan plan = plan_with(tuned, choices);
    const auto kernels = compile_kernels(plan, device_->spec(), tuned, options_, *cache_,
                                         device_->driver().newest_toolkit(), compiling_);
    auto executor = std::make_unique<CudaExecutor>(device_, std::move(plan), kernels);
    write_timing_values(*executor);
    static_cast<void>(executor->time_steps(1));
    return executor;
  }

  static std::pair<double, double> time_by_turns(Executor& first, Executor& second) {
    constexpr int kRounds = 8, kSteps = 4;
    std::vector<double> times_first, times_second;
    for (int round = 0; round < kRounds; ++round) {
      for (const double t : first.time_steps(kSteps)) times_first.push_back(t);
      for (const double t : second.time_steps(kSteps)) times_second.push_back(t);
    }
    return {median(times_first), median(times_second)};
  }

  /// Times the whole step with and without the news.
  void compare(StepTuning& tuning) {
    TuningTable old;  // What the news replaced.
    for (const TunedSite& site : tuning.result.sites) {
      const TunedCandidate& first = site.candidates.front();
      if (site.winner <= 0 || first.seconds == 0) continue;
      const codegen::cuda::TileChoice& choice = site.site->choice();
      old.set(choice.problem, choice.batch, {first.tile, first.seconds * 1e6, first.seconds * 1e6});
    }
    for (const auto& [key, decision] : tuning.prologues.decisions.prologues()) {
      codegen::PrologueDecision before = decision;
      before.computed = was_computed_.contains(key);
      if (before.computed != decision.computed) old.set_prologue(key.first, key.second, before);
    }
    if (old.empty()) return;
    try {
      const auto before = executor_with(before_, before_.choices()), after = executor_with(after_, after_.choices());
      std::tie(tuning.step_before, tuning.step_after) = time_by_turns(*before, *after);
    } catch (const Error& error) {
      tuning.not_compared = error.what();
      return;
    }
    if (!tuning.is_better()) tuning.kept = store_.add(old);
  }

  const ir::Graph& graph_;
  const ir::Options& options_;
  std::shared_ptr<const CudaDevice> device_;
  std::shared_ptr<codegen::KernelCache> cache_;
  const CompileSettings& compiling_;
  codegen::TuningStore store_;
  TuningTable before_, after_;
  std::set<TuningTable::Key> seen_;          // Choices of tiles.
  std::set<TuningTable::Key> was_computed_;  // Images' sites, with the decisions of before.
};

}  // namespace

StepTuning tune_step(const ir::Graph& graph, const ir::Options& options, const Target& target,
                     const CompileSettings& compiling, const TuneSettings& settings, bool again) {
  return StepTuner(graph, options, target, compiling).run(settings, again);
}

void write_timing_values(Executor& executor) {
  constexpr size_t kNumbers = 1 << 16;
  std::vector<double> numbers(kNumbers);
  for (size_t i = 0; i < kNumbers; ++i) numbers[i] = 0.01 + 0.04 * static_cast<double>(i * 40503 % kNumbers) / kNumbers;
  std::map<ir::DType, std::vector<std::byte>> blocks;
  const ir::Graph& graph = executor.graph();
  for (const ir::Op op : {ir::Op::input, ir::Op::state}) {
    for (const int id : graph.leaves(op)) {
      if (!executor.memory().at({id, 0}).placed()) continue;
      const ir::Type& type = graph.node(id).types[0];
      std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
      if (ir::is_float(type.dtype)) {
        std::vector<std::byte>& block = blocks[type.dtype];
        if (block.empty()) {
          block.resize(kNumbers * static_cast<size_t>(ir::size_of(type.dtype)));
          encode(numbers, type.dtype, block);
        }
        for (size_t done = 0; done < bytes.size(); done += block.size()) {
          std::memcpy(bytes.data() + done, block.data(), std::min(block.size(), bytes.size() - done));
        }
      }
      const std::string& name = graph.node(id).as<ir::LeafAttrs>().name;
      if (op == ir::Op::input) {
        executor.write_input(name, bytes);
      } else {
        executor.write_state(name, bytes);
      }
    }
  }
}

}  // namespace difuse::runtime
