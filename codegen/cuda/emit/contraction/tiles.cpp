#include "codegen/cuda/emit/contraction/tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "codegen/cuda/source/extents.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda {
namespace {

using Product = GemmProblem::Product;

struct Shape {
  int m, n, warps_m, warps_n;
};

constexpr Shape kShapes[] = {
    {256, 128, 4, 2}, {128, 256, 2, 4}, {256, 64, 4, 1}, {128, 192, 2, 3}, {128, 128, 2, 2}, {128, 128, 4, 2},
    {128, 128, 2, 4}, {128, 96, 2, 3},  {128, 64, 2, 2}, {128, 64, 4, 2},  {64, 128, 2, 2},  {64, 128, 2, 4},
    {64, 96, 2, 3},   {64, 64, 2, 2},   {64, 64, 4, 2},  {128, 32, 4, 1},  {64, 32, 2, 1},   {32, 64, 1, 2},
    {32, 128, 1, 4},  {192, 128, 3, 2}, {192, 64, 3, 2}, {256, 96, 4, 3},  {128, 192, 4, 3}, {64, 192, 2, 3},
    {64, 256, 2, 4},  {32, 32, 2, 1},   {32, 32, 1, 1},
};

// Of fused multiply-adds: a thread holds 8 x 8 results, or 16 x 8; where there are few, 8 x 4 or 4 x 4.
constexpr Shape kFmaShapes[] = {
    {128, 128, 4, 2}, {128, 128, 2, 2}, {128, 64, 4, 1}, {64, 128, 2, 2}, {64, 64, 2, 1},
    {64, 64, 2, 2},   {128, 32, 4, 1},  {64, 32, 2, 1},  {32, 64, 1, 2},  {32, 32, 2, 1},
};

constexpr int kMostCopies = 16;  // Of one operand, a thread, to one slot.
// The instruction set's limit is 255; where the estimate is below this, the compiler stays within it (tried with all
// tiles of convolutions of many shapes, for sm_80 and sm_90a).
constexpr int kEstimatedRegisters = 232;
constexpr int64_t kRegisters = 65536;      // Of a processor.
constexpr int64_t kReservedShared = 1024;  // Of each block, by the driver.

/// Copies of one operand a thread issues for a slot; 0 where the threads cannot be dealt out.
int copies(const GemmProblem::Operand& operand, int extent, int k, int threads) {
  const int in_row = (operand.k_major ? k : extent) / operand.copy;
  if (threads % in_row != 0) return 0;
  return static_cast<int>(ceil_div(operand.k_major ? extent : k, threads / in_row));
}

bool fits(const GemmProblem& p, const GemmTile& tile, const ir::DeviceSpec& device) {
  const int64_t size = p.element_bytes();
  const auto has_pitch = [&](const GemmProblem::Operand& o, int extent) {
    const int64_t pitch = (o.k_major ? tile.k : extent) * size;
    return pitch % 128 == 0 || (pitch == 64 && size == 2);
  };
  if (!has_pitch(p.a, tile.m) || !has_pitch(p.b, tile.n)) return false;
  if (p.strip != 0 && tile.m % (ir::kStripWidth * p.strip) != 0) return false;
  if (tile.n / tile.warps_n % (p.b.k_major ? 32 : 16) != 0) return false;
  for (const int count : {copies(p.a, tile.m, tile.k, tile.threads()), copies(p.b, tile.n, tile.k, tile.threads())}) {
    if (count == 0 || count > kMostCopies) return false;
  }
  return shared_bytes(p, tile) <= device.shared_memory_bytes &&
         registers(p, tile) <= std::min<int64_t>(kEstimatedRegisters, kRegisters / tile.threads());
}

/// Multiply-adds of a processor in a cycle.
double rate(const GemmProblem& p, const ir::DeviceSpec& device) {
  const double of_16_bits = device.architecture == 86 || device.architecture == 89 ? 512 : 1024;
  if (p.is_fma()) return device.architecture == 80 ? 64 : 128;
  return p.product == Product::tf32 ? of_16_bits / 2 : of_16_bits;
}

}  // namespace

std::string to_string(const GemmTile& tile) {
  return fmt::format("{}x{}x{} {}x{} {} stages", tile.m, tile.n, tile.k, tile.warps_m, tile.warps_n, tile.stages);
}

int registers(const GemmProblem& p, const GemmTile& tile) {
  const int warp_m = tile.m / tile.warps_m, warp_n = tile.n / tile.warps_n;
  // Of the tensor cores' products two steps' fragments; of multiply-adds four k of A's rows, and what else there must
  // be at least: the compiler is told how many blocks are to fit.
  const int others = p.is_fma() ? warp_m + 16 : 30 + 2 * (warp_m / 4 + warp_n / 4);
  int count = warp_m * warp_n / 32 + others;
  const int gathered = copies(p.a, tile.m, tile.k, tile.threads());
  const int of_row = p.r * p.s > 1 || p.stride > 1 || p.strip != 0 ? 3 : p.is_fma() ? 2 : 1;
  if (p.a.k_major) count += gathered * of_row * (p.is_wide ? 2 : 1);
  if (p.b.k_major) count += copies(p.b, tile.n, tile.k, tile.threads()) * (p.is_wide ? 2 : 1);
  return count;
}

