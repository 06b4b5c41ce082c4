#include "codegen/cuda/emit/conv_wgmma/finish.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "codegen/cuda/emit/finishes.h"
#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"
#include "ir/builder.h"
#include "ir/op.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

namespace {

constexpr int64_t kTransformerThreads = 128;  ///< Of a warpgroup of transformers.
/// Numbers that each of them loads for an image, about 32 at once (device/group_finish.cuh): with more it takes as long
/// as the kernel that it spares, for each image that a block sees.
constexpr int64_t kMostFinishLoads = 64;

/// The body's one group_finish that is made of tensors in memory; -1: it has none, or more.
int finish_of(const Graph& body) {
  const std::vector<bool> live = body.live();
  int found = -1;
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    if (!live[static_cast<size_t>(id)] || node.op != Op::group_finish) continue;
    const auto& attrs = node.as<ir::GroupFinishAttrs>();
    const int64_t partials = 2 * ir::Strips{attrs.height, attrs.width}.count() * node.types[0].shape[1];
    const bool is_small = partials <= kMostFinishLoads * kTransformerThreads;
    const auto is_input = [&](Value v) { return body.node(v).op == Op::input; };
    if (found >= 0 || !is_small || !std::ranges::all_of(node.operands, is_input)) return -1;
    found = id;
  }
  return found;
}

}  // namespace

FinishedSpec::FinishedSpec(const KernelSpec& spec) : original_(spec) {
  const int finish = finish_of(spec.body);
  if (finish < 0) return;
  const Node& node = spec.body.node(finish);
  const size_t first = spec.operands.size();
  const Graph with_inputs = ir::rebuild(spec.body, [&](Graph& to, int id, const Node& one,
                                                       const std::vector<Value>& operands) {
    if (id != finish) return ir::copy_node(to, one, operands);
    ir::Builder b(to);
    return std::vector{b.input(std::to_string(first), one.types[0]), b.input(std::to_string(first + 1), one.types[1])};
  });
  const int64_t channels = node.types[0].shape[1];
  std::vector<Value> values;
  std::vector<Argument> results;
  std::vector<int64_t> alignment;
  std::string stores;
  for (size_t r = 0; r < spec.body.outputs().size(); ++r) {
    const Value v = spec.body.outputs()[r].value;
    if (v.node != finish) {
      values.push_back(with_inputs.outputs()[r].value);
      results.push_back(spec.results[r]), alignment.push_back(spec.result_alignment[r]);
      continue;
    }
    if (!spec.wanted(r)) continue;
    preamble_.parameters.push_back({fmt::format("z{}", r), "f32*", spec.results[r]});
    preamble_.bytes += node.types[0].bytes();
    stores += fmt::format("z{}[this_image * {} + c] = made{}[c];\n", r, channels, v.result);
  }
  body_ = part_of(with_inputs, values);
  std::vector<std::string> pointers;
  std::set<int> read;
  for (const Value v : node.operands) {
    const int input = input_number(spec.body.node(v));
    pointers.push_back(fmt::format("q{}", input));
    if (!read.insert(input).second) continue;
    preamble_.parameters.push_back({pointers.back(), "const f32*", spec.operands[static_cast<size_t>(input)]});
    preamble_.bytes += spec.body.type(v).bytes();
  }
  preamble_.headers = {"group_finish.cuh"};
  preamble_.first_operand = first;
  const std::string thread = fmt::format("static_cast<int>(threadIdx.x % {}u)", kTransformerThreads);
  preamble_.text = filled(
      R"(const auto finish = [&](index_t this_image, float* made0) {
  float* const made1 = made0 + $channels;
$finish};
const auto store = [&]([[maybe_unused]] index_t this_image, [[maybe_unused]] const float* made0) {
  [[maybe_unused]] const float* const made1 = made0 + $channels;
  for (int c = $thread; c < $channels; c += $threads) {
$stores  }
};
)",
      {{"channels", text(channels)},
       {"thread", thread},
       {"threads", text(kTransformerThreads)},
       {"finish", indented(filled(group_finish_statements(spec.body, finish, pointers, {"made0", "made1"}, thread),
                                  {{"threads", text(kTransformerThreads)}}),
                           2)},
       {"stores", indented(stores, 4)}});
  made_.emplace(KernelSpec{body_, spec.operands, spec.alignment, results, alignment, spec.name, spec.flops, spec.device,
                           spec.is_tf32, spec.tiles, &preamble_});
  for (int r = 0; r < 2; ++r) {
    made_->operands.push_back(Argument::number(0));
    made_->alignment.push_back(16);
    if (!made_->is_tf32.empty()) made_->is_tf32.push_back(false);
  }
}

}  // namespace difuse::codegen::cuda
