// The CUDA executor on a real GPU: what the stand-in for the driver cannot show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "codegen/jit/compiler.h"
#include "ir/builder.h"
#include "ir/error.h"
#include "passes/memory_plan.h"
#include "runtime/compile.h"
#include "runtime/cuda/roofline.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/gpu.h"
#include "tests/support/op_rows.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using codegen::cuda::Argument;
using codegen::cuda::CudaPlan;
using ir::DType;
using test::error_of;

/// A plan of one kernel `source`, which gets the state "s", f32[elements], and the number of its elements.
CudaPlan plan_of(const Target& gpu, const std::string& name, const std::string& source, int64_t elements) {
  CudaPlan plan;
  ir::Builder b(plan.graph);
  const ir::Value s = b.state("s", {DType::f32, {elements}});
  plan.graph.set_output("y", s);
  plan.memory = passes::plan_memory(plan.graph);
  plan.sources = {{name, source, ir::architecture_name(gpu.spec()), {}}};
  plan.calls.push_back({.source = 0,
                        .node = s.node,
                        .grid = {(elements + 255) / 256},
                        .threads = 256,
                        .shared_bytes = 64 * 1024,
                        .arguments = {{Argument::Kind::arena, plan.memory.at(s).offset}, {.value = elements}}});
  return plan;
}

std::vector<float> read_state(const Executor& executor, size_t elements) {
  std::vector<float> numbers(elements);
  executor.read_state("s", std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

// Each kernel reads what the one before it wrote, at another place, and starts early: a missing wait shows.
TEST(GpuExecutor, DependentKernelsOfAGraphFollowOneAnother) {
  DIFUSE_NEED_GPU(gpu);
  constexpr int64_t kElements = 1 << 20;
  const std::string wait = gpu.spec().architecture >= 90 ? R"(asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");)"
                                                         : "";
  const std::string source = R"(
extern "C" __global__ void __launch_bounds__(256) reverse_and_add(float* s, long long n) {
  )" + wait + R"(
  const long long i = 256ll * blockIdx.x + threadIdx.x;
  if (i >= n / 2) return;
  const float a = s[i], b = s[n - 1 - i];
  s[i] = b + 1.0f;
  s[n - 1 - i] = a + 1.0f;
})";
  CudaPlan plan = plan_of(gpu, "reverse_and_add", source, kElements);
  for (int i = 0; i < 100; ++i) plan.calls.push_back(plan.calls[0]);
  const auto executor = testing::execute(gpu, std::move(plan));
  std::vector<float> want(kElements);
  for (size_t i = 0; i < want.size(); ++i) want[i] = static_cast<float>(i % 1000);
  executor->write_state("s", std::as_bytes(std::span(want)));
  for (int step = 0; step < 5; ++step) executor->run();
  std::reverse(want.begin(), want.end());  // 505 times.
  for (float& v : want) v += 505;
  EXPECT_EQ(read_state(*executor, want.size()), want);
}

TEST(GpuExecutor, AKernelThatFailsIsNamed) {
  DIFUSE_NEED_GPU(gpu);
  const std::string source = R"(
extern "C" __global__ void trap_at_two(float* s, long long n) {
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    if (s[0] == 2.0f) __trap();
    s[0] += 1.0f;
  }
})";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // A process of its own, with a context of its own.
  for (const bool check : {false, true}) {
    EXPECT_EXIT(
        {
          const auto executor =
              testing::execute(gpu, plan_of(gpu, "trap_at_two", source, 256), {.graphs = true, .check = check});
          try {
            for (int i = 0; i < 5; ++i) executor->run();
            executor->wait();
          } catch (const Error& error) {
            std::fprintf(stderr, "%s\n", error.what());
            std::exit(7);
          }
        },
        ::testing::ExitedWithCode(7),
        check ? "the kernel trap_at_two \\(%0 of the graph \"main\"\\) failed: CUDA_ERROR_"
              : "a step of \"main\" on the GPU .* failed: CUDA_ERROR_");
  }
}

TEST(GpuExecutor, SaysWhatDoesNotFit) {
  DIFUSE_NEED_GPU(gpu);
  CudaPlan plan = plan_of(gpu, "nothing_much", R"(
extern "C" __global__ void nothing_much(float* s, long long n) {}
)",
                          256);
  plan.memory.arena_bytes = int64_t{1} << 42;
  EXPECT_CONTAINS(error_of([&] { testing::execute(gpu, plan); }), "the graph \"main\" takes 4398.05 GB, and ");
}

