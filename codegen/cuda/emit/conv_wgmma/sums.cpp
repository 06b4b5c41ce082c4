#include "codegen/cuda/emit/conv_wgmma/sums.h"

#include <vector>

#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/preparation.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda {
namespace {

int64_t strip_count(const HaloConv& c) { return ir::Strips{c.height, c.width}.count(); }

int64_t image_strip_count(const HaloConv& c) { return ir::Strips{c.image_h, c.image_w}.count(); }

int64_t terms(const HaloConv& c, bool over_images) { return strip_count(c) * (over_images ? c.batch : 1); }

}  // namespace

KernelSpec with_strip_sums(const KernelSpec& spec, const HaloConv& c, Emission& emission) {
  KernelSpec strips = spec;
  for (const HaloConv::Sum& sum : c.sums) {
    if (terms(c, sum.over_images) == 1) continue;
    strips.results[sum.output] = emission.workspace(c.batch * strip_count(c) * c.outputs * 4);
  }
  return strips;
}

void add_strip_sums(const KernelSpec& spec, const KernelSpec& strips, const HaloConv& c, Emission& emission) {
  for (const bool over_images : {false, true}) {
    std::vector<Argument> from, to;
    for (const HaloConv::Sum& sum : c.sums) {
      if (sum.over_images != over_images) continue;
      from.push_back(strips.results[sum.output]);
      to.push_back(spec.results[sum.output]);
    }
    const bool remains = terms(c, over_images) > 1;
    if (from.empty() || (!remains && !over_images)) continue;
    Preparation larger_batch(emission);
    const int64_t images = remains ? c.batch : 2;
    reduction::emit_finish(remains ? emission : larger_batch,
                           {{images, over_images}, {strip_count(c), true}, {c.outputs, false}},
                           std::vector<bool>(from.size(), false), from, to);
  }
}

Argument image_strip_sums(const HaloConv& c, const Argument& sum, Emission& emission) {
  const int64_t strips = image_strip_count(c);
  return strips == 1 ? sum : emission.workspace(c.batch * strips * c.inputs * 4);
}

void add_image_strip_sums(const HaloConv& c, const Argument& strips, const Argument& sum, Emission& emission) {
  if (image_strip_count(c) == 1) return;
  reduction::emit_finish(emission, {{c.batch, false}, {image_strip_count(c), true}, {c.inputs, false}}, {false},
                         {strips}, {sum});
}

}  // namespace difuse::codegen::cuda
