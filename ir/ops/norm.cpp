// GroupNorm in parts: channel_moments (a tensor's statistics per strip and channel), group_finish (the group's mean and
// reciprocal deviation per channel), and the normalise itself, which is elementwise.
//
// Moments are combined by Chan, Golub and LeVeque's formula ("Updating Formulae and a Pairwise Algorithm for Computing
// Sample Variances", 1979), never as E[x^2] - E[x]^2.
#include <cmath>

#include "ir/ops/rules.h"
#include "ir/strips.h"

namespace difuse::ir {

OpRules rules_channel_moments() {
  return {[](std::span<const Type> t, const Attrs&) {
            require_rank(t[0], 4, "the image");
            require(is_float(t[0].dtype), "the image is {}", to_string(t[0]));
            const Shape& s = t[0].shape;
            const Type result{DType::f32, {s[0], Strips{s[1], s[2]}.count(), s[3]}};
            return std::vector<Type>{result, result};
          },
          [](GradientContext&) {
            throw Error("channel_moments has a gradient only through group_finish, which gives the image's at once");
          },
          [](const Node&, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const Shape& s = in[0]->type.shape;
            const Strips strips{s[1], s[2]};
            parallel_for(s[0] * strips.count(), [&](int64_t at) {
              const int64_t n = at / strips.count(), strip = at % strips.count();
              for (int64_t c = 0; c < s[3]; ++c) {
                auto sum_over_strip = [&](auto term) {
                  double sum = 0;
                  for (int64_t h = strips.top(strip); h < strips.bottom(strip); ++h) {
                    for (int64_t w = strips.left(strip); w < strips.right(strip); ++w) {
                      sum += term(in[0]->data[static_cast<size_t>(((n * s[1] + h) * s[2] + w) * s[3] + c)]);
                    }
                  }
                  return sum;
                };
                const double mean =
                    sum_over_strip([](double x) { return x; }) / static_cast<double>(strips.pixels(strip));
                const auto to = static_cast<size_t>(at * s[3] + c);
                out[0].data[to] = mean;
                out[1].data[to] = sum_over_strip([&](double x) { return (x - mean) * (x - mean); });
              }
            });
          }};
}

namespace {

/// Sums [N, C] over each group's channels and gives the sum, times a factor, back to each of them.
Value group_sum(Builder& b, Value v, int64_t groups, double factor) {
  const Shape shape = b.shape(v);
  const Shape grouped{shape[0], groups, shape[1] / groups};
  const Value sum = b.reduce_sum(b.reshape(v, grouped), {2});
  return b.reshape(b.mul(b.broadcast(sum, grouped, {0, 1}), factor), shape);
}

// With m pixels in a group, d mean / dx = 1/m and d var / dx = 2 (x - mean) / m, so the image's gradient is
// a + (x - mean) b with one a and one b per image and channel: a = sum_g(dmean) / m, b = 2 sum_g(dvar) / m,
// dvar = -1/2 rstd^3 drstd.
void group_finish_gradient(GradientContext& c) {
  Builder& b = c.build();
  const auto& attrs = c.node().as<GroupFinishAttrs>();
  const Value mean = c.result(0), rstd = c.result(1);
  const Shape shape = b.shape(mean);
  const double inverse_count = 1.0 / static_cast<double>(attrs.height * attrs.width * (shape[1] / attrs.groups));
  Value shift, slope;
  if (c.grad(0).valid()) shift = group_sum(b, c.grad(0), attrs.groups, inverse_count);
  if (c.grad(1).valid()) {
    const Value dvar = b.mul(b.mul(c.grad(1), -0.5), b.mul(rstd, b.mul(rstd, rstd)));
    slope = group_sum(b, dvar, attrs.groups, 2 * inverse_count);
  }
  int64_t begin = 0;
  for (size_t i = 0; i < c.node().operands.size(); i += 2) {
    const Node& moments = b.graph().node(c.node().operands[i]);
    const Value mean_of = c.node().operands[i], m2_of = c.node().operands[i + 1];
    require(moments.op == Op::channel_moments && mean_of.result == 0 && m2_of == Value{mean_of.node, 1},
            "operands {} and {} are not the mean and M2 of one channel_moments", i, i + 1);
    const Value image = moments.operands[0];
    const Shape& image_shape = b.shape(image);
    const int64_t end = begin + image_shape[3];
    auto spread = [&](Value v) { return b.broadcast_image_channels(b.slice(v, 1, begin, end), image_shape); };
    if (c.needs(image)) {
      if (slope.valid()) c.accumulate(image, b.mul(b.sub(image, spread(mean)), spread(slope)));
      if (shift.valid()) c.accumulate(image, spread(shift));
    }
    begin = end;
  }
}

}  // namespace

OpRules rules_group_finish() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const auto& a = std::get<GroupFinishAttrs>(attrs);
            require_f32(t);
            require(t.size() % 2 == 0, "operands are pairs of mean and M2, got {}", t.size());
            const int64_t strips = Strips{a.height, a.width}.count();
            int64_t channels = 0;
            for (size_t i = 0; i < t.size(); ++i) {
              require_rank(t[i], 3, "moments");
              require(t[i].shape[0] == t[0].shape[0] && t[i].shape[1] == strips && t[i] == t[i - i % 2],
                      "moments {} do not fit {} strips of a {}x{} image", to_string(t[i]), strips, a.height, a.width);
              if (i % 2 == 0) channels += t[i].shape[2];
            }
            require(a.groups > 0 && channels % a.groups == 0, "{} channels are not divisible by {} groups", channels,
                    a.groups);
            const Type result{DType::f32, {t[0].shape[0], channels}};
            return std::vector<Type>{result, result};
          },
          group_finish_gradient,
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& a = node.as<GroupFinishAttrs>();
            const Strips strips{a.height, a.width};
            const int64_t channels = out[0].type.shape[1], width = channels / a.groups;
            parallel_for(out[0].type.shape[0] * a.groups, [&](int64_t at) {
              const int64_t n = at / a.groups, group = at % a.groups;
              double count = 0, mean = 0, m2 = 0;
              int64_t first = 0;  // the channel at which operand pair i begins
              for (size_t i = 0; i < in.size(); i += 2) {
                const int64_t size = in[i]->type.shape[2];
                for (int64_t c = std::max(first, group * width); c < std::min(first + size, (group + 1) * width); ++c) {
                  for (int64_t strip = 0; strip < strips.count(); ++strip) {
                    const auto from = static_cast<size_t>((n * strips.count() + strip) * size + c - first);
                    const auto pixels = static_cast<double>(strips.pixels(strip));
                    const double delta = in[i]->data[from] - mean;
                    m2 += in[i + 1]->data[from] + delta * delta * count * pixels / (count + pixels);
                    count += pixels;
                    mean += delta * pixels / count;
                  }
                }
                first += size;
              }
              for (int64_t c = group * width; c < (group + 1) * width; ++c) {
                out[0].data[static_cast<size_t>(n * channels + c)] = mean;
                out[1].data[static_cast<size_t>(n * channels + c)] = 1 / std::sqrt(m2 / count + a.eps);
              }
            });
          }};
}

}  // namespace difuse::ir
