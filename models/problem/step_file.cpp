#include "models/problem/step_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "ir/error.h"
#include "models/parameters.h"
#include "models/presets.h"
#include "models/unet.h"
#include "runtime/safetensors.h"

namespace difuse::models {
namespace {

using runtime::TensorDType;
using runtime::TensorEntry;

/// One tensor of the file and where it lies among the bytes of an input, a state or an output.
struct InputPart {
  std::string name;
  TensorDType dtype;
  ir::Shape shape;
  size_t offset, bytes;
};

class Parts {
 public:
  explicit Parts(const Problem& problem) {
    if (!problem.preset.empty()) layout_.emplace(parameter_layout(find_preset(problem.preset).unet));
  }

  std::vector<InputPart> of(const std::string& name, const ir::Type& type) const {
    const bool packed = layout_ && type.dtype == ir::DType::f32 && type.shape == ir::Shape{layout_->size()};
    if (!packed) {
      return {{name, runtime::to_tensor_dtype(type.dtype), type.shape, 0, static_cast<size_t>(type.bytes())}};
    }
    std::vector<InputPart> parts;
    for (size_t i = 0; i < layout_->specs().size(); ++i) {
      const ParameterSpec& spec = layout_->specs()[i];
      parts.push_back({fmt::format("{}/{}", name, spec.name), TensorDType::f32, spec.shape,
                       static_cast<size_t>(layout_->offsets()[i]) * sizeof(float),
                       static_cast<size_t>(spec.elements()) * sizeof(float)});
    }
    return parts;
  }

 private:
  std::optional<ParameterLayout> layout_;
};

struct Leaf {
  ir::Op op;
  std::string name;
  std::vector<std::byte> bytes;
};

void copy_part(const runtime::SafetensorsReader& file, const InputPart& part, std::span<std::byte> to) {
  const auto wanted = [&] {
    return fmt::format("{}{}", runtime::tensor_dtype_name(part.dtype), ir::to_string(part.shape));
  };
  const runtime::TensorInfo* tensor = file.find(part.name);
  if (tensor == nullptr) {
    throw Error(fmt::format("'{}' has no tensor '{}'", file.path().string(), part.name),
                fmt::format("add it: {}", wanted()), ExitCode::wrong_usage);
  }
  if (tensor->dtype != part.dtype || tensor->shape != part.shape) {
    throw Error(fmt::format("'{}': tensor '{}' is {}{}", file.path().string(), part.name,
                            runtime::tensor_dtype_name(tensor->dtype), ir::to_string(tensor->shape)),
                fmt::format("the step takes {}", wanted()), ExitCode::wrong_usage);
  }
  std::ranges::copy(file.bytes(*tensor), to.begin() + static_cast<std::ptrdiff_t>(part.offset));
}

std::vector<Leaf> read_leaves(const Problem& problem, const std::filesystem::path& path) {
  const runtime::SafetensorsReader file(path);
  const Parts parts(problem);
  std::vector<Leaf> leaves;
  std::set<std::string, std::less<>> known;
  for (const ir::Op op : {ir::Op::input, ir::Op::state}) {
    for (const int id : problem.graph.leaves(op)) {
      const ir::Type& type = problem.graph.node(id).types[0];
      Leaf leaf{op, problem.graph.node(id).as<ir::LeafAttrs>().name, {}};
      leaf.bytes.resize(static_cast<size_t>(type.bytes()));
      for (const InputPart& part : parts.of(leaf.name, type)) {
        copy_part(file, part, leaf.bytes);
        known.insert(part.name);
      }
      leaves.push_back(std::move(leaf));
    }
  }
  for (const runtime::TensorInfo& tensor : file.tensors()) {
    if (known.contains(tensor.name)) continue;
    throw Error(fmt::format("'{}': tensor '{}' is no input and no state of the step", path.string(), tensor.name),
                "leave it out, or check its name", ExitCode::wrong_usage);
  }
  return leaves;
}

}  // namespace

void read_step(runtime::Executor& executor, const Problem& problem, const std::filesystem::path& path) {
  for (const Leaf& leaf : read_leaves(problem, path)) {
    const bool is_input = leaf.op == ir::Op::input;
    const ir::Graph& graph = executor.graph();
    const ir::Value v = is_input ? graph.find_input(leaf.name) : graph.find_state(leaf.name);
    if (!v.valid() || !executor.memory().at(v).placed()) continue;  // Nothing reads it.
    if (is_input) {
      executor.write_input(leaf.name, leaf.bytes);
    } else {
      executor.write_state(leaf.name, leaf.bytes);
    }
  }
}

void write_step(const runtime::Executor& executor, const Problem& problem, const std::filesystem::path& path) {
  const ir::Graph& graph = executor.graph();
  const Parts parts(problem);
  std::map<std::string, std::vector<std::byte>> bytes;
  std::vector<TensorEntry> tensors;
  const auto add = [&](const ir::NamedValue& result, auto&& read) {
    const ir::Type& type = graph.type(result.value);
    std::vector<std::byte>& all = bytes[result.name];
    all.resize(static_cast<size_t>(type.bytes()));
    read(all);
    for (const InputPart& part : parts.of(result.name, type)) {
      tensors.push_back({part.name, part.dtype, part.shape, std::span(all).subspan(part.offset, part.bytes)});
    }
  };
  for (const ir::NamedValue& output : graph.outputs()) {
    add(output, [&](std::span<std::byte> to) { executor.read_output(output.name, to); });
  }
  for (const ir::NamedValue& update : graph.updates()) {
    if (!graph.find_state(update.name).valid()) continue;  // Carried: the compiled step's own.
    add(update, [&](std::span<std::byte> to) { executor.read_state(update.name, to); });
  }
  runtime::write_safetensors(path, {}, tensors);
}

}  // namespace difuse::models
