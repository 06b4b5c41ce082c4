// One choice of a tile, cut out of its plan: what a tuner compiles, compares and times.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/tune/table.h"
#include "ir/device_spec.h"

namespace difuse::codegen::cuda {

class TuningSite {
 public:
  /// A value of the site's own arena.
  struct Place {
    int64_t offset = 0;
    ir::Type type;
    bool is_tf32 = false;  ///< Every element is a float rounded to tf32.
  };

  /// The `index`-th choice of the spec's emitter. Copies what it needs.
  TuningSite(const KernelSpec& spec, int index, TileChoice choice);

  const std::string& name() const { return name_; }
  const TileChoice& choice() const { return choice_; }
  int index() const { return index_; }

  const std::vector<Place>& operands() const { return operands_; }
  /// The results lie behind each other, and behind the operands: from here to the arena's end.
  int64_t results_begin() const { return results_begin_; }
  int64_t arena_bytes() const { return arena_bytes_; }

  /// The site's kernels with each of these candidates. A call's `node` is a candidate's place in the list; the kernel
  /// with the tile is the call whose `choice` is index(), and others may come before and after it. All have the same
  /// operands, the same results and the same workspace.
  CudaPlan plan(std::span<const size_t> candidates) const;

  int uses = 1;  ///< How often the plan has it.

 private:
  std::string name_;
  std::shared_ptr<const ir::Graph> body_;
  std::shared_ptr<const ir::DeviceSpec> device_;
  std::shared_ptr<KernelSpec> spec_;  // Of the two above.
  int index_;
  TileChoice choice_;
  std::vector<Place> operands_;
  int64_t results_begin_ = 0, arena_bytes_ = 0;
};

/// Every choice of a plan's kernels once, in the order of the plan.
std::vector<TuningSite> tuning_sites(const CudaPlan& plan, const ir::DeviceSpec& device);

}  // namespace difuse::codegen::cuda
