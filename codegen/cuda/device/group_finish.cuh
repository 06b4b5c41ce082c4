// A group's mean and reciprocal standard deviation from its channels' moments per strip, by Chan, Golub and LeVeque's
// formula ("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979) for all parts at once:
// first the mean of the means, weighted by the parts' pixels, then the sum of each part's M2 and of its pixels times its
// mean's squared distance from the group's. A group has as many neighbouring lanes of a warp as it has parts, 32 at
// most: each takes every 32nd part in index order, then the lanes combine in a fixed tree.
#pragma once
#include "codegen/cuda/device/reduce.cuh"

namespace group_finish {

/// Pixels of a strip of 8 x 16 pixels, clipped at the edge of a height x width image.
template <int height, int width>
__device__ __forceinline__ float strip_pixels(int strip) {
  constexpr int across = (width + 7) / 8;
  const int top = strip / across * 16, left = strip % across * 8;
  return static_cast<float>(reduce::lesser(height - top, 16) * reduce::lesser(width - left, 8));
}

struct Statistics {
  float mean, rstd;
};

/// For every lane of the warp, `sharers` (a power of two) to a group. mean_of and m2_of give the moments of (strip,
/// channel of the group).
template <int height, int width, int channels, int sharers, class MeanOf, class M2Of>
__device__ __forceinline__ Statistics finish(float eps, const MeanOf& mean_of, const M2Of& m2_of) {
  constexpr int strips = ((height + 15) / 16) * ((width + 7) / 8), parts = strips * channels;
  constexpr float count = static_cast<float>(height) * width * channels;
  const int lane = static_cast<int>(threadIdx.x) % sharers;
  float sum = 0.0f;
#pragma unroll 4
  for (int i = lane; i < parts; i += sharers) {
    sum += strip_pixels<height, width>(i / channels) * mean_of(i / channels, i % channels);
  }
  const float mean = reduce::combine_neighbours<reduce::Sum, sharers>(sum) / count;
  float m2 = 0.0f;
#pragma unroll 4
  for (int i = lane; i < parts; i += sharers) {
    const int strip = i / channels, channel = i % channels;
    const float away = mean_of(strip, channel) - mean;
    m2 += m2_of(strip, channel) + strip_pixels<height, width>(strip) * (away * away);
  }
  m2 = reduce::combine_neighbours<reduce::Sum, sharers>(m2);
  return {mean, 1.0f / ::sqrtf(m2 / count + eps)};
}

}  // namespace group_finish
