#include "codegen/cpu/kernels/access.h"

#include <fmt/format.h>

#include "ir/error.h"

namespace difuse::codegen::cpu {

std::vector<StridedAxis> collapse(const std::vector<StridedAxis>& axes) {
  std::vector<StridedAxis> groups;
  for (const StridedAxis& g : axes) {
    if (g.extent == 1) continue;
    if (!groups.empty() && groups.back().stride == g.extent * g.stride) {
      groups.back() = {groups.back().extent * g.extent, g.stride};
    } else {
      groups.push_back(g);
    }
  }
  return groups;
}

Pattern classify(const std::vector<StridedAxis>& axes) {
  Pattern p;
  p.groups = collapse(axes);
  if (p.groups.size() > kMostGroups) throw Error(fmt::format("more than {} axes that do not merge", kMostGroups));
  if (p.groups.empty() || (p.groups.size() == 1 && p.groups[0].stride == 0)) {
    p.kind = Pattern::Kind::scalar;
  } else if (p.groups.size() == 1 && p.groups[0].stride == 1) {
    p.kind = Pattern::Kind::linear;
  } else if (p.groups.size() == 2 && p.groups[0].stride == 0 && p.groups[1].stride == 1) {
    p.kind = Pattern::Kind::periodic;
    p.period = p.groups[1].extent;
  } else {
    p.kind = Pattern::Kind::strided;
  }
  return p;
}

std::optional<std::vector<AxisPart>> split_images(const ir::Shape& shape, int64_t images) {
  std::vector<AxisPart> parts;
  int64_t left = images;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (left == 1) {
      parts.push_back({d, shape[d], 1, false});
    } else if (left % shape[d] == 0) {
      parts.push_back({d, shape[d], 1, true});
      left /= shape[d];
    } else if (shape[d] % left == 0) {
      parts.push_back({d, left, shape[d] / left, true});
      parts.push_back({d, shape[d] / left, 1, false});
      left = 1;
    } else {
      return std::nullopt;
    }
  }
  if (left != 1) return std::nullopt;
  return parts;
}

ir::Shape strides_of(const ir::Shape& shape) {
  ir::Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

}  // namespace difuse::codegen::cpu
