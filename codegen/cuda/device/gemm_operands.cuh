// Where a contraction's operands come from: loaders that copy one slot's piece of an operand into shared memory, and
// the cursors that say which k that piece holds.
//
// A convolution is a matrix product whose matrix of image patches is never written down: rows are the result's pixels,
// and k runs over channel chunk, filter row r, filter column s and the channel inside of the chunk, in this order.
// Chunks are `chunk` channels wide; the last, narrower one packs its taps without gaps, so that few channels waste
// little. What lies outside of the image, of the filter or of k reads as zero.
//
// Each loader knows its thread's rows before the loop: what is left for each slot is one offset for the slot (or the
// thread's column in it), and an addition and the bounds of the image for each copy.
#pragma once
#include "codegen/cuda/device/gemm_fma.cuh"

namespace gemm {

/// A place in k: filter row and column, channel. A matrix has one tap, and k is its channel.
struct Tap {
  int r, s, c;
  bool valid;
};

/// k of a matrix product, from `begin` to `end`. Slots start at multiples of a slot's depth from `begin`.
template <class index_t>
struct RangeCursor {
  index_t k, end;

  __device__ __forceinline__ RangeCursor(index_t begin, index_t end_) : k(begin), end(end_) {}
  __device__ __forceinline__ int slots(int depth) const {
    return end > k ? static_cast<int>((end - k + depth - 1) / depth) : 0;
  }
  __device__ __forceinline__ void advance(int depth) { k += depth; }
  __device__ __forceinline__ Tap at(int offset) const { return {0, 0, static_cast<int>(k) + offset, k + offset < end}; }
};

/// k of a convolution whose filter has r_count x s_count taps (of a phase; see phase_of).
template <int channels, int chunk>
struct TapCursor {
  static constexpr int rest = channels % chunk, whole = channels / chunk;
  int r_count, s_count;
  int first_channel = 0;  ///< Of the chunk.
  int k = 0;              ///< Inside the chunk: tap * its width + channel.

  __device__ __forceinline__ TapCursor(int r_count_, int s_count_) : r_count(r_count_), s_count(s_count_) {}
  __device__ __forceinline__ int slots(int depth) const {
    const int taps = r_count * s_count;
    return whole * taps * (chunk / depth) + (taps * rest + depth - 1) / depth;
  }
  __device__ __forceinline__ bool in_rest() const {
    return whole == 0 || (rest != 0 && first_channel == whole * chunk);
  }
  __device__ __forceinline__ void advance(int depth) {
    k += depth;
    if (!in_rest() && k == r_count * s_count * chunk) k = 0, first_channel += chunk;
  }
  __device__ __forceinline__ Tap at(int offset) const {
    int tap, c;
    bool valid = true;
    if (!in_rest()) {
      tap = quotient<chunk>(k);  // The slot's, since slots divide a chunk.
      c = remainder_of<chunk>(k) + offset;
    } else {
      constexpr int width = rest == 0 ? 1 : rest;
      tap = quotient<width>(k + offset);
      c = remainder_of<width>(k + offset);
      valid = tap < r_count * s_count;
    }
    const int r = static_cast<int>(static_cast<unsigned>(tap) / static_cast<unsigned>(s_count));
    return {r, tap - r * s_count, first_channel + c, valid};
  }
};

/// In a strided dgrad, every `stride`-th pixel of the image meets the same taps of the filter: those pixels are a
/// phase. Along one axis, pixel i * stride + phase meets taps first + stride * t at gradient pixel i + origin - t.
struct Phase {
  int first, count, origin;
};
__device__ __forceinline__ Phase phase_of(int phase, int taps, int stride, int pad) {
  const int first = (phase + pad) % stride;
  return {first, first < taps ? (taps - first + stride - 1) / stride : 0, (phase + pad - first) / stride};
}

/// The part of a tile that a thread copies: one column of `vec` elements in `count` rows.
template <class Tile_, int vec, int threads>
struct Share {
  static constexpr int in_row = Tile_::columns / vec, row_step = threads / in_row;
  static constexpr int count = (Tile_::rows + row_step - 1) / row_step;
  static_assert(Tile_::columns % vec == 0 && threads % in_row == 0);

