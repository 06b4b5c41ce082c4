// Ops that move elements: what moves nothing, what moves twice, what moves a constant.
#include <algorithm>
#include <numeric>

#include "passes/canonicalize.h"

namespace difuse::passes {
namespace {

using ir::Builder;
using ir::Node;
using ir::Op;
using ir::Shape;
using ir::Value;

const Node& operand_node(Builder& build, const Node& node) { return build.graph().node(node.operands[0]); }

/// The operand itself, when it already is what the node makes. Ops whose result type alone says that nothing moved.
Value same_type(Builder& build, const Node& node) {
  return build.type(node.operands[0]) == node.types[0] ? node.operands[0] : Value{};
}

/// Moving a constant's elements gives the constant of the new shape.
Value move_constant(Builder& build, const Node& node) {
  const Node& from = operand_node(build, node);
  if (from.op != Op::constant) return {};
  return build.constant(from.as<ir::ConstantAttrs>().value, node.types[0]);
}

Value broadcast_broadcast(Builder& build, const Node& node) {
  const Node& inner = operand_node(build, node);
  if (inner.op != Op::broadcast) return {};
  const auto& outer = node.as<ir::BroadcastAttrs>();
  std::vector<int64_t> dims;
  for (int64_t d : inner.as<ir::BroadcastAttrs>().dims) dims.push_back(outer.dims[static_cast<size_t>(d)]);
  return build.broadcast(inner.operands[0], outer.shape, std::move(dims));
}

/// A reshape that only adds axes of one element before a broadcast is part of the broadcast.
Value broadcast_reshape(Builder& build, const Node& node) {
  const Node& inner = operand_node(build, node);
  if (inner.op != Op::reshape) return {};
  const auto& outer = node.as<ir::BroadcastAttrs>();
  const Shape& from = build.shape(inner.operands[0]);
  const Shape& to = inner.types[0].shape;
  std::vector<int64_t> dims;
  for (size_t i = 0; i < to.size(); ++i) {
    if (dims.size() < from.size() && from[dims.size()] == to[i]) {
      dims.push_back(outer.dims[i]);
    } else if (to[i] != 1) {
      return {};
    }
  }
  if (dims.size() != from.size()) return {};
  return build.broadcast(inner.operands[0], outer.shape, std::move(dims));
}

Value reshape_reshape(Builder& build, const Node& node) {
  const Node& inner = operand_node(build, node);
  return inner.op == Op::reshape ? build.reshape(inner.operands[0], node.types[0].shape) : Value{};
}

Value reshape_view(Builder& build, const Node& node) {
  const Node& inner = operand_node(build, node);
  if (inner.op != Op::view) return {};
  return build.view(inner.operands[0], inner.as<ir::ViewAttrs>().offset, node.types[0].shape);
}

Value view_view(Builder& build, const Node& node) {
  const Node& inner = operand_node(build, node);
  if (inner.op != Op::view) return {};
  const auto& outer = node.as<ir::ViewAttrs>();
  return build.view(inner.operands[0], inner.as<ir::ViewAttrs>().offset + outer.offset, outer.shape);
}

/// The part of a packed vector that was packed there.
Value view_pack(Builder& build, const Node& node) {
  const Node& inner = operand_node(build, node);
  if (inner.op != Op::pack) return {};
  const auto& pack = inner.as<ir::PackAttrs>();
  for (size_t i = 0; i < pack.offsets.size(); ++i) {
    if (pack.offsets[i] == node.as<ir::ViewAttrs>().offset &&
        build.type(inner.operands[i]).elements() == node.types[0].elements()) {
      return build.reshape(inner.operands[i], node.types[0].shape);
    }
  }
  return {};
}

Value transpose_identity(Builder&, const Node& node) {
  return std::ranges::is_sorted(node.as<ir::TransposeAttrs>().perm) ? node.operands[0] : Value{};
}

Value transpose_transpose(Builder& build, const Node& node) {
  const Node& inner = operand_node(build, node);
  if (inner.op != Op::transpose) return {};
  std::vector<int64_t> perm;
  for (int64_t d : node.as<ir::TransposeAttrs>().perm) {
    perm.push_back(inner.as<ir::TransposeAttrs>().perm[static_cast<size_t>(d)]);
  }
  return build.transpose(inner.operands[0], std::move(perm));
}

Value concat_one(Builder&, const Node& node) { return node.operands.size() == 1 ? node.operands[0] : Value{}; }

/// A slice that lies inside one part of a concat is a slice of that part.
Value slice_concat(Builder& build, const Node& node) {
  const Node inner = operand_node(build, node);
  const auto& slice = node.as<ir::SliceAttrs>();
  if (inner.op != Op::concat || inner.as<ir::ConcatAttrs>().axis != slice.axis) return {};
  int64_t begin = 0;
  for (Value part : inner.operands) {
    const int64_t end = begin + build.shape(part)[static_cast<size_t>(slice.axis)];
    if (begin <= slice.begin && slice.end <= end) {
      return build.slice(part, slice.axis, slice.begin - begin, slice.end - begin);
    }
    begin = end;
  }
  return {};
}

Value slice_slice(Builder& build, const Node& node) {
  const Node& inner = operand_node(build, node);
  const auto& slice = node.as<ir::SliceAttrs>();
  if (inner.op != Op::slice || inner.as<ir::SliceAttrs>().axis != slice.axis) return {};
  const int64_t begin = inner.as<ir::SliceAttrs>().begin;
  return build.slice(inner.operands[0], slice.axis, begin + slice.begin, begin + slice.end);
}

/// A slice of a padded tensor that lies inside the tensor, or inside the zeros.
Value slice_pad(Builder& build, const Node& node) {
  const Node& inner = operand_node(build, node);
  const auto& slice = node.as<ir::SliceAttrs>();
  if (inner.op != Op::pad || inner.as<ir::PadAttrs>().axis != slice.axis) return {};
  const int64_t begin = inner.as<ir::PadAttrs>().before;
  const int64_t end = begin + build.shape(inner.operands[0])[static_cast<size_t>(slice.axis)];
  if (begin <= slice.begin && slice.end <= end) {
    return build.slice(inner.operands[0], slice.axis, slice.begin - begin, slice.end - begin);
  }
  if (slice.end <= begin || end <= slice.begin) return build.constant(0, node.types[0]);
  return {};
}

}  // namespace

std::span<const Rule> shape_rules() {
  static constexpr Rule kRules[] = {
      {"broadcast_same", Op::broadcast, same_type},
      {"broadcast_constant", Op::broadcast, move_constant},
      {"broadcast_broadcast", Op::broadcast, broadcast_broadcast},
      {"broadcast_reshape", Op::broadcast, broadcast_reshape},
      {"reshape_same", Op::reshape, same_type},
      {"reshape_constant", Op::reshape, move_constant},
      {"reshape_reshape", Op::reshape, reshape_reshape},
      {"reshape_view", Op::reshape, reshape_view},
      {"view_same", Op::view, same_type},
      {"view_constant", Op::view, move_constant},
      {"view_view", Op::view, view_view},
      {"view_pack", Op::view, view_pack},
      {"transpose_identity", Op::transpose, transpose_identity},
      {"transpose_constant", Op::transpose, move_constant},
      {"transpose_transpose", Op::transpose, transpose_transpose},
      {"concat_one", Op::concat, concat_one},
      {"slice_same", Op::slice, same_type},
      {"slice_constant", Op::slice, move_constant},
      {"slice_concat", Op::slice, slice_concat},
      {"slice_slice", Op::slice, slice_slice},
      {"slice_pad", Op::slice, slice_pad},
      {"pad_nothing", Op::pad, same_type},
  };
  return kRules;
}

}  // namespace difuse::passes
