// Runs the candidates of a tuning site in the emulator. Their times are the test's.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "codegen/cuda/tuning_site.h"
#include "runtime/tune/tuner.h"

namespace difuse::testing {

class EmulatedTimer final : public runtime::Timer {
 public:
  /// The time of a candidate of `plan`.
  using Seconds = std::function<double(size_t candidate)>;

  EmulatedTimer(const codegen::cuda::TuningSite& site, codegen::cuda::CudaPlan plan, Seconds seconds);

  bool agrees(size_t candidate) override;
  std::vector<std::vector<double>> time(std::span<const size_t> candidates, int rounds) override;

 private:
  codegen::cuda::CudaPlan plan_;
  size_t results_begin_;
  std::vector<std::byte> memory_, workspace_;
  std::byte *arena_, *scratch_;  // At multiples of 256.
  std::vector<std::byte> expected_;
  Seconds seconds_;
};

}  // namespace difuse::testing
