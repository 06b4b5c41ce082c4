#include "codegen/cpu/plain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace difuse::codegen {
namespace {

constexpr int kRows = 6;      // Rows of a tile: six of sixteen fill AVX2's registers.
constexpr int kColumns = 16;  // Columns of a tile and of a panel.

/// acc[i][j] += sum over d of rows[i][d * step] * panel[d * 16 + j], d in order.
struct TileProduct {
  using Columns = float __attribute__((vector_size(sizeof(float) * kColumns)));

  DIFUSE_ALWAYS_INLINE static void run(const float* const* rows, int64_t step, const float* panel, int64_t depth,
                                       float* acc) {
    const float* const a0 = rows[0];
    const float* const a1 = rows[1];
    const float* const a2 = rows[2];
    const float* const a3 = rows[3];
    const float* const a4 = rows[4];
    const float* const a5 = rows[5];
    Columns c0, c1, c2, c3, c4, c5;
    std::memcpy(&c0, acc, sizeof(Columns));
    std::memcpy(&c1, acc + kColumns, sizeof(Columns));
    std::memcpy(&c2, acc + 2 * kColumns, sizeof(Columns));
    std::memcpy(&c3, acc + 3 * kColumns, sizeof(Columns));
    std::memcpy(&c4, acc + 4 * kColumns, sizeof(Columns));
    std::memcpy(&c5, acc + 5 * kColumns, sizeof(Columns));
    for (int64_t d = 0; d < depth; ++d) {
      Columns b;
      std::memcpy(&b, panel + d * kColumns, sizeof(Columns));
      const int64_t i = d * step;
      c0 += a0[i] * b;
      c1 += a1[i] * b;
      c2 += a2[i] * b;
      c3 += a3[i] * b;
      c4 += a4[i] * b;
      c5 += a5[i] * b;
    }
    std::memcpy(acc, &c0, sizeof(Columns));
    std::memcpy(acc + kColumns, &c1, sizeof(Columns));
    std::memcpy(acc + 2 * kColumns, &c2, sizeof(Columns));
    std::memcpy(acc + 3 * kColumns, &c3, sizeof(Columns));
    std::memcpy(acc + 4 * kColumns, &c4, sizeof(Columns));
    std::memcpy(acc + 5 * kColumns, &c5, sizeof(Columns));
  }
};
using TileProductFunction = decltype(&TileProduct::run);

struct Tile {
  std::array<const float*, kRows> rows;
  alignas(64) std::array<float, kRows * kColumns> acc;
};

int64_t panels(int64_t columns) { return (columns + kColumns - 1) / kColumns; }
size_t float_bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

/// Stores `count` rows of a tile, `width` floats each.
void store(const Tile& tile, int64_t count, int64_t width, float* out, int64_t row_distance) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(out + i * row_distance, tile.acc.data() + i * kColumns, float_bytes(width));
  }
}

/// What the forward and the data-gradient convolution share: a result pixel is a sum over filter taps of a source pixel
/// times a [source channels, 16] panel of the weights. A source pixel outside the image is a row of zeros.
class PlainDirectConv : public Conv {
 public:
  PlainDirectConv(ConvKind kind, const ConvProblem& problem, TileProductFunction product)
      : p_(problem), forward_(kind == ConvKind::fprop), product_(product) {
    source_ = {p_.h, p_.w, p_.c};
    result_ = {p_.out_h(), p_.out_w(), p_.k};
    if (!forward_) std::swap(source_, result_);
  }

  size_t weights_bytes() const override { return float_bytes(panels(result_.c) * p_.r * p_.s * source_.c * kColumns); }
  size_t scratch_bytes() const override { return float_bytes(source_.c); }
  std::string impl_info() const override { return "plain"; }

  void pack(const float* krsc, float* packed, std::byte*) const override {
    std::memset(packed, 0, weights_bytes());
    each_weight([&](int64_t at, int64_t at_packed) { packed[at_packed] = krsc[at]; });
  }
  void unpack(const float* packed, float* krsc, std::byte*) const override {
    each_weight([&](int64_t at, int64_t at_packed) { krsc[at] = packed[at_packed]; });
  }

  void run(const float* source, const float* packed, float* result, std::byte* scratch) const override {
    float* zeros = reinterpret_cast<float*>(scratch);
    std::memset(zeros, 0, scratch_bytes());
    for (int64_t image = 0; image < p_.n; ++image) {
      const float* from = source + image * source_.count();
      float* to = result + image * result_.count();
      for (int64_t panel = 0; panel < panels(result_.c); ++panel) {
        for (int64_t y = 0; y < result_.h; ++y) run_row(from, packed, to, zeros, panel, y);
      }
    }
  }

