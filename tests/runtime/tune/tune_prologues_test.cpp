// Which images convolutions compute on the way, tuned on a device with a stand-in for the driver and kernels that are
// host functions: what is timed, kept and compiled with.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <sstream>
#include <thread>

#include "ir/builder.h"
#include "runtime/cuda/executor.h"
#include "runtime/tune/tune_step.h"
#include "tests/runtime/fake_driver.h"
#include "tests/support/fake_cuda/fake_kernel.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using codegen::TuningTable;
using passes::Prologues;
using test::TempFolder;

/// SiLU, rounded, before a 3x3 convolution.
ir::Graph activated_convolution(int64_t batch) {
  ir::Graph graph("activated_convolution");
  ir::Builder b(graph);
  const ir::Value x = b.input("x", {ir::DType::bf16, {batch, 32, 32, 64}});
  const ir::Value w = b.input("w", {ir::DType::bf16, {64, 3, 3, 64}});
  const ir::Value image = b.cast(b.silu(b.cast(x, ir::DType::f32)), ir::DType::bf16);
  graph.set_output("y", b.cast(b.conv_fprop(image, w, 1, 1), ir::DType::bf16));
  return graph;
}

int do_nothing(const uint64_t*, unsigned) { return 0; }
int take_long(const uint64_t*, unsigned) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return 0;
}

class TunedPrologues : public ::testing::Test {
 protected:
  static constexpr codegen::NvrtcVersion kVersion{13, 0};
  static constexpr int64_t kBatch = 2;

  void SetUp() override {
    device_ = CudaDevice::open(0, kFakeDriver);
    cache_ = std::make_shared<codegen::KernelCache>(folder_ / "kernels");
    // A compiler that is gone: what the cache holds is still good.
    cache_->set_last_compiler({.path = "/no/libnvrtc.so", .bytes = 1, .modified_ns = 1, .version = kVersion});
    options_.cache = folder_.path().string();
  }

  CompileSettings compiling(Prologues prologues) {
    CompileSettings settings;
    settings.log = &log_;
    settings.prologues = prologues;
    return settings;
  }

  /// The loop that makes the image, the convolution that reads it, and the one that computes it.
  void kernels_are(test::FakeKernel loop, test::FakeKernel plain, test::FakeKernel with_prologue) {
    const auto store = [&](Prologues prologues, const std::vector<test::FakeKernel>& kernels) {
      const auto plan = plan_cuda(activated_convolution(kBatch), options_, device_->spec(), compiling(prologues));
      ASSERT_EQ(plan.sources.size(), kernels.size());
      for (size_t i = 0; i < kernels.size(); ++i) {
        cache_->store(plan.sources[i], kVersion, *test::fake_kernel(plan.sources[i].name, kernels[i], 0));
      }
    };
    store(Prologues::never, {loop, plain});
    store(Prologues::always, {with_prologue});
  }

  StepTuning tune(TuneSettings settings = {}, bool again = false, Prologues prologues = Prologues::automatic) {
    settings.tiles = false;
    return tune_step(activated_convolution(kBatch), options_, Target(device_, cache_), compiling(prologues), settings,
                     again);
  }

  TuningTable kept() { return tuning_store(options_, *device_, &log_).load(); }
  size_t launches(Prologues prologues) {
    const auto executor =
        compile(activated_convolution(kBatch), options_, Target(device_, cache_), compiling(prologues));
    return dynamic_cast<CudaExecutor&>(*executor).plan().calls.size();
  }

  TempFolder folder_;
  std::shared_ptr<const CudaDevice> device_;
  std::shared_ptr<codegen::KernelCache> cache_;
  ir::Options options_;
  std::ostringstream log_;
};

TEST_F(TunedPrologues, AreComputedWhereTheStepIsFasterSo) {
  kernels_are(take_long, do_nothing, do_nothing);
  const StepTuning tuning = tune();
  ASSERT_EQ(tuning.prologues.sites.size(), 1u);
  const TunedPrologue& site = tuning.prologues.sites[0];
  EXPECT_EQ(site.rejected, "");
  EXPECT_TRUE(site.site.computed);
  EXPECT_GT(site.stored_seconds, 1e-3);
  EXPECT_LT(site.computed_seconds, site.stored_seconds);
  EXPECT_GT(tuning.step_before, 1e-3);
  EXPECT_TRUE(tuning.is_better());
  EXPECT_TRUE(tuning.kept);
  EXPECT_EQ(kept(), tuning.prologues.decisions) << "to the hundredth of a microsecond";

  EXPECT_EQ(launches(Prologues::automatic), 1u);
  EXPECT_EQ(launches(Prologues::never), 2u);
  options_.tune = ir::Tuning::off;
  EXPECT_EQ(launches(Prologues::automatic), 2u);
  EXPECT_EQ(log_.str(), "");
}

