// Fusions on the CPU backend: pointwise and reduction bodies, contractions with a prologue and an epilogue, results
// that lie where operands lay.
#include <gtest/gtest.h>

#include <functional>

#include "ir/builder.h"
#include "ir/op.h"
#include "passes/memory_plan.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Hero;
using ir::Shape;
using ir::Type;
using ir::Value;
using testing::CpuSettings;

Type f32(Shape shape) { return {DType::f32, std::move(shape)}; }

/// A graph of one fusion: its operands are inputs (or what `operand` makes of them), its results outputs.
struct OneFusion {
  Graph graph{"fusion"};
  std::shared_ptr<Graph> body = std::make_shared<Graph>("body");
  Builder inner{*body};
  std::vector<Value> operands;

  Value operand(const Type& type) {
    const std::string name = std::to_string(operands.size());
    operands.push_back(Builder(graph).input(name, type));
    return inner.input(name, type);
  }
  /// One that the fusion may overwrite: another node makes it and nobody else reads it.
  Value dying_operand(const Type& type) {
    const std::string name = std::to_string(operands.size());
    Builder b(graph);
    operands.push_back(b.neg(b.input(name, type)));
    return inner.input(name, type);
  }
  void result(Value v) { body->set_output(std::to_string(body->outputs().size()), v); }
  const Graph& finish(Hero hero) {
    const Value first = graph.add(ir::Op::fusion, operands, ir::FusionAttrs{hero, body});
    for (size_t r = 0; r < body->outputs().size(); ++r) {
      graph.set_output("y" + std::to_string(r), {first.node, static_cast<int32_t>(r)});
    }
    return graph;
  }
};

/// A plan may put a result where an operand lies that dies in the node, whatever the body does with both: the same bits
/// for every such pair.
void check_results_on_operands(const Graph& graph, const testing::CpuRun& want, const ir::TensorMap& inputs) {
  const passes::MemoryPlan plan = passes::plan_memory(graph, {.reuse = false});
  for (int id = 0; id < graph.size(); ++id) {
    const ir::Node& node = graph.node(id);
    if (node.op != ir::Op::fusion) continue;
    for (Value o : node.operands) {
      for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
        if (ir::has_trait(graph.node(o), ir::kLeaf) || plan.at(o).bytes != plan.at({id, r}).bytes) continue;
        passes::MemoryPlan forced = plan;
        forced.placements[static_cast<size_t>(id)][static_cast<size_t>(r)] = plan.at(o);
        const auto executor = testing::lower(graph, forced);
        testing::expect_same(want, testing::run(*executor, inputs, {}), "a result on an operand");
      }
    }
  }
}

/// Against the reference, and the same bits for any thread count and memory plan.
void check(const Graph& graph, double tolerance = 1e-5, const ir::TensorMap& states = {}) {
  const ir::TensorMap inputs = testing::random_leaves(graph, ir::Op::input, 3);
  const testing::CpuRun two = testing::run_cpu(graph, inputs, states);
  testing::expect_near_reference(graph, two, inputs, states, tolerance);
  for (const CpuSettings& s : {CpuSettings{.threads = 1}, CpuSettings{.threads = 5}, CpuSettings{.reuse_memory = false},
                               CpuSettings{.threads = 1, .reuse_memory = false}}) {
    testing::expect_same(two, testing::run_cpu(graph, inputs, states, s), "other threads or memory");
  }
  check_results_on_operands(graph, two, inputs);
}

const std::vector<Shape> kImages = {{2, 7, 7, 20}, {1, 5, 9, 3}, {13, 6, 4, 36}, {3, 28, 28, 32}, {9, 8, 8, 1}};

TEST(CpuFusion, NormaliseAndSilu) {
  for (const Shape& s : kImages) {
    OneFusion f;
    const Value x = f.operand(f32(s)), mean = f.operand(f32({s[0], s[3]})), rstd = f.operand(f32({s[0], s[3]}));
    const Value gamma = f.operand(f32({s[3]})), beta = f.operand(f32({s[3]}));
    Builder& b = f.inner;
    const Value scale = b.mul(rstd, b.broadcast_channels(gamma, {s[0], s[3]}));
    const Value z = b.add(b.mul(b.sub(x, b.broadcast_image_channels(mean, s)), b.broadcast_image_channels(scale, s)),
                          b.broadcast_channels(beta, s));
    f.result(b.silu(z));
    check(f.finish(Hero::pointwise));
  }
}

