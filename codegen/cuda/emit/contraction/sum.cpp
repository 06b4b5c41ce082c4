#include "codegen/cuda/emit/contraction/sum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"
#include "ir/builder.h"

namespace difuse::codegen::cuda {
namespace {

/// The body with the contraction's value as one more input.
ir::Graph sum_body(const ir::Graph& body, ir::Value value, int input) {
  return ir::rebuild(body, [&](ir::Graph& to, int id, const ir::Node& node, const std::vector<ir::Value>& operands) {
    if (id == value.node) return std::vector{ir::Builder(to).input(std::to_string(input), node.types[0])};
    return ir::copy_node(to, node, operands);
  });
}

/// Whether nothing is computed of the sum.
bool is_sum_alone(const ir::Graph& body) {
  return std::ranges::all_of(body.outputs(),
                             [&](const ir::NamedValue& n) { return body.node(n.value).op == ir::Op::input; });
}

std::string sum_text(const PartialSums& sums, const std::string& epilogue) {
  if (sums.each == 1) {
    return filled(
        R"(const Run<f32, $lanes> sum = gemm::sum_of_splits<$lanes, $parts, $block_runs>(at, stride, count, valid);
if (threadIdx.x >= $block_runs || !valid) return;
$epilogue)",
        {{"lanes", text(sums.lanes)},
         {"parts", text(sums.parts)},
         {"block_runs", text(sums.block_runs())},
         {"epilogue", epilogue}});
  }
  return filled(R"(Run<f32, $lanes> sums[$each];
gemm::sums_of_splits<$lanes, $each, $threads>(sums, at, step, stride, count, own, static_cast<int>(parts));
if (threadIdx.x >= runs || own == 0) return;
#pragma unroll
for (int e = 0; e < $each; ++e) {
  const Run<f32, $lanes> sum = sums[e];
  const index_t element = element_of_run(e);
  if (element < 0) continue;
$epilogue}
)",
                {{"lanes", text(sums.lanes)},
                 {"each", text(sums.each)},
                 {"threads", text(PartialSums::kThreads)},
                 {"epilogue", indented(epilogue, 2)}});
}

/// `spec`: of the body with the sum as its input number `input`.
KernelDraft sum_kernel(const KernelSpec& spec, int input, const PartialSums& sums) {
  const ir::Graph& body = spec.body;
  Parameters parameters(body, spec);
  const EpilogueCode epilogue = epilogue_code(spec, body.find_input(text(input)), "sum[l]", sums.lanes,
                                              parameters.operands(), {}, "element", wanted_outputs(spec));
  for (const auto& [name, number] : sums.numbers) parameters.add(name, number);
  if (sums.each > 1) parameters.add("parts", sums.parts);
  parameters.add_outers(body, epilogue.outers);
  std::vector<std::string_view> headers = {"vector.cuh", "ops.cuh", "random.cuh", "gemm_sum.cuh"};
  headers.insert(headers.end(), sums.headers.begin(), sums.headers.end());

  const std::string runs = sums.each > 1 ? fmt::format("{}u / static_cast<unsigned>(parts)", PartialSums::kThreads)
                                         : text(sums.block_runs());
  KernelDraft draft;
  draft.is_second_stage = true;
  // By what follows the sum: for several products it is the same kernel, whichever of them comes first at some batch.
  draft.name = "partial_sums";
  if (!is_sum_alone(body))
    draft.name += fmt::format("_{}", fmt::join(body.type(body.find_input(text(input))).shape, "x"));
  draft.source = device_source(headers) + filled(R"(
using index_t = $index;
$declarations
extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  const unsigned runs = $runs;
  const index_t run = static_cast<index_t>(blockIdx.x) * runs + threadIdx.x % runs;
  const f32* const partials = $partials;
$place  wait_for_previous_kernel();
  let_next_kernel_start();
$sum}
)",
                                                 {{"index", index_type(sums.is_wide)},
                                                  {"declarations", sums.declarations},
                                                  {"threads", text(PartialSums::kThreads)},
                                                  {"parameters", parameters.text()},
                                                  {"runs", runs},
                                                  {"partials", "p" + text(input)},
                                                  {"place", indented(sums.place, 2)},
                                                  {"sum", indented(sum_text(sums, epilogue.text), 2)}});
  draft.grid.x = ceil_div(sums.runs, sums.block_runs());
  draft.threads = PartialSums::kThreads;
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes() + sums.bytes - body.type(body.find_input(text(input))).bytes();
  return draft;
}

}  // namespace

int sum_lanes(const KernelSpec& spec, ir::Value value) { return epilogue_lanes(spec, value, 4); }

KernelSpec product_spec(const KernelSpec& spec, const ir::Graph& product, const Argument& partials) {
  return {product, spec.operands, spec.alignment, {partials}, {256}, spec.name, spec.flops, spec.device, {}};
}

void emit_sum(const KernelSpec& spec, ir::Value value, const Argument& partials, const PartialSums& sums,
              Emission& emission) {
  const int input = static_cast<int>(spec.operands.size());
  const ir::Graph body = sum_body(spec.body, value, input);
  KernelSpec sum{body, spec.operands, spec.alignment, spec.results, spec.result_alignment, spec.name, 0, spec.device,
                 {}};
  sum.operands.push_back(partials);
  sum.alignment.push_back(256);
  emission.launch(sum_kernel(sum, input, sums));
}

}  // namespace difuse::codegen::cuda
