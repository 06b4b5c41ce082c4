#include "codegen/cuda/emit/conv_wgmma/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/emit/halo.h"
#include "codegen/cuda/emit/prologue.h"
#include "codegen/node_body.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {

using ir::DType;
using ir::Op;

namespace {

/// Finds the residual and the mask. False where another operand is too large to be read element by element.
bool fits_operands(const KernelSpec& spec, HaloConv& c) {
  const ir::Type result{c.dtype, spec.body.type(c.value).shape}, mask{DType::u8, result.shape};
  std::vector<int> before;
  if (c.has_prologue()) before = prologue_inputs(spec.body, spec.body.node(c.value).operands[0]);
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const auto input = static_cast<int>(i);
    const ir::Value v = spec.body.find_input(std::to_string(i));
    const bool is_made = spec.preamble != nullptr && i >= spec.preamble->first_operand;
    if (is_made && v.valid() && std::ranges::count(before, input) == 0) return false;  // Only transformers have it.
    if (!v.valid() || input == c.filter || std::ranges::count(c.image.inputs, input) > 0) continue;
    if (std::ranges::count(before, input) > 0) continue;
    const ir::Type& type = spec.body.type(v);
    // Rows, of which the channels may be a part.
    if (type.rank() <= 2 || type.elements() <= c.batch * c.outputs) continue;
    if (spec.alignment[i] < kEngineAlignment) return false;
    const bool is_mask = c.dtype == DType::bf16 && c.outputs % kEngineAlignment == 0 && type == mask;
    int& found = is_mask ? c.mask : c.residual;
    if (found >= 0 || (type != result && !is_mask)) return false;
    found = input;
  }
  return c.mask < 0 || c.residual >= 0;
}

/// Whether nothing that is computed from the convolution's value depends on the image or on the place in it: in a line
/// of pixels it would take divisions to know them.
bool depends_on_channels_alone(const ir::Graph& body, const HaloConv& c) {
  const std::vector<bool> live = body.live();
  for (int id = 0; id < body.size(); ++id) {
    const ir::Node& node = body.node(id);
    const bool plain = ir::has_trait(node, ir::Trait(ir::kElementwise | ir::kLeaf));
    if (!live[static_cast<size_t>(id)] || id == c.value.node || id == c.image.value.node || plain) continue;
    if (node.op != Op::broadcast) return false;
    const auto& dims = node.as<ir::BroadcastAttrs>().dims;
    if (!dims.empty() && dims != std::vector<int64_t>{3}) return false;
  }
  return true;
}

/// Whether the convolution alone reads its operands, or its prologue: they are passed as tensor maps.
bool finds_operands(const ir::Graph& body, HaloConv& c) {
  const auto users = body.users();
  const ir::Value image = body.node(c.value).operands[0], filter = body.node(c.value).operands[1];
  const auto is_read_alone = [&](ir::Value v) {
    return body.node(v).op == Op::input && users[static_cast<size_t>(v.node)] == std::vector<int>{c.value.node};
  };
  const auto found = image_operand(body, c.value, image);
  if (!is_read_alone(filter) || !found) return false;
  c.filter = input_number(body.node(filter)), c.image = *found;
  c.first_inputs = body.type(body.find_input(std::to_string(c.image.inputs[0]))).shape[3];
  return true;
}

/// Whether the operand is read at the element that is computed, and nowhere else.
bool is_read_in_place(const ir::Graph& body, int input) {
  const ir::Value v = body.find_input(std::to_string(input));
  const std::vector<int> users = body.users()[static_cast<size_t>(v.node)];
  return std::ranges::all_of(users, [&](int user) { return ir::has_trait(body.node(user), ir::kElementwise); });
}

/// Finds the results: an image, the mean and M2 of what is stored of it, and sums.
bool finds_results(const KernelSpec& spec, HaloConv& c) {
  const ir::Graph& body = spec.body;
  int images = 0;
  ir::Value of;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    const ir::Value v = body.outputs()[r].value;
    const ir::Node& node = body.node(v);
    if (!spec.wanted(r)) return false;
    if (node.op == Op::reduce_sum) {
      const auto& axes = node.as<ir::ReduceAttrs>().axes;
      const bool over_images = axes == std::vector<int64_t>{0, 1, 2};
      if (!over_images && axes != std::vector<int64_t>{1, 2}) return false;
      c.sums.push_back({r, node.operands[0], over_images});
      continue;
    }
    if (node.op != Op::channel_moments) {
      c.result = r, ++images;
      continue;
    }
    if (of.valid() && of != node.operands[0]) return false;
    of = node.operands[0];
    (v.result == 0 ? c.mean : c.m2) = static_cast<int>(r);
  }
  if (images != 1 || (c.mean < 0) != (c.m2 < 0)) return false;
  if (!of.valid()) return true;
  const ir::Value image = body.outputs()[c.result].value;
  return of == image || (body.node(of).op == Op::cast && body.node(of).operands[0] == image);
}

