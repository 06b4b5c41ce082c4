#include "passes/memory_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ir/error.h"
#include "ir/op.h"
#include "ir/text.h"
#include "passes/pipeline.h"
#include "tests/support/graphs/graphs.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

/// Runs a plan with labels in place of numbers: every byte of the arena holds the label of the element that was last
/// written there, and each node checks that its operands are where the plan says before it writes its results.
class LabelledRun {
 public:
  LabelledRun(const Graph& graph, const MemoryPlan& plan) : graph_(graph), plan_(plan) {}

  /// Two steps, the second without what runs once.
  void run() {
    arena_.assign(static_cast<size_t>(plan_.arena_bytes), 0);
    for (int id = 0; id < graph_.size(); ++id) {
      if (ir::has_trait(graph_.node(id), ir::kLeaf)) write({id, 0});
    }
    step(0);
    for (const ir::NamedValue& n : graph_.updates()) write(graph_.find_state(n.name));
    for (const int id : graph_.leaves(Op::input)) write({id, 0});
    step(plan_.once_end);
  }

 private:
  void step(int first) {
    const auto live = graph_.live();
    for (int id = first; id < graph_.size(); ++id) {
      const Node& node = graph_.node(id);
      if (!live[static_cast<size_t>(id)] || ir::has_trait(node, ir::kLeaf)) continue;
      for (Value v : node.operands) expect_there(v, id);
      check_overlaps(id);
      for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
        if (plan_.at({id, r}).placed()) write({id, r});
      }
      expect_none_was_first(id);
    }
    for (const ir::NamedValue& n : graph_.updates()) expect_there(n.value, graph_.size());
    for (const StateCopy& copy : plan_.state_copies) {
      const auto labels = labels_of(copy.from);
      expect_there(copy.from, graph_.size());
      put(labels, plan_.at(graph_.find_state(copy.state)).offset);
    }
    for (const ir::NamedValue& n : graph_.outputs()) expect_there(n.value, graph_.size());
    for (const ir::NamedValue& n : graph_.updates()) {
      expect_at(labels_of(n.value), plan_.at(graph_.find_state(n.name)).offset, "the next value of " + n.name);
    }
  }

  /// One label a byte. What a reshape, a view or a pack holds are its operand's bytes; 0 marks a pack's gap.
  std::vector<int64_t> labels_of(Value v) const {
    const Node& node = graph_.node(v);
    const int64_t bytes = graph_.type(v).bytes();
    if (node.op == Op::reshape) return labels_of(node.operands[0]);
    if (node.op == Op::view) {
      const auto whole = labels_of(node.operands[0]);
      const auto begin = whole.begin() + node.as<ir::ViewAttrs>().offset * ir::size_of(node.types[0].dtype);
      return {begin, begin + bytes};
    }
    std::vector<int64_t> labels(static_cast<size_t>(bytes), 0);
    if (node.op == Op::pack) {
      for (size_t i = 0; i < node.operands.size(); ++i) {
        const int64_t begin = node.as<ir::PackAttrs>().offsets[i] * ir::size_of(node.types[0].dtype);
        std::ranges::copy(labels_of(node.operands[i]), labels.begin() + begin);
      }
    } else {
      for (int64_t i = 0; i < bytes; ++i) {
        labels[static_cast<size_t>(i)] = ((static_cast<int64_t>(v.node) * 8 + v.result + 1) << 32) + i;
      }
    }
    return labels;
  }

  /// After the last of several nodes that run at once: each might have read only now, and nothing has hit the results.
  void expect_none_was_first(int last) {
    for (const NodeRange& range : plan_.together) {
      if (range.last != last) continue;
      for (int id = range.first; id <= range.last; ++id) {
        for (Value v : graph_.node(id).operands) expect_there(v, id);
        for (int r = 0; r < static_cast<int>(graph_.node(id).types.size()); ++r) {
          if (plan_.at({id, r}).placed()) expect_there({id, r}, id);
        }
      }
    }
  }

  void put(const std::vector<int64_t>& labels, int64_t offset) {
    ASSERT_LE(offset + std::ssize(labels), plan_.arena_bytes);
    std::ranges::copy(labels, arena_.begin() + offset);
  }
  void write(Value v) { put(labels_of(v), plan_.at(v).offset); }

  void expect_there(Value v, int reader) {
    ASSERT_TRUE(plan_.at(v).placed()) << "%" << v.node << " is read by %" << reader;
    EXPECT_EQ(plan_.at(v).bytes, graph_.type(v).bytes());
    expect_at(labels_of(v), plan_.at(v).offset, "%" + std::to_string(v.node) + " for %" + std::to_string(reader));
  }
  void expect_at(const std::vector<int64_t>& labels, int64_t offset, const std::string& what) {
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] == 0) continue;
      ASSERT_EQ(arena_[static_cast<size_t>(offset) + i], labels[i]) << what << ", byte " << i << "\n"
                                                                    << ir::print(graph_);
    }
  }

  /// A result may touch an operand's bytes only when it lies exactly there and the op goes element by element.
  void check_overlaps(int id) {
    const Node& node = graph_.node(id);
    if (ir::has_trait(node, ir::kView)) return;
    for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
      const Placement& to = plan_.at({id, r});
      if (!to.placed()) continue;
      for (int s = 0; s < r; ++s) {
        const Placement& other = plan_.at({id, s});
        EXPECT_FALSE(other.placed() && overlap(to, other)) << "two results of %" << id;
      }
      for (Value v : node.operands) {
        if (!overlap(to, plan_.at(v))) continue;
        EXPECT_EQ(to, plan_.at(v)) << "%" << id;
        EXPECT_TRUE(ir::has_trait(node, ir::kElementwise) || node.op == Op::fusion) << "%" << id;
      }
    }
  }
  static bool overlap(const Placement& a, const Placement& b) {
    return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  }

  const Graph& graph_;
  const MemoryPlan& plan_;
  std::vector<int64_t> arena_;
};

