// Elementwise loops that finish an image's statistics themselves: one kernel, which gives what the reference gives, and
// of each image the same bits in every batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "codegen/cuda/emit/finishes.h"
#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"
#include "ir/builder.h"
#include "ir/strips.h"
#include "tests/codegen/cuda/body_run.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Value;

struct Norm {
  int64_t n, h, w, groups;
  std::vector<int64_t> channels;  ///< Of each tensor whose moments there are.
  DType dtype = DType::bf16;
  bool concatenated = false, stores_statistics = false;
  bool drops = false;  ///< Some elements are drawn to be zero: which ones are left is stored, too, as bytes.
};

/// silu((x - mean) (rstd gamma) + beta) of an image, from moments.
Graph normalised(const Norm& norm) {
  Graph body("body");
  Builder b(body);
  int64_t channels = 0, input = 0;
  const auto next = [&](ir::Type type) { return b.input(std::to_string(input++), std::move(type)); };
  std::vector<Builder::Moments> moments;
  std::vector<Value> parts;
  for (const int64_t own : norm.channels) {
    const ir::Shape strips{norm.n, ir::Strips{norm.h, norm.w}.count(), own};
    const Value mean = next({DType::f32, strips}), m2 = next({DType::f32, strips});
    moments.push_back({mean, m2});
    if (norm.concatenated) parts.push_back(next({norm.dtype, {norm.n, norm.h, norm.w, own}}));
    channels += own;
  }
  const ir::Shape shape{norm.n, norm.h, norm.w, channels};
  const Value x = norm.concatenated ? b.concat(parts, 3) : next({norm.dtype, shape});
  const Builder::GroupStatistics s =
      b.group_finish(moments, {.groups = norm.groups, .eps = 1e-5, .height = norm.h, .width = norm.w});
  const Value gamma = next({DType::f32, {channels}}), beta = next({DType::f32, {channels}});
  const Value scale = b.mul(s.rstd, b.broadcast(gamma, {norm.n, channels}, {1}));
  const Value centred = b.sub(b.cast(x, DType::f32), b.broadcast_image_channels(s.mean, shape));
  const Value scaled = b.mul(centred, b.broadcast_image_channels(scale, shape));
  Value kept, y = b.silu(b.add(scaled, b.broadcast_channels(beta, shape)));
  if (norm.drops) {
    const Value seed = next({DType::u32, {2}}), index = next({DType::i32, {norm.n}}), step = next({DType::i32, {}});
    const Value draw = b.random_uniform(seed, index, step, /*stream=*/5, {norm.h, norm.w, channels});
    kept = b.cast(b.less_equal(0.25, draw), DType::u8);
    y = b.mul(y, b.mul(b.cast(kept, DType::f32), 4.0 / 3));
  }
  body.set_output("0", b.cast(y, norm.dtype));
  if (norm.stores_statistics) {
    body.set_output("1", s.mean);
    body.set_output("2", s.rstd);
  }
  if (norm.drops) body.set_output(std::to_string(body.outputs().size()), kept);
  return body;
}

struct Gradient {
  int64_t n, h, w, groups, row;
  DType dtype = DType::bf16;
  bool sums_image = true, sums_all = false, stores_rows = false;
  int64_t parts = 0;  ///< Of what the channels have summed; 0: it is there as a whole.
};

/// dy + x a + b, where a and b are a group's share of what its channels have summed; and sums of it over pixels.
Graph gradient(const Gradient& g) {
  Graph body("body");
  Builder b(body);
  const int64_t channels = g.groups * g.row;
  const ir::Shape shape{g.n, g.h, g.w, channels}, rows{g.n, g.groups, g.row};
  int64_t input = 0;
  const auto next = [&](ir::Type type) { return b.input(std::to_string(input++), std::move(type)); };
  const Value dy = next({g.dtype, shape}), x = next({g.dtype, shape});
  const auto summed = [&] {
    if (g.parts == 0) return next({DType::f32, rows});
    return b.reduce_sum(next({DType::f32, {g.n, g.parts, g.groups, g.row}}), {1});
  };
  const Value s0 = summed(), s1 = summed(), gamma = next({DType::f32, {g.groups, g.row}});
  const Value scale = b.broadcast(gamma, rows, {1, 2});
  const auto share = [&](Value v) { return b.broadcast(b.reduce_sum(b.mul(v, scale), {2}), rows, {0, 1}); };
  const Value a = b.neg(share(s0)), c = b.mul(share(s1), s0);
  const auto per_channel = [&](Value v) { return b.broadcast_image_channels(b.reshape(v, {g.n, channels}), shape); };
  const Value scaled = b.mul(b.cast(x, DType::f32), per_channel(a));
  const Value sum = b.add(b.add(b.cast(dy, DType::f32), scaled), per_channel(c));
  int output = 0;
  const auto result = [&](Value v) { body.set_output(std::to_string(output++), v); };
  result(b.cast(sum, g.dtype));
  if (g.sums_image) result(b.reduce_sum(sum, {1, 2}));
  if (g.sums_all) result(b.reduce_sum(sum, {0, 1, 2}));
  if (g.stores_rows) result(a);
  if (g.parts > 0) result(s0), result(s1);
  return body;
}

