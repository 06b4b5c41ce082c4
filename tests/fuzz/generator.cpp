#include "tests/fuzz/generator.h"

#include <cmath>
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

class Generator {
 public:
  Generator(Graph& graph, uint64_t seed) : b_(graph), rng_(seed) {}

  void run(int size) {
    images_ = pick<int64_t>({1, 2, 3, 9});
    params_ = b_.state("params", {DType::f32, {kParams}});
    for (int i = 0; i < 2; ++i) new_image();
    while (size-- > 0) (this->*kProductions[below(std::size(kProductions))])();
    finish();
  }

 private:
  static constexpr int64_t kParams = 4096;
  using Production = void (Generator::*)();

  size_t below(size_t n) { return static_cast<size_t>(rng_() % n); }
  template <class T>
  T pick(const std::vector<T>& from) {
    return from[below(from.size())];
  }
  bool coin() { return below(2) == 0; }
  Value keep(Value v) {
    pool_.push_back(v);
    return v;
  }
  /// A random value that `accept`s, or an invalid one.
  template <class Accept>
  Value find(const Accept& accept) {
    std::vector<Value> fits;
    for (Value v : pool_) {
      if (b_.type(v).dtype == DType::f32 && accept(b_.shape(v))) fits.push_back(v);
    }
    return fits.empty() ? Value{} : pick(fits);
  }
  Value any() {
    return find([](const Shape&) { return true; });
  }
  Value image() {
    return find([](const Shape& s) { return s.size() == 4; });
  }
  Value same_shape(Value v) {
    return find([&](const Shape& s) { return s == b_.shape(v); });
  }
  Value leaf(Type type) { return b_.input("x" + std::to_string(leaves_++), std::move(type)); }
  /// Weights: a view of the packed parameters, or an input.
  Value weights(Shape shape) {
    const int64_t count = ir::element_count(shape);
    if (count > kParams || coin()) return leaf({DType::f32, std::move(shape)});
    const auto slots = static_cast<size_t>((kParams - count) / 64 + 1);
    return b_.view(params_, static_cast<int64_t>(below(slots)) * 64, std::move(shape));
  }
  Value scaled(Value v, int64_t terms) { return b_.mul(v, 1 / std::sqrt(static_cast<double>(terms))); }

  void new_image() {
    const auto side = pick<int64_t>({2, 4, 6, 9});
    keep(leaf({DType::f32, {images_, side, coin() ? side : side + 2, pick<int64_t>({1, 3, 4, 6, 12})}}));
  }

  void unary() {
    const Value x = any();
    switch (below(14)) {
      case 0:
        keep(b_.neg(x));
        break;
      case 1:
        keep(b_.abs(x));
        break;
      case 2:
        keep(b_.exp(b_.tanh(x)));
        break;
      case 3:
        keep(b_.expm1(b_.tanh(x)));
        break;
      case 4:
        keep(b_.log(b_.add(b_.abs(x), 0.5)));
        break;
      case 5:
        keep(b_.sqrt(b_.add(b_.square(x), 0.5)));
        break;
      case 6:
        keep(b_.rsqrt(b_.add(b_.abs(x), 0.5)));
        break;
      case 7:
        keep(b_.recip(b_.add(b_.abs(x), 0.5)));
        break;
      case 8:
        keep(b_.sin(x));
        break;
      case 9:
        keep(b_.cos(x));
        break;
      case 10:
        keep(b_.tanh(x));
        break;
      case 11:
        keep(b_.sigmoid(x));
        break;
      case 12:
        keep(b_.silu(x));
        break;
      default:
        keep(b_.is_finite(x));
        break;
    }
  }

  void binary() {
    const Value x = any(), y = same_shape(x);
    switch (below(6)) {
      case 0:
        keep(b_.add(x, y));
        break;
      case 1:
        keep(b_.sub(x, y));
        break;
      case 2:
        keep(b_.mul(x, b_.tanh(y)));
        break;
      case 3:
        keep(b_.div(x, b_.add(b_.abs(y), 0.5)));
        break;
      case 4:
        keep(b_.min(x, y));
        break;
      default:
        keep(b_.max(x, b_.mul(y, 0.5)));
        break;
    }
  }

  void from_leaf() {
    const Value x = any();
    const Type type = b_.type(x);
    const Value y = leaf(type), z = leaf(type);
    switch (below(7)) {
      case 0:
        keep(b_.select(b_.less(y, z), x, z));
        break;
      case 1:
        keep(b_.select(b_.less_equal(y, 0.25), z, x));
        break;
      case 2:
        keep(b_.add(b_.floor(y), b_.equal(y, z)));
        break;
      case 3:
        keep(b_.cast(b_.cast(y, DType::bf16), DType::f32));
        break;
      case 4:
        keep(b_.cast(b_.cast(y, DType::f16), DType::f32));
        break;
      case 5:  // Narrower than what it is made of.
        keep(b_.cast(b_.cast(b_.less(y, z), DType::u8), DType::f32));
        break;
      default:
        keep(b_.mul(b_.round_tf32(y), x));
        break;
    }
  }

