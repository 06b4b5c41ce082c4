// The fuzzer's graphs on a GPU: fused and unfused against the fp64 reference, node by node in lower precisions, and
// planned memory against fresh memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ir/text.h"
#include "runtime/compile.h"
#include "tests/fuzz/generator.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/gpu.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

using codegen::cuda::CudaPlan;
using passes::Precision;
using testing::kFirstSeed;

constexpr int kCudaGraphs = 80;

struct Case {
  uint64_t seed;
  ir::Graph graph;
  ir::TensorMap inputs, states;
  std::string text() const { return fmt::format("seed {}\n{}", seed, ir::print(graph)); }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kCudaGraphs; ++seed) {
    Case c{seed, testing::random_graph(seed, 4 + static_cast<int>(seed % 12)), {}, {}};
    c.inputs = testing::random_leaves(c.graph, ir::Op::input, seed);
    c.states = testing::random_leaves(c.graph, ir::Op::state, seed + 1);
    all.push_back(std::move(c));
  }
  return all;
}

std::vector<CudaPlan> plans(const runtime::Target& gpu, const std::vector<Case>& all,
                            const runtime::CompileSettings& settings) {
  std::vector<CudaPlan> made;
  for (const Case& c : all) made.push_back(runtime::plan_cuda(c.graph, {}, gpu.spec(), settings));
  testing::compile_together(gpu, made);
  return made;
}

/// Two steps against the reference's two steps.
void expect_near(const Case& c, const testing::CpuRun& got) {
  ir::ReferenceResult want = ir::run_reference(c.graph, c.inputs, c.states);
  want = ir::run_reference(c.graph, c.inputs, want.states);
  const auto compare = [&](const ir::TensorMap& tensors, const std::map<std::string, testing::Bytes>& bytes) {
    double largest = 0;
    for (const auto& [name, tensor] : tensors) {
      for (double x : tensor.data) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
    }
    for (const auto& [name, tensor] : tensors) {
      const double error = ir::relative_error(testing::decode(tensor.type, bytes.at(name)).data, tensor.data, largest);
      EXPECT_LE(error, 1e-5) << name << " of " << c.text();
    }
  };
  compare(want.outputs, got.outputs);
  compare(want.states, got.states);
}

TEST(GpuFuzz, AgreesWithTheReferenceInF32) {
  DIFUSE_NEED_GPU(gpu);
  const std::vector<Case> all = cases();
  for (const bool fuse : {true, false}) {
    SCOPED_TRACE(fuse ? "fused" : "unfused");
    const auto planned = plans(gpu, all, {.fuse = fuse}),
               fresh = plans(gpu, all, {.fuse = fuse, .reuse_memory = false});
    for (size_t i = 0; i < all.size() && !::testing::Test::HasFailure(); ++i) {
      const auto executor = testing::execute(gpu, planned[i]);
      const testing::CpuRun got = testing::run(*executor, all[i].inputs, all[i].states, 2);
      expect_near(all[i], got);
      testing::expect_same(testing::run(*executor, all[i].inputs, all[i].states, 2), got, "replayed: " + all[i].text());
      testing::expect_same(testing::run(*testing::execute(gpu, fresh[i]), all[i].inputs, all[i].states, 2), got,
                           "fresh memory: " + all[i].text());
    }
  }
}

TEST(GpuFuzz, NodesAgreeInLowerPrecisions) {
  DIFUSE_NEED_GPU(gpu);
  const std::vector<Case> all = cases();
  for (const Precision precision : {Precision::tf32, Precision::bf16}) {
    runtime::CompileSettings settings;
    settings.precision = precision;
    const auto planned = plans(gpu, all, settings);
    for (size_t i = 0; i < all.size() && !::testing::Test::HasFailure(); ++i) {
      const auto executor = testing::execute(gpu, planned[i]);
      for (const auto& [name, t] : all[i].inputs) executor->write_input(name, testing::encode(t));
      for (const auto& [name, t] : all[i].states) executor->write_state(name, testing::encode(t));
      SCOPED_TRACE(std::string(passes::to_string(precision)) + ", " + all[i].text());
      testing::expect_nodes_agree(*executor);
    }
  }
}

}  // namespace
}  // namespace difuse
