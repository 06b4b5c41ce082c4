#include "codegen/cuda/emit/conv_wgmma/tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "codegen/cuda/source/extents.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda {
namespace {

constexpr int64_t kTapBytes = 64 * 128;
constexpr int64_t kMostHaloSlots = 6, kMostTapSlots = 12;
constexpr int64_t kLeastTapSlots = 4;

int64_t halo_slot(const HaloConv& conv, const HaloTile& tile) { return ceil_div(halo_bytes(conv, tile), 1024) * 1024; }

int64_t all_taps(const HaloConv& conv) { return conv.chunks() * conv.taps * conv.taps; }

/// What a block may take where a processor has `blocks` at once; each takes 1024 bytes more than it asks for.
int64_t room_of(int64_t blocks, const ir::DeviceSpec& device) {
  constexpr int64_t kReserved = 1024;
  return (device.shared_memory_bytes + kReserved) / blocks - kReserved;
}

/// Whether the producer's registers go to the consumers.
bool shares_registers(const HaloTile& tile) { return tile.blocks == 1 && tile.consumers > 1; }

/// Warpgroups.
int64_t transformers(const HaloConv& conv, const HaloTile& tile) {
  return conv.has_prologue() ? (tile.blocks == 1 ? 2 : 1) : 0;
}

/// Registers of a consumer's thread: what the others leave of all (device/conv_wgmma.cuh), or an equal share.
int64_t registers_of(const HaloConv& conv, const HaloTile& tile) {
  constexpr int64_t kAll = 65536, kMost = 232, kOfThree = 160, kBesideTransformers = 144;
  if (conv.has_prologue() && shares_registers(tile)) return kBesideTransformers;
  if (!conv.has_prologue() && tile.blocks == 1) return tile.consumers == 3 ? kOfThree : kMost;
  return std::min(kMost, kAll / tile.blocks / threads(conv, tile) / 8 * 8);
}

/// What a tile takes of them: its sums, and what else there is.
int64_t needed_registers(const HaloConv& conv, const HaloTile& tile) {
  const int64_t strips = conv.has_strips() ? tile.pixels() / 8 : 0;
  // Of a residual's tile several rows are on their way, and of each image what is added to its channels.
  const int64_t operands = conv.residual < 0 ? 0 : tile.pixels() / 4 + 16 * (tile.images - 1) + 8 * (conv.parts() - 1);
  return strips + tile.pixels() / 2 + operands + 48;
}

void add_resident(std::vector<HaloTile>& tiles, const HaloConv& conv, HaloTile tile, int64_t room) {
  tile.tap_slots = all_taps(conv), tile.halo_slots = kMostHaloSlots;
  while (tile.halo_slots > 0 && shared_bytes(conv, tile) > room) --tile.halo_slots;
  // Each transformer has slots of its own.
  if (conv.has_prologue()) tile.halo_slots -= tile.halo_slots % transformers(conv, tile);
  // One halo for each consumer, and one on its way.
  if (tile.halo_slots > tile.consumers) tiles.push_back(tile);
}

/// Two halos for each consumer, or three; one where it needs no other for the tile or its result, and another block has
/// work meanwhile. What is left goes to the taps.
void add_ring(std::vector<HaloTile>& tiles, const HaloConv& conv, HaloTile tile, int64_t room) {
  const int64_t most = std::min(kMostTapSlots, all_taps(conv) - 1), least = std::min(kLeastTapSlots, most);
  if (most < 2) return;  // A tap is given back when the next one has begun.
  const auto add = [&](int64_t halos) {
    if (conv.has_prologue() && halos * tile.consumers % transformers(conv, tile) != 0) return false;
    tile.halo_slots = halos * tile.consumers, tile.tap_slots = most;
    while (tile.tap_slots > 0 && shared_bytes(conv, tile) > room) --tile.tap_slots;
    if (tile.tap_slots < least) return false;
    tiles.push_back(tile);
    return true;
  };
  if (!add(2) && tile.blocks > 1 && conv.chunks() == 1 && conv.parts() == 1) add(1);
  if (conv.chunks() > 2) add(3);
}

/// Whether a block has the registers for transformers. With so many threads the compiler refuses the product of 256
/// pixels in one instruction.
bool transforms_beside(const HaloConv& conv, const HaloTile& tile) {
  constexpr int64_t kTransformer = 96;
  if (shares_registers(tile)) return tile.consumers == 2 && tile.rows < 32;
  return registers_of(conv, tile) >= kTransformer;
}

}  // namespace

std::string to_string(const HaloTile& t) {
  return fmt::format("8x{}x{} {} consumers {} halos {} taps {} blocks", t.rows, t.images, t.consumers, t.halo_slots,
                     t.tap_slots, t.blocks);
}

int threads(const HaloConv& conv, const HaloTile& tile) {
  const int64_t warpgroups = tile.consumers + transformers(conv, tile);
  return static_cast<int>(128 * warpgroups) + (shares_registers(tile) ? 128 : 32);
}

bool is_resident(const HaloConv& conv, const HaloTile& tile) { return tile.tap_slots == all_taps(conv); }

int64_t halo_bytes(const HaloConv& conv, const HaloTile& tile) {
  return tile.images * (tile.rows + conv.taps - 1) * (8 + conv.taps - 1) * 128;
}

int64_t shared_bytes(const HaloConv& conv, const HaloTile& tile) {
  return tile.halo_slots * halo_slot(conv, tile) + tile.tap_slots * kTapBytes +
         8 * ((conv.has_prologue() ? 3 : 2) * tile.halo_slots + 2 * tile.tap_slots) +
         (conv.has_finish ? 8 + transformers(conv, tile) * tile.images * conv.inputs * 2 * 4 : 0);
}

