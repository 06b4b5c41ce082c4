#include "codegen/cuda/problem_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/jit/sha256.h"
#include "codegen/node_body.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {

std::string problem_text(const KernelSpec& spec, const std::string& rest) {
  constexpr int64_t kWidestCopy = 16;  // Bytes; a better alignment helps no more.
  const ir::Graph& body = spec.body;
  const std::vector<bool> live = body.live();
  std::string text;
  for (int id = 0; id < body.size(); ++id) {
    if (!live[static_cast<size_t>(id)]) continue;
    const ir::Node& node = body.node(id);
    text += fmt::format("{} {}", id, ir::to_string(node.op));
    if (node.op == ir::Op::input) {
      const auto input = static_cast<size_t>(input_number(node));
      text += fmt::format(" {} {}", input, std::min(kWidestCopy, spec.alignment[input]));
    }
    for (const ir::Value v : node.operands) text += fmt::format(" {}.{}", v.node, v.result);
    for (const ir::Type& type : node.types)
      text += fmt::format(" {}[{}]", ir::to_string(type.dtype), type.shape.size());
    text += "\n";
  }
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    const ir::Value v = body.outputs()[r].value;
    text +=
        fmt::format("{}.{} {} {}\n", v.node, v.result, spec.wanted(r), std::min(kWidestCopy, spec.result_alignment[r]));
  }
  return fmt::format("{} {} {}", spec.name, rest, Sha256().add(text).hex().substr(0, 8));
}

}  // namespace difuse::codegen::cuda
