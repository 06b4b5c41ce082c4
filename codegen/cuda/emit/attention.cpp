// Attention and its gradient, flash style (device/attention.cuh): one kernel for the value; for the gradient three:
// each row's sum of dout * out, then the gradient of keys and values, then that of queries.
#include <fmt/format.h>

#include <cmath>

#include "codegen/cuda/emit/attention/delta.h"
#include "codegen/cuda/emit/attention/source.h"
#include "codegen/cuda/emit/attention/tiles.h"
#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/problem_text.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {
namespace {

/// A kernel whose blocks own rows of a head. `$run` makes the sums, `$store` stores them.
KernelDraft block_kernel(const KernelSpec& spec, const AttentionProblem& p, AttentionPart part,
                         const AttentionTile& tile, const Parameters& parameters, const std::string& name,
                         std::vector<std::pair<std::string_view, std::string>> fields) {
  const int64_t blocks = ceil_div(p.length, tile.rows());
  const std::string_view header = part == AttentionPart::forward ? "attention_forward.cuh" : "attention_backward.cuh";
  const std::string problem = fmt::format(
      "attention::Problem<{}{}, {}, {}, {}, {}, {}, {}, {}>", p.is_tf32 ? "attention::" : "", element_type(p),
      storage_type(p.source), storage_type(p.gradient), p.length, p.width, p.heads, p.copy, p.gradient_copy);
  const std::string shape = fmt::format("attention::Tile<{}, {}, {}, {}, {}, {}, {}>", tile.warps, tile.blocks_m,
                                        tile.step, tile.columns, tile.depth, tile.chunks, tile.stages);
  const auto add = [&](std::string_view field, std::string value) { fields.emplace_back(field, std::move(value)); };
  add("problem", problem);
  add("shape", shape);
  add("threads", text(tile.threads()));
  add("resident", text(resident_blocks(p, part, tile, spec.device)));
  add("shared_bytes", text(shared_bytes(p, part, tile)));
  add("parameters", parameters.text());
  add("blocks", text(blocks));
  add("splits", text(tile.splits));
  add("rows", text(tile.rows()));
  add("columns", text(tile.columns));
  add_problem_fields(spec, p, fields);
  // What is filled in last may hold fields of its own.
  const std::string source = filled(R"(
using index_t = $index;
using Problem = $problem;
using Kernel = attention::$kind<Problem, $shape>;
static_assert(Kernel::shared_bytes == $shared_bytes);

extern "C" __global__ void __launch_bounds__($threads, $resident) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  extern __shared__ __align__(16) unsigned char shared[];
  // A head's blocks follow each other: they read the same rows.
  const int place = static_cast<int>(blockIdx.x), owner = quotient<$blocks * $splits>(place);
  const int first_row = remainder_of<$blocks>(place) * $rows;
  const int first_column = remainder_of<$splits>(quotient<$blocks>(place)) * $columns;
  const index_t image = quotient<$heads>(owner);
  const int head = remainder_of<$heads>(owner);
  const Problem::Source* const qkv = $qkv + image * $qkv_image;
  Kernel block;
$run$store}
)",
                                    fields);
  KernelDraft draft;
  draft.name = name;
  draft.source = device_source({"vector.cuh", "ops.cuh", "random.cuh", header}) + filled(source, fields);
  draft.grid.x = p.images * p.heads * blocks * tile.splits;
  draft.threads = tile.threads();
  draft.shared_bytes = shared_bytes(p, part, tile);
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  return draft;
}

/// Loops over what a thread holds; `$element` is a run's place, `$statements` store it.
constexpr std::string_view kStoreLoops = R"(#pragma unroll
  for (int i = 0; i < Kernel::row_count; ++i) {
    const int token = first_row + Kernel::row(i);
    if (token >= $length) continue;
#pragma unroll
    for (int j = 0; j < Kernel::run_count<$lanes>; ++j) {
      const int column = first_column + Kernel::column<$lanes>(j);
      if (column >= $width) continue;
$statements    }
  }
)";

KernelDraft forward_kernel(const KernelSpec& spec, const AttentionProblem& p, const AttentionTile& tile) {
  Parameters parameters(spec.body, spec);
  const ir::Value log_sum{p.value.node, 1};
  const std::vector<size_t> outs = outputs_of(spec, p.value), log_sums = outputs_of(spec, log_sum);
  std::string store;
  if (!outs.empty()) {
    const int lanes = can_store_runs(spec, p, outs, 2) ? 2 : 1;
    const EpilogueCode made = epilogue_code(spec, p.value, fmt::format("block.value<{}>(i, j, l)", lanes), lanes,
                                            parameters.operands(), row_coords(lanes), "element", outs);
    parameters.add_outers(spec.body, made.outers);
    const std::string statements =
        "const int channel = head * $width + column;\n"
        "const index_t element = (image * $length + token) * $channels + channel;\n" +
        made.text;
    store += filled(kStoreLoops, {{"lanes", text(lanes)}, {"statements", indented(statements, 6)}});
  }
  if (!log_sums.empty()) {
    const EpilogueCode made =
        epilogue_code(spec, log_sum, "block.log_sum(i)", 1, parameters.operands(),
                      {{"image", Lanes::none}, {"head", Lanes::none}, {"token", Lanes::none}}, "element", log_sums);
    parameters.add_outers(spec.body, made.outers);
    store += filled(R"(  if (first_column != 0 || !Kernel::is_first_of_row()) return;
#pragma unroll
  for (int i = 0; i < Kernel::row_count; ++i) {
    const int token = first_row + Kernel::row(i);
    if (token >= $length) continue;
    const index_t element = (image * $heads + head) * $length + token;
$statements  }
)",
                    {{"statements", indented(made.text, 4)}});
  }
  KernelDraft draft = block_kernel(spec, p, AttentionPart::forward, tile, parameters, spec.name,
                                   {{"kind", "Forward"},
                                    {"run",
                                     "  block.run(shared, qkv + $q_channel, qkv + $k_channel, qkv + $v_channel, "
                                     "first_row, first_column, $scale_log2);\n"},
                                    {"store", store}});
  draft.flops = spec.flops;
  return draft;
}

