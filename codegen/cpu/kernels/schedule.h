// Orders a body's items: which run image by image, in which phase, and which share one pass over their elements.
//
// Items on whole values (even levels) and items by image (odd levels) alternate: what runs by image may read whole
// values made before, and what sums over images is complete after the level. Within a level, block items over the same
// number of elements whose operands are ready form one group, a single loop; a value that a later group reads goes
// through memory.
#pragma once

#include <vector>

#include "codegen/cpu/kernels/body.h"

namespace difuse::codegen::cpu {

struct Group {
  int level = 0, step = 0;
  bool by_image = false;
  bool is_call = false;
  int64_t elements = 0;    ///< Of the block loop: of one image, or of the whole.
  std::vector<int> items;  ///< In order.
};

struct Schedule {
  int64_t images = 0;         ///< Of the levels by image.
  std::vector<Group> groups;  ///< In the order in which they run.
};

/// Sets the items' schedule fields too.
Schedule make_schedule(Body& body);

/// Whether item reads operand k image by image (its i-th part for image i), rather than the whole.
bool reads_by_image(const Item& item, size_t k, int64_t images);
/// Whether what `item` makes is complete only after all images: a sum over them.
bool sums_over_images(const Item& item, int64_t images);
/// Elements that a block item passes over: of one image, or of the whole.
int64_t loop_elements(const Item& item, const Body& body, int64_t images);

}  // namespace difuse::codegen::cpu
