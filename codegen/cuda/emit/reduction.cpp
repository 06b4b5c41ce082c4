// Reductions with elementwise ops around them: sums and maxima over axes, and a strip's moments per channel, of values
// of one shape, beside elementwise results of that shape. Reductions over the same axes are one kernel, which reads
// each operand once (and a second one, where what it leaves is in parts); other axes, and each channel_moments, have
// kernels of their own. A body that reads a row's reduction again over the row is one kernel (reduction/rows.cpp).
#include <algorithm>
#include <map>

#include "codegen/cuda/emit/reduction/parts.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {
bool accepts_reduction(const ir::Graph& body) {
  const std::vector<bool> live = body.live();
  bool has_reduction = false;
  const ir::Shape shape = reduction::iteration_shape(body);
  for (int id = 0; id < body.size(); ++id) {
    if (!live[static_cast<size_t>(id)]) continue;
    const ir::Node& node = body.node(id);
    if (reduction::is_reduction(node)) {
      if (node.op == ir::Op::group_finish || body.type(node.operands[0]).shape != shape) return false;
      if (reduction::is_reduction(body.node(node.operands[0]))) return false;
      has_reduction = true;
    } else {
      constexpr auto kTraits = ir::Trait(ir::kElementwise | ir::kBroadcast | ir::kLeaf);
      if (!BodyCode::can(node) || !(moves_in_runs(node) || ir::has_trait(node, kTraits))) return false;
    }
  }
  const auto fits = [&](const ir::NamedValue& n) {
    return reduction::is_reduction(body.node(n.value)) || body.type(n.value).shape == shape;
  };
  if (reduction::reads_rows_again(body) && !reduction::accepts_rows(body)) return false;
  return has_reduction && std::ranges::all_of(body.outputs(), fits);
}

void emit_reduction(const KernelSpec& spec, Emission& emission) {
  if (reduction::reads_rows_again(spec.body)) {
    reduction::emit_rows(spec, emission);
    return;
  }
  // By axes, in the order in which they are first met; channel_moments each on its own.
  std::vector<std::vector<size_t>> groups;
  std::map<std::vector<int64_t>, size_t> by_axes;
  std::map<int, size_t> by_moments;
  std::vector<size_t> stored;
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (!spec.wanted(r)) continue;
    const ir::Value v = spec.body.outputs()[r].value;
    const ir::Node& node = spec.body.node(v);
    if (!reduction::is_reduction(node)) {
      stored.push_back(r);
      continue;
    }
    const bool moments = node.op == ir::Op::channel_moments;
    const size_t group = moments ? by_moments.try_emplace(v.node, groups.size()).first->second
                                 : by_axes.try_emplace(node.as<ir::ReduceAttrs>().axes, groups.size()).first->second;
    if (group == groups.size()) groups.emplace_back();
    groups[group].push_back(r);
  }
  if (groups.empty()) groups.emplace_back();
  // Elementwise results may lie where an operand does, so they are written by who reads the operands last.
  groups.back().insert(groups.back().end(), stored.begin(), stored.end());
  for (const std::vector<size_t>& group : groups) {
    if (group.empty()) continue;
    const reduction::Part part = reduction::part_of(spec, group);
    const ir::Node& first = part.body.node(part.body.outputs()[0].value);
    if (first.op == ir::Op::channel_moments) {
      reduction::emit_moments(part.spec(spec), emission);
    } else if (reduction::is_reduction(first)) {
      reduction::emit_reduce(part.spec(spec), emission);
    } else {
      emit_elementwise(part.spec(spec), emission);
    }
  }
}

}  // namespace difuse::codegen::cuda
