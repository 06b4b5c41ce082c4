// From a scheduled body to a kernel: where values between groups lie, and the phases.
#pragma once

#include <memory>

#include "codegen/cpu/kernels/body.h"
#include "codegen/cpu/kernels/unit.h"

namespace difuse::codegen::cpu {

/// Null where nothing is to be done. Results may lie where operands lie: where that would let something be read after
/// it was overwritten, the result is made elsewhere and copied.
std::unique_ptr<PhaseKernel> assemble(Body body);

}  // namespace difuse::codegen::cpu
