#include "models/low_res.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "ir/error.h"
#include "models/pixels.h"

namespace difuse::models {
namespace {

using ir::DType;
using ir::Value;

/// The mean of every `factor` neighbours along an axis.
Value shrink_axis(ir::Builder& build, Value image, size_t axis, int64_t factor) {
  ir::Shape shape = build.shape(image);
  shape[axis] /= factor;
  ir::Shape split = shape;
  split.insert(split.begin() + static_cast<std::ptrdiff_t>(axis) + 1, factor);
  const auto inner = static_cast<int64_t>(axis) + 1;
  const Value parts = build.reshape(image, split);
  Value sum;
  for (int64_t i = 0; i < factor; ++i) {
    const Value part = build.slice(parts, inner, i, i + 1);
    sum = sum.valid() ? build.add(sum, part) : part;
  }
  return build.reshape(build.mul(sum, 1 / static_cast<double>(factor)), shape);
}

/// Each pixel becomes `factor` of them, between it and its nearer neighbour.
Value grow_axis(ir::Builder& build, Value image, size_t axis, int64_t factor) {
  const ir::Shape shape = build.shape(image);
  const auto at = static_cast<int64_t>(axis);
  const int64_t size = shape[axis];
  const Value first = build.slice(image, at, 0, 1), last = build.slice(image, at, size - 1, size);
  const Value before = size == 1 ? image : build.concat({first, build.slice(image, at, 0, size - 1)}, at);
  const Value after = size == 1 ? image : build.concat({build.slice(image, at, 1, size), last}, at);
  ir::Shape split = shape, grown = shape;
  split.insert(split.begin() + static_cast<std::ptrdiff_t>(axis) + 1, 1);
  grown[axis] *= factor;
  std::vector<Value> parts;
  for (int64_t i = 0; i < factor; ++i) {
    // Where the new pixel's centre lies, from that of the old one, in old pixels.
    const double offset = (static_cast<double>(i) + 0.5) / static_cast<double>(factor) - 0.5;
    const Value neighbour = offset < 0 ? before : after;
    const double share = std::abs(offset);
    parts.push_back(build.reshape(build.add(build.mul(image, 1 - share), build.mul(neighbour, share)), split));
  }
  return build.reshape(build.concat(parts, at + 1), grown);
}

}  // namespace

ir::Shape low_res_shape(const UNetConfig& unet) {
  if (unet.conditioning_channels != unet.image_channels) {
    throw Error(
        fmt::format("the model's second image has {} channels and its images have {}: what it shows is not known",
                    unet.conditioning_channels, unet.image_channels),
        "set conditioning_channels to image_channels for a model that enlarges images, or to 0", ExitCode::wrong_usage);
  }
  return {unet.image_height / unet.low_res_factor, unet.image_width / unet.low_res_factor, unet.image_channels};
}

Value area_downsample(ir::Builder& build, Value image, int64_t factor) {
  return shrink_axis(build, shrink_axis(build, image, 1, factor), 2, factor);
}

Value bilinear_upsample(ir::Builder& build, Value image, int64_t factor) {
  return grow_axis(build, grow_axis(build, image, 1, factor), 2, factor);
}

Value conditioning_of(ir::Builder& build, const UNetConfig& unet, Value x0) {
  low_res_shape(unet);
  return bilinear_upsample(build, area_downsample(build, x0, unet.low_res_factor), unet.low_res_factor);
}

Value conditioning_input(ir::Builder& build, const UNetConfig& unet, int64_t batch) {
  const ir::Shape image = low_res_shape(unet);
  const Value pixels = build.input("low_res", {DType::u8, {batch, image[0], image[1], image[2]}});
  return bilinear_upsample(build, signed_pixels(build, build.cast(pixels, DType::f32)), unet.low_res_factor);
}

}  // namespace difuse::models
