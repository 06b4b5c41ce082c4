// What runtime/cuda does around kernels, with a stand-in for the driver: order, copies that nobody waits for, eager
// steps and replayed ones, profiles, and what is said when something fails.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>

#include "ir/builder.h"
#include "ir/error.h"
#include "passes/memory_plan.h"
#include "runtime/cuda/executor.h"
#include "tests/runtime/fake_driver.h"
#include "tests/support/fake_cuda/fake_kernel.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using codegen::cuda::Argument;
using codegen::cuda::CudaPlan;
using test::error_of;
using test::fake_kernel;
using Kernels = std::vector<std::shared_ptr<const codegen::CompiledKernel>>;
using Numbers = std::array<float, 4>;

float* floats(uint64_t address) { return reinterpret_cast<float*>(address); }

int add(const uint64_t* arguments, unsigned) {
  for (uint64_t i = 0; i < arguments[3]; ++i) {
    floats(arguments[0])[i] = floats(arguments[1])[i] + floats(arguments[2])[i];
  }
  return 0;
}
int copy(const uint64_t* arguments, unsigned) {
  for (uint64_t i = 0; i < arguments[2]; ++i) floats(arguments[0])[i] = floats(arguments[1])[i];
  return 0;
}
/// add, for each row of a table: its four arguments and the blocks of its own.
int add_rows(const uint64_t* arguments, unsigned blocks) {
  for (unsigned row = 0; row < blocks; ++row) add(arguments + size_t{5} * row, 1);
  return 0;
}
/// Like copy, but fails where the first number is 13.
int copy_or_fail(const uint64_t* arguments, unsigned blocks) {
  return floats(arguments[1])[0] == 13 ? 1 : copy(arguments, blocks);
}

/// y = x + s + c, and s becomes y.
CudaPlan running_sum() {
  CudaPlan plan;
  ir::Builder b(plan.graph);
  const ir::Type type{ir::DType::f32, {4}};
  const ir::Value x = b.input("x", type), s = b.state("s", type), c = b.literal({1, 2, 3, 4}, type);
  const ir::Value xc = b.add(x, c), y = b.add(xc, s);
  plan.graph.set_output("y", y);
  plan.graph.set_update("s", y);
  plan.memory = passes::plan_memory(plan.graph, {.reuse = false});
  const auto at = [&](ir::Value v) { return Argument{Argument::Kind::arena, plan.memory.at(v).offset}; };
  plan.sources = {{"add_up", "", "sm_90a", {}}, {"move_on", "", "sm_90a", {}}};
  plan.calls.push_back({.source = 0, .node = xc.node, .grid = {}, .arguments = {at(xc), at(x), at(c), {.value = 4}}});
  plan.calls.push_back({.source = 0, .node = y.node, .grid = {}, .arguments = {at(y), at(xc), at(s), {.value = 4}}});
  plan.calls.push_back(
      {.source = 1, .node = y.node, .grid = {}, .arguments = {{Argument::Kind::workspace, 256}, at(y), {.value = 4}}});
  plan.calls.push_back(
      {.source = 1, .node = y.node, .grid = {}, .arguments = {at(s), {Argument::Kind::workspace, 256}, {.value = 4}}});
  plan.workspace_bytes = 512;
  return plan;
}

Kernels kernels(test::FakeKernel second = copy) {
  return {fake_kernel("add_up", add, 4), fake_kernel("move_on", second, 3)};
}

template <class T>
void write(Executor& executor, const T& numbers) {
  executor.write_input("x", std::as_bytes(std::span(numbers)));
}
Numbers state(const Executor& executor) {
  Numbers numbers{};
  executor.read_state("s", std::as_writable_bytes(std::span(numbers)));
  return numbers;
}
Numbers output(const Executor& executor) {
  Numbers numbers{};
  executor.read_output("y", std::as_writable_bytes(std::span(numbers)));
  return numbers;
}
void set_state(Executor& executor, const Numbers& numbers) {
  executor.write_state("s", std::as_bytes(std::span(numbers)));
}

/// Sets a variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

class FakeCuda : public ::testing::Test {
 protected:
  FakeCuda() { ::unsetenv("CUDA_VISIBLE_DEVICES"); }

  std::unique_ptr<CudaExecutor> executor(const CudaExecutorOptions& options = {}) const {
    return std::make_unique<CudaExecutor>(device_, running_sum(), kernels(), options);
  }
  static ExitCode exit_code_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.exit_code();
    }
    return ExitCode{};
  }

  std::shared_ptr<const CudaDevice> device_ = CudaDevice::open(0, kFakeDriver);
};

