// Attention and its gradient on Hopper's warpgroup products (device/attention_wgmma.cuh), one kernel each: a block of
// the value's has all keys of a head, a block of the gradient's a whole head.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/emit/attention/runs.h"
#include "codegen/cuda/emit/attention/source.h"
#include "codegen/cuda/emit/attention/tiles.h"
#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/problem_text.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"

namespace difuse::codegen::cuda {
namespace {

/// A block of tokens is a warpgroup's rows. Where there are more than four, they are better streamed.
constexpr int64_t kBlockTokens = 64, kMostBlocks = 4;

/// As Problem of the device header computes them.
int64_t blocks_of(const AttentionProblem& p) { return ceil_div(p.length, kBlockTokens); }
int64_t block_bytes(const AttentionProblem& p) { return kBlockTokens * 2 * (p.width <= 32 ? 32 : 64); }

int64_t forward_bytes(const AttentionProblem& p, int64_t warpgroups) {
  return (2 * blocks_of(p) + warpgroups) * block_bytes(p);
}

/// In cycles of one processor, roughly, at the usual batch.
double forward_cost(const AttentionProblem& p, int64_t warpgroups, const ir::DeviceSpec& device) {
  // Of 64 queries and 64 keys, the exponentials, of which a processor's special-function units make 16 a cycle; and the
  // bytes a cycle that a processor gets from L2, the width of its port.
  constexpr double kTile = kBlockTokens * kBlockTokens / 16.0, kRate = 64;
  constexpr int64_t kUsualBatch = 32;
  const int64_t blocks = kUsualBatch * p.heads * ceil_div(blocks_of(p), warpgroups);
  const double block = static_cast<double>(warpgroups * blocks_of(p)) * kTile +
                       static_cast<double>(forward_bytes(p, warpgroups)) / kRate;
  return static_cast<double>(ceil_div(blocks, device.processors)) * block;
}

/// How many warpgroups a block of the value's kernel may have, the best estimate first. A copy is whole rounds of its
/// threads.
std::vector<int64_t> forward_candidates(const AttentionProblem& p, const ir::DeviceSpec& device) {
  std::vector<int64_t> candidates;
  for (int64_t warpgroups = 1; warpgroups <= blocks_of(p); ++warpgroups) {
    if (2 * blocks_of(p) % warpgroups == 0) candidates.push_back(warpgroups);
  }
  std::ranges::stable_sort(candidates, {}, [&](int64_t warpgroups) { return forward_cost(p, warpgroups, device); });
  return candidates;
}

/// Blocks of a head's gradient. Four warpgroups would have all registers of a processor, and nobody to multiply while
/// they load and store.
int64_t gradient_parts(const AttentionProblem& p) { return blocks_of(p) == 4 ? 2 : 1; }

int64_t gradient_bytes(const AttentionProblem& p) {
  const int64_t blocks = blocks_of(p), parts = gradient_parts(p), warpgroups = blocks / parts;
  const int64_t tile = kBlockTokens * kBlockTokens * 2, sums = warpgroups * 2 * block_bytes(p);
  return (2 * blocks + 2 * warpgroups) * block_bytes(p) + warpgroups * warpgroups * tile + (parts - 1) * sums +
         2 * 4 * kBlockTokens * blocks;
}

/// The kernel's source around `body`, with the fields that both have.
std::string kernel_source(const KernelSpec& spec, const AttentionProblem& p, const Parameters& parameters,
                          const std::string& block, int64_t shared_bytes, int64_t resident, int64_t cluster,
                          std::string_view body, std::vector<std::pair<std::string_view, std::string>> fields) {
  const auto add = [&](std::string_view field, std::string value) { fields.emplace_back(field, std::move(value)); };
  add("problem", fmt::format("attention_wgmma::Problem<{}, {}, {}>", p.length, p.width, p.heads));
  add("block", block);
  add("shared_bytes", text(shared_bytes));
  add("resident", text(resident));
  add("cluster", cluster > 1 ? fmt::format("__cluster_dims__({}, 1, 1) ", cluster) : "");
  add("parameters", parameters.text());
  add_problem_fields(spec, p, fields);
  // What is filled in last may hold fields of its own.
  add("body", filled(body, fields));
  return device_source({"vector.cuh", "ops.cuh", "random.cuh", "attention_wgmma.cuh"}) + filled(R"(
using index_t = $index;
using Problem = $problem;
using Block = attention_wgmma::$block;
static_assert(Block::bytes == $shared_bytes);

extern "C" __global__ void __launch_bounds__(Block::threads, $resident) $cluster$kernel($parameters) {
  extern __shared__ __align__(1024) unsigned char shared[];
  wait_for_previous_kernel();
  let_next_kernel_start();
$body}
)",
                                                                                                fields);
}

KernelDraft forward_kernel(const KernelSpec& spec, const AttentionProblem& p, int64_t warpgroups) {
  Parameters parameters(spec.body, spec);
  const std::string store = store_value_runs(spec, p, parameters);

  // Of a processor, as registers allow: 80 or 128 a thread.
  const int64_t parts = ceil_div(blocks_of(p), warpgroups), resident = (p.width <= 32 ? 6 : 4) / warpgroups;
  KernelDraft draft;
  draft.name = spec.name;
  draft.source =
      kernel_source(spec, p, parameters, fmt::format("Forward<Problem, {}>", warpgroups), forward_bytes(p, warpgroups),
                    resident, 1, R"(  // A head's blocks follow each other: they read the same rows.
  const int place = static_cast<int>(blockIdx.x), owner = quotient<$parts>(place);
  const index_t image = quotient<$heads>(owner);
  const int head = remainder_of<$heads>(owner);
  const bf16* const qkv = $qkv + image * $qkv_image;
  Block block;
  block.run(shared, qkv + $q_channel, qkv + $k_channel, qkv + $v_channel, remainder_of<$parts>(place) * Block::rows,
            $scale_log2);
$store)",
                    {{"parts", text(parts)}, {"store", store}});
  draft.grid.x = p.images * p.heads * parts;
  draft.threads = static_cast<int>(128 * warpgroups);
  draft.shared_bytes = forward_bytes(p, warpgroups);
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  return draft;
}