  void broadcast() {
    const Value x = image();
    const Shape& s = b_.shape(x);
    switch (below(4)) {
      case 0:
        keep(b_.add(x, b_.broadcast_channels(weights({s[3]}), s)));
        break;
      case 1:
        keep(b_.mul(x, b_.tanh(b_.broadcast_image_channels(leaf({DType::f32, {s[0], s[3]}}), s))));
        break;
      case 2:
        keep(b_.add(x, b_.broadcast_scalar(leaf({DType::f32, {}}), s)));
        break;
      default:
        keep(b_.sub(x, b_.broadcast(leaf({DType::f32, {s[0]}}), s, {0})));
        break;
    }
  }

  void reduce() {
    const Value x = any();
    const auto rank = static_cast<int64_t>(b_.shape(x).size());
    std::vector<int64_t> axes;
    int64_t terms = 1;
    for (int64_t d = 0; d < rank; ++d) {
      if (coin()) axes.push_back(d), terms *= b_.shape(x)[static_cast<size_t>(d)];
    }
    if (axes.empty()) return;
    keep(coin() ? scaled(b_.reduce_sum(x, axes), terms) : b_.reduce_max(x, axes));
  }

  /// What is reduced over the last axes is read again over them, perhaps after a reshape into groups.
  void rows() {
    Value x = any();
    Shape s = b_.shape(x);
    if (s.size() < 2) return;
    if (s.back() % 2 == 0 && coin()) {
      x = b_.tanh(x);
      s.back() /= 2;
      s.push_back(2);
      x = b_.reshape(x, s);
    }
    std::vector<int64_t> axes, kept;
    const size_t first = coin() ? s.size() - 1 : 1;
    for (size_t d = 0; d < s.size(); ++d) (d < first ? kept : axes).push_back(static_cast<int64_t>(d));
    const int64_t terms = ir::element_count({s.begin() + static_cast<std::ptrdiff_t>(first), s.end()});
    const Value y = b_.sub(x, b_.broadcast(b_.reduce_max(x, axes), s, kept));
    const Value sum = scaled(b_.reduce_sum(b_.exp(y), axes), terms);
    const Value z = b_.add(y, b_.broadcast(coin() ? b_.tanh(sum) : sum, s, kept));
    keep(z);
    if (coin()) keep(sum);
    if (coin()) keep(scaled(b_.reduce_sum(z, coin() ? axes : std::vector<int64_t>{0}), terms));
  }

  void conv() {
    const Value x = image();
    const Shape s = b_.shape(x);
    const auto taps = pick<int64_t>({1, 3});
    const auto stride = pick<int64_t>({1, 1, 2});
    const int64_t pad = taps / 2, k = pick<int64_t>({1, 4, 5, 12});
    const int64_t terms = taps * taps * s[3];
    const Value y = b_.conv_fprop(x, weights({k, taps, taps, s[3]}), stride, pad);
    keep(scaled(y, terms));
    if (coin())
      keep(scaled(b_.conv_dgrad(y, weights({k, taps, taps, s[3]}), {stride, pad, s[1], s[2]}), terms * k * taps));
    if (coin()) keep(scaled(b_.conv_wgrad(x, y, {stride, pad, taps, taps}), terms * s[0] * s[1] * s[2]));
  }

  void norm() {
    const Value x = image();
    const Shape s = b_.shape(x);
    std::vector<int64_t> groups;
    for (int64_t g : {1, 2, 3, 4, 6, 12}) {
      if (s[3] % g == 0) groups.push_back(g);
    }
    const auto stats = b_.group_finish({b_.channel_moments(x)}, {pick(groups), 1e-2, s[1], s[2]});
    // The shift keeps sums over z from being zero by construction, where an error has no scale.
    const Value z = b_.add(
        b_.mul(b_.sub(x, b_.broadcast_image_channels(stats.mean, s)), b_.broadcast_image_channels(stats.rstd, s)),
        b_.broadcast_channels(weights({s[3]}), s));
    keep(coin() ? b_.silu(z) : z);
    if (coin()) keep(stats.mean);
  }

  void linear() {
    const Value x = find([](const Shape& s) { return s.size() == 2; });
    if (!x.valid()) {
      keep(leaf({DType::f32, {images_, pick<int64_t>({3, 8, 20})}}));
      return;
    }
    const int64_t in = b_.shape(x)[1], out = pick<int64_t>({1, 6, 16});
    keep(scaled(coin() ? b_.matmul(x, weights({out, in}), false, true) : b_.matmul(x, weights({in, out})), in));
    if (coin()) keep(scaled(b_.matmul(x, x, true, false), b_.shape(x)[0]));
  }

