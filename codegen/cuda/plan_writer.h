// Adds what emitters make of specs to a plan: sources once each, and calls.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "codegen/cuda/join/order.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/tune/table.h"

namespace difuse::codegen::cuda {

class PlanWriter final : public Emission {
 public:
  /// `decisions`, where given, decide the tiles that a spec does not say itself. All must outlive the writer.
  PlanWriter(CudaPlan& plan, const ir::DeviceSpec& device, const TuningTable* decisions = nullptr);

  /// The spec's kernels as those of `node`, whose workspace lies outside of what others still hold. Throws Error when
  /// no emitter accepts it or none of its kernels fits.
  void emit(const KernelSpec& spec, int node, std::vector<WorkspaceRange> held = {});
  /// Of the node that was emitted last.
  const std::vector<WorkspaceRange>& workspace_ranges() const { return own_; }

  Argument workspace(int64_t bytes) override;
  void launch(KernelDraft draft) override;
  void prepare(KernelDraft draft) override;

 private:
  KernelCall call_of(KernelDraft draft);
  std::vector<WorkspaceRange> ranges_of(const KernelCall& call) const;
  KernelSpec chosen(const KernelSpec& spec, const Emitter& emitter);

  CudaPlan& plan_;
  const TuningTable* decisions_;
  std::string architecture_;
  std::unordered_map<std::string, int> sources_;  // by text and options
  int node_ = -1;
  std::vector<WorkspaceRange> held_, own_;
};

}  // namespace difuse::codegen::cuda