 private:
  struct Image {
    int64_t h, w, c;
    int64_t count() const { return h * w * c; }
  };

  template <class Visit>
  void each_weight(const Visit& visit) const {
    for (int64_t k = 0, at = 0; k < p_.k; ++k) {
      for (int64_t tap = 0; tap < int64_t{p_.r} * p_.s; ++tap) {
        for (int64_t c = 0; c < p_.c; ++c, ++at) {
          const int64_t depth = forward_ ? c : k;
          const int64_t column = forward_ ? k : c;
          const int64_t row = (column / kColumns * p_.r * p_.s + tap) * source_.c + depth;
          visit(at, row * kColumns + column % kColumns);
        }
      }
    }
  }

  /// The source coordinate that filter tap `tap` brings to a result coordinate, -1 where there is none.
  int64_t source_of(int64_t coordinate, int64_t tap, int64_t extent) const {
    int64_t at = coordinate * p_.stride - p_.pad + tap;
    if (!forward_) {
      at = coordinate + p_.pad - tap;
      if (at < 0 || at % p_.stride != 0) return -1;
      at /= p_.stride;
    }
    return at >= 0 && at < extent ? at : -1;
  }

  /// One row of the result for one panel of its channels. A data gradient takes every stride-th pixel into a tile:
  /// these see the same taps, and a tap that none of them sees costs nothing.
  void run_row(const float* from, const float* packed, float* to, const float* zeros, int64_t panel, int64_t y) const {
    const int64_t step = forward_ ? 1 : p_.stride;
    const int64_t width = std::min<int64_t>(kColumns, result_.c - panel * kColumns);
    Tile tile;
    for (int64_t phase = 0; phase < step; ++phase) {
      for (int64_t x = phase; x < result_.w; x += kRows * step) {
        tile.acc.fill(0.0f);
        for (int64_t r = 0; r < p_.r; ++r) {
          const int64_t source_y = source_of(y, r, source_.h);
          if (source_y < 0) continue;
          for (int64_t s = 0; s < p_.s; ++s) {
            bool any = false;
            for (int64_t i = 0; i < kRows; ++i) {
              const int64_t result_x = x + i * step;
              const int64_t source_x = result_x < result_.w ? source_of(result_x, s, source_.w) : -1;
              any |= source_x >= 0;
              tile.rows[i] = source_x < 0 ? zeros : from + (source_y * source_.w + source_x) * source_.c;
            }
            const int64_t at = ((panel * p_.r + r) * p_.s + s) * source_.c * kColumns;
            if (any) product_(tile.rows.data(), 1, packed + at, source_.c, tile.acc.data());
          }
        }
        const int64_t count = std::min<int64_t>(kRows, (result_.w - x + step - 1) / step);
        store(tile, count, width, to + (y * result_.w + x) * result_.c + panel * kColumns, step * result_.c);
      }
    }
  }

  ConvProblem p_;
  bool forward_;
  TileProductFunction product_;
  Image source_, result_;
};

/// The weight gradient: per filter tap a product of y's gradient, transposed, and the pixels that the tap reads, which
/// are gathered into a [pixels, 16] panel. "Packed" is KRSC itself.
class PlainWeightGradient : public Conv {
 public:
  PlainWeightGradient(const ConvProblem& problem, TileProductFunction product) : p_(problem), product_(product) {}

  size_t weights_bytes() const override { return float_bytes(p_.weight_count()); }
  size_t scratch_bytes() const override { return float_bytes(int64_t{p_.out_h()} * p_.out_w() * kColumns); }
  std::string impl_info() const override { return "plain"; }

  void pack(const float* krsc, float* packed, std::byte*) const override { std::memcpy(packed, krsc, weights_bytes()); }
  void unpack(const float* packed, float* krsc, std::byte*) const override {
    std::memcpy(krsc, packed, weights_bytes());
  }

  void run(const float* x, const float* dy, float* dw, std::byte* scratch) const override {
    std::memset(dw, 0, weights_bytes());
    float* gathered = reinterpret_cast<float*>(scratch);
    const int64_t pixels = int64_t{p_.out_h()} * p_.out_w();
    for (int64_t image = 0; image < p_.n; ++image) {
      for (int64_t panel = 0; panel < panels(p_.c); ++panel) {
        for (int64_t tap = 0; tap < int64_t{p_.r} * p_.s; ++tap) {
          gather(x + image * p_.h * p_.w * p_.c, panel, tap, gathered);
          add_tap(dy + image * pixels * p_.k, gathered, pixels, panel, tap, dw);
        }
      }
    }
  }

