// Convolution as its three products. Images are [N, H, W, C], weights [K, R, S, C] (K output channels), and
// y[n, oh, ow, k] = sum over r, s, c of x[n, oh*stride + r - pad, ow*stride + s - pad, c] * w[k, r, s, c].
#include "ir/ops/rules.h"

namespace difuse::ir {
namespace {

struct Geometry {
  int64_t n, h, w, c, k, r, s, out_h, out_w, stride, pad;

  /// Calls body(image offset, weight offset) for each tap that lies inside the image, at one output pixel.
  template <class Body>
  void taps(int64_t image, int64_t oh, int64_t ow, const Body& body) const {
    for (int64_t dr = 0; dr < r; ++dr) {
      const int64_t ih = oh * stride + dr - pad;
      if (ih < 0 || ih >= h) continue;
      for (int64_t ds = 0; ds < s; ++ds) {
        const int64_t iw = ow * stride + ds - pad;
        if (iw < 0 || iw >= w) continue;
        body(((image * h + ih) * w + iw) * c, (dr * s + ds) * c);
      }
    }
  }
};

Geometry geometry(const Shape& x, const Shape& weights, int64_t stride, int64_t pad) {
  Geometry g{x[0], x[1], x[2], x[3], weights[0], weights[1], weights[2], 0, 0, stride, pad};
  require(stride > 0 && pad >= 0, "stride {} and pad {}", stride, pad);
  require(weights[3] == g.c, "the image has {} channels, the weight {}", g.c, weights[3]);
  require(g.h + 2 * pad >= g.r && g.w + 2 * pad >= g.s, "a {}x{} filter on a {}x{} image with pad {}", g.r, g.s, g.h,
          g.w, pad);
  g.out_h = (g.h + 2 * pad - g.r) / stride + 1;
  g.out_w = (g.w + 2 * pad - g.s) / stride + 1;
  return g;
}

void require_images(std::span<const Type> t) {
  require_rank(t[0], 4, "the image");
  require_rank(t[1], 4, "the second operand");
  require_contraction(t);
}

}  // namespace

OpRules rules_conv_fprop() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            require_images(t);
            const auto& a = std::get<ConvAttrs>(attrs);
            const Geometry g = geometry(t[0].shape, t[1].shape, a.stride, a.pad);
            return std::vector<Type>{{DType::f32, {g.n, g.out_h, g.out_w, g.k}}};
          },
          [](GradientContext& c) {
            const auto& a = c.node().as<ConvAttrs>();
            Builder& b = c.build();
            const Value x = c.operand(0), w = c.operand(1);
            if (c.needs(x)) {
              c.accumulate(x, b.conv_dgrad(c.grad(0), w, {a.stride, a.pad, b.shape(x)[1], b.shape(x)[2]}));
            }
            if (c.needs(w)) {
              c.accumulate(w, b.conv_wgrad(x, c.grad(0), {a.stride, a.pad, b.shape(w)[1], b.shape(w)[2]}));
            }
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& a = node.as<ConvAttrs>();
            const Geometry g = geometry(in[0]->type.shape, in[1]->type.shape, a.stride, a.pad);
            parallel_for(g.n * g.out_h, [&](int64_t row) {
              for (int64_t ow = 0; ow < g.out_w; ++ow) {
                double* y = out[0].data.data() + (row * g.out_w + ow) * g.k;
                g.taps(row / g.out_h, row % g.out_h, ow, [&](int64_t from, int64_t tap) {
                  for (int64_t k = 0; k < g.k; ++k) {
                    const double* x = in[0]->data.data() + from;
                    const double* w = in[1]->data.data() + k * g.r * g.s * g.c + tap;
                    double sum = 0;
                    for (int64_t c = 0; c < g.c; ++c) sum += x[c] * w[c];
                    y[k] += sum;
                  }
                });
              }
            });
          }};
}

