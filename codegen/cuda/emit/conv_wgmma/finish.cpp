#include "codegen/cuda/emit/conv_wgmma/finish.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/finished.h"
#include "codegen/cuda/emit/finishes.h"
#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/join/part_sums.h"
#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"
#include "ir/op.h"
#include "ir/strips.h"
#include "passes/fusion/traits.h"

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

/// Of an image, what finishing it reads of partial results.
int64_t loads_of(const Graph& body, const FinishedParts& parts) {
  int64_t loads = part_bytes(body) / 4;
  for (const int id : parts.finishes()) {
    const auto& attrs = body.node(id).as<ir::GroupFinishAttrs>();
    loads += 2 * ir::Strips{attrs.height, attrs.width}.count() * body.node(id).types[0].shape[1];
  }
  return loads;
}

/// Whether the value is a sum over the pixels of what a contraction streams, of each image and channel.
bool sums_image(const Graph& body, Value v) {
  const Value contraction = only_contraction(body);
  const Node& node = body.node(v);
  if (!contraction.valid() || node.op != Op::reduce_sum) return false;
  return node.as<ir::ReduceAttrs>().axes == std::vector<int64_t>{1, 2} &&
         passes::before_widening(body, node.operands[0]) == body.node(contraction).operands[0];
}

/// The statements of a kernel's transformers, and what they read and write.
class FinishText {
 public:
  FinishText(const KernelSpec& spec, const FinishedParts& parts, Preamble& preamble)
      : spec_(spec), body_(spec.body), parts_(parts), preamble_(preamble) {
    preamble_.headers = {"group_finish.cuh", "reduce.cuh", "vector.cuh", "ops.cuh"};
    preamble_.first_operand = spec.operands.size();
    for (size_t m = 0; m < parts.made().size(); ++m) {
      preamble_.declarations += fmt::format("[[maybe_unused]] const f32* const p{} = made + {} - at_image * {};\n",
                                            operand(m), preamble_.floats, parts.elements(m));
      pointers_ += fmt::format("[[maybe_unused]] $const f32* const made{} = made + {};\n", m, preamble_.floats);
      preamble_.floats += parts.elements(m);
    }
  }

  /// `stored`: outputs.
  void write(const std::vector<size_t>& stored) {
    std::string finishes, sums, stores;
    for (const int id : parts_.finishes()) {
      const size_t first = parts_.number({id, 0});
      std::vector<std::string> pointers;
      for (const Value v : body_.node(id).operands) pointers.push_back(read(v));
      finishes += group_finish_statements(body_, id, pointers,
                                          {fmt::format("made{}", first), fmt::format("made{}", first + 1)}, kThread);
    }
    for (const int id : parts_.sums()) sums += sum_statements(id);
    std::string rows = parts_.row_results().empty() ? "" : row_results();
    if (!rows.empty() && !(finishes + sums).empty()) rows = "meet();\n" + rows;
    for (const size_t r : stored) {
      if (!spec_.wanted(r)) continue;
      const size_t made = parts_.number(body_.outputs()[r].value);
      preamble_.parameters.push_back({fmt::format("z{}", r), "f32*", spec_.results[r]});
      preamble_.bytes += body_.type(parts_.made()[made]).bytes();
      stores += fmt::format("for (int c = {0}; c < {1}; c += {2}) z{3}[this_image * {1} + c] = made{4}[c];\n", kThread,
                            parts_.elements(made), kTransformerThreads, r, made);
    }
    const std::string threads = text(kTransformerThreads);
    preamble_.text = filled(
        R"(const auto finish = [&](index_t this_image, float* made, [[maybe_unused]] const auto& meet) {
$pointers$statements};
const auto store = [&]([[maybe_unused]] index_t this_image, [[maybe_unused]] const float* made) {
$constant$stores};
)",
        {{"pointers", indented(filled(pointers_, {{"const", ""}}), 2)},
         {"constant", indented(filled(pointers_, {{"const", "const"}}), 2)},
         {"statements", indented(filled(finishes + sums + rows, {{"threads", threads}}), 2)},
         {"stores", indented(stores, 2)}});
  }

 private:
  static constexpr const char* kThread = "static_cast<int>(threadIdx.x % 128u)";

  size_t operand(size_t made) const { return spec_.operands.size() + made; }

  /// The name of an input's pointer.
  std::string read(Value v) {
    const int input = input_number(body_.node(v));
    const std::string name = fmt::format("q{}", input);
    if (!read_.insert(input).second) return name;
    preamble_.parameters.push_back({name, "const f32*", spec_.operands[static_cast<size_t>(input)]});
    preamble_.bytes += body_.type(v).bytes();
    return name;
  }

  /// In the order in which a kernel that only adds the parts does it.
  std::string sum_statements(int id) {
    const Node& node = body_.node(id);
    const size_t made = parts_.number({id, 0});
    const int64_t terms = body_.type(node.operands[0]).shape[1], channels = parts_.elements(made);
    return fmt::format(R"(for (int c = {0}; c < {1}; c += $threads) {{
  made{2}[c] = reduce::sum_of_parts<{3}, {4}>({5} + this_image * {6} + c, {1});
}}
)",
                       kThread, channels, made, terms, reduction::part_rows(terms), read(node.operands[0]),
                       terms * channels);
  }

  std::string row_results() {
    const Graph rows = parts_.rows(operand(0));
    KernelSpec spec{rows, spec_.operands, spec_.alignment, {}, {}, spec_.name, 0, spec_.device};
    spec.operands.resize(operand(parts_.made().size()));
    spec.alignment.resize(spec.operands.size(), kMadeAlignment);
    std::string pointers;
    const auto made_pointer = [&](size_t made) {
      return fmt::format("made{} - this_image * {};\n", made, parts_.elements(made));
    };
    for (const int id : rows.leaves(Op::input)) {
      const auto input = static_cast<size_t>(input_number(rows.node(id)));
      const bool is_made = input >= spec_.operands.size();
      pointers += fmt::format("[[maybe_unused]] const f32* const p{} = ", input);
      pointers += is_made ? made_pointer(input - operand(0)) : read(body_.find_input(std::to_string(input))) + ";\n";
    }
    for (size_t r = 0; r < parts_.row_results().size(); ++r) {
      pointers += fmt::format("f32* const {} = {}", Parameters::result(r),
                              made_pointer(parts_.number(parts_.row_results()[r])));
      spec.results.push_back({Argument::Kind::workspace, 0});
      spec.result_alignment.push_back(kMadeAlignment);
    }
    const ir::Shape& shape = rows.type(rows.outputs()[0].value).shape;
    return "{\n" + indented(pointers + row_statements(spec, shape[1], kThread), 2) + "}\n";
  }

  static constexpr int64_t kMadeAlignment = 16;
  const KernelSpec& spec_;
  const Graph& body_;
  const FinishedParts& parts_;
  Preamble& preamble_;
  std::string pointers_;
  std::set<int> read_;
};

}  // namespace

