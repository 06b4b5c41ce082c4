// Bodies whose every element is computed from elements of the operands: pointwise clusters, data movement, random
// draws. A thread computes one run of consecutive elements of all results.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/collapse.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/error.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kManyTensors = 8;  ///< From here on, long runs of every tensor would need too many registers.

/// The longest run that every whole tensor can be read and written in, 16 bytes of the narrowest.
int choose_lanes(const ir::Graph& body, const KernelSpec& spec) {
  const ir::Type& type = body.type(body.outputs()[0].value);
  int64_t narrowest = 4;
  size_t tensors = 0;
  const auto see = [&](const ir::Type& t) {
    if (t.elements() != type.elements()) return;
    narrowest = std::min(narrowest, ir::size_of(t.dtype));
    ++tensors;
  };
  for (const int id : body.leaves(ir::Op::input)) see(body.node(id).types[0]);
  for (const ir::NamedValue& n : body.outputs()) see(body.type(n.value));
  const auto lanes = static_cast<int>(std::clamp<int64_t>(16 / narrowest, 4, tensors > kManyTensors ? 4 : 8));
  return fitting_lanes(spec, type.rank() > 1 ? type.shape.back() : lanes, lanes);
}

}  // namespace

bool accepts_elementwise(const ir::Graph& body) {
  const std::vector<bool> live = body.live();
  for (int id = 0; id < body.size(); ++id) {
    if (live[static_cast<size_t>(id)] && !BodyCode::can(body.node(id))) return false;
  }
  const int64_t elements = body.type(body.outputs()[0].value).elements();
  return std::ranges::all_of(body.outputs(), [&](const auto& n) { return body.type(n.value).elements() == elements; });
}

void emit_elementwise(const KernelSpec& spec, Emission& emission) {
  const ir::Graph body = collapsed(spec.body);
  const ir::Type& type = body.type(body.outputs()[0].value);
  const int lanes = choose_lanes(body, spec);
  Parameters parameters(body, spec);
  BodyCode code(body, lanes, parameters.operands(), spec.alignment, type.rank() > 1 || lanes == 1 ? "" : "available");
  const Index index = code.at_linear("i", type.shape);
  std::string runs, stores, lane;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    if (!spec.wanted(r)) continue;
    const ir::Value v = body.outputs()[r].value;
    const std::string dtype = storage_type(body.type(v).dtype), to = parameters.result(r);
    const std::string x = code.value(v, index);
    runs += fmt::format("  Run<{}, {}> run_{};\n", dtype, lanes, to);
    lane += fmt::format("run_{}[l] = narrow<{}>({});\n", to, dtype, x);
    stores += fmt::format("  store_run<{}>({} + i, run_{}, available);\n", lanes, to, to);
  }
  parameters.add("count", type.elements());
  parameters.add_outers(body, code.outers());

  KernelDraft draft;
  draft.name = spec.name;
  draft.source = device_source({"vector.cuh", "ops.cuh", "random.cuh"}) +
                 filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const long long first = (static_cast<long long>(blockIdx.x) * $threads + threadIdx.x) * $lanes;
  if (first >= count) return;
  const index_t i = static_cast<index_t>(first);
  const long long available = count - first;
$before$runs#pragma unroll
  for (int l = 0; l < $lanes; ++l) {
$lane  }
$stores}
)",
                        {{"index", index_type(needs_wide_index(body, /*spare=*/kThreads * 8))},
                         {"threads", std::to_string(kThreads)},
                         {"lanes", std::to_string(lanes)},
                         {"parameters", parameters.text()},
                         {"before", indented(code.take_before(), 2)},
                         {"runs", runs},
                         {"lane", indented(code.take_lane() + lane, 4)},
                         {"stores", stores}});
  draft.grid.x = ceil_div(type.elements(), kThreads * lanes);
  draft.threads = kThreads;
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  emission.launch(std::move(draft));
}

}  // namespace difuse::codegen::cuda
