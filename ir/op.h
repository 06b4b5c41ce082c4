// What the table ops.def says of each op, and the three functions that give an op its meaning: type inference,
// gradient, and the fp64 reference. Each lives in ir/ops/, one file per family.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace difuse::ir {

inline constexpr int kVariadic = -1;

/// Passes decide by trait, never by a list of ops.
enum Trait : uint32_t {
  kLeaf = 1 << 0,         ///< No operands.
  kElementwise = 1 << 1,  ///< Element i of the result reads element i of each operand.
  kBroadcast = 1 << 2,    ///< Repeats its operand along new axes.
  kView = 1 << 3,         ///< Moves no bytes when the memory plan can place it.
  kMovement = 1 << 4,     ///< Moves elements and computes nothing, or sums a few of them.
  kReduction = 1 << 5,
  kContraction = 1 << 6,
  kRandom = 1 << 7,
  kFusion = 1 << 8,
};

/// A tensor of the reference: every element is a double, whatever the type says.
struct Tensor {
  Type type;
  std::vector<double> data;

  Tensor() = default;
  explicit Tensor(Type t) : type(std::move(t)), data(static_cast<size_t>(type.elements())) {}
  Tensor(Type t, std::vector<double> d) : type(std::move(t)), data(std::move(d)) {}
};

class Builder;

/// What a gradient rule sees: the forward node, the cotangents of its results, and a builder for the backward graph.
class GradientContext {
 public:
  virtual ~GradientContext() = default;
  virtual Builder& build() = 0;
  virtual const Node& node() const = 0;
  /// The node's own result i, and its operand i.
  virtual Value result(int i) const = 0;
  Value operand(int i) const { return node().operands[static_cast<size_t>(i)]; }
  /// dLoss/dResult i; invalid when nothing depends on that result.
  virtual Value grad(int i) const = 0;
  /// Whether anyone needs dLoss/dv: a rule skips work for operands nobody asks about.
  virtual bool needs(Value v) const = 0;
  /// Adds `grad` to dLoss/dv. `v` may be any value that precedes the node.
  virtual void accumulate(Value v, Value grad) = 0;
};

struct OpRules {
  /// Result types from operand types; throws Error with the arithmetic.
  std::function<std::vector<Type>(std::span<const Type> operands, const Attrs& attrs)> infer;
  /// Empty: the op has no gradient (comparisons, random draws, integer ops).
  std::function<void(GradientContext&)> gradient;
  /// Fills `results`, whose types are set and whose data are zero.
  std::function<void(const Node& node, std::span<const Tensor* const> operands, std::span<Tensor> results)> evaluate;
};

struct OpInfo {
  Op op;
  std::string_view name;
  int least_operands, most_operands, results;
  uint32_t traits;
  Attrs default_attrs;  ///< Holds the op's attribute struct.
  OpRules rules;

  bool has(Trait t) const { return (traits & t) != 0; }
};

const OpInfo& info(Op op);
std::span<const OpInfo> all_ops();
/// nullptr when no op has that name.
const OpInfo* find_op(std::string_view name);
inline bool has_trait(const Node& node, Trait t) { return info(node.op).has(t); }
/// Whether the node's result is its operand's bytes, or some of them: a reshape or a view.
inline bool moves_nothing(const Node& node) { return node.op == Op::reshape || node.op == Op::view; }
inline std::string_view to_string(Op op) { return info(op).name; }

}  // namespace difuse::ir