MemoryPlan check(const Graph& graph, MemoryOptions options = {}) {
  const MemoryPlan plan = plan_memory(graph, options);
  LabelledRun(graph, plan).run();
  EXPECT_LE(plan.arena_bytes, plan.tensor_bytes);
  for (int id = 0; id < graph.size(); ++id) {
    for (int r = 0; r < static_cast<int>(graph.node(id).types.size()); ++r) {
      const bool view = ir::has_trait(graph.node(id), ir::kView);
      const Placement& p = plan.at({id, r});
      if (p.placed() && !view && p.offset % kArenaAlignment != 0) {
        // Only a part of a packed vector, or what was made in one's place, starts elsewhere.
        EXPECT_NE(ir::print(graph).find("pack"), std::string::npos);
      }
    }
  }
  return plan;
}

Graph graph_of(const std::string& text) { return ir::parse("graph g {\n" + text + "\n}\n"); }

TEST(MemoryPlan, AChainOfElementwiseOpsNeedsOnePlace) {
  const Graph graph = graph_of(R"(
    %0 = input {name = "x", dtype = f32, shape = [100]} : f32[100]
    %1 = exp %0 : f32[100]
    %2 = neg %1 : f32[100]
    %3 = add %2, %1 : f32[100]
    %4 = mul %3, %3 : f32[100]
    output "y" = %4)");
  const MemoryPlan plan = check(graph);
  EXPECT_EQ(plan.arena_bytes, 3 * 512);  // x, and two: exp is read again after neg.
  EXPECT_EQ(plan.tensor_bytes, 5 * 512);
  EXPECT_EQ(plan.at({3, 0}), plan.at({2, 0}));
  EXPECT_EQ(plan.at({4, 0}), plan.at({3, 0}));
  EXPECT_NE(plan.at({1, 0}), plan.at({0, 0})) << "an input was overwritten";
}

TEST(MemoryPlan, WithoutReuseEveryValueHasItsOwnBytes) {
  const Graph graph = tests::norm_block(2, 8, 8, 8, 2);
  const MemoryPlan plan = check(graph, {.reuse = false});
  EXPECT_EQ(plan.arena_bytes, plan.tensor_bytes);
  EXPECT_LT(check(graph).arena_bytes, plan.arena_bytes / 2);
}

