// A group's mean and reciprocal standard deviation from its channels' moments per strip, by Chan, Golub and LeVeque's
// formula ("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979) for all parts at once:
// first the mean of the means, weighted by the parts' pixels, then the sum of each part's M2 and of its pixels times its
// mean's squared distance from the group's. A group has as many lanes as it has parts, 32 at most: each takes every
// 32nd part in index order, then the lanes combine in a fixed tree. A group's threads, neighbours in a warp, may be
// fewer than its lanes: a thread then has every so manieth lane, and the tree's first levels are its own additions. So
// no number of threads changes a bit.
#pragma once
#include "codegen/cuda/device/ptx.cuh"
#include "codegen/cuda/device/reduce.cuh"

namespace group_finish {

struct Statistics {
  float mean, rstd;
};

/// `channels` of a height x width image. Part i is channel i % channels of strip i / channels.
template <int height, int width, int channels_>
struct Group {
  static constexpr int channels = channels_, across = (width + 7) / 8, strips = (height + 15) / 16 * across;
  static constexpr int parts = strips * channels;
  static constexpr int lanes = parts > 16 ? 32 : parts > 8 ? 16 : parts > 4 ? 8 : parts > 2 ? 4 : parts;
  static constexpr int steps = (parts + lanes - 1) / lanes;  ///< Parts of a lane.
  /// A thread holds so many parts in registers, two numbers each, all of them loaded at once. More are loaded twice.
  static constexpr int most_held = 24;
  static constexpr float count = static_cast<float>(height) * width * channels;

  static constexpr int held(int sharers) { return lanes / sharers * steps; }
  /// Threads for each of so many groups: those that are done in the fewest rounds, and then have the least to hold.
  static constexpr int sharers(int groups, int threads) {
    int best = lanes;
    for (int own = lanes / 2; own > 0 && held(own) <= most_held; own /= 2) {
      if (rounds(groups, threads, own) < rounds(groups, threads, best)) best = own;
    }
    return best;
  }

  /// Of a strip of 8 x 16, clipped at the image's edge.
  __device__ __forceinline__ static float pixels(int strip) {
    if constexpr (height % 16 == 0 && width % 8 == 0) return 128.0f;
    const int top = strip / across * 16, left = strip % across * 8;
    return static_cast<float>(reduce::lesser(height - top, 16) * reduce::lesser(width - left, 8));
  }

 private:
  static constexpr int rounds(int groups, int threads, int sharers) {
    return (groups + threads / sharers - 1) / (threads / sharers);
  }
};

/// For every lane of the warp, `sharers` (a power of two) neighbours to a group, of which this is number `thread`.
/// mean_of and m2_of give the moments of (strip, channel of the group).
template <class Group, int sharers, class MeanOf, class M2Of>
__device__ __forceinline__ Statistics finish(unsigned thread, float eps, const MeanOf& mean_of, const M2Of& m2_of) {
  constexpr int own = Group::lanes / sharers, steps = Group::steps;
  constexpr bool holds = Group::held(sharers) <= Group::most_held;
  constexpr int unrolled = holds ? steps : 4;
  const auto part = [&](int step, int l) { return thread + static_cast<unsigned>(l * sharers + step * Group::lanes); };
  const auto exists = [&](int step, int l) {
    return (step + 1) * Group::lanes <= Group::parts || part(step, l) < static_cast<unsigned>(Group::parts);
  };
  const auto strip_of = [&](unsigned i) { return static_cast<int>(i / static_cast<unsigned>(Group::channels)); };
  const auto channel_of = [&](unsigned i) { return static_cast<int>(i % static_cast<unsigned>(Group::channels)); };

  float means[holds ? steps * own : 1], m2s[holds ? steps * own : 1];
  if constexpr (holds) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int l = 0; l < own; ++l) {
        if (!exists(step, l)) continue;
        const unsigned i = part(step, l);
        means[step * own + l] = mean_of(strip_of(i), channel_of(i));
        m2s[step * own + l] = m2_of(strip_of(i), channel_of(i));
      }
    }
  }
  // Of all lanes, what add(sum, mean, M2, pixels) makes of their parts.
  const auto combined = [&](const auto& add) {
    Run<float, own> sums = reduce::start_run<reduce::Sum, own>();
#pragma unroll unrolled
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int l = 0; l < own; ++l) {
        if (!exists(step, l)) continue;
        const unsigned i = part(step, l);
        const int strip = strip_of(i), at = step * own + l;
        if constexpr (holds) {
          add(sums[l], means[at], m2s[at], Group::pixels(strip));
        } else {
          add(sums[l], mean_of(strip, channel_of(i)), m2_of(strip, channel_of(i)), Group::pixels(strip));
        }
      }
    }
    return reduce::combine_neighbours<reduce::Sum, sharers>(reduce::combine_lanes<reduce::Sum, own>(sums));
  };
  const float sum = combined([](float& to, float mean, float, float pixels) { to += pixels * mean; });
  const float mean = sum / Group::count;
  const float m2 = combined([&](float& to, float part_mean, float part_m2, float pixels) {
    const float away = part_mean - mean;
    to += part_m2 + pixels * (away * away);
  });
  return {mean, 1.0f / ::sqrtf(m2 / Group::count + eps)};
}

/// Of one group, whose channels begin with `first`, by `sharers` neighbours of a warp, of which this is number `thread`:
/// mean_of and m2_of are of (strip, channel), store(channel, statistics) is called for each of the group's where it is
/// `inside`. Every lane of the warp calls it.
template <class Group, int sharers, class MeanOf, class M2Of, class Store>
__device__ __forceinline__ void finish_group(unsigned thread, int first, bool inside, float eps, const MeanOf& mean_of,
                                             const M2Of& m2_of, const Store& store) {
  const Statistics statistics = finish<Group, sharers>(
      thread, eps, [&](int strip, int c) { return mean_of(strip, first + c); },
      [&](int strip, int c) { return m2_of(strip, first + c); });
  if (!inside) return;
#pragma unroll 1
  for (int c = static_cast<int>(thread); c < Group::channels; c += sharers) store(first + c, statistics);
}

/// Of all groups of an image, by `threads`, whole warps, of which this is number `thread`.
template <class Group, int groups, int threads, class MeanOf, class M2Of, class Store>
__device__ __forceinline__ void finish_image(int thread, float eps, const MeanOf& mean_of, const M2Of& m2_of,
                                             const Store& store) {
  constexpr int sharers = Group::sharers(groups, threads), at_once = threads / sharers;
#pragma unroll 1
  for (int begin = 0; begin < groups; begin += at_once) {
    // Where the parts lie is not kept in registers from image to image.
    const unsigned place = computed_here(static_cast<unsigned>(thread));
    const int own = begin + static_cast<int>(place / sharers);
    const bool inside = groups % at_once == 0 || own < groups;
    const int first = (inside ? own : groups - 1) * Group::channels;
    finish_group<Group, sharers>(place % sharers, first, inside, eps, mean_of, m2_of, store);
  }
}

}  // namespace group_finish
