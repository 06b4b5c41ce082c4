// Softmax attention over the rows of a qkv projection, [N, L, 3C] -> [N, L, C], with scores q.k / sqrt(width).
// The second result is each row's log-sum-exp [N, heads, L], from which the backward recomputes the probabilities.
#include <cmath>

#include "ir/ops/rules.h"
#include "ir/qkv.h"

namespace difuse::ir {
namespace {

void require_qkv(const Type& t, const AttentionAttrs& a) {
  require_rank(t, 3, "qkv");
  require(a.heads > 0 && t.shape[2] % (3 * a.heads) == 0, "{} channels are not 3 x {} heads x a width", t.shape[2],
          a.heads);
}

/// One head of one image, as pointers to its first row.
struct Head {
  const double *q, *k, *v;
  int64_t row;  // elements from one row to the next
  int64_t width;
  double scale;

  Head(const Tensor& qkv, const QkvLayout& layout, int64_t n, int64_t head)
      : row(qkv.type.shape[2]), width(layout.width) {
    const double* image = qkv.data.data() + n * qkv.type.shape[1] * row;
    q = image + layout.channel(0, head);
    k = image + layout.channel(1, head);
    v = image + layout.channel(2, head);
    scale = 1 / std::sqrt(static_cast<double>(width));
  }
  static double dot(const double* a, const double* b, int64_t width) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += a[i] * b[i];
    return sum;
  }
  double score(int64_t i, int64_t j) const { return scale * dot(q + i * row, k + j * row, width); }
};

void evaluate_attention(const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
  const auto& a = node.as<AttentionAttrs>();
  const Shape& s = in[0]->type.shape;
  const QkvLayout layout(s[2], a);
  const int64_t length = s[1], channels = s[2] / 3;
  parallel_for(s[0] * a.heads, [&](int64_t at) {
    const int64_t n = at / a.heads, head = at % a.heads;
    const Head h(*in[0], layout, n, head);
    std::vector<double> p(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) {
      double largest = -INFINITY, sum = 0;
      for (int64_t j = 0; j < length; ++j) {
        largest = std::max(largest, p[static_cast<size_t>(j)] = h.score(i, j));
      }
      for (double& x : p) sum += x = std::exp(x - largest);
      double* o = out[0].data.data() + (n * length + i) * channels + head * layout.width;
      for (int64_t j = 0; j < length; ++j) {
        for (int64_t d = 0; d < layout.width; ++d) o[d] += p[static_cast<size_t>(j)] / sum * h.v[j * h.row + d];
      }
      out[1].data[static_cast<size_t>(at * length + i)] = largest + std::log(sum);
    }
  });
}

// dP = dO V', dS = P (dP - rowsum(dO O)), dQ = scale dS K, dK = scale dS' Q, dV = P' dO.
void evaluate_attention_grad(const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
  const auto& a = node.as<AttentionAttrs>();
  const Tensor &qkv = *in[0], &o = *in[1], &lse = *in[2], &dout = *in[3];
  const Shape& s = qkv.type.shape;
  const QkvLayout layout(s[2], a);
  const int64_t length = s[1], channels = s[2] / 3, width = layout.width;
  parallel_for(s[0] * a.heads, [&](int64_t at) {
    const int64_t n = at / a.heads, head = at % a.heads;
    const Head h(qkv, layout, n, head);
    double* image = out[0].data.data() + n * length * h.row;
    double *dq = image + layout.channel(0, head), *dk = image + layout.channel(1, head),
           *dv = image + layout.channel(2, head);
    for (int64_t i = 0; i < length; ++i) {
      const double* o_row = o.data.data() + (n * length + i) * channels + head * width;
      const double* do_row = dout.data.data() + (n * length + i) * channels + head * width;
      const double delta = Head::dot(o_row, do_row, width);
      for (int64_t j = 0; j < length; ++j) {
        const double p = std::exp(h.score(i, j) - lse.data[static_cast<size_t>(at * length + i)]);
        const double ds = h.scale * p * (Head::dot(do_row, h.v + j * h.row, width) - delta);
        for (int64_t d = 0; d < width; ++d) {
          dq[i * h.row + d] += ds * h.k[j * h.row + d];
          dk[j * h.row + d] += ds * h.q[i * h.row + d];
          dv[j * h.row + d] += p * do_row[d];
        }
      }
    }
  });
}

}  // namespace

OpRules rules_attention() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const auto& a = std::get<AttentionAttrs>(attrs);
            require_qkv(t[0], a);
            require_contraction(t);
            const Shape& s = t[0].shape;
            return std::vector<Type>{{DType::f32, {s[0], s[1], s[2] / 3}}, {DType::f32, {s[0], a.heads, s[1]}}};
          },
          [](GradientContext& c) {
            require(!c.grad(1).valid(), "the log-sum-exp is for the backward alone and has no gradient");
            c.accumulate(c.operand(0), c.build().attention_grad(c.operand(0), c.result(0), c.result(1), c.grad(0),
                                                                c.node().as<AttentionAttrs>()));
          },
          evaluate_attention};
}

OpRules rules_attention_grad() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const auto& a = std::get<AttentionAttrs>(attrs);
            require_qkv(t[0], a);
            const Shape& s = t[0].shape;
            const Shape out{s[0], s[1], s[2] / 3}, lse{s[0], a.heads, s[1]};
            require(t[1].shape == out && t[2].shape == lse && t[3].shape == out,
                    "out {}, lse {} and dout {} do not fit qkv {}", to_string(t[1]), to_string(t[2]), to_string(t[3]),
                    to_string(t[0]));
            return std::vector<Type>{{DType::f32, s}};
          },
          [](GradientContext&) { throw Error("attention_grad has no gradient: second derivatives are not built"); },
          evaluate_attention_grad};
}

}  // namespace difuse::ir
