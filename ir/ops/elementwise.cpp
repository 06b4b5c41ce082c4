// Ops whose result element i reads element i of each operand. Arithmetic is f32 (i32 for counters); comparisons give
// f32 1 or 0.
#include <bit>
#include <cmath>

#include "ir/ops/rules.h"
#include "ir/reference.h"

namespace difuse::ir {
namespace {

using Infer = decltype(OpRules::infer);

std::vector<Type> same_type(std::span<const Type> operands, const Attrs&) {
  for (const Type& t : operands) {
    require(t == operands[0], "operands must be of one type, not {} and {}", to_string(operands[0]), to_string(t));
  }
  require(operands[0].dtype == DType::f32 || operands[0].dtype == DType::i32, "computes in f32 or i32, not {}",
          to_string(operands[0].dtype));
  return {operands[0]};
}

std::vector<Type> float_type(std::span<const Type> operands, const Attrs& attrs) {
  require_f32(operands);
  return same_type(operands, attrs);
}

std::vector<Type> comparison_type(std::span<const Type> operands, const Attrs& attrs) {
  return {{DType::f32, same_type(operands, attrs)[0].shape}};
}

template <class F>
OpRules unary(Infer infer, F f, std::function<void(GradientContext&)> gradient) {
  return {std::move(infer), std::move(gradient),
          [f](const Node&, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& a = in[0]->data;
            auto& y = out[0].data;
            parallel_for(static_cast<int64_t>(y.size()),
                         [&](int64_t i) { y[static_cast<size_t>(i)] = f(a[static_cast<size_t>(i)]); });
          }};
}

template <class F>
OpRules binary(Infer infer, F f, std::function<void(GradientContext&)> gradient) {
  return {std::move(infer), std::move(gradient),
          [f](const Node&, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto &a = in[0]->data, &b = in[1]->data;
            auto& y = out[0].data;
            parallel_for(static_cast<int64_t>(y.size()), [&](int64_t i) {
              y[static_cast<size_t>(i)] = f(a[static_cast<size_t>(i)], b[static_cast<size_t>(i)]);
            });
          }};
}

/// Gradient of a one-operand op: `rule(build, x, y, dy)` gives dx.
template <class Rule>
std::function<void(GradientContext&)> chain(Rule rule) {
  return
      [rule](GradientContext& c) { c.accumulate(c.operand(0), rule(c.build(), c.operand(0), c.result(0), c.grad(0))); };
}

double sigmoid_of(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

/// Nearest with a 10-bit mantissa, ties away from zero: adds half a unit to the magnitude and truncates.
double round_tf32_of(double x) {
  const float f = static_cast<float>(x);
  if (!std::isfinite(f)) return f;
  const uint32_t bits = std::bit_cast<uint32_t>(f) + 0x1000u;
  return std::bit_cast<float>(bits & ~0x1fffu);
}

}  // namespace

OpRules rules_neg() {
  return unary(
      same_type, [](double x) { return -x; }, chain([](Builder& b, Value, Value, Value dy) { return b.neg(dy); }));
}
OpRules rules_abs() {
  return unary(
      same_type, [](double x) { return std::abs(x); },
      chain([](Builder& b, Value x, Value, Value dy) { return b.select(b.less(x, 0.0), b.neg(dy), dy); }));
}
OpRules rules_exp() {
  return unary(
      float_type, [](double x) { return std::exp(x); },
      chain([](Builder& b, Value, Value y, Value dy) { return b.mul(dy, y); }));
}
OpRules rules_expm1() {
  return unary(
      float_type, [](double x) { return std::expm1(x); },
      chain([](Builder& b, Value, Value y, Value dy) { return b.mul(dy, b.add(y, 1.0)); }));
}
OpRules rules_log() {
  return unary(
      float_type, [](double x) { return std::log(x); },
      chain([](Builder& b, Value x, Value, Value dy) { return b.div(dy, x); }));
}
OpRules rules_sqrt() {
  return unary(
      float_type, [](double x) { return std::sqrt(x); },
      chain([](Builder& b, Value, Value y, Value dy) { return b.div(b.mul(dy, 0.5), y); }));
}
OpRules rules_rsqrt() {
  return unary(
      float_type, [](double x) { return 1 / std::sqrt(x); },
      chain([](Builder& b, Value, Value y, Value dy) { return b.mul(b.mul(dy, -0.5), b.mul(y, b.mul(y, y))); }));
}
OpRules rules_recip() {
  return unary(
      float_type, [](double x) { return 1 / x; },
      chain([](Builder& b, Value, Value y, Value dy) { return b.neg(b.mul(dy, b.mul(y, y))); }));
}
OpRules rules_sin() {
  return unary(
      float_type, [](double x) { return std::sin(x); },
      chain([](Builder& b, Value x, Value, Value dy) { return b.mul(dy, b.cos(x)); }));
}
OpRules rules_cos() {
  return unary(
      float_type, [](double x) { return std::cos(x); },
      chain([](Builder& b, Value x, Value, Value dy) { return b.neg(b.mul(dy, b.sin(x))); }));
}
OpRules rules_tanh() {
  return unary(
      float_type, [](double x) { return std::tanh(x); },
      chain([](Builder& b, Value, Value y, Value dy) { return b.mul(dy, b.sub(1.0, b.mul(y, y))); }));
}
OpRules rules_sigmoid() {
  return unary(float_type, sigmoid_of,
               chain([](Builder& b, Value, Value y, Value dy) { return b.mul(dy, b.mul(y, b.sub(1.0, y))); }));
}
OpRules rules_silu() {
  return unary(
      float_type, [](double x) { return x * sigmoid_of(x); }, chain([](Builder& b, Value x, Value, Value dy) {
        const Value s = b.sigmoid(x);  // d silu = s (1 + x (1 - s))
        return b.mul(dy, b.mul(s, b.add(b.mul(x, b.sub(1.0, s)), 1.0)));
      }));
}
OpRules rules_floor() {
  return unary(float_type, [](double x) { return std::floor(x); }, {});
}
OpRules rules_is_finite() {
  return unary(float_type, [](double x) { return std::isfinite(x) ? 1.0 : 0.0; }, {});
}
OpRules rules_round_tf32() {
  // A rounding point is transparent to the gradient, as a cast is.
  return unary(float_type, round_tf32_of, chain([](Builder&, Value, Value, Value dy) { return dy; }));
}

OpRules rules_add() {
  return binary(
      same_type, [](double a, double b) { return a + b; },
      [](GradientContext& c) {
        c.accumulate(c.operand(0), c.grad(0));
        c.accumulate(c.operand(1), c.grad(0));
      });
}
OpRules rules_sub() {
  return binary(
      same_type, [](double a, double b) { return a - b; },
      [](GradientContext& c) {
        c.accumulate(c.operand(0), c.grad(0));
        if (c.needs(c.operand(1))) c.accumulate(c.operand(1), c.build().neg(c.grad(0)));
      });
}
OpRules rules_mul() {
  return binary(
      same_type, [](double a, double b) { return a * b; },
      [](GradientContext& c) {
        for (int i : {0, 1}) {
          if (c.needs(c.operand(i))) c.accumulate(c.operand(i), c.build().mul(c.grad(0), c.operand(1 - i)));
        }
      });
}
OpRules rules_div() {
  return binary(
      float_type, [](double a, double b) { return a / b; },
      [](GradientContext& c) {
        Builder& b = c.build();
        const Value da = b.div(c.grad(0), c.operand(1));
        c.accumulate(c.operand(0), da);
        if (c.needs(c.operand(1))) c.accumulate(c.operand(1), b.neg(b.mul(da, c.result(0))));
      });
}

namespace {
/// min and max pass the gradient to the operand they chose; the second on a tie, as `a < b ? a : b` does.
OpRules choice(bool less) {
  auto gradient = [less](GradientContext& c) {
    Builder& b = c.build();
    const Value x = c.operand(0), y = c.operand(1), zero = b.zeros_like(c.grad(0));
    const Value first = less ? b.less(x, y) : b.less(y, x);
    c.accumulate(x, b.select(first, c.grad(0), zero));
    c.accumulate(y, b.select(first, zero, c.grad(0)));
  };
  return binary(
      same_type, [less](double a, double b) { return (less ? a < b : a > b) ? a : b; }, gradient);
}
}  // namespace
OpRules rules_min() { return choice(true); }
OpRules rules_max() { return choice(false); }

OpRules rules_less() {
  return binary(comparison_type, [](double a, double b) { return a < b ? 1.0 : 0.0; }, {});
}
OpRules rules_less_equal() {
  return binary(comparison_type, [](double a, double b) { return a <= b ? 1.0 : 0.0; }, {});
}
OpRules rules_equal() {
  return binary(comparison_type, [](double a, double b) { return a == b ? 1.0 : 0.0; }, {});
}

OpRules rules_select() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            require(t[0].dtype == DType::f32 && t[0].shape == t[1].shape, "the condition is {} for operands {}",
                    to_string(t[0]), to_string(t[1]));
            return same_type(t.subspan(1), attrs);
          },
          [](GradientContext& c) {
            Builder& b = c.build();
            const Value zero = b.zeros_like(c.grad(0));
            c.accumulate(c.operand(1), b.select(c.operand(0), c.grad(0), zero));
            c.accumulate(c.operand(2), b.select(c.operand(0), zero, c.grad(0)));
          },
          [](const Node&, std::span<const Tensor* const> in, std::span<Tensor> out) {
            parallel_for(static_cast<int64_t>(out[0].data.size()), [&](int64_t at) {
              const auto i = static_cast<size_t>(at);
              out[0].data[i] = in[0]->data[i] != 0 ? in[1]->data[i] : in[2]->data[i];
            });
          }};
}

