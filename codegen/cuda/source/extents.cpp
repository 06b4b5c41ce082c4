#include "codegen/cuda/source/extents.h"

#include <algorithm>

#include "ir/op.h"

namespace difuse::codegen::cuda {

bool needs_wide_index(const ir::Graph& body, int64_t spare) {
  for (int id = 0; id < body.size(); ++id) {
    for (const ir::Type& t : body.node(id).types) {
      if (t.elements() >= (int64_t{1} << 31) - spare) return true;
    }
  }
  return false;
}

int copy_elements(int64_t extent, int64_t alignment, int64_t element_bytes) {
  int64_t bytes = 16;
  while (bytes > element_bytes && (extent * element_bytes % bytes != 0 || alignment % bytes != 0)) bytes /= 2;
  return static_cast<int>(bytes / element_bytes);
}

int fitting_lanes(const KernelSpec& spec, int64_t last_extent, int most, bool reductions_too) {
  int lanes = most;
  while (lanes > 1 && last_extent % lanes != 0) lanes /= 2;
  for (size_t r = 0; r < spec.body.outputs().size(); ++r) {
    const ir::Value v = spec.body.outputs()[r].value;
    if (!reductions_too && ir::has_trait(spec.body.node(v), ir::kReduction)) continue;
    const int64_t size = ir::size_of(spec.body.type(v).dtype);
    while (lanes > 1 && spec.result_alignment[r] % std::min<int64_t>(16, size * lanes) != 0) lanes /= 2;
  }
  return lanes;
}

}  // namespace difuse::codegen::cuda
