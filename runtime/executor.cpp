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

}  // namespace

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