/// All that is made lies at multiples of 16 bytes, and rows read floats.
bool FinishedSpec::can_finish(const FinishedParts& parts) const {
  const Graph& body = original_.body;
  if (parts.made().empty() || parts.finishes().size() > 1) return false;
  const ir::Shape& shape = body.type(parts.made()[0]).shape;
  if (shape.empty()) return false;  // Of no image.
  const int64_t images = shape[0];
  if (!parts.accepts(images) || loads_of(body, parts) > kMostFinishLoads * kTransformerThreads) return false;
  for (size_t m = 0; m < parts.made().size(); ++m) {
    if (parts.elements(m) % 4 != 0 || body.type(parts.made()[m]).dtype != ir::DType::f32) return false;
  }
  if (parts.row_results().empty()) return true;
  const Graph rows = parts.rows(original_.operands.size());
  return std::ranges::all_of(rows.leaves(Op::input),
                             [&](int id) { return rows.node(id).types[0].dtype == ir::DType::f32; });
}

FinishedSpec::FinishedSpec(const KernelSpec& spec) : original_(spec) {
  const FinishedParts parts(spec.body);
  const bool finishes = can_finish(parts);
  const auto& outputs = spec.body.outputs();
  const auto is_sum = [&](const ir::NamedValue& n) { return sums_image(spec.body, n.value); };
  const auto sum = std::ranges::find_if(outputs, is_sum);
  if (!finishes && sum == outputs.end()) return;
  const size_t first = spec.operands.size(), count = finishes ? parts.made().size() : 0;
  const Graph with_inputs = parts.with_inputs(first, count);
  std::vector<Value> values;
  std::vector<Argument> results;
  std::vector<int64_t> alignment;
  std::vector<size_t> stored;
  for (size_t r = 0; r < outputs.size(); ++r) {
    if (parts.number(outputs[r].value) < count) {
      stored.push_back(r);
    } else if (is_sum(outputs[r])) {
      if (spec.wanted(r)) image_sum_ = spec.results[r];
    } else {
      values.push_back(with_inputs.outputs()[r].value);
      results.push_back(spec.results[r]), alignment.push_back(spec.result_alignment[r]);
    }
  }
  body_ = part_of(with_inputs, values);
  if (finishes) FinishText(spec, parts, preamble_).write(stored);
  made_.emplace(KernelSpec{body_, spec.operands, spec.alignment, results, alignment, spec.name, spec.flops, spec.device,
                           spec.is_tf32, spec.tiles, finishes ? &preamble_ : nullptr});
  for (size_t m = 0; m < count; ++m) {
    made_->operands.push_back(Argument::number(0));
    made_->alignment.push_back(16);
    if (!made_->is_tf32.empty()) made_->is_tf32.push_back(false);
  }
}

std::optional<HaloConv> FinishedSpec::conv() const {
  std::optional<HaloConv> conv = halo_conv(spec());
  if (!conv || !image_sum_) return conv;
  // A tile has those pixels of the image that it has of the result.
  if (!conv->has_prologue() || 2 * conv->pad != conv->taps - 1) return {};
  conv->has_image_sums = true;
  return conv;
}

}  // namespace difuse::codegen::cuda
