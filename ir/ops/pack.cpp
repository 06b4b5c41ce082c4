// Parameters as slices of one flat vector, and weight layouts.
#include <algorithm>

#include "ir/ops/rules.h"

namespace difuse::ir {

OpRules rules_pack() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const auto& a = std::get<PackAttrs>(attrs);
            require(a.offsets.size() == t.size(), "{} offsets for {} operands", a.offsets.size(), t.size());
            int64_t end = 0;
            for (size_t i = 0; i < t.size(); ++i) {
              require(t[i].dtype == t[0].dtype, "operands of one dtype, not {} and {}", to_string(t[0].dtype),
                      to_string(t[i].dtype));
              require(a.offsets[i] >= end, "slice {} starts at {}, before the end {} of the one before", i,
                      a.offsets[i], end);
              end = a.offsets[i] + t[i].elements();
            }
            require(end <= a.size, "the last slice ends at {} of {} elements", end, a.size);
            return std::vector<Type>{{t[0].dtype, {a.size}}};
          },
          [](GradientContext& c) {
            const auto& a = c.node().as<PackAttrs>();
            for (size_t i = 0; i < a.offsets.size(); ++i) {
              const Value v = c.node().operands[i];
              if (c.needs(v)) c.accumulate(v, c.build().view(c.grad(0), a.offsets[i], c.build().shape(v)));
            }
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& a = node.as<PackAttrs>();
            for (size_t i = 0; i < in.size(); ++i) {
              std::ranges::copy(in[i]->data, out[0].data.begin() + a.offsets[i]);
            }
          }};
}

OpRules rules_view() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const auto& a = std::get<ViewAttrs>(attrs);
            require_rank(t[0], 1, "the flat vector");
            require(a.offset >= 0 && a.offset + element_count(a.shape) <= t[0].elements(), "{} at {} of {} elements",
                    to_string(a.shape), a.offset, t[0].elements());
            return std::vector<Type>{{t[0].dtype, a.shape}};
          },
          [](GradientContext& c) {
            if (!c.needs(c.operand(0))) return;
            const auto& a = c.node().as<ViewAttrs>();
            const int64_t size = c.build().type(c.operand(0)).elements();
            c.accumulate(c.operand(0), c.build().pack({c.grad(0)}, {a.offset}, size));
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            std::copy_n(in[0]->data.begin() + node.as<ViewAttrs>().offset, out[0].data.size(), out[0].data.begin());
          }};
}

OpRules rules_repack() {
  return {[](std::span<const Type> t, const Attrs&) {
            require_rank(t[0], 4, "the weight");
            const Shape& s = t[0].shape;
            return std::vector<Type>{{t[0].dtype, {s[3], s[1], s[2], s[0]}}};
          },
          [](GradientContext& c) {  // flipping twice gives the weight back
            c.accumulate(c.operand(0), c.build().repack(c.grad(0), c.node().as<RepackAttrs>().layout));
          },
          [](const Node&, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const Shape& s = in[0]->type.shape;
            const int64_t taps = s[1] * s[2];
            parallel_for(s[0], [&](int64_t k) {
              for (int64_t tap = 0; tap < taps; ++tap) {
                for (int64_t c = 0; c < s[3]; ++c) {
                  out[0].data[static_cast<size_t>((c * taps + taps - 1 - tap) * s[0] + k)] =
                      in[0]->data[static_cast<size_t>((k * taps + tap) * s[3] + c)];
                }
              }
            });
          }};
}

}  // namespace difuse::ir
