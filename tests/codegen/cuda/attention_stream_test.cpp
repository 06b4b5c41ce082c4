// Attention of any length on Hopper: run on the CPU it gives what the reference gives, bit by bit the same for an image
// alone and in a batch; its kernels compile without spills, and they are chosen where no smaller ones are.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "codegen/cuda/emit/attention/tiles.h"
#include "codegen/jit/nvrtc.h"
#include "tests/codegen/cuda/attention_inputs.h"
#include "tests/codegen/cuda/body_run.h"

namespace difuse::codegen::cuda {
namespace {

using Case = AttentionCase;
using ir::Graph;
using ir::QkvOrder;
using ir::Tensor;
using ir::TensorMap;

Recorder emitted(const Placed& placed) {
  EXPECT_TRUE(accepts_attention_stream(placed.spec));
  Recorder recorder;
  emit_attention_stream(placed.spec, recorder);
  return recorder;
}

/// So few processors that blocks compute several sets of rows.
TensorMap run(const Case& c, const Graph& body, const TensorMap& inputs, int64_t processors = 2) {
  ir::DeviceSpec device = h100();
  device.processors = processors;
  const Placed placed = place(body, {.alignment = c.alignment}, device);
  const bool is_gradient = inputs.size() > 1;  // Its warpgroups wait for each other.
  return run_drafts(placed, emitted(placed), inputs, "sm_90a", /*find_races=*/!is_gradient);
}

class AttentionStreamCase : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionStreamCase, AgreesWithTheReference) {
  const Case& c = GetParam();
  const Tensor qkv = normal_tensor(c.qkv(), 1);
  const Graph forward = c.forward(), gradient = c.gradient();
  expect_near_reference(forward, {{"0", qkv}}, run(c, forward, {{"0", qkv}}), kRoundedProbabilities);
  const TensorMap inputs = gradient_inputs(c, qkv);
  expect_near_reference(gradient, inputs, run(c, gradient, inputs), kRoundedProbabilities);
}

TEST_P(AttentionStreamCase, CompilesWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const Graph& body : {GetParam().forward(), GetParam().gradient()}) {
    for (const KernelDraft& draft : emitted(place(body, {}, h100())).drafts) {
      expect_compiles(*nvrtc, draft, {"sm_90a"});
    }
  }
}

// One tile and several, whole and not, with two and three consumers, more steps than the ring has slots for.
INSTANTIATE_TEST_SUITE_P(All, AttentionStreamCase,
                         ::testing::Values(Case{40, 1, 256, QkvOrder::heads_first, 2}, Case{250, 1, 256},
                                           Case{130, 2, 128, QkvOrder::qkv_first}, Case{370, 1, 64},
                                           Case{256, 2, 64, QkvOrder::qkv_first, 1, 16}),
                         [](const auto& one) { return one.param.name(); });

TEST(AttentionStream, MissingKeysOfVeryNegativeScoresAddNothing) {
  const Case c{80, 1, 64};
  const Tensor qkv = normal_tensor(c.qkv(), 5, 1, 4.5, c.width);  // Scores about -160.
  const Graph forward = c.forward(), gradient = c.gradient();
  expect_near_reference(forward, {{"0", qkv}}, run(c, forward, {{"0", qkv}}), 2e-2);
  const TensorMap inputs = gradient_inputs(c, qkv);
  expect_near_reference(gradient, inputs, run(c, gradient, inputs), 2e-2);
}

TEST(AttentionStream, AnEpiloguesOperandIsRead) {
  const Case c{70, 1, 128};
  TensorMap inputs = gradient_inputs(c, normal_tensor(c.qkv(), 7));
  inputs["4"] = normal_tensor(c.qkv(ir::DType::f32), 8);
  const Graph gradient = c.gradient(ir::DType::bf16, /*is_scaled=*/true);
  expect_near_reference(gradient, inputs, run(c, gradient, inputs), kRoundedProbabilities);
}

TEST(AttentionStream, AnImagesBitsDoNotDependOnTheBatch) {
  Case c{65, 1, 64, QkvOrder::qkv_first, 2};
  const TensorMap batch = gradient_inputs(c, normal_tensor(c.qkv(), 10));
  TensorMap one;
  for (auto [name, tensor] : batch) {
    const auto size = static_cast<ptrdiff_t>(tensor.data.size() / 2);
    tensor.data.erase(tensor.data.begin(), tensor.data.begin() + size);
    tensor.type.shape[0] = 1;
    one[name] = tensor;
  }
  for (const bool is_grad : {false, true}) {
    c.images = 2;
    const Graph body = is_grad ? c.gradient() : c.forward();
    const TensorMap all = run(c, body, batch);
    const Recorder of_batch = emitted(place(body, {}, h100()));
    c.images = 1;
    const Graph alone = is_grad ? c.gradient() : c.forward();
    for (const auto& [name, tensor] : run(c, alone, one)) {
      const std::vector<double>& both = all.at(name).data;
      EXPECT_EQ(std::vector(both.end() - std::ssize(tensor.data), both.end()), tensor.data) << name;
    }
    const Recorder of_one = emitted(place(alone, {}, h100()));
    for (size_t i = 0; i < of_one.drafts.size(); ++i) EXPECT_EQ(of_one.drafts[i].source, of_batch.drafts[i].source);
  }
}

TEST(AttentionStream, IsChosenWhereNoSmallerKernelIs) {
  const auto chosen = [](const Graph& body, const ir::DeviceSpec& device, int64_t alignment = 256) {
    return find_emitter(place(body, {.alignment = alignment}, device).spec).name;
  };
  EXPECT_EQ(chosen(Case{1024, 6, 64}.forward(), h100()), "attention_stream");
  EXPECT_EQ(chosen(Case{1024, 6, 64}.gradient(), h100()), "attention_stream");
  EXPECT_EQ(chosen(Case{4096, 2, 64}.gradient(), h100()), "attention_stream");
  EXPECT_EQ(chosen(Case{256, 9, 64}.gradient(), h100()), "attention_wgmma");
  EXPECT_EQ(chosen(Case{256, 1, 256}.gradient(), h100()), "attention_stream");
  EXPECT_EQ(chosen(Case{64, 12, 64}.gradient(), h100()), "attention_wgmma");
  EXPECT_EQ(chosen(Case{1024, 6, 64}.forward(), *ir::find_device_spec("a100")), "attention");
  EXPECT_EQ(chosen(Case{1024, 6, 64}.forward(), h100(), 8), "attention");
  EXPECT_EQ(chosen(Case{1024, 2, 96}.forward(), h100()), "attention");
  EXPECT_EQ(chosen(Case{16, 1, 256}.forward(), h100()), "attention");
  EXPECT_EQ(chosen(Case{4096, 1, 256}.gradient(), h100()), "attention");  // Its statistics do not fit.
}

}  // namespace
}  // namespace difuse::codegen::cuda
