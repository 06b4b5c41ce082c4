// A whole training step on the CPU against its contractions alone: the sum, over the step's convolutions, of
// oneDNN's own batch-wide primitives on all cores. The step's time over that sum is what everything else
// costs: norms, activations, optimizer, weight reorders, one-image primitives.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "codegen/cpu/onednn.h"
#include "ir/op.h"
#include "models/presets.h"
#include "models/training_step.h"
#include "runtime/compile.h"

namespace {

using namespace difuse;
using codegen::ConvKind;
using codegen::ConvProblem;

constexpr int64_t kBatch = 64;

struct AlignedFree {
  void operator()(float* data) const { ::operator delete[](data, std::align_val_t{codegen::kContractionAlignment}); }
};
using Floats = std::unique_ptr<float[], AlignedFree>;

Floats make_floats(size_t count) {
  Floats data(new (std::align_val_t{codegen::kContractionAlignment}) float[count + 1]);
  std::fill_n(data.get(), count, 0.01f);
  return data;
}

ir::Graph training_step(const char* model) {
  const models::Preset& preset = models::find_preset(model);
  models::TrainingConfig config = preset.training;
  config.batch = kBatch;
  return models::build_training_step(preset.unet, preset.diffusion, config);
}

void run_step(benchmark::State& state, const char* model) {
  const auto executor = runtime::compile(training_step(model), {}, omp_get_max_threads());
  executor->run();  // the first step touches the arena's pages
  for (auto _ : state) executor->run();
  state.counters["images/s"] = benchmark::Counter(kBatch, benchmark::Counter::kIsIterationInvariantRate);
}

struct Call {
  ConvKind kind;
  ConvProblem problem;
};

/// The convolutions of a graph: all but a hundredth of its operations.
std::vector<Call> contractions(const ir::Graph& graph) {
  std::vector<Call> calls;
  const std::vector<bool> live = graph.live();
  for (int id = 0; id < graph.size(); ++id) {
    const ir::Node& node = graph.node(id);
    if (!live[static_cast<size_t>(id)] || !ir::has_trait(node, ir::kContraction)) continue;
    auto shape = [&](int operand) { return graph.type(node.operands[static_cast<size_t>(operand)]).shape; };
    auto add = [&](ConvKind kind, const ir::Shape& x, const ir::Shape& weights, int64_t stride, int64_t pad) {
      auto narrow = [](int64_t v) { return static_cast<int>(v); };
      calls.push_back({kind,
                       {narrow(x[0]), narrow(x[1]), narrow(x[2]), narrow(x[3]), narrow(weights[0]), narrow(weights[1]),
                        narrow(weights[2]), narrow(stride), narrow(pad)}});
    };
    if (node.op == ir::Op::conv_fprop) {
      const auto& a = node.as<ir::ConvAttrs>();
      add(ConvKind::fprop, shape(0), shape(1), a.stride, a.pad);
    } else if (node.op == ir::Op::conv_dgrad) {
      const auto& a = node.as<ir::ConvDgradAttrs>();
      add(ConvKind::dgrad, node.types[0].shape, shape(1), a.stride, a.pad);
    } else if (node.op == ir::Op::conv_wgrad) {
      const auto& a = node.as<ir::ConvWgradAttrs>();
      add(ConvKind::wgrad, shape(0), node.types[0].shape, a.stride, a.pad);
    }
  }
  return calls;
}

void run_contractions(benchmark::State& state, const char* model) {
  const auto onednn = codegen::OneDnn::load();
  if (!onednn) {
    state.SkipWithError("oneDNN is not installed");
    return;
  }
  struct Prepared {
    std::unique_ptr<codegen::Conv> conv;
    Floats first, second, result;
  };
  std::vector<Prepared> prepared;
  size_t scratch_bytes = 0;
  double operations = 0;
  for (const auto& [kind, p] : contractions(training_step(model))) {
    auto conv = onednn->conv_for_threads(kind, p, omp_get_max_threads());
    const size_t x = static_cast<size_t>(p.n) * p.h * p.w * p.c,
                 y = static_cast<size_t>(p.n) * p.out_h() * p.out_w() * p.k;
    const size_t w = conv->weights_bytes() / sizeof(float);
    const size_t first = kind == ConvKind::dgrad ? y : x, second = kind == ConvKind::wgrad ? y : w;
    const size_t result = kind == ConvKind::fprop ? y : kind == ConvKind::dgrad ? x : w;
    scratch_bytes = std::max(scratch_bytes, conv->scratch_bytes());
    operations += p.operations();
    prepared.push_back({std::move(conv), make_floats(first), make_floats(second), make_floats(result)});
  }
  const Floats scratch = make_floats(scratch_bytes / sizeof(float));
  for (auto _ : state) {
    for (const Prepared& p : prepared) {
      p.conv->run(p.first.get(), p.second.get(), p.result.get(), reinterpret_cast<std::byte*>(scratch.get()));
    }
  }
  state.counters["GFLOP/s"] = benchmark::Counter(operations * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

const bool kRegistered = [] {
  for (const char* model : {"mnist-small", "fashion-demo"}) {
    benchmark::RegisterBenchmark((std::string("contractions/") + model).c_str(), run_contractions, model)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
    benchmark::RegisterBenchmark((std::string("step/") + model).c_str(), run_step, model)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
  return true;
}();

}  // namespace