  void attention() {
    const Value x = find([](const Shape& s) { return s.size() == 4 && s[3] % 3 == 0; });
    if (!x.valid()) return;
    const Shape s = b_.shape(x);
    const Value qkv = b_.reshape(x, {s[0], s[1] * s[2], s[3]});
    const ir::AttentionAttrs attrs{s[3] % 6 == 0 && coin() ? 2 : 1,
                                   coin() ? ir::QkvOrder::heads_first : ir::QkvOrder::qkv_first};
    const auto a = b_.attention(qkv, attrs);
    keep(b_.reshape(a.out, {s[0], s[1], s[2], s[3] / 3}));
    if (coin()) keep(b_.attention_grad(qkv, a.out, a.lse, leaf(b_.type(a.out)), attrs));
  }

  void movement() {
    const Value x = image();
    const Shape s = b_.shape(x);
    const auto axis = static_cast<int64_t>(below(4));
    const int64_t extent = s[static_cast<size_t>(axis)];
    switch (below(9)) {
      case 0:
        keep(b_.concat({x, leaf(b_.type(x)), x}, 3));
        break;
      case 1:
        if (axis != 0 && extent > 1) keep(b_.slice(x, axis, 1, extent));
        break;
      case 2:
        if (axis != 0) keep(b_.pad(x, axis, 1, 2));
        break;
      case 3:
        keep(b_.transpose(x, {0, 2, 1, 3}));
        break;
      case 4:
        keep(b_.upsample_nearest(x));
        break;
      case 5:
        if (s[1] % 2 == 0 && s[2] % 2 == 0) keep(b_.avg_pool(x));
        break;
      case 6:
        keep(b_.reshape(x, {s[0], s[1] * s[2] * s[3]}));
        break;
      case 7:
        keep(b_.reverse(x, axis));
        break;
      default: {
        const Value index = b_.random_int(seed(), indices(), step(), 3, {}, s[0]);
        keep(b_.gather(x, index));
        if (s[0] == images_ && coin()) keep(b_.scatter_add(index, x, s[0] + 1));
      }
    }
  }

  void random() {
    keep(coin() ? b_.random_normal(seed(), indices(), step(), static_cast<int64_t>(below(5)), {3, 3, 4})
                : b_.random_uniform(seed(), indices(), step(), static_cast<int64_t>(below(5)), {5}));
  }

  Value seed() { return b_.input("seed", {DType::u32, {2}}); }
  Value indices() { return b_.input("index", {DType::i32, {images_}}); }
  Value step() { return b_.state("step", {DType::i32, {}}); }

  void finish() {
    const size_t outputs = 1 + below(3);
    for (size_t i = 0; i < outputs; ++i)
      b_.graph().set_output("y" + std::to_string(i), coin() ? pool_.back() : pick(pool_));
    if (coin()) {  // a packed update, in place where the planner manages
      std::vector<Value> parts;
      std::vector<int64_t> offsets;
      int64_t end = 0;
      for (int i = 0; i < 3; ++i) {
        const Value v = any();
        const int64_t count = b_.type(v).elements();
        if (end + count > kParams) continue;
        parts.push_back(v);
        offsets.push_back(end);
        end += (count + 63) / 64 * 64;
      }
      const Value packed = parts.empty() ? b_.mul(params_, 0.5) : b_.pack(parts, offsets, kParams);
      b_.graph().set_update("params", b_.add(b_.mul(params_, 0.9), b_.mul(packed, 0.1)));
    }
    if (b_.graph().find_state("step").valid()) b_.graph().set_update("step", b_.add(step(), 1.0));
  }

  static constexpr Production kProductions[] = {
      &Generator::new_image, &Generator::unary,     &Generator::unary,    &Generator::binary,
      &Generator::binary,    &Generator::from_leaf, &Generator::reduce,   &Generator::broadcast,
      &Generator::broadcast, &Generator::conv,      &Generator::norm,     &Generator::linear,
      &Generator::attention, &Generator::movement,  &Generator::movement, &Generator::random};

  Builder b_;
  std::mt19937_64 rng_;
  int64_t images_ = 1;
  int leaves_ = 0;
  Value params_;
  std::vector<Value> pool_;
};

using StandIn = std::function<std::vector<Value>(Graph&, const ir::Node&, const std::vector<Value>&)>;