TEST(CpuFusion, NormGradient) {
  for (const Shape& s : kImages) {
    OneFusion f;
    const Value x = f.dying_operand(f32(s)), dy = f.operand(f32(s)), mean = f.dying_operand(f32({s[0], s[3]}));
    const Value rstd = f.operand(f32({s[0], s[3]})), gamma = f.operand(f32({s[3]}));
    Builder& b = f.inner;
    const Value xhat = b.mul(b.sub(x, b.broadcast_image_channels(mean, s)), b.broadcast_image_channels(rstd, s));
    const Value dz = b.mul(dy, b.sigmoid(xhat));
    f.result(b.reduce_sum(b.mul(dz, xhat), {0, 1, 2}));
    f.result(b.reduce_sum(dz, {0, 1, 2}));
    const Value scaled = b.mul(dz, b.broadcast_channels(gamma, s));
    const Value sums = b.reduce_sum(scaled, {1, 2});
    f.result(sums);
    f.result(b.sub(scaled, b.broadcast_image_channels(b.mul(sums, 1.0 / static_cast<double>(s[1] * s[2])), s)));
    check(f.finish(Hero::reduction));
  }
}

TEST(CpuFusion, StatisticsInsideTheBody) {
  for (const Shape& s : {Shape{3, 20, 9, 12}, Shape{2, 7, 7, 36}, Shape{1, 32, 32, 8}}) {
    OneFusion f;
    Builder& b = f.inner;
    const Value x = b.mul(f.dying_operand(f32(s)), 3.0);
    const auto stats = b.group_finish({b.channel_moments(x)}, {4, 1e-5, s[1], s[2]});
    f.result(b.mul(b.sub(x, b.broadcast_image_channels(stats.mean, s)), b.broadcast_image_channels(stats.rstd, s)));
    f.result(stats.rstd);
    check(f.finish(Hero::reduction), 2e-5);
  }
}

TEST(CpuFusion, GroupSumsThroughReshapes) {
  const Shape s{5, 6, 6, 24}, nc{5, 24}, grouped{5, 8, 3};
  OneFusion f;
  Builder& b = f.inner;
  const Value x = f.operand(f32(s));
  const Value sums = b.reduce_sum(b.reshape(b.reduce_sum(x, {1, 2}), grouped), {2});
  const Value spread = b.reshape(b.broadcast(sums, grouped, {0, 1}), nc);
  f.result(b.add(x, b.broadcast_image_channels(spread, s)));
  check(f.finish(Hero::reduction));
}

TEST(CpuFusion, LongVectorsWithScalars) {
  for (int64_t size : {1, 1000, 70001, 300000}) {
    OneFusion f;
    Builder& b = f.inner;
    const Shape s{size};
    const Value p = f.dying_operand(f32(s)), m = f.dying_operand(f32(s)), g = f.dying_operand(f32(s));
    const Value step = b.cast(f.operand({DType::i32, {}}), DType::f32), lr = f.operand(f32({}));
    const Value correction = b.sub(1.0, b.exp(b.mul(b.add(step, 1.0), -0.1)));
    const Value m2 = b.add(b.mul(m, 0.9), b.mul(g, 0.1));
    const Value update = b.div(b.mul(m2, b.broadcast_scalar(lr, s)), b.broadcast_scalar(correction, s));
    f.result(b.sub(p, update));
    f.result(m2);
    f.result(b.sqrt(b.sum_all(b.square(g))));
    f.result(b.sum_all(b.sub(1.0, b.is_finite(g))));
    check(f.finish(Hero::pointwise));
  }
}

TEST(CpuFusion, SumThenScaleNeedsASecondPass) {
  for (const Shape& s : {Shape{100001}, Shape{13, 6, 6, 20}, Shape{3, 9}}) {
    OneFusion f;
    Builder& b = f.inner;
    const Value x = f.dying_operand(f32(s));
    const Value y = b.exp(b.mul(x, 0.5));
    f.result(b.mul(y, b.broadcast_scalar(b.recip(b.sum_all(y)), s)));
    check(f.finish(Hero::reduction));
  }
}

