#include "tests/support/op_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <random>

#include "ir/builder.h"
#include "ir/op.h"

namespace difuse::testing {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Op;
using ir::Shape;
using ir::Type;
using ir::Value;

class Rows {
 public:
  /// `make` builds the outputs from a builder.
  template <class Make>
  OpRow& row(Op op, std::string_view variant, const Make& make) {
    OpRow r{op, fmt::format("{}/{}", ir::to_string(op), variant), Graph("row"), {}};
    Builder b(r.graph);
    const std::vector<Value> outputs = make(b);
    for (size_t i = 0; i < outputs.size(); ++i) r.graph.set_output(fmt::format("y{}", i), outputs[i]);
    rows_.push_back(std::move(r));
    return rows_.back();
  }
  std::vector<OpRow> take() { return std::move(rows_); }

 private:
  std::vector<OpRow> rows_;
};

Type f32(Shape shape) { return {DType::f32, std::move(shape)}; }

void leaf_rows(Rows& rows) {
  rows.row(Op::constant, "scalar", [](Builder& b) { return std::vector{b.add(b.input("x", f32({3})), 2.5)}; });
  rows.row(Op::constant, "output", [](Builder& b) {
    return std::vector{b.constant(0.75, f32({2, 3})), b.mul(b.input("x", f32({2})), 2.0)};
  });
  rows.row(Op::literal, "table", [](Builder& b) {
    return std::vector{b.mul(b.input("x", f32({4})), b.literal({0.5, -1, 0.25, 8}, f32({4})))};
  });
}

void elementwise_rows(Rows& rows) {
  const std::vector<Shape> shapes = {{}, {5}, {3, 7, 5, 20}, {1, 4, 4, 3}, {2, 1100}};
  for (const ir::OpInfo& o : ir::all_ops()) {
    if (!o.has(ir::kElementwise) || o.op == Op::cast || o.op == Op::select) continue;
    const bool positive =
        o.op == Op::log || o.op == Op::sqrt || o.op == Op::rsqrt || o.op == Op::recip || o.op == Op::div;
    const bool step = o.op == Op::floor || o.op == Op::is_finite || o.op == Op::round_tf32 || o.op == Op::less ||
                      o.op == Op::less_equal || o.op == Op::equal;
    for (const Shape& shape : shapes) {
      OpRow& r = rows.row(o.op, fmt::format("{}", fmt::join(shape, "x")), [&](Builder& b) {
        std::vector<Value> operands;
        for (int i = 0; i < o.least_operands; ++i) operands.push_back(b.input(fmt::format("x{}", i), f32(shape)));
        return std::vector{b.graph().add(o.op, operands)};
      });
      if (positive) r.fills = {{"x0", Fill::positive}, {"x1", Fill::positive}};
      if (o.op == Op::floor || o.op == Op::equal) r.fills = {{"x0", Fill::index}, {"x1", Fill::index}};
      r.differentiable = !step;
    }
  }
  rows.row(Op::add, "i32",
           [](Builder& b) {
             const Value step = b.input("x", {DType::i32, {}});
             return std::vector{b.add(step, 16777217.0), b.sub(step, 1.0), b.mul(step, 3.0)};
           })
      .fills = {{"x", Fill::counter}};
  rows.row(Op::select, "mask", [](Builder& b) {
    const Value x = b.input("x", f32({3, 7})), y = b.input("y", f32({3, 7}));
    return std::vector{b.select(b.less(b.input("z", f32({3, 7})), 0.1), x, y)};
  });
  rows.row(Op::cast, "u8_f32",
           [](Builder& b) {
             return std::vector{b.cast(b.input("x", {DType::u8, {2, 5, 5, 3}}), DType::f32)};
           })
      .fills = {{"x", Fill::index}};
  rows.row(Op::cast, "f32_i32_f32",
           [](Builder& b) {
             const Value i = b.cast(b.mul(b.input("x", f32({33})), 100.0), DType::i32);
             return std::vector{i, b.cast(i, DType::f32)};
           })
      .differentiable = false;
  for (DType d : {DType::bf16, DType::f16}) {
    rows.row(Op::cast, std::string(to_string(d)),
             [&](Builder& b) {
               const Value h = b.cast(b.input("x", f32({2, 3, 3, 20})), d);
               return std::vector{h, b.mul(b.cast(h, DType::f32), 3.0)};
             })
        .differentiable = false;
  }
}

void shape_rows(Rows& rows) {
  auto broadcast = [&](std::string_view name, Shape from, Shape to, std::vector<int64_t> dims) {
    rows.row(Op::broadcast, name, [&](Builder& b) {
      const Value y = b.broadcast(b.input("x", f32(from)), to, dims);
      return std::vector{y, b.mul(y, b.input("z", f32(to)))};
    });
  };
  broadcast("scalar", {}, {3, 5}, {});
  broadcast("channels", {20}, {3, 4, 5, 20}, {3});
  broadcast("image_channels", {3, 36}, {3, 5, 7, 36}, {0, 3});
  broadcast("image", {3}, {3, 4, 4, 2}, {0});
  broadcast("rows", {4, 6}, {2, 4, 6, 3}, {1, 2});
  rows.row(Op::reshape, "merge", [](Builder& b) {
    const Value x = b.input("x", f32({2, 3, 4}));
    return std::vector{b.reshape(x, {6, 4}), b.neg(b.reshape(b.neg(x), {24}))};
  });
  rows.row(Op::transpose, "2d", [](Builder& b) { return std::vector{b.transpose(b.input("x", f32({5, 7})), {1, 0})}; });
  rows.row(Op::transpose, "4d", [](Builder& b) {
    return std::vector{b.transpose(b.input("x", f32({2, 3, 4, 5})), {0, 3, 1, 2})};
  });
  for (int64_t axis : {0, 1, 3}) {
    rows.row(Op::concat, fmt::format("axis{}", axis), [&](Builder& b) {
      Shape s1{2, 3, 3, 20}, s2 = s1;
      s2[static_cast<size_t>(axis)] += 3;
      return std::vector{b.concat({b.input("x", f32(s1)), b.input("y", f32(s2)), b.input("z", f32(s1))}, axis)};
    });
    rows.row(Op::slice, fmt::format("axis{}", axis), [&](Builder& b) {
      return std::vector{b.slice(b.input("x", f32({3, 4, 5, 6})), axis, 1, 3)};
    });
    rows.row(Op::reverse, fmt::format("axis{}", axis), [&](Builder& b) {
      return std::vector{b.reverse(b.input("x", f32({3, 4, 5, 6})), axis)};
    });
    rows.row(Op::pad, fmt::format("axis{}", axis), [&](Builder& b) {
      return std::vector{b.pad(b.input("x", f32({2, 3, 4, 5})), axis, 1, 2)};
    });
  }
  const Type index{DType::i32, {5}};
  rows.row(Op::gather, "rows",
           [&](Builder& b) {
             return std::vector{b.gather(b.input("x", f32({4, 6})), b.input("i", index)),
                                b.gather(b.input("z", f32({4})), b.input("i", index))};
           })
      .fills = {{"i", Fill::index}};
  rows.row(Op::scatter_add, "rows",
           [&](Builder& b) {
             return std::vector{b.scatter_add(b.input("i", index), b.input("x", f32({5, 6})), 4)};
           })
      .fills = {{"i", Fill::index}};
  for (Shape s : {Shape{2, 4, 6, 20}, Shape{1, 2, 2, 1}, Shape{3, 14, 14, 32}}) {
    rows.row(Op::upsample_nearest, fmt::format("{}", fmt::join(s, "x")),
             [&](Builder& b) { return std::vector{b.upsample_nearest(b.input("x", f32(s)))}; });
    rows.row(Op::avg_pool, fmt::format("{}", fmt::join(s, "x")),
             [&](Builder& b) { return std::vector{b.avg_pool(b.input("x", f32(s)))}; });
  }
  rows.row(Op::pack, "mixed", [](Builder& b) {
    const Value x = b.input("x", f32({3, 4})), y = b.input("y", f32({5}));
    return std::vector{b.pack({b.neg(x), y, b.mul(y, 2.0)}, {0, 64, 128}, 192)};
  });
  // The inner vector is made in its slice, which begins anywhere; its part must be copied there.
  rows.row(Op::pack, "inside_another", [](Builder& b) {
    const Value inner = b.pack({b.input("x", f32({64}))}, {0}, 64);
    return std::vector{b.pack({b.input("y", f32({3})), inner}, {0, 3}, 80)};
  });
  rows.row(Op::view, "slice", [](Builder& b) {
    const Value flat = b.input("x", f32({192}));
    return std::vector{b.view(flat, 64, {3, 4}), b.neg(b.view(flat, 128, {5}))};
  });
  rows.row(Op::repack, "flipped", [](Builder& b) {
    return std::vector{b.repack(b.input("x", f32({4, 3, 3, 6})), ir::WeightLayout::flipped)};
  });
  rows.row(Op::repack, "flipped_wide", [](Builder& b) {
    return std::vector{b.repack(b.input("x", f32({18, 1, 2, 20})), ir::WeightLayout::flipped)};
  });
}

void reduction_rows(Rows& rows) {
  const std::vector<std::pair<Shape, std::vector<int64_t>>> cases = {
      {{3, 5, 7, 20}, {1, 2}},  {{13, 4, 4, 3}, {0, 1, 2}}, {{3, 6}, {0}},    {{3, 6}, {1}},
      {{70000}, {0}},           {{2, 3, 4}, {0, 1, 2}},     {{2, 8, 4}, {2}}, {{9, 3, 3, 36}, {0, 1, 2, 3}},
      {{3, 4, 5, 6}, {1, 2, 3}}};
  for (const auto& [shape, axes] : cases) {
    for (Op op : {Op::reduce_sum, Op::reduce_max}) {
      OpRow& r = rows.row(op, fmt::format("{}_over_{}", fmt::join(shape, "x"), fmt::join(axes, "_")), [&](Builder& b) {
        const Value x = b.input("x", f32(shape));
        return std::vector{op == Op::reduce_sum ? b.reduce_sum(x, axes) : b.reduce_max(x, axes)};
      });
      r.differentiable = ir::element_count(shape) < 1000;
    }
  }
  for (Shape s : {Shape{2, 8, 8, 20}, Shape{1, 20, 9, 3}, Shape{3, 7, 7, 36}, Shape{2, 28, 28, 32}}) {
    rows.row(Op::channel_moments, fmt::format("{}", fmt::join(s, "x")),
             [&](Builder& b) {
               const auto m = b.channel_moments(b.input("x", f32(s)));
               return std::vector{m.mean, m.m2};
             })
        .differentiable = false;  // only through group_finish
  }
  auto norm = [&](std::string_view name, Shape x, int64_t more_channels, int64_t groups) {
    rows.row(Op::group_finish, name,
             [&](Builder& b) {
               const Value image = b.input("x", f32(x));
               std::vector<Builder::Moments> moments{b.channel_moments(image)};
               Value whole = image;
               if (more_channels > 0) {
                 Shape y = x;
                 y[3] = more_channels;
                 const Value other = b.input("y", f32(y));
                 moments.push_back(b.channel_moments(other));
                 whole = b.concat({image, other}, 3);
               }
               const auto s = b.group_finish(moments, {groups, 1e-5, x[1], x[2]});
               const Shape& shape = b.shape(whole);
               const Value z = b.mul(b.sub(whole, b.broadcast_image_channels(s.mean, shape)),
                                     b.broadcast_image_channels(s.rstd, shape));
               return std::vector{z, s.rstd};
             })
        .tolerance = 1e-5;
  };
  norm("one", {2, 5, 9, 8}, 0, 2);
  norm("across_concat", {2, 4, 4, 6}, 6, 4);
  norm("group_of_one", {1, 3, 3, 4}, 0, 4);
}

void contraction_rows(Rows& rows) {
  struct Conv {
    int64_t n, h, w, c, k, taps, stride, pad;
  };
  const std::vector<Conv> convs = {
      {2, 7, 7, 4, 8, 3, 1, 1},   {1, 8, 8, 1, 32, 3, 1, 1},    {3, 6, 5, 20, 36, 3, 1, 1},
      {2, 8, 8, 8, 12, 3, 2, 1},  {2, 9, 7, 3, 5, 3, 2, 1},     {3, 5, 5, 16, 20, 1, 1, 0},
      {13, 4, 4, 32, 1, 3, 1, 1}, {9, 14, 14, 32, 64, 3, 1, 1}, {1, 28, 28, 96, 32, 3, 1, 1}};
  for (const Conv& c : convs) {
    const std::string name =
        fmt::format("n{}h{}w{}c{}k{}_{}x{}_stride{}", c.n, c.h, c.w, c.c, c.k, c.taps, c.taps, c.stride);
    const int64_t oh = (c.h + 2 * c.pad - c.taps) / c.stride + 1, ow = (c.w + 2 * c.pad - c.taps) / c.stride + 1;
    const Type x = f32({c.n, c.h, c.w, c.c}), w = f32({c.k, c.taps, c.taps, c.c}), dy = f32({c.n, oh, ow, c.k});
    rows.row(Op::conv_fprop, name,
             [&](Builder& b) { return std::vector{b.conv_fprop(b.input("x", x), b.input("w", w), c.stride, c.pad)}; });
    rows.row(Op::conv_dgrad, name, [&](Builder& b) {
      return std::vector{b.conv_dgrad(b.input("dy", dy), b.input("w", w), {c.stride, c.pad, c.h, c.w})};
    });
    rows.row(Op::conv_wgrad, name, [&](Builder& b) {
      return std::vector{b.conv_wgrad(b.input("x", x), b.input("dy", dy), {c.stride, c.pad, c.taps, c.taps})};
    });
  }
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      for (auto [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{5, 7, 3}, {13, 128, 32}, {1, 1, 1}}) {
        rows.row(Op::matmul, fmt::format("m{}n{}k{}{}{}", m, n, k, ta ? "_ta" : "", tb ? "_tb" : ""), [&](Builder& b) {
          return std::vector{b.matmul(b.input("x", f32(ta ? Shape{k, m} : Shape{m, k})),
                                      b.input("y", f32(tb ? Shape{n, k} : Shape{k, n})), ta, tb)};
        });
      }
    }
  }
  for (auto [n, l, heads, width] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{2, 9, 2, 4},
                                    {1, 49, 1, 64},
                                    {3, 16, 4, 5},
                                    {1, 300, 2, 32},
                                    {1, 250, 2, 32},
                                    {1, 130, 1, 64},
                                    {1, 200, 1, 64},
                                    {1, 70, 1, 256}}) {
    for (auto order : {ir::QkvOrder::heads_first, ir::QkvOrder::qkv_first}) {
      const std::string name = fmt::format("n{}l{}h{}w{}_{}", n, l, heads, width, ir::to_string(order));
      const Type qkv = f32({n, l, 3 * heads * width}), out = f32({n, l, heads * width});
      rows.row(Op::attention, name,
               [&](Builder& b) {
                 const auto a = b.attention(b.input("x", qkv), {heads, order});
                 return std::vector{a.out};
               })
          .differentiable = l < 50;
      rows.row(Op::attention_grad, name,
               [&](Builder& b) {
                 const Value x = b.input("x", qkv);
                 const auto a = b.attention(x, {heads, order});
                 return std::vector{a.lse, b.attention_grad(x, a.out, a.lse, b.input("dout", out), {heads, order})};
               })
          .differentiable = false;
    }
  }
}

