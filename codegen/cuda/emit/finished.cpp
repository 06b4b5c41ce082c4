#include "codegen/cuda/emit/finished.h"

#include <algorithm>
#include <string>

#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/join/part_sums.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/node_body.h"
#include "ir/builder.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

FinishedParts::FinishedParts(const Graph& body) : body_(body) {
  const std::vector<bool> live = body_.live();
  rows_.assign(static_cast<size_t>(body_.size()), false);
  for (int id = 0; id < body_.size(); ++id) {
    if (!live[static_cast<size_t>(id)]) continue;
    const Node& node = body_.node(id);
    if (node.op == Op::group_finish) {
      finishes_.push_back(id);
      made_.push_back({id, 0});
      made_.push_back({id, 1});
    }
    if (adds_parts(body_, node)) {
      sums_.push_back(id);
      made_.push_back({id, 0});
      continue;
    }
    // A sum over an image's pixels reduces four dimensions to fewer; what is computed of rows begins with three.
    const bool reduces_rows =
        reduction::is_reduction(node) && node.op != Op::group_finish && body_.type(node.operands[0]).rank() == 3;
    rows_[static_cast<size_t>(id)] = reduces_rows || std::ranges::any_of(node.operands, [&](Value v) {
                                       return is_row(v) && node.types[0].rank() < 4;
                                     });
  }
  for (int id = 0; id < body_.size(); ++id) {
    if (!rows_[static_cast<size_t>(id)] || body_.node(id).op == Op::reshape) continue;
    if (is_read_outside(id)) made_.push_back({id, 0}), row_results_.push_back({id, 0});
  }
}

size_t FinishedParts::number(Value v) const {
  return static_cast<size_t>(std::ranges::find(made_, before_reshape(v)) - made_.begin());
}

int64_t FinishedParts::elements(size_t made) const {
  const ir::Type& type = body_.type(made_[made]);
  return type.elements() / type.shape[0];
}

Graph FinishedParts::rows(size_t operand) const {
  std::vector<Value> results;
  const Graph finished = with_inputs(operand, made_.size() - row_results_.size(), &results);
  return part_of(finished, results);
}

bool FinishedParts::accepts(int64_t images) const {
  const auto is_of_images = [&](int id) {
    const ir::Shape& shape = body_.node(id).types[0].shape;
    return !shape.empty() && shape[0] == images;
  };
  for (const int id : finishes_) {
    const auto is_input = [&](Value v) { return body_.node(v).op == Op::input; };
    if (!std::ranges::all_of(body_.node(id).operands, is_input) || !is_of_images(id)) return false;
  }
  if (!std::ranges::all_of(sums_, is_of_images) || part_bytes(body_) > kMostPartBytes) return false;
  if (row_results_.empty()) return true;
  size_t inputs = 0;
  for (const int id : body_.leaves(Op::input)) {
    inputs = std::max(inputs, static_cast<size_t>(input_number(body_.node(id))) + 1);
  }
  const Graph rows = this->rows(inputs);
  if (!accepts_reduction(rows) || !reduction::reads_rows_again(rows)) return false;
  return body_.type(row_results_[0]).rank() == 3 && body_.type(row_results_[0]).shape[0] == images;
}

/// Whether the loop reads it, in another shape, or somebody else.
bool FinishedParts::is_read_outside(int id) const {
  for (const ir::NamedValue& output : body_.outputs()) {
    if (before_reshape(output.value).node == id) return true;
  }
  for (int reader = id + 1; reader < body_.size(); ++reader) {
    if (body_.node(reader).op == Op::reshape && body_.node(reader).operands[0].node == id) return true;
  }
  return false;
}

Value FinishedParts::before_reshape(Value v) const {
  while (body_.node(v).op == Op::reshape) v = body_.node(v).operands[0];
  return v;
}

/// `rows` gets the row results.
Graph FinishedParts::with_inputs(size_t operand, size_t count, std::vector<Value>* rows) const {
  return ir::rebuild(body_, [&](Graph& to, int id, const Node& node, const std::vector<Value>& operands) {
    std::vector<Value> results = ir::copy_node(to, node, operands);
    if (rows != nullptr && std::ranges::count(row_results_, Value{id, 0}) > 0) rows->push_back(results[0]);
    for (int r = 0; r < static_cast<int>(results.size()); ++r) {
      const size_t made = number({id, r});
      if (made >= count) continue;
      results[static_cast<size_t>(r)] =
          ir::Builder(to).input(std::to_string(operand + made), node.types[static_cast<size_t>(r)]);
    }
    return results;
  });
}

}  // namespace difuse::codegen::cuda
