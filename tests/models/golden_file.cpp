#include "tests/models/golden_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "ir/error.h"
#include "models/config/config_json.h"
#include "models/unet.h"
#include "passes/autodiff.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;
using ir::DType;
using ir::Value;
using runtime::TensorDType;

const fs::path kFolder = fs::path(DIFUSE_SOURCE_DIR) / "tests" / "golden";
const std::string kExtension = ".safetensors";

/// The configuration that the file's metadata has under that name; a field that it leaves out has its default.
template <class Config>
Config read_config(const runtime::SafetensorsReader& file, std::string_view name) {
  const auto found = file.metadata().find(name);
  if (found == file.metadata().end()) throw Error(fmt::format("{} has no '{}'", file.path().string(), name));
  nlohmann::json object = config_to_json(Config{});
  object.update(nlohmann::json::parse(found->second));
  return config_from_json<Config>(object, fmt::format("{}: '{}'", file.path().string(), name));
}

template <class T>
std::vector<double> to_double(std::span<const std::byte> bytes) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return {elements.begin(), elements.end()};
}

std::vector<double> to_double(TensorDType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case TensorDType::f64:
      return to_double<double>(bytes);
    case TensorDType::f32:
      return to_double<float>(bytes);
    case TensorDType::i32:
      return to_double<int32_t>(bytes);
    case TensorDType::u32:
      return to_double<uint32_t>(bytes);
    case TensorDType::u8:
      return to_double<uint8_t>(bytes);
    default:
      throw Error(fmt::format("goldens do not have the type {}", runtime::tensor_dtype_name(dtype)));
  }
}

/// For each leaf of kind `op`, the elements that `values(name, type)` gives.
template <class Values>
ir::TensorMap leaf_tensors(const ir::Graph& graph, ir::Op op, const Values& values) {
  ir::TensorMap tensors;
  for (int id : graph.leaves(op)) {
    const auto& name = graph.node(id).as<ir::LeafAttrs>().name;
    const ir::Type& type = graph.node(id).types[0];
    tensors.emplace(name, ir::Tensor(type, values(name, type)));
  }
  return tensors;
}

}  // namespace

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    if (entry.path().extension() == kExtension) names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

GoldenFile::GoldenFile(std::string_view name)
    : path_(kFolder / fmt::format("{}{}", name, kExtension)),
      file_(path_),
      unet_(read_config<UNetConfig>(file_, "unet")),
      diffusion_(read_config<DiffusionConfig>(file_, "diffusion")),
      training_(read_config<TrainingConfig>(file_, "training")),
      layout_(parameter_layout(unet_)) {}

std::vector<double> GoldenFile::values(const std::string& name, const ir::Shape& shape) const {
  const runtime::TensorInfo* info = file_.find(name);
  if (info == nullptr) throw Error(fmt::format("{} has no {}", path_.string(), name));
  if (info->shape != shape) {
    throw Error(
        fmt::format("{}: {} is {}, wanted {}", path_.string(), name, ir::to_string(info->shape), ir::to_string(shape)));
  }
  return to_double(info->dtype, file_.bytes(*info));
}

std::vector<double> GoldenFile::packed(const std::string& prefix) const {
  for (const runtime::TensorInfo& info : file_.tensors()) {
    if (info.name.starts_with(prefix + "/") && layout_.find(info.name.substr(prefix.size() + 1)) < 0) {
      throw Error(fmt::format("{}: the model has no parameter for {}", path_.string(), info.name));
    }
  }
  std::vector<double> flat(static_cast<size_t>(layout_.size()));
  for (size_t i = 0; i < layout_.specs().size(); ++i) {
    const ParameterSpec& spec = layout_.specs()[i];
    std::ranges::copy(values(prefix + "/" + spec.name, spec.shape), flat.begin() + layout_.offsets()[i]);
  }
  return flat;
}

ir::Graph golden_model_graph(const GoldenFile& golden) {
  const UNetConfig& unet = golden.unet();
  const int64_t batch = golden.training().batch;
  ir::Graph graph("golden_model");
  ir::Builder build(graph);
  UNetInputs inputs;
  inputs.x = build.input("x", {DType::f32, {batch, unet.image_height, unet.image_width, unet.image_channels}});
  inputs.timesteps = build.input("timesteps", {DType::f32, {batch}});
  if (unet.num_classes > 0) inputs.labels = build.input("label", {DType::i32, {batch}});
  inputs.dropout = RandomKey{build.state("seed", {DType::u32, {2}}), build.input("index", {DType::i32, {batch}}),
                             build.state("step", {DType::i32, {}})};
  PackedParameters parameters(build, golden.layout(), build.state("params", {DType::f32, {golden.layout().size()}}));
  const Value output = build_unet(build, parameters, unet, inputs);
  const ir::Type type = build.type(output);
  const Value error = build.sub(output, build.input("target", type));
  const Value loss = build.mul(build.sum_all(build.square(error)), 1 / static_cast<double>(type.elements()));
  const std::vector<Value> gradients = passes::differentiate(build, loss, parameters.views());
  graph.set_output("output", output);
  graph.set_output("loss", loss);
  graph.set_output("gradient", build.pack(gradients, golden.layout().offsets(), golden.layout().size()));
  return graph;
}

ir::TensorMap golden_model_leaves(const ir::Graph& graph, ir::Op op, const GoldenFile& golden) {
  return leaf_tensors(graph, op, [&](const std::string& name, const ir::Type& type) {
    if (name == "params") return golden.packed("param");
    return golden.values(name == "seed" ? name : "model/" + name, type.shape);
  });
}

ir::TensorMap golden_step_inputs(const ir::Graph& graph, const GoldenFile& golden, int64_t step) {
  return leaf_tensors(graph, ir::Op::input, [&](const std::string& name, const ir::Type& type) {
    if (name == "index") return golden.values("curve/index", type.shape);
    ir::Shape all = type.shape;  // the others have one entry per step
    all.insert(all.begin(), kGoldenSteps);
    const std::vector<double> rows = golden.values("curve/" + name, all);
    const auto begin = rows.begin() + step * type.elements();
    return std::vector<double>(begin, begin + type.elements());
  });
}

ir::TensorMap golden_start_states(const ir::Graph& graph, const GoldenFile& golden) {
  return leaf_tensors(graph, ir::Op::state, [&](const std::string& name, const ir::Type& type) {
    if (name == "seed") return golden.values(name, type.shape);
    if (name == "params" || name.starts_with("ema")) return golden.packed("param");
    return std::vector<double>(static_cast<size_t>(type.elements()));  // zero: the step and the moments
  });
}

void expect_near(std::span<const double> actual, std::span<const double> golden, double tolerance,
                 std::string_view what) {
  ASSERT_EQ(actual.size(), golden.size()) << what;
  EXPECT_LE(ir::relative_error(actual, golden), tolerance) << what;
}

void expect_parameters_near(const ParameterLayout& layout, std::span<const double> actual,
                            std::span<const double> golden, double tolerance, std::string_view what) {
  ASSERT_EQ(actual.size(), golden.size()) << what;
  double largest = 0;
  for (double value : golden) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < layout.specs().size(); ++i) {
    const auto at = static_cast<size_t>(layout.offsets()[i]);
    const auto count = static_cast<size_t>(layout.specs()[i].elements());
    EXPECT_LE(ir::relative_error(actual.subspan(at, count), golden.subspan(at, count), largest), tolerance)
        << what << " of " << layout.specs()[i].name;
  }
}

}  // namespace difuse::models
