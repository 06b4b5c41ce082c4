// What the tests of both contraction rooms share: random problems, double-precision loops and the error between them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codegen/cpu/contractions.h"

namespace difuse::codegen::testing {

/// A buffer aligned as contractions want it (`offset` floats further where a test asks for less), between guards that
/// show a write outside of it.
class Buffer {
 public:
  explicit Buffer(size_t count, size_t offset = 0) : count_(count), storage_(count + offset + 2 * kGuard + 16, kMark) {
    void* at = storage_.data() + kGuard;
    size_t space = storage_.size() * sizeof(float);
    std::align(kContractionAlignment, count * sizeof(float), at, space);
    data_ = static_cast<float*>(at) + offset;
    std::fill_n(data_, count, 0.0f);
  }
  Buffer(Buffer&&) = default;
  Buffer(const Buffer&) = delete;
  float* data() const { return data_; }
  std::byte* bytes() const { return reinterpret_cast<std::byte*>(data_); }
  size_t size() const { return count_; }

  bool guards_hold() const {
    const auto marked = [](float value) { return value == kMark; };
    return std::all_of(storage_.data(), static_cast<const float*>(data_), marked) &&
           std::all_of(static_cast<const float*>(data_) + count_, storage_.data() + storage_.size(), marked);
  }

