// Runs and times the candidates of a site on a GPU.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "codegen/cuda/tuning_site.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/launches.h"
#include "runtime/cuda/owners.h"
#include "runtime/tune/tuner.h"

namespace difuse::runtime {

/// What all sites' timers share: two kernels of the tuner's own, and memory that is larger than the L2.
class TimerTools {
 public:
  static codegen::cuda::CudaPlan plan(const ir::DeviceSpec& device);

  /// `kernels` are those of plan().
  TimerTools(std::shared_ptr<const CudaDevice> device, const TuneMeans::Kernels& kernels);

  const CudaDevice& device() const { return *device_; }
  /// Reads other memory until nothing else is left in the L2.
  void flush();
  /// Whether two ranges have the same bytes; `bytes` is a multiple of 4.
  bool same(cuda::DevicePointer a, cuda::DevicePointer b, int64_t bytes);
  /// Fills a value with numbers of about 1 (integers: 0 to 3), the same ones again and again.
  void fill(cuda::DevicePointer to, const codegen::cuda::TuningSite::Place& place);

 private:
  void launch(int kernel, std::vector<uint64_t> arguments);

  std::shared_ptr<const CudaDevice> device_;
  codegen::cuda::CudaPlan plan_;
  LoadedKernels kernels_;
  DeviceMemory large_, flag_;
  std::map<std::pair<ir::DType, bool>, std::unique_ptr<DeviceMemory>> numbers_;  // by type and whether it is tf32
};

class CudaTimer final : public Timer {
 public:
  /// `plan` and `kernels` as TuneMeans::time gets them. The tools must outlive the timer.
  CudaTimer(TimerTools& tools, const codegen::cuda::TuningSite& site, codegen::cuda::CudaPlan plan,
            const TuneMeans::Kernels& kernels);

  bool agrees(size_t candidate) override;
  /// One CUDA graph holds all runs, forwards and backwards through the candidates by turns, each with a cold L2. It is
  /// replayed twice, and the second time counts.
  std::vector<std::vector<double>> time(std::span<const size_t> candidates, int rounds) override;

 private:
  std::vector<size_t> calls_of(size_t candidate) const;

  TimerTools& tools_;
  const CudaDevice& device_;
  codegen::cuda::CudaPlan plan_;
  int choice_;
  int64_t results_begin_, results_bytes_;
  LoadedKernels kernels_;
  DeviceMemory arena_, workspace_, expected_;
  Launches launches_;
};

}  // namespace difuse::runtime
