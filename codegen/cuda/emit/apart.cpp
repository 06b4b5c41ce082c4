// Reductions of what a contraction makes, where its tiles do not compute them: the contraction's kernel stores what is
// stored anyway, and kernels of their own read it (where that does not do, what they reduce, in the workspace).
#include <algorithm>
#include <map>

#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/node_body.h"
#include "ir/builder.h"
#include "ir/op.h"
#include "passes/fusion/traits.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Graph;
using ir::Value;

/// What the body computes `wanted` from, with the values `known` as inputs whose numbers begin with `first`.
Graph computed_from(const Graph& body, const std::vector<Value>& wanted, const std::vector<Value>& known,
                    size_t first) {
  Graph part("part");
  std::map<Value, Value> copies;
  const auto copy = [&](const auto& self, Value v) -> Value {
    if (const auto found = copies.find(v); found != copies.end()) return found->second;
    const auto at = std::ranges::find(known, v);
    if (at != known.end()) {
      const size_t number = first + static_cast<size_t>(at - known.begin());
      return copies[v] = ir::Builder(part).input(std::to_string(number), body.type(v));
    }
    std::vector<Value> operands;
    for (const Value operand : body.node(v).operands) operands.push_back(self(self, operand));
    const std::vector<Value> made = ir::copy_node(part, body.node(v), operands);
    for (size_t r = 0; r < made.size(); ++r) copies[{v.node, static_cast<int32_t>(r)}] = made[r];
    return copies.at(v);
  };
  for (size_t i = 0; i < wanted.size(); ++i) part.set_output(std::to_string(i), copy(copy, wanted[i]));
  return part;
}

class Apart {
 public:
  explicit Apart(const KernelSpec& spec) : spec_(spec) {
    const auto& outputs = spec.body.outputs();
    for (size_t r = 0; r < outputs.size(); ++r) {
      if (spec.wanted(r)) (is_reduced(spec.body, r) ? reduced_ : results_).push_back(r);
    }
    for (const size_t r : results_) stored_.push_back(outputs[r].value);
    for (const size_t r : reduced_) {
      const Value v = outputs[r].value;
      if (passes::has_contraction(computed_from(spec.body, {v}, stored_, 0)))
        stored_.push_back(spec.body.node(v).operands[0]);
    }
    contraction_ = part_of(spec.body, stored_);
    std::vector<Value> reduced;
    for (const size_t r : reduced_) reduced.push_back(outputs[r].value);
    reductions_ = computed_from(spec.body, reduced, stored_, spec.operands.size());
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

  bool is_needed() const { return !reduced_.empty() && passes::has_contraction(spec_.body); }

  /// `emission`: null for who only wants to know who emits it.
  KernelSpec contraction(Emission* emission) const {
    KernelSpec made{contraction_, spec_.operands, spec_.alignment, {},         {}, spec_.name,
                    spec_.flops,  spec_.device,   spec_.is_tf32,   spec_.tiles};
    for (const size_t r : results_) {
      made.results.push_back(spec_.results[r]);
      made.result_alignment.push_back(spec_.result_alignment[r]);
    }
    for (size_t i = results_.size(); i < stored_.size(); ++i) {
      made.results.push_back(emission == nullptr ? Argument{Argument::Kind::workspace, 0}
                                                 : emission->workspace(spec_.body.type(stored_[i]).bytes()));
      made.result_alignment.push_back(kWorkspaceAlignment);
    }
    return made;
  }

  /// After `contraction`.
  KernelSpec reductions(const KernelSpec& contraction) const {
    KernelSpec made{reductions_, spec_.operands, spec_.alignment, {}, {}, spec_.name + "_reductions", 0, spec_.device};
    made.operands.insert(made.operands.end(), contraction.results.begin(), contraction.results.end());
    made.alignment.insert(made.alignment.end(), contraction.result_alignment.begin(),
                          contraction.result_alignment.end());
    for (const size_t r : reduced_) {
      made.results.push_back(spec_.results[r]);
      made.result_alignment.push_back(spec_.result_alignment[r]);
    }
    return made;
  }

 private:
  const KernelSpec& spec_;
  std::vector<size_t> results_, reduced_;  // outputs
  std::vector<Value> stored_;              // by the contraction's kernel: first the results
  Graph contraction_, reductions_;
};

}  // namespace

bool accepts_apart(const KernelSpec& spec) {
  const Apart apart(spec);
  if (!apart.is_needed()) return false;
  const KernelSpec contraction = apart.contraction(nullptr), reductions = apart.reductions(contraction);
  const auto all = emitters();
  return std::ranges::any_of(all, [&](const Emitter& e) { return e.accepts(contraction); }) &&
         std::ranges::any_of(all, [&](const Emitter& e) { return e.accepts(reductions); });
}

std::vector<TileChoice> apart_choices(const KernelSpec& spec) {
  const Apart apart(spec);
  const KernelSpec contraction = apart.contraction(nullptr);
  const Emitter& emitter = find_emitter(contraction);
  return emitter.choices == nullptr ? std::vector<TileChoice>{} : emitter.choices(contraction);
}

void emit_apart(const KernelSpec& spec, Emission& emission) {
  const Apart apart(spec);
  const KernelSpec contraction = apart.contraction(&emission), reductions = apart.reductions(contraction);
  find_emitter(contraction).emit(contraction, emission);
  find_emitter(reductions).emit(reductions, emission);
}

}  // namespace difuse::codegen::cuda
