// pack: its parts usually lie in their slices already; this copies those that do not, and zeroes the gaps.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"
#include "ir/builder.h"

namespace difuse::codegen::cuda {
namespace {

const ir::Node& pack_node(const ir::Graph& body) { return body.node(body.outputs()[0].value); }

struct Gap {
  int64_t begin, count;
};

std::vector<Gap> gaps_of(const ir::Graph& body, const ir::Node& node) {
  const auto& attrs = node.as<ir::PackAttrs>();
  std::vector<Gap> gaps;
  int64_t end = 0;
  for (size_t i = 0; i <= attrs.offsets.size(); ++i) {
    const int64_t next = i < attrs.offsets.size() ? attrs.offsets[i] : attrs.size;
    if (next > end) gaps.push_back({end, next - end});
    if (i < attrs.offsets.size()) end = next + body.type(node.operands[i]).elements();
  }
  return gaps;
}

void emit_gaps(const KernelSpec& spec, const ir::Node& node, Emission& emission) {
  const std::vector<Gap> gaps = gaps_of(spec.body, node);
  if (gaps.empty()) return;
  constexpr int kSliceThreads = 64;
  std::string rows;
  for (const Gap& gap : gaps) rows += fmt::format("{{{}, {}}}, ", gap.begin, gap.count);
  const std::string dtype = storage_type(node.types[0].dtype);
  KernelDraft draft;
  draft.name = "pack_gaps";
  draft.source = device_source({"vector.cuh"}) + filled(R"(
__constant__ long long gaps[][2] = {$rows};

extern "C" __global__ void __launch_bounds__($threads) $kernel($dtype* y) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const long long begin = gaps[blockIdx.x][0], count = gaps[blockIdx.x][1];
  for (long long i = threadIdx.x; i < count; i += $threads) y[begin + i] = $dtype{};
}
)",
                                                        {{"rows", rows}, {"threads", "64"}, {"dtype", dtype}});
  draft.grid.x = std::ssize(gaps);
  draft.threads = kSliceThreads;
  draft.arguments = {spec.results[0]};
  for (const Gap& gap : gaps) draft.bytes += gap.count * ir::size_of(node.types[0].dtype);
  emission.launch(std::move(draft));
}

}  // namespace

bool accepts_pack(const ir::Graph& body) { return pack_node(body).op == ir::Op::pack; }

void emit_pack(const KernelSpec& spec, Emission& emission) {
  const ir::Node& node = pack_node(spec.body);
  const auto& attrs = node.as<ir::PackAttrs>();
  const int64_t size = ir::size_of(node.types[0].dtype);
  const int64_t whole = spec.result_alignment[0];  // A vector that lies inside another may begin anywhere.
  for (size_t i = 0; i < attrs.offsets.size(); ++i) {
    const ir::Node& part = spec.body.node(node.operands[i]);
    const auto input = static_cast<size_t>(input_number(part));
    Argument to = spec.results[0];
    const int64_t offset = attrs.offsets[i] * size;
    to.value += offset;
    if (to == spec.operands[input]) continue;
    ir::Graph copy("copy");
    copy.set_output("0", ir::Builder(copy).input("0", part.types[0]));
    const int64_t aligned = offset == 0 ? whole : std::min(whole, offset & -offset);
    emit_elementwise({copy, {spec.operands[input]}, {spec.alignment[input]}, {to}, {aligned}, "copy", 0, spec.device},
                     emission);
  }
  emit_gaps(spec, node, emission);
}

}  // namespace difuse::codegen::cuda
