// The transformers of conv_wgmma.cuh: they make of each halo what the prologue makes of the image, in place, once its
// copy is there and before its consumer multiplies.
#pragma once
#include "codegen/cuda/device/conv_wgmma.cuh"
#include "codegen/cuda/device/prologue.cuh"

namespace conv {

/// A warpgroup that has every halo, or every second one.
template <class L>
class Transformer {
 public:
  using Problem = typename L::Problem;
  using Tile = typename L::Tile;

  __device__ __forceinline__ explicit Transformer(unsigned char* shared)
      : shared_{shared}, number_(static_cast<int>(threadIdx.x) / L::warpgroup - L::consumers) {
    halo_.advance(number_);
  }

  /// `channels_at(image, channel, made)`: what eight channels from `channel` on have in common in an image, `made` its
  /// statistics, where there are some. `finish(image, made)`, by all threads, makes them; `store(image, made)` stores
  /// them for others, once for each image. `transformed(channels, raw)`: of eight elements.
  template <class ChannelsAt, class Transformed, class... Finish>
  __device__ __forceinline__ void transform(const Works& works, int images, const ChannelsAt& channels_at,
                                            const Transformed& transformed, const Finish&... finish) {
    // Copies of a set of tiles may be an odd number.
    int i = number_;
#pragma unroll 1
    for (int work = works.begin; work < works.end; work += works.step) {
#pragma unroll 1
      for (; i < kCopies; i += L::transformers) {
        const Copy copy = copy_of<L>(i);
        const Origin at = origin_of<L>(work, copy.consumer);
        const int channel = copy.number * 64 + Window::channel();
        if constexpr (Problem::has_finish) {
          if (copy.number < Problem::chunks) prepare(at, copy.number, images, finish...);
        }
        if (copy.number < Problem::chunks && channel < Problem::inputs) {
#pragma unroll 1
          for (int image = 0; image < Tile::images; ++image) {
            const auto channels = channels_at(min(at.image + image, images - 1), channel, made(image));
            if (image == 0) wait();
            if (at.image + image >= images) break;
            Window::transform(shared_.halo(halo_.slot), image * Window::pixels, at.y - Problem::pad,
                              at.x - Problem::pad, [&](const auto& raw) { return transformed(channels, raw); });
          }
        } else {
          wait();
        }
        fence_shared_for_engines();
        __syncwarp();
        if (threadIdx.x % 32u == 0) barrier_arrive(shared_.halo_ready(halo_.slot));
        halo_.advance(L::transformers);
      }
      i -= kCopies;
    }
  }

 private:
  static constexpr int kCopies = L::halos * L::copies;
  static constexpr int kBorder = Problem::filter - 1, kLost = kBorder - 2 * Problem::pad;  ///< By the result.
  using Window = prologue::Window<Tile::rows + kBorder, 8 + kBorder, Problem::height + kLost, Problem::width + kLost>;
  static_assert(!L::is_line);
  // A slot's copies all have the same transformer: it tells one from the next by parity.
  static_assert(Tile::halo_slots % L::transformers == 0);

  __device__ __forceinline__ void wait() { barrier_wait(shared_.halo_full(halo_.slot), halo_.parity); }

  /// The statistics of image number `image` of a tile, which this transformer made.
  __device__ __forceinline__ float* made(int image) const {
    return reinterpret_cast<float*>(shared_.start + L::statistics_at) +
           (number_ * Tile::images + image) * L::statistics;
  }
  /// Those of the tile's images, where they are not there yet. The tile at an image's corner sees to what others read.
  template <class Finish, class Store>
  __device__ __forceinline__ void prepare(const Origin& at, int chunk, int images, const Finish& finish,
                                          const Store& store) {
    const bool is_corner = at.output == 0 && at.y == 0 && at.x == 0 && chunk == 0;
    if (at.image == finished_ && !is_corner) return;
    finished_ = at.image;
    const int end = min(Tile::images, images - at.image);
    named_barrier_sync(kFinish + number_, L::warpgroup);  // The last ones have been read.
#pragma unroll 1
    for (int image = 0; image < end; ++image) finish(at.image + image, made(image));
    named_barrier_sync(kFinish + number_, L::warpgroup);
    if (!is_corner) return;
#pragma unroll 1
    for (int image = 0; image < end; ++image) store(at.image + image, made(image));
  }

  static constexpr int kFinish = 1 + 2 * L::consumers;  ///< After the consumers' named barriers.
  const Shared<L> shared_;
  const int number_;
  int finished_ = -1;  ///< The first image that has its statistics.
  RingPlace<Tile::halo_slots> halo_;
};

}  // namespace conv
