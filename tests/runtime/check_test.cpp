// What check_step() finds and what it forgives.
#include "runtime/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "codegen/cpu/lower_cpu.h"
#include "codegen/cpu/plain.h"
#include "ir/builder.h"
#include "passes/memory_plan.h"
#include "runtime/compile.h"
#include "runtime/cpu_executor.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/op_rows.h"

namespace difuse::runtime {
namespace {

using ir::DType;

/// Does what a kernel does and then spoils a number.
class Spoiled : public codegen::CpuKernel {
 public:
  Spoiled(std::unique_ptr<codegen::CpuKernel> inner, int64_t offset, float more)
      : inner_(std::move(inner)), offset_(offset), more_(more) {
    name = inner_->name;
    node = inner_->node;
  }
  void run(const codegen::CpuContext& context) const override {
    inner_->run(context);
    float value = 0;
    std::memcpy(&value, context.arena + offset_, sizeof(value));
    value += more_;
    std::memcpy(context.arena + offset_, &value, sizeof(value));
  }

 private:
  std::unique_ptr<codegen::CpuKernel> inner_;
  int64_t offset_;
  float more_;
};

std::vector<NodeCheck> check(Executor& executor, const ir::Graph& graph) {
  for (const auto& [name, t] : testing::random_leaves(graph, ir::Op::input, 3)) {
    executor.write_input(name, testing::encode(t));
  }
  for (const auto& [name, t] : testing::random_leaves(graph, ir::Op::state, 4)) {
    executor.write_state(name, testing::encode(t));
  }
  return check_step(executor);
}

ir::Graph three_nodes() {
  ir::Graph graph("three");
  ir::Builder b(graph);
  const ir::Value x = b.input("x", {DType::f32, {6, 20}});
  const ir::Value product = b.matmul(x, b.input("w", {DType::f32, {20, 8}}), false, false);
  graph.set_output("y", b.exp(product));
  graph.set_output("sum", b.sum_all(product));
  return graph;
}

std::vector<NodeCheck> check_spoiled(const ir::Graph& graph, size_t kernel, float more) {
  const codegen::PlainContractions plain;
  codegen::CpuPlan plan = codegen::lower_cpu(graph, passes::plan_memory(graph, {.reuse = false}), plain);
  const int node = plan.kernels[kernel]->node;
  plan.kernels[kernel] =
      std::make_unique<Spoiled>(std::move(plan.kernels[kernel]), plan.memory.at({node, 0}).offset, more);
  CpuExecutor executor(std::move(plan), 1);
  return check(executor, graph);
}

TEST(Check, NamesTheOneWrongNode) {
  const ir::Graph graph = three_nodes();
  for (size_t wrong = 0; wrong < 3; ++wrong) {
    const auto checks = check_spoiled(graph, wrong, 1000.0f);
    ASSERT_EQ(checks.size(), 3u);
    // The nodes behind it have read the wrong number and made the right thing of it.
    for (size_t i = 0; i < checks.size(); ++i) {
      EXPECT_EQ(checks[i].passed(), i != wrong) << checks[i].name << " " << checks[i].error;
      EXPECT_LT(checks[i].tolerance, 1e-3);
      EXPECT_TRUE(checks[i].rule.starts_with("f32"));
    }
  }
  const auto lost = check_spoiled(graph, 0, std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(lost[0].passed());
}

TEST(Check, RightStepsPassInEveryPrecision) {
  for (const passes::Precision p : {passes::Precision::f32, passes::Precision::tf32, passes::Precision::bf16}) {
    const ir::Graph graph = three_nodes();
    CompileSettings settings;
    settings.precision = p;
    const auto executor = compile(graph, {}, 2, settings);
    const auto checks = check(*executor, graph);
    EXPECT_GE(checks.size(), 2u);
    for (const NodeCheck& c : checks) {
      EXPECT_TRUE(c.passed()) << c.name << " " << c.error << " of " << c.tolerance;
      EXPECT_LE(c.tolerance, 1e-5 + 0x1p-7) << c.rule;
    }
  }
}

TEST(Check, SumsThatCancelAreNotHeldToTheirResult) {
  ir::Graph graph("cancel");
  ir::Builder b(graph);
  const ir::Value x = b.input("x", {DType::f32, {2000}});
  const ir::Value mean = b.mul(b.sum_all(x), 1.0 / 2000);
  graph.set_output("zero", b.sum_all(b.sub(x, b.broadcast_scalar(mean, {2000}))));
  const auto executor = compile(graph, {}, 1);
  bool forgiven = false;
  for (const NodeCheck& c : check(*executor, graph)) {
    EXPECT_TRUE(c.passed()) << c.name << " " << c.error << " of " << c.tolerance;
    forgiven = forgiven || c.rule == "f32, ill-conditioned";
  }
  EXPECT_TRUE(forgiven);
}

TEST(Check, StatesThatAreCopiedAreCompared) {
  ir::Graph graph("copies");
  ir::Builder b(graph);
  const ir::Value a = b.state("a", {DType::f32, {5}}), c = b.state("c", {DType::f32, {5}});
  graph.set_update("a", b.add(a, c));
  graph.set_update("c", a);
  const auto executor = compile(graph, {}, 1);
  const auto checks = check(*executor, graph);
  const auto is_copy = [](const NodeCheck& n) { return n.name.starts_with("copy_to_"); };
  EXPECT_GE(std::ranges::count_if(checks, is_copy), 1);
  for (const NodeCheck& n : checks) EXPECT_TRUE(n.passed()) << n.name;

  const codegen::PlainContractions plain;
  codegen::CpuPlan plan = codegen::lower_cpu(graph, passes::plan_memory(graph), plain);
  for (auto& kernel : plan.kernels) {
    if (kernel->name != "copy_to_c") continue;
    kernel = std::make_unique<Spoiled>(std::move(kernel), plan.memory.at(plan.graph.find_state("c")).offset, 1.0f);
  }
  CpuExecutor wrong(std::move(plan), 1);
  for (const NodeCheck& n : check(wrong, graph)) EXPECT_EQ(n.passed(), n.name != "copy_to_c") << n.name;
}

}  // namespace
}  // namespace difuse::runtime
