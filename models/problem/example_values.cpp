#include "models/problem/example_values.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/parameters.h"
#include "models/presets.h"
#include "models/training_step.h"
#include "models/unet.h"
#include "runtime/tensor_bytes.h"

namespace difuse::models {
namespace {

/// Splitmix64 (Steele, Lea and Flood, 2014): quick enough for a model's parameters.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }
  /// In [0, 1).
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// Mean 0, variance 1: the sum of four uniform draws is close to normal.
  double normal() { return std::sqrt(3.0) * (unit() + unit() + unit() + unit() - 2); }

 private:
  uint64_t state_;
};

using Values = std::vector<double>;

class Example {
 public:
  Example(const Problem& problem, uint64_t seed) : draws_(seed), seed_(seed) {
    if (problem.preset.empty()) return;
    const Preset preset = find_preset(problem.preset);
    classes_ = preset.unet.num_classes;
    timesteps_ = preset.diffusion.timesteps;
    layout_.emplace(parameter_layout(preset.unet));
  }

  /// Of an input or a state.
  Values of(const ir::Node& leaf) {
    const auto& attrs = leaf.as<ir::LeafAttrs>();
    if (layout_) {
      if (auto known = of_model(leaf.op, attrs.name, leaf.types[0])) return *std::move(known);
    }
    Values values(static_cast<size_t>(leaf.types[0].elements()));
    const bool is_float = ir::is_float(attrs.dtype), is_state = leaf.op == ir::Op::state;
    for (double& v : values) {
      v = !is_float ? static_cast<double>(draws_.below(4)) : is_state ? 0.1 + 0.9 * draws_.unit() : draws_.normal();
    }
    return values;
  }

 private:
  std::optional<Values> of_model(ir::Op op, const std::string& name, const ir::Type& type) {
    const auto count = static_cast<size_t>(type.elements());
    if (op == ir::Op::input) {
      Values values(count);
      for (size_t i = 0; i < count; ++i) {
        if (name == "pixels" || name == "low_res") values[i] = static_cast<double>(draws_.below(256));
        if (name == "index") values[i] = static_cast<double>(i);
        if (name == "x") values[i] = draws_.normal();
        if (name == "timesteps") values[i] = static_cast<double>(draws_.below(timesteps_));
        if (name == "label") values[i] = static_cast<double>(draws_.below(std::max<int64_t>(classes_, 1)));
      }
      return values;
    }
    if (is_within_step(name)) return Values(count, 0.0);
    if (name == "seed") return Values{static_cast<double>(seed_), 0};
    if (name == "step") return Values{321};
    if (name == "position") return Values{1};
    if (name == "params" || name.starts_with("ema")) return parameters();
    if (name == "adam_m") return packed([this](size_t) { return 1e-3 * draws_.normal(); });
    if (name == "adam_v") return packed([this](size_t) { return 1e-5 * (1 + std::pow(draws_.normal(), 2)); });
    return std::nullopt;
  }

  Values parameters() {
    const std::vector<float> start = initial_parameters(*layout_, {static_cast<uint32_t>(seed_), 0});
    return packed([&](size_t i) { return static_cast<double>(start[i]) + 0.05 * draws_.normal(); });
  }

  Values packed(const std::function<double(size_t)>& value) {
    Values values(static_cast<size_t>(layout_->size()), 0.0);
    for (size_t p = 0; p < layout_->specs().size(); ++p) {
      const auto begin = static_cast<size_t>(layout_->offsets()[p]);
      const auto end = begin + static_cast<size_t>(layout_->specs()[p].elements());
      for (size_t i = begin; i < end; ++i) values[i] = value(i);
    }
    return values;
  }

  Draws draws_;
  uint64_t seed_;
  int64_t classes_ = 0, timesteps_ = 1;
  std::optional<ParameterLayout> layout_;
};

}  // namespace

void write_example_values(runtime::Executor& executor, const Problem& problem, uint64_t seed) {
  Example example(problem, seed);
  const ir::Graph& graph = executor.graph();
  for (const ir::Op op : {ir::Op::input, ir::Op::state}) {
    for (const int id : graph.leaves(op)) {
      const ir::Type& type = graph.node(id).types[0];
      if (!executor.memory().at({id, 0}).placed()) continue;
      std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
      runtime::encode(example.of(graph.node(id)), type.dtype, bytes);
      const std::string& name = graph.node(id).as<ir::LeafAttrs>().name;
      if (op == ir::Op::input) {
        executor.write_input(name, bytes);
      } else {
        executor.write_state(name, bytes);
      }
    }
  }
}

}  // namespace difuse::models
