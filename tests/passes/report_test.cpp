#include "passes/fusion/report.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace difuse {
namespace {

/// x: 64 bytes, y: 128; b: f32[4], 16 bytes, repeated over the rows.
const ir::Graph& fused() {
  static const ir::Graph graph = ir::parse(R"(graph g {
  %0 = input {name = "x", dtype = bf16, shape = [8, 4]} : bf16[8, 4]
  %1 = input {name = "y", dtype = f32, shape = [8, 4]} : f32[8, 4]
  %2 = input {name = "b", dtype = f32, shape = [4]} : f32[4]
  %3 = fusion %0, %1, %2 {hero = pointwise, body = graph body {
    %0 = input {name = "0", dtype = bf16, shape = [8, 4]} : bf16[8, 4]
    %1 = input {name = "1", dtype = f32, shape = [8, 4]} : f32[8, 4]
    %2 = input {name = "2", dtype = f32, shape = [4]} : f32[4]
    %3 = cast %0 {dtype = f32} : f32[8, 4]
    %4 = broadcast %2 {shape = [8, 4], dims = [1]} : f32[8, 4]
    %5 = add %3, %4 : f32[8, 4]
    %6 = add %5, %1 : f32[8, 4]
    %7 = silu %6 : f32[8, 4]
    output "0" = %7
  }} : f32[8, 4]
  %4 = neg %3 : f32[8, 4]
  output "z" = %4
}
)");
  return graph;
}

TEST(KernelContent, CountsWhatKernelsOfSingleOpsWouldMove) {
  const passes::KernelContent content = passes::content_of(fused(), fused().node(3));
  EXPECT_EQ(content.ops, "add x2, silu");
  EXPECT_EQ(content.bytes, 64 + 128 + 16 + 128);
  EXPECT_EQ(content.bytes_apart, (64 + 16 + 128) + (128 + 128 + 128) + (128 + 128));
}

TEST(KernelContent, OfAPlainNodeIsItsOp) {
  const passes::KernelContent content = passes::content_of(fused(), fused().node(4));
  EXPECT_EQ(content.ops, "neg");
  EXPECT_EQ(content.bytes, 256);
  EXPECT_EQ(content.bytes_apart, 256);
}

}  // namespace
}  // namespace difuse