TEST(GpuExecutor, InputsAndOutputsOfManyStepsAtOnce) {
  DIFUSE_NEED_GPU(gpu);
  ir::Graph graph("sum");
  ir::Builder b(graph);
  const ir::Type type{DType::f32, {3, 1000}};
  const ir::Value sum = b.add(b.state("sum", type), b.input("x", type));
  graph.set_output("total", b.sum_all(sum));
  graph.set_update("sum", sum);
  const auto executor = testing::execute(gpu, testing::plan_for(gpu, graph));
  std::vector<std::unique_ptr<Fetch>> totals;
  std::vector<float> x(3000);
  for (int step = 1; step <= 50; ++step) {
    x.assign(x.size(), static_cast<float>(step));
    executor->write_input("x", std::as_bytes(std::span(x)));
    executor->run();
    totals.push_back(executor->fetch_output("total"));
  }
  for (int step = 1; step <= 50; ++step) {
    float got = 0;
    std::memcpy(&got, totals[static_cast<size_t>(step) - 1]->bytes().data(), sizeof(got));
    EXPECT_EQ(got, 3000.0f * static_cast<float>(step * (step + 1) / 2)) << step;
  }
}

TEST(GpuExecutor, GraphsThatTryTheMemoryPlan) {
  DIFUSE_NEED_GPU(gpu);
  ir::Graph graph("g");
  ir::Builder b(graph);
  const ir::Value x = b.input("x", {DType::f32, {4, 6}}), e = b.exp(x);
  graph.set_output("x", x);
  graph.set_output("shaped", b.reshape(e, {24}));
  graph.set_output("part", b.view(b.reshape(e, {24}), 6, {2, 3}));
  graph.set_output("constant", b.constant(1.5, {DType::f16, {3}}));
  graph.set_output("table", b.literal({1, 2, 3}, {DType::i32, {3}}));
  graph.set_output("packed", b.pack({b.exp(x), x, b.neg(e)}, {64, 128, 192}, 40000));
  const ir::Value s = b.state("s", {DType::f32, {5}}), t = b.state("t", {DType::f32, {5}});
  graph.set_update("s", b.add(s, t));
  graph.set_update("t", s);
  b.state("kept", {DType::f32, {2}});
  const ir::TensorMap inputs = testing::random_leaves(graph, ir::Op::input, 1);
  const ir::TensorMap states = testing::random_leaves(graph, ir::Op::state, 2);
  const auto executor = testing::execute(gpu, testing::plan_for(gpu, graph));
  for (int step = 0; step < 3; ++step) {
    testing::expect_near_reference(graph, testing::run(*executor, inputs, states), inputs, states, 1e-6);
  }
}

TEST(GpuExecutor, ProfilesAndTimes) {
  DIFUSE_NEED_GPU(gpu);
  ir::Graph graph("g");
  ir::Builder b(graph);
  const ir::Type type{DType::f32, {64, 1024, 256}};
  const ir::Value x = b.input("x", type);
  graph.set_output("y", b.sum_all(b.exp(x)));
  graph.set_output("z", b.neg(x));
  for (const bool graphs : {true, false}) {
    const auto executor = testing::execute(gpu, testing::plan_for(gpu, graph), {.graphs = graphs});
    executor->run();
    executor->enable_profile(true);
    for (int i = 0; i < 5; ++i) executor->run();
    executor->enable_profile(false);
    double sum = 0;
    for (const KernelProfile& row : executor->profile()) {
      EXPECT_EQ(row.calls, 5);
      EXPECT_GT(row.median, 1e-7) << row.name;
      EXPECT_LT(row.median, 1e-2) << row.name;
      sum += row.median;
    }
    const double step = median(executor->time_steps(20));
    EXPECT_GT(step, sum / 4) << graphs;
    EXPECT_LT(step, sum * 4) << graphs;
    // 64 MiB of floats cannot move faster than memory does.
    EXPECT_GT(step, static_cast<double>(type.bytes()) / 2e13);
  }
}

TEST(GpuRoofline, IsNearTheDatasheet) {
  DIFUSE_NEED_GPU(gpu);
  for (const passes::Precision p : {passes::Precision::bf16, passes::Precision::tf32, passes::Precision::f32}) {
    const Roofline roofline = measure_roofline(gpu.cuda, *gpu.cache, {}, p);
    EXPECT_GT(roofline.bandwidth, 0.4 * gpu.spec().bandwidth);
    EXPECT_LT(roofline.bandwidth, 1.5 * gpu.spec().bandwidth);
    EXPECT_GT(roofline.flops, 0.01 * gpu.spec().contraction_flops) << roofline.products;
    EXPECT_LT(roofline.flops, 1.3 * gpu.spec().contraction_flops) << roofline.products;
  }
}

}  // namespace
}  // namespace difuse::runtime
