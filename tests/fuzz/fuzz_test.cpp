// 1,000 random graphs: what they print is what they parse, every pass is idempotent, and the CPU backend gives what the
// fp64 reference gives, with planned memory bit for bit what it gives with a buffer per value, fused and unfused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>

#include "codegen/cuda/join/nodes.h"
#include "ir/error.h"
#include "ir/op.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/canonicalize.h"
#include "passes/fusion/grow.h"
#include "passes/memory_plan.h"
#include "passes/pipeline.h"
#include "passes/precision.h"
#include "runtime/compile.h"
#include "tests/fuzz/generator.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

using ir::Graph;
using testing::kFirstSeed;

constexpr double kTolerance = 1e-5;

struct Leaves {
  ir::TensorMap inputs, states;
};

Leaves leaves_of(const Graph& graph, uint64_t seed) {
  return {testing::random_leaves(graph, ir::Op::input, seed), testing::random_leaves(graph, ir::Op::state, seed + 1)};
}

/// The worst disagreement of two sets of tensors, as a message; nothing when all agree to `tolerance`.
std::optional<std::string> difference(const ir::TensorMap& got, const ir::TensorMap& want, double tolerance) {
  double largest = 0;
  for (const auto& [name, tensor] : want) {
    for (double x : tensor.data) {
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    }
  }
  for (const auto& [name, tensor] : want) {
    const double error = ir::relative_error(got.at(name).data, tensor.data, largest);
    if (!(error <= tolerance)) return fmt::format("\"{}\" differs by {:.3g}", name, error);
  }
  return std::nullopt;
}

std::optional<std::string> difference(const ir::ReferenceResult& got, const ir::ReferenceResult& want,
                                      double tolerance) {
  if (auto d = difference(got.outputs, want.outputs, tolerance)) return d;
  return difference(got.states, want.states, tolerance);
}

/// The graph through passes, plan and lowering, run for two steps: the second runs over what the first left behind.
testing::CpuRun run_on_cpu(const Graph& graph, const Leaves& leaves, const runtime::CompileSettings& settings) {
  const auto executor = runtime::compile(graph, {}, 2, settings);
  return testing::run(*executor, leaves.inputs, leaves.states, 2);
}

ir::ReferenceResult decoded(const Graph& graph, const testing::CpuRun& run) {
  ir::ReferenceResult result;
  for (const auto& n : graph.outputs()) {
    result.outputs[n.name] = testing::decode(graph.type(n.value), run.outputs.at(n.name));
  }
  for (int id : graph.leaves(ir::Op::state)) {
    const auto& name = graph.node(id).as<ir::LeafAttrs>().name;
    result.states[name] = testing::decode(graph.node(id).types[0], run.states.at(name));
  }
  return result;
}

Graph run_pipeline(const Graph& graph) {
  const ir::Options options;
  return passes::run_pipeline(graph, {}, {&options});
}

/// What is wrong with the graph, or nothing.
using Property = std::optional<std::string> (*)(const Graph&, uint64_t seed);

std::optional<std::string> text_round_trip(const Graph& graph, uint64_t) {
  const std::string text = ir::print(graph);
  if (ir::print(ir::parse(text)) != text) return "its text changes when parsed and printed";
  const std::string optimized = ir::print(run_pipeline(graph));
  if (ir::print(ir::parse(optimized)) != optimized) return "the pipeline's text changes when parsed and printed";
  return std::nullopt;
}

std::optional<std::string> pipeline_is_idempotent(const Graph& graph, uint64_t) {
  const Graph once = run_pipeline(graph);
  if (ir::print(run_pipeline(once)) != ir::print(once)) return "the pipeline changes its own result";
  return std::nullopt;
}

std::optional<std::string> pipeline_keeps_the_meaning(const Graph& graph, uint64_t seed) {
  const Leaves leaves = leaves_of(graph, seed);
  return difference(ir::run_reference(run_pipeline(graph), leaves.inputs, leaves.states),
                    ir::run_reference(graph, leaves.inputs, leaves.states), 1e-9);
}

