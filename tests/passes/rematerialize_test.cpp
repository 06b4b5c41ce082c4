// What is computed again, what is kept, and where the readers then stand.
#include "passes/rematerialize.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "ir/builder.h"
#include "ir/error.h"
#include "ir/op.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/late_copies.h"
#include "passes/lifetimes.h"
#include "passes/memory_plan.h"
#include "passes/pipeline.h"
#include "tests/support/golden.h"
#include "tests/support/graphs/graphs.h"

namespace difuse::passes {
namespace {

using ir::Builder;
using ir::DType;
using ir::Value;

PassResult apply(const ir::Graph& graph, FusionReport* report = nullptr, Fuel fuel = {}) {
  PassContext context{*ir::find_device_spec("h100"), fuel};
  PassResult result = rematerialize(graph, context, report, {.kept = 0, .tensor = 0});
  ir::verify(result.graph);
  EXPECT_EQ(result.changed, ir::print(result.graph) != ir::print(graph));
  if (result.changed) tests::expect_same_results(graph, result.graph);
  return result;
}

/// v = silu(x * s), d = what comes of v by way of the peak, e = d * sigmoid(x * s), dw = the filter's gradient of v.
/// Images are of 1 KiB each.
struct Step {
  bool wide = true;         ///< The peak is between v and d; else it is before x.
  bool host_first = false;  ///< e is made before dw.
  bool host_reads_x = true, host_reads_s = true;
  bool host_needs_dw = false;
  bool of_maximum = false;  ///< v is made of a maximum over the channels too.
  bool is_output = false;   ///< Someone outside reads v.
  bool is_viewed = false;   ///< dw is that of a reshaped v.

  ir::Graph graph() const {
    ir::Graph graph("step");
    Builder b(graph);
    const ir::Shape image{1, 8, 8, 4}, column{64, 4};
    const Value filter = b.input("filter", {DType::f32, {4, 1, 1, 4}});
    const Value s = b.input("s", {DType::f32, {4}}), other = b.input("other", {DType::f32, {4}});
    const auto convolve = [&](Value v) { return b.conv_fprop(v, filter, 1, 0); };
    const auto peak = [&](Value v) {
      return b.conv_fprop(b.concat({v, b.neg(v), v, v}, 3), b.input("wide", {DType::f32, {4, 1, 1, 16}}), 1, 0);
    };
    const Value in = convolve(b.input("image", {DType::f32, image}));
    const Value x = b.exp(wide ? in : peak(in));
    const Value v = loop(graph, {x, s}, [&](Builder& body, const std::vector<Value>& of) {
      const Value scaled = body.mul(of[0], body.broadcast_channels(of[1], image));
      if (!of_maximum) return body.silu(scaled);
      return body.silu(body.sub(scaled, body.broadcast(body.reduce_max(scaled, {3}), image, {0, 1, 2})));
    });
    const Value rows = is_viewed ? b.reshape(v, column) : v;
    const Value y = convolve(v);
    const Value d = convolve(wide ? peak(y) : y);
    const auto filter_gradient = [&] {
      if (is_viewed) return b.matmul(rows, b.reshape(d, column), true, false);
      return b.conv_wgrad(v, d, {1, 0, 1, 1});
    };
    const Value dw = host_first ? Value{} : filter_gradient();
    const Value scale = host_needs_dw ? b.reduce_sum(dw, {1, 2, 3}) : host_reads_s ? s : other;
    const Value e = loop(graph, {host_reads_x ? x : y, scale, d}, [&](Builder& body, const std::vector<Value>& of) {
      return body.mul(of[2], body.sigmoid(body.mul(of[0], body.broadcast_channels(of[1], image))));
    });
    graph.set_output("dw", host_first ? filter_gradient() : dw);
    graph.set_output("e", b.sum_all(e));
    if (is_output) graph.set_output("v", v);
    return graph;
  }

 private:
  using Body = std::function<Value(Builder&, const std::vector<Value>&)>;

