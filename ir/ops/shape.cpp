// Ops that move elements and compute nothing: broadcast, reshape, transpose, concat, slice, reverse, pad, gather.
#include <algorithm>

#include "ir/ops/rules.h"

namespace difuse::ir {
namespace {

void require_axis(int64_t axis, const Type& t) {
  require(axis >= 0 && axis < t.rank(), "axis {} of {}", axis, to_string(t));
}

/// Elements between neighbours along each axis.
Shape strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

/// result[i] = operand[sum of index_d * stride_d], over all indices of `shape`.
void strided_copy(const Tensor& from, Tensor& to, const Shape& strides) {
  const Shape& shape = to.type.shape;
  parallel_for(static_cast<int64_t>(to.data.size()), [&](int64_t at) {
    int64_t rest = at, source = 0;
    for (size_t d = shape.size(); d-- > 0;) source += rest % shape[d] * strides[d], rest /= shape[d];
    to.data[static_cast<size_t>(at)] = from.data[static_cast<size_t>(source)];
  });
}

}  // namespace

OpRules rules_broadcast() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const auto& a = std::get<BroadcastAttrs>(attrs);
            require(a.dims.size() == t[0].shape.size(), "{} dims for operand {}", a.dims.size(), to_string(t[0]));
            for (size_t i = 0; i < a.dims.size(); ++i) {
              const int64_t d = a.dims[i];
              require(d >= 0 && d < static_cast<int64_t>(a.shape.size()) && (i == 0 || d > a.dims[i - 1]),
                      "dims must increase and lie inside {}", to_string(a.shape));
              require(a.shape[static_cast<size_t>(d)] == t[0].shape[i], "operand {} does not fit {} at axis {}",
                      to_string(t[0]), to_string(a.shape), d);
            }
            return std::vector<Type>{{t[0].dtype, a.shape}};
          },
          [](GradientContext& c) {
            const auto& a = c.node().as<BroadcastAttrs>();
            std::vector<int64_t> axes;
            for (int64_t d = 0; d < static_cast<int64_t>(a.shape.size()); ++d) {
              if (!std::ranges::count(a.dims, d)) axes.push_back(d);
            }
            c.accumulate(c.operand(0), c.build().reduce_sum(c.grad(0), axes));
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& a = node.as<BroadcastAttrs>();
            const Shape from = strides_of(in[0]->type.shape);
            Shape strides(a.shape.size(), 0);
            for (size_t i = 0; i < a.dims.size(); ++i) strides[static_cast<size_t>(a.dims[i])] = from[i];
            strided_copy(*in[0], out[0], strides);
          }};
}

OpRules rules_reshape() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const auto& a = std::get<ReshapeAttrs>(attrs);
            require(element_count(a.shape) == t[0].elements(), "{} elements do not fill {}", t[0].elements(),
                    to_string(a.shape));
            return std::vector<Type>{{t[0].dtype, a.shape}};
          },
          [](GradientContext& c) {
            c.accumulate(c.operand(0), c.build().reshape(c.grad(0), c.build().shape(c.operand(0))));
          },
          [](const Node&, std::span<const Tensor* const> in, std::span<Tensor> out) { out[0].data = in[0]->data; }};
}

OpRules rules_transpose() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const auto& perm = std::get<TransposeAttrs>(attrs).perm;
            require(std::ssize(perm) == t[0].rank(), "{} entries of perm for {}", perm.size(), to_string(t[0]));
            Type result{t[0].dtype, Shape(perm.size())};
            for (size_t i = 0; i < perm.size(); ++i) {
              require(std::ranges::count(perm, static_cast<int64_t>(i)) == 1, "perm must name each axis once");
              result.shape[i] = t[0].shape[static_cast<size_t>(perm[i])];
            }
            return std::vector<Type>{result};
          },
          [](GradientContext& c) {
            const auto& perm = c.node().as<TransposeAttrs>().perm;
            std::vector<int64_t> inverse(perm.size());
            for (size_t i = 0; i < perm.size(); ++i) inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
            c.accumulate(c.operand(0), c.build().transpose(c.grad(0), inverse));
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& perm = node.as<TransposeAttrs>().perm;
            const Shape from = strides_of(in[0]->type.shape);
            Shape strides(perm.size());
            for (size_t i = 0; i < perm.size(); ++i) strides[i] = from[static_cast<size_t>(perm[i])];
            strided_copy(*in[0], out[0], strides);
          }};
}