  __device__ __forceinline__ static int column() { return static_cast<int>(threadIdx.x % unsigned{in_row}) * vec; }
  __device__ __forceinline__ static int row(int i) {
    return static_cast<int>(threadIdx.x / unsigned{in_row}) + i * row_step;
  }
  __device__ __forceinline__ static bool has(int i) { return Tile_::rows % row_step == 0 || row(i) < Tile_::rows; }
};

template <class index_t>
struct Place {
  index_t offset;
  bool valid;
};

/// Copies the thread's share; place(i) is the element that its row i starts at. Copies of less than 4 bytes cannot be
/// asynchronous: they go through registers, all loads before the first store.
template <class Tile_, int vec, int threads, class PlaceOf>
__device__ __forceinline__ void copy_share(unsigned char* slot, const typename Tile_::Element* from,
                                           const PlaceOf& place) {
  using T = typename Tile_::Element;
  using Mine = Share<Tile_, vec, threads>;
  constexpr int bytes = vec * static_cast<int>(sizeof(T));
  if constexpr (bytes >= 4) {
#pragma unroll
    for (int i = 0; i < Mine::count; ++i) {
      if (!Mine::has(i)) continue;
      const auto p = place(i);
      void* to = slot + Tile_::offset(Mine::row(i), Mine::column());
      const T* source = from + p.offset;  // Anywhere where it is not valid, but aligned: nothing is read.
      if constexpr (bytes == 16) copy_async_16(to, source, p.valid);
      if constexpr (bytes == 8) copy_async_8(to, source, p.valid);
      if constexpr (bytes == 4) copy_async_4(to, source, p.valid);
    }
  } else {
    static_assert(vec == 1);
    T staged[Mine::count];
#pragma unroll
    for (int i = 0; i < Mine::count; ++i) {
      staged[i] = T{};
      if (!Mine::has(i)) continue;
      const auto p = place(i);
      if (p.valid) staged[i] = from[p.offset];
    }
#pragma unroll
    for (int i = 0; i < Mine::count; ++i) {
      if (!Mine::has(i)) continue;
      *reinterpret_cast<T*>(slot + Tile_::offset(Mine::row(i), Mine::column())) = staged[i];
    }
  }
}

/// Row `row` of a product as (n, y, x) of [N, height, width]: in that order, or, where `strip` is not zero, strip after
/// strip of 8 x `strip` pixels, inside of which x runs fastest. Strips divide the image.
template <class index_t>
struct Pixel {
  index_t n;
  int y, x;
};
template <int height, int width, int strip, class index_t>
__device__ __forceinline__ Pixel<index_t> pixel_of(index_t row) {
  if constexpr (strip == 0) {
    const index_t line = quotient<width>(row);
    return {quotient<height>(line), static_cast<int>(remainder_of<height>(line)),
            static_cast<int>(remainder_of<width>(row))};
  } else {
    static_assert(width % 8 == 0 && height % strip == 0);
    constexpr int across = width / 8, down = height / strip;
    const int inside = static_cast<int>(remainder_of<8 * strip>(row));
    const index_t number = quotient<8 * strip>(row), line = quotient<across>(number);
    return {quotient<down>(line), static_cast<int>(remainder_of<down>(line)) * strip + quotient<8>(inside),
            static_cast<int>(remainder_of<across>(number)) * 8 + remainder_of<8>(inside)};
  }
}

/// How rows of a product are pixels of an image [N, height, width, channels]: row (n, i, j) of [N, rows_h, rows_w]
/// (pixel_of) reads pixel (n, i * step + y0 + sign * r, j * step + x0 + sign * s) at tap (r, s).
template <int height_, int width_, int channels_, int rows_h_, int rows_w_, int step_, int sign_, int strip_ = 0>
struct Window {
  static constexpr int height = height_, width = width_, channels = channels_, rows_h = rows_h_, rows_w = rows_w_;
  static constexpr int step = step_, sign = sign_, strip = strip_;
};

/// K-major rows gathered from an image; a matrix [rows, channels] is images of one pixel.
template <class Tile_, int vec, int threads, class W, class index_t>
class ImageRows {
 public:
  using T = typename Tile_::Element;

  /// The tile's rows are [first, first + Tile_::rows) of `rows`.
  __device__ __forceinline__ ImageRows(const T* image, index_t first, index_t rows, int y0, int x0) : image_(image) {
#pragma unroll
    for (int i = 0; i < Mine::count; ++i) {
      const index_t row = first + Mine::row(i);
      const Pixel<index_t> pixel = pixel_of<W::rows_h, W::rows_w, W::strip>(row);
      y_[i] = pixel.y * W::step + y0;
      x_[i] = pixel.x * W::step + x0;
      offset_[i] = ((pixel.n * W::height + y_[i]) * W::width + x_[i]) * W::channels;
      if (row >= rows) y_[i] = kOutside;
    }
  }

  template <class Cursor>
  __device__ __forceinline__ void load(unsigned char* slot, const Cursor& cursor) const {
    const Tap tap = cursor.at(Mine::column());
    const int r = W::sign * tap.r, s = W::sign * tap.s, shift = (r * W::width + s) * W::channels + tap.c;
    copy_share<Tile_, vec, threads>(slot, image_, [&](int i) {
      const bool inside = static_cast<unsigned>(y_[i] + r) < static_cast<unsigned>(W::height) &&
                          static_cast<unsigned>(x_[i] + s) < static_cast<unsigned>(W::width);
      return Place<index_t>{offset_[i] + shift, tap.valid && inside};
    });
  }

 private:
  using Mine = Share<Tile_, vec, threads>;
  static constexpr int kOutside = -(1 << 30);