KernelDraft gradient_kernel(const KernelSpec& spec, const AttentionProblem& p) {
  Parameters parameters(spec.body, spec);
  const GradientStores stores = store_gradient_runs(spec, p, parameters);

  KernelDraft draft;
  draft.name = spec.name;
  // Two blocks of narrow heads' sums fit a processor's registers.
  const int64_t parts = gradient_parts(p), resident = p.width > 32 ? 1 : parts;
  draft.source = kernel_source(spec, p, parameters, fmt::format("Gradient<Problem, {}>", parts), gradient_bytes(p),
                               resident, parts, R"(  const int place = static_cast<int>(blockIdx.x);
  const int owner = quotient<Block::parts>(place);
  const index_t image = quotient<$heads>(owner);
  const int head = remainder_of<$heads>(owner);
  const bf16* const qkv = $qkv + image * $qkv_image;
  const long long out = image * $out_image + head * $width;
  Block block(shared, remainder_of<Block::parts>(place));
  block.load({qkv + $q_channel, qkv + $k_channel, qkv + $v_channel, $value + out, $dout + out,
              $log_sum + static_cast<long long>(owner) * $length});
  block.sum_keys($scale_log2);
$keys$values  block.sum_queries();
$queries)",
                               {{"value", operand(p, 1)},
                                {"dout", operand(p, 3)},
                                {"log_sum", operand(p, 2)},
                                {"keys", stores.keys},
                                {"values", stores.values},
                                {"queries", stores.queries}});
  draft.grid.x = p.images * p.heads * parts;
  draft.threads = static_cast<int>(128 * blocks_of(p) / parts);
  draft.shared_bytes = gradient_bytes(p);
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  return draft;
}

}  // namespace

bool accepts_attention_wgmma(const KernelSpec& spec) {
  if (spec.device.architecture != 90 || !is_attention_problem(spec.body)) return false;
  const AttentionProblem p = attention_problem(spec);
  // Rows are copied in pieces of 16 bytes.
  constexpr int kCopy = 8, kWidest = 64;
  if (p.element != ir::DType::bf16 || p.width > kWidest || p.copy != kCopy || p.gradient_copy != kCopy) return false;
  if (!can_store_runs(spec, p, outputs_of(spec, p.value), kRunLanes)) return false;
  const int64_t blocks = blocks_of(p);
  if (blocks > kMostBlocks) return false;
  if (!p.is_grad()) return forward_bytes(p, blocks) <= spec.device.shared_memory_bytes;
  const ir::Type& out = spec.body.type(spec.body.node(p.value).operands[1]);
  return out.dtype == ir::DType::bf16 && spec.alignment[static_cast<size_t>(p.inputs[1])] % 16 == 0 &&
         gradient_bytes(p) <= spec.device.shared_memory_bytes;
}

std::vector<TileChoice> attention_wgmma_choices(const KernelSpec& spec) {
  const AttentionProblem p = attention_problem(spec);
  if (p.is_grad()) return {};
  TileChoice choice;
  choice.problem = problem_text(spec, fmt::format("engines {} tokens, {} heads of {}{}", p.length, p.heads, p.width,
                                                  p.is_wide_index ? ", wide" : ""));
  choice.batch = p.images;
  for (const int64_t warpgroups : forward_candidates(p, spec.device)) {
    choice.tiles.push_back(fmt::format("{} rows", kBlockTokens * warpgroups));
  }
  return {choice};
}

void emit_attention_wgmma(const KernelSpec& spec, Emission& emission) {
  const AttentionProblem p = attention_problem(spec);
  if (p.is_grad()) {
    emission.launch(gradient_kernel(spec, p));
    return;
  }
  KernelDraft draft = forward_kernel(spec, p, forward_candidates(p, spec.device).at(spec.tile(0)));
  draft.choice = 0;
  emission.launch(std::move(draft));
}

}  // namespace difuse::codegen::cuda
