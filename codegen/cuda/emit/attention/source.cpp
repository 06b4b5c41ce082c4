#include "codegen/cuda/emit/attention/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"
#include "ir/qkv.h"

namespace difuse::codegen::cuda {

std::string literal(double x) { return fmt::format("{:a}f", static_cast<float>(x)); }

std::vector<size_t> outputs_of(const KernelSpec& spec, ir::Value result) {
  const ir::Graph& body = spec.body;
  std::vector<bool> depends(static_cast<size_t>(body.size()));
  const auto reads = [&](ir::Value v) {
    return v.node == result.node ? v.result == result.result : bool{depends[static_cast<size_t>(v.node)]};
  };
  for (int id = result.node + 1; id < body.size(); ++id) {
    for (const ir::Value v : body.node(id).operands) {
      if (reads(v)) depends[static_cast<size_t>(id)] = true;
    }
  }
  std::vector<size_t> outputs;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    if (spec.wanted(r) && reads(body.outputs()[r].value)) outputs.push_back(r);
  }
  return outputs;
}

bool can_store_runs(const KernelSpec& spec, const AttentionProblem& p, const std::vector<size_t>& outputs, int lanes) {
  return p.width % lanes == 0 && std::ranges::all_of(outputs, [&](size_t r) {
           const ir::Type& type = spec.body.type(spec.body.outputs()[r].value);
           return !type.shape.empty() && type.shape.back() % lanes == 0 &&
                  spec.result_alignment[r] % std::min<int64_t>(16, lanes * ir::size_of(type.dtype)) == 0;
         });
}

std::string first_channel(const KernelSpec& spec, const AttentionProblem& p, const std::string& part) {
  const bool heads_first = spec.body.node(p.value).as<ir::AttentionAttrs>().order == ir::QkvOrder::heads_first;
  return heads_first ? fmt::format("(head * 3 + {}) * {}", part, p.width)
                     : fmt::format("({} * {} + head) * {}", part, p.heads, p.width);
}

std::string operand(const AttentionProblem& p, size_t i) { return "p" + text(p.inputs[i]); }

void add_problem_fields(const KernelSpec& spec, const AttentionProblem& p,
                        std::vector<std::pair<std::string_view, std::string>>& fields) {
  const auto add = [&](std::string_view field, std::string value) { fields.emplace_back(field, std::move(value)); };
  add("index", index_type(p.is_wide_index));
  add("heads", text(p.heads));
  add("width", text(p.width));
  add("length", text(p.length));
  add("channels", text(p.channels()));
  add("qkv_row", text(3 * p.channels()));
  add("qkv_image", text(p.length * 3 * p.channels()) + "ll");
  add("out_image", text(p.length * p.channels()) + "ll");
  add("qkv", operand(p, 0));
  add("q_channel", first_channel(spec, p, "0"));
  add("k_channel", first_channel(spec, p, "1"));
  add("v_channel", first_channel(spec, p, "2"));
  add("scale_log2", literal(std::numbers::log2e / std::sqrt(static_cast<double>(p.width))));
}

std::vector<Term> row_coords(int lanes) {
  return {{"image", Lanes::none}, {"token", Lanes::none}, {"channel", lanes == 1 ? Lanes::none : Lanes::unit}};
}

}  // namespace difuse::codegen::cuda