OpRules rules_concat() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const int64_t axis = std::get<ConcatAttrs>(attrs).axis;
            require_axis(axis, t[0]);
            Type result = t[0];
            int64_t extent = 0;
            for (const Type& part : t) {
              require(part.rank() == result.rank(), "{} beside {}", to_string(part), to_string(t[0]));
              extent += part.shape[static_cast<size_t>(axis)];
              Type rest = part;
              rest.shape[static_cast<size_t>(axis)] = result.shape[static_cast<size_t>(axis)];
              require(rest == result, "{} beside {} differs outside axis {}", to_string(part), to_string(t[0]), axis);
            }
            result.shape[static_cast<size_t>(axis)] = extent;
            return std::vector<Type>{result};
          },
          [](GradientContext& c) {
            const int64_t axis = c.node().as<ConcatAttrs>().axis;
            int64_t begin = 0;
            for (Value v : c.node().operands) {
              const int64_t extent = c.build().shape(v)[static_cast<size_t>(axis)];
              if (c.needs(v)) c.accumulate(v, c.build().slice(c.grad(0), axis, begin, begin + extent));
              begin += extent;
            }
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const int64_t axis = node.as<ConcatAttrs>().axis;
            const AxisSplit to(out[0].type.shape, axis);
            int64_t begin = 0;
            for (const Tensor* part : in) {
              const AxisSplit from(part->type.shape, axis);
              const int64_t run = from.axis * from.inner;
              for (int64_t o = 0; o < from.outer; ++o) {
                std::copy_n(part->data.begin() + o * run, run, out[0].data.begin() + (o * to.axis + begin) * to.inner);
              }
              begin += from.axis;
            }
          }};
}

OpRules rules_slice() {
  return {
      [](std::span<const Type> t, const Attrs& attrs) {
        const auto& a = std::get<SliceAttrs>(attrs);
        require_axis(a.axis, t[0]);
        const int64_t extent = t[0].shape[static_cast<size_t>(a.axis)];
        require(0 <= a.begin && a.begin < a.end && a.end <= extent, "[{}, {}) of {} elements", a.begin, a.end, extent);
        Type result = t[0];
        result.shape[static_cast<size_t>(a.axis)] = a.end - a.begin;
        return std::vector<Type>{result};
      },
      [](GradientContext& c) {
        const auto& a = c.node().as<SliceAttrs>();
        const int64_t extent = c.build().shape(c.operand(0))[static_cast<size_t>(a.axis)];
        c.accumulate(c.operand(0), c.build().pad(c.grad(0), a.axis, a.begin, extent - a.end));
      },
      [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
        const auto& a = node.as<SliceAttrs>();
        const AxisSplit from(in[0]->type.shape, a.axis);
        const int64_t run = (a.end - a.begin) * from.inner;
        for (int64_t o = 0; o < from.outer; ++o) {
          std::copy_n(in[0]->data.begin() + (o * from.axis + a.begin) * from.inner, run, out[0].data.begin() + o * run);
        }
      }};
}

OpRules rules_reverse() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            require_axis(std::get<ReverseAttrs>(attrs).axis, t[0]);
            return std::vector<Type>{t[0]};
          },
          [](GradientContext& c) {
            c.accumulate(c.operand(0), c.build().reverse(c.grad(0), c.node().as<ReverseAttrs>().axis));
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const AxisSplit at(in[0]->type.shape, node.as<ReverseAttrs>().axis);
            for (int64_t o = 0; o < at.outer; ++o) {
              for (int64_t i = 0; i < at.axis; ++i) {
                std::copy_n(in[0]->data.begin() + (o * at.axis + at.axis - 1 - i) * at.inner, at.inner,
                            out[0].data.begin() + (o * at.axis + i) * at.inner);
              }
            }
          }};
}

