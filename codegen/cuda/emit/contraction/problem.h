// A body's contraction as one matrix product: what the tiles, the source and the launch are made from.
#pragma once

#include <string>

#include "codegen/cuda/kernel_spec.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

/// out[m, n] = sum over k of A(m, k) B(n, k). Rows m are pixels of the result (conv_fprop, conv_dgrad), output channels
/// (conv_wgrad) or the matrix's rows; columns n are channels, or (r, s, channel) of a weight's gradient.
struct GemmProblem {
  enum class Product : uint8_t { bf16, f16, tf32, f32 };  ///< f32: fused multiply-adds (device/gemm_fma.cuh).

  struct Operand {
    int input = 0;         ///< Of the body.
    bool k_major = true;   ///< k runs fastest in memory; otherwise m or n does.
    int copy = 1;          ///< Elements of one copy to shared memory, at most 16 bytes.
    bool rounded = false;  ///< To tf32, when it is read: the body says round_tf32.
  };

  ir::Value value;  ///< The contraction in the body.
  ir::Op op = ir::Op::matmul;
  ir::DType dtype = ir::DType::f32;
  Product product = Product::f32;
  Operand a, b;

  // Extents. Those that hold the batch are arguments of the kernel: rows, or the depth where it is summed over pixels
  // or rows; the others are literals in its source. Of matrices all are arguments: products of every width are one
  // kernel, and where nothing lies between them one launch (join/nodes.h).
  int64_t rows = 0, columns = 0, depth = 0;
  /// At a usual batch, and where a matrix is narrow at a usual width: what tiles are chosen by, so that no batch
  /// compiles and products of several widths have one tile.
  int64_t usual_rows = 0, usual_columns = 0, usual_depth = 0;
  bool sums_batch = false;  ///< conv_wgrad, matmul with transpose_a: the depth holds the batch.

  // Geometry; a matrix is an image of one pixel and a filter of one tap.
  int64_t height = 1, width = 1, channels = 1;  ///< Of the image that rows or columns are gathered from.
  int64_t rows_h = 1, rows_w = 1;               ///< Row (or, in conv_wgrad, k) is (n, i, j) of [N, rows_h, rows_w].
  int64_t stride = 1, pad = 0, r = 1, s = 1;
  int64_t result_h = 1, result_w = 1;  ///< Of the result, where it is an image.
  int64_t strip = 0;                   ///< Rows come in strips of 8 x so many pixels (channel_moments); 0: they do not.
  int64_t phases = 1;                  ///< Of a strided conv_dgrad: stride * stride (device/gemm_operands.cuh).

  // Where the depth holds the batch it is divided among blocks, whose sums a second kernel adds (sum_splits).
  bool is_split = false;     ///< By shape and device alone.
  int64_t splits = 1;        ///< An argument of the kernels.
  int64_t split_depth = 0;   ///< Of each split; a multiple of 64.
  int64_t usual_splits = 1;  ///< At the usual depth.

  bool is_wide = false;  ///< Offsets need 64 bits.

  bool is_fma() const { return product == Product::f32; }
  int64_t element_bytes() const { return ir::size_of(dtype); }
  /// Channels of a chunk: 128 bytes.
  int64_t chunk() const { return 128 / element_bytes(); }
};

/// The body's one contraction, whatever its operands are; an invalid value where there is none, or more than one.
ir::Value only_contraction(const ir::Graph& body);
/// The body's one contraction; an invalid value where there is none, or more than one, or something before it but
/// round_tf32.
ir::Value find_contraction(const ir::Graph& body);

GemmProblem gemm_problem(const KernelSpec& spec);

/// What is the same at every batch, in one line: "bf16 64x64x128, 64x64 rows, 64 columns,
/// filter 3x3, stride 1, pad 1, a k x8, b k x8".
std::string geometry(const GemmProblem& problem);

/// One line: "conv_fprop m 25088 n 64 k 576 bf16 ...".
std::string to_string(const GemmProblem& problem);

}  // namespace difuse::codegen::cuda