TEST_F(FakeCuda, TensorMapsAreEncodedWhereTensorsLie) {
  const auto with_maps = [](int64_t misplaced) {
    CudaPlan plan = running_sum();
    codegen::cuda::KernelCall& call = plan.calls[1];
    for (size_t i = 0; i < 3; ++i) {
      codegen::cuda::TensorMapSpec map{
          .start = call.arguments[i], .dtype = ir::DType::f32, .extents = {4}, .box = {4}, .steps = {1}};
      map.start.value += misplaced;
      call.arguments[i] = {Argument::Kind::tensor_map, static_cast<int64_t>(i)};
      call.tensor_maps.push_back(map);
    }
    return plan;
  };
  const auto plain = executor();
  CudaExecutor mapped(device_, with_maps(0), kernels());
  for (int step = 0; step < 3; ++step) {
    for (Executor* one : {static_cast<Executor*>(plain.get()), static_cast<Executor*>(&mapped)}) {
      write(*one, Numbers{1, 2, 3, 4});
      one->run();
    }
    EXPECT_EQ(output(mapped), output(*plain));
  }
  const std::string error = error_of([&] { CudaExecutor(device_, with_maps(4), kernels()); });
  EXPECT_NE(error.find("preparing the kernel add_up"), std::string::npos) << error;
}

TEST_F(FakeCuda, StartsFromZerosAndLiterals) {
  const auto e = executor();
  EXPECT_EQ(state(*e), (Numbers{0, 0, 0, 0}));
  EXPECT_EQ(output(*e), (Numbers{0, 0, 0, 0}));
  e->run();
  EXPECT_EQ(output(*e), (Numbers{1, 2, 3, 4}));
}

TEST_F(FakeCuda, EagerAndReplayedStepsFollowOneAnother) {
  for (const bool graphs : {true, false}) {
    const auto e = executor({.graphs = graphs});
    Numbers want{10, 20, 30, 40};
    set_state(*e, want);
    for (float step = 1; step <= 8; ++step) {
      write(*e, Numbers{step, 0, -step, 2 * step});
      e->run();
      if (step == 5) {
        e->enable_profile(true);
      } else if (step == 7) {
        e->enable_profile(false);
      }
      want[0] += step + 1, want[1] += 2, want[2] += 3 - step, want[3] += 2 * step + 4;
      EXPECT_EQ(output(*e), want) << step;
      EXPECT_EQ(state(*e), want) << step;
      if (step == 3) set_state(*e, want = {0, 0, 0, 0});
    }
    const auto rows = e->profile();
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_EQ(rows[0].calls, 2);
    EXPECT_EQ(rows[0].name, "add_up");
    EXPECT_EQ(rows[2].node, rows[1].node);
    EXPECT_GE(rows[0].seconds, rows[0].median);
  }
}

TEST_F(FakeCuda, ProfilesStepsThatWouldBeChecked) {
  const auto e = executor({.check = true});
  e->run();
  e->enable_profile(true);
  e->run();
  e->run();
  for (const KernelProfile& row : e->profile()) EXPECT_EQ(row.calls, 2) << row.name;
  EXPECT_EQ(state(*e), (Numbers{3, 6, 9, 12}));
}

TEST_F(FakeCuda, TheHostMayRunAhead) {
  const auto e = executor();
  float want = 0;
  std::vector<std::unique_ptr<Fetch>> outputs;
  for (float step = 1; step <= 20; ++step) {
    Numbers x{step, step, step, step};
    write(*e, x);
    x.fill(-1000);  // What was given is given.
    write(*e, Numbers{step, 0, 0, 0});
    e->run();
    outputs.push_back(e->fetch_output("y"));
    want += step + 1;
  }
  float sum = 0;
  for (float step = 1; step <= 20; ++step) {
    sum += step + 1;
    float got = 0;
    std::memcpy(&got, outputs[static_cast<size_t>(step) - 1]->bytes().data(), sizeof(got));
    EXPECT_EQ(got, sum) << step;
  }
  EXPECT_EQ(state(*e)[0], want);
  outputs.clear();
  const auto again = e->fetch_output("y");
  float got = 0;
  std::memcpy(&got, again->bytes().data(), sizeof(got));
  EXPECT_EQ(got, want);
}

