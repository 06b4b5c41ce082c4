// Runs what an emitter makes of a body, on the CPU, and compares with the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "ir/flops.h"
#include "ir/op.h"
#include "ir/reference.h"
#include "tests/codegen/cuda/recorder.h"
#include "tests/support/cuda_emulator/emulated_kernel.h"

namespace difuse::codegen::cuda {

inline const ir::DeviceSpec& h100() { return *ir::find_device_spec("h100"); }

constexpr auto kUntouched = std::byte{0xff};  // NaNs
constexpr int64_t kGuard = 256;               ///< Bytes after every tensor, which nobody may write.

inline std::vector<std::byte> stored(const ir::Tensor& t) {
  const auto size = static_cast<size_t>(ir::size_of(t.type.dtype));
  std::vector<std::byte> bytes(t.data.size() * size);
  for (size_t i = 0; i < t.data.size(); ++i) {
    const auto x = static_cast<float>(t.data[i]);
    if (t.type.dtype == ir::DType::f32) {
      std::memcpy(&bytes[i * 4], &x, 4);
    } else if (t.type.dtype == ir::DType::bf16) {
      std::memcpy(&bytes[i * 2], reinterpret_cast<const std::byte*>(&x) + 2, 2);
    } else if (t.type.dtype == ir::DType::i32 || t.type.dtype == ir::DType::u32) {
      const auto whole = static_cast<uint32_t>(static_cast<int64_t>(t.data[i]));
      std::memcpy(&bytes[i * 4], &whole, 4);
    } else if (t.type.dtype == ir::DType::u8) {
      bytes[i] = static_cast<std::byte>(x);
    } else {
      const auto half = static_cast<_Float16>(x);
      std::memcpy(&bytes[i * 2], &half, 2);
    }
  }
  return bytes;
}

inline ir::Tensor loaded(const ir::Type& type, const std::byte* bytes) {
  ir::Tensor t(type);
  for (size_t i = 0; i < t.data.size(); ++i) {
    float x = 0;
    if (type.dtype == ir::DType::f32) {
      std::memcpy(&x, bytes + i * 4, 4);
    } else if (type.dtype == ir::DType::bf16) {
      std::memcpy(reinterpret_cast<std::byte*>(&x) + 2, bytes + i * 2, 2);
    } else if (type.dtype == ir::DType::u8) {
      x = static_cast<float>(bytes[i]);
    } else {
      _Float16 half;
      std::memcpy(&half, bytes + i * 2, 2);
      x = static_cast<float>(half);
    }
    t.data[i] = x;
  }
  return t;
}

/// How a body's tensors lie in memory.
struct Places {
  int64_t alignment = 256;  ///< Of everything: each tensor starts so many bytes after a multiple of 256.
  bool tf32 = false;        ///< Operands hold floats rounded to tf32.
  std::set<int> unwanted{};
  std::map<int, int> in_place{};  ///< Result -> the operand that it overwrites.
};

struct Placed {
  KernelSpec spec;
  int64_t arena_bytes;
};

inline const ir::Type& operand_type(const ir::Graph& body, size_t i) {
  return body.type(body.find_input(std::to_string(i)));
}

inline Placed place(const ir::Graph& body, const Places& places, const ir::DeviceSpec& device) {
  Placed placed{{body, {}, {}, {}, {}, "test", 0, device, {}}, 0};
  const auto next = [&](int64_t bytes) {
    const Argument at{Argument::Kind::arena, placed.arena_bytes + places.alignment % 256};
    placed.arena_bytes += (bytes + places.alignment % 256 + kGuard + 255) / 256 * 256;
    return at;
  };
  for (size_t i = 0; i < body.leaves(ir::Op::input).size(); ++i) {
    placed.spec.operands.push_back(next(operand_type(body, i).bytes()));
    placed.spec.alignment.push_back(places.alignment);
    placed.spec.is_tf32.push_back(places.tf32);
  }
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    const auto shared = places.in_place.find(static_cast<int>(r));
    if (places.unwanted.contains(static_cast<int>(r))) {
      placed.spec.results.push_back(Argument::number(0));
    } else if (shared != places.in_place.end()) {
      placed.spec.results.push_back(placed.spec.operands[static_cast<size_t>(shared->second)]);
    } else {
      placed.spec.results.push_back(next(body.type(body.outputs()[r].value).bytes()));
    }
    placed.spec.result_alignment.push_back(places.alignment);
  }
  return placed;
}

struct Aligned {
  explicit Aligned(int64_t bytes) : memory(static_cast<size_t>(bytes) + 256, kUntouched) {
    start = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
  }
  std::vector<std::byte> memory;
  std::byte* start;
};

