// Parameter-free resampling of NHWC images by a factor of two.
#include "ir/ops/rules.h"

namespace difuse::ir {

OpRules rules_upsample_nearest() {
  return {[](std::span<const Type> t, const Attrs&) {
            require_rank(t[0], 4, "the image");
            const Shape& s = t[0].shape;
            return std::vector<Type>{{t[0].dtype, {s[0], 2 * s[1], 2 * s[2], s[3]}}};
          },
          [](GradientContext& c) {  // the sum of 2x2 pixels
            c.accumulate(c.operand(0), c.build().mul(c.build().avg_pool(c.grad(0)), 4.0));
          },
          [](const Node&, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const Shape& s = out[0].type.shape;
            parallel_for(s[0] * s[1], [&](int64_t row) {
              const int64_t n = row / s[1], h = row % s[1];
              for (int64_t i = 0; i < s[2] * s[3]; ++i) {
                const int64_t w = i / s[3], c = i % s[3];
                const int64_t from = ((n * (s[1] / 2) + h / 2) * (s[2] / 2) + w / 2) * s[3] + c;
                out[0].data[static_cast<size_t>(row * s[2] * s[3] + i)] = in[0]->data[static_cast<size_t>(from)];
              }
            });
          }};
}

OpRules rules_avg_pool() {
  return {
      [](std::span<const Type> t, const Attrs&) {
        require_rank(t[0], 4, "the image");
        const Shape& s = t[0].shape;
        require(s[1] % 2 == 0 && s[2] % 2 == 0, "{}x{} is not divisible by 2x2", s[1], s[2]);
        return std::vector<Type>{{t[0].dtype, {s[0], s[1] / 2, s[2] / 2, s[3]}}};
      },
      [](GradientContext& c) {
        c.accumulate(c.operand(0), c.build().mul(c.build().upsample_nearest(c.grad(0)), 0.25));
      },
      [](const Node&, std::span<const Tensor* const> in, std::span<Tensor> out) {
        const Shape& s = out[0].type.shape;
        parallel_for(s[0] * s[1], [&](int64_t row) {
          const int64_t n = row / s[1], h = row % s[1];
          for (int64_t i = 0; i < s[2] * s[3]; ++i) {
            const int64_t w = i / s[3], c = i % s[3];
            auto at = [&](int64_t dh, int64_t dw) {
              return in[0]->data[static_cast<size_t>(((n * 2 * s[1] + 2 * h + dh) * 2 * s[2] + 2 * w + dw) * s[3] + c)];
            };
            out[0].data[static_cast<size_t>(row * s[2] * s[3] + i)] =
                0.25 * ((at(0, 0) + at(0, 1)) + (at(1, 0) + at(1, 1)));
          }
        });
      }};
}

}  // namespace difuse::ir
