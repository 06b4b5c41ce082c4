#include "codegen/cuda/emit/conv_wgmma/tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "codegen/cuda/emit/halo.h"
#include "codegen/cuda/source/extents.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda {
namespace {

constexpr int64_t kTapBytes = 64 * 128;
constexpr int64_t kMostHaloSlots = 6, kMostTapSlots = 12;
constexpr int64_t kLeastTapSlots = 4;

/// Of a halo, and the bytes of each.
int64_t boxes(const HaloConv& conv, const HaloTile& tile) { return (tile.is_dense() ? conv.taps : 1) * conv.stride; }
int64_t border(const HaloConv& conv) { return (conv.taps - 1) / conv.stride; }
int64_t box_bytes(const HaloConv& conv, const HaloTile& tile) {
  return tile.images * box_rows(conv, tile) * (tile.is_dense() ? 8 : 8 + border(conv)) * 128;
}

/// Of what is read besides in the result's place, of one tile: 128 bytes of a pixel, and 64 of a mask.
int64_t operand_bytes(const HaloConv& conv, const HaloTile& tile) {
  return conv.residual < 0 ? 0 : tile.pixels() * (conv.mask < 0 ? 128 : 192);
}

/// A slot of the ring, through which the operand passes where it has no own.
int64_t halo_slot(const HaloConv& conv, const HaloTile& tile) {
  const int64_t operand = tile.shares_halo ? 0 : operand_bytes(conv, tile);
  return std::max(boxes(conv, tile) * ceil_div(box_bytes(conv, tile), 1024), ceil_div(operand, 1024)) * 1024;
}

int64_t all_taps(const HaloConv& conv) { return conv.chunks() * conv.taps * conv.taps; }

/// What a block may take where a processor has `blocks` at once; each takes 1024 bytes more than it asks for.
int64_t room_of(int64_t blocks, const ir::DeviceSpec& device) {
  constexpr int64_t kReserved = 1024;
  return (device.shared_memory_bytes + kReserved) / blocks - kReserved;
}

/// Works that have the same pixels.
int64_t output_works(const HaloConv& conv, const HaloTile& tile) {
  return ceil_div(conv.outputs, 64 * tile.output_chunks());
}

/// Of the pixels of a tile, those of one instruction.
int64_t product_pixels(const HaloTile& tile) { return tile.is_dense() ? tile.pixels() : 8 * tile.rows; }

/// Whether the producer's registers go to the consumers.
bool shares_registers(const HaloConv& conv, const HaloTile& tile) {
  return tile.blocks == 1 && tile.consumers > 1 && !conv.has_prologue();
}

/// Registers of a consumer's thread: what the others leave of all (device/conv_wgmma.cuh), or an equal share.
int64_t registers_of(const HaloConv& conv, const HaloTile& tile) {
  // Beside transformers there are 120; what is estimated to need 144 beside two consumers takes 96.
  constexpr int64_t kAll = 65536, kMost = 232, kOfThree = 160, kBesideTransformers = 144, kThreeBeside = 120;
  if (conv.has_prologue() && tile.blocks == 1 && tile.consumers > 1) {
    return tile.consumers == 3 ? kThreeBeside : kBesideTransformers;
  }
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
  tile.tap_slots = all_taps(conv);
  const auto add = [&](int64_t least, int64_t most) {
    tile.halo_slots = most;
    while (tile.halo_slots > 0 && shared_bytes(conv, tile) > room) --tile.halo_slots;
    // Each transformer has slots of its own.
    if (conv.has_prologue()) tile.halo_slots -= tile.halo_slots % transformers(conv, tile);
    if (tile.halo_slots >= least) tiles.push_back(tile);
  };
  // One halo in use for each tile of pixels, and one on its way.
  add(tile.halos() + 1, kMostHaloSlots);
  // All that a single tap reads may be on its way at once.
  if (conv.taps == 1) add(kMostHaloSlots + 1, std::min(kMostTapSlots, conv.chunks()));
}

/// Two halos for each tile of pixels, or three; one where it needs no other for the tile or its result, and another
/// block has work meanwhile. What is left goes to the taps.
void add_ring(std::vector<HaloTile>& tiles, const HaloConv& conv, HaloTile tile, int64_t room) {
  const int64_t most = std::min(kMostTapSlots, all_taps(conv) - 1), least = std::min(kLeastTapSlots, most);
  if (most < 2) return;  // A tap is given back when the next one has begun.
  const auto add = [&](int64_t halos) {
    if (conv.has_prologue() && halos * tile.halos() % transformers(conv, tile) != 0) return false;
    tile.halo_slots = halos * tile.halos(), tile.tap_slots = most;
    while (tile.tap_slots > 0 && shared_bytes(conv, tile) > room) --tile.tap_slots;
    if (tile.tap_slots < least) return false;
    tiles.push_back(tile);
    return true;
  };
  if (!add(2) && tile.blocks > 1 && conv.chunks() == 1 && conv.parts() == 1) add(1);
  if (conv.chunks() > 2) add(3);
  if (conv.taps > 1) return;
  // Of a single tap as many are on their way as of its halos.
  for (int64_t slots = most; slots > 3; --slots) {
    tile.halo_slots = slots * tile.halos(), tile.tap_slots = slots;
    if (conv.has_prologue() && tile.halo_slots % transformers(conv, tile) != 0) continue;
    if (shared_bytes(conv, tile) > room) continue;
    tiles.push_back(tile);
    break;
  }
}

/// Whether a block has the registers for transformers. With so many threads the compiler refuses the product of 256
/// pixels in one instruction.
bool transforms_beside(const HaloConv& conv, const HaloTile& tile) {
  constexpr int64_t kTransformer = 96;
  if (tile.blocks == 1 && tile.consumers > 1) return (tile.consumers == 2 || tile.shares_halo) && tile.rows < 32;
  return registers_of(conv, tile) >= kTransformer;
}

/// Tiles of pixels alone. There are several images only where one covers an image's height.
std::vector<HaloTile> pixel_tiles(const HaloConv& conv) {
  constexpr int64_t kLeastPixels = 64, kMostPixels = 256;
  // A prologue sees to one image at a time.
  const int64_t abreast = conv.is_line() || conv.has_prologue() ? 1 : images_abreast(conv.width);
  const bool needs_strips = conv.has_strips() || conv.has_image_sums;
  std::vector<HaloTile> tiles;
  for (const int64_t rows : {32, 16, 8, 4, 2}) {
    // Of images abreast it takes more, rather than be higher than they are.
    const bool is_fit = abreast == 1 ? rows >= 8 : rows == 2 || rows < 2 * conv.height;
    if (!is_fit || (needs_strips && rows % ir::kStripHeight != 0 && rows < conv.height)) continue;
    for (int64_t images = 1; 8 * rows * images <= kMostPixels; images *= 2) {
      if (images > 1 && (conv.is_line() || rows < conv.height)) break;
      if (8 * rows * images < kLeastPixels) continue;
      tiles.push_back({.rows = rows, .images = images, .abreast = abreast});
    }
  }
  return tiles;
}

/// What the estimates are made of: cycles and bytes of a work, of which blocks have `rounds` each.
struct Costs {
  const HaloConv& conv;
  const HaloTile& tile;
  double rounds, company;  ///< `company`: blocks of a processor.
  double processors;       ///< That have any.
  bool is_resident, takes_turns;
  /// The consumer that stores holds a slot for each part of its result: without two more the other waits for each halo.
  bool in_turns;
  double halo, pixels;  ///< Bytes of a halo; pixels of a consumer's tile.
  double product;       ///< An instruction of N pixels takes N / 2 cycles.
  double transform;     ///< Of one halo.
  double taps, bytes;   ///< Bytes of all taps, and of what a work reads and writes.

