#include "codegen/cuda/emit/attention/tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/node_body.h"
#include "ir/error.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {

using ir::DType;
using ir::Op;

namespace {

// What most cards leave a block; more is taken only where nothing else fits.
constexpr int64_t kUsualShared = 99 * 1024;
constexpr int kRegistersOfAThread = 255;

/// Columns of a block for `columns` of the result: what whole instructions take.
int padded_columns(const AttentionProblem& p, int64_t columns) {
  return static_cast<int>(round_up(columns, ir::size_of(p.element) == 2 ? 16 : 8));
}

/// Streamed rows of one step. Scores of more keys at a time are fewer rescalings of the sums, but more registers.
int step_of(const AttentionProblem& p, AttentionPart part) {
  const bool many = part == AttentionPart::forward && ir::size_of(p.element) == 2 && p.width <= 128;
  return static_cast<int>(std::min<int64_t>(many ? 64 : 32, round_up(p.length, 16)));
}

/// In cycles of one processor, roughly, at the usual batch. A step is its products, reads of shared memory and copies
/// from L2, in units of what a warp's 16 rows of one product take.
double cost(const AttentionProblem& p, AttentionPart part, const AttentionTile& t, const ir::DeviceSpec& device) {
  constexpr double kUsualBatch = 32, kWarpsToBeBusy = 8;
  const bool words = ir::size_of(p.element) == 4;
  // In tf32 half of the products have weights, which are multiplied twice.
  const double product = p.is_chain() ? 10 : words ? 3 : 1, read = p.is_chain() ? 16 : words ? 2 : 1;
  const double copy = words ? 6 : 3;
  const double products =
      (part == AttentionPart::forward ? 1 : 2) + (part == AttentionPart::key_gradient ? 2.0 : 1.0) / t.splits;
  const double copied = t.is_wide() ? 1 + t.rows() / static_cast<double>(t.step) : 1;
  const double step = t.warps * (t.blocks_m * product + read) * products + 2 * copy * copied;
  const double blocks = kUsualBatch * static_cast<double>(p.heads * ceil_div(p.length, t.rows()) * t.splits);
  const double of_processor = std::ceil(blocks / static_cast<double>(device.processors));
  const double resident = std::min<double>(of_processor, resident_blocks(p, part, t, device));
  return of_processor * step * std::max(1.0, kWarpsToBeBusy / (resident * t.warps));
}

/// The whole width stays in shared memory.
AttentionTile narrow(const AttentionProblem& p) {
  AttentionTile t;
  t.columns = t.depth = padded_columns(p, p.width);
  return t;
}

AttentionTile wide(const AttentionProblem& p, AttentionPart part) {
  const bool words = ir::size_of(p.element) == 4;
  const int most = part == AttentionPart::key_gradient ? (words ? 64 : 128) : words ? 128 : 256;
  AttentionTile t;
  t.splits = static_cast<int>(ceil_div(p.width, most));
  t.columns = padded_columns(p, ceil_div(p.width, t.splits));
  t.depth = words ? 32 : 64;
  t.chunks = static_cast<int>(ceil_div(p.width, t.depth));
  return t;
}

int find_attention(const ir::Graph& body) {
  const std::vector<bool> live = body.live();
  int found = -1;
  for (int id = 0; id < body.size(); ++id) {
    if (!live[static_cast<size_t>(id)] || !ir::has_trait(body.node(id), ir::kContraction)) continue;
    const Op op = body.node(id).op;
    if (found >= 0 || (op != Op::attention && op != Op::attention_grad)) return -1;
    found = id;
  }
  return found;
}

}  // namespace

bool is_attention_problem(const ir::Graph& body) {
  const int hero = find_attention(body);
  if (hero < 0) return false;
  for (const ir::Value v : body.node(hero).operands) {
    if (body.node(v).op != Op::input) return false;
  }
  // Every output is computed, element by element, from one of the node's results.
  const std::vector<bool> live = body.live();
  std::vector<int> reads(static_cast<size_t>(body.size()), -1);  // The result that a node is computed from.
  const auto result_of = [&](ir::Value v) { return v.node == hero ? v.result : reads[static_cast<size_t>(v.node)]; };
  for (int id = 0; id < body.size(); ++id) {
    const ir::Node& node = body.node(id);
    if (!live[static_cast<size_t>(id)] || id == hero) continue;
    if (!BodyCode::can(node)) return false;
    int& result = reads[static_cast<size_t>(id)];
    for (const ir::Value v : node.operands) {
      const int of = result_of(v);
      if (of < 0) continue;
      if (result >= 0 && result != of) return false;
      result = of;
    }
    if (result >= 0 && node.op != Op::reshape && !ir::has_trait(node, ir::kElementwise)) return false;
  }
  return std::ranges::all_of(body.outputs(), [&](const ir::NamedValue& n) { return result_of(n.value) >= 0; });
}

