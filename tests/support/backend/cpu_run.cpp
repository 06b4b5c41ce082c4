#include "tests/support/backend/cpu_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "codegen/cpu/lower_cpu.h"
#include "codegen/cpu/plain.h"
#include "passes/memory_plan.h"
#include "runtime/cpu_executor.h"

namespace difuse::testing {
namespace {

using ir::DType;

template <class T>
void append(Bytes& bytes, T value) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), at, at + sizeof(T));
}
template <class T>
T element(const Bytes& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

float from_half(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const float sign = h & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * std::ldexp(static_cast<float>(exponent ? 1024 + mantissa : mantissa), std::max(exponent, 1) - 25);
}

}  // namespace

Bytes encode(const ir::Tensor& tensor) {
  Bytes bytes;
  for (double x : tensor.data) {
    switch (tensor.type.dtype) {
      case DType::f32:
        append(bytes, static_cast<float>(x));
        break;
      case DType::bf16: {
        const float f = static_cast<float>(ir::round_to(x, DType::bf16));
        uint32_t bits;
        std::memcpy(&bits, &f, sizeof(bits));
        append(bytes, static_cast<uint16_t>(bits >> 16));
        break;
      }
      case DType::f16: {
        uint16_t nearest = 0;
        for (uint32_t h = 0; h < 0x7c00; ++h) {  // Small tensors only.
          if (std::abs(from_half(static_cast<uint16_t>(h)) - std::abs(x)) <
              std::abs(from_half(nearest) - std::abs(x))) {
            nearest = static_cast<uint16_t>(h);
          }
        }
        append(bytes, static_cast<uint16_t>(nearest | (std::signbit(x) ? 0x8000 : 0)));
        break;
      }
      case DType::i32:
        append(bytes, static_cast<int32_t>(x));
        break;
      case DType::u32:
        append(bytes, static_cast<uint32_t>(x));
        break;
      case DType::u8:
        append(bytes, static_cast<uint8_t>(x));
        break;
    }
  }
  return bytes;
}

ir::Tensor decode(const ir::Type& type, const Bytes& bytes) {
  ir::Tensor t(type);
  for (size_t i = 0; i < t.data.size(); ++i) {
    switch (type.dtype) {
      case DType::f32:
        t.data[i] = static_cast<double>(element<float>(bytes, i));
        break;
      case DType::bf16: {
        const uint32_t bits = static_cast<uint32_t>(element<uint16_t>(bytes, i)) << 16;
        float f;
        std::memcpy(&f, &bits, sizeof(f));
        t.data[i] = static_cast<double>(f);
        break;
      }
      case DType::f16:
        t.data[i] = static_cast<double>(from_half(element<uint16_t>(bytes, i)));
        break;
      case DType::i32:
        t.data[i] = element<int32_t>(bytes, i);
        break;
      case DType::u32:
        t.data[i] = element<uint32_t>(bytes, i);
        break;
      case DType::u8:
        t.data[i] = element<uint8_t>(bytes, i);
        break;
    }
  }
  return t;
}

std::unique_ptr<runtime::Executor> lower(const ir::Graph& graph, const CpuSettings& settings) {
  return lower(graph, passes::plan_memory(graph, {.reuse = settings.reuse_memory}), settings);
}

std::unique_ptr<runtime::Executor> lower(const ir::Graph& graph, passes::MemoryPlan memory,
                                         const CpuSettings& settings) {
  std::unique_ptr<codegen::Contractions> room;
  if (settings.plain) {
    room = std::make_unique<codegen::PlainContractions>();
  } else {
    room = codegen::make_contractions();
  }
  return std::make_unique<runtime::CpuExecutor>(codegen::lower_cpu(graph, std::move(memory), *room), settings.threads);
}

CpuRun run(runtime::Executor& executor, const ir::TensorMap& inputs, const ir::TensorMap& states, int steps) {
  for (const auto& [name, t] : inputs) executor.write_input(name, encode(t));
  for (const auto& [name, t] : states) executor.write_state(name, encode(t));
  for (int i = 0; i < steps; ++i) executor.run();
  CpuRun result;
  const ir::Graph& graph = executor.graph();
  for (const ir::NamedValue& n : graph.outputs()) {
    Bytes bytes(static_cast<size_t>(graph.type(n.value).bytes()));
    executor.read_output(n.name, bytes);
    result.outputs[n.name] = std::move(bytes);
  }
  for (int id : graph.leaves(ir::Op::state)) {
    Bytes bytes(static_cast<size_t>(graph.node(id).types[0].bytes()));
    executor.read_state(graph.node(id).as<ir::LeafAttrs>().name, bytes);
    result.states[graph.node(id).as<ir::LeafAttrs>().name] = std::move(bytes);
  }
  return result;
}

CpuRun run_cpu(const ir::Graph& graph, const ir::TensorMap& inputs, const ir::TensorMap& states,
               const CpuSettings& settings) {
  return run(*lower(graph, settings), inputs, states, settings.steps);
}

void expect_near_reference(const ir::Graph& graph, const CpuRun& got, const ir::TensorMap& inputs,
                           const ir::TensorMap& states, double tolerance) {
  const ir::ReferenceResult want = ir::run_reference(graph, inputs, states);
  auto compare = [&](const std::string& name, const ir::Tensor& reference, const Bytes& bytes) {
    const ir::Tensor t = decode(reference.type, bytes);
    EXPECT_LE(ir::relative_error(t.data, reference.data), tolerance) << name << " of graph " << graph.name();
  };
  for (const auto& [name, t] : want.outputs) compare(name, t, got.outputs.at(name));
  for (const auto& [name, t] : want.states) compare(name, t, got.states.at(name));
}

void expect_same(const CpuRun& a, const CpuRun& b, const std::string& what) {
  for (const auto& [name, bytes] : a.outputs) EXPECT_TRUE(bytes == b.outputs.at(name)) << name << ": " << what;
  for (const auto& [name, bytes] : a.states) EXPECT_TRUE(bytes == b.states.at(name)) << name << ": " << what;
}

}  // namespace difuse::testing
