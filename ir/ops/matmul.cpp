// Matrix products: C [M, N] = A [M, K] x B [K, N]; a transposed operand is stored [K, M] or [N, K].
#include "ir/ops/rules.h"

namespace difuse::ir {
namespace {

struct Sizes {
  int64_t m, n, k;
};

Sizes sizes(const Shape& a, const Shape& b, const MatmulAttrs& attrs) {
  const int64_t ka = a[attrs.transpose_a ? 0 : 1], kb = b[attrs.transpose_b ? 1 : 0];
  require(ka == kb, "inner sizes {} and {} of {} x {}", ka, kb, to_string(a), to_string(b));
  return {a[attrs.transpose_a ? 1 : 0], b[attrs.transpose_b ? 0 : 1], ka};
}

}  // namespace

OpRules rules_matmul() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            require_rank(t[0], 2, "the first operand");
            require_rank(t[1], 2, "the second operand");
            require_contraction(t);
            const Sizes s = sizes(t[0].shape, t[1].shape, std::get<MatmulAttrs>(attrs));
            return std::vector<Type>{{DType::f32, {s.m, s.n}}};
          },
          [](GradientContext& c) {
            const auto& [ta, tb] = c.node().as<MatmulAttrs>();
            Builder& b = c.build();
            const Value x = c.operand(0), y = c.operand(1), dz = c.grad(0);
            // dA = dC B', dB = A' dC, each stored as its operand is.
            if (c.needs(x)) c.accumulate(x, ta ? b.matmul(y, dz, tb, true) : b.matmul(dz, y, false, !tb));
            if (c.needs(y)) c.accumulate(y, tb ? b.matmul(dz, x, true, ta) : b.matmul(x, dz, !ta, false));
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& a = node.as<MatmulAttrs>();
            const Sizes s = sizes(in[0]->type.shape, in[1]->type.shape, a);
            parallel_for(s.m, [&](int64_t i) {
              for (int64_t j = 0; j < s.n; ++j) {
                double sum = 0;
                for (int64_t k = 0; k < s.k; ++k) {
                  sum += in[0]->data[static_cast<size_t>(a.transpose_a ? k * s.m + i : i * s.k + k)] *
                         in[1]->data[static_cast<size_t>(a.transpose_b ? j * s.k + k : k * s.n + j)];
                }
                out[0].data[static_cast<size_t>(i * s.n + j)] = sum;
              }
            });
          }};
}

}  // namespace difuse::ir
