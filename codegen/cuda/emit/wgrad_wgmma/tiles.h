// How the gradient of a filter is cut into blocks (device/wgrad_wgmma.cuh), which of them there are to choose from, and
// which are likely to be the fastest. No candidate changes a bit of the result.
#pragma once

#include <string>
#include <vector>

#include "codegen/cuda/emit/wgrad_wgmma/problem.h"
#include "ir/device_spec.h"

namespace difuse::codegen::cuda {

/// Blocks of the result have 64 times `row_chunks` output channels, 64 times `column_chunks` input channels and
/// `tap_rows` rows of taps.
struct WgradTile {
  int64_t row_chunks = 1, column_chunks = 1, tap_rows = 3;
  int64_t slots = 3;   ///< Tiles of pixels in the ring.
  int64_t blocks = 1;  ///< Of a processor at once.

  bool operator==(const WgradTile&) const = default;
};

/// "1x1 chunks 3 tap rows 5 slots 1 blocks"
std::string to_string(const WgradTile& tile);

/// Warpgroups that multiply.
int64_t consumers(const HaloWgrad& wgrad, const WgradTile& tile);
/// Of a block of the kernel.
int threads(const HaloWgrad& wgrad, const WgradTile& tile);
/// Of the result.
int64_t block_count(const HaloWgrad& wgrad, const WgradTile& tile);
/// Of a block of the result, as floats.
int64_t block_sums(const HaloWgrad& wgrad, const WgradTile& tile);
int64_t shared_bytes(const HaloWgrad& wgrad, const WgradTile& tile);

/// Blocks of the kernel, or clusters of them, each with an equal share of the tiles of all blocks of the result. Where
/// is_whole, splits() for each block of the result; otherwise as many as there are processors for in a member's share
/// of the card, or as have enough to do; or fewer, whose shares end where blocks of the result end, if that costs less
/// than it saves. Which partial sums there are, and so the order of the whole sum, follows from this number.
int64_t group_count(const HaloWgrad& wgrad, const WgradTile& tile, const ir::DeviceSpec& device);

/// Whether the kernel's blocks have the whole sum: nothing is left to add.
bool is_direct(const HaloWgrad& wgrad, const WgradTile& tile, const ir::DeviceSpec& device);

/// The estimate, in cycles, of a kernel whose blocks have whole sums, of all members together.
double estimated_cycles(const HaloWgrad& wgrad, const WgradTile& tile, const ir::DeviceSpec& device);

/// Where is_whole, all that fit, the one with the least estimated time at the usual batch first. Otherwise blocks are
/// part of the order of the sum, and what is left open is the ring. At least one; depends on nothing that holds the
/// batch.
std::vector<WgradTile> candidates(const HaloWgrad& wgrad, const ir::DeviceSpec& device);

}  // namespace difuse::codegen::cuda
