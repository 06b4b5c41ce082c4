// Pixels as the models see them.
#pragma once

#include "ir/builder.h"

namespace difuse::models {

/// f32, 0 .. 255 -> -1 .. 1.
inline ir::Value signed_pixels(ir::Builder& build, ir::Value levels) {
  return build.sub(build.mul(levels, 1 / 127.5), 1.0);
}

}  // namespace difuse::models
