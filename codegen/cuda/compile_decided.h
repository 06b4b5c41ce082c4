// A plan's kernels, where tables of decisions chose their tiles.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_plan.h"
#include "codegen/jit/compiler.h"
#include "codegen/tune/table.h"
#include "ir/device_spec.h"

namespace difuse::codegen::cuda {

/// What KernelCompiler::compile gives for the plan's sources. Decisions may be older than the compiler, and registers
/// are estimated: a tile that the compiler refuses is forbidden in `decisions`, said in one line to `warn`, and the
/// plan lowered again without it, until there is no other tile. The plan was lowered with `decisions`.
std::vector<CompileResult> compile_decided(
    CudaPlan& plan, const ir::DeviceSpec& device, TuningTable& decisions,
    const std::function<std::vector<CompileResult>(std::span<const CudaSource>)>& compile,
    const std::function<void(const std::string& line)>& warn);

}  // namespace difuse::codegen::cuda
