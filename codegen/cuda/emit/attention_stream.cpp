// Attention and its gradient on Hopper's copy engine and warpgroup products, of any length
// (device/attention_stream.cuh): one kernel for the value; for the gradient two: that of queries, which leaves each
// row's sum of dout * out, then that of keys and values.
#include <fmt/format.h>

#include <algorithm>

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
  bool stays = true;
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
      // Beside sums of 256 channels there are no registers for more than one set of rows, nor is there a fourth slot.
      if (p.width == 256) return {"QueryGradient", 2, 2, 4, 3, false};
      return {"QueryGradient", consumers, consumers, 2 * consumers, slots};
    case AttentionPart::key_gradient:
      break;
  }
  if (narrow) return {.kind = "KeyGradient", .owned = 4, .slots = slots};
  return {.kind = "PairedKeyGradient", .parts = 1, .slots = slots};
}

/// Numbers of a head that the gradient of queries leaves for that of keys: two of each query, in whole tiles.
int64_t statistics_count(const AttentionProblem& p) { return 2 * round_up(p.length, kTokens); }

/// As the device header computes it.
int64_t shared_bytes(const AttentionProblem& p, AttentionPart part, const Shape& shape) {
  const int64_t tile = kTokens * 2 * p.width;
  int64_t bytes = (shape.owned + shape.slots) * tile + (2 * shape.slots + 4) * 8;
  if (part == AttentionPart::key_gradient)
    bytes += 4 * statistics_count(p) + (p.width > 64 ? 4 * kTokens * kTokens : 0);
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
  if (!p.is_grad()) return maps;
  for (const size_t i : {1, 3}) maps.operands[input(i)] = row_map(p, spec.operands[input(i)], p.channels());
  return maps;
}

/// A head's sets of rows follow each other, as they read the same ones. Where blocks stay, the producer loads the next
/// set while the consumers store.
std::string each_work(const Shape& shape) {
  const std::string_view loop =
      "#pragma unroll 1\n    for (int work = static_cast<int>(blockIdx.x); work < works; work += "
      "static_cast<int>(gridDim.x)) {";
  return fmt::format(R"({}
      const int owner = quotient<$blocks>(work), head = remainder_of<$heads>(owner);
      const int first = remainder_of<$blocks>(work) * Block::rows;
      const index_t image = quotient<$heads>(owner);)",
                     shape.stays ? loop : "{ const int work = static_cast<int>(blockIdx.x);");
}

/// `load` and `run` are the kernel's own arguments of both sides, `store` stores.
KernelDraft block_kernel(const KernelSpec& spec, const AttentionProblem& p, AttentionPart part, Parameters& parameters,
                         const std::string& name, std::string_view load, std::string_view run, std::string_view store) {
  const Shape shape = shape_of(p, part);
  const int64_t blocks = ceil_div(p.length, kTokens * shape.parts), works = p.images * p.heads * blocks;
  if (shape.stays) parameters.add("works", works);
  const std::string sizes = shape.parts == 1 ? text(shape.slots) : fmt::format("{}, {}", shape.parts, shape.slots);
  std::vector<std::pair<std::string_view, std::string>> fields = {
      {"problem", fmt::format("attention_stream::Problem<{}, {}>", p.length, p.width)},
      {"block", fmt::format("attention_stream::{}<Problem, {}>", shape.kind, sizes)},
      {"shared_bytes", text(shared_bytes(p, part, shape))},
      {"parameters", parameters.text()},
      {"blocks", text(blocks)}};
  add_problem_fields(spec, p, fields);
  if (p.is_grad()) fields.emplace_back("out", operand(p, 1));
  if (p.is_grad()) fields.emplace_back("log_sum", operand(p, 2)), fields.emplace_back("dout", operand(p, 3));
  fields.emplace_back("each_work", filled(each_work(shape), fields));
  fields.emplace_back("load", filled(load, fields));
  fields.emplace_back("run", filled(run, fields));
  fields.emplace_back("store", indented(store, 2));
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
  if (memory.is_producer()) {
    memory.be_producer();
    if (!memory.is_first_producer()) return;
    attention_stream::Writer<Problem, Block::Shared> ring(memory);
    $each_work
      Block::load(ring, $load, {$q_channel, $k_channel, $v_channel, head * $width, static_cast<int>(image)}, first);
    }
    return;
  }
  memory.be_consumer();
  attention_stream::Reader<Block::Shared> ring(memory);
  Block block;
  $each_work
    block.run(ring, $run first, $scale_log2);
$store  }
}
)",
                                                                                                         fields);
  draft.grid.x = shape.stays ? std::min(works, spec.device.processors) : works;
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
                            const Argument& statistics) {
  Parameters parameters(spec.body, spec, tensor_maps(spec, p));
  parameters.add("statistics", "f32*", statistics);
  const GradientStores stores = store_gradient_runs(spec, p, parameters);
  const std::string of_head = fmt::format("statistics + static_cast<long long>(owner) * {}", statistics_count(p));
  const bool of_keys = part == AttentionPart::key_gradient;
  KernelDraft draft =
      of_keys ? block_kernel(spec, p, part, parameters, spec.name + "_keys", "$qkv, $dout, " + of_head, "",
                             fmt::format("  if (block.has_keys()) {{\n{}  }}\n  if (block.has_values()) {{\n{}  }}\n",
                                         stores.keys, stores.values))
              : block_kernel(spec, p, part, parameters, spec.name + "_queries", "$qkv, $out, $dout",
                             "$log_sum + static_cast<long long>(owner) * $length, "
                             "attention_stream::QueryStatistics<Problem>(" +
                                 of_head + "), ",
                             stores.queries);
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
  const ir::Type& out = spec.body.type(spec.body.node(p.value).operands[1]);
  if (out.dtype != ir::DType::bf16 || spec.alignment[static_cast<size_t>(p.inputs[1])] % 16 != 0) return false;
  return fits(AttentionPart::key_gradient) && fits(AttentionPart::query_gradient);
}

void emit_attention_stream(const KernelSpec& spec, Emission& emission) {
  const AttentionProblem p = attention_problem(spec);
  if (!p.is_grad()) {
    emission.launch(forward_kernel(spec, p));
    return;
  }
  const Argument statistics = emission.workspace(p.images * p.heads * statistics_count(p) * 4);
  emission.launch(gradient_kernel(spec, p, AttentionPart::query_gradient, statistics));
  emission.launch(gradient_kernel(spec, p, AttentionPart::key_gradient, statistics));
}

}  // namespace difuse::codegen::cuda
