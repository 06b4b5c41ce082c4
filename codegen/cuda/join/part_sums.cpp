#include "codegen/cuda/join/part_sums.h"

#include <algorithm>
#include <map>
#include <string>

#include "codegen/node_body.h"
#include "ir/builder.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {
namespace {

using ir::DType;
using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

/// Which of the spec's operands the sum's results are; empty where some of them are none, or in another form.
std::vector<size_t> operands_of(const KernelSpec& spec, const PartSums& sum) {
  std::vector<size_t> found;
  for (const Argument& to : sum.to) {
    const size_t before = found.size();
    for (size_t i = 0; i < spec.operands.size(); ++i) {
      const Value v = spec.body.find_input(std::to_string(i));
      if (spec.operands[i] != to || !v.valid()) continue;
      const ir::Type& type = spec.body.type(v);
      if (type.dtype != DType::f32 || type.elements() != sum.images * sum.channels) return {};
      if (type.rank() < 2 || type.shape[0] != sum.images) return {};
      found.push_back(i);
    }
    if (found.size() != before + 1) return {};
  }
  return found;
}

/// What the loop reads and writes of an image.
int64_t image_bytes(const KernelSpec& spec) {
  int64_t bytes = 0;
  for (const int id : spec.body.leaves(Op::input)) bytes += spec.body.type({id, 0}).bytes();
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (spec.wanted(r)) bytes += spec.body.type(spec.body.outputs()[r].value).bytes();
  }
  return bytes;
}

/// Whether a result lies where the operand does, which nobody reads then any more.
bool is_overwritten(const KernelSpec& spec, size_t operand) {
  const Argument& at = spec.operands[operand];
  const int64_t end = at.value + spec.body.type(spec.body.find_input(std::to_string(operand))).bytes();
  for (size_t r = 0; r < spec.results.size(); ++r) {
    const Argument& result = spec.results[r];
    const int64_t result_end = result.value + spec.body.type(spec.body.outputs()[r].value).bytes();
    if (result.kind == at.kind && result.value < end && at.value < result_end) return true;
  }
  return false;
}

}  // namespace

bool adds_parts(const Graph& body, const Node& node) {
  if (node.op != Op::reduce_sum || node.as<ir::ReduceAttrs>().axes != std::vector<int64_t>{1}) return false;
  const Node& from = body.node(node.operands[0]);
  const ir::Type& parts = from.types[0];
  return from.op == Op::input && parts.dtype == DType::f32 && parts.rank() > 2 && parts.shape[1] <= kMostParts;
}

int64_t part_bytes(const Graph& body) {
  int64_t bytes = 0;
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    if (!adds_parts(body, node)) continue;
    const ir::Type& parts = body.type(node.operands[0]);
    bytes += parts.bytes() / parts.shape[0];
  }
  return bytes;
}

TakenSums::TakenSums(const KernelSpec& spec, std::span<const PartSums> sums) : whole_(spec) {
  if (!take(sums)) taken_.clear();
}

bool TakenSums::take(std::span<const PartSums> sums) {
  constexpr int64_t kShare = 64;  // Of the loop's bytes.
  taken_.assign(sums.size(), false);
  std::map<int, const PartSums*> by_input;
  std::map<int, Argument> parts;
  int64_t bytes = 0;
  for (size_t s = 0; s < sums.size(); ++s) {
    const std::vector<size_t> operands = operands_of(whole_, sums[s]);
    const int64_t own = std::ssize(sums[s].from) * sums[s].terms * sums[s].channels * 4;
    const bool few = sums[s].terms <= kMostParts && bytes + own <= kMostPartBytes &&
                     (bytes + own) * kShare * sums[s].images <= image_bytes(whole_);
    if (operands.empty() || !few) continue;
    taken_[s] = true;
    bytes += own;
    for (size_t q = 0; q < operands.size(); ++q) {
      by_input[static_cast<int>(operands[q])] = &sums[s];
      parts[static_cast<int>(operands[q])] = sums[s].from[q];
    }
  }
  if (by_input.empty()) return false;

  std::vector<std::pair<int, Value>> added;  // operand, sum
  const auto replaced = [&](Graph& to, int, const Node& node, const std::vector<Value>& operands) {
    const auto found = node.op == Op::input ? by_input.find(input_number(node)) : by_input.end();
    if (found == by_input.end()) return ir::copy_node(to, node, operands);
    ir::Type type = node.types[0];
    type.shape.insert(type.shape.begin() + 1, found->second->terms);
    ir::Builder b(to);
    added.emplace_back(found->first, b.reduce_sum(b.input(std::to_string(found->first), type), {1}));
    return std::vector{added.back().second};
  };
  body_ = std::make_unique<Graph>(ir::rebuild(whole_.body, replaced));
  spec_.emplace(KernelSpec{*body_, whole_.operands, whole_.alignment, whole_.results, whole_.result_alignment,
                           whole_.name, whole_.flops, whole_.device, whole_.is_tf32});
  for (const auto& [input, sum] : added) {
    const auto operand = static_cast<size_t>(input);
    body_->set_output(std::to_string(spec_->results.size()), sum);
    spec_->results.push_back(is_overwritten(whole_, operand) ? Argument::number(0) : whole_.operands[operand]);
    spec_->result_alignment.push_back(whole_.alignment[operand]);
    spec_->operands[operand] = parts.at(input);
    spec_->alignment[operand] = kWorkspaceAlignment;
  }
  return accepts_with_preamble(*spec_) || accepts_conv_wgmma(*spec_);
}

}  // namespace difuse::codegen::cuda
