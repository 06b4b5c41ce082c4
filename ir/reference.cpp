#include "ir/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ir/error.h"

namespace difuse::ir {
namespace {

const Tensor& leaf_value(const TensorMap& given, const Node& node, std::string_view what) {
  const auto& leaf = node.as<LeafAttrs>();
  const auto it = given.find(leaf.name);
  if (it == given.end()) throw Error(fmt::format("the reference was given no {} \"{}\"", what, leaf.name));
  if (it->second.type != node.types[0]) {
    throw Error(fmt::format("{} \"{}\" is {}, the graph wants {}", what, leaf.name, to_string(it->second.type),
                            to_string(node.types[0])));
  }
  return it->second;
}

/// The node after which each node's results are read no more.
std::vector<int> last_use(const Graph& graph) {
  std::vector<int> last(static_cast<size_t>(graph.size()), -1);
  for (int id = 0; id < graph.size(); ++id) {
    for (Value v : graph.node(id).operands) last[static_cast<size_t>(v.node)] = id;
  }
  for (const auto* list : {&graph.outputs(), &graph.updates()}) {
    for (const NamedValue& n : *list) last[static_cast<size_t>(n.value.node)] = graph.size();
  }
  return last;
}

}  // namespace

ReferenceResult run_reference(const Graph& graph, const TensorMap& inputs, const TensorMap& states) {
  std::vector<std::vector<Tensor>> values(static_cast<size_t>(graph.size()));
  auto at = [&](Value v) -> Tensor& { return values[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)]; };
  const std::vector<bool> live = graph.live();
  const std::vector<int> last = last_use(graph);
  for (int id = 0; id < graph.size(); ++id) {
    if (!live[static_cast<size_t>(id)]) continue;
    const Node& node = graph.node(id);
    auto& results = values[static_cast<size_t>(id)];
    if (node.op == Op::input || node.op == Op::state) {
      results.push_back(leaf_value(node.op == Op::input ? inputs : states, node, to_string(node.op)));
      continue;
    }
    for (const Type& t : node.types) results.emplace_back(t);
    std::vector<const Tensor*> operands;
    for (Value v : node.operands) operands.push_back(&at(v));
    info(node.op).rules.evaluate(node, operands, results);
    for (Value v : node.operands) {
      if (last[static_cast<size_t>(v.node)] == id) values[static_cast<size_t>(v.node)].clear();
    }
  }
  ReferenceResult result;
  for (const NamedValue& n : graph.outputs()) result.outputs[n.name] = at(n.value);
  for (const auto& [name, tensor] : states) result.states[name] = tensor;
  for (const NamedValue& n : graph.updates()) result.states[n.name] = at(n.value);
  return result;
}

double relative_error(std::span<const double> a, std::span<const double> b, double largest) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
      const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
      if (!same) return std::numeric_limits<double>::infinity();
      continue;
    }
    difference = std::max(difference, std::abs(a[i] - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
  if (difference == 0) return 0;
  return difference / std::max(scale, 1e-3 * largest);
}

namespace {

/// Nearest value with `mantissa` stored bits and exponents down to `least_exponent` (subnormals below), ties to even.
double round_float(double value, int mantissa, int least_exponent, double largest) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), least_exponent);
  const double step = std::ldexp(1.0, exponent - mantissa);
  const double rounded = std::nearbyint(value / step) * step;
  return std::abs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
}

}  // namespace

double round_to(double value, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(static_cast<float>(value));
    case DType::bf16:
      return round_float(value, 7, -126, 0x1.FEp127);
    case DType::f16:
      return round_float(value, 10, -14, 65504);
    case DType::i32:
      return std::clamp(std::trunc(value), -2147483648.0, 2147483647.0);
    case DType::u32:
      return std::clamp(std::trunc(value), 0.0, 4294967295.0);
    case DType::u8:
      return std::clamp(std::trunc(value), 0.0, 255.0);
  }
  return value;
}

}  // namespace difuse::ir
