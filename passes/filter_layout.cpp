#include "passes/filter_layout.h"

#include <span>

#include "passes/rewrite.h"

namespace difuse::passes {
namespace {

using ir::Builder;
using ir::Node;
using ir::Op;
using ir::Value;

/// conv_fprop(x, repack(w, flipped)) -> conv_dgrad(x, w)
Value fprop_as_dgrad(Builder& build, const Node& node) {
  const auto& attrs = node.as<ir::ConvAttrs>();
  const Node& filter = build.graph().node(node.operands[1]);
  if (filter.op != Op::repack || filter.as<ir::RepackAttrs>().layout != ir::WeightLayout::flipped) return {};
  const Value image = node.operands[0], lying = filter.operands[0];
  const ir::Shape& weights = build.shape(lying);  // [k, r, s, c]
  const int64_t taps = weights[1], pad = taps - 1 - attrs.pad;
  const bool engines = build.type(image).dtype == ir::DType::bf16 && (taps == 1 || taps == 3) && weights[2] == taps &&
                       weights[0] % 8 == 0 && weights[3] % 8 == 0;
  if (!engines || attrs.stride != 1 || pad < 0) return {};
  const ir::Shape& result = node.types[0].shape;
  return build.conv_dgrad(image, lying, {.stride = 1, .pad = pad, .height = result[1], .width = result[2]});
}

/// conv_wgrad(x, dy) -> repack(conv_wgrad(dy, x), flipped): dw[k, r, s, c] sums dy[q, k] x[q + (r, s) - pad, c] over q,
/// which is x[p, c] dy[p + (r', s') - pad', k] over p, with r' = taps - 1 - r and pad' = taps - 1 - pad.
Value wgrad_of_few_outputs(Builder& build, const Node& node) {
  constexpr int64_t kFew = 8;
  const auto& attrs = node.as<ir::ConvWgradAttrs>();
  const Value image = node.operands[0], gradient = node.operands[1];
  const int64_t inputs = build.shape(image).back(), outputs = build.shape(gradient).back();
  const int64_t taps = attrs.r, pad = taps - 1 - attrs.pad;
  const bool halves = build.type(image).dtype == ir::DType::bf16 && build.type(gradient).dtype == ir::DType::bf16;
  if (!halves || outputs >= kFew || outputs >= inputs || taps == 1) return {};
  if (attrs.stride != 1 || attrs.s != taps || pad < 0) return {};
  const Value turned = build.conv_wgrad(gradient, image, {.stride = 1, .pad = pad, .r = taps, .s = taps});
  return build.repack(turned, ir::WeightLayout::flipped);
}

}  // namespace

PassResult set_filter_layout(const ir::Graph& graph, PassContext& context) {
  constexpr int64_t kHopper = 90;
  static constexpr Rule kRules[] = {{"fprop_as_dgrad", Op::conv_fprop, fprop_as_dgrad},
                                    {"wgrad_of_few_outputs", Op::conv_wgrad, wgrad_of_few_outputs}};
  if (context.device.architecture != kHopper) return {graph, false};
  return rewrite(graph, kRules, context);
}

}  // namespace difuse::passes
