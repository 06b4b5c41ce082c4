#include "passes/autodiff.h"

#include <fmt/format.h>

#include <unordered_map>

#include "ir/error.h"
#include "ir/op.h"

namespace difuse::passes {
namespace {

using ir::Node;
using ir::Value;

/// The tape: cotangents of the values seen so far, and which values lie on a path from a wanted value that no held
/// value interrupts.
class Tape final : public ir::GradientContext {
 public:
  Tape(ir::Builder& build, std::span<const Value> wanted, std::span<const Value> held) : build_(build) {
    const ir::Graph& graph = build.graph();
    needed_.resize(static_cast<size_t>(graph.size()), false);
    for (Value v : wanted) needed_[static_cast<size_t>(v.node)] = true;
    std::vector<bool> cut(needed_.size(), false);
    for (Value v : held) cut[static_cast<size_t>(v.node)] = true;
    for (int id = 0; id < graph.size(); ++id) {
      if (cut[static_cast<size_t>(id)]) continue;
      for (Value v : graph.node(id).operands) {
        if (needed_[static_cast<size_t>(v.node)]) needed_[static_cast<size_t>(id)] = true;
      }
    }
  }

  /// Applies the rules of nodes [0, last], last first.
  void run(int last) {
    for (int id = last; id >= 0; --id) {
      if (!needs({id, 0})) continue;
      node_ = id;
      const Node& n = node();
      bool reached = false;
      for (int r = 0; r < static_cast<int>(n.types.size()); ++r) reached |= grad(r).valid();
      if (!reached) continue;
      const auto& rule = ir::info(n.op).rules.gradient;
      if (!rule) continue;
      try {
        rule(*this);
      } catch (const Error& e) {
        throw Error(fmt::format("gradient of %{} = {}: {}", id, ir::to_string(n.op), e.what()), e.remedy());
      }
    }
  }

  Value gradient_of(Value v) const {
    const auto it = gradients_.find(v);
    return it == gradients_.end() ? Value{} : it->second;
  }

  ir::Builder& build() override { return build_; }
  const Node& node() const override { return build_.graph().node(node_); }
  Value result(int i) const override { return {node_, i}; }
  Value grad(int i) const override { return gradient_of({node_, i}); }
  bool needs(Value v) const override {
    return v.node < static_cast<int>(needed_.size()) && needed_[static_cast<size_t>(v.node)];
  }
  void accumulate(Value v, Value gradient) override {
    if (!needs(v)) return;
    if (build_.type(v) != build_.type(gradient)) {
      throw Error(fmt::format("a gradient of type {} for a value of type {}", to_string(build_.type(gradient)),
                              to_string(build_.type(v))));
    }
    const auto [it, first] = gradients_.try_emplace(v, gradient);
    if (!first) it->second = build_.add(it->second, gradient);
  }

 private:
  ir::Builder& build_;
  std::vector<bool> needed_;
  std::unordered_map<Value, Value, ir::ValueHash> gradients_;
  int node_ = -1;
};

}  // namespace

std::vector<Value> differentiate(ir::Builder& build, Value loss, std::span<const Value> wanted,
                                 std::span<const Value> held) {
  if (build.type(loss) != ir::Type{ir::DType::f32, {}}) {
    throw Error(fmt::format("the loss must be f32[], is {}", to_string(build.type(loss))));
  }
  Tape tape(build, wanted, held);
  tape.accumulate(loss, build.constant(1.0));
  tape.run(loss.node);
  std::vector<Value> gradients;
  for (Value v : wanted) {
    const Value g = tape.gradient_of(v);
    gradients.push_back(g.valid() ? g : build.zeros_like(v));
  }
  return gradients;
}

}  // namespace difuse::passes