/// The graph with these outputs and updates, with every result of node `cut` replaced by what `stand_in` gives, and
/// without the leaves and nodes that nothing reads any more.
Graph copy_needed(const Graph& graph, const std::vector<ir::NamedValue>& outputs,
                  const std::vector<ir::NamedValue>& updates, int cut, const StandIn& stand_in) {
  std::vector<bool> needed(static_cast<size_t>(graph.size()), false);
  for (const auto& n : outputs) needed[static_cast<size_t>(n.value.node)] = true;
  for (const auto& n : updates) {
    needed[static_cast<size_t>(n.value.node)] = true;
    needed[static_cast<size_t>(graph.find_state(n.name).node)] = true;
  }
  for (int id = graph.size() - 1; id >= 0; --id) {
    if (!needed[static_cast<size_t>(id)]) continue;
    for (Value v : graph.node(id).operands) needed[static_cast<size_t>(v.node)] = true;
  }
  Graph to(graph.name());
  std::vector<std::vector<Value>> mapped(static_cast<size_t>(graph.size()));
  auto map = [&](Value v) { return mapped[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)]; };
  for (int id = 0; id < graph.size(); ++id) {
    if (!needed[static_cast<size_t>(id)]) continue;
    std::vector<Value> operands;
    for (Value v : graph.node(id).operands) operands.push_back(map(v));
    mapped[static_cast<size_t>(id)] =
        id == cut ? stand_in(to, graph.node(id), operands) : ir::copy_node(to, graph.node(id), operands);
  }
  for (const auto& n : outputs) to.set_output(n.name, map(n.value));
  for (const auto& n : updates) to.set_update(n.name, map(n.value));
  return to;
}

Graph with_stand_in(const Graph& graph, int cut, const StandIn& stand_in) {
  const Graph cut_graph = copy_needed(graph, graph.outputs(), graph.updates(), cut, stand_in);
  return copy_needed(cut_graph, cut_graph.outputs(), cut_graph.updates(), -1, {});
}

std::vector<ir::NamedValue> without(std::vector<ir::NamedValue> list, size_t at) {
  list.erase(list.begin() + static_cast<int64_t>(at));
  return list;
}

/// All graphs one step smaller than `graph`, biggest steps first.
std::vector<Graph> smaller(const Graph& graph) {
  std::vector<Graph> result;
  const auto &outputs = graph.outputs(), &updates = graph.updates();
  if (outputs.size() + updates.size() > 1) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      result.push_back(copy_needed(graph, without(outputs, i), updates, -1, {}));
    }
    for (size_t i = 0; i < updates.size(); ++i) {
      result.push_back(copy_needed(graph, outputs, without(updates, i), -1, {}));
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {  // what made the output, in its place
    for (Value v : graph.node(outputs[i].value).operands) {
      auto earlier = outputs;
      earlier[i].value = v;
      result.push_back(copy_needed(graph, earlier, updates, -1, {}));
    }
  }
  for (int id = graph.size() - 1; id >= 0; --id) {
    const ir::Node& node = graph.node(id);
    if (node.op == Op::input || node.op == Op::state) continue;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (node.types.size() != 1 || graph.type(node.operands[i]) != node.types[0]) continue;
      result.push_back(with_stand_in(graph, id, [i](Graph&, const ir::Node&, const std::vector<Value>& operands) {
        return std::vector{operands[i]};
      }));
    }
    // Moments are tied to group_finish; an input in their place would be no statistics of anything.
    if (node.op == Op::channel_moments) continue;
    result.push_back(with_stand_in(graph, id, [id, &graph](Graph& to, const ir::Node& n, const std::vector<Value>&) {
      std::vector<Value> leaves;
      for (const Type& type : n.types) {
        std::string name = "cut" + std::to_string(id);
        while (to.find_input(name).valid() || graph.find_input(name).valid()) name += '_';
        leaves.push_back(Builder(to).input(name, type));
      }
      return leaves;
    }));
  }
  return result;
}

}  // namespace

Graph random_graph(uint64_t seed, int size) {
  Graph graph("fuzz");
  Generator(graph, seed).run(size);
  return ir::rebuild(graph, [](Graph& to, int, const ir::Node& node, const std::vector<Value>& operands) {
    return ir::copy_node(to, node, operands);
  });
}

Graph shrink(Graph graph, const std::function<bool(const Graph&)>& fails) {
  for (bool progress = true; progress;) {
    progress = false;
    for (Graph& candidate : smaller(graph)) {
      // A cut that puts an input where one was is no progress, and would go on for ever.
      if (candidate.size() >= graph.size() &&
          candidate.outputs().size() + candidate.updates().size() >= graph.outputs().size() + graph.updates().size()) {
        continue;
      }
      if (!fails(candidate)) continue;
      graph = std::move(candidate);
      progress = true;
      break;
    }
  }
  return graph;
}

}  // namespace difuse::testing
