#include "codegen/cuda/emit/prologue.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/cuda/source/row_loop.h"
#include "codegen/node_body.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {

using ir::Node;
using ir::Op;
using ir::Value;

namespace {

constexpr int kLanes = 8;  ///< 16 bytes of bf16.
/// Runs of eight floats that a thread keeps for an image's channels: as many as its registers hold beside its work. It
/// has fewer pixels in them where there are two images.
constexpr size_t kMostKept = 4, kMostKeptOfTwo = 5;

/// By node: whether `v` is computed from it.
std::vector<bool> needed_by(const ir::Graph& body, Value v) {
  std::vector<bool> needed(static_cast<size_t>(body.size()));
  needed[static_cast<size_t>(v.node)] = true;
  for (int id = v.node; id >= 0; --id) {
    if (!needed[static_cast<size_t>(id)]) continue;
    for (const Value operand : body.node(id).operands) needed[static_cast<size_t>(operand.node)] = true;
  }
  return needed;
}

/// Whether the node repeats something along the pixels of an image.
bool repeats_along_pixels(const Node& node) {
  if (node.op != Op::broadcast) return false;
  return std::ranges::all_of(node.as<ir::BroadcastAttrs>().dims, [](int64_t d) { return d == 0 || d == 3; });
}

/// The inputs of the body that the node is an image of; empty where it is none. A concat alone reads its operands.
std::vector<int> image_inputs(const ir::Graph& body, int id) {
  constexpr int64_t kChunk = 64;
  const Node& node = body.node(id);
  if (node.op == Op::input) return {input_number(node)};
  if (node.op != Op::concat || node.operands.size() != 2 || node.as<ir::ConcatAttrs>().axis != 3) return {};
  const auto users = body.users();
  std::vector<int> inputs;
  for (const Value v : node.operands) {
    if (body.node(v).op != Op::input || users[static_cast<size_t>(v.node)] != std::vector<int>{id}) return {};
    inputs.push_back(input_number(body.node(v)));
  }
  if (node.operands[0] == node.operands[1] || body.type(node.operands[0]).shape[3] % kChunk != 0) return {};
  return inputs;
}

/// What is small, and what repeats it along an image's pixels; not a draw of random numbers or a gather.
bool is_repeated(const Node& node, const ir::Shape& image) {
  if (!ir::has_trait(node, ir::Trait(ir::kElementwise | ir::kBroadcast | ir::kView | ir::kLeaf))) return false;
  if (!BodyCode::can(node)) return false;
  if (node.types[0].shape != image || node.op == Op::constant) return true;
  // Of the image's shape: a broadcast, or computed of some.
  return node.op == Op::broadcast ? repeats_along_pixels(node) : ir::has_trait(node, ir::kElementwise);
}

struct Code {
  std::string fields = {}, values = {}, hoisted = {}, lane = {}, result = {};
  size_t runs = 0;
};

Code code_of(const ir::Graph& body, const ImageOperand& image, Value operand, const std::vector<std::string>& pointers,
             const std::vector<int64_t>& alignment) {
  std::vector<Value> images = {operand, image.value};
  if (image.other >= 0) images.push_back(body.find_input(text(image.other)));
  const ir::Graph part = part_of(body, images);
  const Value v = part.outputs()[0].value;
  BodyCode code(part, kLanes, pointers, alignment);
  const Index at = code.at({{"at_image", Lanes::none}, {}, {}, {"channel", Lanes::unit}});
  const Hoisted hoisted = hoist(code, part, at, part.type(v).shape, 1, 3, kLanes);
  Code made{.hoisted = hoisted.text};
  for (const Hoisted::Kept& one : hoisted.kept) {
    const std::string name = fmt::format("kept{}", one.value.node), type = register_type(part.type(one.value).dtype);
    const bool is_run = !one.variable.empty();
    made.runs += is_run ? 1 : 0;
    made.fields +=
        is_run ? fmt::format("  Run<{}, {}> {};\n", type, kLanes, name) : fmt::format("  {} {};\n", type, name);
    made.values += fmt::format("{}{}", made.values.empty() ? "" : ", ", is_run ? one.variable : one.expression);
    code.bind(one.value, fmt::format("of.{}{}", name, is_run ? "[l]" : ""), is_run ? Lanes::any : Lanes::none);
  }
  code.bind(part.outputs()[1].value, "raw[l]");
  if (image.other >= 0) code.bind(part.outputs()[2].value, "others[l]");
  made.result = code.unrounded(v, at);
  made.lane = code.take_before() + code.take_lane();
  return made;
}

}  // namespace

