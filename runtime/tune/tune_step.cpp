#include "runtime/tune/tune_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "ir/error.h"
#include "runtime/cuda/executor.h"
#include "runtime/tensor_bytes.h"
#include "runtime/tune/cuda_timer.h"

namespace difuse::runtime {
namespace {

using codegen::TuningTable;
using codegen::cuda::CudaPlan;
using codegen::cuda::TuningSite;

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
        before_(store_.all()) {}

  StepTuning run(const TuneSettings& wanted, bool again) {
    StepTuning tuning;
    tuning.path = store_.path();
    const CudaPlan plan = plan_with(before_);
    for (TuningSite& site : codegen::cuda::tuning_sites(plan, device_->spec())) {
      if (!again && before_.exact(site.choice().problem, site.choice().batch) != nullptr) {
        ++tuning.known;
      } else {
        tuning.sites.push_back(std::move(site));
      }
    }
    if (tuning.sites.empty()) return tuning;

    TuneSettings settings = wanted;
    settings.decided = [&](const TuningTable& news) { tuning.kept = store_.add(news); };
    codegen::KernelCompiler compiler(
        *cache_, {.toolkit = options_.cuda_toolkit, .newest_major = device_->driver().newest_toolkit()});
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
    if (!tuning.result.stopped) compare(tuning);
    return tuning;
  }

 private:
  CudaPlan plan_with(const TuningTable& tiles) const {
    CompileSettings settings = compiling_;
    settings.tiles = &tiles;
    return plan_cuda(graph_, options_, device_->spec(), settings);
  }

  std::unique_ptr<Executor> executor_with(const TuningTable& tiles) const {
    CudaPlan plan = plan_with(tiles);
    const auto kernels = compile_kernels(plan, device_->spec(), tiles, options_, *cache_,
                                         device_->driver().newest_toolkit(), compiling_);
    return std::make_unique<CudaExecutor>(device_, std::move(plan), kernels);
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
    if (old.empty()) return;
    TuningTable after_table = before_;
    after_table.merge(tuning.result.decisions);
    try {
      const auto before = executor_with(before_), after = executor_with(after_table);
      constexpr int kRounds = 4, kSteps = 4;
      std::vector<double> times_before, times_after;
      for (Executor* executor : {before.get(), after.get()}) {
        write_timing_values(*executor);
        static_cast<void>(executor->time_steps(1));
      }
      for (int round = 0; round < kRounds; ++round) {
        for (const double t : before->time_steps(kSteps)) times_before.push_back(t);
        for (const double t : after->time_steps(kSteps)) times_after.push_back(t);
      }
      tuning.step_before = median(times_before);
      tuning.step_after = median(times_after);
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
  TuningTable before_;
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
