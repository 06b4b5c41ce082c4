// Convolutions and matrix products with what is computed from their value, as matrix products on the tensor cores
// (device/gemm.cuh). One kernel; where the sum runs over the batch (a weight's gradient) two: the sum is divided among
// blocks, whose partial results a second kernel adds in a fixed order.
#include <algorithm>

#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/contraction/source.h"
#include "codegen/cuda/emit/contraction/tiles.h"
#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/node_body.h"
#include "ir/builder.h"
#include "ir/error.h"

namespace difuse::codegen::cuda {
namespace {

/// The body with the contraction's value as one more input.
ir::Graph sum_body(const ir::Graph& body, ir::Value value, int input) {
  return ir::rebuild(body, [&](ir::Graph& to, int id, const ir::Node& node, const std::vector<ir::Value>& operands) {
    if (id == value.node) return std::vector{ir::Builder(to).input(std::to_string(input), node.types[0])};
    return ir::copy_node(to, node, operands);
  });
}

GemmTile best_tile(const GemmProblem& problem, const ir::DeviceSpec& device) {
  const std::vector<GemmTile> tiles = candidates(problem, device);
  if (tiles.empty()) throw Error("no tile fits " + to_string(problem));
  return tiles.front();
}

}  // namespace

bool accepts_contraction(const ir::Graph& body) {
  const ir::Value value = find_contraction(body);
  if (!value.valid() || !is_epilogue(body, value)) return false;
  return true;
}

void emit_contraction(const KernelSpec& spec, Emission& emission) {
  const GemmProblem problem = gemm_problem(spec);
  const GemmTile tile = best_tile(problem, spec.device);
  if (!problem.is_split) {
    emission.launch(product_kernel(spec, problem, tile));
    return;
  }
  const ir::Graph product = part_of(spec.body, {problem.value});
  const Argument partials = emission.workspace(problem.splits * problem.rows * problem.columns * 4);
  KernelSpec first{product, spec.operands, spec.alignment, {partials}, {256}, spec.name, spec.flops, spec.device, {}};
  emission.launch(product_kernel(first, problem, tile));

  const int input = static_cast<int>(spec.operands.size());
  const ir::Graph sum = sum_body(spec.body, problem.value, input);
  KernelSpec second{sum, spec.operands, spec.alignment, spec.results, spec.result_alignment, spec.name, 0, spec.device,
                    {}};
  second.operands.push_back(partials);
  second.alignment.push_back(256);
  emission.launch(sum_kernel(second, problem, input));
}

}  // namespace difuse::codegen::cuda
