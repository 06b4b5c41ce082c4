// Attention and its gradient on Hopper: run on the CPU they give what the reference gives, bit by bit the same for an
// image alone and in a batch; their kernels compile without spills, and they are chosen where heads fit a block.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "codegen/cuda/emit/attention/tiles.h"
#include "codegen/jit/nvrtc.h"
#include "tests/codegen/cuda/attention_inputs.h"
#include "tests/codegen/cuda/body_run.h"

namespace difuse::codegen::cuda {
namespace {

using Case = AttentionCase;
using ir::DType;
using ir::Graph;
using ir::QkvOrder;
using ir::Tensor;
using ir::TensorMap;
using ir::Type;

Recorder emitted(const Placed& placed) {
  EXPECT_TRUE(accepts_attention_wgmma(placed.spec));
  Recorder recorder;
  emit_attention_wgmma(placed.spec, recorder);
  return recorder;
}

TensorMap run(const Case& c, const Graph& body, const TensorMap& inputs) {
  const Placed placed = place(body, {.alignment = c.alignment}, h100());
  return run_drafts(placed, emitted(placed), inputs, "sm_90a");
}

class AttentionWgmmaCase : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionWgmmaCase, AgreesWithTheReference) {
  const Case& c = GetParam();
  const Tensor qkv = normal_tensor(c.qkv(), 1);
  const Graph forward = c.forward(), gradient = c.gradient();
  expect_near_reference(forward, {{"0", qkv}}, run(c, forward, {{"0", qkv}}), kRoundedProbabilities);
  const TensorMap inputs = gradient_inputs(c, qkv);
  expect_near_reference(gradient, inputs, run(c, gradient, inputs), kRoundedProbabilities);
}

TEST_P(AttentionWgmmaCase, CompilesWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const Graph& body : {GetParam().forward(), GetParam().gradient()}) {
    Placed placed = place(body, {}, h100());
    const auto choices = attention_wgmma_choices(placed.spec);
    for (size_t tile = 0; tile < (choices.empty() ? 1 : choices[0].tiles.size()); ++tile) {
      placed.spec.tiles = {tile};
      expect_compiles(*nvrtc, emitted(placed).drafts.at(0), {"sm_90a"});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionWgmmaCase,
                         ::testing::Values(Case{256, 2, 32}, Case{64, 3, 32, QkvOrder::qkv_first, 2},
                                           Case{49, 4, 16, QkvOrder::heads_first, 2},
                                           Case{100, 1, 64, QkvOrder::qkv_first},
                                           Case{7, 2, 8, QkvOrder::heads_first, 2},
                                           Case{130, 1, 24, QkvOrder::qkv_first, 1, 16}, Case{192, 1, 64},
                                           Case{250, 1, 40}),
                         [](const auto& one) { return one.param.name(); });

TEST(AttentionWgmma, MissingKeysOfVeryNegativeScoresAddNothing) {
  const Case c{80, 1, 32};
  const Tensor qkv = normal_tensor(c.qkv(), 5, 1, 6, c.width);  // Scores about -200.
  const Graph forward = c.forward(), gradient = c.gradient();
  expect_near_reference(forward, {{"0", qkv}}, run(c, forward, {{"0", qkv}}), 2e-2);
  const TensorMap inputs = gradient_inputs(c, qkv);
  expect_near_reference(gradient, inputs, run(c, gradient, inputs), 2e-2);
}

/// The last image of `batch`.
Tensor last_image(const Tensor& batch) {
  Type type = batch.type;
  const auto size = static_cast<ptrdiff_t>(type.elements() / type.shape[0]);
  type.shape[0] = 1;
  Tensor t(type);
  std::copy(batch.data.end() - size, batch.data.end(), t.data.begin());
  return t;
}

TEST(AttentionWgmma, AnImagesBitsDoNotDependOnTheBatch) {
  Case c{65, 2, 32, QkvOrder::qkv_first, 3};
  const TensorMap batch = gradient_inputs(c, normal_tensor(c.qkv(), 10));
  TensorMap one;
  for (const auto& [name, tensor] : batch) one[name] = last_image(tensor);
  for (const bool is_grad : {false, true}) {
    c.images = 3;
    const Graph body = is_grad ? c.gradient() : c.forward();
    const TensorMap all = run(c, body, batch);
    const std::string source = emitted(place(body, {}, h100())).drafts[0].source;
    c.images = 1;
    const Graph alone = is_grad ? c.gradient() : c.forward();
    for (const auto& [name, tensor] : run(c, alone, one)) EXPECT_EQ(last_image(all.at(name)).data, tensor.data) << name;
    EXPECT_EQ(source, emitted(place(alone, {}, h100())).drafts[0].source);
  }
}

TEST(AttentionWgmma, AnEpiloguesOperandIsRead) {
  const Case c{70, 1, 32, QkvOrder::heads_first, 2};
  const Tensor qkv = normal_tensor(c.qkv(), 7);
  const Graph forward = c.scaled_forward(), gradient = c.gradient(DType::bf16, /*is_scaled=*/true);
  const TensorMap forward_inputs = {{"0", qkv}, {"1", normal_tensor(c.out(DType::f32), 8)}};
  expect_near_reference(forward, forward_inputs, run(c, forward, forward_inputs), kRoundedProbabilities);
  TensorMap inputs = gradient_inputs(c, qkv);
  inputs["4"] = normal_tensor(c.qkv(DType::f32), 9);
  expect_near_reference(gradient, inputs, run(c, gradient, inputs), kRoundedProbabilities);
}

TEST(AttentionWgmma, ResultsLieWhereARunOfThemCanBeStored) {
  const Case c{64, 1, 32};
  const Graph body = c.scaled_forward();
  const TensorMap inputs = {{"0", normal_tensor(c.qkv(), 1)}, {"1", normal_tensor(c.out(DType::f32), 2)}};
  Placed placed = place(body, {}, h100());
  const auto move_to = [&](int64_t offset) {
    placed.spec.results[0].value += offset - placed.spec.result_alignment[0] % 256;
    placed.spec.result_alignment[0] = offset;
  };
  move_to(8);  // Four of bf16 are 8 bytes.
  expect_near_reference(body, inputs, run_drafts(placed, emitted(placed), inputs, "sm_90a"), kRoundedProbabilities);
  move_to(4);
  EXPECT_FALSE(accepts_attention_wgmma(placed.spec));
}

TEST(AttentionWgmma, WideIndicesReachTheSameElements) {
  const Case c{65, 2, 16, QkvOrder::heads_first, 2};
  const TensorMap inputs = gradient_inputs(c, normal_tensor(c.qkv(), 12));
  for (const bool is_grad : {false, true}) {
    const Graph body = is_grad ? c.gradient() : c.forward();
    const Placed placed = place(body, {}, h100());
    Recorder narrow = emitted(placed);
    Case large = c;
    large.images = 600'000;  // More than 2^31 elements of dqkv.
    const Graph large_body = is_grad ? large.gradient() : large.forward();
    Recorder wide = emitted(place(large_body, {}, h100()));
    ASSERT_NE(narrow.drafts[0].source, wide.drafts[0].source);
    const TensorMap want = run_drafts(placed, narrow, inputs, "sm_90a");
    narrow.drafts[0].source = wide.drafts[0].source;
    for (const auto& [name, tensor] : run_drafts(placed, narrow, inputs, "sm_90a")) {
      EXPECT_EQ(tensor.data, want.at(name).data) << name;
    }
  }
}

TEST(AttentionWgmma, BlocksDoNotChangeBits) {
  const Case c{200, 1, 32};
  const Graph body = c.forward();
  const TensorMap inputs = {{"0", normal_tensor(c.qkv(), 11)}};
  const TensorMap first = run(c, body, inputs);
  Placed placed = place(body, {}, h100());
  const size_t tiles = attention_wgmma_choices(placed.spec).at(0).tiles.size();
  EXPECT_EQ(tiles, 3u);
  for (size_t tile = 1; tile < tiles; ++tile) {
    placed.spec.tiles = {tile};
    for (const auto& [name, tensor] : run_drafts(placed, emitted(placed), inputs, "sm_90a")) {
      EXPECT_EQ(tensor.data, first.at(name).data) << name;
    }
  }
}

TEST(AttentionWgmma, IsChosenWhereHeadsFit) {
  const auto chosen = [](const Graph& body, const ir::DeviceSpec& device, int64_t alignment = 256) {
    return find_emitter(place(body, {.alignment = alignment}, device).spec).name;
  };
  const Case c{256, 6, 32};
  EXPECT_EQ(chosen(c.forward(), h100()), "attention_wgmma");
  EXPECT_EQ(chosen(c.gradient(), h100()), "attention_wgmma");
  EXPECT_EQ(chosen(c.gradient(), *ir::find_device_spec("a100")), "attention");
  EXPECT_EQ(chosen(c.gradient(), h100(), 8), "attention");
  EXPECT_EQ(chosen(c.gradient(DType::f32), h100()), "attention");
  EXPECT_EQ(chosen(c.forward(DType::f16), h100()), "attention");
  EXPECT_EQ(chosen(Case{257, 1, 32}.forward(), h100()), "attention");
  EXPECT_EQ(chosen(Case{256, 1, 64}.gradient(), h100()), "attention_wgmma");
  EXPECT_EQ(chosen(Case{257, 1, 64}.gradient(), h100()), "attention_stream");
  EXPECT_EQ(chosen(Case{64, 1, 128}.forward(), h100()), "attention_stream");
  EXPECT_EQ(chosen(Case{64, 1, 20}.forward(), h100()), "attention");
}

}  // namespace
}  // namespace difuse::codegen::cuda
