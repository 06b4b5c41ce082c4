// Inputs, states, constants and fusions: where values come from.
#include <algorithm>

#include "ir/ops/rules.h"
#include "ir/reference.h"
#include "ir/verify.h"

namespace difuse::ir {
namespace {

/// A backend stores the number as its dtype does; only f32, whose reference is a double, may round it.
void check_number(double value, DType dtype) {
  require(dtype == DType::f32 || round_to(value, dtype) == value, "{} is no {}", value, to_string(dtype));
}

OpRules rules_leaf() {
  return {[](std::span<const Type>, const Attrs& attrs) {
            const auto& a = std::get<LeafAttrs>(attrs);
            require(!a.name.empty(), "a leaf needs a name");
            return std::vector<Type>{{a.dtype, a.shape}};
          },
          {},
          {}};  // the reference gets these from its caller
}

}  // namespace

OpRules rules_input() { return rules_leaf(); }
OpRules rules_state() { return rules_leaf(); }

OpRules rules_constant() {
  return {[](std::span<const Type>, const Attrs& attrs) {
            const auto& a = std::get<ConstantAttrs>(attrs);
            check_number(a.value, a.dtype);
            return std::vector<Type>{{a.dtype, a.shape}};
          },
          {},
          [](const Node& node, std::span<const Tensor* const>, std::span<Tensor> results) {
            std::ranges::fill(results[0].data, node.as<ConstantAttrs>().value);
          }};
}

OpRules rules_literal() {
  return {[](std::span<const Type>, const Attrs& attrs) {
            const auto& a = std::get<LiteralAttrs>(attrs);
            for (double v : a.values) check_number(v, a.dtype);
            require(static_cast<int64_t>(a.values.size()) == element_count(a.shape), "{} values for shape {}",
                    a.values.size(), to_string(a.shape));
            return std::vector<Type>{{a.dtype, a.shape}};
          },
          {},
          [](const Node& node, std::span<const Tensor* const>, std::span<Tensor> results) {
            results[0].data = node.as<LiteralAttrs>().values;
          }};
}

OpRules rules_fusion() {
  return {[](std::span<const Type> operands, const Attrs& attrs) {
            const auto& a = std::get<FusionAttrs>(attrs);
            require(a.body != nullptr, "a fusion needs a body");
            return fusion_result_types(*a.body, operands);
          },
          {},  // autodiff runs before fusion
          [](const Node& node, std::span<const Tensor* const> operands, std::span<Tensor> results) {
            const Graph& body = *node.as<FusionAttrs>().body;
            TensorMap inputs;
            for (size_t i = 0; i < operands.size(); ++i) inputs[std::to_string(i)] = *operands[i];
            ReferenceResult out = run_reference(body, inputs, {});
            for (size_t i = 0; i < results.size(); ++i) results[i] = std::move(out.outputs.at(std::to_string(i)));
          }};
}

}  // namespace difuse::ir