TEST(MemoryPlan, AFusionThatReadsASliceIsInPlaceOfOthers) {
  const auto graph = [](const char* sliced) {
    return graph_of(fmt::format(R"(
      %0 = input {{name = "x", dtype = f32, shape = [64, 2]}} : f32[64, 2]
      %1 = input {{name = "both", dtype = f32, shape = [64, 4]}} : f32[64, 4]
      %2 = exp %0 : f32[64, 2]
      %3 = fusion %2, %1 {{hero = pointwise, body = graph body {{
        %0 = input {{name = "0", dtype = f32, shape = [64, 2]}} : f32[64, 2]
        %1 = input {{name = "1", dtype = f32, shape = [64, 4]}} : f32[64, 4]
        {}
        output "0" = %5
      }}}} : f32[64, 2]
      output "y" = %3)",
                                sliced));
  };
  const Graph whole = graph(R"(%4 = slice %1 {axis = 1, begin = 1, end = 3} : f32[64, 2]
        %5 = add %0, %4 : f32[64, 2])");
  const MemoryPlan plan = check(whole);
  EXPECT_EQ(plan.at({3, 0}), plan.at({2, 0}));
  // Row i + 1 is read where row i is written.
  const Graph shifted = graph(R"(%2 = neg %0 : f32[64, 2]
        %3 = slice %2 {axis = 0, begin = 1, end = 64} : f32[63, 2]
        %4 = pad %3 {axis = 0, before = 0, after = 1} : f32[64, 2]
        %5 = add %0, %4 : f32[64, 2])");
  const MemoryPlan other = check(shifted);
  EXPECT_NE(other.at({3, 0}), other.at({2, 0}));
}

TEST(MemoryPlan, NodesThatRunAtOnceShareNoPlace) {
  const Graph graph = graph_of(R"(
    %0 = input {name = "x", dtype = f32, shape = [100]} : f32[100]
    %1 = state {name = "s", dtype = f32, shape = [100]} : f32[100]
    %2 = exp %0 : f32[100]
    %3 = sin %0 : f32[100]
    %4 = neg %2 : f32[100]
    %5 = neg %3 : f32[100]
    %6 = neg %1 : f32[100]
    %7 = add %4, %5 : f32[100]
    output "y" = %7
    update "s" = %6)");
  const MemoryPlan apart = check(graph);
  EXPECT_EQ(apart.at({4, 0}), apart.at({2, 0}));
  EXPECT_EQ(apart.at({6, 0}), apart.at({1, 0}));
  const MemoryPlan plan = check(graph, {.together = {{4, 6}}});
  EXPECT_NE(plan.at({4, 0}), plan.at({2, 0}));
  EXPECT_NE(plan.at({5, 0}), plan.at({3, 0}));
  EXPECT_EQ(plan.together, (std::vector<NodeRange>{{4, 6}}));
  EXPECT_EQ(plan.state_copies.size(), 1u) << "the old value may be read while the new one is made";
}

TEST(MemoryPlan, AnOutputIsNotOverwritten) {
  const Graph graph = graph_of(R"(
    %0 = input {name = "x", dtype = f32, shape = [100]} : f32[100]
    %1 = exp %0 : f32[100]
    %2 = neg %1 : f32[100]
    output "a" = %1
    output "b" = %2)");
  const MemoryPlan plan = check(graph);
  EXPECT_NE(plan.at({2, 0}), plan.at({1, 0}));
}

TEST(MemoryPlan, AReductionIsNotInPlace) {
  const Graph graph = graph_of(R"(
    %0 = input {name = "x", dtype = f32, shape = [8, 1]} : f32[8, 1]
    %1 = exp %0 : f32[8, 1]
    %2 = reduce_sum %1 {axes = [1]} : f32[8]
    output "y" = %2)");
  const MemoryPlan plan = check(graph);
  EXPECT_NE(plan.at({2, 0}).offset, plan.at({1, 0}).offset);
}

