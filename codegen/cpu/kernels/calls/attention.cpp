// Softmax attention and its gradient, one image a call, one head and one block of query rows at a time
// (their meaning: ir/ops/attention.cpp).
#include <algorithm>
#include <cmath>

#include "codegen/cpu/kernels/calls/calls.h"
#include "codegen/cpu/kernels/register_ops.h"
#include "ir/qkv.h"

namespace difuse::codegen::cpu {
namespace {

constexpr int64_t kScoreBytes = 512 * 1024;  ///< Of scores in scratch: half of a second-level cache.

/// Heads, and how the query rows are cut into blocks: by the length alone.
struct Blocks {
  ir::QkvLayout layout;
  int64_t length, channels, rows;  // rows of a whole block

  Blocks(const ir::Shape& qkv, const ir::AttentionAttrs& attrs)
      : layout(qkv[2], attrs), length(qkv[1]), channels(qkv[2] / 3) {
    const int64_t fitting = kScoreBytes / (length * static_cast<int64_t>(sizeof(float)));
    rows = std::min(length, std::max<int64_t>(16, fitting / 16 * 16));
  }
  int64_t row() const { return 3 * channels; }
  int64_t scores() const { return rows * length; }
};

/// A product for whole blocks and one for what is left.
struct BlockProduct {
  std::shared_ptr<const Matmul> whole, rest;

