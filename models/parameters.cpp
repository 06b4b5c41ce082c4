#include "models/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ir/error.h"
#include "ir/philox.h"
#include "models/streams.h"

namespace difuse::models {
namespace {

constexpr int64_t kAlignment = 256 / sizeof(float);  // elements

int64_t align(int64_t at) { return (at + kAlignment - 1) / kAlignment * kAlignment; }

/// Element i of four draws of one Philox block.
float draw(const ir::Philox4& words, int64_t i, const ParameterInit& init) {
  const auto at = static_cast<size_t>(i);
  if (init.kind == ParameterInit::Kind::uniform) {
    const double bound = 1 / std::sqrt(static_cast<double>(init.fan_in));
    return static_cast<float>(bound * (2 * static_cast<double>(ir::uniform_of(words[at])) - 1));
  }
  const size_t pair = at / 2 * 2;  // Box and Muller, as random_normal
  const double radius = std::sqrt(-2 * std::log(static_cast<double>(ir::uniform_of(words[pair]))));
  const double angle = 2 * std::numbers::pi * static_cast<double>(ir::uniform_of(words[pair + 1]));
  return static_cast<float>(radius * (at % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

}  // namespace

ParameterLayout::ParameterLayout(std::vector<ParameterSpec> specs) : specs_(std::move(specs)) {
  std::ranges::reverse(specs_);
  for (const ParameterSpec& spec : specs_) {
    const bool fresh = by_name_.emplace(spec.name, static_cast<int>(offsets_.size())).second;
    if (!fresh) throw Error(fmt::format("two parameters are called {}", spec.name));
    offsets_.push_back(size_);
    size_ = align(size_ + spec.elements());
  }
}

int64_t ParameterLayout::parameters() const {
  int64_t sum = 0;
  for (const ParameterSpec& spec : specs_) sum += spec.elements();
  return sum;
}

int ParameterLayout::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? -1 : it->second;
}

ir::Value ParameterCollector::get(const std::string& name, const ir::Shape& shape, ParameterInit init) {
  specs_.push_back({name, shape, init});
  return build_.state(name, {ir::DType::f32, shape});
}

PackedParameters::PackedParameters(ir::Builder& build, const ParameterLayout& layout, ir::Value flat)
    : layout_(layout) {
  for (size_t i = 0; i < layout.specs().size(); ++i) {
    views_.push_back(build.view(flat, layout.offsets()[i], layout.specs()[i].shape));
  }
}

ir::Value PackedParameters::get(const std::string& name, const ir::Shape& shape, ParameterInit) {
  const int at = layout_.find(name);
  if (at < 0) throw Error(fmt::format("the parameter layout has no {}", name));
  const ParameterSpec& spec = layout_.specs()[static_cast<size_t>(at)];
  if (spec.shape != shape) {
    throw Error(fmt::format("{} is {} in the parameter layout, the model wants {}", name, ir::to_string(spec.shape),
                            ir::to_string(shape)));
  }
  return views_[static_cast<size_t>(at)];
}

std::vector<float> initial_parameters(const ParameterLayout& layout, std::array<uint32_t, 2> seed) {
  std::vector<float> flat(static_cast<size_t>(layout.size()), 0.0f);
  for (size_t i = 0; i < layout.specs().size(); ++i) {
    const ParameterSpec& spec = layout.specs()[i];
    float* to = flat.data() + layout.offsets()[i];
    const int64_t count = spec.elements();
    if (spec.init.kind == ParameterInit::Kind::zeros) continue;
    if (spec.init.kind == ParameterInit::Kind::ones) {
      std::fill_n(to, count, 1.0f);
      continue;
    }
    const ir::DrawKey key{seed, static_cast<uint32_t>(kParameterStream), static_cast<uint32_t>(i), 0};
    for (int64_t at = 0; at < count; at += 4) {
      const ir::Philox4 words = key.block(at / 4);
      for (int64_t lane = 0; lane < std::min<int64_t>(4, count - at); ++lane) {
        to[at + lane] = draw(words, lane, spec.init);
      }
    }
  }
  return flat;
}

}  // namespace difuse::models