std::optional<std::string> cpu_agrees_with_the_reference(const Graph& graph, uint64_t seed) {
  const Leaves leaves = leaves_of(graph, seed);
  auto want = ir::run_reference(graph, leaves.inputs, leaves.states);
  want = ir::run_reference(graph, leaves.inputs, want.states);
  for (bool fuse : {true, false}) {
    const auto got = decoded(graph, run_on_cpu(graph, leaves, {.fuse = fuse}));
    if (auto d = difference(got, want, kTolerance)) return (fuse ? "fused: " : "unfused: ") + *d;
  }
  return std::nullopt;
}

std::optional<std::string> planned_memory_keeps_the_bits(const Graph& graph, uint64_t seed) {
  const Leaves leaves = leaves_of(graph, seed);
  const auto fresh = run_on_cpu(graph, leaves, {.reuse_memory = false});
  const auto planned = run_on_cpu(graph, leaves, {.reuse_memory = true});
  for (const auto& [name, bytes] : fresh.outputs) {
    if (planned.outputs.at(name) != bytes) return fmt::format("output \"{}\" has other bits", name);
  }
  for (const auto& [name, bytes] : fresh.states) {
    if (planned.states.at(name) != bytes) return fmt::format("state \"{}\" has other bits", name);
  }
  return std::nullopt;
}

/// What is fused for a GPU, its equal nodes brought together, in the memory that they then have.
std::optional<std::string> joined_nodes_keep_the_bits(const Graph& graph, uint64_t seed) {
  const Leaves leaves = leaves_of(graph, seed);
  const ir::DeviceSpec& device = *ir::find_device_spec("h100");
  const Graph fused = passes::run_pipeline(graph, device, {});
  const auto joined = codegen::cuda::join_equal_nodes(fused, device);
  const auto run = [&](const Graph& of, const passes::MemoryPlan& memory) {
    return testing::run(*testing::lower(of, memory, {}), leaves.inputs, leaves.states, 2);
  };
  const auto apart = run(fused, passes::plan_memory(fused)), together = run(joined.graph, joined.memory);
  if (together.outputs != apart.outputs) return "an output has other bits";
  if (together.states != apart.states) return "a state has other bits";
  ir::ReferenceResult want = ir::run_reference(graph, leaves.inputs, leaves.states);
  want = ir::run_reference(graph, leaves.inputs, want.states);
  return difference(decoded(graph, together), want, kTolerance);
}

/// The graph as a precision rounds it, unfused: what the fused kernels must compute.
Graph rounded(const Graph& graph, passes::Precision precision) {
  return passes::run_pipeline(graph, {}, {.fuse = false, .precision = precision});
}

std::optional<std::string> precision_is_idempotent(const Graph& graph, uint64_t) {
  for (const auto precision : {passes::Precision::tf32, passes::Precision::bf16}) {
    passes::Fuel fuel;
    const ir::DeviceSpec device;
    passes::PassContext context{device, fuel};
    const Graph once = rounded(graph, precision);
    if (passes::set_precision(once, context, precision).changed) {
      return fmt::format("{} rounds what it has rounded", to_string(precision));
    }
    const Graph fused = passes::run_pipeline(graph, {}, {.precision = precision});
    if (ir::print(passes::run_pipeline(fused, {}, {.precision = precision})) != ir::print(fused)) {
      return fmt::format("the {} pipeline changes its own result", to_string(precision));
    }
  }
  return std::nullopt;
}

/// Whatever the fuel, the graph stays one (the pipeline verifies it).
std::optional<std::string> rounding_may_stop_anywhere(const Graph& graph, uint64_t seed) {
  ir::Options options;
  options.disable = {"canonicalize", "fuse"};
  for (const auto precision : {passes::Precision::tf32, passes::Precision::bf16}) {
    options.fuel = static_cast<int64_t>(seed % 7);
    passes::run_pipeline(graph, {}, {.options = &options, .precision = precision});
  }
  return std::nullopt;
}

passes::Precision precision_of(uint64_t seed) {
  return seed % 2 == 0 ? passes::Precision::bf16 : passes::Precision::tf32;
}

std::optional<std::string> fusing_keeps_the_rounding(const Graph& graph, uint64_t seed) {
  const Leaves leaves = leaves_of(graph, seed);
  const Graph fused = passes::run_pipeline(graph, {}, {.precision = precision_of(seed)});
  return difference(ir::run_reference(fused, leaves.inputs, leaves.states),
                    ir::run_reference(rounded(graph, precision_of(seed)), leaves.inputs, leaves.states), 1e-9);
}