std::optional<ImageOperand> image_operand(const ir::Graph& body, Value contraction, Value operand) {
  const ir::Type& type = body.type(operand);
  if (type.rank() != 4) return {};
  const std::vector<bool> needed = needed_by(body, operand);
  std::vector<bool> varies(needed.size());  // From pixel to pixel.
  const auto users = body.users();
  ImageOperand found;
  for (int id = 0; id <= operand.node; ++id) {
    const Node& node = body.node(id);
    if (!needed[static_cast<size_t>(id)]) continue;
    const bool reads = std::ranges::any_of(node.operands, [&](Value v) { return varies[static_cast<size_t>(v.node)]; });
    const std::vector<int> inputs = image_inputs(body, id);
    if (!inputs.empty() && node.types[0] == type) {
      const bool is_second = found.value.valid();
      if (is_second && (found.other >= 0 || found.inputs.size() > 1 || inputs.size() > 1)) return {};
      if (is_second) {
        found.other = inputs[0];
      } else {
        found.value = {id, 0}, found.inputs = inputs;
      }
    } else if (!reads) {
      if (!is_repeated(node, type.shape)) return {};
      continue;
    } else if (!ir::has_trait(node, ir::kElementwise)) {
      return {};
    }
    varies[static_cast<size_t>(id)] = true;
    // It is nowhere in memory.
    for (const int user : users[static_cast<size_t>(id)]) {
      const bool inside = user <= operand.node && needed[static_cast<size_t>(user)];
      if (id == operand.node ? user != contraction.node : !inside) return {};
    }
    if (std::ranges::any_of(body.outputs(), [&](const auto& output) { return output.value.node == id; })) return {};
  }
  if (!found.value.valid() || !varies[static_cast<size_t>(operand.node)]) return {};
  found.has_prologue = found.value != operand;
  if (found.has_prologue && type.dtype != ir::DType::bf16) return {};
  int inputs = 0;
  for (const int id : body.leaves(Op::input)) inputs = std::max(inputs, input_number(body.node(id)) + 1);
  const std::vector<std::string> pointers(static_cast<size_t>(inputs), "p");
  const size_t most = found.other >= 0 ? kMostKeptOfTwo : kMostKept;
  if (found.has_prologue && code_of(body, found, operand, pointers, {}).runs > most) return {};
  return found;
}

std::vector<int> prologue_inputs(const ir::Graph& body, Value operand) {
  const std::vector<bool> needed = needed_by(body, operand);
  const auto users = body.users();
  std::vector<int> inputs;
  for (const int id : body.leaves(Op::input)) {
    const auto& readers = users[static_cast<size_t>(id)];
    if (!needed[static_cast<size_t>(id)]) continue;
    if (std::ranges::all_of(readers, [&](int user) { return needed[static_cast<size_t>(user)]; })) {
      inputs.push_back(input_number(body.node(id)));
    }
  }
  return inputs;
}

std::string prologue_code(const KernelSpec& spec, const ImageOperand& image, Value operand,
                          const std::vector<std::string>& pointers, const std::string& declarations,
                          const std::string& suffix) {
  const Code code = code_of(spec.body, image, operand, pointers, spec.alignment);
  const std::string other =
      image.other < 0 ? "prologue::Alone" : fmt::format("prologue::Beside<{}>", spec.body.type(operand).shape.back());
  return filled(R"(struct Channels$suffix {
$fields};
const auto channels_at$suffix = [&]([[maybe_unused]] index_t at_image, [[maybe_unused]] index_t channel,
                            [[maybe_unused]] const float* made) {
$hoisted  return Channels$suffix{$values};
};
const auto transformed$suffix = [&]([[maybe_unused]] const Channels$suffix& of, const Run<float, $lanes>& raw$others) {
  Run<float, $lanes> value;
#pragma unroll
  for (int l = 0; l < $lanes; ++l) {
$lane    value[l] = $result;
  }
  return value;
};
const $other other$suffix{$pointer};
)",
                {{"suffix", suffix},
                 {"fields", code.fields},
                 {"hoisted", indented(declarations + code.hoisted, 2)},
                 {"values", code.values},
                 {"lanes", text(kLanes)},
                 {"others", image.other < 0 ? "" : fmt::format(", const Run<float, {}>& others", kLanes)},
                 {"lane", indented(code.lane, 4)},
                 {"other", other},
                 {"pointer", image.other < 0 ? "" : pointers[static_cast<size_t>(image.other)]},
                 {"result", code.result}});
}

}  // namespace difuse::codegen::cuda