/// x times what its channel has summed over the image, in parts.
Graph scaled_by_sum(int64_t n, int64_t h, int64_t w, int64_t channels, int64_t parts) {
  Graph body("body");
  Builder b(body);
  const ir::Shape shape{n, h, w, channels};
  const Value x = b.cast(b.input("0", {DType::bf16, shape}), DType::f32);
  const Value sum = b.reduce_sum(b.input("1", {DType::f32, {n, parts, channels}}), {1});
  body.set_output("0", b.mul(x, b.broadcast_image_channels(sum, shape)));
  body.set_output("1", sum);
  return body;
}

/// M2s are no less than zero.
ir::TensorMap inputs_of(const Graph& body) {
  ir::TensorMap inputs = random_inputs(body, false);
  for (auto& [name, tensor] : inputs) {
    if (tensor.type.shape.size() != 3) continue;
    for (double& x : tensor.data) x = std::abs(x);
  }
  return inputs;
}

Recorder emitted(const Placed& placed) {
  Recorder recorder;
  find_emitter(placed.spec).emit(placed.spec, recorder);
  return recorder;
}

struct Case {
  std::string name;
  std::function<Graph(int64_t batch)> body;
  int64_t batch = 2;
  Places places = {};
  friend void PrintTo(const Case& one, std::ostream* to) { *to << one.name; }
};

Case norm(const std::string& name, Norm n, const Places& places = {}) {
  return {name, [n](int64_t batch) mutable { return n.n = batch, normalised(n); }, n.n, places};
}
Case parts(const std::string& name, int64_t side, int64_t channels, int64_t parts) {
  return {"parts_" + name, [=](int64_t batch) { return scaled_by_sum(batch, side, side, channels, parts); }};
}
Case rows(const std::string& name, Gradient g, const Places& places = {}) {
  return {"rows_" + name, [g](int64_t batch) mutable { return g.n = batch, gradient(g); }, g.n, places};
}

std::vector<Case> cases() {
  return {
      norm("small", {3, 8, 8, 32, {256}}),
      norm("f32", {2, 8, 8, 8, {64}, DType::f32}),
      norm("several_strips", {2, 16, 16, 32, {192}}),
      norm("clipped_strips", {3, 17, 9, 4, {24}}),
      norm("block_ends_inside_an_image", {3, 5, 7, 3, {12}, DType::f32}),
      norm("odd_channels", {2, 6, 5, 3, {9}}),
      norm("two_producers", {2, 8, 8, 4, {40, 24}}),
      norm("concatenated", {2, 8, 8, 4, {40, 24}, DType::bf16, true}),
      norm("statistics_are_read_by_others", {3, 8, 8, 8, {64}, DType::bf16, false, true}),
      norm("one_is_read_by_others", {3, 8, 8, 8, {64}, DType::bf16, false, true}, {.unwanted = {1}}),
      norm("aligned_16", {2, 8, 8, 4, {24}}, {.alignment = 16}),
      norm("groups_of_many_parts", {2, 32, 16, 1, {16}, DType::f32}),
      norm("many_strips", {2, 64, 40, 8, {16}}),
      norm("drops", {3, 8, 8, 8, {64}, DType::bf16, false, false, true}),
      norm("drops_odd_channels", {2, 6, 5, 3, {9}, DType::bf16, false, false, true}),
      norm("drops_and_statistics_are_read_by_others", {2, 16, 16, 8, {32}, DType::f32, false, true, true}),
      rows("small", {3, 8, 8, 32, 8}),
      rows("f32_in_place", {2, 8, 9, 4, 6, DType::f32}, {.in_place = {{0, 0}}}),
      rows("odd", {2, 9, 8, 3, 5}),
      rows("many_chunks", {2, 48, 48, 4, 6}),
      rows("sums_of_all", {3, 8, 8, 4, 16, DType::bf16, false, true}),
      rows("both_sums", {3, 8, 8, 4, 16, DType::bf16, true, true}),
      rows("no_sum", {3, 5, 5, 4, 16, DType::bf16, false, false}),
      rows("are_read_by_others", {3, 8, 8, 4, 6, DType::bf16, true, false, true}),
      rows("few_are_wanted", {3, 8, 8, 4, 6, DType::bf16, true, false, true}, {.unwanted = {0}}),
      rows("long", {2, 8, 8, 1, 320}),
      rows("of_parts", {3, 16, 16, 4, 8, DType::bf16, true, false, false, 2}),
      rows("of_many_parts", {2, 24, 24, 4, 6, DType::bf16, true, false, false, 33}),
      rows("of_parts_that_others_read", {3, 8, 8, 3, 5, DType::f32, true, true, true, 3}),
      parts("of_channels", 16, 24, 8),
      parts("of_odd_channels", 9, 7, 5),
      parts("as_many_as_may_be", 12, 12, 256),
  };
}

