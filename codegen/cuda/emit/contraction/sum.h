// The second kernel of a contraction whose sum is divided among blocks: it adds the partial sums in a fixed order and
// does everything that follows.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

/// How the first kernel left the partial sums, in runs of `lanes` floats.
struct PartialSums {
  int64_t runs = 0;  ///< In all; what lies past them is invalid.
  int lanes = 4;     ///< Of a run, which lie one behind the other in the result as well.
  int each = 1;      ///< Runs of a thread. With more than one, `runs` and `run` number as many at once.
  /// Statements about the run number `run`, an index_t, that declare: `element`, an index_t, where in the result it
  /// belongs; `valid`, whether it is in the result; `at`, a pointer to its first partial sums, computed from
  /// `partials`; `stride`, how many floats further on the next ones lie; and `count`, how many there are. Where a
  /// thread has several runs, `element_of_run(e)` stands for `element`, negative where the result has no run `e`;
  /// `own`, how many have partial sums, for `valid`; and `step` is how many floats one run's lie from those of the one
  /// before.
  std::string place = {};
  std::vector<std::pair<std::string, int64_t>> numbers = {};  ///< Arguments that `place` reads.
  std::vector<std::string_view> headers = {};
  std::string declarations = {};  ///< Before the kernel.
  bool is_wide = false;           ///< Offsets need 64 bits.
  int parts = 8;      ///< Threads that share a run's partial sums, each a range: the order of the sum. A power of two.
  int64_t bytes = 0;  ///< Of the partial sums.

  /// Of a block, whatever the parts: sums that differ in those alone are one launch.
  static constexpr int kThreads = 256;
  int block_runs() const { return kThreads / parts; }
};

/// The longest run, at most four, that the sum of `value` can be computed in.
int sum_lanes(const KernelSpec& spec, ir::Value value);

/// The spec of the first kernel: `value` alone, into `partials`.
KernelSpec product_spec(const KernelSpec& spec, const ir::Graph& product, const Argument& partials);

/// Adds the partial sums of `value`, which start at `partials`, and computes the spec's results.
void emit_sum(const KernelSpec& spec, ir::Value value, const Argument& partials, const PartialSums& sums,
              Emission& emission);

}  // namespace difuse::codegen::cuda