/// What is decided at one batch holds at all, until another one was tuned.
TEST_F(TunedPrologues, AreTheSameAtAnyBatch) {
  kernels_are(take_long, do_nothing, do_nothing);
  tune();
  const TuningTable tuned = kept();
  CompileSettings settings = compiling(Prologues::automatic);
  settings.tuned = &tuned;
  for (const int64_t batch : {1, 3, 64}) {
    const auto plan = plan_cuda(activated_convolution(batch), options_, device_->spec(), settings);
    EXPECT_EQ(plan.calls.size(), 1u) << batch;
  }
}

TEST_F(TunedPrologues, StayStoredWhereTheStepIsSlower) {
  kernels_are(do_nothing, do_nothing, take_long);
  const StepTuning tuning = tune();
  ASSERT_EQ(tuning.prologues.sites.size(), 1u);
  EXPECT_FALSE(tuning.prologues.sites[0].site.computed);
  EXPECT_EQ(tuning.step_before, 0) << "nothing else is decided than before";
  ASSERT_EQ(kept().prologues().size(), 1u);
  EXPECT_FALSE(kept().prologues().begin()->second.computed);
  EXPECT_EQ(launches(Prologues::automatic), 2u);
  EXPECT_EQ(launches(Prologues::always), 1u) << "a person's word counts";
}

TEST_F(TunedPrologues, AreTunedOnceUnlessAskedAndNotWhereAPersonDecides) {
  static std::atomic<bool> is_loop_slow;
  is_loop_slow = true;
  kernels_are(
      +[](const uint64_t*, unsigned) { return is_loop_slow ? take_long(nullptr, 0) : 0; }, do_nothing,
      +[](const uint64_t*, unsigned) { return is_loop_slow ? 0 : take_long(nullptr, 0); });
  EXPECT_TRUE(tune({}, false, Prologues::never).prologues.sites.empty());
  EXPECT_TRUE(tune({}, false, Prologues::always).prologues.sites.empty());
  TuneSettings tiles_alone;
  tiles_alone.prologues = false;
  EXPECT_TRUE(tune(tiles_alone).prologues.sites.empty());
  EXPECT_TRUE(kept().empty());

  tune();
  const StepTuning second = tune();
  EXPECT_EQ(second.known, 1u);
  EXPECT_TRUE(second.prologues.sites.empty());
  is_loop_slow = false;
  const StepTuning third = tune({}, /*again=*/true);
  ASSERT_EQ(third.prologues.sites.size(), 1u);
  EXPECT_FALSE(third.prologues.sites[0].site.computed);
  EXPECT_EQ(launches(Prologues::automatic), 2u);
}

/// One mechanism with the tiles': what was faster while it was tried may not be so in the end.
TEST_F(TunedPrologues, AreAsBeforeWhereTheStepIsNotFaster) {
  static std::atomic<bool> is_tried;
  is_tried = false;
  kernels_are(
      +[](const uint64_t*, unsigned) { return is_tried ? 0 : take_long(nullptr, 0); }, do_nothing,
      +[](const uint64_t*, unsigned) { return is_tried ? take_long(nullptr, 0) : 0; });
  TuneSettings settings;
  settings.each_prologue = [](const TunedPrologue&, size_t, size_t) { is_tried = true; };
  const StepTuning tuning = tune(settings);
  EXPECT_TRUE(tuning.prologues.sites.at(0).site.computed);
  EXPECT_FALSE(tuning.is_better());
  ASSERT_EQ(kept().prologues().size(), 1u);
  EXPECT_FALSE(kept().prologues().begin()->second.computed);
  EXPECT_EQ(launches(Prologues::automatic), 2u);
}

}  // namespace
}  // namespace difuse::runtime