  const T* image_;
  index_t offset_[Mine::count];
  int y_[Mine::count], x_[Mine::count];
};

/// K-major rows of a filter [rows, r, s, channels]; a matrix is a filter of one tap. `pitch`: elements of a row.
template <class Tile_, int vec, int threads, int filter_s, int channels, class index_t>
class FilterRows {
 public:
  using T = typename Tile_::Element;

  __device__ __forceinline__ FilterRows(const T* filter, int first, int rows, index_t pitch) : filter_(filter) {
#pragma unroll
    for (int i = 0; i < Mine::count; ++i) {
      const int row = first + Mine::row(i);
      offset_[i] = row < rows ? row * pitch : kNone;
    }
  }

  template <class Cursor>
  __device__ __forceinline__ void load(unsigned char* slot, const Cursor& cursor) const {
    const Tap tap = cursor.at(Mine::column());
    const int shift = (tap.r * filter_s + tap.s) * channels + tap.c;
    copy_share<Tile_, vec, threads>(slot, filter_, [&](int i) {
      return Place<index_t>{offset_[i] + shift, tap.valid && offset_[i] >= 0};
    });
  }

 private:
  using Mine = Share<Tile_, vec, threads>;

  // Aligned as every offset must be, and negative whatever the tap.
  static constexpr index_t kNone = -(1 << 30);

  const T* filter_;
  index_t offset_[Mine::count];
};

/// MN-major columns of a filter [k, r, s, columns], for dgrad: k is its outermost axis, and of its taps only every
/// `stride`-th one from (r0, s0) on takes part; with -1, all from the last one back to the first.
template <class Tile_, int vec, int threads, int filter_r, int filter_s, int columns, int stride>
class FilterColumns {
 public:
  using T = typename Tile_::Element;

  __device__ __forceinline__ FilterColumns(const T* filter, int first, int r0, int s0)
      : filter_(filter), column_(first + Mine::column()), r0_(r0), s0_(s0) {}

  template <class Cursor>
  __device__ __forceinline__ void load(unsigned char* slot, const Cursor& cursor) const {
    copy_share<Tile_, vec, threads>(slot, filter_, [&](int i) {
      const Tap tap = cursor.at(Mine::row(i));
      const int r = r0_ + stride * tap.r, s = s0_ + stride * tap.s;
      return Place<int>{((tap.c * filter_r + r) * filter_s + s) * columns + column_, tap.valid && column_ < columns};
    });
  }

 private:
  using Mine = Share<Tile_, vec, threads>;

  const T* filter_;
  int column_, r0_, s0_;
};

/// MN-major columns of a matrix [k, columns].
template <class Tile_, int vec, int threads, class index_t>
class MatrixColumns {
 public:
  using T = typename Tile_::Element;

  __device__ __forceinline__ MatrixColumns(const T* matrix, int first, index_t columns)
      : matrix_(matrix), columns_(columns), column_(first + Mine::column()) {}

  template <class Cursor>
  __device__ __forceinline__ void load(unsigned char* slot, const Cursor& cursor) const {
    copy_share<Tile_, vec, threads>(slot, matrix_, [&](int i) {
      const index_t k = cursor.k + Mine::row(i);
      return Place<index_t>{k * columns_ + column_, k < cursor.end && column_ < columns_};
    });
  }

 private:
  using Mine = Share<Tile_, vec, threads>;

  const T* matrix_;
  index_t columns_;
  int column_;
};

/// MN-major columns (r, s, channel) of the patches of an image, for wgrad: k runs over the result's pixels.
template <class Tile_, int vec, int threads, class W, int filter_r, int filter_s, class index_t>
class ImageColumns {
 public:
  using T = typename Tile_::Element;

  __device__ __forceinline__ ImageColumns(const T* image, int first, int y0, int x0) : image_(image) {
    const int column = first + Mine::column(), tap = quotient<W::channels>(column);
    valid_ = tap < filter_r * filter_s;
    y_ = quotient<filter_s>(tap) + y0;
    x_ = remainder_of<filter_s>(tap) + x0;
    shift_ = (y_ * W::width + x_) * W::channels + remainder_of<W::channels>(column);
  }

  template <class Cursor>
  __device__ __forceinline__ void load(unsigned char* slot, const Cursor& cursor) const {
    copy_share<Tile_, vec, threads>(slot, image_, [&](int i) {
      const index_t pixel = cursor.k + Mine::row(i), line = quotient<W::rows_w>(pixel);
      const int y = static_cast<int>(remainder_of<W::rows_h>(line)) * W::step;
      const int x = static_cast<int>(remainder_of<W::rows_w>(pixel)) * W::step;
      const bool inside = static_cast<unsigned>(y + y_) < static_cast<unsigned>(W::height) &&
                          static_cast<unsigned>(x + x_) < static_cast<unsigned>(W::width);
      const index_t at = ((quotient<W::rows_h>(line) * W::height + y) * W::width + x) * W::channels;
      return Place<index_t>{at + shift_, pixel < cursor.end && valid_ && inside};
    });
  }

 private:
  using Mine = Share<Tile_, vec, threads>;

  const T* image_;
  int y_, x_, shift_;
  bool valid_;
};

}  // namespace gemm