KernelDraft gradient_kernel(const KernelSpec& spec, const AttentionProblem& p, AttentionPart part,
                            const AttentionTile& tile, const Argument& delta) {
  const bool of_keys = part == AttentionPart::key_gradient;
  Parameters parameters(spec.body, spec);
  parameters.add("delta", "const f32*", delta);
  const std::vector<size_t> outs = outputs_of(spec, p.value);
  const int lanes = can_store_runs(spec, p, outs, 2) ? 2 : 1;
  const std::string scale = literal(1 / std::sqrt(static_cast<double>(p.width)));
  const std::string value = of_keys
                                ? fmt::format("block.value<{}>(part, i, j, l) * (part == 1 ? {} : 1.0f)", lanes, scale)
                                : fmt::format("block.value<{}>(i, j, l) * {}", lanes, scale);
  const EpilogueCode made =
      epilogue_code(spec, p.value, "(" + value + ")", lanes, parameters.operands(), row_coords(lanes), "element", outs);
  parameters.add_outers(spec.body, made.outers);
  std::string statements = "const int channel = " + first_channel(spec, p, of_keys ? "part" : "0") +
                           " + column;\n"
                           "const index_t element = (image * $length + token) * $qkv_row + channel;\n" +
                           made.text;
  if (of_keys) {
    statements = "#pragma unroll\nfor (int part = 1; part < 3; ++part) {\n" + indented(statements, 2) + "}\n";
  }
  KernelDraft draft =
      block_kernel(spec, p, part, tile, parameters, spec.name + (of_keys ? "_keys" : "_queries"),
                   {{"kind", of_keys ? "KeyGradient" : "QueryGradient"},
                    {"run", R"(  const attention::Operands<Problem> from = {
      qkv + $q_channel, qkv + $k_channel, qkv + $v_channel, $dout + image * $out_image + head * $width,
      $log_sum + static_cast<long long>(owner) * $length, delta + static_cast<long long>(owner) * $length};
  block.run(shared, from, first_row, first_column, $scale_log2);
)"},
                    {"dout", operand(p, 3)},
                    {"log_sum", operand(p, 2)},
                    {"store", filled(kStoreLoops, {{"lanes", text(lanes)}, {"statements", indented(statements, 6)}})}});
  // Of the five products that the gradient needs; the scores and dP, which both kernels compute, count once.
  draft.flops = of_keys ? spec.flops / 5 * 4 : spec.flops - spec.flops / 5 * 4;
  return draft;
}

/// The kernels with a tile, in the order in which they run.
std::vector<AttentionPart> parts_of(const AttentionProblem& p) {
  if (!p.is_grad()) return {AttentionPart::forward};
  return {AttentionPart::key_gradient, AttentionPart::query_gradient};
}

std::string_view text_of(AttentionPart part) {
  return part == AttentionPart::forward        ? "forward"
         : part == AttentionPart::key_gradient ? "gradient of keys"
                                               : "gradient of queries";
}

}  // namespace

bool accepts_attention(const ir::Graph& body) { return is_attention_problem(body); }

std::vector<TileChoice> attention_choices(const KernelSpec& spec) {
  const AttentionProblem p = attention_problem(spec);
  std::vector<TileChoice> choices;
  for (const AttentionPart part : parts_of(p)) {
    const std::string rest =
        fmt::format("{} {}, {} tokens, {} heads of {}, copies x{} x{}{}", element_type(p), text_of(part), p.length,
                    p.heads, p.width, p.copy, p.gradient_copy, p.is_wide_index ? ", wide" : "");
    TileChoice& choice = choices.emplace_back();
    choice.problem = problem_text(spec, rest);
    choice.batch = p.images;
    for (const AttentionTile& tile : candidates(p, part, spec.device)) choice.tiles.push_back(to_string(tile));
  }
  return choices;
}

void emit_attention(const KernelSpec& spec, Emission& emission) {
  const AttentionProblem p = attention_problem(spec);
  Argument delta;
  if (p.is_grad()) {
    delta = emission.workspace(p.images * p.heads * p.length * 4);
    emission.launch(delta_kernel(spec, p, delta));
  }
  int choice = 0;
  for (const AttentionPart part : parts_of(p)) {
    const AttentionTile tile = candidates(p, part, spec.device).at(spec.tile(static_cast<size_t>(choice)));
    KernelDraft draft = p.is_grad() ? gradient_kernel(spec, p, part, tile, delta) : forward_kernel(spec, p, tile);
    draft.choice = choice++;
    emission.launch(std::move(draft));
  }
}

}  // namespace difuse::codegen::cuda
