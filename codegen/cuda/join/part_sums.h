// Sums of an image's parts, computed by who reads them.
//
// Before: a second stage that adds the parts that a kernel left of each image's channels, and waits for the node that
// reads the sums (order.h), a loop over images or a convolution whose prologue repeats what is made of them. After:
// that kernel adds the parts of its image before, in the second stage's order, and stores the sums for whoever reads
// them later. No bit changes, a launch is gone.
//
// Cost: every block reads its image's parts, which L2 answers: only where those are few beside what the loop reads and
// writes of an image. The batch has no say, so the kernels are the same at every batch.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "codegen/cuda/cuda_plan.h"
#include "codegen/cuda/kernel_spec.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

/// Whether the node adds parts that lie in memory: a reduce_sum over the second dimension, of at most kMostParts, of an
/// f32 input.
bool adds_parts(const ir::Graph& body, const ir::Node& node);
/// Bytes of an image's parts that a body reads.
int64_t part_bytes(const ir::Graph& body);
inline constexpr int64_t kMostPartBytes = 24 << 10;  ///< They lie in shared memory.
inline constexpr int64_t kMostParts = 256;           ///< Beyond, more sums are formed at once than registers hold.

class TakenSums {
 public:
  /// The spec with its operands among the sums' results replaced by sums of parts, and results for those behind its
  /// own. `sums`: of second stages; each is taken as a whole or not at all.
  TakenSums(const KernelSpec& spec, std::span<const PartSums> sums);

  const KernelSpec& spec() const { return taken_.empty() ? whole_ : *spec_; }
  /// By sum.
  bool taken(size_t sum) const { return !taken_.empty() && taken_[sum]; }

 private:
  bool take(std::span<const PartSums> sums);

  const KernelSpec& whole_;
  std::vector<bool> taken_;          // empty: none
  std::unique_ptr<ir::Graph> body_;  // where the spec finds it after a move
  std::optional<KernelSpec> spec_;
};

}  // namespace difuse::codegen::cuda
