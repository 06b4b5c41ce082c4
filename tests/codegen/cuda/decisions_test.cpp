// Lowering with decisions, and problems cut out of a plan for a tuner.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "codegen/cuda/compile_decided.h"
#include "codegen/cuda/lower_cuda.h"
#include "codegen/cuda/tuning_site.h"
#include "ir/builder.h"
#include "passes/memory_plan.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Value;

const ir::DeviceSpec& portable() { return *ir::find_device_spec("a100"); }

/// Two equal convolutions, one whose result is added to, and attention with its gradient.
Graph example(int64_t batch) {
  Graph graph("example");
  Builder b(graph);
  const ir::Type image{DType::bf16, {batch, 16, 16, 64}};
  const Value x = b.input("x", image), w = b.input("w", {DType::bf16, {64, 3, 3, 64}});
  const Value y = b.conv_fprop(x, w, 1, 1), z = b.conv_fprop(b.input("x2", image), w, 1, 1);
  const Value dw = b.conv_wgrad(x, b.input("dy", image), {.stride = 1, .pad = 1, .r = 3, .s = 3});
  const Value qkv = b.input("qkv", {DType::bf16, {batch, 64, 192}});
  const auto attention = b.attention(qkv, {.heads = 2});
  const Value dqkv = b.attention_grad(qkv, b.cast(attention.out, DType::bf16), attention.lse,
                                      b.input("dout", {DType::bf16, {batch, 64, 64}}), {.heads = 2});
  graph.set_output("y", y);
  graph.set_output("z", z);
  graph.set_output("dw", dw);
  graph.set_output("dqkv", dqkv);
  return graph;
}

CudaPlan lower(const Graph& graph, const TuningTable* decisions = nullptr) {
  return lower_cuda(graph, passes::plan_memory(graph), portable(), decisions);
}

std::vector<std::string> names(const CudaPlan& plan) {
  std::vector<std::string> all;
  for (const KernelCall& call : plan.calls) all.push_back(plan.sources[static_cast<size_t>(call.source)].name);
  return all;
}

/// What a compiler gives that refuses the kernels of these names.
std::vector<CompileResult> refusing(std::span<const CudaSource> sources, const std::set<std::string>& refused) {
  std::vector<CompileResult> results(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    if (refused.contains(sources[i].name)) results[i].error = Error("it spills");
  }
  return results;
}

TEST(TuningSites, AreEachProblemOnce) {
  const auto sites = tuning_sites(lower(example(4)), portable());
  ASSERT_EQ(sites.size(), 5u);  // conv_fprop (twice), conv_wgrad, attention, its gradient's two kernels.
  EXPECT_EQ(sites[0].uses + sites[1].uses + sites[2].uses, 4);
  std::set<std::string> problems;
  for (const TuningSite& site : sites) {
    EXPECT_EQ(site.choice().batch, 4);
    EXPECT_GE(site.choice().tiles.size(), 4u) << site.choice().problem;
    EXPECT_EQ(std::set(site.choice().tiles.begin(), site.choice().tiles.end()).size(), site.choice().tiles.size());
    problems.insert(site.choice().problem);
  }
  EXPECT_EQ(problems.size(), sites.size());
}

TEST(TuningSites, HaveTheSameTextAndTilesAtEveryBatch) {
  const auto few = tuning_sites(lower(example(4)), portable()), many = tuning_sites(lower(example(64)), portable());
  ASSERT_EQ(few.size(), many.size());
  for (size_t i = 0; i < few.size(); ++i) {
    EXPECT_EQ(few[i].choice().problem, many[i].choice().problem);
    EXPECT_EQ(few[i].choice().tiles, many[i].choice().tiles);
    EXPECT_EQ(many[i].choice().batch, 64);
  }
}

struct Variant {
  DType dtype = DType::bf16;
  int64_t width = 16;
  bool tf32 = false, doubles = false, is_wanted = true;
  int64_t alignment = 256;
};

