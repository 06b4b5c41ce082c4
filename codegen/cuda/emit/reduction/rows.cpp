// Bodies that read a row's sum or maximum again over the row, as a softmax does: sum -> repeat -> elementwise -> sum.
//
// Neighbouring threads share a row. They run over it once for each depth of reductions: a reduction whose operand needs
// others' results comes after them. All threads of a row have the result, in a register; the row's operands are read
// again, from L1. A last run makes the elementwise results.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>

#include "codegen/cuda/emit/finishes.h"
#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/source/collapse.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"
#include "passes/fusion/traits.h"

namespace difuse::codegen::cuda::reduction {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

constexpr int64_t kThreads = 128;

class Rows {
 public:
  explicit Rows(const KernelSpec& spec) : spec_(spec), body_(collapsed(spec.body)), parameters_(body_, spec) {
    const std::vector<bool> live = body_.live();
    std::vector<int> depths(static_cast<size_t>(body_.size()), 0);  // reductions on the way to the value
    for (int id = 0; id < body_.size(); ++id) {
      const Node& node = body_.node(id);
      int& depth = depths[static_cast<size_t>(id)];
      for (const Value v : node.operands) depth = std::max(depth, depths[static_cast<size_t>(v.node)]);
      if (!is_reduction(node) || !live[static_cast<size_t>(id)]) continue;
      shape_ = body_.type(node.operands[0]).shape;
      kept_ = node.types[0].shape.size();
      by_depth_.resize(std::max(by_depth_.size(), static_cast<size_t>(depth) + 1));
      by_depth_[static_cast<size_t>(depth)].push_back(id);
      ++depth;
    }
    for (size_t r = 0; r < body_.outputs().size(); ++r) {
      const Value v = body_.outputs()[r].value;
      if (spec.wanted(r) && !is_reduction(body_.node(v))) stored_.push_back(r);
    }
    outer_ = ir::element_count({shape_.begin(), shape_.begin() + static_cast<std::ptrdiff_t>(kept_)});
    row_ = ir::element_count(shape_) / outer_;
    lanes_ = fitting_lanes(spec, shape_.back(), whole_tensors(body_, shape_).longest_run(), false);
    sharers_ = std::min<int64_t>(32, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(row_ / lanes_))));
  }

  std::string statements(int64_t groups, const std::string& thread) {
    return filled(R"({
  const int place = $thread % $sharers;
  for (int begin = 0; begin < $groups; begin += $threads / $sharers) {
    const int own = begin + $thread / $sharers;
    const bool inside = own < $groups;
    const index_t o = this_image * $groups + (inside ? own : $groups - 1), base = o * $row;
$passes  }
}
)",
                  {{"sharers", std::to_string(sharers_)},
                   {"threads", "$threads"},
                   {"thread", thread},
                   {"groups", std::to_string(groups)},
                   {"row", std::to_string(row_)},
                   {"passes", indented(passes(), 4)}});
  }

  void emit(Emission& emission) {
    parameters_.add("outer", outer_);
    KernelDraft draft;
    draft.name = spec_.name;
    draft.source = device_source({"vector.cuh", "ops.cuh", "reduce.cuh"}) +
                   filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int place = static_cast<int>(threadIdx.x) % $sharers;
  const long long own = static_cast<long long>(blockIdx.x) * $perblock + static_cast<int>(threadIdx.x) / $sharers;
  const bool inside = own < outer;
  const index_t o = static_cast<index_t>(inside ? own : outer - 1), base = o * $row;
$passes}
)",
                          {{"index", index_type(is_wide(body_))},
                           {"threads", std::to_string(kThreads)},
                           {"parameters", parameters_.text()},
                           {"sharers", std::to_string(sharers_)},
                           {"perblock", std::to_string(kThreads / sharers_)},
                           {"row", std::to_string(row_)},
                           {"passes", indented(passes(), 2)}});
    draft.grid.x = ceil_div(outer_, kThreads / sharers_);
    draft.threads = static_cast<int>(kThreads);
    draft.arguments = parameters_.arguments();
    draft.bytes = parameters_.bytes();
    draft.flops = spec_.flops;
    emission.launch(std::move(draft));
  }

 private:
  std::string passes() {
    std::string passes;
    for (const std::vector<int>& reductions : by_depth_) passes += reduce(reductions);
    return passes + store();
  }

  std::string name(int reduction) const { return fmt::format("total{}", reduction); }
  std::string combine(int reduction) const {
    return body_.node(reduction).op == Op::reduce_max ? "reduce::Max" : "reduce::Sum";
  }

  /// Code for one run over the row; what is reduced already is known.
  BodyCode code(int depth) const {
    BodyCode made(body_, lanes_, parameters_.operands(), spec_.alignment);
    for (int d = 0; d < depth; ++d) {
      for (const int id : by_depth_[static_cast<size_t>(d)]) made.bind({id, 0}, name(id), Lanes::none);
    }
    return made;
  }

  Index index(const BodyCode& made) const {
    const std::span<const int64_t> extents = shape_;
    const Lanes run = lanes_ == 1 ? Lanes::none : Lanes::unit;
    std::vector<Term> coords = split("o", extents.first(kept_), Lanes::none);
    std::ranges::move(split("r", extents.subspan(kept_), run), std::back_inserter(coords));
    Index at = made.at(std::move(coords));
    at.linear = {"at", run};
    at.has_linear = true;
    return at;
  }

  std::string over_row(const std::string& condition, const std::string& before, const std::string& lane,
                       const std::string& after) const {
    return filled(R"(for (index_t r = place * $lanes; r < $row$condition; r += $step) {
  [[maybe_unused]] const index_t at = base + r;
$before#pragma unroll
  for (int l = 0; l < $lanes; ++l) {
$lane  }
$after}
)",
                  {{"lanes", std::to_string(lanes_)},
                   {"row", std::to_string(row_)},
                   {"condition", condition},
                   {"step", std::to_string(sharers_ * lanes_)},
                   {"before", indented(before, 2)},
                   {"lane", indented(lane, 4)},
                   {"after", indented(after, 2)}});
  }

  std::string reduce(const std::vector<int>& reductions) {
    BodyCode made = code(depth_++);
    const Index at = index(made);
    std::string declared, combined, totals;
    for (const int id : reductions) {
      const std::string by = combine(id), sum = fmt::format("sum{}", id);
      declared += fmt::format("Run<float, {0}> {1} = reduce::start_run<{2}, {0}>();\n", lanes_, sum, by);
      combined +=
          fmt::format("{0}[l] = {1}::both({0}[l], {2});\n", sum, by, made.value(body_.node(id).operands[0], at));
      totals += fmt::format("const float {} = reduce::combine_neighbours<{}, {}>(reduce::combine_lanes<{}>({}));\n",
                            name(id), by, sharers_, by, sum);
      for (size_t r = 0; r < body_.outputs().size(); ++r) {
        if (!spec_.wanted(r) || body_.outputs()[r].value != Value{id, 0}) continue;
        totals += fmt::format("if (inside && place == 0) {}[o] = {};\n", Parameters::result(r), name(id));
      }
    }
    const std::string before = made.take_before(), lane = made.take_lane();
    return declared + over_row("", before, lane + combined, "") + totals;
  }

  std::string store() {
    if (stored_.empty()) return "";
    BodyCode made = code(depth_);
    const Index at = index(made);
    std::string runs, lane, stores;
    for (const size_t r : stored_) {
      const Value v = body_.outputs()[r].value;
      const std::string to = Parameters::result(r);
      runs += fmt::format("Run<{}, {}> run_{};\n", register_type(body_.type(v).dtype), lanes_, to);
      lane += fmt::format("run_{}[l] = {};\n", to, made.unrounded(v, at));
      stores += fmt::format("store_run<{0}>({1} + at, run_{1});\n", lanes_, to);
    }
    const std::string before = made.take_before(), in_lane = made.take_lane();
    return over_row(" && inside", before + runs, in_lane + lane, stores);
  }

  const KernelSpec& spec_;
  const Graph body_;
  Parameters parameters_;
  ir::Shape shape_;
  size_t kept_ = 0;  ///< Dimensions before the row's.
  int64_t outer_ = 1, row_ = 1, sharers_ = 1;
  int lanes_ = 1, depth_ = 0;
  std::vector<std::vector<int>> by_depth_;  ///< The reductions.
  std::vector<size_t> stored_;              ///< By output.
};

}  // namespace

bool reads_rows_again(const Graph& body) {
  for (int id = 0; id < body.size(); ++id) {
    if (body.node(id).op == Op::broadcast && is_reduction(body.node(body.node(id).operands[0]))) return true;
  }
  return false;
}

bool accepts_rows(const Graph& body) {
  std::vector<int64_t> axes;
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    if (is_reduction(node)) {
      if (!passes::is_row_reduction(body, node)) return false;
      const auto& own = node.as<ir::ReduceAttrs>().axes;
      if (!axes.empty() && own != axes) return false;
      axes = own;
    } else if (node.op == Op::broadcast && is_reduction(body.node(node.operands[0]))) {
      if (!passes::is_row_repeat(body, node)) return false;
    }
  }
  return true;
}

void emit_rows(const KernelSpec& spec, Emission& emission) { Rows(spec).emit(emission); }

}  // namespace difuse::codegen::cuda::reduction

namespace difuse::codegen::cuda {

std::string row_statements(const KernelSpec& spec, int64_t groups, const std::string& thread) {
  return reduction::Rows(spec).statements(groups, thread);
}

}  // namespace difuse::codegen::cuda
