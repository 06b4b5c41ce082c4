// Attention and its gradient on Hopper's copy engine and warpgroup products, of any length
// (device/attention_stream.cuh): one kernel for the value; for the gradient three: each row's sum of dout * out, then
// the gradient of keys and values, then that of queries.
#include <fmt/format.h>

#include "codegen/cuda/emit/attention/delta.h"
#include "codegen/cuda/emit/attention/runs.h"
#include "codegen/cuda/emit/attention/source.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {
namespace {

constexpr int64_t kTokens = 64;  ///< Of a tile.

/// A class of the device header and what decides its shape: its consumers, the tiles of rows that a block has, those
/// that it owns, and the ring's.
struct Shape {
  std::string_view kind;
  int64_t consumers = 2, parts = 2, owned = 2, slots = 4;
};

/// Two consumers, with 240 registers a thread, or three with 160, which hide one another's exponentials better but may
/// leave some of the last block's rows empty. A ring has what two steps read, or what fits.
Shape shape_of(const AttentionProblem& p, AttentionPart part) {
  constexpr double kMostRows = 1.1;  // Of those that there are; measured: 1.03 pays, 1.125 does not.
  const int64_t tiles = ceil_div(p.length, kTokens);
  const bool narrow = p.width == 64;
  const bool three = narrow && static_cast<double>(round_up(tiles, 3)) <= kMostRows * static_cast<double>(tiles);
  const int64_t consumers = three ? 3 : 2, slots = narrow ? 8 : 4;
  switch (part) {
    case AttentionPart::forward:
      return {"Forward", consumers, consumers, consumers, slots};
    case AttentionPart::query_gradient:
      return {"QueryGradient", consumers, consumers, 2 * consumers, p.width == 256 ? 3 : slots};
    case AttentionPart::key_gradient:
      break;
  }
  if (narrow) return {.kind = "KeyGradient", .owned = 4, .slots = slots};
  return {.kind = "PairedKeyGradient", .parts = 1, .slots = slots};
}

/// As the device header computes it.
int64_t shared_bytes(const AttentionProblem& p, AttentionPart part, const Shape& shape) {
  const int64_t tile = kTokens * 2 * p.width, tokens = round_up(p.length, kTokens);
  int64_t bytes = (shape.owned + shape.slots) * tile + (2 * shape.slots + 2) * 8;
  if (part == AttentionPart::key_gradient) bytes += 2 * 4 * tokens + (p.width > 64 ? 4 * kTokens * kTokens + 16 : 0);
  return bytes;
}

/// Tensors of rows of `channels`, and boxes of 64 channels of 64 tokens of an image.
TensorMapSpec row_map(const AttentionProblem& p, const Argument& start, int64_t channels) {
  return {.start = start,
          .extents = {channels, p.length, p.images},
          .strides = {2 * channels, 2 * channels * p.length},
          .box = {64, kTokens, 1},
          .steps = {1, 1, 1}};
}

Parameters::Maps tensor_maps(const KernelSpec& spec, const AttentionProblem& p) {
  const auto input = [&](size_t i) { return static_cast<size_t>(p.inputs[i]); };
  Parameters::Maps maps;
  maps.operands[input(0)] = row_map(p, spec.operands[input(0)], 3 * p.channels());
  if (p.is_grad()) maps.operands[input(3)] = row_map(p, spec.operands[input(3)], p.channels());
  return maps;
}

/// `load` and `run` are the kernel's own arguments of both sides, `store` stores.
KernelDraft block_kernel(const KernelSpec& spec, const AttentionProblem& p, AttentionPart part,
                         const Parameters& parameters, const std::string& name, std::string_view load,
                         std::string_view run, std::string_view store) {
  const Shape shape = shape_of(p, part);
  const int64_t blocks = ceil_div(p.length, kTokens * shape.parts);
  const std::string sizes = shape.parts == 1 ? text(shape.slots) : fmt::format("{}, {}", shape.parts, shape.slots);
  std::vector<std::pair<std::string_view, std::string>> fields = {
      {"problem", fmt::format("attention_stream::Problem<{}, {}>", p.length, p.width)},
      {"block", fmt::format("attention_stream::{}<Problem, {}>", shape.kind, sizes)},
      {"shared_bytes", text(shared_bytes(p, part, shape))},
      {"parameters", parameters.text()},
      {"blocks", text(blocks)}};
  add_problem_fields(spec, p, fields);
  if (p.is_grad()) fields.emplace_back("dout", operand(p, 3)), fields.emplace_back("log_sum", operand(p, 2));
  fields.emplace_back("load", filled(load, fields));
  fields.emplace_back("run", filled(run, fields));
  fields.emplace_back("store", store);
  KernelDraft draft;
  draft.name = name;
  draft.source = device_source({"vector.cuh", "ops.cuh", "random.cuh", "attention_stream.cuh"}) + filled(R"(
using index_t = $index;
using Problem = $problem;
using Block = $block;
static_assert(Block::bytes == $shared_bytes);

extern "C" __global__ void __launch_bounds__(Block::threads, 1) $kernel($parameters) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Block::Shared memory{shared};
  memory.init();
  wait_for_previous_kernel();
  let_next_kernel_start();
  // A head's blocks follow each other: they read the same rows.
  const int place = static_cast<int>(blockIdx.x), owner = quotient<$blocks>(place);
  const int first = remainder_of<$blocks>(place) * Block::rows, head = remainder_of<$heads>(owner);
  const index_t image = quotient<$heads>(owner);
  if (memory.is_producer()) {
    memory.be_producer();
    if (memory.is_first_producer()) {
      const attention_stream::Head at = {$q_channel, $k_channel, $v_channel, head * $width, static_cast<int>(image)};
      Block::load(memory, $load, at, first);
    }
    return;
  }
  memory.be_consumer();
  Block block;
  block.run(memory, $run first, $scale_log2);
$store}
)",
                                                                                                         fields);
  draft.grid.x = p.images * p.heads * blocks;
  draft.threads = static_cast<int>(128 * (shape.consumers + 1));
  draft.shared_bytes = shared_bytes(p, part, shape);
  draft.arguments = parameters.arguments();
  draft.tensor_maps = parameters.tensor_maps();
  draft.bytes = parameters.bytes();
  return draft;
}