std::string problem_of(const Variant& v) {
  Graph body("body");
  Builder b(body);
  const Value x = b.input("0", {v.dtype, {2, v.width, 16, 64}}), w = b.input("1", {v.dtype, {64, 3, 3, 64}});
  const Value y = b.conv_fprop(x, w, 1, 1);
  body.set_output("0", v.doubles ? b.add(y, y) : y);
  body.set_output("1", b.mul(y, 3));
  const Argument at{Argument::Kind::arena, 0};
  KernelSpec spec{body, {at, at},   {v.alignment, 256}, {at, v.is_wanted ? at : Argument::number(0)}, {256, 256}, "one",
                  0,    portable(), {v.tf32, v.tf32}};
  return find_emitter(spec).choices(spec).at(0).problem;
}

TEST(TuningSites, TellKernelsApart) {
  const std::vector<Variant> variants = {{},
                                         {.dtype = DType::f32},
                                         {.dtype = DType::f32, .tf32 = true},
                                         {.width = 8},
                                         {.doubles = true},
                                         {.is_wanted = false},
                                         {.alignment = 8}};
  std::set<std::string> problems;
  for (const Variant& v : variants) problems.insert(problem_of(v));
  EXPECT_EQ(problems.size(), variants.size());
  EXPECT_EQ(problem_of({.alignment = 16}), problem_of({})) << "copies have 16 bytes at most";
}

TEST(TuningSites, MakeTheKernelsOfThePlan) {
  const CudaPlan plan = lower(example(4));
  for (const TuningSite& site : tuning_sites(plan, portable())) {
    const std::vector<size_t> candidates = {0, 2};
    const CudaPlan own = site.plan(candidates);
    const std::vector<std::string> whole = names(plan);
    std::set<int> timed;
    for (const KernelCall& call : own.calls) {
      const std::string& name = own.sources[static_cast<size_t>(call.source)].name;
      EXPECT_TRUE(call.node != 0 || std::ranges::count(whole, name) > 0) << name;
      if (call.choice != site.index()) continue;
      EXPECT_TRUE(timed.insert(call.node).second) << "one kernel has the tile";
      EXPECT_EQ(std::ranges::count(whole, name) > 0, call.node == 0) << name;
    }
    EXPECT_EQ(timed.size(), 2u);
    for (const KernelCall& call : own.calls) {
      for (const Argument& argument : call.arguments) {
        EXPECT_TRUE(argument.kind != Argument::Kind::arena || argument.value < site.arena_bytes());
      }
    }
    EXPECT_LT(site.results_begin(), site.arena_bytes());
  }
}

TEST(Decisions, ChangeTheKernelsThatTheyAreAboutAndNoOthers) {
  const Graph graph = example(4);
  const CudaPlan plain = lower(graph);
  const auto sites = tuning_sites(plain, portable());
  for (const TuningSite& site : sites) {
    TuningTable table;
    table.set(site.choice().problem, 4, {site.choice().tiles[1], 1, 1});
    CudaPlan decided = lower(graph, &table);
    ASSERT_EQ(decided.calls.size(), plain.calls.size());
    int changed = 0;
    for (size_t i = 0; i < plain.calls.size(); ++i) changed += names(plain)[i] != names(decided)[i] ? 1 : 0;
    EXPECT_EQ(changed, site.uses) << site.choice().problem;
    std::erase_if(decided.chosen, [](const ChosenTile& chosen) { return !chosen.is_tuned; });
    ASSERT_EQ(decided.chosen.size(), static_cast<size_t>(site.uses));
    EXPECT_EQ(decided.chosen[0].tile, site.choice().tiles[1]);
  }
}

TEST(Decisions, OfAnotherBatchCountWhereThereAreNone) {
  const Graph graph = example(4);
  const auto sites = tuning_sites(lower(graph), portable());
  TuningTable table;
  for (const TuningSite& site : sites) table.set(site.choice().problem, 32, {site.choice().tiles[1], 1, 1});
  EXPECT_NE(names(lower(graph)), names(lower(graph, &table)));
  const auto large = example(32);
  EXPECT_EQ(names(lower(graph, &table)), names(lower(large, &table)));
}

