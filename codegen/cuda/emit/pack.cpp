// pack: its parts usually lie in their slices already; one kernel copies those that do not, and zeroes the gaps.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"

namespace difuse::codegen::cuda {
namespace {

const ir::Node& pack_node(const ir::Graph& body) { return body.node(body.outputs()[0].value); }

/// Elements of the vector that nobody has made in their place.
struct Slice {
  int64_t begin, count;
  int input = -1;  ///< Which lies elsewhere; none where it is a gap.
};

std::vector<Slice> missing_slices(const KernelSpec& spec, const ir::Node& node) {
  const auto& attrs = node.as<ir::PackAttrs>();
  std::vector<Slice> slices;
  int64_t end = 0;
  for (size_t i = 0; i <= attrs.offsets.size(); ++i) {
    const int64_t next = i < attrs.offsets.size() ? attrs.offsets[i] : attrs.size;
    if (next > end) slices.push_back({end, next - end});
    if (i == attrs.offsets.size()) break;
    const ir::Node& part = spec.body.node(node.operands[i]);
    const int input = input_number(part);
    Argument place = spec.results[0];
    place.value += next * ir::size_of(node.types[0].dtype);
    end = next + part.types[0].elements();
    if (spec.operands[static_cast<size_t>(input)] != place) slices.push_back({next, end - next, input});
  }
  return slices;
}

constexpr size_t kMostSlices = 256;  // Of one kernel, which takes a pointer for each that it copies.

KernelDraft slices_kernel(const KernelSpec& spec, ir::DType type, std::span<const Slice> slices) {
  constexpr int64_t kSliceThreads = 256, kEach = 4, kMostBlocks = 64;  // Of a slice.
  const std::string dtype = storage_type(type);
  std::string rows, parameters, parts;
  KernelDraft draft;
  int64_t longest = 0;
  for (size_t s = 0; s < slices.size(); ++s) {
    const Slice& slice = slices[s];
    longest = std::max(longest, slice.count);
    rows += fmt::format("{{{}, {}}}, ", slice.begin, slice.count);
    draft.bytes += slice.count * ir::size_of(type) * (slice.input < 0 ? 1 : 2);
    if (slice.input < 0) continue;
    parameters += fmt::format("const {}* x{}, ", dtype, s);
    parts += fmt::format("  if (blockIdx.y == {}) x = x{};\n", s, s);
    draft.arguments.push_back(spec.operands[static_cast<size_t>(slice.input)]);
  }
  draft.name = parts.empty() ? "pack_gaps" : "pack";
  draft.source = device_source({"vector.cuh"}) + filled(R"(
__constant__ long long slices[][2] = {$rows};

extern "C" __global__ void __launch_bounds__($threads) $kernel($parameters$dtype* y) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const $dtype* x = nullptr;
$parts  const long long begin = slices[blockIdx.y][0], count = slices[blockIdx.y][1];
  constexpr long long threads = $threads;
  for (long long i = blockIdx.x * threads + threadIdx.x; i < count; i += gridDim.x * threads) {
    y[begin + i] = x == nullptr ? $dtype{} : x[i];
  }
}
)",
                                                        {{"rows", rows},
                                                         {"threads", text(kSliceThreads)},
                                                         {"parameters", parameters},
                                                         {"parts", parts},
                                                         {"dtype", dtype}});
  draft.grid = {std::min(ceil_div(longest, kSliceThreads * kEach), kMostBlocks), std::ssize(slices), 1};
  draft.threads = kSliceThreads;
  draft.arguments.push_back(spec.results[0]);
  return draft;
}

}  // namespace

bool accepts_pack(const ir::Graph& body) { return pack_node(body).op == ir::Op::pack; }

void emit_pack(const KernelSpec& spec, Emission& emission) {
  const ir::Node& node = pack_node(spec.body);
  const std::vector<Slice> slices = missing_slices(spec, node);
  for (size_t first = 0; first < slices.size(); first += kMostSlices) {
    const size_t count = std::min(kMostSlices, slices.size() - first);
    emission.launch(slices_kernel(spec, node.types[0].dtype, std::span(slices).subspan(first, count)));
  }
}

}  // namespace difuse::codegen::cuda
