#include "ir/graph.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/error.h"
#include "ir/op.h"
#include "ir/text.h"

namespace difuse::ir {
namespace {

/// Every dimension is at least 1, and the bytes fit an int64.
void check_extents(const OpInfo& o, const Type& type) {
  int64_t bytes = size_of(type.dtype);
  for (int64_t d : type.shape) {
    if (d < 1) throw Error(fmt::format("{}: shape {} has a dimension below 1", o.name, to_string(type.shape)));
    if (__builtin_mul_overflow(bytes, d, &bytes)) {
      throw Error(fmt::format("{}: {} has more than 2^63 bytes", o.name, to_string(type)));
    }
  }
}

}  // namespace

Value Graph::add(Op op, std::vector<Value> operands, Attrs attrs) {
  const OpInfo& o = info(op);
  const int count = static_cast<int>(operands.size());
  if (count < o.least_operands || (o.most_operands != kVariadic && count > o.most_operands)) {
    throw Error(fmt::format("{} takes {} to {} operands, not {}", o.name, o.least_operands,
                            o.most_operands == kVariadic ? "any number of" : std::to_string(o.most_operands), count));
  }
  if (attrs.index() != o.default_attrs.index()) throw Error(fmt::format("{}: attributes of another op", o.name));

  std::vector<Type> operand_types;
  operand_types.reserve(operands.size());
  for (Value v : operands) {
    require_value(v, o.name);
    operand_types.push_back(type(v));
  }
  std::vector<Type> types;
  try {
    types = o.rules.infer(operand_types, attrs);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", o.name, e.what()), e.remedy());
  }

  for (const Type& t : types) check_extents(o, t);

  Node made{op, std::move(operands), std::move(attrs), std::move(types)};
  auto [it, fresh] = by_key_.try_emplace(node_key(made), size());
  if (fresh) nodes_.push_back(std::move(made));
  return Value{it->second, 0};
}

namespace {
void append_unique(std::vector<NamedValue>& list, std::string name, Value value, std::string_view what) {
  for (const NamedValue& n : list) {
    if (n.name == name) throw Error(fmt::format("the graph already has {} \"{}\"", what, name));
  }
  list.push_back({std::move(name), value});
}
}  // namespace

void Graph::require_value(Value v, std::string_view reader) const {
  if (v.node < 0 || v.node >= size() || v.result < 0 || v.result >= static_cast<int>(node(v).types.size())) {
    throw Error(fmt::format("{} reads %{}.{}, which does not exist", reader, v.node, v.result));
  }
}

void Graph::set_output(std::string name, Value value) {
  require_value(value, "an output");
  append_unique(outputs_, std::move(name), value, "an output");
}

void Graph::set_update(std::string name, Value value) {
  const Value state = find_replaced(name);
  if (!state.valid()) throw Error(fmt::format("update of \"{}\": the graph has no state of that name", name));
  require_value(value, "an update");
  if (type(state) != type(value)) {
    throw Error(fmt::format("update of \"{}\": the state is {}, the new value is {}", name, to_string(type(state)),
                            to_string(type(value))));
  }
  append_unique(updates_, std::move(name), value, "an update of");
}

std::vector<int> Graph::leaves(Op op) const {
  std::vector<int> ids;
  for (int id = 0; id < size(); ++id) {
    if (node(id).op == op) ids.push_back(id);
  }
  return ids;
}

Value Graph::find_leaf(Op op, std::string_view name) const {
  for (int id = 0; id < size(); ++id) {
    if (node(id).op == op && node(id).as<LeafAttrs>().name == name) return Value{id, 0};
  }
  return {};
}

Value Graph::find_replaced(std::string_view name) const {
  for (int id = 0; id < size(); ++id) {
    if (node(id).op == Op::carry && node(id).as<CarryAttrs>().name == name) return Value{id, 0};
  }
  return find_state(name);
}

std::vector<std::vector<int>> Graph::users() const {
  std::vector<std::vector<int>> result(nodes_.size());
  for (int id = 0; id < size(); ++id) {
    for (Value v : node(id).operands) {
      auto& list = result[static_cast<size_t>(v.node)];
      if (list.empty() || list.back() != id) list.push_back(id);
    }
  }
  return result;
}

std::vector<bool> Graph::live() const {
  std::vector<bool> is_live(nodes_.size(), false);
  for (const auto* list : {&outputs_, &updates_}) {
    for (const NamedValue& n : *list) is_live[static_cast<size_t>(n.value.node)] = true;
  }
  for (int id = size() - 1; id >= 0; --id) {
    if (!is_live[static_cast<size_t>(id)]) continue;
    for (Value v : node(id).operands) is_live[static_cast<size_t>(v.node)] = true;
  }
  return is_live;
}

std::vector<Value> copy_node(Graph& to, const Node& node, const std::vector<Value>& operands) {
  const Value first = to.add(node.op, operands, node.attrs);
  std::vector<Value> results;
  for (int r = 0; r < static_cast<int>(node.types.size()); ++r) results.push_back({first.node, r});
  return results;
}

namespace {

Graph made_of(const Graph& from, std::span<const int> order, const Emit& emit) {
  Graph to(from.name());
  std::vector<std::vector<Value>> mapped(static_cast<size_t>(from.size()));
  auto map = [&](Value v) { return mapped[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)]; };
  for (const int id : order) {
    const Node& node = from.node(id);
    std::vector<Value> operands;
    operands.reserve(node.operands.size());
    for (Value v : node.operands) operands.push_back(map(v));
    mapped[static_cast<size_t>(id)] = emit(to, id, node, operands);
  }
  for (const NamedValue& n : from.outputs()) to.set_output(n.name, map(n.value));
  for (const NamedValue& n : from.updates()) to.set_update(n.name, map(n.value));
  return to;
}

}  // namespace

Graph rebuild(const Graph& from, const Emit& emit) {
  const std::vector<bool> live = from.live();
  std::vector<int> order;
  for (int id = 0; id < from.size(); ++id) {
    // Inputs and states are the graph's interface: they stay even when nothing reads them. So does what has an update.
    const Op op = from.node(id).op;
    if (live[static_cast<size_t>(id)] || op == Op::input || op == Op::state || op == Op::carry) order.push_back(id);
  }
  return made_of(from, order, emit);
}

Graph reordered(const Graph& from, std::span<const int> order) {
  return made_of(from, order, [](Graph& to, int, const Node& node, const std::vector<Value>& operands) {
    return copy_node(to, node, operands);
  });
}

}  // namespace difuse::ir
