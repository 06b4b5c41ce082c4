// Tuning on a device, with a stand-in for the driver and kernels that are host functions: how candidates are run and
// timed, and what is kept.
#include "runtime/tune/tune_step.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <sstream>
#include <thread>

#include "codegen/cuda/lower_cuda.h"
#include "ir/builder.h"
#include "ir/error.h"
#include "passes/memory_plan.h"
#include "runtime/cuda/executor.h"
#include "runtime/tune/cuda_timer.h"
#include "tests/runtime/fake_driver.h"
#include "tests/support/fake_cuda/fake_kernel.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using codegen::CudaSource;
using codegen::TuningTable;
using codegen::cuda::CudaPlan;
using codegen::cuda::TuningSite;
using test::fake_kernel;
using test::TempFolder;

constexpr uint64_t kRows = 96, kWidth = 64;

ir::Graph product() {
  ir::Graph graph("product");
  ir::Builder b(graph);
  const ir::Value a = b.input("a", {ir::DType::bf16, {kRows, 64}}), w = b.input("w", {ir::DType::bf16, {kWidth, 64}});
  graph.set_output("y", b.matmul(a, w, false, /*transpose_b=*/true));
  return graph;
}

int flush(const uint64_t*, unsigned) { return 0; }
int compare(const uint64_t* arguments, unsigned) {
  const auto* a = reinterpret_cast<const uint32_t*>(arguments[0]);
  const auto* b = reinterpret_cast<const uint32_t*>(arguments[1]);
  if (!std::equal(a, a + arguments[3], b)) *reinterpret_cast<uint32_t*>(arguments[2]) = 1;
  return 0;
}
/// Something of the operands: what is not filled or not written shows.
int multiply(const uint64_t* arguments, unsigned) {
  const auto* a = reinterpret_cast<const uint16_t*>(arguments[0]);
  auto* y = reinterpret_cast<uint32_t*>(arguments[2]);
  for (uint64_t i = 0; i < kRows * kWidth; ++i) y[i] = a[i % (kRows * 64)] * 3u;
  return 0;
}
int multiply_slowly(const uint64_t* arguments, unsigned blocks) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return multiply(arguments, blocks);
}
int multiply_wrongly(const uint64_t* arguments, unsigned blocks) {
  multiply(arguments, blocks);
  reinterpret_cast<uint32_t*>(arguments[2])[kRows * kWidth - 1] ^= 1;
  return 0;
}
int leave_out_the_last(const uint64_t* arguments, unsigned blocks) {
  auto* last = reinterpret_cast<uint32_t*>(arguments[2]) + kRows * kWidth - 1;
  const uint32_t old = *last;
  multiply(arguments, blocks);
  *last = old;
  return 0;
}

class Tuning : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = CudaDevice::open(0, kFakeDriver);
    cache_ = std::make_shared<codegen::KernelCache>(folder_ / "kernels");
    // A compiler that is gone: what the cache holds is still good.
    cache_->set_last_compiler({.path = "/no/libnvrtc.so", .bytes = 1, .modified_ns = 1, .version = kVersion});
    const CudaPlan tools = TimerTools::plan(device_->spec());
    cache_->store(tools.sources[0], kVersion, *fake_kernel(tools.sources[0].name, flush, 3));
    cache_->store(tools.sources[1], kVersion, *fake_kernel(tools.sources[1].name, compare, 4));
    options_.cache = folder_.path().string();
    const CudaPlan plan = plan_cuda(product(), options_, device_->spec());
    sites_ = codegen::cuda::tuning_sites(plan, device_->spec());
    ASSERT_EQ(sites_.size(), 1u);
    order_ = {0};
    for (const size_t i : sites_[0].choice().at_batch) {
      if (i != 0) order_.push_back(i);
    }
    order_.resize(std::min(TuneSettings().most_candidates, order_.size()));
  }

  /// What the kernel with each candidate is, in the order in which they are tried; `multiply` for the others.
  void kernels_are(const std::map<size_t, test::FakeKernel>& named) {
    for (size_t i = 0; i < order_.size(); ++i) {
      const std::vector<size_t> one = {order_[i]};
      const CudaSource source = sites_[0].plan(one).sources.at(0);
      const auto found = named.find(i);
      cache_->store(source, kVersion, *fake_kernel(source.name, found == named.end() ? multiply : found->second, 4));
    }
  }

  StepTuning tune(const TuneSettings& settings = {}, bool again = false) {
    CompileSettings compiling;
    compiling.log = &log_;
    return tune_step(product(), options_, Target(device_, cache_), compiling, settings, again);
  }

  codegen::TuningStore store() { return tuning_store(options_, *device_, &log_); }
  const std::string& tile(size_t i) const { return sites_[0].choice().tiles[order_[i]]; }
  const codegen::Decision* decision(const TuningTable& table) const {
    return table.exact(sites_[0].choice().problem, sites_[0].choice().batch);
  }

  static constexpr codegen::NvrtcVersion kVersion{13, 0};
  TempFolder folder_;
  std::shared_ptr<const CudaDevice> device_;
  std::shared_ptr<codegen::KernelCache> cache_;
  ir::Options options_;
  std::vector<TuningSite> sites_;
  std::vector<size_t> order_;  // Of the candidates that are tried.
  std::ostringstream log_;
};