/// A sum in f32 and the same in fp64 may round to neighbours, which are 2^-8 apart in bf16 and 2^-10 in tf32; what
/// follows may make a little more of it.
std::optional<std::string> cpu_agrees_with_the_rounded_reference(const Graph& graph, uint64_t seed) {
  const Leaves leaves = leaves_of(graph, seed);
  const passes::Precision precision = precision_of(seed);
  const double tolerance = precision == passes::Precision::bf16 ? 0x1p-6 : 0x1p-8;
  const Graph passed = rounded(graph, precision);
  auto want = ir::run_reference(passed, leaves.inputs, leaves.states);
  want = ir::run_reference(passed, leaves.inputs, want.states);
  for (bool fuse : {true, false}) {
    const auto got = decoded(graph, run_on_cpu(graph, leaves, {.fuse = fuse, .precision = precision}));
    if (auto d = difference(got, want, tolerance)) return (fuse ? "fused: " : "unfused: ") + *d;
  }
  return std::nullopt;
}

// Sanitizers look for bad accesses, which the first graphs show as well, at several times the cost.
#ifdef __SANITIZE_ADDRESS__
constexpr int kShare = 4;
#else
constexpr int kShare = 1;
#endif

struct FuzzCase {
  const char* name;
  Property property;
  int graphs = 1000;
};
class Fuzz : public ::testing::TestWithParam<FuzzCase> {};

TEST_P(Fuzz, RandomGraphs) {
  const auto& [name, property, all_graphs] = GetParam();
  const int graphs = all_graphs / kShare;
  // A property that throws fails too.
  auto check = [&](const Graph& graph, uint64_t seed) -> std::optional<std::string> {
    try {
      return property(graph, seed);
    } catch (const std::exception& e) {
      return std::string("throws: ") + e.what();
    }
  };
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + graphs; ++seed) {
    const Graph graph = testing::random_graph(seed, 4 + static_cast<int>(seed % 12));
    const auto wrong = check(graph, seed);
    if (!wrong) continue;
    const Graph small = testing::shrink(graph, [&](const Graph& g) { return check(g, seed).has_value(); });
    FAIL() << "seed " << seed << ": " << *wrong << "\nshrunk to (" << check(small, seed).value_or("passes now") << ")\n"
           << ir::print(small);
  }
  fmt::print("seeds {} to {}\n", kFirstSeed, kFirstSeed + graphs - 1);
}

INSTANTIATE_TEST_SUITE_P(All, Fuzz,
                         ::testing::Values(FuzzCase{"TextRoundTrip", &text_round_trip},
                                           FuzzCase{"PipelineIsIdempotent", &pipeline_is_idempotent},
                                           FuzzCase{"PipelineKeepsTheMeaning", &pipeline_keeps_the_meaning, 3000},
                                           FuzzCase{"CpuAgreesWithTheReference", &cpu_agrees_with_the_reference},
                                           FuzzCase{"PlannedMemoryKeepsTheBits", &planned_memory_keeps_the_bits},
                                           FuzzCase{"JoinedNodesKeepTheBits", &joined_nodes_keep_the_bits},
                                           FuzzCase{"PrecisionIsIdempotent", &precision_is_idempotent},
                                           FuzzCase{"RoundingMayStopAnywhere", &rounding_may_stop_anywhere},
                                           FuzzCase{"FusingKeepsTheRounding", &fusing_keeps_the_rounding},
                                           FuzzCase{"CpuAgreesWithTheRoundedReference",
                                                    &cpu_agrees_with_the_rounded_reference}),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(Shrink, FindsTheOneNodeThatMatters) {
  const Graph graph = testing::random_graph(kFirstSeed + 14, 30);
  auto has_node = [](ir::Op op) {
    return [op](const Graph& g) {
      for (int id = 0; id < g.size(); ++id) {
        if (g.node(id).op == op) return true;
      }
      return false;
    };
  };
  std::set<ir::Op> ops;
  for (int id = 0; id < graph.size(); ++id) ops.insert(graph.node(id).op);
  ASSERT_GE(ops.size(), 10u);
  for (ir::Op op : ops) {
    const Graph small = testing::shrink(graph, has_node(op));
    EXPECT_LE(small.size(), 4) << ir::print(small);
    EXPECT_TRUE(has_node(op)(small));
  }
}

}  // namespace
}  // namespace difuse
