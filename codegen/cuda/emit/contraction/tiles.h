// Which tiles a contraction may be computed with, and which is likely to be the fastest. A tile never changes a bit of
// the result.
#pragma once

#include <string>
#include <vector>

#include "codegen/cuda/emit/contraction/problem.h"
#include "ir/device_spec.h"

namespace difuse::codegen::cuda {

/// As in device/gemm.cuh: a block computes m x n results with warps_m x warps_n warps, from slots k deep.
struct GemmTile {
  int m = 64, n = 64, k = 32;
  int warps_m = 2, warps_n = 2;
  int stages = 3;

  int threads() const { return 32 * warps_m * warps_n; }
  bool operator==(const GemmTile&) const = default;
};

/// "128x64x32 2x2 4 stages"
std::string to_string(const GemmTile& tile);

/// Of a thread, roughly.
int registers(const GemmProblem& problem, const GemmTile& tile);

/// Of the ring.
int64_t shared_bytes(const GemmProblem& problem, const GemmTile& tile);

/// Blocks that a processor holds at a time.
int64_t resident_blocks(const GemmProblem& problem, const GemmTile& tile, const ir::DeviceSpec& device);

/// All that fit, the one with the least estimated time first; at least one. Depends on nothing that holds the batch.
std::vector<GemmTile> candidates(const GemmProblem& problem, const ir::DeviceSpec& device);

/// The estimate, in cycles of one processor, at the usual batch.
double estimated_cycles(const GemmProblem& problem, const GemmTile& tile, const ir::DeviceSpec& device);

}  // namespace difuse::codegen::cuda