TEST(CpuFusion, SoftmaxOverRows) {
  for (const Shape& s : {Shape{2, 3, 17}, Shape{1, 2, 1500}, Shape{40, 3, 5000}, Shape{300, 4}}) {
    OneFusion f;
    Builder& b = f.inner;
    const Value x = f.dying_operand(f32(s));
    const int64_t last = static_cast<int64_t>(s.size()) - 1;
    std::vector<int64_t> kept;
    for (int64_t d = 0; d < last; ++d) kept.push_back(d);
    const Value e = b.exp(b.sub(x, b.broadcast(b.reduce_max(x, {last}), s, kept)));
    f.result(b.div(e, b.broadcast(b.reduce_sum(e, {last}), s, kept)));
    check(f.finish(Hero::reduction));
  }
}

// The old value of an operand is read after the result that may take its place is made.
TEST(CpuFusion, OperandsReadAfterTheirPlaceIsTaken) {
  const Shape s{4, 5, 5, 12};
  OneFusion f;
  Builder& b = f.inner;
  const Value x = f.dying_operand(f32(s)), y = f.dying_operand(f32(s));
  const Value sum = b.add(x, y);
  f.result(sum);
  f.result(b.mul(b.mul(x, y), sum));
  f.result(y);
  check(f.finish(Hero::pointwise));

  OneFusion g;
  const Value u = g.dying_operand(f32(s)), v = g.dying_operand(f32(s));
  g.result(v);
  g.result(u);
  g.result(g.inner.add(u, 1.0));
  check(g.finish(Hero::pointwise));
}

TEST(CpuFusion, SmallOperandRepeatedAndOverwritten) {
  const Shape s{4, 5, 5, 12}, nc{4, 12};
  OneFusion f;
  Builder& b = f.inner;
  const Value x = f.dying_operand(f32(s)), m = f.dying_operand(f32(nc));
  f.result(b.add(m, 1.0));
  f.result(b.sub(x, b.broadcast_image_channels(m, s)));
  check(f.finish(Hero::pointwise));
}

TEST(CpuFusion, DtypesInBodies) {
  const Shape s{3, 6, 5, 20};
  OneFusion f;
  Builder& b = f.inner;
  const Value pixels = f.operand({DType::u8, s}), half = f.operand({DType::bf16, s});
  const Value bias = b.cast(f.operand({DType::bf16, {20}}), DType::f32), count = f.operand({DType::i32, {3}});
  const Value scale = b.cast(b.add(b.mul(count, 3.0), 16777217.0), DType::f32);
  const Value x = b.sub(b.mul(b.cast(pixels, DType::f32), 2.0 / 255), 1.0);
  const Value y = b.add(b.add(x, b.cast(half, DType::f32)), b.broadcast_channels(bias, s));
  f.result(b.cast(y, DType::bf16));
  f.result(b.mul(y, b.mul(b.broadcast(scale, s, {0}), 0x1p-24)));
  f.result(b.add(b.mul(count, 3.0), 16777217.0));
  f.result(b.cast(b.mul(y, 40.0), DType::u8));
  f.result(b.cast(b.mul(y, 40.0), DType::i32));
  f.result(b.broadcast(f.operand({DType::bf16, {3, 20}}), s, {0, 3}));
  check(f.finish(Hero::pointwise), 4e-3);  // one bf16 step where the f32 value lies on the other side of a tie
}

TEST(CpuFusion, CountersAreExact) {
  Graph graph("counter");
  Builder b(graph);
  const Value step = b.state("step", {DType::i32, {}});
  graph.set_update("step", b.add(step, 1.0));
  graph.set_output("odd", b.sub(b.mul(step, 2.0), 2147483645.0));
  const ir::TensorMap states = {{"step", ir::Tensor({DType::i32, {}}, {1073741823.0})}};
  const testing::CpuRun got = testing::run_cpu(graph, {}, states);
  EXPECT_EQ(testing::decode({DType::i32, {}}, got.states.at("step")).data[0], 1073741824.0);
  EXPECT_EQ(testing::decode({DType::i32, {}}, got.outputs.at("odd")).data[0], 1.0);
}