void random_rows(Rows& rows) {
  for (Shape s : {Shape{}, Shape{3}, Shape{5, 5, 3}}) {
    const std::string name = fmt::format("{}", fmt::join(s, "x"));
    auto draw = [&](Op op, auto make) {
      OpRow& r = rows.row(op, name, [&](Builder& b) {
        return std::vector{make(b, b.input("seed", {DType::u32, {2}}), b.input("index", {DType::i32, {3}}),
                                b.input("step", {DType::i32, {}}))};
      });
      r.fills = {{"seed", Fill::counter}, {"index", Fill::counter}, {"step", Fill::counter}};
      r.differentiable = false;
    };
    draw(Op::random_normal, [&](Builder& b, Value k, Value i, Value t) { return b.random_normal(k, i, t, 7, s); });
    draw(Op::random_uniform, [&](Builder& b, Value k, Value i, Value t) { return b.random_uniform(k, i, t, 7, s); });
    draw(Op::random_int, [&](Builder& b, Value k, Value i, Value t) { return b.random_int(k, i, t, 7, s, 1000); });
  }
}

void fusion_rows(Rows& rows) {
  rows.row(Op::fusion, "scale_shift_silu",
           [](Builder& b) {
             auto body = std::make_shared<Graph>("body");
             Builder inner(*body);
             const Type x = f32({3, 5, 7, 20}), s = f32({3, 20}), c = f32({20});
             const Value z =
                 inner.add(inner.mul(inner.input("0", x), inner.broadcast_image_channels(inner.input("1", s), x.shape)),
                           inner.broadcast_channels(inner.input("2", c), x.shape));
             const Value a = inner.silu(z);
             body->set_output("0", a);
             body->set_output("1", z);
             body->set_output("2", inner.reduce_sum(a, {1, 2}));
             body->set_output("3", inner.reduce_sum(inner.mul(a, z), {0, 1, 2}));
             const Value f = b.graph().add(Op::fusion, {b.input("x", x), b.input("s", s), b.input("c", c)},
                                           ir::FusionAttrs{ir::Hero::reduction, body});
             return std::vector{f, Value{f.node, 1}, Value{f.node, 2}, Value{f.node, 3}};
           })
      .differentiable = false;
}