AttentionProblem attention_problem(const KernelSpec& spec) {
  const ir::Graph& body = spec.body;
  const int hero = find_attention(body);
  const ir::Node& node = body.node(hero);
  AttentionProblem p;
  p.value = {hero, 0};
  for (const ir::Value v : node.operands) p.inputs.push_back(input_number(body.node(v)));
  const ir::Type& qkv = body.type(node.operands[0]);
  p.images = qkv.shape[0], p.length = qkv.shape[1];
  p.heads = node.as<ir::AttentionAttrs>().heads;
  p.width = qkv.shape[2] / (3 * p.heads);
  p.source = p.gradient = qkv.dtype;
  const auto alignment = [&](size_t operand) { return spec.alignment[static_cast<size_t>(p.inputs[operand])]; };
  if (node.op == Op::attention_grad) {
    p.gradient = body.type(node.operands[3]).dtype;
    if (body.type(node.operands[2]).dtype != DType::f32) throw Error("the log-sum-exp must be f32");
  }
  p.element = p.source == p.gradient ? p.source : DType::f32;
  p.is_tf32 = p.source == DType::f32 && p.gradient == DType::f32 && spec.reads_tf32(p.inputs[0]) &&
              (!p.is_grad() || spec.reads_tf32(p.inputs[3]));
  const auto copy = [&](DType dtype, size_t operand) {
    return dtype == p.element ? copy_elements(p.width, alignment(operand), ir::size_of(dtype)) : 0;
  };
  p.copy = p.gradient_copy = copy(p.source, 0);
  if (p.is_grad()) p.gradient_copy = copy(p.gradient, 3);
  if (qkv.elements() / p.images >= int64_t{1} << 31) throw Error("one image's projection has 2^31 elements or more");
  p.is_wide_index = needs_wide_index(body, /*spare=*/0);
  return p;
}

std::string element_type(const AttentionProblem& p) { return p.is_tf32 ? "tf32" : storage_type(p.element); }

std::string to_string(const AttentionTile& t) {
  return fmt::format("{} rows ({} warps x {}), step {}, {} columns x {}, depth {} x {}, {} stages", t.rows(), t.warps,
                     t.blocks_m, t.step, t.columns, t.splits, t.depth, t.chunks, t.stages);
}

int64_t shared_bytes(const AttentionProblem& p, AttentionPart part, const AttentionTile& t) {
  const auto tile = [&](int rows, int columns) { return rows * (columns * ir::size_of(p.element) / 16 | 1) * 16; };
  const bool is_forward = part == AttentionPart::forward, owns_keys = part == AttentionPart::key_gradient;
  const int64_t pairs = is_forward ? 1 : 2;  // Products that make scores, and dP.
  const int64_t owned = pairs * tile(t.rows(), t.depth), streamed = tile(t.step, t.depth);
  const int64_t statistics = owns_keys ? 2 * t.step * 4 : 0;
  if (!t.is_wide()) return owned + t.stages * (2 * streamed + statistics);
  const int64_t summed = (owns_keys ? 2 : 1) * tile(t.step, t.columns);
  return t.stages * (std::max(owned + pairs * streamed, summed) + statistics);
}

int estimated_registers(const AttentionProblem& p, AttentionPart part, const AttentionTile& t) {
  const bool words = ir::size_of(p.element) == 4;
  const int sums = t.columns / 2 * (part == AttentionPart::key_gradient ? 2 : 1);
  const int scores = t.step / 2 * (part == AttentionPart::forward ? 1 : 2);
  const int fragments = words ? 24 : 16;
  return t.blocks_m * (sums + scores + fragments) + 64;
}

int resident_blocks(const AttentionProblem& p, AttentionPart part, const AttentionTile& t,
                    const ir::DeviceSpec& device) {
  // So many threads keep a processor busy.
  constexpr int64_t kRegisters = 65536, kThreads = 512, kReservedShared = 1024;
  const int64_t registers = t.threads() * round_up(estimated_registers(p, part, t) + 8, 8);
  const int64_t shared = shared_bytes(p, part, t) + kReservedShared;
  // The estimate is too low for small blocks of wide heads: each thread then has many copies in flight.
  const int64_t most = t.is_wide() ? 4 : 8;
  const int64_t fit = std::min(
      {kRegisters / registers, kThreads / t.threads(), (device.shared_memory_bytes + kReservedShared) / shared});
  return static_cast<int>(std::clamp<int64_t>(fit, 1, most));
}

std::vector<AttentionTile> candidates(const AttentionProblem& p, AttentionPart part, const ir::DeviceSpec& device) {
  const bool may_be_narrow = p.width <= (ir::size_of(p.element) == 2 ? 128 : part == AttentionPart::forward ? 128 : 64);
  std::vector<std::pair<double, AttentionTile>> ranked;
  for (const int64_t most : {std::min(kUsualShared, device.shared_memory_bytes), device.shared_memory_bytes}) {
    AttentionTile t = may_be_narrow ? narrow(p) : wide(p, part);
    t.step = step_of(p, part);
    const int64_t pieces = ceil_div(p.length, t.step) * (t.is_wide() ? t.chunks + 1 : 1);
    for (const int blocks_m : {1, 2}) {
      for (const int warps : {1, 2, 4, 8}) {
        t.blocks_m = blocks_m, t.warps = warps;
        // Rows that are nobody's cost as much as others.
        if (warps > 1 && t.rows() >= 2 * round_up(p.length, 16)) continue;
        for (const int stages : {2, 3}) {
          t.stages = static_cast<int>(std::min<int64_t>(stages, pieces));
          if (shared_bytes(p, part, t) > most || estimated_registers(p, part, t) > kRegistersOfAThread) continue;
          const auto same = [&](const auto& other) { return other.second == t; };
          if (std::ranges::none_of(ranked, same)) ranked.emplace_back(cost(p, part, t, device), t);
        }
      }
    }
    if (!ranked.empty()) break;
  }
  if (ranked.empty()) {
    throw Error(fmt::format("heads of {} channels do not fit a block of {}", p.width, device.name));
  }
  std::ranges::stable_sort(ranked, {}, [](const auto& r) { return r.first; });
  std::vector<AttentionTile> tiles;
  for (const auto& r : ranked) tiles.push_back(r.second);
  return tiles;
}

}  // namespace difuse::codegen::cuda