TEST(CpuFusion, ConvWithPrologueAndEpilogue) {
  struct Case {
    Shape x;
    int64_t k, taps, stride;
  };
  for (const Case& c : {Case{{3, 7, 7, 20}, 12, 3, 1}, Case{{9, 8, 8, 16}, 32, 3, 2}, Case{{1, 5, 9, 8}, 4, 1, 1}}) {
    OneFusion f;
    Builder& b = f.inner;
    const int64_t n = c.x[0], pad = c.taps / 2;
    const Value x = f.operand(f32(c.x)), w = f.operand(f32({c.k, c.taps, c.taps, c.x[3]}));
    const Value scale = f.operand(f32({n, c.x[3]})), shift = f.operand(f32({n, c.x[3]}));
    const Value bias = f.operand(f32({c.k})), temb = f.operand(f32({n, c.k}));
    const Value a =
        b.silu(b.add(b.mul(x, b.broadcast_image_channels(scale, c.x)), b.broadcast_image_channels(shift, c.x)));
    const Value y = b.conv_fprop(a, w, c.stride, pad);
    const Shape out = b.shape(y);
    const Value residual = f.dying_operand(f32(out));
    const Value z =
        b.add(b.add(b.add(y, b.broadcast_channels(bias, out)), b.broadcast_image_channels(temb, out)), residual);
    f.result(z);
    const auto moments = b.channel_moments(z);
    f.result(moments.mean);
    f.result(moments.m2);
    f.result(b.reduce_sum(z, {0, 1, 2}));
    check(f.finish(Hero::conv));
  }
}

TEST(CpuFusion, ConvGradientsWithPrologues) {
  for (int64_t n : {1, 3, 13}) {
    const Shape x_shape{n, 6, 5, 12}, dy_shape{n, 6, 5, 20};
    OneFusion f;
    Builder& b = f.inner;
    const Value x = b.silu(f.dying_operand(f32(x_shape)));
    const Value dy = b.mul(f.operand(f32(dy_shape)), b.broadcast_image_channels(f.operand(f32({n, 20})), dy_shape));
    f.result(b.mul(b.conv_wgrad(x, dy, {1, 1, 3, 3}), 0.5));
    f.result(b.reduce_sum(dy, {0, 1, 2}));
    const Value dx = b.conv_dgrad(dy, f.operand(f32({20, 3, 3, 12})), {1, 1, 6, 5});
    f.result(b.mul(dx, x));
    check(f.finish(Hero::conv));
  }
}

TEST(CpuFusion, MatmulWithPrologueAndEpilogue) {
  for (int64_t n : {1, 3, 13, 70}) {
    OneFusion f;
    Builder& b = f.inner;
    const Value x = b.silu(f.operand(f32({n, 48}))), w = f.dying_operand(f32({40, 48}));
    const Value y = b.add(b.matmul(x, w, false, true), b.broadcast_channels(f.operand(f32({40})), {n, 40}));
    f.result(b.silu(y));
    const Value dy = f.dying_operand(f32({n, 40}));
    f.result(b.matmul(b.mul(dy, y), x, true, false));
    check(f.finish(Hero::matmul));
  }
}

TEST(CpuFusion, RowsOfAProductSeenAsImages) {
  const Shape s{3, 10, 24};
  OneFusion f;
  Builder& b = f.inner;
  const Value x = f.operand(f32(s)), w = f.operand(f32({24, 24}));
  const Value y = b.reshape(b.matmul(b.reshape(b.mul(x, 0.5), {30, 24}), w), s);
  f.result(b.add(b.add(y, x), b.broadcast(f.operand(f32({3, 24})), s, {0, 2})));
  check(f.finish(Hero::matmul));
}

TEST(CpuFusion, SixteenBitOperandsOfContractions) {
  const Shape s{3, 6, 6, 8};
  Graph graph("narrow");
  Builder b(graph);
  const Value x = b.input("x", {DType::bf16, s}), w = b.input("w", {DType::bf16, {12, 3, 3, 8}});
  graph.set_output("conv", b.conv_fprop(x, w, 1, 1));
  graph.set_output("mean", b.channel_moments(x).mean);
  graph.set_output("pool", b.cast(b.avg_pool(x), DType::f32));
  const Value qkv = b.input("qkv", {DType::bf16, {2, 16, 24}});
  graph.set_output("attention", b.attention(qkv, {2, ir::QkvOrder::heads_first}).out);
  check(graph, 3e-3);
}

