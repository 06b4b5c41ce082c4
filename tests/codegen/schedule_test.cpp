// How bodies are cut into loops: shape arithmetic, the choice of images, and what shares a pass.
#include "codegen/cpu/kernels/schedule.h"

#include <gtest/gtest.h>

#include "codegen/cpu/plain.h"
#include "ir/builder.h"

namespace difuse::codegen::cpu {
namespace {

using ir::Builder;
using ir::Shape;
using ir::Value;

ir::Type f32(Shape shape) { return {ir::DType::f32, std::move(shape)}; }

TEST(Access, PatternsOfBroadcasts) {
  auto kind = [](std::vector<StridedAxis> axes) { return classify(axes).kind; };
  EXPECT_EQ(kind({{4, 0}, {5, 0}}), Pattern::Kind::scalar);
  EXPECT_EQ(kind({}), Pattern::Kind::scalar);
  EXPECT_EQ(kind({{1, 0}, {4, 5}, {5, 1}}), Pattern::Kind::linear);
  EXPECT_EQ(kind({{7, 0}, {3, 0}, {6, 1}, {1, 0}}), Pattern::Kind::periodic);
  EXPECT_EQ(classify({{7, 0}, {3, 2}, {2, 1}}).period, 6);
  EXPECT_EQ(kind({{4, 1}, {5, 0}}), Pattern::Kind::strided);
  EXPECT_EQ(kind({{4, 3}, {5, 0}, {3, 1}}), Pattern::Kind::strided);
}

TEST(Access, RunsVisitEveryElementOnce) {
  const std::vector<StridedAxis> groups = {{4, 3}, {5, 0}, {3, 1}};
  for (int64_t begin : {0, 1, 7, 29}) {
    std::vector<int64_t> seen;
    for_runs(groups, begin, 60 - begin, [&](int64_t done, int64_t count, int64_t at) {
      EXPECT_EQ(done, std::ssize(seen));
      for (int64_t i = 0; i < count; ++i) seen.push_back(at + i);
    });
    ASSERT_EQ(std::ssize(seen), 60 - begin);
    for (int64_t i = begin; i < 60; ++i) EXPECT_EQ(seen[static_cast<size_t>(i - begin)], i / 15 * 3 + i % 3);
  }
}

TEST(Access, ImagesInsideAShape) {
  EXPECT_FALSE(split_images({6, 5}, 4));
  EXPECT_FALSE(split_images({}, 2));
  const auto parts = split_images({2, 6, 5}, 4);  // 2 x 2 images of 3 x 5
  ASSERT_TRUE(parts);
  ASSERT_EQ(parts->size(), 4u);
  EXPECT_TRUE((*parts)[0].leading && (*parts)[1].leading);
  EXPECT_EQ((*parts)[1].extent, 2);
  EXPECT_EQ((*parts)[1].inner, 3);
  EXPECT_EQ((*parts)[2].extent, 3);
}

struct Scheduled {
  ir::Graph graph{"body"};
  Builder b{graph};
  Body body;
  Schedule schedule;

  Value operand(Shape shape) { return b.input(std::to_string(graph.leaves(ir::Op::input).size()), f32(shape)); }
  void result(Value v) { graph.set_output(std::to_string(graph.outputs().size()), v); }
  void finish() {
    const Place somewhere{Place::Base::arena};
    const std::vector<BodyOperand> operands(graph.leaves(ir::Op::input).size(), {somewhere, {}});
    body = make_body(graph, operands, std::vector(graph.outputs().size(), somewhere), PlainContractions());
    schedule = make_schedule(body);
  }
};

TEST(Schedule, OneLoopForAPointwiseBody) {
  Scheduled s;
  const Shape image{3, 4, 4, 8};
  const Value x = s.operand(image), y = s.b.add(x, s.b.broadcast_channels(s.operand({8}), image));
  s.result(s.b.silu(y));
  s.result(s.b.reduce_sum(y, {0, 1, 2}));
  s.finish();
  EXPECT_EQ(s.schedule.images, 0);  // nothing depends on where an image ends
  EXPECT_EQ(s.schedule.groups.size(), 1u);
}

TEST(Schedule, PerImageOperandsAndSumsGoByImage) {
  Scheduled s;
  const Shape image{3, 4, 4, 8};
  const Value x = s.operand(image);
  const Value mean = s.b.mul(s.b.reduce_sum(x, {1, 2}), 1.0 / 16);
  s.result(s.b.sub(x, s.b.broadcast_image_channels(mean, image)));
  s.finish();
  EXPECT_EQ(s.schedule.images, 3);
  ASSERT_EQ(s.schedule.groups.size(), 3u);  // the sums, their mean, the difference: one pass over the images
  for (const Group& g : s.schedule.groups) EXPECT_EQ(g.level, 1);
}

TEST(Schedule, ASumOverImagesEndsTheLevel) {
  Scheduled s;
  const Value x = s.operand({1000});
  s.result(s.b.mul(x, s.b.broadcast_scalar(s.b.sqrt(s.b.sum_all(s.b.square(x))), {1000})));
  s.finish();
  EXPECT_EQ(s.schedule.images, 0);
  ASSERT_EQ(s.schedule.groups.size(), 3u);
  EXPECT_EQ(s.schedule.groups[1].elements, 1);
}

TEST(Schedule, AConvolutionTakesItsPrologueAndEpilogueAlong) {
  Scheduled s;
  const Shape image{5, 6, 6, 8};
  const Value a = s.b.silu(s.operand(image));
  const Value y = s.b.conv_fprop(a, s.operand({4, 3, 3, 8}), 1, 1);
  s.result(s.b.add(y, s.b.broadcast_channels(s.operand({4}), s.b.shape(y))));
  s.finish();
  EXPECT_EQ(s.schedule.images, 5);
  ASSERT_EQ(s.schedule.groups.size(), 4u);
  EXPECT_EQ(s.schedule.groups[0].level, 0);  // the weights' layout
  for (size_t g = 1; g < 4; ++g) EXPECT_EQ(s.schedule.groups[g].level, 1);
}

}  // namespace
}  // namespace difuse::codegen::cpu