double draw(Fill fill, std::mt19937_64& rng) {
  switch (fill) {
    case Fill::normal:
      return static_cast<double>(std::normal_distribution<float>()(rng));
    case Fill::positive:
      return static_cast<double>(std::uniform_real_distribution<float>(0.5f, 2.0f)(rng));
    case Fill::index:
      return static_cast<double>(rng() % 4);
    case Fill::counter:
      return static_cast<double>(rng() % 1000);
  }
  return 0;
}

}  // namespace

std::string test_name(const OpRow& row) {
  std::string name = row.name;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

std::vector<OpRow> op_rows() {
  Rows rows;
  leaf_rows(rows);
  elementwise_rows(rows);
  shape_rows(rows);
  reduction_rows(rows);
  contraction_rows(rows);
  random_rows(rows);
  fusion_rows(rows);
  return rows.take();
}

ir::TensorMap random_leaves(const Graph& graph, Op leaf, uint64_t seed,
                            const std::vector<std::pair<std::string, Fill>>& fills) {
  std::mt19937_64 rng(seed);
  ir::TensorMap result;
  for (int id : graph.leaves(leaf)) {
    const auto& name = graph.node(id).as<ir::LeafAttrs>().name;
    Fill fill = is_float(graph.node(id).types[0].dtype) ? Fill::normal : Fill::counter;
    for (const auto& [of, f] : fills) {
      if (of == name) fill = f;
    }
    ir::Tensor t(graph.node(id).types[0]);
    for (double& x : t.data) x = ir::round_to(draw(fill, rng), t.type.dtype);
    result.emplace(name, std::move(t));
  }
  return result;
}

ir::TensorMap random_inputs(const OpRow& row, uint64_t seed) {
  return random_leaves(row.graph, Op::input, seed, row.fills);
}

}  // namespace difuse::testing