OpRules rules_conv_dgrad() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            require_images(t);
            const auto& a = std::get<ConvDgradAttrs>(attrs);
            const Shape image{t[0].shape[0], a.height, a.width, t[1].shape[3]};
            const Geometry g = geometry(image, t[1].shape, a.stride, a.pad);
            require(t[0].shape == Shape({g.n, g.out_h, g.out_w, g.k}),
                    "dy is {}, the convolution of a {}x{} image is {}", to_string(t[0].shape), a.height, a.width,
                    to_string(Shape{g.n, g.out_h, g.out_w, g.k}));
            return std::vector<Type>{{DType::f32, image}};
          },
          [](GradientContext& c) {
            const auto& a = c.node().as<ConvDgradAttrs>();
            Builder& b = c.build();
            const Value dy = c.operand(0), w = c.operand(1);
            if (c.needs(dy)) c.accumulate(dy, b.conv_fprop(c.grad(0), w, a.stride, a.pad));
            if (c.needs(w)) {
              c.accumulate(w, b.conv_wgrad(c.grad(0), dy, {a.stride, a.pad, b.shape(w)[1], b.shape(w)[2]}));
            }
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& a = node.as<ConvDgradAttrs>();
            const Geometry g = geometry(out[0].type.shape, in[1]->type.shape, a.stride, a.pad);
            parallel_for(g.n, [&](int64_t n) {
              for (int64_t pixel = 0; pixel < g.out_h * g.out_w; ++pixel) {
                const double* dy = in[0]->data.data() + (n * g.out_h * g.out_w + pixel) * g.k;
                g.taps(n, pixel / g.out_w, pixel % g.out_w, [&](int64_t to, int64_t tap) {
                  for (int64_t k = 0; k < g.k; ++k) {
                    const double* w = in[1]->data.data() + k * g.r * g.s * g.c + tap;
                    for (int64_t c = 0; c < g.c; ++c) out[0].data[static_cast<size_t>(to + c)] += dy[k] * w[c];
                  }
                });
              }
            });
          }};
}

OpRules rules_conv_wgrad() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            require_images(t);
            const auto& a = std::get<ConvWgradAttrs>(attrs);
            const Shape weights{t[1].shape[3], a.r, a.s, t[0].shape[3]};
            const Geometry g = geometry(t[0].shape, weights, a.stride, a.pad);
            require(t[1].shape == Shape({g.n, g.out_h, g.out_w, g.k}), "dy is {}, the convolution is {}",
                    to_string(t[1].shape), to_string(Shape{g.n, g.out_h, g.out_w, g.k}));
            return std::vector<Type>{{DType::f32, weights}};
          },
          [](GradientContext& c) {
            const auto& a = c.node().as<ConvWgradAttrs>();
            Builder& b = c.build();
            const Value x = c.operand(0), dy = c.operand(1);
            if (c.needs(x)) {
              c.accumulate(x, b.conv_dgrad(dy, c.grad(0), {a.stride, a.pad, b.shape(x)[1], b.shape(x)[2]}));
            }
            if (c.needs(dy)) c.accumulate(dy, b.conv_fprop(x, c.grad(0), a.stride, a.pad));
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& a = node.as<ConvWgradAttrs>();
            const Geometry g = geometry(in[0]->type.shape, out[0].type.shape, a.stride, a.pad);
            parallel_for(g.k, [&](int64_t k) {
              double* dw = out[0].data.data() + k * g.r * g.s * g.c;
              for (int64_t pixel = 0; pixel < g.n * g.out_h * g.out_w; ++pixel) {
                const double dy = in[1]->data[static_cast<size_t>(pixel * g.k + k)];
                const int64_t n = pixel / (g.out_h * g.out_w), at = pixel % (g.out_h * g.out_w);
                g.taps(n, at / g.out_w, at % g.out_w, [&](int64_t from, int64_t tap) {
                  const double* x = in[0]->data.data() + from;
                  for (int64_t c = 0; c < g.c; ++c) dw[tap + c] += dy * x[c];
                });
              }
            });
          }};
}

}  // namespace difuse::ir