  static Value loop(ir::Graph& graph, const std::vector<Value>& operands, const Body& make) {
    auto body = std::make_shared<ir::Graph>("body");
    Builder b(*body);
    std::vector<Value> inputs;
    for (size_t i = 0; i < operands.size(); ++i) inputs.push_back(b.input(std::to_string(i), graph.type(operands[i])));
    body->set_output("0", make(b, inputs));
    return graph.add(ir::Op::fusion, operands, ir::FusionAttrs{ir::Hero::pointwise, body});
  }
};

/// The one node of that op, or the fusion of as many results.
const ir::Node& node_of(const ir::Graph& graph, ir::Op op, size_t results = 1) {
  for (int id = 0; id < graph.size(); ++id) {
    if (graph.node(id).op == op && graph.node(id).types.size() == results) return graph.node(id);
  }
  throw Error(fmt::format("no {} of {} results", ir::to_string(op), results), "");
}

TEST(Rematerialize, GoldenAConvolutionsInput) {
  const ir::Graph graph = tests::scaled_convolutions(2, 3, 8);
  const ir::Graph fused = run_pipeline(graph, *ir::find_device_spec("h100"), {});
  tests::expect_golden("passes/golden/rematerialized.ir", ir::print(apply(fused).graph));
}

TEST(Rematerialize, ALateReaderReadsTheCopyAndFollowsItsHost) {
  for (const bool host_first : {true, false}) {
    const ir::Graph graph = Step{.host_first = host_first}.graph();
    FusionReport report;
    const PassResult result = apply(graph, &report);
    EXPECT_TRUE(result.changed);
    EXPECT_EQ(result.graph.size(), graph.size());
    const Value read = node_of(result.graph, ir::Op::conv_wgrad).operands[0];
    EXPECT_EQ(read.result, 1);
    EXPECT_EQ(&result.graph.node(read), &node_of(result.graph, ir::Op::fusion, 2));
    EXPECT_EQ(plan_memory(graph).arena_bytes - plan_memory(result.graph).arena_bytes, 1024);
    ASSERT_EQ(report.lines.size(), 1u);
    EXPECT_NE(report.lines[0].find("again"), std::string::npos);
    EXPECT_NE(report.lines[0].find(": 1024 bytes less"), std::string::npos) << report.lines[0];
    EXPECT_FALSE(apply(result.graph).changed) << "not idempotent";
  }
}

TEST(Rematerialize, TheHostThenReadsSmallValuesToo) {
  const PassResult result = apply(Step{.host_reads_s = false}.graph());
  ASSERT_TRUE(result.changed);
  const ir::Node& host = node_of(result.graph, ir::Op::fusion, 2);
  ASSERT_EQ(host.operands.size(), 4u);
  EXPECT_EQ(host.operands[3], result.graph.find_input("s"));
}

TEST(Rematerialize, WhatCannotBeMadeInTimeIsKept) {
  ASSERT_TRUE(apply(Step{}.graph()).changed);
  const std::pair<const char*, Step> cases[] = {
      {"the host does not read what it is made of", {.host_reads_x = false}},
      {"the host needs what the late reader makes", {.host_needs_dw = true}},
      {"it is made of a reduction", {.of_maximum = true}},
      {"it is an output", {.is_output = true}},
      {"an early view of it is read late", {.is_viewed = true}},
      {"the peak is elsewhere", {.wide = false}},
  };
  for (const auto& [reason, step] : cases) EXPECT_FALSE(apply(step.graph()).changed) << reason;
}

TEST(Rematerialize, OnlyOnAGpu) {
  Fuel fuel;
  const ir::DeviceSpec cpu;
  PassContext context{cpu, fuel};
  EXPECT_FALSE(rematerialize(Step{}.graph(), context, nullptr, {.kept = 0, .tensor = 0}).changed);
  EXPECT_EQ(fuel.spent(), 0);
}

TEST(Rematerialize, WhatTakesLittleIsKept) {
  const ir::Graph graph = Step{}.graph();
  Fuel fuel;
  PassContext context{*ir::find_device_spec("h100"), fuel};
  const auto changes = [&](const LeastBytes& least) { return rematerialize(graph, context, nullptr, least).changed; };
  EXPECT_TRUE(changes({.kept = 0, .tensor = 1024}));
  EXPECT_FALSE(changes({.kept = 0, .tensor = 1025}));
  EXPECT_TRUE(changes({.kept = 4096, .tensor = 0}));
  EXPECT_FALSE(changes({.kept = 16384, .tensor = 0}));
}

TEST(Rematerialize, EachOneSpendsFuel) {
  const ir::Graph graph = run_pipeline(tests::scaled_convolutions(2, 6, 8), *ir::find_device_spec("h100"), {});
  int64_t arena = plan_memory(graph).arena_bytes;
  for (const int64_t fuel : {0, 1, 2, 4}) {
    FusionReport report;
    const PassResult result = apply(graph, &report, Fuel(fuel));
    EXPECT_EQ(std::ssize(report.lines), fuel);
    const int64_t now = plan_memory(result.graph).arena_bytes;
    EXPECT_TRUE(fuel == 0 ? now == arena : now < arena) << fuel;
    arena = now;
  }
}

/// x less its rows' maxima, which are the second result where they are stored.
ir::Graph less_maximum(bool stored) {
  return ir::parse(fmt::format(R"(graph g {{
  %0 = input {{name = "x", dtype = f32, shape = [2, 4]}} : f32[2, 4]
  %1 = fusion %0 {{hero = reduction, body = graph body {{
    %0 = input {{name = "0", dtype = f32, shape = [2, 4]}} : f32[2, 4]
    %1 = reduce_max %0 {{axes = [1]}} : f32[2]
    %2 = broadcast %1 {{shape = [2, 4], dims = [0]}} : f32[2, 4]
    %3 = sub %0, %2 : f32[2, 4]
    output "0" = %3
{}  }}}} : f32[2, 4]{}
  output "y" = {}
}}
)",
                               stored ? "    output \"1\" = %1\n" : "", stored ? ", f32[2]" : "",
                               stored ? "%1.0" : "%1"));
}

