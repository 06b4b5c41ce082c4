// What instructions of a whole warp compute, given every lane's registers.
#pragma once

#include <array>

#include "tests/support/cuda_emulator/device/machine.cuh"

namespace difuse::testing {

using WarpParts = std::array<emulator::Part*, 32>;

/// d += a * b, accumulated in fp32; the layouts are those of codegen/cuda/device/ptx.cuh.
void compute_mma(emulator::Collective collective, const WarpParts& lanes);
/// Every lane's row is an address that can be read.
void compute_ldmatrix(bool transposed, const WarpParts& lanes);
/// Every lane's row is an address that can be written.
void compute_stmatrix_trans(const WarpParts& lanes);

}  // namespace difuse::testing
