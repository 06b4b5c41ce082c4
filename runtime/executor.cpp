#include "runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>

#include "ir/error.h"
#include "ir/op.h"
#include "ir/reference.h"

namespace difuse::runtime {
namespace {

constexpr std::align_val_t kAlignment{4096};

/// A number as `dtype` stores it, in the first bytes.
uint32_t encoded(double number, ir::DType dtype) {
  if (dtype == ir::DType::i32 || dtype == ir::DType::u32 || dtype == ir::DType::u8) {
    return static_cast<uint32_t>(static_cast<int64_t>(ir::round_to(number, dtype)));
  }
  const double rounded = ir::round_to(number, dtype);
  uint32_t bits;
  const float f = static_cast<float>(rounded);
  std::memcpy(&bits, &f, sizeof(bits));
  if (dtype == ir::DType::f32) return bits;
  if (dtype == ir::DType::bf16) return bits >> 16;
  // f16: the value is exact, so only sign, exponent and the upper ten bits of the mantissa are to be placed.
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return sign | 0x7c00u | (magnitude > 0x7f800000u ? 0x200u : 0u);
  if (magnitude >= 0x38800000u) return sign | ((magnitude - 0x38000000u) >> 13);
  return sign | static_cast<uint32_t>(std::abs(rounded) * 0x1p24);
}

void fill(std::span<std::byte> to, std::span<const double> numbers, ir::DType dtype) {
  const auto size = static_cast<size_t>(ir::size_of(dtype));
  for (size_t i = 0; i < to.size() / size; ++i) {
    const uint32_t bits = encoded(numbers[numbers.size() == 1 ? 0 : i], dtype);
    std::memcpy(to.data() + i * size, &bits, size);
  }
}

void check_size(std::string_view what, std::string_view name, const ir::Type& type, size_t given) {
  if (static_cast<int64_t>(given) == type.bytes()) return;
  throw Error(fmt::format("{} \"{}\" is {}, {} bytes, not {}", what, name, to_string(type), type.bytes(), given));
}

}  // namespace

void Executor::Free::operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }

Executor::Memory Executor::allocate(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  Memory memory(static_cast<std::byte*>(::operator new[](size, kAlignment)));
  std::memset(memory.get(), 0, size);
  return memory;
}

Executor::Executor(codegen::CpuPlan plan, int threads) : plan_(std::move(plan)) {
  if (threads < 1) {
    throw Error(fmt::format("{} threads", threads), "give at least one thread", ExitCode::wrong_usage);
  }
  try {
    arena_ = allocate(plan_.memory.arena_bytes);
    workspace_ = allocate(plan_.workspace_bytes);
    for (int i = 0; i < threads; ++i) {
      scratch_memory_.push_back(allocate(plan_.scratch_bytes));
      scratch_.push_back(scratch_memory_.back().get());
    }
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("no memory for the graph \"{}\": it needs {:.1f} MiB", plan_.graph.name(),
                            static_cast<double>(plan_.memory.arena_bytes + plan_.workspace_bytes +
                                                threads * plan_.scratch_bytes) /
                                (1 << 20)),
                "use a smaller batch or model");
  }
  team_ = std::make_unique<codegen::ThreadTeam>(threads);
  seconds_.assign(plan_.kernels.size(), 0.0);
  fill_leaves();
}

void Executor::fill_leaves() {
  for (int id = 0; id < graph().size(); ++id) {
    const ir::Node& node = graph().node(id);
    if (node.op != ir::Op::constant && node.op != ir::Op::literal) continue;
    if (!plan_.memory.at({id, 0}).placed()) continue;
    if (node.op == ir::Op::constant) {
      const double number = node.as<ir::ConstantAttrs>().value;
      fill(bytes_of({id, 0}), std::span(&number, 1), node.types[0].dtype);
    } else {
      fill(bytes_of({id, 0}), node.as<ir::LiteralAttrs>().values, node.types[0].dtype);
    }
  }
}

std::span<std::byte> Executor::bytes_of(ir::Value v) const {
  const passes::Placement& p = plan_.memory.at(v);
  return {arena_.get() + p.offset, static_cast<size_t>(p.bytes)};
}

std::span<std::byte> Executor::find(ir::Op kind, std::string_view name) const {
  const ir::Value v = kind == ir::Op::input ? graph().find_input(name) : graph().find_state(name);
  if (!v.valid()) {
    throw Error(fmt::format("graph \"{}\" has no {} \"{}\"", graph().name(), to_string(kind), name));
  }
  return bytes_of(v);
}

void Executor::write_input(std::string_view name, std::span<const std::byte> bytes) {
  const std::span<std::byte> to = find(ir::Op::input, name);
  check_size("input", name, graph().type(graph().find_input(name)), bytes.size());
  std::ranges::copy(bytes, to.begin());
}

void Executor::read_output(std::string_view name, std::span<std::byte> bytes) const {
  for (const ir::NamedValue& n : graph().outputs()) {
    if (n.name != name) continue;
    check_size("output", name, graph().type(n.value), bytes.size());
    std::ranges::copy(bytes_of(n.value), bytes.begin());
    return;
  }
  throw Error(fmt::format("graph \"{}\" has no output \"{}\"", graph().name(), name));
}

void Executor::write_state(std::string_view name, std::span<const std::byte> bytes) {
  const std::span<std::byte> to = find(ir::Op::state, name);
  check_size("state", name, graph().type(graph().find_state(name)), bytes.size());
  std::ranges::copy(bytes, to.begin());
}

void Executor::read_state(std::string_view name, std::span<std::byte> bytes) const {
  const std::span<std::byte> from = find(ir::Op::state, name);
  check_size("state", name, graph().type(graph().find_state(name)), bytes.size());
  std::ranges::copy(from, bytes.begin());
}

void Executor::run() {
  const codegen::CpuContext context{*team_, arena_.get(), workspace_.get(), scratch_};
  if (!profiling_) {
    for (const auto& kernel : plan_.kernels) kernel->run(context);
    return;
  }
  using Clock = std::chrono::steady_clock;
  for (size_t i = 0; i < plan_.kernels.size(); ++i) {
    const auto start = Clock::now();
    plan_.kernels[i]->run(context);
    seconds_[i] += std::chrono::duration<double>(Clock::now() - start).count();
  }
  ++profiled_steps_;
}

std::vector<KernelProfile> Executor::profile() const {
  std::vector<KernelProfile> rows;
  for (size_t i = 0; i < plan_.kernels.size(); ++i) {
    const codegen::CpuKernel& k = *plan_.kernels[i];
    rows.push_back({k.name, k.implementation, profiled_steps_, seconds_[i], k.bytes, k.flops});
  }
  return rows;
}

}  // namespace difuse::runtime