OpRules rules_pad() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            const auto& a = std::get<PadAttrs>(attrs);
            require_axis(a.axis, t[0]);
            require(a.before >= 0 && a.after >= 0, "pads of {} and {}", a.before, a.after);
            Type result = t[0];
            result.shape[static_cast<size_t>(a.axis)] += a.before + a.after;
            return std::vector<Type>{result};
          },
          [](GradientContext& c) {
            const auto& a = c.node().as<PadAttrs>();
            const int64_t extent = c.build().shape(c.operand(0))[static_cast<size_t>(a.axis)];
            c.accumulate(c.operand(0), c.build().slice(c.grad(0), a.axis, a.before, a.before + extent));
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const auto& a = node.as<PadAttrs>();
            const AxisSplit from(in[0]->type.shape, a.axis), to(out[0].type.shape, a.axis);
            const int64_t run = from.axis * from.inner;
            for (int64_t o = 0; o < from.outer; ++o) {
              std::copy_n(in[0]->data.begin() + o * run, run,
                          out[0].data.begin() + (o * to.axis + a.before) * to.inner);
            }
          }};
}

namespace {
void require_index(const Type& t) {
  require(t.dtype == DType::i32 && t.rank() == 1, "the index must be i32[N], is {}", to_string(t));
}
}  // namespace

OpRules rules_gather() {
  return {[](std::span<const Type> t, const Attrs&) {
            require_index(t[1]);
            require(t[0].rank() >= 1, "the table must have rows, is {}", to_string(t[0]));
            Type result = t[0];
            result.shape[0] = t[1].shape[0];
            return std::vector<Type>{result};
          },
          [](GradientContext& c) {
            const int64_t rows = c.build().shape(c.operand(0))[0];
            c.accumulate(c.operand(0), c.build().scatter_add(c.operand(1), c.grad(0), rows));
          },
          [](const Node&, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const AxisSplit table(in[0]->type.shape, 0);
            for (size_t n = 0; n < in[1]->data.size(); ++n) {
              const auto row = static_cast<int64_t>(in[1]->data[n]);
              require(row >= 0 && row < table.axis, "gather: index {} of {} rows", row, table.axis);
              std::copy_n(in[0]->data.begin() + row * table.inner, table.inner,
                          out[0].data.begin() + static_cast<int64_t>(n) * table.inner);
            }
          }};
}

OpRules rules_scatter_add() {
  return {[](std::span<const Type> t, const Attrs& attrs) {
            require_index(t[0]);
            require(t[1].rank() >= 1 && t[1].shape[0] == t[0].shape[0], "{} indices for rows {}", t[0].shape[0],
                    to_string(t[1]));
            Type result = t[1];
            result.shape[0] = std::get<ScatterAttrs>(attrs).rows;
            require(result.shape[0] > 0, "{} rows", result.shape[0]);
            return std::vector<Type>{result};
          },
          [](GradientContext& c) { c.accumulate(c.operand(1), c.build().gather(c.grad(0), c.operand(0))); },
          [](const Node&, std::span<const Tensor* const> in, std::span<Tensor> out) {
            const AxisSplit rows(out[0].type.shape, 0);
            for (size_t n = 0; n < in[0]->data.size(); ++n) {
              const auto row = static_cast<int64_t>(in[0]->data[n]);
              require(row >= 0 && row < rows.axis, "scatter_add: index {} of {} rows", row, rows.axis);
              for (int64_t i = 0; i < rows.inner; ++i) {
                out[0].data[static_cast<size_t>(row * rows.inner + i)] +=
                    in[1]->data[n * static_cast<size_t>(rows.inner) + static_cast<size_t>(i)];
              }
            }
          }};
}

}  // namespace difuse::ir
