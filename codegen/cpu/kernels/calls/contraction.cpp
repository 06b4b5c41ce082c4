// Matrix products and convolutions through the Contractions room.
#include <algorithm>
#include <array>

#include "codegen/cpu/kernels/calls/calls.h"

namespace difuse::codegen::cpu {
namespace {

/// Rows of a product whose rows may be images, in one call. The last block is filled up with zeros, so that a row's
/// bits do not depend on how many there are.
constexpr int64_t kRowBlock = 32;
/// Rows and columns of one tile of a product that sums over images.
constexpr int64_t kTileRows = 64, kTileColumns = 256;
/// Images of one weight gradient.
constexpr int64_t kWgradImages = 8;

/// C = A B with A [M, K] as it lies: rows of A are images.
NodeCalls row_matmul(const CallContext& context, bool transpose_b) {
  const int64_t m = context.operands[0].shape[0], k = context.operands[0].shape[1];
  const int64_t n = context.node.types[0].shape[1];
  std::shared_ptr<const Matmul> product =
      context.contractions.matmul({kRowBlock, n, k, k, transpose_b ? k : n, n, false, transpose_b});
  const int64_t product_bytes = aligned_bytes(static_cast<int64_t>(product->scratch_bytes()));
  CallSpec call{{operand(0, true), operand(1, false)}, {result(0, true)}};
  call.images = m;
  call.unit = kRowBlock;
  call.scratch_bytes = product_bytes + kRowBlock * (n + k) * static_cast<int64_t>(sizeof(float));
  call.run = [product, product_bytes, n, k](const CallArguments& a) {
    if (a.images == kRowBlock) {
      product->run(a.input(0), a.input(1), a.output(0), a.scratch);
      return;
    }
    float* rows = reinterpret_cast<float*>(a.scratch + product_bytes);
    float* results = rows + kRowBlock * k;
    std::copy_n(a.input(0), a.images * k, rows);
    std::fill(rows + a.images * k, results, 0.0f);
    product->run(rows, a.input(1), results, a.scratch);
    std::copy_n(results, a.images * n, a.output(0));
  };
  NodeCalls made{{std::move(call)}, {}, product->impl_info(), 2 * m * n * k};
  return made;
}

/// C = A' B: tiles of the result, each a sum over all of K.
NodeCalls tile_matmul(const CallContext& context, bool transpose_b) {
  const int64_t k = context.operands[0].shape[0], m = context.operands[0].shape[1];
  const int64_t n = context.node.types[0].shape[1];
  const int64_t rows = std::min(m, kTileRows), columns = std::min(n, kTileColumns);
  const int64_t down = (m + rows - 1) / rows, across = (n + columns - 1) / columns;
  // Whole tiles, and what is left at the right, at the bottom and in the corner.
  std::array<std::array<std::shared_ptr<const Matmul>, 2>, 2> products;
  int64_t scratch = 0;
  for (const size_t bottom : {0, 1}) {
    for (const size_t right : {0, 1}) {
      const int64_t height = bottom ? m - (down - 1) * rows : rows,
                    width = right ? n - (across - 1) * columns : columns;
      products[bottom][right] =
          context.contractions.matmul({height, width, k, m, transpose_b ? k : n, n, true, transpose_b});
      scratch = std::max(scratch, static_cast<int64_t>(products[bottom][right]->scratch_bytes()));
    }
  }
  CallSpec call{{operand(0, false), operand(1, false)}, {result(0, false)}};
  call.images = down * across;
  call.scratch_bytes = scratch;
  const std::string implementation = products[0][0]->impl_info();
  call.run = [products, down, across, rows, columns, n, k, transpose_b](const CallArguments& a) {
    const int64_t row = a.image / across, column = a.image % across;
    const Matmul& product = *products[static_cast<size_t>(row == down - 1)][static_cast<size_t>(column == across - 1)];
    const float* b = a.input(1) + column * columns * (transpose_b ? k : 1);
    product.run(a.input(0) + row * rows, b, a.output(0) + row * rows * n + column * columns, a.scratch);
  };
  return {{std::move(call)}, {}, implementation, 2 * m * n * k};
}

ConvProblem problem(const ir::Shape& image, const ir::Shape& weights, int64_t stride, int64_t pad) {
  ConvProblem p;
  p.h = static_cast<int>(image[1]);
  p.w = static_cast<int>(image[2]);
  p.c = static_cast<int>(image[3]);
  p.k = static_cast<int>(weights[0]);
  p.r = static_cast<int>(weights[1]);
  p.s = static_cast<int>(weights[2]);
  p.stride = static_cast<int>(stride);
  p.pad = static_cast<int>(pad);
  return p;
}

/// fprop and dgrad: the weights are reordered once, then one image a call.
NodeCalls image_conv(const CallContext& context, ConvKind kind, const ConvProblem& p) {
  const std::shared_ptr<const Conv> conv = context.contractions.conv(kind, p);
  CallSpec pack{{operand(1, false)}, {temporary(0, false)}};
  pack.scratch_bytes = static_cast<int64_t>(conv->scratch_bytes());
  pack.run = [conv](const CallArguments& a) { conv->pack(a.input(0), a.output(0), a.scratch); };

  CallSpec call{{operand(0, true), temporary(0, false)}, {result(0, true)}};
  call.images = context.operands[0].shape[0];
  call.scratch_bytes = pack.scratch_bytes;
  call.run = [conv](const CallArguments& a) { conv->run(a.input(0), a.input(1), a.output(0), a.scratch); };
  NodeCalls made;
  made.temporary_bytes = {static_cast<int64_t>(conv->weights_bytes())};
  made.implementation = conv->impl_info();
  made.flops = static_cast<int64_t>(p.operations()) * call.images;
  made.calls = {std::move(pack), std::move(call)};
  return made;
}

/// Eight images a call, each call's sum kept apart; then the sums are added in index order and put into KRSC.
NodeCalls wgrad_conv(const CallContext& context, ConvProblem p) {
  const int64_t images = context.operands[0].shape[0];
  const int64_t chunks = (images + kWgradImages - 1) / kWgradImages, rest = images - (chunks - 1) * kWgradImages;
  auto conv_of = [&](int64_t n) -> std::shared_ptr<const Conv> {
    p.n = static_cast<int>(n);
    return context.contractions.conv(ConvKind::wgrad, p);
  };
  const auto last = conv_of(rest);
  const auto whole = chunks > 1 && rest != kWgradImages ? conv_of(kWgradImages) : last;
  const int64_t scratch = aligned_bytes(static_cast<int64_t>(std::max(last->scratch_bytes(), whole->scratch_bytes())));

  // The layout of packed weights may differ between the two primitives: partial sums are KRSC.
  const int64_t weights = p.weight_count(), part = aligned_bytes(weights * static_cast<int64_t>(sizeof(float)));
  const int64_t packed = static_cast<int64_t>(std::max(last->weights_bytes(), whole->weights_bytes()));
  CallSpec call{{operand(0, true), operand(1, true)}, {temporary(0, false)}};
  call.images = images;
  call.unit = kWgradImages;
  call.scratch_bytes = scratch + packed;
  call.run = [last, whole, images, scratch, part](const CallArguments& a) {
    const Conv& conv = a.image + a.images == images ? *last : *whole;
    float* sums = reinterpret_cast<float*>(a.scratch + scratch);
    conv.run(a.input(0), a.input(1), sums, a.scratch);
    conv.unpack(sums, reinterpret_cast<float*>(a.out[0] + a.image / kWgradImages * part), a.scratch);
  };

  static constexpr int64_t kPiece = 4096;
  CallSpec add{{temporary(0, false)}, {result(0, false)}};
  add.images = (weights + kPiece - 1) / kPiece;
  add.run = [chunks, weights, part](const CallArguments& a) {
    const int64_t begin = a.image * kPiece, count = std::min(kPiece, weights - begin);
    float* to = a.output(0) + begin;
    std::copy_n(a.input(0) + begin, count, to);
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      const float* from = reinterpret_cast<const float*>(a.in[0] + chunk * part) + begin;
      for (int64_t i = 0; i < count; ++i) to[i] += from[i];
    }
  };
  NodeCalls made;
  made.temporary_bytes = {chunks * part};
  made.implementation = last->impl_info();
  made.flops = static_cast<int64_t>(p.operations() / p.n) * images;
  made.calls = {std::move(call), std::move(add)};
  return made;
}

}  // namespace

NodeCalls matmul_calls(const CallContext& context) {
  const auto& attrs = context.node.as<ir::MatmulAttrs>();
  return attrs.transpose_a ? tile_matmul(context, attrs.transpose_b) : row_matmul(context, attrs.transpose_b);
}

NodeCalls conv_calls(const CallContext& context) {
  const ir::Shape &first = context.operands[0].shape, &second = context.operands[1].shape;
  if (context.node.op == ir::Op::conv_fprop) {
    const auto& a = context.node.as<ir::ConvAttrs>();
    return image_conv(context, ConvKind::fprop, problem(first, second, a.stride, a.pad));
  }
  if (context.node.op == ir::Op::conv_dgrad) {
    const auto& a = context.node.as<ir::ConvDgradAttrs>();
    return image_conv(context, ConvKind::dgrad, problem(context.node.types[0].shape, second, a.stride, a.pad));
  }
  const auto& a = context.node.as<ir::ConvWgradAttrs>();
  return wgrad_conv(context, problem(first, context.node.types[0].shape, a.stride, a.pad));
}

}  // namespace difuse::codegen::cpu
