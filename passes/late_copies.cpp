#include "passes/late_copies.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "ir/op.h"
#include "passes/fusion/traits.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

/// Which operand the body's input stands for.
size_t operand_of(const Node& input) {
  const std::string& name = input.as<ir::LeafAttrs>().name;
  size_t operand = 0;
  std::from_chars(name.data(), name.data() + name.size(), operand);
  return operand;
}

/// An elementwise op, what is free, or a part of an operand.
bool is_of_elements(const Graph& body, const Node& node) {
  const bool is_part = node.op == Op::slice && body.node(node.operands[0]).op == Op::input;
  return is_pointwise(body, node) || is_free(body, node) || is_part;
}

}  // namespace

std::optional<Chain> find_chain(const Graph& graph, Value v) {
  const Node& maker = graph.node(v);
  const Graph& body = body_of(maker);
  // Where the value is among what the fusion stores besides v.
  const auto stored = [&](Value inner) {
    const auto at = std::ranges::find(body.outputs(), inner, &ir::NamedValue::value);
    const auto result = static_cast<int32_t>(at - body.outputs().begin());
    return at == body.outputs().end() || result == v.result ? std::nullopt : std::optional(result);
  };
  std::vector<bool> is_at_hand(static_cast<size_t>(body.size()), false);
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    const auto is_known = [&](Value operand) { return is_at_hand[static_cast<size_t>(operand.node)]; };
    is_at_hand[static_cast<size_t>(id)] =
        node.op == Op::input ||
        (is_of_elements(body, node) ? std::ranges::all_of(node.operands, is_known) : stored({id, 0}).has_value());
  }
  Chain chain;
  std::vector<Value> open = {body.outputs()[static_cast<size_t>(v.result)].value};
  while (!open.empty()) {
    const Value inner = open.back();
    open.pop_back();
    const Node& node = body.node(inner);
    if (node.op == Op::input) {
      chain.sources[inner] = maker.operands[operand_of(node)];
      continue;
    }
    const bool is_simple = is_of_elements(body, node);
    // What is stored besides, such as a norm's statistics, or a mask that was drawn, is read.
    if (const auto result = stored(inner); result && !(is_simple && is_at_hand[static_cast<size_t>(inner.node)])) {
      chain.sources[inner] = {v.node, *result};
      continue;
    }
    if (!is_simple) return std::nullopt;
    if (!chain.nodes.insert(inner.node).second) continue;
    open.insert(open.end(), node.operands.begin(), node.operands.end());
  }
  return chain;
}

bool LateCopies::is_possible(const LateCopy& copy) const {
  if (needs(copy.host, copy.readers)) return false;
  std::vector<int> after = copy.readers;
  after.push_back(copy.host);
  return std::ranges::none_of(copy.operands, [&](Value v) { return needs(v.node, after); });
}

/// Whether the node cannot run before one of the others.
bool LateCopies::needs(int node, const std::vector<int>& others) const {
  std::vector<bool> seen(static_cast<size_t>(graph_.size()), false);
  std::vector<int> open = {node};
  const auto visit = [&](int id) {
    if (!seen[static_cast<size_t>(id)]) open.push_back(id);
    seen[static_cast<size_t>(id)] = true;
  };
  while (!open.empty()) {
    const int id = open.back();
    open.pop_back();
    if (std::ranges::find(others, id) != others.end()) return true;
    for (const Value v : graph_.node(id).operands) visit(v.node);
    const auto before = runs_after_.find(id);
    if (before == runs_after_.end()) continue;
    for (const int other : before->second) visit(other);
  }
  return false;
}

void LateCopies::add(const LateCopy& copy) {
  const Node& node = graph_.node(copy.host);
  Host& host = hosts_.try_emplace(copy.host, node.operands, node.as<ir::FusionAttrs>().body).first->second;
  for (const Value v : copy.operands) {
    if (std::ranges::find(host.operands, v) == host.operands.end()) host.operands.push_back(v);
    runs_after_[copy.host].push_back(v.node);
  }
  const auto result = static_cast<int32_t>(host.body->outputs().size());
  host.body = std::make_shared<const Graph>(with_result(host, copy.value));
  for (const int reader : copy.readers) {
    reads_instead_[{reader, copy.value}] = {copy.host, result};
    runs_after_[reader].push_back(copy.host);
  }
}

