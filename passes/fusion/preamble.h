// Preambles: what finishes a few partial results of an image is computed by the kernel that repeats it over the image.
//
// Before: units as they will be emitted. After: a group_finish, or a loop over short rows of an image's channels (a
// group's part of a norm's gradient), whose results a loop over the same images repeats, is part of that loop's unit,
// which makes them for each image anew in every block of its kernel, and stores them where others read them too.
//
// Legal: nothing else that the loop needs comes from it, and the loop's blocks are inside one image each: its ops are
// elementwise, or sums over pixels of images that are large enough to have blocks of their own. On a GPU alone.
// Cost: a launch less, for a few reads of each block that L2 answers: only where an image's partial results are few
// beside what a block reads and writes in its loop, and few for each of its threads (cost.h).
#pragma once

#include <cstdint>

#include "passes/fusion/report.h"
#include "passes/fusion/units.h"
#include "passes/pass.h"

namespace difuse::passes {

/// Which statistics join the loop that repeats them.
enum class PreambleExtent : uint8_t {
  small,  ///< Those of images whose partial results are few in any kernel, and rows.
  large,  ///< Statistics of larger images, too: once it is decided which of them are stored (prologue.h).
};

/// Each unit that joins spends fuel. `units` stay up to date.
void join_preambles(Units& units, PassContext& context, PreambleExtent extent, FusionReport& report);

}  // namespace difuse::passes
