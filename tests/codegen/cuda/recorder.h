// What an emitter launches, kept; and its drafts as sources with a name.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/jit/nvrtc.h"

namespace difuse::codegen::cuda {

class Recorder : public Emission {
 public:
  Argument workspace(int64_t bytes) override {
    const int64_t at = workspace_bytes;
    workspace_bytes += (bytes + 255) / 256 * 256;
    return {Argument::Kind::workspace, at};
  }
  void launch(KernelDraft draft) override { drafts.push_back(std::move(draft)); }
  void prepare(KernelDraft draft) override { prepared.push_back(std::move(draft)); }

  int64_t workspace_bytes = 0;
  std::vector<KernelDraft> drafts, prepared;
};

/// Expects that no field of the template is left.
inline CudaSource source_of(const KernelDraft& draft, const std::string& architecture) {
  const std::string name = "kernel_under_test", source = filled(draft.source, {{"kernel", name}});
  EXPECT_EQ(source.find('$'), std::string::npos);
  return {name, source, architecture, draft.options};
}

/// Spills are errors of the compiler, which throws them.
inline void expect_compiles(const NvrtcLibrary& nvrtc, const KernelDraft& draft,
                            std::initializer_list<const char*> architectures) {
  for (const char* architecture : architectures) {
    const CompiledKernel kernel = nvrtc.compile(source_of(draft, architecture));
    EXPECT_EQ(kernel.log.find("warning"), std::string::npos) << kernel.log;
  }
}

}  // namespace difuse::codegen::cuda
