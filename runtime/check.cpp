#include "runtime/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "codegen/node_body.h"
#include "ir/op.h"
#include "ir/reference.h"
#include "runtime/tensor_bytes.h"

namespace difuse::runtime {
namespace {

using ir::DType;

constexpr double kF32 = 1e-5;
constexpr double kLastBits = 32;  // Allowed for a change of one last bit of the operands.

/// The coarsest float format that a body touches.
enum class Format : uint8_t { f32, tf32, f16, bf16 };

Format widest_format(const ir::Graph& body) {
  Format format = Format::f32;
  for (int id = 0; id < body.size(); ++id) {
    const ir::Node& node = body.node(id);
    if (node.op == ir::Op::round_tf32) format = std::max(format, Format::tf32);
    for (const ir::Type& type : node.types) {
      if (type.dtype == DType::f16) format = std::max(format, Format::f16);
      if (type.dtype == DType::bf16) format = std::max(format, Format::bf16);
    }
    if (node.op == ir::Op::fusion) format = std::max(format, widest_format(*node.as<ir::FusionAttrs>().body));
  }
  return format;
}

const char* name_of(Format format) {
  constexpr const char* kNames[] = {"f32", "tf32", "f16", "bf16"};
  return kNames[static_cast<int>(format)];
}

/// One step of the format at `largest`, as a share of it.
double step_of(Format format, double largest) {
  if (format == Format::f32 || largest == 0 || !std::isfinite(largest)) return 0;
  const int mantissa = format == Format::bf16 ? 7 : 10;
  return std::ldexp(1.0, std::ilogb(largest) - mantissa) / largest;
}

/// Whether the same elements are finite.
bool same_kinds(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) { return std::isfinite(x) == std::isfinite(y); });
}

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (double v : values) {
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  }
  return largest;
}

/// The operands with their last f32 bits changed, half of them up and half down.
ir::TensorMap nudged(ir::TensorMap operands) {
  uint64_t state = 1;
  for (auto& [name, tensor] : operands) {
    if (!ir::is_float(tensor.type.dtype)) continue;
    for (double& v : tensor.data) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      v *= 1 + ((state >> 63) != 0 ? 0x1p-23 : -0x1p-23);
    }
  }
  return operands;
}

/// Attention on 16-bit operands rounds its probabilities to their format as well: they are operands of its second
/// product.
bool rounds_inside(const ir::Graph& body) {
  for (int id = 0; id < body.size(); ++id) {
    if (body.node(id).op == ir::Op::attention || body.node(id).op == ir::Op::attention_grad) return true;
  }
  return false;
}

class Checker : public NodeObserver {
 public:
  Checker(Executor& executor, const std::function<void(const NodeCheck&)>& each) : executor_(executor), each_(each) {}

  void before(int node) override {
    operands_.clear();
    is_copy_ = !seen_.insert(node).second || ir::has_trait(executor_.graph().node(node), ir::kLeaf);
    if (is_copy_) return;
    body_.emplace(codegen::node_body(executor_.graph(), node));
    for (size_t i = 0; i < body_->operands.size(); ++i) {
      operands_[std::to_string(i)] = operand(body_->operands[i]);
    }
  }

  void after(int node) override {
    if (is_copy_) {
      note_copies(node);
      return;
    }
    const ir::ReferenceResult want = ir::run_reference(body_->graph, operands_, {});
    NodeCheck worst{node, codegen::node_name(executor_.graph(), node), 0, kF32, "f32"};
    const size_t results = executor_.graph().node(node).types.size();
    for (size_t r = 0; r < results; ++r) {
      const auto got = value({node, static_cast<int>(r)});
      if (!got) continue;
      const NodeCheck check = compare(worst, got->data, want.outputs.at(std::to_string(r)), r);
      if (r == 0 || check.share() > worst.share()) worst = check;
    }
    add(worst);
  }

  /// After the step.
  void check_copies() {
    for (const passes::StateCopy& copy : executor_.memory().state_copies) {
      const auto error = copy_error(copy);
      if (!error) continue;
      const bool done = copied_.contains(copy.state);
      add({copy.from.node, "copy_to_" + copy.state, done ? 0 : *error, 0, "bits"});
    }
  }

  std::vector<NodeCheck> take() { return std::move(checks_); }

 private:
  /// What a state should have become may be replaced later in the step, when that is itself the old value of a state.
  void note_copies(int node) {
    for (const passes::StateCopy& copy : executor_.memory().state_copies) {
      if (copy.from.node == node && copy_error(copy) == 0.0) copied_.insert(copy.state);
    }
  }

  /// How far a state is from what it should be; nothing where it is not kept.
  std::optional<double> copy_error(const passes::StateCopy& copy) const {
    const auto got = value(executor_.graph().find_replaced(copy.state));
    if (!got) return std::nullopt;
    return ir::relative_error(got->data, operand(copy.from).data);
  }

  void add(const NodeCheck& check) {
    checks_.push_back(check);
    if (each_) each_(check);
  }

  /// What lies there now; nothing where the value has no place.
  std::optional<ir::Tensor> value(ir::Value v) const {
    const ir::Type& type = executor_.graph().type(v);
    std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
    if (!executor_.read_value(v, bytes)) return std::nullopt;
    return ir::Tensor(type, decode(bytes, type.dtype));
  }

  ir::Tensor operand(ir::Value v) const {
    if (auto there = value(v)) return *std::move(there);
    const ir::Node& node = executor_.graph().node(v);  // A constant that is part of the kernel.
    return ir::Tensor(node.types[0], decode(leaf_bytes(node), node.types[0].dtype));
  }

  NodeCheck compare(NodeCheck check, const std::vector<double>& got, const ir::Tensor& want, size_t result) const {
    check.error = ir::relative_error(got, want.data);
    if (!ir::is_float(want.type.dtype)) {
      check.tolerance = 0;
      check.rule = "integers";
      return check;
    }
    const Format format = widest_format(body_->graph);
    const double largest = largest_of(want.data);
    check.rule = name_of(format);
    check.tolerance = kF32 + (rounds_inside(body_->graph) ? 2 : 1) * step_of(format, largest);
    if (check.passed() || !same_kinds(got, want.data)) return check;
    const std::string name = std::to_string(result);
    const std::vector<double> moved = ir::run_reference(body_->graph, nudged(operands_), {}).outputs.at(name).data;
    double change = 0, difference = 0;
    for (size_t i = 0; i < moved.size(); ++i) {
      if (!std::isfinite(want.data[i]) || !std::isfinite(moved[i])) continue;
      change = std::max(change, std::abs(moved[i] - want.data[i]));
      difference = std::max(difference, std::abs(got[i] - want.data[i]));
    }
    // Where the result is nothing but zeros, in shares of the change.
    const double scale = largest != 0 ? largest : change;
    if (scale == 0) return check;
    check.error = difference / scale;
    check.tolerance += kLastBits * change / scale;
    check.rule += ", ill-conditioned";
    return check;
  }

  Executor& executor_;
  const std::function<void(const NodeCheck&)>& each_;
  std::set<int> seen_;
  std::set<std::string> copied_;  // States found to be what they should be.
  bool is_copy_ = false;
  std::optional<codegen::NodeBody> body_;
  ir::TensorMap operands_;
  std::vector<NodeCheck> checks_;
};

}  // namespace

std::vector<NodeCheck> check_step(Executor& executor, const std::function<void(const NodeCheck&)>& each) {
  Checker checker(executor, each);
  executor.run_observed(checker);
  checker.check_copies();
  return checker.take();
}

}  // namespace difuse::runtime