class PreambleCase : public ::testing::TestWithParam<Case> {};

TEST_P(PreambleCase, AgreesWithTheReference) {
  const Case& c = GetParam();
  const Graph body = c.body(c.batch);
  const ir::TensorMap inputs = inputs_of(body);
  const Placed placed = place(body, c.places, h100());
  ASSERT_TRUE(accepts_with_preamble(placed.spec));
  const Recorder recorder = emitted(placed);
  expect_reference(body, inputs, run_drafts(placed, recorder, inputs, "sm_90a"), false);
}

TEST_P(PreambleCase, AnImageHasTheSameBitsInEveryBatchFromOneSource) {
  const Case& c = GetParam();
  const auto run = [&](int64_t batch, std::string& source) {
    const Graph body = c.body(batch);
    const Placed placed = place(body, c.places, h100());
    const Recorder recorder = emitted(placed);
    source = recorder.drafts.at(0).source;
    return run_drafts(placed, recorder, inputs_of(body), "sm_90a");
  };
  std::string source_of_one, source_of_all;
  const ir::TensorMap one = run(1, source_of_one), all = run(4, source_of_all);
  EXPECT_EQ(source_of_one, source_of_all);
  for (const auto& [name, tensor] : one) {
    if (tensor.type.shape[0] != 1) continue;  // Of all images.
    const auto& whole = all.at(name).data;
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), whole.begin())) << "output " << name;
  }
}

TEST_P(PreambleCase, Compiles) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const Graph body = GetParam().body(GetParam().batch);
  for (const KernelDraft& draft : emitted(place(body, GetParam().places, h100())).drafts) {
    expect_compiles(*nvrtc, draft, {"sm_80", "sm_90a"});
  }
}

INSTANTIATE_TEST_SUITE_P(All, PreambleCase, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

/// A kernel whose one block for each image finishes its statistics by so many threads. The body makes nothing else.
KernelDraft finishing(const KernelSpec& spec, int64_t threads) {
  const ir::Node& node = spec.body.node(spec.body.outputs()[0].value);
  KernelDraft draft;
  std::string parameters;
  std::vector<std::string> pointers;
  for (const Value v : node.operands) {
    pointers.push_back(fmt::format("q{}", pointers.size()));
    parameters += fmt::format("const float* {}, ", pointers.back());
    draft.arguments.push_back(spec.operands[static_cast<size_t>(input_number(spec.body.node(v)))]);
  }
  draft.arguments.insert(draft.arguments.end(), spec.results.begin(), spec.results.end());
  const std::string finish =
      group_finish_statements(spec.body, spec.body.outputs()[0].value.node, pointers, {"(means + at)", "(rstds + at)"});
  draft.name = "finishing";
  draft.source =
      device_source({"group_finish.cuh"}) + filled(R"(
using index_t = int;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parametersfloat* means, float* rstds) {
  const index_t this_image = static_cast<index_t>(blockIdx.x), at = this_image * $channels;
$finish}
)",
                                                   {{"parameters", parameters},
                                                    {"channels", std::to_string(node.types[0].shape[1])},
                                                    {"finish", filled(finish, {{"threads", std::to_string(threads)}})},
                                                    {"threads", std::to_string(threads)}});
  draft.grid.x = node.types[0].shape[0];
  draft.threads = static_cast<int>(threads);
  return draft;
}

