// Which tiles Hopper's convolution may be computed with, and which is likely to be the fastest. A tile never changes a
// bit of the result.
#pragma once

#include <string>
#include <vector>

#include "codegen/cuda/emit/conv_wgmma/problem.h"
#include "ir/device_spec.h"

namespace difuse::codegen::cuda {

/// As in device/conv_wgmma.cuh: 8 wide, `rows` high, in each of `images` images, or of as many times `abreast` side by
/// side, of one consumer or of all.
struct HaloTile {
  int64_t rows = 32, images = 1;
  int64_t halo_slots = 4, tap_slots = 6;
  int64_t blocks = 1;  ///< Of a processor at once.
  int64_t consumers = 2;
  bool shares_halo = false;  ///< Consumers have the same pixels, and 64 output channels each.
  int64_t abreast = 1;

  /// Different tiles of pixels of a work, and its output channels in 64s.
  int64_t halos() const { return shares_halo ? 1 : consumers; }
  int64_t output_chunks() const { return consumers / halos(); }
  int64_t pixels() const { return 8 * rows * images; }
  int64_t width() const { return 8 / abreast; }
  int64_t all_images() const { return images * abreast; }
  /// Whether the pixels that a tap meets are one piece of the halo.
  bool is_dense() const { return abreast > 1; }
  bool operator==(const HaloTile&) const = default;
};

/// "8x32x1 2 consumers 4 halos 6 taps 1 blocks", or "..., shared halos"; "4x4x8 ..." where images are abreast.
std::string to_string(const HaloTile& tile);

/// Whether all taps of a work's output channels stay in shared memory.
bool is_resident(const HaloConv& conv, const HaloTile& tile);

/// Of each of a halo's boxes.
int64_t box_rows(const HaloConv& conv, const HaloTile& tile);
/// Of a halo's copy.
int64_t halo_bytes(const HaloConv& conv, const HaloTile& tile);

/// Warpgroups that transform halos.
int64_t transformers(const HaloConv& conv, const HaloTile& tile);

/// Of a block.
int threads(const HaloConv& conv, const HaloTile& tile);
int64_t shared_bytes(const HaloConv& conv, const HaloTile& tile);

/// Sets of tiles, one for each consumer, times the output channels in 64s, or tiles times sets of those: what the
/// blocks share out.
int64_t work_count(const HaloConv& conv, const HaloTile& tile, int64_t batch);

/// At most as many as the processors have at once.
int64_t block_count(const HaloConv& conv, const HaloTile& tile, int64_t works, const ir::DeviceSpec& device);
/// Of a block, at most.
int64_t work_share(const HaloConv& conv, const HaloTile& tile, int64_t works, const ir::DeviceSpec& device);

/// All that fit: those of two consumers first, and of either kind the one with the least estimated time first; at least
/// one. Depends on nothing that holds the batch.
std::vector<HaloTile> candidates(const HaloConv& conv, const ir::DeviceSpec& device);

constexpr int64_t kDefaultBatch = 32;

/// The estimate, in cycles.
double estimated_cycles(const HaloConv& conv, const HaloTile& tile, const ir::DeviceSpec& device,
                        int64_t batch = kDefaultBatch);

}  // namespace difuse::codegen::cuda
