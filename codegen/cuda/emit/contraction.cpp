// Convolutions and matrix products with what is computed from their value, as matrix products on the tensor cores
// (device/gemm.cuh) or, in f32, by fused multiply-adds (device/gemm_fma.cuh). One kernel; where the sum runs over the
// batch (a weight's gradient) two: the sum is divided among blocks, whose partial results a second kernel adds in a
// fixed order. Of a matrix's rows, which may be few, one where a single block has the whole sum.
#include <algorithm>
#include <bit>

#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/contraction/source.h"
#include "codegen/cuda/emit/contraction/sum.h"
#include "codegen/cuda/emit/contraction/tiles.h"
#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/preparation.h"
#include "codegen/cuda/problem_text.h"
#include "codegen/node_body.h"
#include "ir/error.h"
#include "ir/op.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda {
namespace {

std::vector<GemmTile> tiles_of(const GemmProblem& problem, const ir::DeviceSpec& device) {
  std::vector<GemmTile> tiles = candidates(problem, device);
  if (tiles.empty()) throw Error("no tile fits " + to_string(problem));
  return tiles;
}

KernelDraft tuned_kernel(const KernelSpec& spec, const GemmProblem& problem, const GemmTile& tile) {
  KernelDraft draft = product_kernel(spec, problem, tile);
  draft.choice = 0;
  return draft;
}

void emit_whole(const KernelSpec& spec, GemmProblem problem, const GemmTile& tile, Emission& emission) {
  problem.is_split = false;
  emission.launch(tuned_kernel(spec, problem, tile));
}

void emit_split(const KernelSpec& spec, const GemmProblem& problem, const GemmTile& tile, Emission& emission) {
  const ir::Graph product = part_of(spec.body, {problem.value});
  const Argument partials = emission.workspace(problem.splits * problem.rows * problem.columns * 4);
  emission.launch(tuned_kernel(product_spec(spec, product, partials), problem, tile));
  emit_sum(spec, problem.value, partials, partial_sums(spec, problem), emission);
}

}  // namespace

bool accepts_contraction(const ir::Graph& body) {
  const ir::Value value = find_contraction(body);
  if (!value.valid()) return false;
  const size_t reduced = reduced_values(body).size();
  if (reduced == 0) return is_epilogue(body, value);
  // Some tile is whole strips, none of which is cut off.
  const ir::Node& node = body.node(value);
  if (reduced > 1 || node.op != ir::Op::conv_fprop || !is_epilogue(body, value, {ir::Op::channel_moments}))
    return false;
  const int64_t height = node.types[0].shape[1], width = node.types[0].shape[2];
  const bool whole =
      height % ir::kStripHeight == 0 || (height < ir::kStripHeight && std::has_single_bit<uint64_t>(height));
  return whole && width % ir::kStripWidth == 0;
}

std::vector<TileChoice> contraction_choices(const KernelSpec& spec) {
  const GemmProblem p = gemm_problem(spec);
  TileChoice choice;
  const ir::Graph product = part_of(spec.body, {p.value});
  const KernelSpec timed = p.is_split ? product_spec(spec, product, {Argument::Kind::workspace, 0}) : spec;
  choice.problem = problem_text(timed, geometry(p));
  choice.batch = p.op == ir::Op::matmul ? (p.sums_batch ? p.depth : p.rows)
                                        : spec.body.type(spec.body.node(p.value).operands[0]).shape[0];
  const std::vector<GemmTile> tiles = tiles_of(p, spec.device);
  GemmProblem now = p;
  now.usual_rows = p.rows, now.usual_columns = p.columns, now.usual_depth = p.depth, now.usual_splits = p.splits;
  std::vector<double> cycles;
  for (const GemmTile& tile : tiles) {
    choice.tiles.push_back(to_string(tile));
    choice.at_batch.push_back(choice.at_batch.size());
    cycles.push_back(estimated_cycles(now, tile, spec.device));
  }
  std::ranges::stable_sort(choice.at_batch, {}, [&](size_t i) { return cycles[i]; });
  return {choice};
}

void emit_contraction(const KernelSpec& spec, Emission& emission) {
  const GemmProblem problem = gemm_problem(spec);
  const GemmTile tile = tiles_of(problem, spec.device).at(spec.tile(0));
  if (!problem.is_split) {
    emit_whole(spec, problem, tile, emission);
  } else if (problem.op != ir::Op::matmul) {
    emit_split(spec, problem, tile, emission);
  } else {
    // The rows of a matrix are few where the batch is not large: one split has nothing to add.
    Preparation other(emission);
    const bool is_whole = problem.splits == 1;
    emit_whole(spec, problem, tile, is_whole ? emission : other);
    emit_split(spec, problem, tile, is_whole ? other : emission);
  }
}

}  // namespace difuse::codegen::cuda
