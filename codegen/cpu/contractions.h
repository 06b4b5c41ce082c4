// Convolutions and matrix products of the CPU backend, made for one thread.
//
// A lowered graph asks `Contractions` for prepared objects once and runs them from many threads: one call runs on the
// calling thread alone, on one image or a small fixed chunk of images, so its bits depend on neither the thread count
// nor the batch. Two rooms implement the interface, oneDNN (onednn.h) and plain loops (plain.h); nothing above knows
// which one is in use. No graph and no threads live here.
//
// Layouts: activations NHWC f32, weights KRSC f32 ([k][r][s][c]). Weights as a primitive wants them are "packed": an
// opaque buffer made by `pack` and, for a weight gradient, read back by `unpack`. Packed buffers and scratch are
// aligned to kContractionAlignment bytes by the caller; activations need a float's alignment only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace difuse::codegen {

inline constexpr size_t kContractionAlignment = 64;

enum class ConvKind {
  fprop,  ///< (x, packed weights) -> y
  dgrad,  ///< (gradient of y, packed weights) -> gradient of x
  wgrad,  ///< (x, gradient of y) -> packed gradient of the weights, summed over the call's images
};

/// A 2-D convolution, named by its forward pass whatever the kind: x [n, h, w, c] -> y [n, out_h, out_w, k].
struct ConvProblem {
  int n = 1;  ///< Images in one call.
  int h = 0, w = 0, c = 0, k = 0;
  int r = 1, s = 1;  ///< Filter height and width.
  int stride = 1;
  int pad = 0;  ///< On all four sides.

  int out_h() const { return (h + 2 * pad - r) / stride + 1; }
  int out_w() const { return (w + 2 * pad - s) / stride + 1; }
  int64_t weight_count() const { return int64_t{k} * r * s * c; }
  /// Multiplications and additions of any of the three kinds.
  double operations() const { return 2.0 * n * out_h() * out_w() * static_cast<double>(weight_count()); }
};

class Conv {
 public:
  virtual ~Conv() = default;

  /// Bytes of the packed weights: read by fprop and dgrad, written by wgrad.
  virtual size_t weights_bytes() const = 0;
  /// Bytes of scratch for `run`, `pack` and `unpack`; every thread passes its own.
  virtual size_t scratch_bytes() const = 0;
  /// KRSC -> packed.
  virtual void pack(const float* krsc, float* packed, std::byte* scratch) const = 0;
  /// Packed -> KRSC.
  virtual void unpack(const float* packed, float* krsc, std::byte* scratch) const = 0;
  /// `first`, `second` and `result` as ConvKind says, in that order. `result` is overwritten. Safe from many threads.
  virtual void run(const float* first, const float* second, float* result, std::byte* scratch) const = 0;
  /// The implementation in use, e.g. "jit:avx512_core" or "plain".
  virtual std::string impl_info() const = 0;
};

/// C[m, n] = alpha * op(A)[m, k] op(B)[k, n] (+ C where `accumulate`), all row-major f32. `lda` is the distance in
/// floats between the stored rows of A, which is [m, k], or [k, m] where `transpose_a`; likewise ldb ([k, n] or [n, k])
/// and ldc.
struct MatmulProblem {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1.0f;
  bool accumulate = false;

  double operations() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

class Matmul {
 public:
  virtual ~Matmul() = default;
  virtual size_t scratch_bytes() const = 0;
  /// Safe from many threads. C overlaps neither A nor B.
  virtual void run(const float* a, const float* b, float* c, std::byte* scratch) const = 0;
  virtual std::string impl_info() const = 0;
};

class Contractions {
 public:
  virtual ~Contractions() = default;
  /// For a run's first line, e.g. "oneDNN 2.6.3 (AVX-512)" or "plain loops (AVX2)".
  virtual std::string description() const = 0;
  /// The prepared object may outlive this one. Throws difuse::Error on an empty or negative extent.
  virtual std::unique_ptr<Conv> conv(ConvKind kind, const ConvProblem& problem) const = 0;
  virtual std::unique_ptr<Matmul> matmul(const MatmulProblem& problem) const = 0;
};

/// oneDNN where the library loads, plain loops otherwise. `why_plain`, where given, receives the reason for plain loops
/// (empty with oneDNN).
std::unique_ptr<Contractions> make_contractions(std::string* why_plain = nullptr);

/// Throw difuse::Error naming the extent that makes no sense.
void check(const ConvProblem& problem);
void check(const MatmulProblem& problem);

}  // namespace difuse::codegen