  Costs(const HaloConv& of, const HaloTile& with, const ir::DeviceSpec& device, int64_t batch)
      : conv(of),
        tile(with),
        is_resident(cuda::is_resident(of, with)),
        takes_turns(is_resident && with.halos() > 1),
        in_turns(takes_turns && with.halo_slots >= of.parts() + 2) {
    // A warpgroup of transformers takes so many for a pixel's 64 channels, and holds up the products meanwhile.
    constexpr double kTransform = 17;
    const int64_t works = work_count(conv, tile, batch), blocks = block_count(conv, tile, works, device);
    rounds = static_cast<double>(work_share(conv, tile, works, device));
    company = static_cast<double>(ceil_div(blocks, device.processors));
    processors = static_cast<double>(std::min(blocks, device.processors));
    halo = static_cast<double>(halo_bytes(conv, tile)), pixels = static_cast<double>(tile.pixels());
    const int64_t steps = ceil_div(conv.inputs, conv.chunk() / 4) * conv.taps * conv.taps;
    product = static_cast<double>(steps * tile.consumers) * pixels / 2;
    const double warpgroups = company * static_cast<double>(transformers(conv, tile));
    transform = conv.has_prologue() ? halo / 128 * kTransform / warpgroups : 0;
    taps = static_cast<double>(all_taps(conv) * tile.output_chunks() * kTapBytes);
    const double results = pixels * 128 * static_cast<double>(conv.parts()) +
                           static_cast<double>(conv.parts() * operand_bytes(conv, tile));
    bytes = static_cast<double>(tile.halos() * conv.chunks()) * halo + static_cast<double>(tile.consumers) * results +
            (is_resident ? 0 : taps);
  }

