#include "codegen/jit/compiler_log.h"

#include <gtest/gtest.h>

namespace difuse::codegen {
namespace {

// As NVRTC 13.0 writes them.
constexpr std::string_view kClean = R"(
ptxas info    : 24 bytes gmem
ptxas info    : Compiling entry function 'scale' for 'sm_80'
ptxas info    : Function properties for scale
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 512 bytes smem, 372 bytes cmem[0]
ptxas info    : Compile time = 13.313 ms
ptxas info    : Compiling entry function 'scale_more' for 'sm_80'
ptxas info    : Function properties for scale_more
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 232 registers, used 0 barriers
)";

TEST(CompilerLog, ReadsEachKernelsOwnResources) {
  EXPECT_EQ(read_resources(kClean, "scale"), (KernelResources{10, 1, 512, 0, 372}));
  EXPECT_EQ(read_resources(kClean, "scale_more"), (KernelResources{232, 0, 0, 0, 0}));
  EXPECT_EQ(read_resources(kClean, "scal"), std::nullopt);
  EXPECT_EQ(read_resources("", "scale"), std::nullopt);
  EXPECT_EQ(find_fault(kClean), "");
}

TEST(CompilerLog, FindsLocalMemoryAndSpills) {
  const std::string frame = R"(
ptxas info    : Compiling entry function 'heavy' for 'sm_90a'
ptxas info    : Function properties for heavy
ptxas         .     256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 256 bytes cumulative stack size
)";
  EXPECT_EQ(find_fault(frame),
            "local memory in heavy: 256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads");
  EXPECT_EQ(read_resources(frame, "heavy")->local_bytes, 256);
  EXPECT_NE(find_fault("ptxas         .     0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads\n"), "");
  EXPECT_NE(find_fault("ptxas         .     0 bytes stack frame, 0 bytes spill stores, 12 bytes spill loads\n"), "");
}

TEST(CompilerLog, FindsLostRegistersAndSerialisedWgmma) {
  EXPECT_EQ(find_fault("ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine "
                       "register count at entry.\n"),
            "(C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.");
  EXPECT_NE(
      find_fault("ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized "
                 "due to insufficient register resources for the wgmma pipeline in the function 'wg'\n"),
      "");
  // Injected waits cost little by themselves.
  EXPECT_EQ(
      find_fault("ptxas info    : (C7519) warpgroup.arrive is injected in around line 42 by compiler to allow use "
                 "of registers in GMMA in function 'wg'\n"),
      "");
}

TEST(CompilerLog, QuotesFromTheFirstErrorOn) {
  const std::string log =
      "k.cu(1): warning #177-D: unused\n  int a;\n\nk.cu(2): error: identifier \"b\" is undefined\n  b;\n";
  EXPECT_EQ(error_lines(log), "k.cu(2): error: identifier \"b\" is undefined\n  b;");
  EXPECT_EQ(error_lines("something else"), "something else");
}

}  // namespace
}  // namespace difuse::codegen