/// Whether the tensor cores multiply such operands in shared memory as they are: in f32 those that were rounded, with k
/// along their rows, which for the filter of a conv_dgrad it is not.
bool takes_elements(const KernelSpec& spec, const HaloConv& c) {
  if (c.dtype == DType::bf16) return true;
  return c.dtype == DType::f32 && !c.is_turned && !c.has_prologue() && spec.reads_tf32(c.filter) &&
         std::ranges::all_of(c.image.inputs, [&](int input) { return spec.reads_tf32(input); });
}

bool takes_stride(const HaloConv& c) {
  return c.stride == 1 || (c.stride == 2 && c.taps == 3 && !c.is_turned && !c.has_prologue());
}

}  // namespace

std::optional<HaloConv> halo_conv(const KernelSpec& spec) {
  const ir::Graph& body = spec.body;
  HaloConv c;
  c.value = only_contraction(body);
  if (spec.device.architecture != 90 || !c.value.valid()) return {};
  c.is_turned = body.node(c.value).op == Op::conv_dgrad;
  if (!c.is_turned && body.node(c.value).op != Op::conv_fprop) return {};
  if (!finds_results(spec, c) || !is_epilogue(body, c.value, {Op::channel_moments, Op::reduce_sum})) return {};
  const ir::Node& node = body.node(c.value);
  const ir::Type &image = body.type(node.operands[0]), &filter = body.type(node.operands[1]);
  const ir::Type& result = body.type(body.outputs()[c.result].value);
  c.dtype = image.dtype;
  if (result != ir::Type{c.dtype, node.types[0].shape}) return {};
  c.stride = c.is_turned ? node.as<ir::ConvDgradAttrs>().stride : node.as<ir::ConvAttrs>().stride;
  if (filter.shape[1] != filter.shape[2] || !finds_operands(body, c) || !takes_elements(spec, c)) return {};
  c.batch = image.shape[0], c.image_h = image.shape[1], c.image_w = image.shape[2], c.inputs = image.shape[3];
  c.height = result.shape[1], c.width = result.shape[2], c.outputs = result.shape[3];
  c.taps = filter.shape[1];
  if (!takes_stride(c)) return {};
  c.pad = c.is_turned ? c.taps - 1 - node.as<ir::ConvDgradAttrs>().pad : node.as<ir::ConvAttrs>().pad;
  const auto aligned = [&](int input) { return spec.alignment[static_cast<size_t>(input)] >= kEngineAlignment; };
  if (c.pad < 0 ||
      !takes_halo(c.taps, c.pad, c.inputs, c.outputs, c.batch * c.image_h * c.image_w, ir::size_of(c.dtype)))
    return {};
  if (c.image.other >= 0 && !aligned(c.image.other)) return {};
  if (!std::ranges::all_of(c.image.inputs, aligned) || !aligned(c.filter) ||
      spec.result_alignment[c.result] < kEngineAlignment)
    return {};
  if ((c.has_strips() || c.has_prologue()) && c.taps == 1 && c.height * c.width == 1) return {};  // Such are a line.
  if (c.is_line() && !depends_on_channels_alone(body, c)) return {};
  if (!fits_operands(spec, c)) return {};
  for (const int input : {c.residual, c.mask}) {
    if (input >= 0 && !is_read_in_place(body, input)) return {};
  }
  c.finished = spec.preamble != nullptr ? spec.preamble->floats : 0;
  return c.has_finish() && !c.has_prologue() ? std::nullopt : std::optional(c);
}

std::string geometry(const HaloConv& c) {
  return fmt::format("engines {}{}x{}x{} to {}x{}x{}, filter {}x{}, pad {}{}{}{}{}",
                     c.dtype == DType::f32 ? "tf32 " : "", c.image_h, c.image_w, c.inputs, c.height, c.width, c.outputs,
                     c.taps, c.taps, c.pad, c.stride > 1 ? fmt::format(", stride {}", c.stride) : "",
                     c.is_turned ? ", turned" : "", c.has_prologue() ? ", prologue" : "",
                     c.image.inputs.size() > 1 ? fmt::format(", first {}", c.first_inputs) : "");
}

}  // namespace difuse::codegen::cuda
