#include "runtime/tensor_bytes.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "ir/reference.h"

namespace difuse::runtime {
namespace {

float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// A number as `dtype` stores it, in the low bits.
uint32_t encoded(double number, ir::DType dtype) {
  const double rounded = ir::round_to(number, dtype);
  if (dtype == ir::DType::i32 || dtype == ir::DType::u32 || dtype == ir::DType::u8) {
    return static_cast<uint32_t>(static_cast<int64_t>(rounded));
  }
  uint32_t bits;
  const float f = static_cast<float>(rounded);
  std::memcpy(&bits, &f, sizeof(bits));
  if (dtype == ir::DType::f32) return bits;
  if (dtype == ir::DType::bf16) return bits >> 16;
  // f16: the value is exact, so only sign, exponent and the upper ten bits of the mantissa are to be placed.
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return sign | 0x7c00u | (magnitude > 0x7f800000u ? 0x200u : 0u);
  if (magnitude >= 0x38800000u) return sign | ((magnitude - 0x38000000u) >> 13);
  return sign | static_cast<uint32_t>(std::abs(rounded) * 0x1p24);
}

double from_half(uint32_t half) {
  const double sign = (half & 0x8000u) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(half >> 10 & 31u), mantissa = static_cast<int>(half & 1023u);
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

double decoded(uint32_t bits, ir::DType dtype) {
  switch (dtype) {
    case ir::DType::f32:
      return as_float(bits);
    case ir::DType::bf16:
      return as_float(bits << 16);
    case ir::DType::f16:
      return from_half(bits);
    case ir::DType::i32:
      return static_cast<int32_t>(bits);
    case ir::DType::u32:
    case ir::DType::u8:
      return bits;
  }
  return 0;
}

}  // namespace

void encode(std::span<const double> numbers, ir::DType dtype, std::span<std::byte> to) {
  const auto size = static_cast<size_t>(ir::size_of(dtype));
  const bool same = numbers.size() == 1;
  uint32_t bits = same ? encoded(numbers[0], dtype) : 0;
  for (size_t i = 0; i < to.size() / size; ++i) {
    if (!same) bits = encoded(numbers[i], dtype);
    std::memcpy(to.data() + i * size, &bits, size);  // The machine is little-endian, as tensors are.
  }
}

std::vector<double> decode(std::span<const std::byte> from, ir::DType dtype) {
  const auto size = static_cast<size_t>(ir::size_of(dtype));
  std::vector<double> numbers(from.size() / size);
  for (size_t i = 0; i < numbers.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, from.data() + i * size, size);
    numbers[i] = decoded(bits, dtype);
  }
  return numbers;
}

std::vector<std::byte> leaf_bytes(const ir::Node& node) {
  std::vector<std::byte> bytes(static_cast<size_t>(node.types[0].bytes()));
  if (node.op == ir::Op::constant) {
    const double number = node.as<ir::ConstantAttrs>().value;
    encode(std::span(&number, 1), node.types[0].dtype, bytes);
  } else {
    encode(node.as<ir::LiteralAttrs>().values, node.types[0].dtype, bytes);
  }
  return bytes;
}

}  // namespace difuse::runtime
