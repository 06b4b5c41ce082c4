#include "codegen/cuda/emit/reduction/parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/source/extents.h"
#include "codegen/node_body.h"
#include "ir/op.h"

namespace difuse::codegen::cuda::reduction {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

Part part_of(const KernelSpec& spec, const std::vector<size_t>& outputs) {
  Part part;
  std::vector<Value> values;
  for (const size_t r : outputs) {
    values.push_back(spec.body.outputs()[r].value);
    part.results.push_back(spec.results[r]);
    part.result_alignment.push_back(spec.result_alignment[r]);
  }
  part.body = codegen::part_of(spec.body, values);
  return part;
}

ir::Shape iteration_shape(const Graph& body) {
  for (const ir::NamedValue& output : body.outputs()) {
    const Node& node = body.node(output.value);
    return ir::has_trait(node, ir::kReduction) ? body.type(node.operands[0]).shape : node.types[0].shape;
  }
  return {};
}

bool is_wide(const Graph& body) { return needs_wide_index(body, /*spare=*/1 << 24); }

WholeTensors whole_tensors(const Graph& body, const ir::Shape& shape) {
  WholeTensors found;
  const auto see = [&](const ir::Type& t, bool read) {
    if (t.shape != shape) return;
    found.count += 1;
    if (read) found.read_bytes += ir::size_of(t.dtype);
    found.narrowest = std::min(found.narrowest, ir::size_of(t.dtype));
  };
  for (const int id : body.leaves(Op::input)) see(body.node(id).types[0], true);
  for (int id = 0; id < body.size(); ++id) {
    if (body.node(id).op == Op::slice) see(body.node(id).types[0], true);
  }
  for (const ir::NamedValue& output : body.outputs()) see(body.type(output.value), false);
  return found;
}

int WholeTensors::longest_run() const {
  if (count > 16) return 1;
  if (count > 8) return 2;
  return count > 5 || narrowest == 4 ? 4 : 8;
}

std::vector<Term> split(const std::string& linear, std::span<const int64_t> extents, Lanes lanes) {
  std::vector<Term> terms(extents.size());
  std::string rest = linear;
  for (size_t d = extents.size(); d-- > 1;) {
    terms[d].text = fmt::format("remainder_of<{}>({})", extents[d], rest);
    rest = fmt::format("quotient<{}>({})", extents[d], rest);
  }
  if (!terms.empty()) {
    terms[0].text = rest;
    terms.back().lanes = lanes;
  }
  return terms;
}

void hoist(BodyCode& code, const Graph& body, const std::vector<Term>& coords, size_t begin, size_t end) {
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    if (node.op != Op::broadcast) continue;
    const Node& from = body.node(node.operands[0]);
    if (from.op != Op::input && from.op != Op::slice && !ir::has_trait(from, ir::kElementwise)) continue;
    const auto& dims = node.as<ir::BroadcastAttrs>().dims;
    const bool varies = std::ranges::any_of(
        dims, [&](int64_t d) { return static_cast<size_t>(d) >= begin && static_cast<size_t>(d) < end; });
    if (varies) continue;
    std::vector<Term> at;
    for (const int64_t d : dims) at.push_back(coords[static_cast<size_t>(d)]);
    code.value(node.operands[0], code.at(std::move(at)));
  }
}

}  // namespace difuse::codegen::cuda::reduction
