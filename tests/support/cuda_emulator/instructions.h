// What instructions of a whole warp compute, given every lane's registers.
#pragma once

#include <array>
#include <span>

#include "tests/support/cuda_emulator/device/machine.cuh"

namespace difuse::testing {

using WarpParts = std::array<emulator::Part*, 32>;

/// What a tensor core adds up: every addend cut off at a few bits below the last bit of the largest, then the sum at
/// its own last bit, both towards zero (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor
/// cores", 2021).
float truncated_sum(std::span<const double> addends);
/// d += a * b, accumulated in fp32; the layouts are those of codegen/cuda/device/ptx.cuh.
void compute_mma(emulator::Collective collective, const WarpParts& lanes);
/// Every lane's row is an address that can be read.
void compute_ldmatrix(bool transposed, const WarpParts& lanes);
/// Every lane's row is an address that can be written.
void compute_stmatrix_trans(const WarpParts& lanes);

}  // namespace difuse::testing