TEST_F(FakeCuda, TimesSteps) {
  const auto e = executor();
  const std::vector<double> seconds = e->time_steps(5);
  EXPECT_EQ(seconds.size(), 5u);
  for (const double s : seconds) EXPECT_GE(s, 0);
  EXPECT_EQ(state(*e)[0], 6);  // One step more, behind which the first mark lies.
}

TEST_F(FakeCuda, ShowsEachNode) {
  struct Observer : NodeObserver {
    void before(int node) override { text += "<" + std::to_string(node); }
    void after(int node) override { text += " " + std::to_string(node) + ">"; }
    std::string text;
  } observer;
  const auto e = executor();
  e->run_observed(observer);
  EXPECT_EQ(observer.text, "<3 3><4 4>");
  e->run();
  EXPECT_EQ(state(*e)[3], 8);
}

/// y = x + (w + w), whose sum of a state that no step replaces is run once.
CudaPlan sum_of_a_weight() {
  CudaPlan plan;
  ir::Builder b(plan.graph);
  const ir::Type type{ir::DType::f32, {4}};
  const ir::Value x = b.input("x", type), w = b.state("s", type), other = b.state("other", type);
  const ir::Value ww = b.add(w, w), y = b.add(x, ww);
  plan.graph.set_output("y", y);
  plan.graph.set_update("other", b.neg(other));
  plan.memory = passes::plan_memory(plan.graph);
  const auto at = [&](ir::Value v) { return Argument{Argument::Kind::arena, plan.memory.at(v).offset}; };
  plan.sources = {{"add_up", "", "sm_90a", {}}, {"add_up_and_count", "", "sm_90a", {}}};
  plan.once.push_back({.source = 1, .node = ww.node, .grid = {}, .arguments = {at(ww), at(w), at(w), {.value = 4}}});
  plan.once.back().bytes = 48;
  plan.calls.push_back({.source = 0, .node = y.node, .grid = {}, .arguments = {at(y), at(x), at(ww), {.value = 4}}});
  return plan;
}

int counted = 0;
int add_and_count(const uint64_t* arguments, unsigned blocks) {
  ++counted;
  return add(arguments, blocks);
}

TEST_F(FakeCuda, WhatIsTheSameInEveryStepRunsWhenItsStateIsWritten) {
  for (const CudaExecutorOptions options : {CudaExecutorOptions{}, {.graphs = false}, {.check = true}}) {
    counted = 0;
    CudaExecutor e(device_, sum_of_a_weight(),
                   Kernels{fake_kernel("add_up", add, 4), fake_kernel("add_up_and_count", add_and_count, 4)}, options);
    EXPECT_EQ(e.once_kernels().launches, 1);
    EXPECT_EQ(e.once_kernels().bytes, 48);
    int runs = 0;
    for (const Numbers weights : {Numbers{1, 2, 3, 4}, Numbers{10, 20, 30, 40}, Numbers{5, 5, 5, 5}}) {
      set_state(e, weights);
      ++runs;
      for (float step = 0; step < 4; ++step) {
        write(e, Numbers{step, 0, 0, 0});
        e.write_state("other", std::as_bytes(std::span(weights)));  // Nothing is made of it alone.
        e.run();
        EXPECT_EQ(output(e), (Numbers{step + 2 * weights[0], 2 * weights[1], 2 * weights[2], 2 * weights[3]}));
        EXPECT_EQ(counted, runs);
      }
    }
    EXPECT_EQ(e.profile().size(), 1);
    e.enable_profile(true);
    set_state(e, {1, 1, 1, 1});
    e.run();
    EXPECT_EQ(counted, ++runs);
    EXPECT_EQ(output(e)[1], 2);
    // A step that is looked into runs all of its nodes.
    struct Observer : NodeObserver {
      void before(int node) override { nodes.push_back(node); }
      void after(int) override {}
      std::vector<int> nodes;
    } observer;
    e.run_observed(observer);
    EXPECT_EQ(observer.nodes, (std::vector{3, 4}));
    EXPECT_EQ(counted, ++runs);
  }
}