 private:
  static constexpr size_t kGuard = 4096;
  static constexpr float kMark = -12345.0f;
  size_t count_;
  std::vector<float> storage_;
  float* data_;
};

inline Buffer random_buffer(size_t count, unsigned seed, size_t offset = 0) {
  Buffer buffer(count, offset);
  std::minstd_rand generator(seed + 1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (size_t i = 0; i < count; ++i) buffer.data()[i] = uniform(generator);
  return buffer;
}

struct ConvSizes {
  size_t first, second, result;  ///< Floats of plain (not packed) operands.
};
inline ConvSizes sizes(ConvKind kind, const ConvProblem& p) {
  const size_t x = size_t(p.n) * p.h * p.w * p.c;
  const size_t y = size_t(p.n) * p.out_h() * p.out_w() * p.k;
  const size_t w = static_cast<size_t>(p.weight_count());
  if (kind == ConvKind::fprop) return {x, w, y};
  if (kind == ConvKind::dgrad) return {y, w, x};
  return {x, y, w};
}

/// The definition, in double: every kind walks the same products.
inline std::vector<double> reference_conv(ConvKind kind, const ConvProblem& p, const float* first,
                                          const float* second) {
  std::vector<double> result(sizes(kind, p).result);
  for (int n = 0; n < p.n; ++n)
    for (int oy = 0; oy < p.out_h(); ++oy)
      for (int ox = 0; ox < p.out_w(); ++ox)
        for (int r = 0; r < p.r; ++r)
          for (int s = 0; s < p.s; ++s) {
            const int iy = oy * p.stride - p.pad + r;
            const int ix = ox * p.stride - p.pad + s;
            if (iy < 0 || iy >= p.h || ix < 0 || ix >= p.w) continue;
            const size_t x = ((size_t(n) * p.h + iy) * p.w + ix) * p.c;
            const size_t y = ((size_t(n) * p.out_h() + oy) * p.out_w() + ox) * p.k;
            for (int k = 0; k < p.k; ++k) {
              const size_t w = ((size_t(k) * p.r + r) * p.s + s) * p.c;
              double sum = 0.0;
              for (int c = 0; c < p.c; ++c) {
                if (kind == ConvKind::fprop) sum += double(first[x + c]) * second[w + c];
                if (kind == ConvKind::dgrad) result[x + c] += double(first[y + k]) * second[w + c];
                if (kind == ConvKind::wgrad) result[w + c] += double(first[x + c]) * second[y + k];
              }
              if (kind == ConvKind::fprop) result[y + k] += sum;
            }
          }
  return result;
}

/// max|a - b| / max|b|.
inline double error(const float* a, const std::vector<double>& b) {
  double difference = 0.0, largest = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return difference / largest;
}

/// Runs one prepared convolution on plain operands, packing and unpacking as its kind needs.
inline Buffer run_plain_operands(const Conv& conv, ConvKind kind, const ConvProblem& p, const Buffer& first,
                                 const Buffer& second) {
  const Buffer scratch(conv.scratch_bytes() / sizeof(float));
  const Buffer packed(conv.weights_bytes() / sizeof(float));
  Buffer result(sizes(kind, p).result);
  if (kind == ConvKind::wgrad) {
    conv.run(first.data(), second.data(), packed.data(), scratch.bytes());
    conv.unpack(packed.data(), result.data(), scratch.bytes());
  } else {
    conv.pack(second.data(), packed.data(), scratch.bytes());
    conv.run(first.data(), packed.data(), result.data(), scratch.bytes());
  }
  if (!scratch.guards_hold() || !packed.guards_hold() || !result.guards_hold()) {
    throw std::runtime_error("a buffer was written outside its bounds");
  }
  return result;
}

inline double conv_error(const Contractions& contractions, ConvKind kind, const ConvProblem& p,
                         std::string* impl_info = nullptr) {
  const auto conv = contractions.conv(kind, p);
  if (impl_info != nullptr) *impl_info = conv->impl_info();
  const Buffer first = random_buffer(sizes(kind, p).first, 1);
  const Buffer second = random_buffer(sizes(kind, p).second, 2);
  const Buffer result = run_plain_operands(*conv, kind, p, first, second);
  return error(result.data(), reference_conv(kind, p, first.data(), second.data()));
}

inline std::string name(ConvKind kind, const ConvProblem& p) {
  const char* kinds[] = {"fprop", "dgrad", "wgrad"};
  std::string text = kinds[static_cast<int>(kind)];
  for (const int extent : {p.n, p.h, p.w, p.c, p.k, p.r, p.s, p.stride, p.pad}) text += " " + std::to_string(extent);
  return text;
}

/// Small odd shapes: every pair of channel counts on 7x7 or 8x8, and the larger images with a few pairs each.
template <class Visit>
void each_conv(const Visit& visit) {
  const std::vector<int> channels = {1, 3, 4, 20, 32, 33, 36, 96, 100};
  const auto with_filters = [&](int h, int w, int c, int k) {
    for (const int filter : {1, 3}) {
      for (const int stride : {1, 2}) {
        const int pad = filter / 2;
        visit(ConvKind::fprop, ConvProblem{1, h, w, c, k, filter, filter, stride, pad});
        visit(ConvKind::dgrad, ConvProblem{1, h, w, c, k, filter, filter, stride, pad});
        visit(ConvKind::wgrad, ConvProblem{h < 9 ? 8 : 2, h, w, c, k, filter, filter, stride, pad});
      }
    }
  };
  for (const int c : channels) {
    for (const int k : channels) {
      if (c * k > 36 * 36 && c + k != 196) continue;
      const int side = (c + k) % 2 == 0 ? 7 : 8;  // 8 is a multiple of the stride, which oneDNN treats apart.
      with_filters(side, side, c, k);
    }
  }
  for (const auto& [h, w] :
       {std::pair(8, 8), std::pair(14, 14), std::pair(28, 28), std::pair(30, 30), std::pair(48, 80)}) {
    for (const auto& [c, k] : {std::pair(1, 32), std::pair(32, 1), std::pair(3, 20), std::pair(33, 4)})
      with_filters(h, w, c, k);
  }
  with_filters(14, 14, 36, 96);
  with_filters(8, 8, 100, 33);
  visit(ConvKind::fprop, ConvProblem{2, 9, 6, 5, 7, 5, 3, 1, 2});
  visit(ConvKind::dgrad, ConvProblem{2, 9, 6, 5, 7, 5, 3, 3, 2});
  visit(ConvKind::wgrad, ConvProblem{2, 9, 6, 5, 7, 5, 3, 3, 2});
}

inline std::vector<MatmulProblem> matmul_problems() {
  std::vector<MatmulProblem> problems;
  for (const auto& [m, n, k] :
       {std::tuple(1, 1, 1), std::tuple(3, 5, 7), std::tuple(16, 256, 64), std::tuple(33, 36, 20),
        std::tuple(49, 49, 32), std::tuple(196, 32, 196), std::tuple(300, 100, 3)}) {
    for (int variant = 0; variant < 8; ++variant) {
      MatmulProblem p{m, n, k, 0, 0, 0, (variant & 1) != 0, (variant & 2) != 0, 1.0f, (variant & 4) != 0};
      if (p.accumulate) p.alpha = 0.25f;
      p.lda = (p.transpose_a ? m : k) + variant;
      p.ldb = (p.transpose_b ? k : n) + 3 * variant;
      p.ldc = n + 5 * variant;
      problems.push_back(p);
    }
  }
  return problems;
}

/// The error of one product; infinite where the gaps between C's rows were touched.
inline double matmul_error(const Contractions& contractions, const MatmulProblem& p, std::string* impl_info = nullptr) {
  const auto matmul = contractions.matmul(p);
  if (impl_info != nullptr) *impl_info = matmul->impl_info();
  const Buffer a = random_buffer(static_cast<size_t>((p.transpose_a ? p.k : p.m) * p.lda), 1);
  const Buffer b = random_buffer(static_cast<size_t>((p.transpose_b ? p.n : p.k) * p.ldb), 2);
  const Buffer c = random_buffer(static_cast<size_t>(p.m * p.ldc), 3);
  const Buffer scratch(matmul->scratch_bytes() / sizeof(float) + 1);
  std::vector<double> expected(c.data(), c.data() + c.size());
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0.0;
      for (int64_t d = 0; d < p.k; ++d) {
        sum += double(a.data()[p.transpose_a ? d * p.lda + i : i * p.lda + d]) *
               b.data()[p.transpose_b ? j * p.ldb + d : d * p.ldb + j];
      }
      double& to = expected[static_cast<size_t>(i * p.ldc + j)];
      to = (p.accumulate ? to : 0.0) + p.alpha * sum;
    }
  }
  matmul->run(a.data(), b.data(), c.data(), scratch.bytes());
  return error(c.data(), expected);
}

}  // namespace difuse::codegen::testing