TEST(Decisions, ThatSayNothingChangeNothing) {
  const Graph graph = example(4);
  const CudaPlan plain = lower(graph);
  TuningTable table;
  EXPECT_EQ(names(lower(graph, &table)), names(plain));
  table.set("another problem", 4, {"a tile", 1, 1});
  table.set(tuning_sites(plain, portable())[0].choice().problem, 4, {"a tile that there is no more", 1, 1});
  const CudaPlan same = lower(graph, &table);
  EXPECT_EQ(names(same), names(plain));
  EXPECT_FALSE(same.chosen.empty());
  EXPECT_TRUE(std::ranges::none_of(same.chosen, &ChosenTile::is_tuned));
  for (size_t i = 0; i < plain.sources.size(); ++i) EXPECT_EQ(same.sources[i].source, plain.sources[i].source);
}

TEST(Decisions, ThatTheCompilerRefusesAreLeftOut) {
  const Graph graph = example(4);
  const auto sites = tuning_sites(lower(graph), portable());
  TuningTable table;
  for (const TuningSite& site : sites) table.set(site.choice().problem, 4, {site.choice().tiles[1], 1, 1});
  CudaPlan plan = lower(graph, &table);
  const std::vector<std::string> decided = names(plan), plain = names(lower(graph));
  const int refused_call = static_cast<int>(
      std::ranges::find_if(plan.calls, [](const KernelCall& c) { return c.choice == 0; }) - plan.calls.begin());
  const std::string& refused = decided[static_cast<size_t>(refused_call)];
  std::vector<std::string> lines;
  const auto compile = [&](std::span<const CudaSource> sources) { return refusing(sources, {refused}); };
  const auto results =
      compile_decided(plan, portable(), table, compile, [&](const std::string& line) { lines.push_back(line); });
  EXPECT_TRUE(std::ranges::none_of(results, [](const CompileResult& r) { return r.error.has_value(); }));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("it spills"), std::string::npos);
  for (size_t i = 0; i < decided.size(); ++i) {
    EXPECT_EQ(names(plan)[i], decided[i] == refused ? plain[i] : decided[i]);
  }
}

TEST(Decisions, OfTheEstimateGiveWayToTheNextTileThatCompiles) {
  TuningTable table;
  CudaPlan plan = lower(example(4), &table);
  const TuningSite site = tuning_sites(plan, portable())[0];
  std::set<std::string> refused;
  const CudaPlan candidates = site.plan(std::vector<size_t>{0, 1});
  for (const KernelCall& call : candidates.calls) {
    if (call.choice == site.index()) refused.insert(candidates.sources[static_cast<size_t>(call.source)].name);
  }
  std::vector<std::string> lines;
  const auto compile = [&](std::span<const CudaSource> sources) { return refusing(sources, refused); };
  const auto results =
      compile_decided(plan, portable(), table, compile, [&](const std::string& line) { lines.push_back(line); });
  EXPECT_TRUE(std::ranges::none_of(results, [](const CompileResult& r) { return r.error.has_value(); }));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1], "the tile " + site.choice().tiles[1] + " is not used: it spills");
  EXPECT_EQ(plan.chosen.at(0).tile, site.choice().tiles[2]);
}

TEST(Decisions, DoNotHideAKernelThatNeverCompiles) {
  TuningTable table;
  CudaPlan plan = lower(example(4), &table);
  size_t tiles = 0;
  for (const TuningSite& site : tuning_sites(plan, portable())) tiles += site.choice().tiles.size();
  std::vector<std::string> lines;
  const auto compile = [&](std::span<const CudaSource> sources) {
    std::vector<CompileResult> results(sources.size());
    for (CompileResult& result : results) result.error = Error("no");
    return results;
  };
  const auto results =
      compile_decided(plan, portable(), table, compile, [&](const std::string& line) { lines.push_back(line); });
  EXPECT_TRUE(results[0].error);
  EXPECT_EQ(lines.size(), tiles) << "each is tried once";
}

}  // namespace
}  // namespace difuse::codegen::cuda
