// Some calls of a plan with addresses in them, ready to be put on the GPU's stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_plan.h"
#include "codegen/cuda/join/table.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/kernels.h"

namespace difuse::runtime {

class Launches {
 public:
  /// `calls` and `kernels` are those of the plan; all of them, and the memory, must outlive the launches. Throws Error
  /// naming the kernel whose grid is beyond what a GPU takes.
  Launches(const CudaDevice& device, const codegen::cuda::CudaPlan& plan,
           const std::vector<codegen::cuda::KernelCall>& calls, const LoadedKernels& kernels, cuda::DevicePointer arena,
           cuda::DevicePointer workspace);

  Launches(const Launches&) = delete;  // Holds addresses of itself.
  Launches& operator=(const Launches&) = delete;

  size_t size() const { return launches_.size(); }
  /// A dependent one may begin while the kernel before it ends: what comes before must be a kernel.
  void launch(size_t call, bool dependent);
  /// One member's part of a launch that several nodes share; not dependent.
  void launch_member(size_t call, int member);
  /// "the kernel conv_3x3_1a2b3c4d (%12 of the graph "step")"
  std::string name_of(size_t call) const;

 private:
  struct Launch {
    cuda::LaunchConfig config{};
    cuda::Function function = nullptr;
    std::vector<uint64_t> values;
    std::vector<cuda::TensorMap> tensor_maps;
    std::vector<codegen::cuda::TableLine> table;
    std::vector<void*> arguments;  // Each points to a value or a tensor map, or the one to the table.
  };

  uint64_t address(const codegen::cuda::Argument& argument) const;

  const CudaDevice& device_;
  const codegen::cuda::CudaPlan& plan_;
  const std::vector<codegen::cuda::KernelCall>& calls_;
  cuda::DevicePointer arena_, workspace_;
  std::vector<Launch> launches_;
  cuda::LaunchAttribute dependent_{};
  bool may_depend_;  // Whether kernels wait for the one before themselves.
};

}  // namespace difuse::runtime