TEST_F(Tuning, ComparesWhatCandidatesWrite) {
  kernels_are({{1, multiply_slowly}, {2, multiply_wrongly}, {3, leave_out_the_last}});
  const CudaPlan tools_plan = TimerTools::plan(device_->spec());
  TuneMeans::Kernels tool_kernels, kernels;
  for (const CudaSource& s : tools_plan.sources) tool_kernels.push_back(cache_->find(s, kVersion));
  TimerTools tools(device_, tool_kernels);
  const std::vector<size_t> four(order_.begin(), order_.begin() + 4);
  const CudaPlan plan = sites_[0].plan(four);
  for (const CudaSource& s : plan.sources) kernels.push_back(cache_->find(s, kVersion));
  CudaTimer timer(tools, sites_[0], plan, kernels);
  EXPECT_TRUE(timer.agrees(0));
  EXPECT_TRUE(timer.agrees(1));
  EXPECT_FALSE(timer.agrees(2));
  EXPECT_FALSE(timer.agrees(3)) << "the results of the candidate before do not help";
  EXPECT_TRUE(timer.agrees(1));

  const std::vector<size_t> two = {1, 0};
  const auto seconds = timer.time(two, 5);
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_EQ(seconds[0].size(), 5u);
  EXPECT_GE(median(seconds[0]), 1e-3);
  EXPECT_LT(median(seconds[1]), median(seconds[0]));
}

TEST_F(Tuning, KeepsTheFastestAndRunsWithIt) {
  kernels_are({{0, multiply_slowly}, {1, multiply_wrongly}});
  const StepTuning tuning = tune();
  EXPECT_EQ(tuning.known, 0u);
  ASSERT_EQ(tuning.result.sites.size(), 1u);
  EXPECT_NE(tuning.result.sites[0].candidates[1].rejected, "");
  EXPECT_GT(tuning.result.sites[0].winner, 1);
  EXPECT_TRUE(tuning.kept);
  EXPECT_TRUE(tuning.is_better());
  EXPECT_GT(tuning.step_before, 1e-3);
  EXPECT_LT(tuning.step_after, tuning.step_before);
  const TuningTable kept = store().load();
  ASSERT_NE(decision(kept), nullptr);
  EXPECT_EQ(*decision(kept), *decision(tuning.result.decisions)) << "to the hundredth of a microsecond";

  const auto executor = compile(product(), options_, Target(device_, cache_));
  EXPECT_EQ(dynamic_cast<CudaExecutor&>(*executor).plan().chosen.at(0).tile, decision(kept)->tile);
  options_.tune = ir::Tuning::off;
  const auto plain = compile(product(), options_, Target(device_, cache_));
  EXPECT_FALSE(dynamic_cast<CudaExecutor&>(*plain).plan().chosen.at(0).is_tuned);
  EXPECT_EQ(log_.str(), "");
}

TEST_F(Tuning, DoesNothingTwiceUnlessAsked) {
  kernels_are({{0, multiply_slowly}});
  tune();
  const StepTuning second = tune();
  EXPECT_EQ(second.known, 1u);
  EXPECT_TRUE(second.sites.empty());
  const std::string in_use = decision(store().load())->tile;
  const StepTuning third = tune({}, /*again=*/true);
  EXPECT_EQ(third.known, 0u);
  ASSERT_EQ(third.result.sites.size(), 1u);
  EXPECT_EQ(third.result.sites[0].candidates[0].tile, in_use);
}

TEST_F(Tuning, KeepsWhatIsDecidedWhenItIsStopped) {
  kernels_are({{0, multiply_slowly}});
  TuneSettings settings;
  bool stopped = false;
  settings.each = [&](const TunedSite&, size_t, size_t) { stopped = true; };
  settings.stop = [&] { return stopped; };
  const StepTuning tuning = tune(settings);
  EXPECT_TRUE(tuning.result.stopped);
  EXPECT_EQ(tuning.step_before, 0) << "nobody waits for the comparison of the step";
  EXPECT_NE(decision(store().load()), nullptr);
}

/// What is faster alone may be slower among others.
TEST_F(Tuning, KeepsTheTileOfBeforeWhereTheStepIsNotFaster) {
  static std::atomic<int> runs;  // Of the first candidate.
  runs = 0;
  constexpr int kTimedAlone = 1 + 2 * (1 + 5);  // Compared once; replayed twice for the first round and the others.
  kernels_are({{0,
                +[](const uint64_t* arguments, unsigned blocks) {
                  if (runs++ < kTimedAlone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                  return multiply(arguments, blocks);
                }},
               {1, +[](const uint64_t* arguments, unsigned blocks) {
                  if (runs >= kTimedAlone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                  return multiply(arguments, blocks);
                }}});
  const StepTuning tuning = tune({.most_candidates = 2, .rounds = 5});
  ASSERT_EQ(tuning.result.sites.at(0).winner, 1);
  EXPECT_FALSE(tuning.is_better());
  EXPECT_EQ(decision(store().load())->tile, tile(0));
}

}  // namespace
}  // namespace difuse::runtime
