#include "runtime/cuda/launches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ir/error.h"
#include "runtime/cuda/tensor_map.h"

namespace difuse::runtime {

using codegen::cuda::Argument;
using codegen::cuda::KernelCall;

Launches::Launches(const CudaDevice& device, const codegen::cuda::CudaPlan& plan, const std::vector<KernelCall>& calls,
                   const LoadedKernels& kernels, cuda::DevicePointer arena, cuda::DevicePointer workspace)
    : device_(device),
      plan_(plan),
      calls_(calls),
      arena_(arena),
      workspace_(workspace),
      launches_(calls.size()),
      // On older cards the kernels' own waiting is empty.
      may_depend_(device.spec().architecture >= 90) {
  dependent_.id = cuda::LaunchAttributeId::programmatic_stream_serialization;
  dependent_.value.programmatic_stream_serialization = 1;
  for (size_t i = 0; i < launches_.size(); ++i) {
    const KernelCall& call = calls_[i];
    Launch& launch = launches_[i];
    constexpr int64_t kMostX = (int64_t{1} << 31) - 1, kMostYZ = 65535;
    const auto fits = [](int64_t extent, int64_t most) { return extent >= 1 && extent <= most; };
    if (!fits(call.grid.x, kMostX) || !fits(call.grid.y, kMostYZ) || !fits(call.grid.z, kMostYZ) ||
        !fits(call.threads, 1024)) {
      throw Error(fmt::format("{} cannot be launched: {} x {} x {} blocks of {} threads", name_of(i), call.grid.x,
                              call.grid.y, call.grid.z, call.threads),
                  "use a smaller --batch; where the batch is small, this is a fault of difuse");
    }
    launch.config = {.grid_x = static_cast<unsigned>(call.grid.x),
                     .grid_y = static_cast<unsigned>(call.grid.y),
                     .grid_z = static_cast<unsigned>(call.grid.z),
                     .block_x = static_cast<unsigned>(call.threads),
                     .block_y = 1,
                     .block_z = 1,
                     .dynamic_shared_bytes = static_cast<unsigned>(call.shared_bytes),
                     .stream = device_.stream(),
                     .attributes = &dependent_,
                     .attribute_count = 0};
    launch.function = kernels.function(call.source);
    for (const codegen::cuda::TensorMapSpec& map : call.tensor_maps) {
      launch.tensor_maps.push_back(
          encode_tensor_map(device_.driver(), map, address(map.start), fmt::format("preparing {}", name_of(i))));
    }
    if (call.members > 1) {
      launch.table = table_of(
          call, [this](const Argument& argument) { return address(argument); },
          [&](int64_t map) { return &launch.tensor_maps[static_cast<size_t>(map)]; });
      launch.arguments = {launch.table.data()};
      continue;
    }
    for (const Argument& argument : call.arguments) launch.values.push_back(address(argument));
    for (size_t a = 0; a < call.arguments.size(); ++a) {
      const bool is_map = call.arguments[a].kind == Argument::Kind::tensor_map;
      launch.arguments.push_back(is_map ? static_cast<void*>(&launch.tensor_maps[launch.values[a]])
                                        : static_cast<void*>(&launch.values[a]));
    }
  }
}

/// Of a number or a tensor map: `value` itself.
uint64_t Launches::address(const Argument& argument) const {
  const auto value = static_cast<uint64_t>(argument.value);
  if (argument.kind == Argument::Kind::arena) return arena_ + value;
  if (argument.kind == Argument::Kind::workspace) return workspace_ + value;
  return value;
}

std::string Launches::name_of(size_t call) const {
  const KernelCall& c = calls_[call];
  return fmt::format("the kernel {} (%{} of the graph \"{}\")", plan_.sources[static_cast<size_t>(c.source)].name,
                     c.node, plan_.graph.name());
}

void Launches::launch(size_t call, bool dependent) {
  Launch& launch = launches_[call];
  launch.config.attribute_count = dependent && may_depend_ ? 1 : 0;
  const CudaDriver& cuda = device_.driver();
  const cuda::Result result = cuda->cuLaunchKernelEx(&launch.config, launch.function, launch.arguments.data(), nullptr);
  if (result != cuda::Result::success) cuda.require(result, fmt::format("launching {}", name_of(call)));
}

void Launches::launch_member(size_t call, int member) {
  if (calls_[call].members == 1) return this->launch(call, /*dependent=*/false);
  const auto row = static_cast<size_t>(row_bytes(calls_[call]));
  Launch& launch = launches_[call];
  std::vector<codegen::cuda::TableLine> first = launch.table;
  std::memcpy(first.data(), reinterpret_cast<const std::byte*>(launch.table.data()) + row * static_cast<size_t>(member),
              row);
  void* table = first.data();
  cuda::LaunchConfig config = launch.config;
  config.grid_z = 1;
  config.attribute_count = 0;
  const CudaDriver& cuda = device_.driver();
  const cuda::Result result = cuda->cuLaunchKernelEx(&config, launch.function, &table, nullptr);
  if (result != cuda::Result::success) cuda.require(result, fmt::format("launching {}", name_of(call)));
}

}  // namespace difuse::runtime