TEST(Chain, BeginsAtWhatTheFusionStoresBesides) {
  EXPECT_FALSE(find_chain(less_maximum(false), {1, 0}).has_value());
  const auto chain = find_chain(less_maximum(true), {1, 0});
  ASSERT_TRUE(chain.has_value());
  EXPECT_EQ(chain->nodes, (std::set<int>{2, 3}));
  const std::map<Value, Value> sources = {{{0, 0}, {0, 0}}, {{1, 0}, {1, 1}}};
  EXPECT_EQ(chain->sources, sources);
}

TEST(Chain, ReadsWhatWasDrawnOnlyWhereItIsStored) {
  const std::string text = R"(graph g {{
    %0 = input {{name = "x", dtype = f32, shape = [2, 4]}} : f32[2, 4]
    %1 = input {{name = "seed", dtype = u32, shape = [2]}} : u32[2]
    %2 = input {{name = "index", dtype = i32, shape = [2]}} : i32[2]
    %3 = input {{name = "step", dtype = i32, shape = []}} : i32[]
    %4 = fusion %0, %1, %2, %3 {{hero = pointwise, body = graph body {{
      %0 = input {{name = "0", dtype = f32, shape = [2, 4]}} : f32[2, 4]
      %1 = input {{name = "1", dtype = u32, shape = [2]}} : u32[2]
      %2 = input {{name = "2", dtype = i32, shape = [2]}} : i32[2]
      %3 = input {{name = "3", dtype = i32, shape = []}} : i32[]
      %4 = random_uniform %1, %2, %3 {{stream = 1, shape = [4]}} : f32[2, 4]
      %5 = cast %4 {{dtype = u8}} : u8[2, 4]
      %6 = cast %5 {{dtype = f32}} : f32[2, 4]
      %7 = mul %0, %6 : f32[2, 4]
      output "0" = %7
{}    }}}} : f32[2, 4]{}
    output "y" = {}
  }})";
  const auto of = [&](const char* stored, const char* type, const char* result) {
    return ir::parse(fmt::format(fmt::runtime(text), stored, type, result));
  };
  EXPECT_FALSE(find_chain(of("", "", "%4"), {4, 0}).has_value());
  const auto chain = find_chain(of("      output \"1\" = %5\n", ", u8[2, 4]", "%4.0"), {4, 0});
  ASSERT_TRUE(chain.has_value());
  EXPECT_EQ(chain->nodes, (std::set<int>{6, 7}));
  EXPECT_EQ(chain->sources, (std::map<Value, Value>{{{0, 0}, {0, 0}}, {{5, 0}, {4, 1}}}));
}

TEST(Chain, ReadsPartsOfOperands) {
  const ir::Graph graph = ir::parse(R"(graph g {
    %0 = input {name = "x", dtype = f32, shape = [2, 4]} : f32[2, 4]
    %1 = fusion %0 {hero = pointwise, body = graph body {
      %0 = input {name = "0", dtype = f32, shape = [2, 4]} : f32[2, 4]
      %1 = slice %0 {axis = 1, begin = 1, end = 3} : f32[2, 2]
      %2 = exp %1 : f32[2, 2]
      %3 = slice %2 {axis = 1, begin = 0, end = 1} : f32[2, 1]
      output "0" = %2
      output "1" = %3
    }} : f32[2, 2], f32[2, 1]
    output "y" = %1.0
    output "z" = %1.1
  })");
  const auto chain = find_chain(graph, {1, 0});
  ASSERT_TRUE(chain.has_value());
  EXPECT_EQ(chain->nodes, (std::set<int>{1, 2}));
  EXPECT_EQ(chain->sources, (std::map<Value, Value>{{{0, 0}, {0, 0}}}));
  EXPECT_FALSE(find_chain(graph, {1, 1}).has_value()) << "a part of what is computed";
}

TEST(Lifetimes, AViewIsReadAsLongAsItsOwnReadersRun) {
  const ir::Graph graph = ir::parse(R"(graph g {
    %0 = input {name = "x", dtype = f32, shape = [2, 4]} : f32[2, 4]
    %1 = exp %0 : f32[2, 4]
    %2 = reshape %1 {shape = [8]} : f32[8]
    %3 = neg %0 : f32[2, 4]
    %4 = neg %2 : f32[8]
    %5 = exp %3 : f32[2, 4]
    output "y" = %4
    output "z" = %5
  })");
  const Lifetimes lifetimes(graph);
  EXPECT_EQ(lifetimes.readers({1, 0}), (std::vector<int>{2}));
  EXPECT_EQ(lifetimes.last_read({1, 0}), 4);
  EXPECT_EQ(lifetimes.last_read({3, 0}), 5);
  EXPECT_EQ(lifetimes.last_read({4, 0}), graph.size());
  const auto live = lifetimes.live_bytes([](const ir::Type& type) { return type.bytes(); });
  EXPECT_EQ(live, (std::vector<int64_t>{0, 32, 32, 64, 64, 64}));  // %4 and %5 are made in place.
}

}  // namespace
}  // namespace difuse::passes
