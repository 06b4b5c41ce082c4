// Convolutions on Hopper's copy engine and warpgroup products (device/conv_wgmma.cuh), with what is computed from their
// value: a bias, a time embedding, a residual, an image's statistics and sums over its pixels.
#include <algorithm>
#include <numeric>

#include "codegen/cuda/emit/conv_wgmma/finish.h"
#include "codegen/cuda/emit/conv_wgmma/problem.h"
#include "codegen/cuda/emit/conv_wgmma/source.h"
#include "codegen/cuda/emit/conv_wgmma/sums.h"
#include "codegen/cuda/emit/conv_wgmma/tiles.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/problem_text.h"

namespace difuse::codegen::cuda {

bool accepts_conv_wgmma(const KernelSpec& spec) {
  const FinishedSpec finished(spec);
  const auto conv = finished.conv();
  return conv && !candidates(*conv, spec.device).empty();
}

std::vector<TileChoice> conv_wgmma_choices(const KernelSpec& spec) {
  const FinishedSpec finished(spec);
  const HaloConv conv = *finished.conv();
  const std::vector<HaloTile> tiles = candidates(conv, spec.device);
  TileChoice choice;
  choice.problem = problem_text(spec, geometry(conv)), choice.batch = conv.batch;
  for (const HaloTile& tile : tiles) choice.tiles.push_back(to_string(tile));
  choice.at_batch.resize(tiles.size());
  std::iota(choice.at_batch.begin(), choice.at_batch.end(), size_t{0});
  std::ranges::stable_sort(choice.at_batch, {},
                           [&](size_t i) { return estimated_cycles(conv, tiles[i], spec.device, conv.batch); });
  return {choice};
}

void emit_conv_wgmma(const KernelSpec& given, Emission& emission) {
  const FinishedSpec finished(given);
  const KernelSpec& spec = finished.spec();
  const HaloConv conv = *finished.conv();
  const KernelSpec strips = with_strip_sums(spec, conv, emission);
  const auto& image_sum = finished.image_sum();
  std::optional<Argument> image_sums;
  if (image_sum) image_sums = image_strip_sums(conv, *image_sum, emission);
  KernelDraft draft = halo_conv_kernel(strips, conv, candidates(conv, spec.device).at(spec.tile(0)), image_sums);
  draft.choice = 0;
  emission.launch(std::move(draft));
  add_strip_sums(spec, strips, conv, emission);
  if (image_sum) add_image_strip_sums(conv, *image_sums, *image_sum, emission);
}

}  // namespace difuse::codegen::cuda