OpRules rules_cast() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            return std::vector<Type>{{std::get<CastAttrs>(attrs).dtype, t[0].shape}};
          },
          [](GradientContext& c) {
            const DType from = c.build().type(c.operand(0)).dtype;
            if (is_float(from)) c.accumulate(c.operand(0), c.build().cast(c.grad(0), from));
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const DType to = node.as<CastAttrs>().dtype;
            // A cast to f32 widens; the reference's f32 values are doubles and stay as they are.
            parallel_for(static_cast<int64_t>(out[0].data.size()), [&](int64_t at) {
              const auto i = static_cast<size_t>(at);
              out[0].data[i] = to == DType::f32 ? in[0]->data[i] : round_to(in[0]->data[i], to);
            });
          }};
}

OpRules rules_carry() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            require(t[0].dtype == DType::f32, "f32, not {}", to_string(t[0].dtype));
            require(is_float(std::get<CarryAttrs>(attrs).dtype), "a float is carried, not {}",
                    to_string(std::get<CarryAttrs>(attrs).dtype));
            require(!std::get<CarryAttrs>(attrs).name.empty(), "what is carried needs a name");
            return std::vector<Type>{{std::get<CarryAttrs>(attrs).dtype, t[0].shape}};
          },
          {},  // autodiff runs before anything is carried
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const DType to = node.as<CarryAttrs>().dtype;
            parallel_for(static_cast<int64_t>(out[0].data.size()), [&](int64_t at) {
              const auto i = static_cast<size_t>(at);
              out[0].data[i] = to == DType::f32 ? round_tf32_of(in[0]->data[i]) : round_to(in[0]->data[i], to);
            });
          }};
}

}  // namespace difuse::ir
