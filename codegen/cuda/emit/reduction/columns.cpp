// Sums over the rows of matrices, whose columns are an argument: gradients of vectors that differ in nothing but their
// length are one kernel, and so perhaps one launch (join/table.h). A block has 32 columns; its threads share the rows,
// which are as many as a batch has images.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"

namespace difuse::codegen::cuda::reduction {
namespace {

using ir::Node;
using ir::Op;

constexpr int64_t kColumns = 32, kRows = 16;

}  // namespace

bool sums_columns(const KernelSpec& spec) {
  const ir::Graph& body = spec.body;
  const ir::Shape shape = iteration_shape(body);
  if (spec.preamble != nullptr || shape.size() != 2 || shape[1] == 1) return false;
  const std::vector<bool> live = body.live();
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    if (!live[static_cast<size_t>(id)] || node.op == Op::constant) continue;
    if (node.op == Op::reduce_sum && node.as<ir::ReduceAttrs>().axes == std::vector<int64_t>{0}) continue;
    const bool plain = node.op == Op::input || ir::has_trait(node, ir::kElementwise);
    if (!plain || node.types[0].shape != shape) return false;
  }
  return std::ranges::any_of(body.outputs(), [&](const auto& n) { return is_reduction(body.node(n.value)); });
}

void emit_column_sums(const KernelSpec& spec, Emission& emission) {
  const ir::Graph& body = spec.body;
  const ir::Shape shape = iteration_shape(body);
  Parameters parameters(body, spec);
  BodyCode code(body, 1, parameters.operands(), spec.alignment);
  Index index = code.at({});
  index.linear = {"at", Lanes::none};
  index.has_linear = true;
  std::string sums, lane, runs, stores, finish;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    if (!spec.wanted(r)) continue;
    const ir::Value v = body.outputs()[r].value;
    const std::string to = Parameters::result(r);
    if (is_reduction(body.node(v))) {
      finish += sums.empty() ? "" : "__syncthreads();\n";
      sums += fmt::format("Run<float, 1> sum_{} = {{}};\n", to);
      lane += fmt::format("sum_{}[l] += {};\n", to, code.value(body.node(v).operands[0], index));
      finish += fmt::format("reduce::combine_rows<reduce::Sum, {0}, {1}>(sum_{2}, shared);\n", kColumns, kRows, to);
      finish += fmt::format("if (row == 0 && inside) {0}[i] = sum_{0}[0];\n", to);
    } else {
      runs += fmt::format("Run<{}, 1> run_{};\n", register_type(body.type(v).dtype), to);
      lane += fmt::format("run_{}[l] = {};\n", to, code.unrounded(v, index));
      stores += fmt::format("store_run<1>({0} + at, run_{0});\n", to);
    }
  }
  parameters.add("rows", shape[0]);
  parameters.add("columns", shape[1]);

  KernelDraft draft;
  draft.name = spec.name;
  draft.source = device_source({"vector.cuh", "ops.cuh", "reduce.cuh"}) +
                 filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  __shared__ alignas(16) float shared[$threads];
  const int row = static_cast<int>(threadIdx.x) / $columns;
  const long long own = static_cast<long long>(blockIdx.x) * $columns + static_cast<int>(threadIdx.x) % $columns;
  const bool inside = own < columns;
  const index_t i = static_cast<index_t>(inside ? own : columns - 1), end = inside ? static_cast<index_t>(rows) : 0;
$sums#pragma unroll 4
  for (index_t r = row; r < end; r += $rows) {
    const index_t at = r * static_cast<index_t>(columns) + i;
$before#pragma unroll
    for (int l = 0; l < 1; ++l) {
$lane    }
$stores  }
$finish}
)",
                        {{"index", index_type(is_wide(body))},
                         {"threads", std::to_string(kColumns * kRows)},
                         {"parameters", parameters.text()},
                         {"columns", std::to_string(kColumns)},
                         {"rows", std::to_string(kRows)},
                         {"sums", indented(sums, 2)},
                         {"before", indented(code.take_before() + runs, 4)},
                         {"lane", indented(code.take_lane() + lane, 6)},
                         {"stores", indented(stores, 4)},
                         {"finish", indented(finish, 2)}});
  draft.grid.x = ceil_div(shape[1], kColumns);
  draft.threads = static_cast<int>(kColumns * kRows);
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  emission.launch(std::move(draft));
}

}  // namespace difuse::codegen::cuda::reduction