TEST(CpuFusion, MovementInsideABody) {
  const Shape s{3, 4, 6, 8}, up{3, 8, 12, 8};
  OneFusion f;
  Builder& b = f.inner;
  const Value x = b.silu(f.operand(f32(s))), w = f.operand(f32({4, 3, 3, 16}));
  const Value whole = b.concat({b.upsample_nearest(x), f.operand(f32(up))}, 3);
  f.result(b.silu(b.conv_fprop(whole, w, 1, 1)));
  f.result(b.avg_pool(whole));
  f.result(b.transpose(b.neg(x), {3, 0, 1, 2}));
  check(f.finish(Hero::conv));
}

// Long enough that the scores of an image are made in several blocks of query rows, the last one shorter.
TEST(CpuFusion, AttentionInBlocksOfRows) {
  Graph graph("attention");
  Builder b(graph);
  const ir::AttentionAttrs attrs{2, ir::QkvOrder::heads_first};
  const Value qkv = b.input("qkv", f32({2, 700, 24}));
  const auto a = b.attention(qkv, attrs);
  graph.set_output("out", a.out);
  graph.set_output("grad", b.attention_grad(qkv, a.out, a.lse, b.input("dout", f32({2, 700, 8})), attrs));
  check(graph);
}

// Image i of a batch has the bits that it has alone.
TEST(CpuFusion, AnImageDoesNotSeeItsBatch) {
  const auto build = [](int64_t n) {
    Graph graph("block");
    Builder b(graph);
    const Shape s{n, 7, 7, 24};
    const Value x = b.input("x", f32(s)), temb = b.input("temb", f32({n, 48}));
    const Value w = b.input("w", f32({24, 3, 3, 24})), linear = b.input("linear", f32({24, 48}));
    const auto stats = b.group_finish({b.channel_moments(x)}, {6, 1e-5, 7, 7});
    const Value z =
        b.silu(b.mul(b.sub(x, b.broadcast_image_channels(stats.mean, s)), b.broadcast_image_channels(stats.rstd, s)));
    const Value rows = b.matmul(b.silu(temb), linear, false, true);
    const Value y = b.add(b.conv_fprop(z, w, 1, 1), b.broadcast_image_channels(rows, s));
    const Value qkv = b.reshape(b.concat({y, z, x}, 3), {n, 49, 72});
    const auto a = b.attention(qkv, {3, ir::QkvOrder::heads_first});
    graph.set_output("y", y);
    graph.set_output("rows", rows);
    graph.set_output("attention", a.out);
    graph.set_output("grad", b.attention_grad(qkv, a.out, a.lse, b.mul(a.out, 2.0), {3, ir::QkvOrder::heads_first}));
    graph.set_output("dx", b.conv_dgrad(y, w, {1, 1, 7, 7}));
    graph.set_output("sums", b.reduce_sum(b.mul(y, x), {1, 2}));
    graph.set_output("sum", b.reduce_sum(y, {1, 2, 3}));
    return graph;
  };
  const int64_t n = 37;
  const Graph whole = build(n), single = build(1);
  const ir::TensorMap inputs = testing::random_leaves(whole, ir::Op::input, 5);
  const testing::CpuRun batch = testing::run_cpu(whole, inputs, {});
  for (int64_t image : {int64_t{0}, int64_t{5}, int64_t{31}, n - 1}) {
    ir::TensorMap one = inputs;
    for (const char* name : {"x", "temb"}) {
      const ir::Tensor& all = inputs.at(name);
      ir::Tensor t(single.type(single.find_input(name)));
      std::copy_n(all.data.begin() + image * std::ssize(t.data), t.data.size(), t.data.begin());
      one[name] = t;
    }
    const testing::CpuRun alone = testing::run_cpu(single, one, {}, {.threads = 1});
    for (const auto& [name, bytes] : alone.outputs) {
      const auto* part = batch.outputs.at(name).data() + static_cast<size_t>(image) * bytes.size();
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), part)) << name << " of image " << image;
    }
  }
}

}  // namespace
}  // namespace difuse