TEST_F(FakeCuda, OneLaunchOfTwoNodesIsShownNodeByNode) {
  CudaPlan plan;
  ir::Builder b(plan.graph);
  const ir::Type type{ir::DType::f32, {4}};
  const ir::Value x = b.input("x", type), c = b.literal({1, 2, 3, 4}, type);
  const ir::Value xc = b.add(x, c), cc = b.add(c, c), y = b.add(xc, cc);
  plan.graph.set_output("y", y);
  plan.memory = passes::plan_memory(plan.graph, {.together = {{2, 3}}});
  const auto at = [&](ir::Value v) { return Argument{Argument::Kind::arena, plan.memory.at(v).offset}; };
  plan.sources = {{"add_up", "", "sm_90a", {}}, {"add_up_joined", "", "sm_90a", {}}};
  const Argument count{.value = 4}, blocks{.value = 1};
  plan.calls.push_back({.source = 1,
                        .node = xc.node,
                        .grid = {1, 1, 2},
                        .arguments = {at(xc), at(x), at(c), count, blocks, at(cc), at(c), at(c), count, blocks},
                        .members = 2,
                        .table_bytes = 120,
                        .more_nodes = {cc.node}});
  plan.calls.push_back({.source = 0, .node = y.node, .grid = {}, .arguments = {at(y), at(xc), at(cc), count}});
  const Kernels both = {fake_kernel("add_up", add, 4), fake_kernel("add_up_joined", add_rows, 15, /*is_table=*/true)};

  struct Observer : NodeObserver {
    explicit Observer(const Executor& from) : executor(from) {}
    void before(int node) override { text += fmt::format("<{} {}", node, first(node)); }
    void after(int node) override { text += fmt::format(" {}>", first(node)); }
    float first(int node) const {
      Numbers numbers{};
      executor.read_value({node, 0}, std::as_writable_bytes(std::span(numbers)));
      return std::isnan(numbers[0]) ? -1 : numbers[0];
    }
    const Executor& executor;
    std::string text;
  };
  CudaExecutor e(device_, plan, both, {});
  write(e, Numbers{5, 0, 0, 0});
  Observer observer(e);
  e.run_observed(observer);
  // The sum is made in the place of the first of the two.
  EXPECT_EQ(observer.text, fmt::format("<{} 0 6><{} 0 2><{} 6 8>", xc.node, cc.node, y.node));
  for (int step = 0; step < 3; ++step) {
    write(e, Numbers{static_cast<float>(step), 0, 0, 0});
    e.run();
    EXPECT_EQ(output(e), (Numbers{static_cast<float>(step) + 3, 6, 9, 12}));
  }
}

TEST_F(FakeCuda, WhatALaterNodeTakesOverIsShownWhereItBelongs) {
  // The sum x + c stays in the workspace, where y's kernel reads it.
  CudaPlan plan = running_sum();
  const Argument sum{Argument::Kind::workspace, 0}, place = plan.calls[0].arguments[0];
  plan.calls[0].arguments[0] = plan.calls[1].arguments[1] = sum;
  plan.taken_over.push_back(
      {.source = 1, .node = plan.calls[0].node, .grid = {}, .arguments = {place, sum, {.value = 4}}});
  struct Observer : NodeObserver {
    Observer(const Executor& from, int of) : executor(from), node(of) {}
    void before(int) override {}
    void after(int id) override {
      if (id == node) executor.read_value({node, 0}, std::as_writable_bytes(std::span(seen)));
    }
    const Executor& executor;
    int node;
    Numbers seen{};
  };
  CudaExecutor e(device_, plan, kernels(), {});
  Observer observer(e, plan.calls[0].node);
  write(e, Numbers{5, 0, 0, 0});
  e.run_observed(observer);
  EXPECT_EQ(observer.seen, (Numbers{6, 2, 3, 4}));
  EXPECT_EQ(output(e), (Numbers{6, 2, 3, 4}));
  write(e, Numbers{7, 0, 0, 0});
  e.run();
  EXPECT_EQ(output(e), (Numbers{14, 4, 6, 8}));
  e.read_value({observer.node, 0}, std::as_writable_bytes(std::span(observer.seen)));
  EXPECT_EQ(observer.seen, (Numbers{6, 2, 3, 4})) << "a step has no launch for it";
}

TEST_F(FakeCuda, AKernelThatFailsIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const bool check : {false, true}) {
    // The GPU is lost with it, so each has a process of its own.
    EXPECT_EXIT(
        {
          CudaExecutor e(device_, running_sum(), kernels(copy_or_fail), {.check = check});
          write(e, Numbers{2, 0, 0, 0});
          for (int i = 0; i < 3; ++i) e.run();
          write(e, Numbers{3, 0, 0, 0});
          try {
            e.run();
            e.wait();
          } catch (const Error& error) {
            std::fprintf(stderr, "%s\n", error.what());
            std::exit(7);
          }
        },
        ::testing::ExitedWithCode(7),
        check ? "the kernel move_on \\(%4 of the graph \"main\"\\) failed: CUDA_ERROR_LAUNCH_FAILED"
              : "a step of \"main\" on the GPU \\(DIFUSE_DEBUG=1 checks kernel by kernel\\) failed");
  }
  EXPECT_EXIT(
      {
        CudaExecutor e(device_, running_sum(), kernels(copy_or_fail), {});
        write(e, Numbers{12, 0, 0, 0});
        try {
          e.run();
        } catch (const Error& error) {
          std::fprintf(stderr, "%s\n", error.what());
          std::exit(7);
        }
      },
      ::testing::ExitedWithCode(7), "the kernel move_on \\(%4 ");
}