int64_t shared_bytes(const GemmProblem& p, const GemmTile& tile) {
  const auto slot = [&](const GemmProblem::Operand& o, int64_t extent) {
    // Rows that are read by words are further apart (Reads::words).
    const int64_t gap = !o.k_major && p.product == Product::tf32 ? 8 : 0;
    return (o.k_major ? extent * tile.k : (extent + gap) * tile.k) * p.element_bytes();
  };
  const int64_t staged = p.strip == 0 ? 0 : tile.m * (tile.n + 4) * 4;  // Where the ring was.
  return std::max(tile.stages * (slot(p.a, tile.m) + slot(p.b, tile.n)), staged);
}

int64_t resident_blocks(const GemmProblem& p, const GemmTile& tile, const ir::DeviceSpec& device) {
  // Each quarter of a processor has a quarter of the registers, for whole warps.
  const int64_t warps = 4 * (kRegisters / 4 / 32 / (ceil_div(registers(p, tile), 8) * 8));
  const int64_t bytes = shared_bytes(p, tile) + kReservedShared;
  return std::clamp<int64_t>(std::min({(device.shared_memory_bytes + kReservedShared) / bytes,
                                       int64_t{2048} / tile.threads(), warps * 32 / tile.threads()}),
                             1, 16);
}

double estimated_cycles(const GemmProblem& p, const GemmTile& tile, const ir::DeviceSpec& device) {
  // Bytes a processor moves in a cycle; cycles that one slot takes a lonely block (barrier, reads, a chain of
  // instructions); instructions of a thread for a slot besides copies and products.
  constexpr double kSharedBytes = 128, kL2Bytes = 40, kSlotLatency = 300, kSlotInstructions = 30;
  constexpr double kMemoryLatency = 1000;  // From a copy's start to its end, under load.
  const double size = static_cast<double>(p.element_bytes());
  const int threads = tile.threads();
  const double k = tile.k, area = double(tile.m) * tile.n, edges = tile.m + tile.n;

  const double products = area * k / rate(p, device);
  // How often a warp reads what is in a slot. Of fused multiply-adds, a cycle reads 8 rows of B or 4 of A at best.
  const double reads_a = p.is_fma() ? 4 : 1, reads_b = p.is_fma() ? 2 : 1;
  const double shared =
      (tile.m * (reads_a * tile.warps_n + 1) + tile.n * (reads_b * tile.warps_m + 1)) * k * size / kSharedBytes;
  const double l2 = edges * k * size / kL2Bytes;
  const int moved = copies(p.a, tile.m, tile.k, threads) + copies(p.b, tile.n, tile.k, threads);
  // In a warp's instructions; those of the tensor cores are issued for two cycles.
  const double products_issued = p.is_fma() ? area * k / 32 : 2 * area * k / (128 * 32 * (16 / size));
  const double reads_issued = p.is_fma() ? (tile.m / tile.warps_m / 4.0 + tile.n / tile.warps_n / 8.0) * k / 4 : 0;
  const double issued = (threads / 32 * (moved * 8.0 + kSlotInstructions + reads_issued) + products_issued) / 4;
  const double slot = std::max({products, shared, l2, issued});

  const int64_t resident = resident_blocks(p, tile, device);
  const int64_t tiles = ceil_div(p.usual_rows, tile.m) * ceil_div(p.usual_columns, tile.n) * p.phases * p.usual_splits;
  const double slots = std::ceil(static_cast<double>(p.usual_depth) / static_cast<double>(p.usual_splits) / k);
  // Results go out at the rate of L2, and nothing else happens at a tile's beginning and end.
  const double ends = area * 4 / kL2Bytes + 1500;

  const double least = std::max(kSlotLatency, kMemoryLatency / (tile.stages - 1));
  // A warp alone leaves a third of its multiply-adds' time to waiting.
  const double waiting = p.is_fma() ? 1.5 * 32 / threads : 0;
  const auto wave = [&](double blocks) { return slots * std::max((blocks + waiting) * slot, least) + blocks * ends; };
  const int64_t in_wave = device.processors * resident, whole = tiles / in_wave, rest = tiles % in_wave;
  double cycles = static_cast<double>(whole) * wave(static_cast<double>(resident));
  if (rest > 0) cycles += wave(static_cast<double>(ceil_div(rest, device.processors)));
  return cycles;
}

std::vector<GemmTile> candidates(const GemmProblem& p, const ir::DeviceSpec& device) {
  std::vector<std::pair<double, GemmTile>> ranked;
  const std::span<const Shape> shapes = p.is_fma() ? std::span<const Shape>(kFmaShapes) : kShapes;
  for (const Shape& shape : shapes) {
    for (const int k : {32, 64}) {
      if (k > p.chunk()) continue;
      int64_t most_resident = 0;
      for (const int stages : {4, 3, 2}) {
        const GemmTile tile{shape.m, shape.n, k, shape.warps_m, shape.warps_n, stages};
        if (!fits(p, tile, device)) continue;
        // A shorter ring is of use only where more blocks fit a processor with it.
        const int64_t resident = resident_blocks(p, tile, device);
        if (resident <= most_resident) continue;
        most_resident = resident;
        ranked.emplace_back(estimated_cycles(p, tile, device), tile);
      }
    }
  }
  std::ranges::stable_sort(ranked, {}, [](const auto& r) { return r.first; });
  std::vector<GemmTile> tiles;
  for (const auto& [cycles, tile] : ranked) tiles.push_back(tile);
  return tiles;
}

}  // namespace difuse::codegen::cuda
