// What decisions about tiles are kept by.
#pragma once

#include <string>

#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

/// "<name> <rest> <digest>": the same text for kernels that differ in nothing but the batch, another one where
/// something else may change which tile is the fastest. `rest` says the geometry; the digest stands for the ops of the
/// body, their types and how they hang together, which results are stored, and how far operands and results are
/// aligned.
std::string problem_text(const KernelSpec& spec, const std::string& rest);

}  // namespace difuse::codegen::cuda
