// What a lowered kernel is made of: phases that run one after the other, each a parallel loop over units of work, each
// unit a list of steps. This folder holds the steps and how a node's body becomes them; what must not live here: the
// graph as a whole (lower_cpu.h), memory planning, devices other than the CPU.
//
// A unit is one image, or a few, or a segment of one tensor. How work is split depends on shapes alone, so bits depend
// on neither the thread count nor who runs which unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codegen/cpu/cpu_plan.h"

namespace difuse::codegen::cpu {

/// Where a value lies: an address as far as it is known before a run.
struct Place {
  enum class Base : uint8_t {
    none,
    arena,      ///< The graph's values.
    workspace,  ///< What one kernel keeps while it runs, shared by its threads.
    scratch,    ///< What one thread keeps while it works on one unit: images count from the unit's first.
    fixed,      ///< The kernel's own constants.
  };
  Base base = Base::none;
  int64_t offset = 0;  ///< Bytes.
  int64_t stride = 0;  ///< Bytes from one image to the next; 0 where all images share the value.
  const std::byte* data = nullptr;

  bool placed() const { return base != Base::none; }
  Place with_stride(int64_t bytes) const {
    Place p = *this;
    p.stride = bytes;
    return p;
  }
  Place moved(int64_t bytes) const {
    Place p = *this;
    p.offset += bytes;
    return p;
  }
};

/// One thread's view of the piece of work at hand.
struct Unit {
  std::byte* arena = nullptr;
  std::byte* workspace = nullptr;
  std::byte* scratch = nullptr;
  int64_t index = 0;              ///< Which unit of the phase.
  int64_t first = 0, images = 1;  ///< Images [first, first + images).
  int64_t begin = 0, end = -1;    ///< Elements of the image; end is -1 where the whole image is meant.
  bool fresh = true;              ///< The thread's first unit in this run of the phase: shared tables are not made yet.

  std::byte* at(const Place& p, int64_t image) const {
    switch (p.base) {
      case Place::Base::arena:
        return arena + p.offset + image * p.stride;
      case Place::Base::workspace:
        return workspace + p.offset + image * p.stride;
      case Place::Base::scratch:
        return scratch + p.offset + (image - first) * p.stride;
      case Place::Base::fixed:
        return const_cast<std::byte*>(p.data) + p.offset + image * p.stride;
      case Place::Base::none:
        break;
    }
    return nullptr;
  }
};

class Step {
 public:
  virtual ~Step() = default;
  virtual void run(const Unit& unit) const = 0;
};

struct Phase {
  int64_t images = 1, unit_images = 1;
  int64_t elements = 0, segment = 0;  ///< Where segment > 0, each image is cut into units of `segment` elements.
  bool parallel = true;               ///< false: too little work to wake other threads for.
  std::vector<std::unique_ptr<Step>> steps;

  int64_t segments() const { return segment > 0 ? (elements + segment - 1) / segment : 1; }
  int64_t units() const { return (images + unit_images - 1) / unit_images * segments(); }
};

/// A kernel as a list of phases.
class PhaseKernel : public CpuKernel {
 public:
  /// Throws what a step threw: of several units that fail, the first by index.
  void run(const CpuContext& context) const override;

  std::vector<Phase> phases;
  std::vector<std::unique_ptr<std::byte[]>> fixed;  ///< Memory of Place::Base::fixed.
  int64_t scratch_bytes = 0, workspace_bytes = 0;
};

}  // namespace difuse::codegen::cpu
