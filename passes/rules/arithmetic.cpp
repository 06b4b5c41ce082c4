// Elementwise ops: identities, casts, folding of constants.
#include <cmath>
#include <optional>

#include "ir/reference.h"
#include "passes/canonicalize.h"

namespace difuse::passes {
namespace {

using ir::Builder;
using ir::DType;
using ir::Node;
using ir::Op;
using ir::Value;

std::optional<double> constant_of(Builder& build, Value v) {
  const Node& node = build.graph().node(v);
  if (node.op != Op::constant) return std::nullopt;
  return node.as<ir::ConstantAttrs>().value;
}

/// The operand left of `x op constant` when the constant is the op's identity on that side.
Value drop_right(Builder& build, const Node& node, double identity) {
  return constant_of(build, node.operands[1]) == identity ? node.operands[0] : Value{};
}
Value drop_either(Builder& build, const Node& node, double identity) {
  if (constant_of(build, node.operands[0]) == identity) return node.operands[1];
  return drop_right(build, node, identity);
}

Value add_zero(Builder& build, const Node& node) { return drop_either(build, node, 0); }
Value sub_zero(Builder& build, const Node& node) { return drop_right(build, node, 0); }
Value mul_one(Builder& build, const Node& node) { return drop_either(build, node, 1); }
Value div_one(Builder& build, const Node& node) { return drop_right(build, node, 1); }

Value neg_neg(Builder& build, const Node& node) {
  const Node& inner = build.graph().node(node.operands[0]);
  return inner.op == Op::neg ? inner.operands[0] : Value{};
}

bool is_neg(Builder& build, Value v) { return build.graph().node(v).op == Op::neg; }

/// a + -b -> a - b, on either side.
Value add_neg(Builder& build, const Node& node) {
  for (size_t i : {1, 0}) {
    if (is_neg(build, node.operands[i])) {
      return build.sub(node.operands[1 - i], build.graph().node(node.operands[i]).operands[0]);
    }
  }
  return {};
}
Value sub_neg(Builder& build, const Node& node) {
  if (!is_neg(build, node.operands[1])) return {};
  return build.add(node.operands[0], build.graph().node(node.operands[1]).operands[0]);
}

Value select_same(Builder&, const Node& node) {
  return node.operands[1] == node.operands[2] ? node.operands[1] : Value{};
}

Value cast_same(Builder& build, const Node& node) {
  return build.type(node.operands[0]) == node.types[0] ? node.operands[0] : Value{};
}

/// Whether every value of `from` is one of `to`.
bool keeps_all(DType from, DType to) {
  if (to == DType::f32) return from == DType::bf16 || from == DType::f16 || from == DType::u8;
  return from == DType::u8 && (to == DType::i32 || to == DType::u32);
}

/// cast(cast(x)) -> cast(x), where the inner one lost nothing.
Value cast_cast(Builder& build, const Node& node) {
  const Node& inner = build.graph().node(node.operands[0]);
  if (inner.op != Op::cast) return {};
  const Value x = inner.operands[0];
  if (!keeps_all(build.type(x).dtype, inner.types[0].dtype)) return {};
  return build.cast(x, node.types[0].dtype);
}

/// An elementwise op on constants is a constant: what the op's own reference makes of one element.
Value fold(Builder& build, const Node& node) {
  std::vector<ir::Tensor> values;
  std::vector<const ir::Tensor*> operands;
  values.reserve(node.operands.size());
  for (Value v : node.operands) {
    const auto constant = constant_of(build, v);
    if (!constant) return {};
    values.emplace_back(ir::Type{build.type(v).dtype, {}}, std::vector<double>{*constant});
    operands.push_back(&values.back());
  }
  const DType dtype = node.types[0].dtype;
  std::vector<ir::Tensor> result(1, ir::Tensor(ir::Type{dtype, {}}));
  ir::info(node.op).rules.evaluate(node, operands, result);
  const double value = result[0].data[0];
  // What has no exact place in the dtype (an integer that overflowed) or is no number stays a computation.
  if (!std::isfinite(value) || (!ir::is_float(dtype) && ir::round_to(value, dtype) != value)) return {};
  return build.constant(value, node.types[0]);
}

}  // namespace

std::span<const Rule> arithmetic_rules() {
  static const std::vector<Rule> kRules = [] {
    std::vector<Rule> rules = {
        {"add_zero", Op::add, add_zero},    {"sub_zero", Op::sub, sub_zero},
        {"mul_one", Op::mul, mul_one},      {"div_one", Op::div, div_one},
        {"neg_neg", Op::neg, neg_neg},      {"add_neg", Op::add, add_neg},
        {"sub_neg", Op::sub, sub_neg},      {"select_same", Op::select, select_same},
        {"cast_same", Op::cast, cast_same}, {"cast_cast", Op::cast, cast_cast},
    };
    for (const ir::OpInfo& op : ir::all_ops()) {
      if (op.has(ir::kElementwise)) rules.push_back({"fold", op.op, fold});
    }
    return rules;
  }();
  return kRules;
}

}  // namespace difuse::passes
