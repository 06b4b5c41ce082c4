// compile, bench and check with the real binary; what is said where there is no usable GPU; and, where there is one,
// training and drawing on it.
#include "tests/support/backend/gpu.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "codegen/jit/nvrtc.h"
#include "runtime/png.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;

const std::string kGraph = DIFUSE_SOURCE_DIR "/tests/passes/golden/pointwise_chain.ir";

/// A machine whose driver is the stand-in: an environment for the binary.
Words fake_driver(const Words& more = {}) {
  Words environment = {"LD_LIBRARY_PATH=" FAKE_CUDA_FOLDER, "CUDA_VISIBLE_DEVICES=0"};
  environment.insert(environment.end(), more.begin(), more.end());
  return environment;
}

class Compile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (!codegen::NvrtcLibrary::load({}, &reason)) GTEST_SKIP() << reason;
  }
  Words environment() const { return {"DIFUSE_CACHE=" + (folder_ / "cache").string()}; }

  TempFolder folder_;
};

TEST_F(Compile, PrintsAndDumpsEachKernel) {
  for (const char* arch : {"sm_80", "sm_90a", "h100"}) {
    const fs::path dump = folder_ / arch;
    const Outcome outcome =
        difuse({"compile", "--graph", kGraph, "--arch", arch, "--dump", dump.string()}, environment());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    for (const char* part : {"kernels: 1 (1 different)", "bytes moved: ", "operations: ", "arena: ", "compiled: ",
                             "pointwise_add_mul_silu_4x4x3_", "; planning took "}) {
      EXPECT_CONTAINS(outcome.out, part);
    }
    int sources = 0, codes = 0;
    for (const auto& entry : fs::directory_iterator(dump)) {
      EXPECT_CONTAINS(entry.path().filename().string(), "pointwise_add_mul_silu_4x4x3_");
      const std::string content = read_file(entry.path());
      if (entry.path().extension() == ".cu") {
        ++sources;
        EXPECT_CONTAINS(content, "__global__ void");
        EXPECT_CONTAINS(content, entry.path().stem().string());
      } else if (entry.path().extension() == ".cubin") {
        ++codes;
        EXPECT_TRUE(
            content.starts_with("\x7f"
                                "ELF"));
      }
    }
    EXPECT_EQ(sources, 1);
    EXPECT_EQ(codes, 1);
  }
  const Outcome again = difuse({"compile", "--graph", kGraph, "--arch", "sm_80"}, environment());
  EXPECT_CONTAINS(again.out, "compiled: 0 of 1 ");
}

TEST_F(Compile, ASamplingStepHasAKernelPerLine) {
  const Outcome outcome =
      difuse({"compile", "--model", "tiny", "--mode", "sample", "--batch", "3", "--dtype", "bf16"}, environment());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "compiling tiny, sample, batch 3 for sm_90a (h100), bf16");
  const size_t at = outcome.out.find("kernels: ", outcome.out.find("conv_fprop"));
  ASSERT_NE(at, std::string::npos);
  const int64_t kernels = std::atoll(outcome.out.c_str() + at + 9);
  EXPECT_GT(kernels, 50);
  EXPECT_LT(kernels, 400);
  int64_t lines = 0;
  for (size_t p = outcome.out.find(" %"); p < at; p = outcome.out.find(" %", p + 1)) ++lines;
  EXPECT_EQ(lines, kernels + 1) << "the parameters' rounding is none of a step's";
  EXPECT_CONTAINS(outcome.out, "\n once ");
  EXPECT_CONTAINS(outcome.out, "\nonce, when parameters are written: 1 (bytes moved: 1.7 MB)\n");
}

TEST_F(Compile, SaysWhatWasFusedAndDrawsIt) {
  const fs::path graph = folder_ / "chain.ir", dot = folder_ / "fused.dot";
  std::ofstream(graph) << R"(graph chain {
  %0 = input {name = "x", dtype = f32, shape = [1000]} : f32[1000]
  %1 = input {name = "y", dtype = f32, shape = [1000]} : f32[1000]
  %2 = add %0, %1 : f32[1000]
  %3 = silu %2 : f32[1000]
  output "z" = %3
}
)";
  const Outcome outcome = difuse(
      {"compile", "--graph", graph.string(), "--dtype", "f32", "--report", "--dot", dot.string()}, environment());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "%2 add, silu; 12.0 kB instead of 20.0 kB\n");
  EXPECT_CONTAINS(outcome.out, "fused pointwise of %2 over [1000]: 2 operands, 1 results, 12000 bytes: add silu\n");
  const std::string drawing = read_file(dot);
  EXPECT_TRUE(drawing.starts_with("digraph \"chain\" {\n"));
  EXPECT_CONTAINS(drawing, "subgraph cluster_n2 {");
  EXPECT_CONTAINS(drawing, "n2_2 -> n2_3 [label=\"f32[1000]\"];");
}