/// The host's body, which also makes the value out of the host's operands.
Graph LateCopies::with_result(const Host& host, Value v) const {
  const Graph &before = *host.body, &maker = body_of(graph_.node(v));
  Graph body(before.name());
  std::vector<Value> inputs;
  for (size_t i = 0; i < host.operands.size(); ++i) {
    const ir::Type& type = graph_.type(host.operands[i]);
    inputs.push_back(body.add(Op::input, {}, ir::LeafAttrs{std::to_string(i), type.dtype, type.shape}));
  }
  const auto copy_node = [&](const Graph& from, int id, std::map<Value, Value>& mapped) {
    std::vector<Value> operands;
    for (const Value operand : from.node(id).operands) operands.push_back(mapped.at(operand));
    const std::vector<Value> copied = ir::copy_node(body, from.node(id), operands);
    for (size_t r = 0; r < copied.size(); ++r) mapped[{id, static_cast<int32_t>(r)}] = copied[r];
  };
  std::map<Value, Value> mapped, again;
  for (int id = 0; id < before.size(); ++id) {
    if (before.node(id).op == Op::input) {
      mapped[{id, 0}] = inputs[operand_of(before.node(id))];
    } else {
      copy_node(before, id, mapped);
    }
  }
  const Chain chain = find_chain(graph_, v).value();
  for (const auto& [inner, outer] : chain.sources) {
    again[inner] = inputs[static_cast<size_t>(std::ranges::find(host.operands, outer) - host.operands.begin())];
  }
  for (const int id : chain.nodes) copy_node(maker, id, again);
  for (const ir::NamedValue& output : before.outputs()) body.set_output(output.name, mapped.at(output.value));
  body.set_output(std::to_string(before.outputs().size()),
                  again.at(maker.outputs()[static_cast<size_t>(v.result)].value));
  return body;
}

Graph LateCopies::emit() const {
  Graph to(graph_.name());
  std::map<Value, Value> mapped;
  std::vector<bool> done(static_cast<size_t>(graph_.size()), false);
  const auto is_done = [&](int id) { return done[static_cast<size_t>(id)]; };
  const auto is_ready = [&](int id) {
    const auto before = runs_after_.find(id);
    return (before == runs_after_.end() || std::ranges::all_of(before->second, is_done)) &&
           std::ranges::all_of(graph_.node(id).operands, [&](Value v) { return is_done(v.node); });
  };
  const auto write = [&](int id) {
    Node node = graph_.node(id);
    if (const auto host = hosts_.find(id); host != hosts_.end()) {
      node.operands = host->second.operands;
      node.attrs = ir::FusionAttrs{node.as<ir::FusionAttrs>().hero, host->second.body};
    }
    for (Value& v : node.operands) {
      const auto copy = reads_instead_.find({id, v});
      v = mapped.at(copy == reads_instead_.end() ? v : copy->second);
    }
    const Value first = to.add(node.op, node.operands, node.attrs);
    const auto results = static_cast<int32_t>(to.node(first).types.size());
    for (int32_t r = 0; r < results; ++r) mapped[{id, r}] = {first.node, r};
    done[static_cast<size_t>(id)] = true;
  };
  std::vector<int> waiting;
  for (int id = 0; id < graph_.size(); ++id) {
    if (!is_ready(id)) {
      waiting.push_back(id);
      continue;
    }
    write(id);
    if (!hosts_.contains(id)) continue;
    const auto next_ready = [&] { return std::ranges::find_if(waiting, is_ready); };
    for (auto next = next_ready(); next != waiting.end(); next = next_ready()) {
      write(*next);
      waiting.erase(next);
    }
  }
  for (const ir::NamedValue& n : graph_.outputs()) to.set_output(n.name, mapped.at(n.value));
  for (const ir::NamedValue& n : graph_.updates()) to.set_update(n.name, mapped.at(n.value));
  return to;
}

}  // namespace difuse::passes