/// Few threads have several groups, each thread several of a group's lanes, or all groups more parts than they hold.
TEST(GroupFinish, NoNumberOfThreadsChangesABit) {
  for (const Norm& norm : {Norm{2, 64, 64, 32, {64}}, Norm{1, 64, 64, 32, {64, 64}}, Norm{2, 32, 32, 32, {192, 128}},
                           Norm{1, 16, 16, 32, {256, 192}}, Norm{1, 8, 8, 32, {640}}, Norm{2, 17, 9, 4, {24}},
                           Norm{1, 48, 80, 16, {18, 46}}, Norm{1, 30, 30, 3, {15}}, Norm{2, 64, 64, 32, {32}},
                           Norm{1, 40, 72, 5, {15}}, Norm{2, 1, 3, 7, {7}}}) {
    Norm stored = norm;
    stored.stores_statistics = true;
    const Graph all = normalised(stored), body = part_of(all, {all.outputs()[1].value, all.outputs()[2].value});
    const ir::TensorMap inputs = inputs_of(all);
    const Placed whole = place(all, {}, h100());
    const Placed placed{{body,
                         whole.spec.operands,
                         whole.spec.alignment,
                         {whole.spec.results[1], whole.spec.results[2]},
                         {256, 256},
                         "test",
                         0,
                         h100(),
                         {}},
                        whole.arena_bytes};
    const ir::TensorMap alone = run_drafts(placed, emitted(placed), inputs, "sm_90a");
    for (const int64_t threads : {32, 96, 128, 256}) {
      Recorder recorder;
      recorder.launch(finishing(placed.spec, threads));
      const ir::TensorMap shared = run_drafts(placed, recorder, inputs, "sm_90a");
      for (const auto& [name, tensor] : alone) {
        EXPECT_EQ(shared.at(name).data, tensor.data)
            << threads << " threads for " << norm.channels[0] << " channels of " << norm.h << " x " << norm.w;
      }
    }
  }
}

/// The loop alone, behind a kernel that has stored the statistics.
void expect_no_bit_changes(const Norm& norm) {
  const Graph body = normalised(norm);
  const ir::TensorMap inputs = inputs_of(body);
  const Placed placed = place(body, {}, h100());
  const ir::TensorMap together = run_drafts(placed, emitted(placed), inputs, "sm_90a");

  const Graph finish = part_of(body, {body.outputs()[1].value, body.outputs()[2].value});
  const Graph loop = ir::rebuild(body, [&](Graph& to, int, const ir::Node& node, const std::vector<Value>& operands) {
    if (node.op != ir::Op::group_finish) return ir::copy_node(to, node, operands);
    const int first = static_cast<int>(inputs.size());
    Builder b(to);
    return std::vector{b.input(std::to_string(first), node.types[0]),
                       b.input(std::to_string(first + 1), node.types[1])};
  });
  const Graph alone = part_of(loop, {loop.outputs()[0].value});
  Placed first{{finish,
                placed.spec.operands,
                placed.spec.alignment,
                {placed.spec.results[1], placed.spec.results[2]},
                {256, 256},
                "test",
                0,
                h100(),
                {}},
               placed.arena_bytes};
  const ir::TensorMap statistics = run_drafts(first, emitted(first), inputs, "sm_90a");
  Placed second{
      {alone, placed.spec.operands, placed.spec.alignment, {placed.spec.results[0]}, {256}, "test", 0, h100(), {}},
      placed.arena_bytes};
  second.spec.operands.push_back(placed.spec.results[1]);
  second.spec.operands.push_back(placed.spec.results[2]);
  second.spec.alignment.resize(second.spec.operands.size(), 256);
  ir::TensorMap more = inputs;
  more[std::to_string(inputs.size())] = statistics.at("0");
  more[std::to_string(inputs.size() + 1)] = statistics.at("1");
  EXPECT_EQ(statistics.at("0").data, together.at("1").data);
  EXPECT_EQ(statistics.at("1").data, together.at("2").data);
  EXPECT_EQ(run_drafts(second, emitted(second), more, "sm_90a").at("0").data, together.at("0").data);
}
TEST(Preamble, ChangesNoBit) {
  expect_no_bit_changes({2, 16, 16, 8, {24, 40}, DType::f32, false, true});
  expect_no_bit_changes({2, 32, 32, 32, {128}, DType::bf16, false, true});
  expect_no_bit_changes({1, 64, 64, 32, {64}, DType::bf16, false, true});
}

