// Equal launches as one: the same kernel, the same block, other arguments. The joined kernel's one parameter is a table
// with a row of arguments, tensor maps among them, for each member; a block finds its row by blockIdx.z and then does
// what it would have done in a launch of its own, so no bit changes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_plan.h"

namespace difuse::codegen::cuda {

/// What all drivers take as a kernel's parameters.
inline constexpr int64_t kMostTableBytes = 4096;

/// The kernel of `single`, made to run for every row of a table. Its name is that of `single` with "_joined" and a
/// hash. Throws Error where the source has no kernel of its name.
CudaSource joined_source(const CudaSource& single);

/// What a tensor map takes; its address is a multiple of 64 bytes.
inline constexpr int64_t kTensorMapBytes = 128;
struct alignas(64) TableLine {
  uint64_t words[8] = {};
};
/// What the joined kernel gets: `address` gives an argument's 8 bytes, `map` where the launch's tensor map number i
/// lies.
std::vector<TableLine> table_of(const KernelCall& call, const std::function<uint64_t(const Argument&)>& address,
                                const std::function<const void*(int64_t)>& map);
/// Of one member of a joined launch.
int64_t row_bytes(const KernelCall& call);

/// Makes equal launches one, where none of `calls` touches what another writes. Kernels are added to `plan`.
class Joiner {
 public:
  explicit Joiner(CudaPlan& plan) : plan_(plan) {}

  /// In the order of the first of each.
  std::vector<KernelCall> join(const std::vector<KernelCall>& calls);
  /// Whether the launch may be a member: a table has room for two, and its kernel uses neither z nor the grid's extent.
  bool can_join(const KernelCall& call);
  /// Whether two launches may be members of one.
  bool equal(const KernelCall& a, const KernelCall& b);
  /// Prepares both forms, alone and joined, of every kernel that has several launches: how many of them are one depends
  /// on the batch.
  void prepare_both();

 private:
  KernelCall joined(const std::vector<const KernelCall*>& members);
  int joined_form(int single);

  CudaPlan& plan_;
  std::map<int, int> sources_;    // of the joined kernel, by the single one's
  std::map<int, bool> can_join_;  // by source
};

/// Takes away the sources that no call has and none is prepared for.
void remove_unused_sources(CudaPlan& plan);

}  // namespace difuse::codegen::cuda
