// The CPU backend's convolutions over a batch of 64: primitives for one thread and one image (eight for a weight
// gradient) in one OpenMP loop, as plans run them, against oneDNN's batch-wide primitives on the same threads, and
// plain loops.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "codegen/cpu/onednn.h"
#include "codegen/cpu/plain.h"

namespace {

using namespace difuse::codegen;

constexpr int kBatch = 64;

struct AlignedFree {
  void operator()(float* data) const { ::operator delete[](data, std::align_val_t{kContractionAlignment}); }
};
using Floats = std::unique_ptr<float[], AlignedFree>;

Floats make_floats(size_t count) {
  Floats data(new (std::align_val_t{kContractionAlignment}) float[count + 1]);
  for (size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 17) * 0.01f - 0.08f;
  return data;
}

size_t x_size(const ConvProblem& p) { return size_t(p.n) * p.h * p.w * p.c; }
size_t y_size(const ConvProblem& p) { return size_t(p.n) * p.out_h() * p.out_w() * p.k; }

void report(benchmark::State& state, const Conv& conv, const ConvProblem& batch) {
  state.SetLabel(conv.impl_info());
  state.counters["GFLOP/s"] =
      benchmark::Counter(batch.operations() * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void run_calls(benchmark::State& state, const Conv& conv, ConvKind kind, const ConvProblem& one_call, int threads) {
  ConvProblem batch = one_call;
  batch.n = kBatch;
  const Floats x = make_floats(x_size(batch)), y = make_floats(y_size(batch));
  const int calls = kBatch / one_call.n;
  const size_t packed_count = conv.weights_bytes() / sizeof(float);
  const Floats packed = make_floats(packed_count * (kind == ConvKind::wgrad ? calls : 1));
  const Floats krsc = make_floats(static_cast<size_t>(one_call.weight_count()));
  std::vector<Floats> scratch;
  for (int i = 0; i < threads; ++i) scratch.push_back(make_floats(conv.scratch_bytes() / sizeof(float)));
  const auto bytes = [&](int thread) {
    return reinterpret_cast<std::byte*>(scratch[static_cast<size_t>(thread)].get());
  };
  conv.pack(krsc.get(), packed.get(), bytes(0));
  for (auto _ : state) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int call = 0; call < calls; ++call) {
      float* x_call = x.get() + call * x_size(one_call);
      float* y_call = y.get() + call * y_size(one_call);
      std::byte* own = bytes(omp_get_thread_num());
      if (kind == ConvKind::fprop) conv.run(x_call, packed.get(), y_call, own);
      if (kind == ConvKind::dgrad) conv.run(y_call, packed.get(), x_call, own);
      if (kind == ConvKind::wgrad) conv.run(x_call, y_call, packed.get() + call * packed_count, own);
    }
    benchmark::ClobberMemory();
  }
  report(state, conv, batch);
}

ConvProblem with_images(ConvProblem problem, int images) {
  problem.n = images;
  return problem;
}

void register_all() {
  static const std::shared_ptr<OneDnn> onednn = OneDnn::load();
  const int threads = omp_get_max_threads();
  const ConvProblem shapes[] = {{1, 28, 28, 32, 32, 3, 3, 1, 1}, {1, 14, 14, 64, 64, 3, 3, 1, 1},
                                {1, 7, 7, 64, 64, 3, 3, 1, 1},   {1, 28, 28, 96, 32, 3, 3, 1, 1},
                                {1, 28, 28, 1, 32, 3, 3, 1, 1},  {1, 28, 28, 32, 1, 3, 3, 1, 1},
                                {1, 28, 28, 32, 32, 3, 3, 2, 1}, {1, 28, 28, 96, 32, 1, 1, 1, 0}};
  const char* kinds[] = {"fprop", "dgrad", "wgrad"};
  for (const ConvProblem& shape : shapes) {
    for (const ConvKind kind : {ConvKind::fprop, ConvKind::dgrad, ConvKind::wgrad}) {
      const std::string name = std::string(kinds[static_cast<int>(kind)]) + "/" + std::to_string(shape.h) + "x" +
                               std::to_string(shape.w) + "_c" + std::to_string(shape.c) + "_k" +
                               std::to_string(shape.k) + "_" + std::to_string(shape.r) + "x" + std::to_string(shape.s) +
                               "_s" + std::to_string(shape.stride);
      const ConvProblem call = with_images(shape, kind == ConvKind::wgrad ? 8 : 1);
      const auto add = [&](const std::string& how, auto body) {
        benchmark::RegisterBenchmark((name + "/" + how).c_str(), body)->UseRealTime()->Unit(benchmark::kMillisecond);
      };
      if (onednn) {
        add("one_image",
            [=](benchmark::State& state) { run_calls(state, *onednn->conv(kind, call), kind, call, threads); });
        add("batch_wide", [=](benchmark::State& state) {
          const ConvProblem batch = with_images(shape, kBatch);
          run_calls(state, *onednn->conv_for_threads(kind, batch, threads), kind, batch, 1);
        });
      }
      add("plain", [=](benchmark::State& state) {
        run_calls(state, *PlainContractions().conv(kind, call), kind, call, threads);
      });
    }
  }
}

const bool kRegistered = (register_all(), true);

}  // namespace