/// Results by output name; those that are unwanted are missing. Kernels are compiled for `architecture`. `find_races`
/// not where they order accesses by barriers of part of a block, which the checker does not know.
inline ir::TensorMap run_drafts(const Placed& placed, const Recorder& recorder, const ir::TensorMap& inputs,
                                const char* architecture, bool find_races = true) {
  const KernelSpec& spec = placed.spec;
  const ir::Graph& body = spec.body;
  Aligned arena(placed.arena_bytes), workspace(recorder.workspace_bytes);
  std::vector<bool> owned(static_cast<size_t>(placed.arena_bytes), false);
  const auto own = [&](const Argument& at, int64_t bytes) {
    std::fill_n(owned.begin() + at.value, bytes, true);
    return arena.start + at.value;
  };
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const std::vector<std::byte> bytes = stored(inputs.at(std::to_string(i)));
    std::ranges::copy(bytes, own(spec.operands[i], std::ssize(bytes)));
  }
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (spec.wanted(r)) own(spec.results[r], body.type(body.outputs()[r].value).bytes());
  }
  std::vector<CudaSource> sources;
  for (const KernelDraft& draft : recorder.drafts) sources.push_back(source_of(draft, architecture));
  const auto kernels = difuse::testing::EmulatedKernel::build_all(sources, {.find_races = find_races});
  for (size_t k = 0; k < kernels.size(); ++k) {
    const KernelDraft& draft = recorder.drafts[k];
    const auto address = [&](const Argument& a) {
      return a.kind == Argument::Kind::arena ? arena.start + a.value : workspace.start + a.value;
    };
    std::vector<emulator::TensorMapContent> maps;
    for (const TensorMapSpec& map : draft.tensor_maps) {
      maps.push_back(difuse::testing::emulated_map(map, address(map.start)));
    }
    std::vector<uint64_t> arguments;
    for (const Argument& a : draft.arguments) {
      arguments.push_back(a.kind == Argument::Kind::number ? static_cast<uint64_t>(a.value)
                          : a.kind == Argument::Kind::tensor_map
                              ? reinterpret_cast<uint64_t>(&maps[static_cast<size_t>(a.value)])
                              : reinterpret_cast<uint64_t>(address(a)));
    }
    kernels[k].launch(draft.grid, draft.threads, draft.shared_bytes, arguments);
  }
  for (size_t i = 0; i < owned.size(); ++i) {
    if (!owned[i] && arena.start[i] != kUntouched) {
      ADD_FAILURE() << "byte " << i << " of the arena belongs to nobody and was written";
      break;
    }
  }
  ir::TensorMap results;
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (!spec.wanted(r)) continue;
    results[std::to_string(r)] = loaded(body.type(body.outputs()[r].value), arena.start + spec.results[r].value);
  }
  return results;
}

/// An image's values depend on its place in the batch alone, so that a batch's first images are a smaller batch's.
inline ir::TensorMap random_inputs(const ir::Graph& body, bool tf32) {
  ir::TensorMap inputs;
  for (const int id : body.leaves(ir::Op::input)) {
    const auto& leaf = body.node(id).as<ir::LeafAttrs>();
    std::mt19937_64 random(std::hash<std::string>()(leaf.name) + 17);
    std::normal_distribution<double> normal(0.1, 1);
    ir::Tensor t(body.node(id).types[0]);
    for (double& x : t.data) {
      auto value = static_cast<float>(normal(random));
      if (tf32) {
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        bits = (bits + 0x1000) & ~uint32_t{0x1fff};
        std::memcpy(&value, &bits, 4);
      }
      x = ir::round_to(t.type.dtype == ir::DType::u8 ? std::abs(value) * 99 : value, t.type.dtype);
    }
    inputs[leaf.name] = std::move(t);
  }
  return inputs;
}

/// Of f32 results: 2e-6, and where one product after the other is added to the tensor core's own sum, half a last bit
/// (2^-25) for each, because it cuts off towards zero.
inline double f32_tolerance(const ir::Graph& body, const ir::TensorMap& inputs, bool tf32) {
  bool short_operands = tf32;
  for (const auto& [name, t] : inputs) short_operands = short_operands || t.type.dtype != ir::DType::f32;
  int64_t products = 0;
  for (int id = 0; short_operands && id < body.size(); ++id) {
    const ir::Node& node = body.node(id);
    if (ir::node_flops(body, node) > 0) products = ir::node_flops(body, node) / (2 * node.types[0].elements()) / 8;
  }
  return 2e-6 + static_cast<double>(products) * 0x1p-25;
}

/// `got`: results that the body gave for these inputs.
inline void expect_reference(const ir::Graph& body, const ir::TensorMap& inputs, const ir::TensorMap& got, bool tf32) {
  const ir::TensorMap want = ir::run_reference(body, inputs, {}).outputs;
  const double exact = f32_tolerance(body, inputs, tf32);
  for (const auto& [name, tensor] : got) {
    // What is rounded may become the neighbour of what the reference gives.
    const ir::DType dtype = tensor.type.dtype;
    const double tolerance = dtype == ir::DType::bf16 ? 8e-3 : dtype == ir::DType::f16 ? 1e-3 : exact;
    EXPECT_LE(ir::relative_error(tensor.data, want.at(name).data), tolerance) << "output " << name;
  }
}

}  // namespace difuse::codegen::cuda
