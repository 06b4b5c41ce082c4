// difuse run with the real binary: a step on given numbers, and what a file has to hold.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "ir/reference.h"
#include "models/parameters.h"
#include "models/presets.h"
#include "models/unet.h"
#include "runtime/safetensors.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;
using runtime::TensorDType;
using runtime::TensorEntry;

/// Numbers in [-1, 1] that differ from place to place.
std::vector<float> numbers(int64_t count, int seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i % 977) * 0.7f + seed);
  return values;
}

/// Named f32 tensors, to be written, left out or changed.
struct StepFile {
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, Tensor> tensors;

  void add(const std::string& name, std::vector<int64_t> shape) {
    const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    tensors[name] = {std::move(shape), numbers(count, static_cast<int>(tensors.size()))};
  }
  void write(const fs::path& path) const {
    std::vector<TensorEntry> entries;
    for (const auto& [name, t] : tensors) {
      entries.push_back({name, TensorDType::f32, t.shape, std::as_bytes(std::span(t.values))});
    }
    runtime::write_safetensors(path, {}, entries);
  }
};

std::vector<float> read_floats(const fs::path& path, std::string_view name) {
  const runtime::SafetensorsReader file(path);
  const std::span<const std::byte> bytes = file.bytes(name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class Run : public ::testing::Test {
 protected:
  fs::path in() const { return folder_ / "in.safetensors"; }
  fs::path out() const { return folder_ / "out.safetensors"; }
  Outcome run(Words what) const {
    const Words rest = {"--in", in().string(), "--out", out().string(), "--device", "cpu", "--threads", "2"};
    what.insert(what.begin(), "run");
    what.insert(what.end(), rest.begin(), rest.end());
    return difuse(what);
  }
  Outcome forward() const { return run({"--model", "tiny", "--mode", "forward", "--batch", "2"}); }
  fs::path write_graph(std::string_view text) const {
    const fs::path path = folder_ / "g.ir";
    std::ofstream(path) << text;
    return path;
  }
  StepFile forward_file() const {
    StepFile file;
    file.add("x", {2, 8, 8, 1});
    file.add("timesteps", {2});
    file.tensors["timesteps"].values = {3, 700};
    for (const auto& spec : layout_.specs()) file.add("params/" + spec.name, spec.shape);
    return file;
  }

  TempFolder folder_;
  const models::UNetConfig unet_ = models::find_preset("tiny").unet;
  const models::ParameterLayout layout_ = models::parameter_layout(unet_);
};

TEST_F(Run, AForwardIsTheReferencesOnTheSameNumbers) {
  const StepFile file = forward_file();
  file.write(in());
  const Outcome outcome = forward();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.last_line(), out().string());

  const auto tensor = [](std::vector<int64_t> shape, std::span<const float> values) {
    return ir::Tensor{{ir::DType::f32, std::move(shape)}, {values.begin(), values.end()}};
  };
  std::vector<float> flat(static_cast<size_t>(layout_.size()));
  for (size_t i = 0; i < layout_.specs().size(); ++i) {
    const auto& values = file.tensors.at("params/" + layout_.specs()[i].name).values;
    std::ranges::copy(values, flat.begin() + layout_.offsets()[i]);
  }
  const auto want = ir::run_reference(models::build_forward(unet_, 2),
                                      {{"x", tensor({2, 8, 8, 1}, file.tensors.at("x").values)},
                                       {"timesteps", tensor({2}, file.tensors.at("timesteps").values)}},
                                      {{"params", tensor({layout_.size()}, flat)}});
  const std::vector<float> got = read_floats(out(), "output");
  const std::vector<double>& expected = want.outputs.at("output").data;
  ASSERT_EQ(got.size(), expected.size());
  double largest = 0;
  for (double v : expected) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5 * largest) << i;
}

TEST_F(Run, AGraphsOutputsAndChangedStates) {
  const fs::path graph = write_graph(R"(graph g {
  %0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
  %1 = state {name = "sum", dtype = f32, shape = [3]} : f32[3]
  %2 = state {name = "same", dtype = f32, shape = [3]} : f32[3]
  %3 = add %0, %1 : f32[3]
  %4 = mul %0, %2 : f32[3]
  output "product" = %4
  update "sum" = %3
})");
  StepFile file;
  for (const char* name : {"x", "sum", "same"}) file.add(name, {3});
  file.write(in());
  const Outcome outcome = run({"--graph", graph.string()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(runtime::SafetensorsReader(out()).tensors().size(), 2u);
  const std::vector<float> sum = read_floats(out(), "sum"), product = read_floats(out(), "product");
  for (size_t i = 0; i < 3; ++i) {
    const auto value = [&](const char* name) { return file.tensors.at(name).values[i]; };
    EXPECT_EQ(sum[i], value("x") + value("sum"));
    EXPECT_EQ(product[i], value("x") * value("same"));
  }
}

TEST_F(Run, WhatAStepCarriesIsNoneOfItsResults) {
  const fs::path graph = write_graph(R"(graph training_step {
  %0 = state {name = "params", dtype = f32, shape = [18432]} : f32[18432]
  %1 = input {name = "x", dtype = f32, shape = [2, 8, 8, 32]} : f32[2, 8, 8, 32]
  %2 = view %0 {offset = 0, shape = [32, 3, 3, 32]} : f32[32, 3, 3, 32]
  %3 = conv_fprop %1, %2 {stride = 1, pad = 1} : f32[2, 8, 8, 32]
  %4 = view %0 {offset = 9216, shape = [32, 3, 3, 32]} : f32[32, 3, 3, 32]
  %5 = conv_fprop %3, %4 {stride = 1, pad = 1} : f32[2, 8, 8, 32]
  %6 = neg %0 : f32[18432]
  output "y" = %5
  update "params" = %6
})");
  StepFile file;
  file.add("params", {18432});
  file.add("x", {2, 8, 8, 32});
  file.write(in());
  const Outcome outcome = run({"--graph", graph.string(), "--dtype", "bf16"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(runtime::SafetensorsReader(out()).tensors().size(), 2u);
  EXPECT_EQ(read_floats(out(), "params")[0], -file.tensors.at("params").values[0]);
}

TEST_F(Run, WhatTheFileLacksIsNamed) {
  const auto refused = [&](const StepFile& file, const Words& parts) {
    file.write(in());
    expect_refused(forward(), 2, parts);
    EXPECT_FALSE(fs::exists(out()));
  };
  StepFile file = forward_file();
  file.tensors.erase("timesteps");
  refused(file, {"'timesteps'", "F32[2]"});

  file = forward_file();
  file.tensors.erase("params/out.2.bias");
  refused(file, {"'params/out.2.bias'", "F32[1]"});

  file = forward_file();
  file.add("x", {3, 8, 8, 1});
  refused(file, {"'x' is F32[3, 8, 8, 1]", "F32[2, 8, 8, 1]"});

  file = forward_file();
  file.add("params/out.3.bias", {1});
  refused(file, {"'params/out.3.bias' is no input and no state"});
}

}  // namespace
}  // namespace difuse::test