/// As the second stage of a kernel that left them adds them.
TEST(Preamble, AddsPartsInTheOrderOfASecondStage) {
  for (const int64_t terms : {2, 8, 33}) {
    const Graph body = scaled_by_sum(2, 9, 9, 20, terms);
    const ir::TensorMap inputs = inputs_of(body);
    const Placed placed = place(body, {}, h100());
    const ir::TensorMap together = run_drafts(placed, emitted(placed), inputs, "sm_90a");
    Recorder recorder;
    reduction::emit_finish(recorder, {{2, false}, {terms, true}, {20, false}}, {false}, {placed.spec.operands[1]},
                           {placed.spec.results[1]});
    const PartSums& sums = recorder.drafts.at(0).part_sums;
    EXPECT_EQ(std::vector({sums.images, sums.terms, sums.channels}), (std::vector<int64_t>{2, terms, 20}));
    EXPECT_EQ(run_drafts(placed, recorder, inputs, "sm_90a").at("1").data, together.at("1").data) << terms;
  }
}

/// All that a block reads of memory is on its way before it waits for any of it.
TEST(Preamble, WaitsForMemoryOnce) {
  for (const Graph& body :
       {normalised({2, 16, 16, 8, {64}}), gradient({2, 16, 16, 8, 8, DType::bf16, true, false, true, 2})}) {
    const Recorder recorder = emitted(place(body, {}, h100()));
    const std::string& source = recorder.drafts.at(0).source;
    const std::string kernel = source.substr(source.rfind("__global__"));
    const size_t wait = kernel.find("stage::wait()"), loop = kernel.find("for (; r");
    ASSERT_LT(wait, loop) << kernel;
    EXPECT_LT(kernel.find("load_row(u, r"), wait) << kernel;
    EXPECT_LT(kernel.rfind("stage::copy"), wait) << kernel;
    const std::string between = kernel.substr(wait, loop - wait);
    // What is loaded there lies in shared memory.
    for (size_t at = between.find("load_"); at != std::string::npos; at = between.find("load_", at + 1)) {
      const size_t pointer = between.find("(p", at);
      const std::string name = between.substr(pointer + 1, between.find_first_of(" )", pointer) - pointer - 1);
      const bool is_made = between.find("const " + name + " = made") != std::string::npos;
      EXPECT_TRUE(is_made || between.find("const " + name + " = whole") != std::string::npos) << name << " in\n"
                                                                                              << between;
    }
  }
}

TEST(Preamble, LeavesToOthersWhatIsComputedOfMore) {
  const auto accepts = [](const std::function<void(Builder&, Graph&)>& write) {
    Graph body("body");
    Builder b(body);
    write(b, body);
    return accepts_with_preamble(place(body, {}, h100()).spec);
  };
  const ir::GroupFinishAttrs attrs{.groups = 2, .eps = 1e-5, .height = 4, .width = 4};
  const auto statistics = [&](Builder& b) {
    return b.group_finish({{b.input("0", {DType::f32, {2, 1, 8}}), b.input("1", {DType::f32, {2, 1, 8}})}}, attrs);
  };
  const auto centred = [&](Builder& b, const ir::Shape& shape) {
    return b.sub(b.input("2", {DType::f32, shape}), b.broadcast_image_channels(statistics(b).mean, shape));
  };
  EXPECT_TRUE(accepts([&](Builder& b, Graph& body) { body.set_output("0", centred(b, {2, 4, 4, 8})); }));
  // A sum over images too small for blocks of their own, nothing but the statistics, none at all.
  EXPECT_FALSE(accepts([&](Builder& b, Graph& body) {
    body.set_output("0", b.reduce_sum(centred(b, {2, 4, 4, 8}), {1, 2}));
  }));
  EXPECT_FALSE(accepts([&](Builder& b, Graph& body) { body.set_output("0", statistics(b).mean); }));
  // More parts than a block has room for.
  const auto of_parts = [](int64_t parts, int64_t channels) {
    const Graph body = scaled_by_sum(2, 8, 8, channels, parts);
    return accepts_with_preamble(place(body, {}, h100()).spec);
  };
  EXPECT_TRUE(of_parts(256, 24));
  EXPECT_FALSE(of_parts(257, 8));
  EXPECT_FALSE(of_parts(256, 25));
  EXPECT_FALSE(accepts([](Builder& b, Graph& body) { body.set_output("0", b.silu(b.input("0", {DType::f32, {8}}))); }));
}

}  // namespace
}  // namespace difuse::codegen::cuda
