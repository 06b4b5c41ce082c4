#include "codegen/jit/compiler.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/codegen/jit/sources.h"
#include "tests/support/temp_folder.h"

namespace difuse::codegen {
namespace {

using namespace testing;
using namespace difuse::test;

class KernelCompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    nvrtc_ = NvrtcLibrary::load({}, &reason);
    if (!nvrtc_) GTEST_SKIP() << reason;
  }
  std::shared_ptr<const NvrtcLibrary> nvrtc_;
  TempFolder folder_;
};

TEST_F(KernelCompilerTest, GivesResultsInOrderAndKeepsThem) {
  const std::vector<CudaSource> sources = {axpy("a", 1), axpy("b", 2, "sm_90a"), axpy("a", 1), axpy("c", 3)};
  KernelCache cache(folder_.path());
  KernelCompiler compiler(cache, {}, 2);
  std::vector<CompileProgress> seen;
  const auto results = compiler.compile(sources, [&](const CompileProgress& p) { seen.push_back(p); });
  ASSERT_EQ(results.size(), 4u);
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_NE(results[i].kernel, nullptr);
    EXPECT_EQ(results[i].kernel->name, sources[i].name);
    EXPECT_EQ(results[i].kernel->architecture, sources[i].architecture);
    EXPECT_FALSE(results[i].was_cached);
  }
  EXPECT_EQ(results[0].kernel, results[2].kernel) << "equal sources are one kernel";
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen.front().done, 0);
  EXPECT_EQ(seen.back().done, 3);
  EXPECT_EQ(seen.back().total, 3);

  // The next process: everything is there, and NVRTC stays closed.
  KernelCache warm(folder_.path());
  KernelCompiler again(warm, {}, 2);
  const auto cached = again.compile(sources, [&](const CompileProgress& p) { EXPECT_EQ(p.cached, 3); });
  for (size_t i = 0; i < cached.size(); ++i) {
    EXPECT_TRUE(cached[i].was_cached);
    EXPECT_EQ(cached[i].kernel->cubin, results[i].kernel->cubin);
    EXPECT_EQ(cached[i].kernel->resources, results[i].kernel->resources);
  }
  EXPECT_EQ(warm.counts().disk_hits, 3);
  EXPECT_EQ(warm.counts().misses, 0);
  EXPECT_EQ(again.nvrtc(), nullptr);

  // One more kernel opens it.
  EXPECT_NE(again.compile(std::vector{axpy("d", 4)}).at(0).kernel, nullptr);
  EXPECT_NE(again.nvrtc(), nullptr);
}

TEST_F(KernelCompilerTest, CollectsFailuresAndCompilesTheRest) {
  CudaSource wrong = axpy("wrong");
  wrong.source += "nonsense";
  const std::vector<CudaSource> sources = {axpy("a"), wrong, local_array("spiller"), axpy("b")};
  KernelCache cache(folder_.path());
  const auto results = KernelCompiler(cache, {}, 2).compile(sources);
  EXPECT_NE(results[0].kernel, nullptr);
  EXPECT_NE(results[3].kernel, nullptr);
  ASSERT_TRUE(results[1].error && results[2].error);
  EXPECT_CONTAINS(results[1].error->what(), "kernel wrong");
  EXPECT_CONTAINS(results[2].error->what(), "local memory");
  const std::string all = error_of([&] { require_all(results); });
  EXPECT_CONTAINS(all, "2 of 4 kernels failed; the first: kernel wrong");
  EXPECT_EQ(require_all(std::span(results).first(1)).size(), 1u);
  // A kernel that failed is not kept: it fails again.
  EXPECT_TRUE(KernelCompiler(cache, {}, 2).compile(sources)[2].error);
}

TEST_F(KernelCompilerTest, AChangedLibraryIsAskedAndAGoneOneIsNot) {
  const std::vector<CudaSource> sources = {axpy("a")};
  KernelCache first(folder_.path());
  KernelCompiler(first, {}, 1).compile(sources);
  EXPECT_EQ(first.last_compiler(), nvrtc_->stamp());

  NvrtcStamp stamp = nvrtc_->stamp();
  ++stamp.modified_ns;
  first.set_last_compiler(stamp);
  KernelCache second(folder_.path());
  KernelCompiler changed(second, {}, 1);
  EXPECT_TRUE(changed.compile(sources)[0].was_cached);
  EXPECT_NE(changed.nvrtc(), nullptr);
  EXPECT_EQ(second.last_compiler(), nvrtc_->stamp());

  stamp.path = "/nowhere/libnvrtc.so";
  second.set_last_compiler(stamp);
  KernelCache third(folder_.path());
  KernelCompiler gone(third, {}, 1);
  EXPECT_TRUE(gone.compile(sources)[0].was_cached);
  EXPECT_EQ(gone.nvrtc(), nullptr);

  // Another version's kernels are not used where this one's are wanted.
  stamp.version = {12, 0};
  third.set_last_compiler(stamp);
  KernelCache fourth(folder_.path());
  KernelCompiler other(fourth, {}, 1);
  EXPECT_TRUE(other.compile(sources)[0].was_cached);
  EXPECT_NE(other.nvrtc(), nullptr);
}

TEST_F(KernelCompilerTest, WhatProgressThrowsStopsTheRest) {
  std::vector<CudaSource> sources;
  for (int i = 0; i < 8; ++i) sources.push_back(axpy(fmt::format("k{}", i)));
  KernelCache cache(folder_.path());
  const auto stop = [](const CompileProgress& p) {
    if (p.done == 1) throw std::runtime_error("stop");
  };
  EXPECT_THROW(KernelCompiler(cache, {}, 2).compile(sources, stop), std::runtime_error);
  EXPECT_LT(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 8);
}

TEST_F(KernelCompilerTest, ProcessesColdStartOnOneFolder) {
  std::vector<CudaSource> sources;
  for (int i = 0; i < 3; ++i) sources.push_back(axpy(fmt::format("k{}", i), static_cast<float>(i)));
  std::vector<pid_t> children;
  for (int p = 0; p < 8; ++p) {
    const pid_t child = ::fork();
    if (child == 0) {
      int lines = 0;
      KernelCache cache(folder_.path(), [&](const std::string&) { ++lines; });
      const auto results = KernelCompiler(cache, {}, 1).compile(sources);
      int failures = lines;
      for (const CompileResult& result : results) failures += result.kernel == nullptr;
      ::_exit(failures);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(folder_.entries(), 3u + 2u) << "three kernels, tmp and nvrtc.json";
}

TEST(KernelCompiler, SaysInOneErrorThatNvrtcIsMissing) {
  const TempFolder folder;
  KernelCache cache(folder.path());
  // No library is old enough for this driver.
  KernelCompiler compiler(cache, {.toolkit = "/nowhere", .newest_major = 11}, 1);
  try {
    compiler.compile(std::vector{axpy("a"), axpy("b")});
    FAIL() << "compiled";
  } catch (const Error& error) {
    EXPECT_CONTAINS(error.what(), "2 of 2 kernels must be compiled, and NVRTC 12.0 or newer was not found");
    EXPECT_CONTAINS(error.remedy(), "CUDA_HOME");
    EXPECT_EQ(error.exit_code(), ExitCode::wrong_usage);
  }
  EXPECT_EQ(compiler.compile({}).size(), 0u);
}

}  // namespace
}  // namespace difuse::codegen
