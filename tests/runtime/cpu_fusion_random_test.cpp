// Random fusion bodies on the CPU backend: elementwise ops over tensors, rows, images and scalars, broadcasts and
// reductions between them, operands that die in the fusion. Each is printed when it fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ir/builder.h"
#include "ir/text.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Op;
using ir::Shape;
using ir::Value;

class RandomBody {
 public:
  explicit RandomBody(uint64_t seed) : rng_(seed) {
    const std::vector<Shape> images = {{3, 4, 5, 6},   {1, 7, 7, 20}, {13, 2, 3, 36}, {2, 9, 9, 64},
                                       {2, 40, 30, 8}, {8, 8},        {70000}};
    const Shape s = pick(images);
    shapes_.push_back(s);
    if (s.size() > 1) {
      shapes_.push_back({s[0], s.back()});
      shapes_.push_back({s.back()});
      shapes_.push_back({s[0]});
    }
    shapes_.push_back({});
    values_.resize(shapes_.size());
    for (size_t i = 0; i < shapes_.size(); ++i) {
      for (int64_t count = 1 + below(2); count > 0; --count) add_operand(i);
    }
    for (int64_t count = 4 + below(14); count > 0; --count) add_op();
    add_results();
  }

  const Graph& graph() const { return graph_; }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(rng_() % static_cast<uint64_t>(n)); }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(below(std::ssize(from)))];
  }

  void add_operand(size_t shape) {
    const std::string name = std::to_string(operands_.size());
    Builder b(graph_);
    const ir::Type type{DType::f32, shapes_[shape]};
    const Value given = b.input(name, type);
    operands_.push_back(below(2) == 0 ? given : b.neg(given));
    values_[shape].push_back(inner_.input(name, type));
  }

  /// Axes of shapes_[large] that shapes_[small] keeps; the shapes are distinct prefixes and suffixes of the first.
  std::vector<int64_t> dims(size_t small, size_t large) const {
    const Shape &a = shapes_[small], &b = shapes_[large];
    const auto last = static_cast<int64_t>(b.size()) - 1;
    if (a.empty()) return {};
    if (a.size() == 2) return {0, last};
    return {small == 2 ? last : 0};
  }

  void add_op() {
    const auto shape = static_cast<size_t>(below(std::ssize(shapes_)));
    auto& here = values_[shape];
    const int64_t kind = below(10);
    if (kind < 3 && shape > 0) {  // sum or maximum of something larger
      const size_t large = larger(shape);
      std::vector<int64_t> kept = dims(shape, large), axes;
      for (int64_t d = 0; d < std::ssize(shapes_[large]); ++d) {
        if (!std::ranges::count(kept, d)) axes.push_back(d);
      }
      if (axes.empty()) return;
      const Value x = pick(values_[large]);
      here.push_back(below(3) == 0 ? inner_.reduce_max(x, axes)
                                   : inner_.mul(inner_.reduce_sum(x, axes),
                                                1.0 / static_cast<double>(ir::element_count(shapes_[large]) /
                                                                          ir::element_count(shapes_[shape]))));
    } else if (kind < 5 && shape + 1 < shapes_.size()) {  // a repeated smaller one
      const size_t small = shape == 0 ? 1 + static_cast<size_t>(below(std::ssize(shapes_) - 1)) : shapes_.size() - 1;
      if (shapes_[small] == shapes_[shape]) return;
      here.push_back(inner_.broadcast(pick(values_[small]), shapes_[shape], dims(small, shape)));
    } else {
      const Value x = pick(here), y = pick(here);
      switch (below(8)) {
        case 0:
          here.push_back(inner_.tanh(x));
          break;
        case 1:
          here.push_back(inner_.sub(x, y));
          break;
        case 2:
          here.push_back(inner_.mul(inner_.sigmoid(x), y));
          break;
        case 3:
          here.push_back(inner_.add(x, 0.75));
          break;
        case 4:
          here.push_back(inner_.max(x, y));
          break;
        case 5:
          here.push_back(inner_.select(inner_.less(x, 0.25), x, inner_.tanh(y)));
          break;
        case 6:
          here.push_back(inner_.cast(inner_.cast(x, DType::bf16), DType::f32));
          break;
        default:
          here.push_back(inner_.tanh(inner_.add(x, y)));
          break;
      }
    }
  }

  size_t larger(size_t shape) {
    // [] sums anything, the others sum the tensor itself: [C] and [N] also [N, C].
    if (shapes_[shape].empty()) return static_cast<size_t>(below(static_cast<int64_t>(shape)));
    if (shape >= 2 && below(2) == 0 && shapes_[1].size() == 2 && shapes_[1] != shapes_[0]) return 1;
    return 0;
  }

  void add_results() {
    std::vector<Value> all;
    for (const auto& list : values_) all.insert(all.end(), list.begin(), list.end());
    const int64_t count = 1 + below(4);
    for (int64_t r = 0; r < count; ++r) body_->set_output(std::to_string(r), r == 0 ? all.back() : pick(all));
    if (!values_[0].empty()) body_->set_output(std::to_string(count), values_[0].back());
    const Value first = graph_.add(Op::fusion, operands_, ir::FusionAttrs{ir::Hero::pointwise, body_});
    for (size_t r = 0; r < body_->outputs().size(); ++r) {
      graph_.set_output("y" + std::to_string(r), {first.node, static_cast<int32_t>(r)});
    }
  }

  std::mt19937_64 rng_;
  Graph graph_{"random"};
  std::shared_ptr<Graph> body_ = std::make_shared<Graph>("body");
  Builder inner_{*body_};
  std::vector<Shape> shapes_;
  std::vector<std::vector<Value>> values_;  // of each shape
  std::vector<Value> operands_;
};

TEST(CpuFusionRandom, MatchesTheReference) {
  for (uint64_t seed = 0; seed < 80 && !::testing::Test::HasFailure(); ++seed) {
    const RandomBody body(seed);
    const Graph& graph = body.graph();
    SCOPED_TRACE(ir::print(graph) + "seed " + std::to_string(seed));
    const ir::TensorMap inputs = testing::random_leaves(graph, Op::input, seed);
    const testing::CpuRun two = testing::run_cpu(graph, inputs);
    // A rounding to bf16 may go the other way where f32 and f64 lie on two sides of a tie.
    testing::expect_near_reference(graph, two, inputs, {}, 1.6e-2);
    testing::expect_same(two, testing::run_cpu(graph, inputs, {}, {.threads = 1}), "one thread");
    testing::expect_same(two, testing::run_cpu(graph, inputs, {}, {.reuse_memory = false}), "fresh memory");
  }
}

}  // namespace
}  // namespace difuse