  double transforms() const { return transform * static_cast<double>(tile.halos() * conv.chunks()); }

  /// Fitted to the times of 173 candidates of two consumers for 14 shapes on an H200, with and without a residual: 12 %
  /// off, and what it chooses is 0.4 % slower than the fastest.
  double of_window() const {
    // Bytes a cycle from L2, of all processors together and of one.
    constexpr double kSharedRate = 4500, kOwnRate = 90, kLaunch = 4500;
    const double rate = std::min(kOwnRate, kSharedRate / processors);
    // Instructions of 64 pixels are bound by what they read.
    const double compute = product * (product_pixels(tile) == 64 ? 1.1 : 1.0) + transforms();
    // Between two works: where they take turns, one consumer stores while another multiplies.
    double between = in_turns ? 900 : 12 * pixels;
    if (conv.residual >= 0) between += (in_turns ? 20 : 16) * pixels;
    if (company > 1) between *= 1.2;
    if (!is_resident && tile.halo_slots == tile.halos()) between += halo / rate + 1000;
    if (takes_turns && !in_turns) between += static_cast<double>(conv.chunks()) * (halo / rate + 1000);
    // More halos than one in use and one on its way are for when the estimate is wrong.
    const double deep = !is_resident && tile.halo_slots > 2 * tile.halos() ? 1.03 : 1.0;
    return deep * (kLaunch + halo / rate + transform + rounds * (std::max(compute, bytes / rate) * company + between) +
                   14 * pixels);
  }

  /// A single tap reads what it multiplies once: it is bound by bytes, and by how many of them are on their way. Fitted
  /// to the times of 210 candidates for 7 shapes: 8 % off, and what it chooses is 2 % slower than the fastest.
  double of_single_tap() const {
    constexpr double kSharedRate = 6500, kOwnRate = 64, kLatency = 1270, kLaunch = 7900;
    const double rate = std::min(kOwnRate, kSharedRate / processors);
    const double compute = product * (product_pixels(tile) == 64 ? 1.38 : 1.0) + transforms();
    // What is on its way: slots but those that are multiplied or transformed.
    const auto copies = static_cast<double>(tile.halos() * conv.chunks());
    const int64_t used = (is_resident ? 1 : tile.halos()) + (conv.has_prologue() ? 1 : 0);
    double wait = copies * kLatency / std::max(static_cast<double>(tile.halo_slots - used), 0.5);
    if (!is_resident) {
      wait = std::max(wait, static_cast<double>(conv.chunks()) * kLatency / static_cast<double>(tile.tap_slots - 1));
    }
    // A block alone; where they take turns, one consumer stores while another multiplies.
    const double between = (in_turns ? 510 : 2 * pixels) + (conv.residual < 0 ? 0 : 21 * pixels);
    double alone = std::max(compute, wait) + between;
    if (in_turns) alone = std::max(alone, compute + 490 * static_cast<double>(tile.consumers));
    // Neither the processor's products nor its bytes are hidden whole behind the largest of the three.
    constexpr double kNorm = 2.4;
    const double work =
        std::pow(std::pow(company * bytes / rate, kNorm) + std::pow(company * compute, kNorm) + std::pow(alone, kNorm),
                 1 / kNorm);
    return kLaunch + (is_resident ? company * taps / rate : 0) + rounds * work + 6 * pixels;
  }
};

}  // namespace

// Where a block has three consumers, or is one of several, there is room for one. So there is beside one consumer that
// needs more registers than two leave: that is slow, and worth it where a prologue of two images spares a third.
int64_t transformers(const HaloConv& conv, const HaloTile& tile) {
  constexpr int64_t kBesideTwo = 152;
  if (!conv.has_prologue()) return 0;
  if (tile.blocks > 1 || tile.consumers > 2) return 1;
  const bool is_tight = conv.image.other >= 0 && tile.consumers == 1 && needed_registers(conv, tile) > kBesideTwo;
  return is_tight ? 1 : 2;
}

std::string to_string(const HaloTile& t) {
  return fmt::format("{}x{}x{} {} consumers {} halos {} taps {} blocks{}", t.width(), t.rows, t.all_images(),
                     t.consumers, t.halo_slots, t.tap_slots, t.blocks, t.shares_halo ? ", shared halos" : "");
}