KernelDraft forward_kernel(const KernelSpec& spec, const AttentionProblem& p) {
  Parameters parameters(spec.body, spec, tensor_maps(spec, p));
  const std::string store = store_value_runs(spec, p, parameters);
  KernelDraft draft = block_kernel(spec, p, AttentionPart::forward, parameters, spec.name, "$qkv", "", store);
  draft.flops = spec.flops;
  return draft;
}

KernelDraft gradient_kernel(const KernelSpec& spec, const AttentionProblem& p, AttentionPart part,
                            const Argument& delta) {
  const bool of_keys = part == AttentionPart::key_gradient;
  Parameters parameters(spec.body, spec, tensor_maps(spec, p));
  parameters.add("delta", "const f32*", delta);
  const GradientStores stores = store_gradient_runs(spec, p, parameters);
  const std::string store =
      of_keys ? fmt::format("  if (block.has_keys()) {{\n{}  }}\n  if (block.has_values()) {{\n{}  }}\n", stores.keys,
                            stores.values)
              : stores.queries;
  KernelDraft draft =
      block_kernel(spec, p, part, parameters, spec.name + (of_keys ? "_keys" : "_queries"), "$qkv, $dout",
                   "{$log_sum + static_cast<long long>(owner) * $length, "
                   "delta + static_cast<long long>(owner) * $length}, ",
                   store);
  // Of the five products that the gradient needs; the scores and dP, which both kernels compute, count once.
  draft.flops = of_keys ? spec.flops / 5 * 4 : spec.flops - spec.flops / 5 * 4;
  return draft;
}

}  // namespace

bool accepts_attention_stream(const KernelSpec& spec) {
  if (spec.device.architecture != 90 || !is_attention_problem(spec.body)) return false;
  const AttentionProblem p = attention_problem(spec);
  // The copy engine's rows begin at multiples of 16 bytes. Of tiles that would be mostly empty, the products of all
  // architectures are as fast.
  constexpr int kCopy = 8, kLeastTokens = 32;
  if (p.element != ir::DType::bf16 || p.copy != kCopy || p.gradient_copy != kCopy) return false;
  if (p.length < kLeastTokens || (p.width != 64 && p.width != 128 && p.width != 256)) return false;
  if (!can_store_runs(spec, p, outputs_of(spec, p.value), kRunLanes)) return false;
  const auto fits = [&](AttentionPart part) {
    return shared_bytes(p, part, shape_of(p, part)) <= spec.device.shared_memory_bytes;
  };
  if (!p.is_grad()) return fits(AttentionPart::forward);
  return fits(AttentionPart::key_gradient) && fits(AttentionPart::query_gradient);
}

void emit_attention_stream(const KernelSpec& spec, Emission& emission) {
  const AttentionProblem p = attention_problem(spec);
  if (!p.is_grad()) {
    emission.launch(forward_kernel(spec, p));
    return;
  }
  const Argument delta = emission.workspace(p.images * p.heads * p.length * 4);
  emission.launch(delta_kernel(spec, p, delta));
  emission.launch(gradient_kernel(spec, p, AttentionPart::key_gradient, delta));
  emission.launch(gradient_kernel(spec, p, AttentionPart::query_gradient, delta));
}

}  // namespace difuse::codegen::cuda
