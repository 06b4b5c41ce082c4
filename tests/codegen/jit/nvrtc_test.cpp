#include "codegen/jit/nvrtc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "ir/device_spec.h"
#include "tests/codegen/jit/sources.h"
#include "tests/support/temp_folder.h"

namespace difuse::codegen {
namespace {

using namespace testing;
using namespace difuse::test;

class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    nvrtc_ = NvrtcLibrary::load({}, &reason);
    if (!nvrtc_) GTEST_SKIP() << reason;
  }
  std::string error_for(const CudaSource& source) const {
    return error_of([&] { nvrtc_->compile(source); });
  }
  std::shared_ptr<const NvrtcLibrary> nvrtc_;
};

TEST(Nvrtc, ReadsVersions) {
  EXPECT_EQ(NvrtcVersion::parse("13.0"), (NvrtcVersion{13, 0}));
  EXPECT_EQ(NvrtcVersion::parse("12.10").text(), "12.10");
  for (const char* bad : {"", "13", "13.", ".0", "13.0x", "a.b"}) EXPECT_EQ(NvrtcVersion::parse(bad), NvrtcVersion());
  EXPECT_LT((NvrtcVersion{12, 9}), (NvrtcVersion{12, 10}));
}

TEST(Nvrtc, TheOptionsAreFixed) {
  CudaSource source = axpy("axpy");
  source.options = {"--maxrregcount=64"};
  const std::vector<std::string> options = nvrtc_options(source, {12, 0});
  EXPECT_EQ(options.front(), "--gpu-architecture=sm_80");
  EXPECT_EQ(options.back(), "--maxrregcount=64");
  for (const std::string& option : options) {
    EXPECT_EQ(option.find("fast"), std::string::npos) << option;
    EXPECT_EQ(option.find("line"), std::string::npos) << option;
  }
  EXPECT_NE(std::ranges::find(options, "--fmad=false"), options.end());
}

TEST(Nvrtc, SaysWhatItLookedFor) {
  // No driver loads code from every toolkit; none at all loads code older than the oldest one.
  std::string reason;
  EXPECT_EQ(NvrtcLibrary::load({.toolkit = "/nowhere/cuda", .newest_major = 11}, &reason), nullptr);
  EXPECT_CONTAINS(reason, "libnvrtc.so.12");
  EXPECT_CONTAINS(reason, "/nowhere/cuda/lib64");
  EXPECT_CONTAINS(reason, "/usr/local/cuda/lib64");
  EXPECT_EQ(reason.find('\n'), std::string::npos);
}

TEST(Nvrtc, NamesAFileThatIsNoLibrary) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "lib64");
  write_file(folder / "lib64/libnvrtc.so.12", "not a library");
  std::string reason;
  const auto nvrtc = NvrtcLibrary::load({.toolkit = folder.path().string(), .newest_major = 12}, &reason);
  // A whole one may be found elsewhere.
  EXPECT_EQ(nvrtc == nullptr, test::contains(reason, "lib64/libnvrtc.so.12 cannot be loaded")) << reason;
}

TEST_F(NvrtcTest, KnowsItself) {
  EXPECT_GE(nvrtc_->version(), kOldestNvrtc);
  EXPECT_TRUE(std::ranges::is_sorted(nvrtc_->architectures()));
  EXPECT_NE(std::ranges::find(nvrtc_->architectures(), 90), nvrtc_->architectures().end());
  EXPECT_TRUE(nvrtc_->stamp().is_unchanged()) << nvrtc_->stamp().path;
  NvrtcStamp other = nvrtc_->stamp();
  ++other.modified_ns;
  EXPECT_FALSE(other.is_unchanged());
  EXPECT_FALSE(other.is_gone());
  other.path += ".gone";
  EXPECT_TRUE(other.is_gone());
}

TEST_F(NvrtcTest, CompilesForEveryKnownCardThatItKnows) {
  for (const ir::DeviceSpec& device : ir::known_devices()) {
    if (std::ranges::find(nvrtc_->architectures(), device.architecture) == nvrtc_->architectures().end()) continue;
    const CudaSource source = axpy("axpy", 2, ir::architecture_name(device));
    const CompiledKernel kernel = nvrtc_->compile(source);
    EXPECT_EQ(kernel.name, "axpy");
    EXPECT_EQ(kernel.architecture, source.architecture);
    ASSERT_GT(kernel.cubin.size(), 1000u) << source.architecture;
    EXPECT_EQ(kernel.cubin[0], std::byte{0x7f});  // An ELF file.
    EXPECT_GT(kernel.resources.registers, 4);
    EXPECT_LT(kernel.resources.registers, 64);
    EXPECT_EQ(kernel.resources.local_bytes, 0);
    EXPECT_EQ(kernel.resources.static_shared_bytes, 0);
  }
}

