// Convolutions.
#include "passes/canonicalize.h"

namespace difuse::passes {
namespace {

using ir::Builder;
using ir::Node;
using ir::Op;
using ir::Value;

/// At stride 1 the gradient of the image is itself a convolution: of dy, with the filter turned by half a circle and
/// its channels exchanged, and a border of r - 1 - pad. One kind of convolution less for every backend to be fast at.
Value dgrad_as_fprop(Builder& build, const Node& node) {
  const auto& attrs = node.as<ir::ConvDgradAttrs>();
  const ir::Shape& weights = build.shape(node.operands[1]);
  const int64_t r = weights[1], s = weights[2], pad = r - 1 - attrs.pad;
  if (attrs.stride != 1 || r != s || pad < 0) return {};
  return build.conv_fprop(node.operands[0], build.repack(node.operands[1], ir::WeightLayout::flipped), 1, pad);
}

}  // namespace

std::span<const Rule> convolution_rules() {
  static constexpr Rule kRules[] = {{"dgrad_as_fprop", Op::conv_dgrad, dgrad_as_fprop}};
  return kRules;
}

}  // namespace difuse::passes