TEST(MemoryPlan, FusionsAreInPlaceOnlyWhereTheyReadElementByElement) {
  const Graph graph = graph_of(R"(
    %0 = input {name = "x", dtype = f32, shape = [4, 4]} : f32[4, 4]
    %1 = exp %0 : f32[4, 4]
    %2 = fusion %1 {hero = reduction, body = graph body {
      %0 = input {name = "0", dtype = f32, shape = [4, 4]} : f32[4, 4]
      %1 = neg %0 : f32[4, 4]
      %2 = reduce_sum %1 {axes = [0]} : f32[4]
      output "0" = %1
      output "1" = %2
    }} : f32[4, 4], f32[4]
    %3 = exp %2.1 : f32[4]
    %4 = fusion %2.0, %3 {hero = pointwise, body = graph body {
      %0 = input {name = "0", dtype = f32, shape = [4, 4]} : f32[4, 4]
      %1 = input {name = "1", dtype = f32, shape = [4]} : f32[4]
      %2 = broadcast %1 {shape = [4, 4], dims = [1]} : f32[4, 4]
      %3 = add %0, %2 : f32[4, 4]
      %4 = neg %1 : f32[4]
      output "0" = %3
      output "1" = %4
    }} : f32[4, 4], f32[4]
    output "y" = %4.0
    output "z" = %4.1)");
  const MemoryPlan plan = check(graph);
  EXPECT_EQ(plan.at({2, 0}), plan.at({1, 0}));
  EXPECT_EQ(plan.at({4, 0}), plan.at({2, 0}));
  EXPECT_NE(plan.at({4, 1}), plan.at({3, 0})) << "the small operand is read again for every row";
}

TEST(MemoryPlan, AFusionThatDrawsIsInPlaceOfWhatTheDrawDoesNotRead) {
  const Graph graph = graph_of(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 8]} : f32[2, 8]
    %1 = input {name = "seed", dtype = u32, shape = [2]} : u32[2]
    %2 = input {name = "step", dtype = i32, shape = []} : i32[]
    %3 = input {name = "index", dtype = i32, shape = [2]} : i32[2]
    %4 = exp %0 : f32[2, 8]
    %5 = neg %3 : i32[2]
    %6 = fusion %4, %1, %5, %2 {hero = pointwise, body = graph body {
      %0 = input {name = "0", dtype = f32, shape = [2, 8]} : f32[2, 8]
      %1 = input {name = "1", dtype = u32, shape = [2]} : u32[2]
      %2 = input {name = "2", dtype = i32, shape = [2]} : i32[2]
      %3 = input {name = "3", dtype = i32, shape = []} : i32[]
      %4 = random_normal %1, %2, %3 {stream = 1, shape = [8]} : f32[2, 8]
      %5 = add %0, %4 : f32[2, 8]
      output "0" = %5
    }} : f32[2, 8]
    output "y" = %6)");
  const MemoryPlan plan = check(graph);
  EXPECT_EQ(plan.at({6, 0}), plan.at({4, 0}));
}