TEST_F(Compile, ShowsAResBlockBeforeAndAfter) {
  const Words command = {"compile", "--graph", DIFUSE_SOURCE_DIR "/models/example/resblock.ir", "--arch", "sm_90a"};
  Words unfused = environment();
  unfused.push_back("DIFUSE_DISABLE=fuse");
  const Outcome after = difuse(command, environment()), before = difuse(command, unfused);
  EXPECT_CONTAINS(after.out, "kernels: 7 (6 different)\nbytes moved: 170.5 MB ");
  EXPECT_CONTAINS(before.out, "kernels: 38 (12 different)\nbytes moved: 1.8 GB ");
  // Without the two kernels that normalise what the convolutions read.
  Words computed = command;
  computed.push_back("--prologue=always");
  EXPECT_CONTAINS(difuse(computed, environment()).out, "kernels: 5 (5 different)\nbytes moved: 103.4 MB ");
}

TEST_F(Compile, WorksWhateverTheDriver) {
  for (const Words& machine : {Words{"CUDA_VISIBLE_DEVICES="}, fake_driver(), fake_driver({"FAKE_CUDA_VERSION=11080"}),
                               fake_driver({"FAKE_CUDA_DEVICES=0"})}) {
    Words all = environment();
    all.insert(all.end(), machine.begin(), machine.end());
    const Outcome outcome = difuse({"compile", "--graph", kGraph}, all);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_CONTAINS(outcome.out, "for sm_90a");
    EXPECT_EQ(difuse({"doctor"}, all).exit_code, 0);
    EXPECT_EQ(difuse({"inspect", "tiny"}, all).exit_code, 0);
    EXPECT_EQ(difuse({"--help"}, all).exit_code, 0);
  }
}