int64_t work_count(const HaloConv& conv, const HaloTile& tile, int64_t batch) {
  const int64_t tiles = conv.is_line()
                            ? ceil_div(batch * conv.height * conv.width, tile.pixels())
                            : ceil_div(conv.width, 8) * ceil_div(conv.height, tile.rows) * ceil_div(batch, tile.images);
  return ceil_div(tiles, tile.consumers) * ceil_div(conv.outputs, 64);
}

int64_t block_count(const HaloConv& conv, const HaloTile& tile, int64_t works, const ir::DeviceSpec& device) {
  const int64_t blocks = std::min(works, tile.blocks * device.processors);
  // With the taps resident, a block's work is always of the same output channels.
  const int64_t unit = is_resident(conv, tile) ? ceil_div(conv.outputs, 64) : 1;
  return std::max(blocks / unit, int64_t{1}) * unit;
}

double estimated_cycles(const HaloConv& conv, const HaloTile& tile, const ir::DeviceSpec& device, int64_t batch) {
  // Fitted to the times of 173 candidates of two consumers for 14 shapes on an H200, with and without a residual: 12 %
  // off, and what it chooses is 0.4 % slower than the fastest. Bytes a cycle from L2, of all processors together and of
  // one:
  constexpr double kSharedRate = 4500, kOwnRate = 90;
  constexpr double kLaunch = 4500;
  const int64_t works = work_count(conv, tile, batch), blocks = block_count(conv, tile, works, device);
  const auto rounds = static_cast<double>(ceil_div(works, blocks));
  const auto company = static_cast<double>(ceil_div(blocks, device.processors));
  const double rate = std::min(kOwnRate, kSharedRate / static_cast<double>(std::min(blocks, device.processors)));
  const bool resident = is_resident(conv, tile);

  // An instruction of N pixels takes N / 2 cycles; those of 64 pixels are bound by what they read.
  const int64_t steps = ceil_div(conv.inputs, conv.chunk() / 4) * conv.taps * conv.taps;
  const auto halo = static_cast<double>(halo_bytes(conv, tile)), pixels = static_cast<double>(tile.pixels());
  const double product = static_cast<double>(steps * tile.consumers) * pixels / 2 * (tile.rows == 8 ? 1.1 : 1.0);
  const auto taps = static_cast<double>(all_taps(conv) * kTapBytes);
  const double results = pixels * 128 * static_cast<double>(conv.parts() * (conv.residual < 0 ? 1 : 2));
  const double bytes = static_cast<double>(tile.consumers) * (static_cast<double>(conv.chunks()) * halo + results) +
                       (resident ? 0 : taps);

  // A prologue's special functions, two for an element, take 8 cycles for a pixel's 64 channels; and what holds them
  // up.
  const double transform = conv.has_prologue() ? halo / 128 * 12 : 0;
  const double compute = std::max(product, transform * static_cast<double>(tile.consumers * conv.chunks()));

  // Between two works: where they take turns, one consumer stores while another multiplies.
  // The one that stores holds a slot for each part of its result: without two more the other waits for each halo.
  const bool takes_turns = resident && tile.consumers > 1;
  const bool in_turns = takes_turns && tile.halo_slots >= conv.parts() + 2;
  double between = in_turns ? 900 : 12 * pixels;
  if (conv.residual >= 0) between += (in_turns ? 20 : 16) * pixels;
  if (company > 1) between *= 1.2;
  if (!resident && tile.halo_slots == tile.consumers) between += halo / rate + 1000;
  if (takes_turns && !in_turns) between += static_cast<double>(conv.chunks()) * (halo / rate + 1000);
  // More halos than one in use and one on its way are for when the estimate is wrong.
  const double deep = !resident && tile.halo_slots > 2 * tile.consumers ? 1.03 : 1.0;
  return deep * (kLaunch + halo / rate + transform + rounds * (std::max(compute, bytes / rate) * company + between) +
                 14 * pixels);
}

std::vector<HaloTile> candidates(const HaloConv& conv, const ir::DeviceSpec& device) {
  std::vector<HaloTile> tiles;
  // Blocks of a processor, and consumers.
  constexpr std::pair<int64_t, int64_t> kTeams[] = {{1, 2}, {2, 2}, {1, 3}, {1, 1}, {2, 1}, {3, 1}};
  for (const auto& [blocks, consumers] : kTeams) {
    const int64_t room = room_of(blocks, device);
    for (const int64_t rows : {32, 16, 8}) {
      for (int64_t images = 1; rows * images * 8 <= 256; images *= 2) {
        // Several images only where one tile covers an image's height.
        if (images > 1 && (conv.is_line() || rows < conv.height)) break;
        if (conv.has_strips() && rows % ir::kStripHeight != 0 && rows < conv.height) break;  // No whole strips.
        const HaloTile shape{rows, images, 0, 0, blocks, consumers};
        if (needed_registers(conv, shape) > registers_of(conv, shape)) break;
        if (conv.has_prologue() && !transforms_beside(conv, shape)) break;
        add_resident(tiles, conv, shape, room);
        add_ring(tiles, conv, shape, room);
      }
    }
  }
  // Unmeasured, a tile is taken from those that the estimate was fitted to; with a prologue, or in f32, it was to none.
  const bool is_fitted = !conv.has_prologue() && conv.dtype == ir::DType::bf16;
  std::ranges::stable_sort(tiles, {}, [&](const HaloTile& tile) {
    return std::pair(tile.consumers != 2 && is_fitted, estimated_cycles(conv, tile, device));
  });
  return tiles;
}

}  // namespace difuse::codegen::cuda
