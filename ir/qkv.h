// Where q, k and v lie in the channels of a qkv projection.
#pragma once

#include "ir/attrs.h"

namespace difuse::ir {

struct QkvLayout {
  int64_t heads, width;  // width: channels per head
  QkvOrder order;

  QkvLayout(int64_t channels3, const AttentionAttrs& a)
      : heads(a.heads), width(channels3 / (3 * a.heads)), order(a.order) {}

  /// First channel of part 0 (q), 1 (k) or 2 (v) of one head.
  int64_t channel(int part, int64_t head) const {
    return width * (order == QkvOrder::heads_first ? head * 3 + part : part * heads + head);
  }
};

}  // namespace difuse::ir
