#include "passes/canonicalize.h"

namespace difuse::passes {

std::vector<Rule> canonicalize_rules() {
  std::vector<Rule> rules;
  for (const auto& family : {arithmetic_rules(), shape_rules(), reduction_rules(), row_rules(), convolution_rules()}) {
    rules.insert(rules.end(), family.begin(), family.end());
  }
  return rules;
}

PassResult canonicalize(const ir::Graph& graph, PassContext& context) {
  return rewrite(graph, canonicalize_rules(), context);
}

}  // namespace difuse::passes
