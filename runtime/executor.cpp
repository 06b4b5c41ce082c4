#include "runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/error.h"
#include "ir/op.h"
#include "runtime/tensor_bytes.h"

namespace difuse::runtime {
namespace {

void check_size(std::string_view what, std::string_view name, const ir::Type& type, size_t given) {
  if (static_cast<int64_t>(given) == type.bytes()) return;
  throw Error(fmt::format("{} \"{}\" is {}, {} bytes, not {}", what, name, to_string(type), type.bytes(), given));
}

/// By node: whether it is a state that a node reads before `end`.
std::vector<bool> states_read_before(const ir::Graph& graph, const passes::MemoryPlan& memory, int end) {
  std::vector<bool> read(static_cast<size_t>(graph.size()), false);
  const std::vector<bool> live = graph.live();
  for (int id = 0; id < end; ++id) {
    if (!live[static_cast<size_t>(id)] || passes::is_alias(graph, memory, id)) continue;
    for (ir::Value v : graph.node(id).operands) {
      while (passes::is_alias(graph, memory, v.node)) v = graph.node(v).operands[0];
      if (graph.node(v).op == ir::Op::state) read[static_cast<size_t>(v.node)] = true;
    }
  }
  return read;
}

}  // namespace

Executor::Executor(const ir::Graph& graph, const passes::MemoryPlan& memory)
    : graph_(graph), memory_(memory), read_once_(states_read_before(graph, memory, memory.once_end)) {}

const passes::Placement& Executor::leaf(ir::Op kind, std::string_view name, size_t bytes) const {
  const ir::Value v = kind == ir::Op::input ? graph_.find_input(name) : graph_.find_state(name);
  if (!v.valid()) throw Error(fmt::format("graph \"{}\" has no {} \"{}\"", graph_.name(), to_string(kind), name));
  check_size(to_string(kind), name, graph_.type(v), bytes);
  return memory_.at(v);
}

const passes::Placement& Executor::output(std::string_view name, std::optional<size_t> bytes) const {
  const auto found = std::ranges::find(graph_.outputs(), name, &ir::NamedValue::name);
  if (found == graph_.outputs().end()) {
    throw Error(fmt::format("graph \"{}\" has no output \"{}\"", graph_.name(), name));
  }
  if (bytes) check_size("output", name, graph_.type(found->value), *bytes);
  return memory_.at(found->value);
}

void Executor::write_input(std::string_view name, std::span<const std::byte> bytes) {
  const int64_t offset = leaf(ir::Op::input, name, bytes.size()).offset;
  upload(offset, bytes, graph_.find_input(name).node);
}

void Executor::read_output(std::string_view name, std::span<std::byte> bytes) const {
  download(output(name, bytes.size()).offset, bytes);
}

void Executor::write_state(std::string_view name, std::span<const std::byte> bytes) {
  upload(leaf(ir::Op::state, name, bytes.size()).offset, bytes, -1);
  if (read_once_[static_cast<size_t>(graph_.find_state(name).node)]) once_is_due_ = true;
}

void Executor::read_state(std::string_view name, std::span<std::byte> bytes) const {
  download(leaf(ir::Op::state, name, bytes.size()).offset, bytes);
}

std::unique_ptr<Fetch> Executor::fetch_output(std::string_view name) const {
  const passes::Placement& place = output(name, std::nullopt);
  return start_fetch(place.offset, place.bytes);
}

bool Executor::read_value(ir::Value v, std::span<std::byte> bytes) const {
  const passes::Placement& place = memory_.at(v);
  if (!place.placed()) return false;
  download(place.offset, bytes);
  return true;
}

void Executor::fill_leaves() {
  for (int id = 0; id < graph_.size(); ++id) {
    const ir::Node& node = graph_.node(id);
    if (node.op != ir::Op::constant && node.op != ir::Op::literal) continue;
    const passes::Placement& place = memory_.at({id, 0});
    if (place.placed()) upload(place.offset, leaf_bytes(node), -1);
  }
}

double median(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::ranges::nth_element(numbers, middle);
  return *middle;
}

}  // namespace difuse::runtime
