// Adds what emitters make of specs to a plan: sources once each, and calls.
#pragma once

#include <map>
#include <string>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/tune/table.h"

namespace difuse::codegen::cuda {

class PlanWriter final : public Emission {
 public:
  /// `decisions`, where given, decide the tiles that a spec does not say itself. All must outlive the writer.
  PlanWriter(CudaPlan& plan, const ir::DeviceSpec& device, const TuningTable* decisions = nullptr);

  /// The spec's kernels as those of `node`. Throws Error when no emitter accepts it or none of its kernels fits.
  void emit(const KernelSpec& spec, int node);

  Argument workspace(int64_t bytes) override;
  void launch(KernelDraft draft) override;

 private:
  KernelSpec decided(const KernelSpec& spec, const Emitter& emitter);

  CudaPlan& plan_;
  const TuningTable* decisions_;
  std::string architecture_;
  std::map<std::string, int> sources_;  // by digest
  int node_ = -1;
  int64_t workspace_ = 0;
};

}  // namespace difuse::codegen::cuda
