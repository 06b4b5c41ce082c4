// Shape arithmetic: how an image's elements, in order, read a smaller operand or add to a smaller result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "ir/types.h"

namespace difuse::codegen::cpu {

/// `extent` indices, outermost first, each `stride` elements further in the smaller tensor (0: the same element).
struct StridedAxis {
  int64_t extent, stride;
};

/// Drops extents of 1 and merges neighbours that one group can say.
std::vector<StridedAxis> collapse(const std::vector<StridedAxis>& axes);

struct Pattern {
  enum class Kind : uint8_t {
    linear,    ///< Element i of the image is element i of the other.
    scalar,    ///< All elements are one.
    periodic,  ///< Element i is element i % period.
    strided,   ///< Anything else, by `groups`.
  };
  Kind kind = Kind::linear;
  int64_t period = 1;
  std::vector<StridedAxis> groups;
};

/// Throws Error where more than kMostGroups groups remain.
Pattern classify(const std::vector<StridedAxis>& axes);

/// One axis of a shape, or a part of one, outermost first; `leading` parts multiply to the count of images.
struct AxisPart {
  size_t axis;
  int64_t extent;
  int64_t inner;  ///< Of the same axis, indices inside this part: an index steps by `inner` strides of the axis.
  bool leading;
};

/// Splits a shape into `images` and what each holds; nothing where the shape's leading axes do not multiply to it.
std::optional<std::vector<AxisPart>> split_images(const ir::Shape& shape, int64_t images);

inline constexpr size_t kMostGroups = 16;

ir::Shape strides_of(const ir::Shape& shape);

/// Calls f(done, count, at) for the runs of elements [begin, begin + n): `count` elements, `done` after begin, whose
/// indices of the innermost group are consecutive; `at` is the first one's place in the smaller tensor.
template <class F>
void for_runs(const std::vector<StridedAxis>& groups, int64_t begin, int64_t n, const F& f) {
  int64_t index[kMostGroups] = {};
  int64_t at = 0, rest = begin;
  for (size_t g = groups.size(); g-- > 0;) {
    index[g] = rest % groups[g].extent;
    rest /= groups[g].extent;
    at += index[g] * groups[g].stride;
  }
  const size_t last = groups.size() - 1;
  for (int64_t done = 0; done < n;) {
    const int64_t count = std::min(groups[last].extent - index[last], n - done);
    f(done, count, at);
    done += count;
    index[last] += count;
    at += count * groups[last].stride;
    for (size_t g = last; index[g] == groups[g].extent && g > 0; --g) {
      at += groups[g - 1].stride - groups[g].extent * groups[g].stride;
      index[g] = 0;
      ++index[g - 1];
    }
  }
}

}  // namespace difuse::codegen::cpu
