// Says which kernels read a filter turned: those that have no other way. And which make its gradient turned: those for
// which that is less to read.
//
// Before: gradients of images as canonicalize leaves them, conv_fprop(dy, repack(w, flipped)). After: on Hopper
// conv_dgrad(dy, w), where its engines compute that: bf16, stride 1, filters of 1 x 1 and 3 x 3, channel counts that
// are multiples of 8. They read a filter along its input or its output channels alike, so nothing need be turned. And
// gradients of filters with fewer than 8 output channels, and more input channels, in bf16: conv_wgrad(x, dy), whose
// kernel reads x once for every tap. After: repack(conv_wgrad(dy, x), flipped), whose kernel reads dy, the small one,
// so often; what is turned is one filter. On other devices: no change.
//
// Legal always: both sides are the same sums. For the images' gradients the kernels run through them in the same order,
// so no bit changes; for the filters' in another one. No cast is added, moved or removed. After precision, because the
// dtype decides; before fusion, because the filter's producer is another node then.
// Fuel: one for each convolution.
#pragma once

#include "passes/pass.h"

namespace difuse::passes {

PassResult set_filter_layout(const ir::Graph& graph, PassContext& context);

}  // namespace difuse::passes
