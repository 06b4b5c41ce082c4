#include "passes/fusion/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ir/op.h"
#include "passes/fusion/traits.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

/// What a kernel reads for v: a repeated or widened value is read as it lies in memory, a constant not at all.
int64_t bytes_read(const Graph& graph, Value v) {
  while (is_free(graph, graph.node(v))) {
    if (graph.node(v).operands.empty()) return 0;
    v = graph.node(v).operands[0];
  }
  return graph.type(v).bytes();
}

int64_t bytes_moved(const Graph& graph, const Node& node) {
  int64_t bytes = 0;
  for (Value v : node.operands) bytes += bytes_read(graph, v);
  for (const ir::Type& type : node.types) bytes += type.bytes();
  return bytes;
}

}  // namespace

KernelContent content_of(const Graph& graph, const Node& node) {
  KernelContent content;
  content.bytes = bytes_moved(graph, node);
  if (node.op != ir::Op::fusion) {
    content.ops = ir::to_string(node.op);
    content.bytes_apart = content.bytes;
    return content;
  }
  const Graph& body = *node.as<ir::FusionAttrs>().body;
  std::vector<std::pair<ir::Op, int>> counts;
  for (int id = 0; id < body.size(); ++id) {
    const Node& inner = body.node(id);
    if (inner.op == ir::Op::input || is_free(body, inner)) continue;
    content.bytes_apart += bytes_moved(body, inner);
    const auto known = std::ranges::find(counts, inner.op, &std::pair<ir::Op, int>::first);
    if (known == counts.end()) {
      counts.emplace_back(inner.op, 1);
    } else {
      ++known->second;
    }
  }
  for (const auto& [op, count] : counts) {
    if (!content.ops.empty()) content.ops += ", ";
    content.ops += count > 1 ? fmt::format("{} x{}", ir::to_string(op), count) : std::string(ir::to_string(op));
  }
  return content;
}

}  // namespace difuse::passes