 private:
  void gather(const float* x, int64_t panel, int64_t tap, float* gathered) const {
    const int64_t width = std::min<int64_t>(kColumns, p_.c - panel * kColumns);
    for (int64_t y = 0; y < p_.out_h(); ++y) {
      const int64_t source_y = y * p_.stride - p_.pad + tap / p_.s;
      for (int64_t z = 0; z < p_.out_w(); ++z, gathered += kColumns) {
        const int64_t source_x = z * p_.stride - p_.pad + tap % p_.s;
        const bool inside = source_y >= 0 && source_y < p_.h && source_x >= 0 && source_x < p_.w;
        const int64_t filled = inside ? width : 0;
        const int64_t at = (source_y * p_.w + source_x) * p_.c + panel * kColumns;
        for (int64_t j = 0; j < filled; ++j) gathered[j] = x[at + j];
        for (int64_t j = filled; j < kColumns; ++j) gathered[j] = 0.0f;
      }
    }
  }

  void add_tap(const float* dy, const float* gathered, int64_t pixels, int64_t panel, int64_t tap, float* dw) const {
    const int64_t width = std::min<int64_t>(kColumns, p_.c - panel * kColumns);
    Tile tile;
    for (int64_t k = 0; k < p_.k; k += kRows) {
      tile.acc.fill(0.0f);
      for (int64_t i = 0; i < kRows; ++i) tile.rows[i] = dy + std::min<int64_t>(k + i, p_.k - 1);
      product_(tile.rows.data(), p_.k, gathered, pixels, tile.acc.data());
      for (int64_t i = 0; i < std::min<int64_t>(kRows, p_.k - k); ++i) {
        float* to = dw + ((k + i) * p_.r * p_.s + tap) * p_.c + panel * kColumns;
        for (int64_t j = 0; j < width; ++j) to[j] += tile.acc[i * kColumns + j];
      }
    }
  }

  ConvProblem p_;
  TileProductFunction product_;
};

class PlainMatmul : public Matmul {
 public:
  PlainMatmul(const MatmulProblem& problem, TileProductFunction product) : p_(problem), product_(product) {}

  size_t scratch_bytes() const override { return float_bytes(p_.k * kColumns); }
  std::string impl_info() const override { return "plain"; }

  void run(const float* a, const float* b, float* c, std::byte* scratch) const override {
    float* packed = reinterpret_cast<float*>(scratch);
    Tile tile;
    for (int64_t n = 0; n < p_.n; n += kColumns) {
      const int64_t width = std::min<int64_t>(kColumns, p_.n - n);
      pack_panel(b, n, width, packed);
      for (int64_t m = 0; m < p_.m; m += kRows) {
        tile.acc.fill(0.0f);
        for (int64_t i = 0; i < kRows; ++i) {
          tile.rows[i] = a + std::min(m + i, p_.m - 1) * (p_.transpose_a ? 1 : p_.lda);
        }
        product_(tile.rows.data(), p_.transpose_a ? p_.lda : 1, packed, p_.k, tile.acc.data());
        for (int64_t i = 0; i < std::min<int64_t>(kRows, p_.m - m); ++i) {
          float* to = c + (m + i) * p_.ldc + n;
          for (int64_t j = 0; j < width; ++j) {
            const float product = p_.alpha * tile.acc[i * kColumns + j];
            to[j] = p_.accumulate ? to[j] + product : product;
          }
        }
      }
    }
  }

 private:
  void pack_panel(const float* b, int64_t n, int64_t width, float* packed) const {
    const int64_t depth_step = p_.transpose_b ? 1 : p_.ldb;
    const int64_t column_step = p_.transpose_b ? p_.ldb : 1;
    for (int64_t d = 0; d < p_.k; ++d) {
      for (int64_t j = 0; j < kColumns; ++j) {
        packed[d * kColumns + j] = j < width ? b[d * depth_step + (n + j) * column_step] : 0.0f;
      }
    }
  }

  MatmulProblem p_;
  TileProductFunction product_;
};

}  // namespace

std::string PlainContractions::description() const { return fmt::format("plain loops ({})", isa_name(isa_)); }

std::unique_ptr<Conv> PlainContractions::conv(ConvKind kind, const ConvProblem& problem) const {
  check(problem);
  if (kind == ConvKind::wgrad) return std::make_unique<PlainWeightGradient>(problem, pick<TileProduct>(isa_));
  return std::make_unique<PlainDirectConv>(kind, problem, pick<TileProduct>(isa_));
}

std::unique_ptr<Matmul> PlainContractions::matmul(const MatmulProblem& problem) const {
  check(problem);
  return std::make_unique<PlainMatmul>(problem, pick<TileProduct>(isa_));
}

}  // namespace difuse::codegen
