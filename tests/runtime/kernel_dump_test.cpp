// What a plan's kernels leave in a folder for people to read.
#include "runtime/kernel_dump.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/builder.h"
#include "runtime/compile.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

namespace fs = std::filesystem;

/// A movement and a sum: two kernels at least.
ir::Graph small_graph() {
  ir::Graph graph("small");
  ir::Builder b(graph);
  const ir::Value x = b.input("x", {ir::DType::f32, {4, 300}});
  graph.set_output("y", b.transpose(x, {1, 0}));
  graph.set_output("sum", b.reduce_sum(x, {0, 1}));
  return graph;
}

const ir::DeviceSpec& gpu() { return *ir::find_device_spec("sm_90a"); }

TEST(KernelDump, PlanningWithDumpWritesEverySourceBesideTheIr) {
  const test::TempFolder folder;
  ir::Options options;
  options.dump = folder.path().string();
  const auto plan = plan_cuda(small_graph(), options, gpu());
  ASSERT_GE(plan.sources.size(), 2u);
  const fs::path kernels = folder.path() / "small" / "kernels";
  for (const codegen::CudaSource& source : plan.sources) {
    EXPECT_EQ(test::read_file(kernels / (source.name + ".cu")), source.source);
    EXPECT_CONTAINS(source.source, "extern \"C\" __global__");
  }
  EXPECT_EQ(static_cast<size_t>(std::distance(fs::directory_iterator(kernels), {})), plan.sources.size());
  EXPECT_TRUE(fs::exists(folder.path() / "small" / "02_fuse.after.ir"));
}

TEST(KernelDump, KernelsOfAnEarlierPlanGo) {
  const test::TempFolder folder;
  for (const char* name : {"pointwise_0123abcd.cu", "pointwise_0123abcd.cubin"}) test::write_file(folder / name, "old");
  const std::vector<std::string> others = {"mine.cu", "notes_0123abcd.txt", "mine_0123abcx.cu"};
  for (const std::string& name : others) test::write_file(folder / name, "mine");
  const auto plan = plan_cuda(small_graph(), {}, gpu());
  dump_sources(folder.path(), plan);
  EXPECT_EQ(folder.entries(), plan.sources.size() + others.size());
  for (const std::string& name : others) EXPECT_EQ(test::read_file(folder / name), "mine");
}

TEST(KernelDump, WithoutDumpNothingIsWritten) {
  const test::TempFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  static_cast<void>(plan_cuda(small_graph(), {}, gpu()));
  fs::current_path(before);
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(KernelDump, CodeLiesBesideItsSource) {
  const test::TempFolder folder;
  codegen::CompiledKernel kernel;
  kernel.name = "copy_1";
  kernel.cubin = {std::byte{1}, std::byte{2}};
  const auto shared = std::make_shared<const codegen::CompiledKernel>(kernel);
  dump_code(folder.path(), std::span(&shared, 1));
  EXPECT_EQ(test::read_file(folder / "copy_1.cubin"), std::string("\1\2"));
}

TEST(KernelDump, SaysThatAFileIsInTheWay) {
  const test::TempFolder folder;
  test::write_file(folder / "taken", "");
  const auto plan = plan_cuda(small_graph(), {}, gpu());
  const std::string error = test::error_of([&] { dump_sources(folder / "taken", plan); });
  EXPECT_CONTAINS(error, (folder / "taken").string() + "': it is a file, not a folder");
  const std::string below = test::error_of([&] { dump_sources(folder.path() / "taken" / "below", plan); });
  EXPECT_CONTAINS(below, (folder.path() / "taken" / "below").string());
  EXPECT_EQ(folder.entries(), 1u);
}

}  // namespace
}  // namespace difuse::runtime
