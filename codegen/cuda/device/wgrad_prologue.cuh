// The transformer of wgrad_wgmma.cuh: it makes of each tile of x, or of dy, or of both, what their prologues make of the
// images, in place, once the copies are there and before the consumers multiply.
//
// Three consumers and it have 128 registers a thread between them, all that there are: the producer is no warp besides,
// but one of its threads, which begins copies some tiles ahead of what all of them transform.
#pragma once
#include "codegen/cuda/device/prologue.cuh"
#include "codegen/cuda/device/wgrad_wgmma.cuh"

namespace wgrad {

/// What a prologue makes of x or of dy. `channels_at(image, channel, null)`: what eight channels from `channel` on have
/// in common in an image. `transformed(channels, raw...)`: of eight elements of the image and, where there is one, of
/// `other` (prologue.cuh).
template <class Other, class ChannelsAt, class Transformed>
struct Side {
  static constexpr bool exists = true;
  Other other;
  const ChannelsAt& channels_at;
  const Transformed& transformed;
};
template <class Other, class ChannelsAt, class Transformed>
__device__ __forceinline__ Side<Other, ChannelsAt, Transformed> side(const Other& other, const ChannelsAt& channels_at,
                                                                     const Transformed& transformed) {
  return {other, channels_at, transformed};
}
/// It is multiplied as it is.
struct NoSide {
  static constexpr bool exists = false;
};

/// A warpgroup. `image_pixels`: of an image of x, which is all that a line has.
template <class L, int image_pixels>
class Transformer {
 public:
  using Problem = typename L::Problem;
  using Tile = typename L::Tile;

  /// As Producer.
  template <class... Maps>
  __device__ __forceinline__ explicit Transformer(unsigned char* start, const Maps&... maps)
      : shared_{start}, producer_(start, maps...) {}

  /// Of `images` images.
  template <class X, class Dy>
  __device__ __forceinline__ void transform(const Units& units, int images, const X& x, const Dy& dy) {
    const Origin origin = origin_of<L>(units.block);
    load(units, 0, kAhead);
#pragma unroll 1
    for (int i = 0; i < units.count; ++i) {
      load(units, i + kAhead, 1);
      const int tile = units.tile + i;
      bool has_waited = false;  // For what comes after an image's parameters are on their way.
      if constexpr (X::exists) {
        transform<XWindow, Tile::column_chunks, Problem::inputs>(x, shared_.x(place_.slot), L::halo_bytes, tile, images,
                                                                 origin.input, -Problem::pad, origin.tap_row,
                                                                 has_waited);
      }
      if constexpr (Dy::exists) {
        transform<DyWindow, Tile::row_chunks, Problem::outputs>(dy, shared_.dy(place_.slot), L::chunk_bytes, tile,
                                                                images, origin.output, 0, 0, has_waited);
      }
      if (!has_waited) wait();
      fence_shared_for_engines();
      __syncwarp();
      if (threadIdx.x % 32u == 0) barrier_arrive(shared_.ready(place_.slot));
      place_.advance();
    }
  }

 private:
  /// Half of the ring is what consumers have yet to multiply, one tile is what is transformed, and the rest are copies
  /// on their way. A consumer gives a tile back when it has begun with the next one: that half is one tile at least.
  static constexpr int kBehind = Tile::slots / 2, kAhead = Tile::slots - 1 - kBehind;
  static constexpr int kBorder = Problem::filter - 1;
  static constexpr int kHeight = Problem::height + kBorder - 2 * Problem::pad;  ///< Of x.
  static constexpr int kWidth = Problem::width + kBorder - 2 * Problem::pad;
  using XWindow = prologue::Window<Tile::rows + Tile::tap_rows - 1, 8 + kBorder, kHeight, kWidth>;
  using DyWindow = prologue::Window<Tile::rows, 8, Problem::height, Problem::width>;
  static_assert(Problem::has_prologue && kBehind >= 1 && kAhead >= 1);

  /// The copies of so many tiles from number `first` on, as far as there are any.
  __device__ __forceinline__ void load(const Units& units, int first, int count) {
    const int rest = units.count - first;
    if (threadIdx.x == L::owners) producer_.load({units.block, units.tile + first, rest < count ? rest : count});
    __syncwarp();
  }
  __device__ __forceinline__ void wait() const { barrier_wait(shared_.full(place_.slot), place_.parity); }

  /// Of so many chunks of 64 `channels`, from `first_channel` on, which lie `chunk_bytes` apart. A window's first pixel
  /// is `border` away from the tile's, and `tap_row` below that.
  template <class Window, int chunks, int channels, class S>
  __device__ __forceinline__ void transform(const S& side, unsigned char* start, int chunk_bytes, int tile, int images,
                                            int first_channel, int border, int tap_row, bool& has_waited) const {
    const auto wait_once = [&] {
      if (!has_waited) wait();
      has_waited = true;
    };
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int channel = first_channel + chunk * 64 + prologue::Threads::channel();
      if (channel >= channels) break;
      unsigned char* const at = start + chunk * chunk_bytes;
      if constexpr (L::is_line) {
        const int begin = tile * L::pixels, last = min(begin + L::pixels, images * image_pixels) - 1;
#pragma unroll 1
        for (int image = quotient<image_pixels>(begin); image <= quotient<image_pixels>(last); ++image) {
          const int first = image * image_pixels - begin, end = min(first + image_pixels, last + 1 - begin);
          const auto of_image = side.channels_at(image, channel, nullptr);
          wait_once();
          prologue::Stretch::transform(at, max(first, 0), end, side.other.from(begin, channel),
                                       [&](const auto&... raw) { return side.transformed(of_image, raw...); });
        }
      } else {
        constexpr int kPixels = Window::image_pixels;
        const int line = quotient<L::tiles_x>(tile), first = quotient<L::tiles_y>(line) * Tile::images;
        const int x = remainder_of<L::tiles_x>(tile) * 8 + border;
        const int y = remainder_of<L::tiles_y>(line) * Tile::rows + border + tap_row;
#pragma unroll 1
        for (int i = 0; i < Tile::images && first + i < images; ++i) {
          const auto of_image = side.channels_at(first + i, channel, nullptr);
          wait_once();
          Window::transform(at, i * Window::pixels, y, x, side.other.from((first + i) * kPixels, channel),
                            [&](const auto&... raw) { return side.transformed(of_image, raw...); });
        }
      }
    }
  }

  const Shared<L> shared_;
  Producer<L> producer_;
  RingPlace<Tile::slots> place_;
};

}  // namespace wgrad
