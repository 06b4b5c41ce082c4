// A model's parameters as slices of one flat f32 vector.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/builder.h"

namespace difuse::models {

/// How a parameter starts. The rules are PyTorch's defaults.
struct ParameterInit {
  enum class Kind : uint8_t { zeros, ones, uniform, normal };
  Kind kind = Kind::zeros;
  int64_t fan_in = 0;  ///< uniform: over (-1/sqrt(fan_in), 1/sqrt(fan_in)), for weight and bias alike.

  static ParameterInit zeros() { return {Kind::zeros, 0}; }
  static ParameterInit ones() { return {Kind::ones, 0}; }
  static ParameterInit uniform(int64_t fan_in) { return {Kind::uniform, fan_in}; }
  static ParameterInit normal() { return {Kind::normal, 0}; }
  bool operator==(const ParameterInit&) const = default;
};

/// Convolution weights are [Cout, R, S, Cin] (the attention's qkv and proj_out are 1x1 convolutions, [Cout, 1, 1,
/// Cin]), linear weights [Cout, Cin], embeddings [classes, width].
struct ParameterSpec {
  std::string name;  ///< guided-diffusion's own, e.g. "input_blocks.1.0.in_layers.0.weight".
  ir::Shape shape;
  ParameterInit init;

  int64_t elements() const { return ir::element_count(shape); }
};

/// Where each parameter lies. Slices start at 256-byte boundaries; the gaps between them are zero and stay zero. The
/// order is that in which the backward pass finishes the gradients: the reverse of the forward's, so the output
/// convolution comes first and the time embedding last.
class ParameterLayout {
 public:
  /// `specs` in the order of the forward.
  explicit ParameterLayout(std::vector<ParameterSpec> specs);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  /// Element at which each parameter begins.
  const std::vector<int64_t>& offsets() const { return offsets_; }
  /// Elements of the flat vector, gaps included.
  int64_t size() const { return size_; }
  /// Elements without gaps.
  int64_t parameters() const;
  /// Index into specs() and offsets(), -1 when there is no parameter of that name.
  int find(std::string_view name) const;

 private:
  std::vector<ParameterSpec> specs_;
  std::vector<int64_t> offsets_;
  int64_t size_ = 0;
  std::map<std::string, int, std::less<>> by_name_;
};

/// Where a model builder gets its parameters from. Each name is asked for once.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  virtual ir::Value get(const std::string& name, const ir::Shape& shape, ParameterInit init) = 0;
};

/// Notes what is asked for, and gives a state of that name.
class ParameterCollector final : public ParameterSource {
 public:
  explicit ParameterCollector(ir::Builder& build) : build_(build) {}
  ir::Value get(const std::string& name, const ir::Shape& shape, ParameterInit init) override;
  const std::vector<ParameterSpec>& specs() const { return specs_; }

 private:
  ir::Builder& build_;
  std::vector<ParameterSpec> specs_;
};

/// Gives views of a flat vector.
class PackedParameters final : public ParameterSource {
 public:
  PackedParameters(ir::Builder& build, const ParameterLayout& layout, ir::Value flat);
  ir::Value get(const std::string& name, const ir::Shape& shape, ParameterInit init) override;
  /// The view of each parameter, in the order of the layout.
  const std::vector<ir::Value>& views() const { return views_; }

 private:
  const ParameterLayout& layout_;
  std::vector<ir::Value> views_;
};

/// The flat vector at the start of training. Each parameter is drawn by Philox keyed by (seed, its place in the
/// layout), so values do not depend on the order of evaluation.
std::vector<float> initial_parameters(const ParameterLayout& layout, std::array<uint32_t, 2> seed);

}  // namespace difuse::models
