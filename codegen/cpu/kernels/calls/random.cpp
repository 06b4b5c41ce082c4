// Random draws, one sample a call: Philox by (seed, stream, index, step), as ir/ops/random.cpp says.
#include <algorithm>
#include <numbers>

#include "codegen/cpu/kernels/calls/calls.h"
#include "codegen/cpu/kernels/register_ops.h"
#include "ir/philox.h"

namespace difuse::codegen::cpu {
namespace {

constexpr int64_t kPiece = 1024;  // elements drawn at a time, a multiple of four

/// Calls draw(key, at, count) for the elements of one sample, a piece at a time.
template <class Draw>
CallSpec draws(const CallContext& context, int64_t stream, const Draw& draw) {
  const ir::Type& type = context.node.types[0];
  CallSpec call{{operand(0, false), operand(1, true), operand(2, false)}, {result(0, true)}};
  call.images = type.shape[0];
  call.run = [each = type.elements() / type.shape[0], stream, draw](const CallArguments& a) {
    const ir::DrawKey key{{a.input<uint32_t>(0)[0], a.input<uint32_t>(0)[1]},
                          static_cast<uint32_t>(stream),
                          a.input<uint32_t>(1)[0],
                          a.input<uint32_t>(2)[0]};
    for (int64_t at = 0; at < each; at += kPiece) draw(key, at, std::min(kPiece, each - at), a.out[0] + at * 4);
  };
  return call;
}

/// put(i, words) for each block of four elements, i counted from `at`.
template <class Put>
void each_block(const ir::DrawKey& key, int64_t at, int64_t count, const Put& put) {
  for (int64_t i = 0; i < count; i += 4) put(i, key.block((at + i) / 4));
}

void apply(BlockOp op, const float* in, float* out, int64_t n) { block_ops().elementwise(op)(&in, out, n); }
void scale(const float* in, float factor, float* out, int64_t n) {
  const float* const operands[] = {in, &factor};
  block_ops().elementwise(BlockOp::mul, 0b10)(operands, out, n);
}

/// Box and Muller over a whole piece. The angle is taken from u - 1/2, which is exact, so that it is at most pi in
/// size: cos(2 pi u) = -cos(2 pi (u - 1/2)), and so for sin.
void draw_normals(const ir::DrawKey& key, int64_t at, int64_t count, std::byte* to) {
  alignas(64) float radius[kPiece / 2], angle[kPiece / 2], cosine[kPiece / 2];
  const int64_t pairs = (count + 3) / 4 * 2;
  each_block(key, at, count, [&](int64_t i, const ir::Philox4& words) {
    for (int64_t j = 0; j < 2; ++j) {
      radius[i / 2 + j] = ir::uniform_of(words[static_cast<size_t>(2 * j)]);
      angle[i / 2 + j] = ir::uniform_of(words[static_cast<size_t>(2 * j + 1)]) - 0.5f;
    }
  });
  apply(BlockOp::log, radius, radius, pairs);
  scale(radius, -2.0f, radius, pairs);
  apply(BlockOp::sqrt, radius, radius, pairs);
  scale(angle, static_cast<float>(2 * std::numbers::pi), angle, pairs);
  apply(BlockOp::cos, angle, cosine, pairs);
  apply(BlockOp::sin, angle, angle, pairs);
  float* out = reinterpret_cast<float*>(to);
  for (int64_t i = 0; i < count; ++i) out[i] = -radius[i / 2] * (i % 2 == 0 ? cosine : angle)[i / 2];
}

}  // namespace

NodeCalls random_calls(const CallContext& context) {
  CallSpec call;
  if (context.node.op == ir::Op::random_int) {
    const auto& attrs = context.node.as<ir::RandomIntAttrs>();
    call = draws(
        context, attrs.stream,
        [bound = static_cast<uint32_t>(attrs.bound)](const ir::DrawKey& key, int64_t at, int64_t count, std::byte* to) {
          each_block(key, at, count, [&](int64_t i, const ir::Philox4& words) {
            for (int64_t j = 0; j < std::min<int64_t>(4, count - i); ++j) {
              reinterpret_cast<int32_t*>(to)[i + j] = ir::uniform_int_of(words[static_cast<size_t>(j)], bound);
            }
          });
        });
  } else if (context.node.op == ir::Op::random_uniform) {
    call = draws(context, context.node.as<ir::RandomAttrs>().stream,
                 [](const ir::DrawKey& key, int64_t at, int64_t count, std::byte* to) {
                   each_block(key, at, count, [&](int64_t i, const ir::Philox4& words) {
                     for (int64_t j = 0; j < std::min<int64_t>(4, count - i); ++j) {
                       reinterpret_cast<float*>(to)[i + j] = ir::uniform_of(words[static_cast<size_t>(j)]);
                     }
                   });
                 });
  } else {
    call = draws(context, context.node.as<ir::RandomAttrs>().stream, draw_normals);
  }
  return {{std::move(call)}, {}, {}, 0};
}

}  // namespace difuse::codegen::cpu
