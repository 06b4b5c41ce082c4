// Every op's CUDA kernels compile for the oldest and for the newest architecture that they are written for; no GPU is
// needed, only NVRTC.
#include <gtest/gtest.h>

#include <set>

#include "codegen/cuda/lower_cuda.h"
#include "codegen/jit/compiler.h"
#include "passes/memory_plan.h"
#include "runtime/cuda/roofline.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

class EveryKernelCompiles : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryKernelCompiles, OfEveryOp) {
  std::string reason;
  if (!codegen::NvrtcLibrary::load({}, &reason)) GTEST_SKIP() << reason;
  const ir::DeviceSpec& device = *ir::find_device_spec(GetParam());
  std::vector<codegen::CudaSource> sources;
  std::set<std::string> names;
  for (const testing::OpRow& row : testing::op_rows()) {
    const auto plan = codegen::cuda::lower_cuda(row.graph, passes::plan_memory(row.graph), device);
    for (const codegen::CudaSource& source : plan.sources) {
      if (names.insert(source.name).second) sources.push_back(source);
    }
  }
  EXPECT_GT(sources.size(), 100u);
  codegen::KernelCache memory_only{{}};
  codegen::KernelCompiler compiler(memory_only, {});
  for (const codegen::CompileResult& result : compiler.compile(sources)) {
    if (result.error) ADD_FAILURE() << result.error->what();
  }
}

TEST_P(EveryKernelCompiles, OfTheRoofline) {
  std::string reason;
  if (!codegen::NvrtcLibrary::load({}, &reason)) GTEST_SKIP() << reason;
  std::vector<codegen::CudaSource> sources;
  for (const auto p : {passes::Precision::bf16, passes::Precision::tf32, passes::Precision::f32}) {
    sources.push_back(runtime::roofline_source(p, GetParam()));
  }
  codegen::KernelCache memory_only{{}};
  codegen::KernelCompiler compiler(memory_only, {});
  for (const codegen::CompileResult& result : compiler.compile(sources)) {
    EXPECT_FALSE(result.error) << result.error->what();
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, EveryKernelCompiles, ::testing::Values("sm_80", "sm_90a"),
                         [](const auto& made) { return std::string(made.param); });

}  // namespace
}  // namespace difuse