TEST_F(FakeCuda, SaysWhatDoesNotFit) {
  CudaPlan plan = running_sum();
  plan.memory.arena_bytes = int64_t{1} << 40;
  const auto allocate = [&] { CudaExecutor(device_, plan, kernels()); };
  EXPECT_CONTAINS(error_of(allocate), "no memory on Fake GPU: the graph \"main\" takes 1099.51 GB, and 8.59 GB of");
  plan = running_sum();
  plan.calls[0].grid.y = 70000;
  EXPECT_CONTAINS(error_of(allocate), "the kernel add_up (%3 of the graph \"main\") cannot be launched");
  plan.calls[0].grid.y = 1;
  plan.calls[0].shared_bytes = 300000;
  EXPECT_CONTAINS(error_of(allocate), "the kernel add_up takes 300000 bytes of shared memory");
}

TEST_F(FakeCuda, ForeignCodeIsTheEnvironmentsFault) {
  Kernels foreign = kernels();
  auto other = std::make_shared<codegen::CompiledKernel>(*foreign[1]);
  std::fill(other->cubin.begin(), other->cubin.end(), std::byte{});
  foreign[1] = other;
  const auto load = [&] { CudaExecutor(device_, running_sum(), foreign); };
  EXPECT_CONTAINS(error_of(load), "loading the kernel move_on failed: CUDA_ERROR_INVALID_IMAGE");
  EXPECT_EQ(exit_code_of(load), ExitCode::wrong_usage);
}

TEST_F(FakeCuda, DescribesItself) {
  EXPECT_EQ(device_->description(), "Fake GPU (sm_90a, driver 13.0)");
  std::string reason;
  EXPECT_NE(CudaDevice::find(0, &reason, kFakeDriver), nullptr);
  EXPECT_EQ(reason, "");
}

TEST_F(FakeCuda, SaysWhyThereIsNoDevice) {
  const auto refused = [](const char* message, int ordinal = 0, const char* library = kFakeDriver) {
    const auto open = [&] { static_cast<void>(CudaDevice::open(ordinal, library)); };
    EXPECT_CONTAINS(error_of(open), message);
    EXPECT_CONTAINS(error_of(open), "--device cpu");
    EXPECT_EQ(exit_code_of(open), ExitCode::wrong_usage) << message;
    std::string reason;
    EXPECT_EQ(CudaDevice::find(ordinal, &reason, library), nullptr);
    EXPECT_CONTAINS(reason, message);
  };
  refused("no NVIDIA driver was found: looked for libcuda-nowhere.so", 0, "libcuda-nowhere.so");
  {
    const Variable none("CUDA_VISIBLE_DEVICES", "");
    refused("sees no GPU: none is there, or CUDA_VISIBLE_DEVICES hides it");
  }
  {
    const Variable old("FAKE_CUDA_VERSION", "11080");
    refused("the NVIDIA driver is too old: it supports CUDA 11.8, and 12.0 is needed");
  }
  {
    const Variable old("FAKE_CUDA_ARCHITECTURE", "75");
    refused("GPU 0 is a Fake GPU (sm_75), and the kernels need sm_80 or newer");
  }
  const auto second = [] { static_cast<void>(CudaDevice::open(1, kFakeDriver)); };
  EXPECT_CONTAINS(error_of(second), "there is no GPU 1: the driver sees one, GPU 0");
  const Variable two("FAKE_CUDA_DEVICES", "2");
  EXPECT_EQ(CudaDevice::open(1, kFakeDriver)->ordinal(), 1);
  const auto third = [] { static_cast<void>(CudaDevice::open(2, kFakeDriver)); };
  EXPECT_CONTAINS(error_of(third), "there is no GPU 2: the driver sees GPUs 0 to 1");
}

}  // namespace
}  // namespace difuse::runtime
