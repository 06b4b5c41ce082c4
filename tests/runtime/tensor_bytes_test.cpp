// The bytes of numbers, by their bit patterns: everything that tests write to a backend and read from it goes this way.
#include "runtime/tensor_bytes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace difuse::runtime {
namespace {

using ir::DType;

uint32_t bits_of(double number, DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(ir::size_of(dtype)));
  encode(std::span(&number, 1), dtype, bytes);
  uint32_t bits = 0;
  std::memcpy(&bits, bytes.data(), bytes.size());
  return bits;
}

double number_of(uint32_t bits, DType dtype) {
  return decode(std::as_bytes(std::span(&bits, 1)).first(static_cast<size_t>(ir::size_of(dtype))), dtype)[0];
}

struct Encoding {
  DType dtype;
  double number;
  uint32_t bits;
};

TEST(TensorBytes, AreTheFormats) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Encoding cases[] = {
      {DType::f32, 1.0, 0x3f800000},
      {DType::f32, -0.15625, 0xbe200000},
      {DType::f32, kInfinity, 0x7f800000},
      {DType::bf16, 1.0, 0x3f80},
      {DType::bf16, -2.5, 0xc020},
      {DType::bf16, -kInfinity, 0xff80},
      {DType::f16, 1.0, 0x3c00},
      {DType::f16, -2.0, 0xc000},
      {DType::f16, 65504.0, 0x7bff},
      {DType::f16, 0x1p-14, 0x0400},         // the least normal number
      {DType::f16, 1023 * 0x1p-24, 0x03ff},  // the largest subnormal one
      {DType::f16, -0x1p-24, 0x8001},
      {DType::f16, kInfinity, 0x7c00},
      {DType::i32, -2.0, 0xfffffffe},
      {DType::u32, 4294967295.0, 0xffffffff},
      {DType::u8, 200.0, 200},
  };
  for (const Encoding& c : cases) {
    EXPECT_EQ(bits_of(c.number, c.dtype), c.bits) << ir::to_string(c.dtype) << " " << c.number;
    EXPECT_EQ(number_of(c.bits, c.dtype), c.number) << ir::to_string(c.dtype) << " " << c.number;
  }
}

TEST(TensorBytes, NotANumberStaysNone) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_TRUE(std::isnan(number_of(bits_of(std::nan(""), dtype), dtype))) << ir::to_string(dtype);
  }
}

TEST(TensorBytes, RoundToNearestAndTiesToEven) {
  EXPECT_EQ(bits_of(1 + 0x1p-8, DType::bf16), 0x3f80u);
  EXPECT_EQ(bits_of(1 + 3 * 0x1p-8, DType::bf16), 0x3f82u);
  EXPECT_EQ(bits_of(1 + 0x1p-11, DType::f16), 0x3c00u);
  EXPECT_EQ(bits_of(1 + 3 * 0x1p-11, DType::f16), 0x3c02u);
}

TEST(TensorBytes, OneNumberFillsAll) {
  std::vector<std::byte> bytes(6);
  const double number = 1;
  encode(std::span(&number, 1), DType::bf16, bytes);
  EXPECT_EQ(decode(bytes, DType::bf16), (std::vector<double>{1, 1, 1}));
}

}  // namespace
}  // namespace difuse::runtime
