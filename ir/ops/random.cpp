// Random draws as pure functions of (seed u32[2], index i32[N], step i32[]).
#include <cmath>
#include <numbers>

#include "ir/ops/rules.h"
#include "ir/philox.h"

namespace difuse::ir {
namespace {

std::vector<Type> random_type(std::span<const Type> t, const Shape& shape, DType dtype) {
  require(t[0] == Type({DType::u32, {2}}), "the seed must be u32[2], is {}", to_string(t[0]));
  require(t[1].dtype == DType::i32 && t[1].rank() == 1, "the index must be i32[N], is {}", to_string(t[1]));
  require(t[2] == Type({DType::i32, {}}), "the step must be i32[], is {}", to_string(t[2]));
  Type result{dtype, {t[1].shape[0]}};
  result.shape.insert(result.shape.end(), shape.begin(), shape.end());
  return {result};
}

/// Calls draw(words, to, count) for each block of up to four elements of each sample.
template <class Draw>
void draw_all(std::span<const Tensor* const> in, Tensor& out, int64_t stream, const Draw& draw) {
  const int64_t samples = out.type.shape[0], each = out.type.elements() / samples;
  parallel_for(samples, [&](int64_t n) {
    const DrawKey key{{static_cast<uint32_t>(in[0]->data[0]), static_cast<uint32_t>(in[0]->data[1])},
                      static_cast<uint32_t>(stream),
                      static_cast<uint32_t>(static_cast<int64_t>(in[1]->data[static_cast<size_t>(n)])),
                      static_cast<uint32_t>(static_cast<int64_t>(in[2]->data[0]))};
    for (int64_t at = 0; at < each; at += 4) {
      draw(key.block(at / 4), out.data.data() + n * each + at, std::min<int64_t>(4, each - at));
    }
  });
}

}  // namespace

OpRules rules_random_normal() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            return random_type(t, std::get<RandomAttrs>(attrs).shape, DType::f32);
          },
          {},
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            // Box and Muller: words (0, 1) and (2, 3) give two normals each.
            draw_all(in, out[0], node.as<RandomAttrs>().stream, [](const Philox4& words, double* to, int64_t count) {
              for (int64_t i = 0; i < count; ++i) {
                const auto pair = static_cast<size_t>(i / 2 * 2);
                const double radius = std::sqrt(-2 * std::log(static_cast<double>(uniform_of(words[pair]))));
                const double angle = 2 * std::numbers::pi * static_cast<double>(uniform_of(words[pair + 1]));
                to[i] = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
              }
            });
          }};
}

OpRules rules_random_uniform() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            return random_type(t, std::get<RandomAttrs>(attrs).shape, DType::f32);
          },
          {},
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            draw_all(in, out[0], node.as<RandomAttrs>().stream, [](const Philox4& words, double* to, int64_t count) {
              for (int64_t i = 0; i < count; ++i)
                to[i] = static_cast<double>(uniform_of(words[static_cast<size_t>(i)]));
            });
          }};
}

OpRules rules_random_int() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const auto& a = std::get<RandomIntAttrs>(attrs);
            require(a.bound > 0 && a.bound <= (int64_t{1} << 31), "bound {}", a.bound);
            return random_type(t, a.shape, DType::i32);
          },
          {},
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& a = node.as<RandomIntAttrs>();
            draw_all(in, out[0], a.stream, [&](const Philox4& words, double* to, int64_t count) {
              for (int64_t i = 0; i < count; ++i) {
                to[i] = uniform_int_of(words[static_cast<size_t>(i)], static_cast<uint32_t>(a.bound));
              }
            });
          }};
}

}  // namespace difuse::ir