TEST(MemoryPlan, AnEpilogueIsInPlaceOfWhatTheContractionDoesNotRead) {
  const Graph graph = ir::parse(R"(graph g {
    %0 = input {name = "a", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
    %1 = input {name = "w", dtype = f32, shape = [8, 3, 3, 8]} : f32[8, 3, 3, 8]
    %2 = neg %0 : f32[2, 4, 4, 8]
    %3 = exp %0 : f32[2, 4, 4, 8]
    %4 = fusion %2, %1, %3 {hero = conv, body = graph body {
      %0 = input {name = "0", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
      %1 = input {name = "1", dtype = f32, shape = [8, 3, 3, 8]} : f32[8, 3, 3, 8]
      %2 = input {name = "2", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
      %3 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 8]
      %4 = add %3, %2 : f32[2, 4, 4, 8]
      output "0" = %4
    }} : f32[2, 4, 4, 8]
    %5 = fusion %4, %1 {hero = conv, body = graph body {
      %0 = input {name = "0", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
      %1 = input {name = "1", dtype = f32, shape = [8, 3, 3, 8]} : f32[8, 3, 3, 8]
      %2 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 8]
      %3 = add %2, %0 : f32[2, 4, 4, 8]
      output "0" = %3
    }} : f32[2, 4, 4, 8]
    output "y" = %5
  })");
  const MemoryPlan plan = check(graph);
  EXPECT_EQ(plan.at({4, 0}), plan.at({3, 0})) << "the epilogue's own operand";
  EXPECT_NE(plan.at({5, 0}).offset, plan.at({4, 0}).offset) << "the convolution reads it too";
}

TEST(MemoryPlan, AnEpilogueWithReductionsIsInPlaceOfWhatTheyReadThroughAResult) {
  const Graph graph = ir::parse(R"(graph g {
    %0 = input {name = "a", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
    %1 = input {name = "w", dtype = f32, shape = [8, 3, 3, 8]} : f32[8, 3, 3, 8]
    %2 = exp %0 : f32[2, 4, 4, 8]
    %3 = neg %0 : f32[2, 4, 4, 8]
    %4 = fusion %0, %1, %2 {hero = conv, body = graph body {
      %0 = input {name = "0", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
      %1 = input {name = "1", dtype = f32, shape = [8, 3, 3, 8]} : f32[8, 3, 3, 8]
      %2 = input {name = "2", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
      %3 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 8]
      %4 = add %3, %2 : f32[2, 4, 4, 8]
      %5 = channel_moments %4 : f32[2, 1, 8], f32[2, 1, 8]
      output "0" = %4
      output "1" = %5.0
    }} : f32[2, 4, 4, 8], f32[2, 1, 8]
    %5 = fusion %4.0, %1, %3 {hero = conv, body = graph body {
      %0 = input {name = "0", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
      %1 = input {name = "1", dtype = f32, shape = [8, 3, 3, 8]} : f32[8, 3, 3, 8]
      %2 = input {name = "2", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
      %3 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 8]
      %4 = mul %3, %2 : f32[2, 4, 4, 8]
      %5 = reduce_sum %4 {axes = [1, 2]} : f32[2, 8]
      output "0" = %3
      output "1" = %5
    }} : f32[2, 4, 4, 8], f32[2, 8]
    output "mean" = %4.1
    output "y" = %5.0
    output "sum" = %5.1
  })");
  const MemoryPlan plan = check(graph);
  EXPECT_EQ(plan.at({4, 0}), plan.at({2, 0}));
  EXPECT_NE(plan.at({5, 0}).offset, plan.at({3, 0}).offset) << "the sum may be made after the result";
}

TEST(MemoryPlan, AFusionWithMomentsReadsTwiceAndIsNotInPlace) {
  const Graph graph = graph_of(R"(
    %0 = input {name = "x", dtype = f32, shape = [1, 8, 8, 2]} : f32[1, 8, 8, 2]
    %1 = exp %0 : f32[1, 8, 8, 2]
    %2 = fusion %1 {hero = reduction, body = graph body {
      %0 = input {name = "0", dtype = f32, shape = [1, 8, 8, 2]} : f32[1, 8, 8, 2]
      %1 = neg %0 : f32[1, 8, 8, 2]
      %2 = channel_moments %1 : f32[1, 1, 2], f32[1, 1, 2]
      output "0" = %1
      output "1" = %2.0
    }} : f32[1, 8, 8, 2], f32[1, 1, 2]
    output "y" = %2.0
    output "mean" = %2.1)");
  const MemoryPlan plan = check(graph);
  EXPECT_NE(plan.at({2, 0}), plan.at({1, 0}));
}

TEST(MemoryPlan, ViewsAndReshapesLieInTheirOperand) {
  const Graph graph = graph_of(R"(
    %0 = state {name = "params", dtype = f32, shape = [200]} : f32[200]
    %1 = view %0 {offset = 64, shape = [2, 3]} : f32[2, 3]
    %2 = reshape %1 {shape = [6]} : f32[6]
    %3 = exp %2 : f32[6]
    %4 = reshape %3 {shape = [3, 2]} : f32[3, 2]
    %5 = neg %4 : f32[3, 2]
    output "y" = %5)");
  const MemoryPlan plan = check(graph, {.once = false});
  EXPECT_EQ(plan.at({1, 0}).offset, plan.at({0, 0}).offset + 256);
  EXPECT_EQ(plan.at({2, 0}), plan.at({1, 0}));
  EXPECT_EQ(plan.at({4, 0}), plan.at({3, 0}));
  EXPECT_EQ(plan.at({5, 0}), plan.at({3, 0})) << "in place of a reshaped value that dies";
  EXPECT_EQ(plan.state_bytes, 800);
}

TEST(MemoryPlan, PackedValuesAreMadeInTheirSlices) {
  const Graph graph = graph_of(R"(
    %0 = input {name = "x", dtype = f32, shape = [8, 8]} : f32[8, 8]
    %1 = exp %0 : f32[8, 8]
    %2 = reduce_sum %1 {axes = [0]} : f32[8]
    %3 = reshape %1 {shape = [64]} : f32[64]
    %4 = pack %3, %2, %0 {size = 256, offsets = [0, 64, 128]} : f32[256]
    %5 = pack %2 {size = 8, offsets = [0]} : f32[8]
    output "packed" = %4
    output "again" = %5)");
  const MemoryPlan plan = check(graph);
  const int64_t base = plan.at({4, 0}).offset;
  EXPECT_EQ(plan.at({1, 0}).offset, base);
  EXPECT_EQ(plan.at({2, 0}).offset, base + 256);
  EXPECT_NE(plan.at({0, 0}).offset, base + 512) << "a leaf cannot move";
  EXPECT_NE(plan.at({5, 0}).offset, base + 256) << "already packed elsewhere";
}

TEST(MemoryPlan, ASliceIsFreeUntilItsPartIsMade) {
  const Graph graph = graph_of(R"(
    %0 = input {name = "x", dtype = f32, shape = [64]} : f32[64]
    %1 = exp %0 : f32[64]
    %2 = neg %0 : f32[64]
    %3 = reduce_sum %2 {axes = [0]} : f32[]
    %4 = broadcast %3 {shape = [64], dims = []} : f32[64]
    %5 = pack %4, %1 {size = 192, offsets = [0, 64]} : f32[192]
    output "packed" = %5)");
  const MemoryPlan plan = check(graph);
  EXPECT_EQ(plan.at({4, 0}).offset, plan.at({5, 0}).offset);
  EXPECT_EQ(plan.at({1, 0}).offset, plan.at({5, 0}).offset + 256);
  EXPECT_EQ(plan.at({2, 0}).offset, plan.at({4, 0}).offset) << "gone before the slice is written";
  EXPECT_EQ(plan.at({3, 0}).offset, plan.at({5, 0}).offset + 512) << "the gap is zeroed at last";
  EXPECT_EQ(plan.arena_bytes, 256 + 768);
}

TEST(MemoryPlan, AdamIsInPlace) {
  for (const bool fuse : {false, true}) {
    const Graph graph = run_pipeline(tests::adam(200), {}, {.fuse = fuse});
    const MemoryPlan plan = check(graph);
    EXPECT_TRUE(plan.state_copies.empty());
    for (const ir::NamedValue& n : graph.updates()) {
      EXPECT_EQ(plan.at(n.value), plan.at(graph.find_state(n.name))) << n.name;
    }
    EXPECT_EQ(plan.state_bytes, 4 * 800);
  }
}

TEST(MemoryPlan, AStateThatIsReadLaterIsCopied) {
  const Graph graph = graph_of(R"(
    %0 = state {name = "s", dtype = f32, shape = [16]} : f32[16]
    %1 = neg %0 : f32[16]
    %2 = reduce_sum %0 {axes = [0]} : f32[]
    output "sum" = %2
    update "s" = %1)");
  const MemoryPlan plan = check(graph);
  ASSERT_EQ(plan.state_copies.size(), 1u);
  EXPECT_EQ(plan.state_copies[0].state, "s");
  EXPECT_EQ(plan.state_copies[0].from, (Value{1, 0}));
}

TEST(MemoryPlan, AStateReadBeforeIsMadeInPlaceByAnyOp) {
  const Graph graph = graph_of(R"(
    %0 = state {name = "s", dtype = f32, shape = [4, 4]} : f32[4, 4]
    %1 = exp %0 : f32[4, 4]
    %2 = transpose %1 {perm = [1, 0]} : f32[4, 4]
    update "s" = %2)");
  const MemoryPlan plan = check(graph);
  EXPECT_TRUE(plan.state_copies.empty());
  const Graph transposed = graph_of(R"(
    %0 = state {name = "s", dtype = f32, shape = [4, 4]} : f32[4, 4]
    %1 = transpose %0 {perm = [1, 0]} : f32[4, 4]
    update "s" = %1)");
  EXPECT_EQ(check(transposed).state_copies.size(), 1u);
}

TEST(MemoryPlan, AStateMayTakeAnotherStatesOldValue) {
  const Graph graph = graph_of(R"(
    %0 = state {name = "now", dtype = f32, shape = [4]} : f32[4]
    %1 = state {name = "before", dtype = f32, shape = [4]} : f32[4]
    %2 = exp %0 : f32[4]
    update "now" = %2
    update "before" = %0)");
  const MemoryPlan plan = check(graph);
  ASSERT_EQ(plan.state_copies.size(), 2u);
  EXPECT_EQ(plan.state_copies[0].state, "before") << "the old value would be lost";
}

TEST(MemoryPlan, StatesThatExchangeTheirValuesAreRefused) {
  const Graph graph = graph_of(R"(
    %0 = state {name = "a", dtype = f32, shape = [4]} : f32[4]
    %1 = state {name = "b", dtype = f32, shape = [4]} : f32[4]
    update "a" = %1
    update "b" = %0)");
  EXPECT_THROW(plan_memory(graph), Error);
}

TEST(MemoryPlan, AnOutputThatIsAReplacedStateIsRefused) {
  const Graph graph = graph_of(R"(
    %0 = state {name = "a", dtype = f32, shape = [4]} : f32[4]
    %1 = exp %0 : f32[4]
    %2 = reshape %0 {shape = [2, 2]} : f32[2, 2]
    output "old" = %2
    update "a" = %1)");
  EXPECT_THROW(plan_memory(graph), Error);
}

TEST(MemoryPlan, UnreadResultsAreNotPlaced) {
  const Graph graph = graph_of(R"(
    %0 = input {name = "x", dtype = f32, shape = [1, 8, 8, 2]} : f32[1, 8, 8, 2]
    %1 = channel_moments %0 : f32[1, 1, 2], f32[1, 1, 2]
    %2 = exp %0 : f32[1, 8, 8, 2]
    output "mean" = %1.0)");
  const MemoryPlan plan = check(graph);
  EXPECT_TRUE(plan.at({1, 0}).placed());
  EXPECT_FALSE(plan.at({1, 1}).placed());
  EXPECT_FALSE(plan.at({2, 0}).placed()) << "dead";
}

/// A random graph over a few shapes of 64 to 192 elements, with views, packs and states.
Graph random_graph(uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&](size_t n) { return static_cast<size_t>(std::uniform_int_distribution<size_t>(0, n - 1)(random)); };
  Graph graph("random");
  ir::Builder b(graph);
  const ir::Shape shapes[] = {{64}, {128}, {8, 8}, {2, 64}, {3, 64}};
  std::vector<Value> pool;
  for (size_t i = 0; i < 3; ++i) {
    pool.push_back(b.input("x" + std::to_string(i), {ir::DType::f32, shapes[below(5)]}));
    pool.push_back(b.state("s" + std::to_string(i), {ir::DType::f32, shapes[below(5)]}));
  }
  auto pick = [&] { return pool[below(pool.size())]; };
  auto pick_like = [&](Value v) {
    for (int tries = 0; tries < 20; ++tries) {
      if (const Value w = pick(); b.type(w) == b.type(v)) return w;
    }
    return v;
  };
  std::vector<Value> computed;
  const size_t count = 5 + below(40);
  for (size_t i = 0; i < count; ++i) {
    const Value v = pick();
    const ir::Shape shape = b.shape(v);
    Value made;
    switch (below(9)) {
      case 0:
      case 1:
        made = b.exp(v);
        break;
      case 2:
      case 3:
        made = b.add(v, pick_like(v));
        break;
      case 4:
        made = b.select(pick_like(v), v, pick_like(v));
        break;
      case 5:
        made = b.broadcast(b.reduce_sum(v, {0}), shape,
                           shape.size() == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{1});
        break;
      case 6:
        made = b.reshape(v, shape.size() == 1 ? ir::Shape{shape[0] / 64, 64} : ir::Shape{b.type(v).elements()});
        break;
      case 7: {
        const Value flat = b.reshape(v, {b.type(v).elements()});
        made = b.view(flat, static_cast<int64_t>(below(2)) * (b.type(flat).elements() - 64), {8, 8});
        break;
      }
      default: {
        std::vector<Value> parts = {v, pick()};
        if (below(2) == 0) parts.push_back(pick());
        std::vector<int64_t> offsets;
        int64_t end = 0;
        for (Value part : parts) {
          offsets.push_back(end);
          end += b.type(part).elements() + static_cast<int64_t>(below(2)) * 64;
        }
        made = b.view(b.pack(parts, offsets, end), 0, shape);
      }
    }
    pool.push_back(made);
    const Op op = graph.node(made).op;
    if (op != Op::view && op != Op::reshape && !ir::has_trait(graph.node(made), ir::kLeaf)) computed.push_back(made);
  }
  for (size_t i = 0; i < 3 && !computed.empty(); ++i) {
    graph.set_output("y" + std::to_string(i), computed[below(computed.size())]);
  }
  for (size_t i = 0; i < 3; ++i) {
    const Value state = graph.find_state("s" + std::to_string(i));
    // The latest value of the type: often the state's old value is read by then.
    for (size_t j = pool.size(); j-- > 0;) {
      if (b.type(pool[j]) == b.type(state) && below(3) != 0) {
        graph.set_update("s" + std::to_string(i), pool[j]);
        break;
      }
    }
  }
  return graph;
}

TEST(MemoryPlan, NoTwoLiveValuesShareBytesOnRandomGraphs) {
  int planned = 0, refused = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph graph = random_graph(seed);
    for (const Graph& g : {graph, run_pipeline(graph, {}, {})}) {
      try {
        check(g);
        check(g, {.reuse = false});
        ++planned;
      } catch (const Error&) {  // States that exchange their values.
        ++refused;
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(planned, 20 * refused);
}

TEST(Pipeline, KeepsResultsOnRandomGraphs) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph graph = random_graph(seed);
    const Graph once = run_pipeline(graph, {}, {});
    tests::expect_same_results(graph, once, 1e-9);  // exp of exp overflows to equal infinities, sums cancel.
    EXPECT_EQ(ir::print(run_pipeline(once, {}, {})), ir::print(once)) << ir::print(graph);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(MemoryPlan, PlansTenThousandValues) {
  Graph graph;
  ir::Builder b(graph);
  std::vector<Value> values = {b.input("x", {ir::DType::f32, {64}})};
  for (int i = 0; i < 10000; ++i) {
    const Value far = values[values.size() * 3 / 4];
    values.push_back(i % 3 ? b.add(values.back(), far) : b.transpose(b.reshape(values.back(), {8, 8}), {1, 0}));
    if (i % 3 == 0) values.back() = b.reshape(values.back(), {64});
  }
  graph.set_output("y", values.back());
  const MemoryPlan plan = plan_memory(graph);
  EXPECT_LT(plan.arena_bytes, plan.tensor_bytes);
}

}  // namespace
}  // namespace difuse::passes
