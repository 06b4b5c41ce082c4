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
  /// statistics, where there are some. `finish(image, made, meet)`, by all threads, who may `meet()` in it, makes them;
  /// `store(image, made)` stores them for others, once for each image. `transformed(channels, raw...)`: of eight
  /// elements of the image and, where there is one, of `other` (prologue.cuh). `sums`: where to put the transformed
  /// image's sums over each strip (ir/strips.h), [image, strip, channel]; null where nobody wants them.
  template <class Other, class ChannelsAt, class Transformed, class... Finish>
  __device__ __forceinline__ void transform(const Works& works, int images, const Other& other, float* sums,
                                            const ChannelsAt& channels_at, const Transformed& transformed,
                                            const Finish&... finish) {
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
                              at.x - Problem::pad, other.from((at.image + image) * Window::image_pixels, channel),
                              [&](const auto&... raw) { return transformed(channels, raw...); });
          }
        } else {
          wait();
        }
        if constexpr (Problem::has_image_sums) {
          if (at.output == 0 && copy.number < Problem::chunks) add_strips(at, copy.number * 64, images, sums);
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
  static_assert(!Problem::has_image_sums || kLost == 0, "a tile has the image's pixels that its result's are");
  // A slot's copies all have the same transformer: it tells one from the next by parity.
  static_assert(Tile::halo_slots % L::transformers == 0);

  __device__ __forceinline__ void wait() { barrier_wait(shared_.halo_full(halo_.slot), halo_.parity); }

  /// Sums over the strips of a tile, of 64 channels from `first` on: down each of a strip's eight columns, which
  /// neighbouring lanes have, then over the columns. What is outside the image is zero.
  __device__ __forceinline__ void add_strips(const Origin& at, int first, int images, float* sums) const {
    constexpr int kRows = 16, kAcross = (Problem::width + 7) / 8;
    constexpr int kStrips = kAcross * ((Problem::height + kRows - 1) / kRows);
    constexpr int kTall = Tile::rows < kRows ? Tile::rows : kRows;
    static_assert(Tile::rows % kRows == 0 || Tile::rows >= Problem::height, "a tile is whole strips");
    const int lane = static_cast<int>(threadIdx.x % 128u), column = lane % 8, channel = lane / 8 * 4;
    named_barrier_sync(kFinish + number_, L::warpgroup);  // All is transformed.
#pragma unroll 1
    for (int strip = 0; strip < Tile::images * ((Tile::rows + kRows - 1) / kRows); ++strip) {
      constexpr int kInTile = (Tile::rows + kRows - 1) / kRows;
      const int image = strip / kInTile, top = strip % kInTile * kRows, y = at.y + top;
      int pixel = image * Window::pixels + (top + Problem::pad) * (8 + kBorder) + column + Problem::pad;
      Run<float, 4> sum = {};
#pragma unroll 4
      for (int row = 0; row < kTall; ++row, pixel += 8 + kBorder) {
        const unsigned char* const from =
            shared_.halo(halo_.slot) + pixel * 128 + ((channel / 8 ^ pixel % 8) << 4) + channel % 8 * 2;
        const auto pairs = *reinterpret_cast<const Run<unsigned, 2>*>(from);
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          sum[2 * l] += __uint_as_float(pairs[l] << 16);
          sum[2 * l + 1] += __uint_as_float(pairs[l] & 0xffff0000u);
        }
      }
#pragma unroll
      for (int l = 0; l < 4; ++l) {
#pragma unroll
        for (int step = 1; step < 8; step *= 2) sum[l] += __shfl_xor_sync(0xffffffffu, sum[l], step);
      }
      const bool is_inside = at.image + image < images && y < Problem::height && at.x < Problem::width;
      if (column != 0 || !is_inside || first + channel >= Problem::inputs) continue;
      const int place = (at.image + image) * kStrips + y / kRows * kAcross + at.x / 8;
      store_run<4>(sums + place * Problem::inputs + first + channel, sum);
    }
  }

  /// The statistics of image number `image` of a tile, which this transformer made.
  __device__ __forceinline__ float* made(int image) const {
    return reinterpret_cast<float*>(shared_.start + L::statistics_at) +
           (number_ * Tile::images + image) * Problem::statistics;
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
    for (int image = 0; image < end; ++image) {
      finish(at.image + image, made(image), [&] { named_barrier_sync(kFinish + number_, L::warpgroup); });
    }
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