  template <class Problem>
  BlockProduct(const Contractions& contractions, const Blocks& b, const Problem& problem) {
    whole = contractions.matmul(problem(b.rows));
    rest = b.length % b.rows == 0 ? whole : contractions.matmul(problem(b.length % b.rows));
  }
  const Matmul& of(const Blocks& b, int64_t rows) const { return rows == b.rows ? *whole : *rest; }
  int64_t scratch_bytes() const {
    return aligned_bytes(static_cast<int64_t>(std::max(whole->scratch_bytes(), rest->scratch_bytes())));
  }
};

int64_t float_bytes(int64_t count) { return aligned_bytes(count * static_cast<int64_t>(sizeof(float))); }

/// out[i] = op(in[i], scalar).
void with_scalar(BlockOp op, const float* in, float scalar, float* out, int64_t n) {
  const float* const operands[] = {in, &scalar};
  block_ops().elementwise(op, 0b10)(operands, out, n);
}
void apply(BlockOp op, const float* in, float* out, int64_t n) { block_ops().elementwise(op)(&in, out, n); }

}  // namespace

NodeCalls attention_calls(const CallContext& context) {
  const Blocks b(context.operands[0].shape, context.node.as<ir::AttentionAttrs>());
  const int64_t width = b.layout.width;
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
  const BlockProduct scores(context.contractions, b, [&](int64_t rows) {
    return MatmulProblem{rows, b.length, width, b.row(), b.row(), b.length, false, true, scale, false};
  });
  const BlockProduct weighted(context.contractions, b, [&](int64_t rows) {
    return MatmulProblem{rows, width, b.length, b.length, b.row(), b.channels, false, false, 1.0f, false};
  });
  const int64_t product_bytes = std::max(scores.scratch_bytes(), weighted.scratch_bytes());

  CallSpec call{{operand(0, true)}, {result(0, true), result(1, true)}};
  call.images = context.operands[0].shape[0];
  call.scratch_bytes = product_bytes + float_bytes(b.scores());
  call.run = [b, width, scores, weighted, product_bytes](const CallArguments& a) {
    float* const p = reinterpret_cast<float*>(a.scratch + product_bytes);
    for (int64_t head = 0; head < b.layout.heads; ++head) {
      const float* q = a.input(0) + b.layout.channel(0, head);
      const float* k = a.input(0) + b.layout.channel(1, head);
      const float* v = a.input(0) + b.layout.channel(2, head);
      for (int64_t first = 0; first < b.length; first += b.rows) {
        const int64_t rows = std::min(b.rows, b.length - first);
        scores.of(b, rows).run(q + first * b.row(), k, p, a.scratch);
        float* lse = a.output(1) + head * b.length + first;
        for (int64_t i = 0; i < rows; ++i) {
          float* row = p + i * b.length;
          lse[i] = block_ops().max(row, b.length);
          with_scalar(BlockOp::sub, row, lse[i], row, b.length);
        }
        apply(BlockOp::exp, p, p, rows * b.length);
        for (int64_t i = 0; i < rows; ++i) {
          float* row = p + i * b.length;
          const float sum = block_ops().sum(row, b.length);
          with_scalar(BlockOp::mul, row, 1.0f / sum, row, b.length);
          lse[i] += std::log(sum);
        }
        weighted.of(b, rows).run(p, v, a.output(0) + first * b.channels + head * width, a.scratch);
      }
    }
  };
  NodeCalls made{{std::move(call)}, {}, scores.whole->impl_info(), 0};
  made.flops = 4 * context.operands[0].shape[0] * b.layout.heads * b.length * b.length * width;
  return made;
}

// Recomputes P from the log-sum-exp; with delta = rowsum(dO O): dS = scale P (dO V' - delta), dQ = dS K, dK = dS' Q,
// dV = P' dO, the last two summed over the blocks of query rows in order.
NodeCalls attention_grad_calls(const CallContext& context) {
  const Blocks b(context.operands[0].shape, context.node.as<ir::AttentionAttrs>());
  const int64_t width = b.layout.width;
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
  const Contractions& room = context.contractions;
  const BlockProduct scores(room, b, [&](int64_t rows) {
    return MatmulProblem{rows, b.length, width, b.row(), b.row(), b.length, false, true, scale, false};
  });
  const BlockProduct dp(room, b, [&](int64_t rows) {
    return MatmulProblem{rows, b.length, width, b.channels, b.row(), b.length, false, true, 1.0f, false};
  });
  const BlockProduct dq(room, b, [&](int64_t rows) {
    return MatmulProblem{rows, width, b.length, b.length, b.row(), b.row(), false, false, scale, false};
  });
  // The first block of rows overwrites, the others add.
  auto summed = [&](int64_t ldb, float alpha, bool accumulate) {
    return BlockProduct(room, b, [&](int64_t rows) {
      return MatmulProblem{b.length, width, rows, b.length, ldb, b.row(), true, false, alpha, accumulate};
    });
  };
  const BlockProduct dk_first = summed(b.row(), scale, false), dk_next = summed(b.row(), scale, true);
  const BlockProduct dv_first = summed(b.channels, 1.0f, false), dv_next = summed(b.channels, 1.0f, true);
  int64_t product_bytes = 0;
  for (const BlockProduct* p : {&scores, &dp, &dq, &dk_first, &dk_next, &dv_first, &dv_next}) {
    product_bytes = std::max(product_bytes, p->scratch_bytes());
  }

  CallSpec call{{operand(0, true), operand(1, true), operand(2, true), operand(3, true)}, {result(0, true)}};
  call.images = context.operands[0].shape[0];
  call.scratch_bytes = product_bytes + 2 * float_bytes(b.scores());
  call.run = [=](const CallArguments& a) {
    float* const p = reinterpret_cast<float*>(a.scratch + product_bytes);
    float* const ds = reinterpret_cast<float*>(a.scratch + product_bytes + float_bytes(b.scores()));
    for (int64_t head = 0; head < b.layout.heads; ++head) {
      const int64_t q_at = b.layout.channel(0, head), k_at = b.layout.channel(1, head),
                    v_at = b.layout.channel(2, head);
      const float *q = a.input(0) + q_at, *k = a.input(0) + k_at, *v = a.input(0) + v_at;
      float* const dqkv = a.output(0);
      for (int64_t first = 0; first < b.length; first += b.rows) {
        const int64_t rows = std::min(b.rows, b.length - first);
        const float* q_rows = q + first * b.row();
        const float* o = a.input(1) + first * b.channels + head * width;
        const float* d_out = a.input(3) + first * b.channels + head * width;
        const float* lse = a.input(2) + head * b.length + first;
        scores.of(b, rows).run(q_rows, k, p, a.scratch);
        dp.of(b, rows).run(d_out, v, ds, a.scratch);
        for (int64_t i = 0; i < rows; ++i) {
          float *p_row = p + i * b.length, *ds_row = ds + i * b.length;
          with_scalar(BlockOp::sub, p_row, lse[i], p_row, b.length);
          const float delta = block_ops().dot(d_out + i * b.channels, o + i * b.channels, width);
          with_scalar(BlockOp::sub, ds_row, delta, ds_row, b.length);
        }
        apply(BlockOp::exp, p, p, rows * b.length);
        const float* const factors[] = {p, ds};
        block_ops().elementwise(BlockOp::mul)(factors, ds, rows * b.length);
        dq.of(b, rows).run(ds, k, dqkv + first * b.row() + q_at, a.scratch);
        (first == 0 ? dk_first : dk_next).of(b, rows).run(ds, q_rows, dqkv + k_at, a.scratch);
        (first == 0 ? dv_first : dv_next).of(b, rows).run(p, d_out, dqkv + v_at, a.scratch);
      }
    }
  };
  NodeCalls made{{std::move(call)}, {}, scores.whole->impl_info(), 0};
  made.flops = 10 * context.operands[0].shape[0] * b.layout.heads * b.length * b.length * width;
  return made;
}

}  // namespace difuse::codegen::cpu