TEST(Check, PassesOnTheCpuInEveryPrecision) {
  for (const char* dtype : {"f32", "tf32", "bf16"}) {
    const Outcome outcome =
        difuse({"check", "--model", "tiny", "--batch", "2", "--dtype", dtype, "--device", "cpu", "--threads", "2"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.out, ", 0 wrong; the worst is %");
    EXPECT_CONTAINS(outcome.out, "conv_wgrad_3x3");
    EXPECT_CONTAINS(outcome.out, std::string(dtype) + ")");
  }
}

TEST(Bench, MeasuresTheCpu) {
  const Outcome text = difuse({"bench", "--graph", kGraph, "--per-kernel", "--device", "cpu"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* part : {"CPU backend", "pointwise", "step: ", "median of 20"}) EXPECT_CONTAINS(text.out, part);

  const Outcome json =
      difuse({"bench", "--model", "tiny", "--batch", "2", "--per-kernel", "--json", "--device", "cpu"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const auto out = nlohmann::json::parse(json.out);
  EXPECT_EQ(out.at("problem"), "tiny, train, batch 2");
  EXPECT_EQ(out.at("steps").size(), 20u);
  EXPECT_GT(out.at("step_seconds").get<double>(), 0);
  EXPECT_GT(out.at("images_per_second").get<double>(), 0);
  EXPECT_GT(out.at("kernels").size(), 100u);
  EXPECT_EQ(out.at("launches"), out.at("kernels").size());
  EXPECT_GT(out.at("state_bytes").get<int64_t>(), 4 * 4 * 284513);  // Parameters, two moments, an average.
  EXPECT_GT(out.at("arena_bytes"), out.at("state_bytes"));
  EXPECT_GE(out.at("held_bytes"), out.at("arena_bytes"));
  EXPECT_GT(out.at("compile_seconds").get<double>(), 0);
  EXPECT_GT(out.at("first_step_seconds"), out.at("compile_seconds"));
  for (const auto& kernel : out.at("kernels")) {
    for (const char* field : {"seconds", "bytes", "flops", "node"}) EXPECT_TRUE(kernel.at(field).is_number()) << field;
  }
}

TEST(Bench, AForwardHasNoBackward) {
  for (const char* dtype : {"f32", "bf16"}) {
    const Outcome json = difuse({"bench", "--model", "tiny", "--mode", "forward", "--batch", "2", "--json", "--device",
                                 "cpu", "--dtype", dtype});
    ASSERT_EQ(json.exit_code, 0) << json.err;
    const auto out = nlohmann::json::parse(json.out);
    EXPECT_EQ(out.at("problem"), "tiny, forward, batch 2");
    EXPECT_FALSE(out.contains("kernels"));
    EXPECT_GT(out.at("launches"), 50);
    EXPECT_LT(out.at("launches"), 250);
    EXPECT_EQ(out.at("once").at("launches"), out.at("precision") == "f32" ? 0 : 1) << "the parameters' rounding";
  }
}

TEST(NoGpu, IsOneMessageThatSaysWhatStillWorks) {
  const TempFolder folder;
  const fs::path data = folder / "blobs-idx3-ubyte";
  write_idx(data, 20);
  struct Machine {
    Words environment;
    std::string message;
  };
  const std::vector<Machine> machines = {
      {fake_driver({"CUDA_VISIBLE_DEVICES="}), "CUDA_VISIBLE_DEVICES hides it"},
      {fake_driver({"FAKE_CUDA_DEVICES=0"}), "the NVIDIA driver (CUDA 13.0) sees no GPU"},
      {fake_driver({"FAKE_CUDA_VERSION=11080"}), "the NVIDIA driver is too old: it supports CUDA 11.8"},
      {fake_driver({"FAKE_CUDA_ARCHITECTURE=75"}), "the kernels need sm_80 or newer"},
      {{"CUDA_VISIBLE_DEVICES="}, "NVIDIA driver"},
  };
  for (const Machine& machine : machines) {
    SCOPED_TRACE(machine.message);
    const Outcome train =
        difuse(train_words(data, folder / "run", {"--steps", "1", "--device", "cuda"}), machine.environment);
    expect_refused(train, 2, {machine.message, "--device cpu"});
    EXPECT_FALSE(fs::exists(folder / "run"));
    expect_refused(difuse({"check", "--model", "tiny", "--device", "cuda"}, machine.environment), 2,
                   {machine.message, "--device cpu"});
    expect_refused(difuse({"bench", "--model", "tiny", "--device", "cuda:0"}, machine.environment), 2,
                   {machine.message, "--device cpu"});
    // What nobody asked for is not missed; that a driver is there and of no use is said.
    const Outcome automatic = difuse({"bench", "--graph", kGraph}, machine.environment);
    EXPECT_EQ(automatic.exit_code, 0) << automatic.err;
    EXPECT_TRUE(automatic.out.starts_with("CPU backend: ")) << automatic.out;
    if (machine.environment.size() > 1) {
      EXPECT_CONTAINS(automatic.out, machine.message);
    }
    EXPECT_CONTAINS(difuse({"doctor"}, machine.environment).out, machine.message);
  }
  expect_refused(difuse({"bench", "--graph", kGraph, "--device", "cuda:3"}, fake_driver()), 2,
                 {"there is no GPU 3: the driver sees one, GPU 0"});
}

// The stand-in takes none of NVRTC's code, which is what a driver says that is older than the toolkit.
TEST(NoGpu, CodeThatTheDriverRefusesIsTheEnvironmentsFault) {
  std::string reason;
  const auto nvrtc = codegen::NvrtcLibrary::load({}, &reason);
  if (!nvrtc) GTEST_SKIP() << reason;
  const TempFolder folder;
  const std::string cache = "DIFUSE_CACHE=" + (folder / "cache").string();
  expect_refused(
      difuse({"bench", "--graph", kGraph, "--device", "cuda"}, fake_driver({cache, "FAKE_CUDA_VERSION=99000"})), 2,
      {"loading the kernel pointwise_add_mul_silu_4x4x3_", "update the driver"});
  if (nvrtc->version().major < 13) return;
  if (codegen::NvrtcLibrary::load({.toolkit = {}, .newest_major = 12})) return;
  const Outcome older =
      difuse({"bench", "--graph", kGraph, "--device", "cuda"}, fake_driver({cache, "FAKE_CUDA_VERSION=12040"}));
  EXPECT_EQ(older.exit_code, 2);
  EXPECT_CONTAINS(older.err, nvrtc->version().text());
}

/// On a real GPU.
class GpuCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (difuse::testing::find_gpu(&reason) == nullptr) GTEST_SKIP() << reason;
    write_idx(data(), 40);
  }
  fs::path data() const { return folder_ / "blobs-idx3-ubyte"; }
  fs::path checkpoint(const char* run) const { return folder_ / run / "checkpoint.safetensors"; }
  Words environment(const Words& more = {}) const {
    Words all = {"CUDA_VISIBLE_DEVICES=0", "DIFUSE_CACHE=" + (folder_ / "cache").string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string train(const char* name, const Words& more, const Words& variables = {}) {
    last_ = difuse(train_words(data(), folder_ / name, more), environment(variables));
    EXPECT_EQ(last_.exit_code, 0) << last_.out << last_.err;
    return read_file(checkpoint(name));
  }

  TempFolder folder_;
  Outcome last_;
};

TEST_F(GpuCommands, TrainsResumesAndDraws) {
  for (const char* dtype : {"f32", "bf16"}) {
    const std::string a = std::string("a_") + dtype, b = std::string("b_") + dtype, c = std::string("c_") + dtype;
    const std::string whole = train(a.c_str(), {"--steps", "20", "--dtype", dtype, "--sample-every", "20"});
    EXPECT_TRUE(last_.out.starts_with("CUDA backend: ")) << last_.out;
    EXPECT_CONTAINS(last_.out, std::string("), ") + dtype);
    EXPECT_CONTAINS(last_.out, "step 20/20");
    EXPECT_EQ(runtime::read_png(folder_ / a / "samples" / "step_000020.png").width, 4 * (8 + 2) + 2);
    train(b.c_str(), {"--steps", "10", "--dtype", dtype});
    EXPECT_TRUE(train(b.c_str(), {"--steps", "20", "--dtype", dtype, "--resume"}) == whole);
    EXPECT_TRUE(train(c.c_str(), {"--steps", "20", "--dtype", dtype}, {"DIFUSE_CUDA_GRAPHS=0"}) == whole);
    EXPECT_CONTAINS(difuse({"inspect", (folder_ / a).string()}).out, "step            20");

    const auto draw = [&](const char* name, const Words& more) {
      Words words = {"sample",
                     "--checkpoint",
                     (folder_ / a).string(),
                     "--out",
                     (folder_ / name).string(),
                     "--n",
                     "5",
                     "--dtype",
                     dtype,
                     "--columns",
                     "5",
                     "--steps",
                     "20"};
      words.insert(words.end(), more.begin(), more.end());
      const Outcome outcome = difuse(words, environment());
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      return read_file(folder_ / name);
    };
    const std::string picture = draw("five.png", {});
    EXPECT_TRUE(draw("two.png", {"--batch", "2"}) == picture);
  }
}

TEST_F(GpuCommands, AccumulatesAndGoesOnOnTheCpu) {
  train("a", {"--steps", "4", "--dtype", "f32", "--microbatch", "4", "--flip"});
  // The device is no part of a checkpoint.
  train("a", {"--steps", "6", "--resume", "--device", "cpu"});
  EXPECT_TRUE(last_.out.starts_with("CPU backend: ")) << last_.out;
  EXPECT_CONTAINS(last_.out, "resumed: ");
}

TEST_F(GpuCommands, ChecksAndMeasures) {
  for (const char* dtype : {"f32", "tf32", "bf16"}) {
    const Outcome check = difuse({"check", "--model", "tiny", "--batch", "2", "--dtype", dtype}, environment());
    EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
    EXPECT_TRUE(check.out.starts_with("CUDA backend: "));
    EXPECT_CONTAINS(check.out, ", 0 wrong");
  }
  const Outcome text = difuse({"bench", "--model", "tiny", "--batch", "8", "--per-kernel"}, environment());
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* part : {"roofline, measured: ", "GB/s", "TFLOP/s of ", " %", "step: "}) {
    EXPECT_CONTAINS(text.out, part);
  }
  const Outcome json = difuse({"bench", "--model", "tiny", "--batch", "8", "--per-kernel", "--json"}, environment());
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const auto out = nlohmann::json::parse(json.out);
  EXPECT_GT(out.at("roofline").at("bytes_per_second").get<double>(), 1e11);
  EXPECT_GT(out.at("kernels").size(), 50u);
  for (const auto& kernel : out.at("kernels")) EXPECT_GT(kernel.at("seconds").get<double>(), 0);
  EXPECT_EQ(difuse({"bench", "--graph", kGraph}, environment()).exit_code, 0);
}

}  // namespace
}  // namespace difuse::test
