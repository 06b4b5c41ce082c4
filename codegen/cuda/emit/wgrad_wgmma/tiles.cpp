#include "codegen/cuda/emit/wgrad_wgmma/tiles.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/source/extents.h"

namespace difuse::codegen::cuda {
namespace {

// 64 x 192 sums are 96 registers of a thread, and three consumers have room for them.
constexpr int64_t kMostChunks = 3;
constexpr int64_t kLeastSlots = 3, kMostSlots = 8;
// Of a block: with less work, writing its partial sums and adding them costs more than the processor saves.
constexpr int64_t kLeastPixels = 256, kLeastFloatPixels = 128;
// What it costs a pair whose share ends inside a block of the result: a second exchange, and a ring that runs dry.
constexpr int64_t kExchangeCycles = 7000;
constexpr int64_t kRankedBatch = 32;

/// The fewest of equal parts.
int64_t chunks_of(int64_t channels) {
  const int64_t all = ceil_div(channels, 64);
  return ceil_div(all, ceil_div(all, kMostChunks));
}

/// Of a consumer, for 64 rows.
int64_t columns(const HaloWgrad& w, const WgradTile& tile) {
  if (!w.is_line()) return 192;
  return 64 * (w.is_float() ? tile.row_chunks : tile.column_chunks);
}

int64_t loaded_bytes(const HaloWgrad& w, const WgradTile& tile) {
  const int64_t row_turns = tile.tap_rows > 1 ? w.stride : 1;
  const int64_t wide = w.is_dense() ? 8 * w.taps * row_turns : 8 + w.taps - 1;
  const int64_t x = tile.column_chunks * w.images * (w.rows + (tile.tap_rows - 1) / w.stride) * wide * 128;
  // In f32 64 channels are two parts, and dy lies there twice, once turned, but for that of a line.
  if (w.is_float_line()) return 2 * (x + tile.row_chunks * w.pixels() * 128);
  if (w.is_float()) return 2 * ceil_div(x, 1024) * 1024 + 2 * w.pixels() * 128 + ceil_div(w.pixels(), 32) * 8192;
  return ceil_div(x, 1024) * 1024 + tile.row_chunks * w.pixels() * 128;
}

/// Of floats' tiles, which take twice as long, no more than two may fit.
int64_t least_slots(const HaloWgrad& w) { return w.is_float() ? 2 : kLeastSlots; }

/// Of the tensor cores, for one tile and one block of the result.
int64_t unit_cycles(const HaloWgrad& w, const WgradTile& tile) {
  return w.pixels() / (w.is_float() ? 8 : 16) * consumers(w, tile) * columns(w, tile) / 2;
}

/// As many as fit.
int64_t most_slots(const HaloWgrad& w, WgradTile tile, const ir::DeviceSpec& device) {
  constexpr int64_t kReserved = 1024;  // Of each block, by the driver.
  const int64_t room = (device.shared_memory_bytes + kReserved) / tile.blocks - kReserved;
  tile.slots = 1;
  return std::min(kMostSlots, room / shared_bytes(w, tile));
}

/// So many blocks of the kernel have enough to do.
int64_t most_blocks(const HaloWgrad& w, const WgradTile& tile) {
  return block_count(w, tile) * w.tiles() * w.pixels() / (w.is_float_line() ? kLeastFloatPixels : kLeastPixels);
}

/// What blocks are where is_whole is false: large ones read less, but their sums are more bytes. By shape alone.
WgradTile dealt_tile(const HaloWgrad& w) {
  // With a stride, three consumers have too few registers.
  if (w.stride > 1) {
    return {.row_chunks = std::min<int64_t>(2, chunks_of(w.outputs)), .column_chunks = 1, .tap_rows = 1};
  }
  if (!w.is_line()) return {};
  constexpr int64_t kEnough = 64;  // Half of the processors.
  WgradTile tile{.row_chunks = chunks_of(w.outputs), .column_chunks = chunks_of(w.inputs), .tap_rows = 1};
  HaloWgrad usual = w;
  usual.batch = kRankedBatch;
  if (most_blocks(usual, tile) < kEnough) tile.row_chunks = 1;
  return tile;
}

bool has_registers(const HaloWgrad& w, const WgradTile& tile) {
  constexpr int64_t kAll = 65536, kMost = 232;
  // Besides the sums. Three consumers, whose threads have few, find out where they store run by run; with a stride
  // their rows of taps lie apart, which takes more.
  const int64_t others = consumers(w, tile) > 2 ? 48 + 8 * w.stride : 96;
  return columns(w, tile) / 2 + others <= std::min(kMost, kAll / tile.blocks / threads(w, tile) / 8 * 8);
}

std::vector<WgradTile> whole_candidates(const HaloWgrad& w, const ir::DeviceSpec& device) {
  std::vector<WgradTile> tiles;
  const int64_t rows = std::min(kMostChunks, ceil_div(w.outputs, 64));
  const int64_t line_columns = std::min(kMostChunks, ceil_div(w.inputs, 64));
  const auto add = [&](int64_t row_chunks, int64_t column_chunks, int64_t tap_rows) {
    for (const int64_t blocks : {1, 2, 3}) {
      WgradTile tile{row_chunks, column_chunks, tap_rows, 0, blocks};
      tile.slots = most_slots(w, tile, device);
      if (tile.slots >= kLeastSlots && has_registers(w, tile)) tiles.push_back(tile);
    }
  };
  for (int64_t r = 1; r <= rows; ++r) {
    for (int64_t c = 1; c <= (w.is_line() ? line_columns : 1); ++c) add(r, c, 1);
  }
  if (!w.is_line()) add(1, 1, 3);
  HaloWgrad usual = w;
  usual.batch = kRankedBatch;
  std::ranges::stable_sort(tiles, {}, [&](const WgradTile& tile) { return estimated_cycles(usual, tile, device); });
  return tiles;
}

}  // namespace

std::string to_string(const WgradTile& t) {
  return fmt::format("{}x{} chunks {} tap rows {} slots {} blocks", t.row_chunks, t.column_chunks, t.tap_rows, t.slots,
                     t.blocks);
}

int64_t block_count(const HaloWgrad& w, const WgradTile& tile) {
  return ceil_div(w.outputs, 64 * tile.row_chunks) * ceil_div(w.inputs, 64 * tile.column_chunks) *
         (w.taps / tile.tap_rows);
}

int64_t block_sums(const HaloWgrad& w, const WgradTile& tile) { return consumers(w, tile) * 64 * columns(w, tile); }

int64_t consumers(const HaloWgrad& w, const WgradTile& tile) {
  return w.is_float_line() ? tile.column_chunks : tile.row_chunks * tile.tap_rows;
}

int threads(const HaloWgrad& w, const WgradTile& tile) {
  return static_cast<int>(128 * consumers(w, tile) + (w.is_float() || w.has_prologue() ? 128 : 32));
}

int64_t shared_bytes(const HaloWgrad& w, const WgradTile& tile) {
  return tile.slots * (loaded_bytes(w, tile) + (w.is_float() || w.has_prologue() ? 3 : 2) * 8);
}

int64_t group_count(const HaloWgrad& w, const WgradTile& tile, const ir::DeviceSpec& device) {
  const int64_t blocks = block_count(w, tile);
  if (w.is_whole) return blocks * w.splits();
  const int64_t units = blocks * w.tiles(), cycles = unit_cycles(w, tile);
  const int64_t processors = std::max(w.cluster, device.processors / w.members);
  const int64_t all = std::clamp(most_blocks(w, tile), w.cluster, processors) / w.cluster;
  const int64_t even = all / blocks * blocks, border = w.cluster > 1 ? kExchangeCycles : cycles;
  return even > 0 && units * cycles * (all - even) < w.cluster * all * even * border ? even : all;
}

bool is_direct(const HaloWgrad& w, const WgradTile& tile, const ir::DeviceSpec& device) {
  return w.is_whole && group_count(w, tile, device) == block_count(w, tile);
}

double estimated_cycles(const HaloWgrad& w, const WgradTile& tile, const ir::DeviceSpec& device) {
  // Bytes a cycle from L2, of all processors together and of one, and what a launch takes: those that were fitted for
  // convolutions (conv_wgmma/tiles.cpp).
  constexpr double kSharedRate = 4500, kOwnRate = 90, kLaunch = 4500, kBegin = 1500;
  const int64_t groups = w.members * group_count(w, tile, device);
  const auto share = static_cast<double>(w.tiles()) / static_cast<double>(w.splits());
  const auto rounds = static_cast<double>(ceil_div(groups, device.processors));
  const auto waves = static_cast<double>(ceil_div(groups, device.processors * tile.blocks));
  const double rate = std::min(kOwnRate, kSharedRate / static_cast<double>(std::min(groups, device.processors)));
  // Instructions of 64 columns are bound by what they read.
  const double product = static_cast<double>(unit_cycles(w, tile)) * (columns(w, tile) == 64 ? 1.1 : 1.0);
  const auto bytes = static_cast<double>(loaded_bytes(w, tile)),
             results = 4.0 * static_cast<double>(block_sums(w, tile));
  return kLaunch + waves * (kBegin + (bytes + results) / rate) + rounds * share * std::max(product, bytes / rate);
}

std::vector<WgradTile> candidates(const HaloWgrad& w, const ir::DeviceSpec& device) {
  if (w.is_whole) return whole_candidates(w, device);
  WgradTile tile = dealt_tile(w);
  std::vector<WgradTile> tiles;
  const int64_t most = most_slots(w, tile, device);
  for (const int64_t slots : {most, most - 1, least_slots(w)}) {
    tile.slots = slots;
    if (slots >= least_slots(w) && std::ranges::find(tiles, tile) == tiles.end()) tiles.push_back(tile);
  }
  return tiles;
}

}  // namespace difuse::codegen::cuda