TEST_F(NvrtcTest, ReportsSharedMemoryAndBarriers) {
  CudaSource source = axpy("sums");
  source.source = R"(
extern "C" __global__ void sums(float* x) {
  __shared__ float all[128];
  all[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = all[127 - threadIdx.x];
})";
  const KernelResources resources = nvrtc_->compile(source).resources;
  EXPECT_EQ(resources.static_shared_bytes, 512);
  EXPECT_EQ(resources.barriers, 1);
}

TEST_F(NvrtcTest, AMultiplyAndAnAddRoundTwice) {
  CudaSource source = axpy("twice");
  source.source = "extern \"C\" __global__ void twice(float* x) { x[0] = x[1] * x[2] + x[3]; }";
  const CompiledKernel separate = nvrtc_->compile(source);
  source.options = {"--fmad=true"};
  EXPECT_NE(separate.cubin, nvrtc_->compile(source).cubin);
}

TEST_F(NvrtcTest, AWrongSourceFailsWithTheCompilersWordsAndTheKernelsName) {
  CudaSource source = axpy("broken");
  source.source = "extern \"C\" __global__ void broken(float* x) {\n  x[0] = undefined_thing;\n}\n";
  const std::string error = error_for(source);
  EXPECT_CONTAINS(error, "kernel broken for sm_80 does not compile");
  EXPECT_CONTAINS(error, "broken.cu(2): error: identifier \"undefined_thing\" is undefined");

  // Refused by the assembler instead.
  source.source = "extern \"C\" __global__ void broken() { asm volatile(\"wgmma.fence.sync.aligned;\"); }";
  EXPECT_CONTAINS(error_for(source), "kernel broken for sm_80 does not compile: ptxas");

  source.source = axpy("working").source;
  EXPECT_CONTAINS(error_for(source), "defines no extern \"C\" kernel of that name");

  source = axpy("broken");
  source.options = {"--no-such-option"};
  EXPECT_CONTAINS(error_for(source), "no-such-option");
}

TEST_F(NvrtcTest, RefusesAnArchitectureItDoesNotKnow) {
  for (const char* architecture : {"sm_52", "sm_999", "hopper", ""}) {
    const std::string error = error_for(axpy("axpy", 2, architecture));
    EXPECT_CONTAINS(error, fmt::format("does not compile for '{}'", architecture));
    EXPECT_CONTAINS(error, "sm_80");
  }
}

TEST_F(NvrtcTest, RefusesLocalMemory) {
  EXPECT_CONTAINS(error_for(local_array("spiller")),
                  "kernel spiller for sm_80 is refused: local memory in spiller: 256 bytes stack frame");
  // Too few registers for what is alive at once.
  std::string source = "extern \"C\" __global__ void crowded(const float* x, float* y) {\n  float a[64];\n";
  source += "#pragma unroll\n  for (int i = 0; i < 64; ++i) a[i] = x[32 * i + threadIdx.x];\n  __syncthreads();\n";
  source += "#pragma unroll\n  for (int i = 0; i < 64; ++i) y[32 * i + threadIdx.x] = a[i] * a[63 - i];\n}\n";
  CudaSource crowded{.name = "crowded", .source = source, .architecture = "sm_80", .options = {}};
  EXPECT_EQ(error_for(crowded), "");
  crowded.options = {"--maxrregcount=32"};
  EXPECT_CONTAINS(error_for(crowded), "local memory in crowded");
}

TEST_F(NvrtcTest, RefusesLostRegistersAndSerialisedWgmma) {
  CudaSource source = axpy("hopper", 2, "sm_90a");
  source.source = R"(
extern "C" __global__ void hopper(float* x) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  x[threadIdx.x] = 1;
})";
  EXPECT_CONTAINS(error_for(source), "kernel hopper for sm_90a is refused: (C75");
  EXPECT_CONTAINS(error_for(source), "'setmaxnreg' ignored");

  source.source = R"(
extern "C" __global__ void __launch_bounds__(128) hopper(unsigned long long a, unsigned long long b, float* y) {
  float d[4] = {0, 0, 0, 0};
  asm volatile("wgmma.fence.sync.aligned;");
  for (int i = 0; i < 4; ++i) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
    d[1] += 1;  // Before the product is waited for.
  }
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  for (int i = 0; i < 4; ++i) y[4 * threadIdx.x + i] = d[i];
})";
  EXPECT_CONTAINS(error_for(source), "wgmma.mma_async instructions are serialized");
}

TEST_F(NvrtcTest, CompilesOnSeveralThreadsAtOnce) {
  const CompiledKernel expected = nvrtc_->compile(axpy("axpy", 3));
  std::vector<std::vector<std::byte>> codes(4);
  {
    std::vector<std::jthread> threads;
    for (auto& code : codes) {
      threads.emplace_back([&] { code = nvrtc_->compile(axpy("axpy", 3)).cubin; });
    }
  }
  for (const auto& code : codes) EXPECT_EQ(code, expected.cubin);
}

}  // namespace
}  // namespace difuse::codegen
