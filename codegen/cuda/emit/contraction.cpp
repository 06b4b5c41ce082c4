// Convolutions and matrix products with what is computed from their value, as matrix products on the tensor cores
// (device/gemm.cuh). One kernel; where the sum runs over the batch (a weight's gradient) two: the sum is divided among
// blocks, whose partial results a second kernel adds in a fixed order.
#include <algorithm>

#include "codegen/cuda/emit/contraction/epilogue.h"
#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/contraction/source.h"
#include "codegen/cuda/emit/contraction/tiles.h"
#include "codegen/cuda/kernel_spec.h"
#include "ir/builder.h"
#include "ir/error.h"

namespace difuse::codegen::cuda {
namespace {

/// The contraction alone, its inputs under the names that they have in the body.
ir::Graph product_body(const ir::Graph& body, ir::Value value) {
  ir::Graph product("product");
  std::vector<ir::Value> made(static_cast<size_t>(body.size()));
  std::vector<bool> needed(static_cast<size_t>(body.size()));
  needed[static_cast<size_t>(value.node)] = true;
  for (int id = value.node; id >= 0; --id) {
    if (!needed[static_cast<size_t>(id)]) continue;
    for (const ir::Value v : body.node(id).operands) needed[static_cast<size_t>(v.node)] = true;
  }
  for (int id = 0; id <= value.node; ++id) {
    if (!needed[static_cast<size_t>(id)]) continue;
    std::vector<ir::Value> operands;
    for (const ir::Value v : body.node(id).operands) operands.push_back(made[static_cast<size_t>(v.node)]);
    made[static_cast<size_t>(id)] = ir::copy_node(product, body.node(id), operands)[0];
  }
  product.set_output("0", made[static_cast<size_t>(value.node)]);
  return product;
}

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
  const ir::Graph product = product_body(spec.body, problem.value);
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