int threads(const HaloConv& conv, const HaloTile& tile) {
  const int64_t warpgroups = tile.consumers + transformers(conv, tile);
  return static_cast<int>(128 * warpgroups) + (shares_registers(conv, tile) ? 128 : 32);
}

bool is_resident(const HaloConv& conv, const HaloTile& tile) { return tile.tap_slots == all_taps(conv); }

int64_t box_rows(const HaloConv& conv, const HaloTile& tile) {
  return tile.is_dense() ? tile.rows + border(conv) : (tile.rows - 1) * conv.stride + conv.taps;
}

int64_t halo_bytes(const HaloConv& conv, const HaloTile& tile) { return boxes(conv, tile) * box_bytes(conv, tile); }

int64_t shared_bytes(const HaloConv& conv, const HaloTile& tile) {
  const int64_t results = tile.shares_halo ? tile.consumers : 0, operands = conv.residual < 0 ? 0 : results;
  return tile.halo_slots * halo_slot(conv, tile) + tile.tap_slots * tile.output_chunks() * kTapBytes +
         results * std::max(tile.pixels() * 128, operand_bytes(conv, tile)) +
         8 * ((conv.has_prologue() ? 3 : 2) * tile.halo_slots + 2 * tile.tap_slots + operands) +
         (conv.has_finish() ? 8 + transformers(conv, tile) * tile.images * conv.finished * 4 : 0);
}

int64_t work_count(const HaloConv& conv, const HaloTile& tile, int64_t batch) {
  const int64_t tiles = conv.is_line() ? ceil_div(batch * conv.height * conv.width, tile.pixels())
                                       : ceil_div(conv.width, tile.width()) * ceil_div(conv.height, tile.rows) *
                                             ceil_div(batch, tile.all_images());
  return ceil_div(tiles, tile.halos()) * output_works(conv, tile);
}

int64_t block_count(const HaloConv& conv, const HaloTile& tile, int64_t works, const ir::DeviceSpec& device) {
  const int64_t blocks = std::min(works, tile.blocks * device.processors);
  // With the taps resident, a block's work is always of the same output channels.
  const int64_t unit = is_resident(conv, tile) ? output_works(conv, tile) : 1;
  return std::max(blocks / unit, int64_t{1}) * unit;
}

int64_t work_share(const HaloConv& conv, const HaloTile& tile, int64_t works, const ir::DeviceSpec& device) {
  return ceil_div(works, block_count(conv, tile, works, device));
}

double estimated_cycles(const HaloConv& conv, const HaloTile& tile, const ir::DeviceSpec& device, int64_t batch) {
  const Costs costs(conv, tile, device, batch);
  return conv.taps == 1 ? costs.of_single_tap() : costs.of_window();
}

std::vector<HaloTile> candidates(const HaloConv& conv, const ir::DeviceSpec& device) {
  std::vector<HaloTile> tiles;
  struct Team {
    int64_t blocks, consumers;  ///< Blocks of a processor.
    bool shares_halo = false;
  };
  constexpr Team kTeams[] = {{1, 2}, {2, 2}, {1, 3}, {1, 1}, {2, 1}, {3, 1}, {1, 2, true}, {2, 2, true}, {1, 3, true}};
  for (const auto& [blocks, consumers, shares_halo] : kTeams) {
    // Not where some would have none; nor have results in f32, of two parts, slots of their own.
    if (shares_halo && (ceil_div(conv.outputs, 64) % consumers != 0 || conv.parts() > 1)) continue;
    const int64_t room = room_of(blocks, device);
    for (HaloTile tile : pixel_tiles(conv)) {
      tile.blocks = blocks, tile.consumers = consumers, tile.shares_halo = shares_halo;
      if (needed_registers(conv, tile) > registers_of(conv, tile)) continue;
      if (conv.has_prologue() && !transforms_beside(conv, tile)) continue;
      add_resident(tiles, conv, tile, room);
      add_ring(tiles, conv, tile, room);
    }
  }
  // Unmeasured, a tile is taken from those that the estimate was fitted to; with a prologue, or in f32, it was to none.
  const bool is_fitted_to_all = conv.taps == 1 || conv.has_prologue() || conv.dtype == ir::DType::f32;
  std::ranges::stable_sort(tiles, {}, [&](const HaloTile& tile) {
    return std::pair((tile.consumers != 2 || tile.shares_halo) && !is_fitted_to_all,
                     estimated_cycles(conv, tile, device));
  });
  return tiles;
}

}  // namespace difuse::codegen::cuda
