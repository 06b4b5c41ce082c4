#include "tests/support/cuda_emulator/emulated_kernel.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/join/table.h"
#include "ir/error.h"
#include "tests/support/cuda_emulator/block_machine.h"
#include "tests/support/cuda_emulator/kernel_library.h"

namespace difuse::testing {

using codegen::CudaSource;
using codegen::cuda::Argument;
using codegen::cuda::Grid;

namespace {

void check_launch(const KernelLibrary& kernel, const Grid& grid, int threads, int64_t shared_bytes, size_t arguments) {
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("emulated kernel {} cannot be launched: {}", kernel.name, why));
  };
  if (threads < 1 || threads > static_cast<int>(kernel.most_threads)) {
    refuse(fmt::format("{} threads a block, but it has at most {}", threads, kernel.most_threads));
  }
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535) {
    refuse(fmt::format("a grid of {} x {} x {} blocks", grid.x, grid.y, grid.z));
  }
  if (grid.x % kernel.cluster != 0) refuse(fmt::format("{} blocks in clusters of {}", grid.x, kernel.cluster));
  if (kernel.cluster > 1 && kernel.code.static_shared != kernel.code.static_shared_end) {
    refuse("blocks of a cluster have dynamic shared memory alone here");
  }
  if (shared_bytes < 0 || shared_bytes > static_cast<int64_t>(emulator::kDynamicShared)) {
    refuse(fmt::format("{} bytes of dynamic shared memory", shared_bytes));
  }
  if (arguments != kernel.code.parameters) {
    refuse(fmt::format("{} arguments for {} parameters", arguments, kernel.code.parameters));
  }
}

}  // namespace

EmulatedKernel EmulatedKernel::build(const CudaSource& source, const EmulatorOptions& options) {
  return build_all({&source, 1}, options).front();
}

std::vector<EmulatedKernel> EmulatedKernel::build_all(std::span<const CudaSource> sources,
                                                      const EmulatorOptions& options) {
  std::vector<EmulatedKernel> kernels;
  for (auto& library : load_kernels(sources, options.find_races)) kernels.push_back(EmulatedKernel(std::move(library)));
  return kernels;
}

void EmulatedKernel::launch(const Grid& grid, int threads, int64_t dynamic_shared_bytes,
                            std::span<const uint64_t> arguments) const {
  static thread_local StackPool stacks;  // Setting one up takes longer than many a launch.
  check_launch(*library_, grid, threads, dynamic_shared_bytes, arguments.size());
  const std::lock_guard lock(library_->running);
  const Launch launch = {
      .kernel = library_->name,
      .code = library_->code,
      .grid = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z)},
      .threads = static_cast<unsigned>(threads),
      .shared_bytes = static_cast<unsigned>(dynamic_shared_bytes),
      .cluster = library_->cluster,
      .arguments = arguments};
  run_blocks(launch, stacks, library_->finds_races);
}

emulator::TensorMapContent emulated_map(const codegen::cuda::TensorMapSpec& spec, std::byte* start) {
  emulator::TensorMapContent map{};
  map.start = reinterpret_cast<unsigned char*>(start);
  map.rank = static_cast<unsigned short>(spec.extents.size());
  map.element_bytes = static_cast<unsigned short>(ir::size_of(spec.dtype));
  std::ranges::copy(spec.extents, map.extents);
  std::ranges::copy(spec.strides, map.strides);
  std::ranges::copy(spec.box, map.box);
  std::ranges::copy(spec.steps, map.steps);
  return map;
}

void run_emulated(const codegen::cuda::CudaPlan& plan, std::span<const codegen::cuda::KernelCall> calls,
                  std::byte* arena, std::byte* workspace, const EmulatorOptions& options) {
  const auto kernels = EmulatedKernel::build_all(plan.sources, options);
  std::vector<uint64_t> arguments;
  std::vector<emulator::TensorMapContent> maps;
  for (const auto& call : calls) {
    maps.clear();
    for (const auto& map : call.tensor_maps) {
      std::byte* const memory = map.start.kind == Argument::Kind::arena ? arena : workspace;
      maps.push_back(emulated_map(map, memory + map.start.value));
    }
    const auto address = [&](const Argument& argument) {
      switch (argument.kind) {
        case Argument::Kind::arena:
          return EmulatedKernel::argument(arena + argument.value);
        case Argument::Kind::workspace:
          return EmulatedKernel::argument(workspace + argument.value);
        case Argument::Kind::tensor_map:
          return EmulatedKernel::argument(&maps[static_cast<size_t>(argument.value)]);
        case Argument::Kind::number:
          break;
      }
      return EmulatedKernel::argument(argument.value);
    };
    std::vector<codegen::cuda::TableLine> table;
    arguments.clear();
    if (call.members > 1) {
      table = codegen::cuda::table_of(call, address, [&](int64_t map) { return &maps[static_cast<size_t>(map)]; });
      arguments.push_back(EmulatedKernel::argument(table.data()));
    } else {
      for (const Argument& argument : call.arguments) arguments.push_back(address(argument));
    }
    kernels[static_cast<size_t>(call.source)].launch(call.grid, call.threads, call.shared_bytes, arguments);
  }
}

}  // namespace difuse::testing
