// Filters that are turned, for the gradient of an image (device/repack.cuh). Extents are arguments, so that those of
// all filters are one kernel, and one launch where none is needed before all can be there.
#include <algorithm>
#include <limits>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {

bool accepts_repack(const ir::Graph& body) {
  // Of fewer channels, most of a tile would be empty.
  constexpr int64_t kLeastChannels = 16;
  if (body.outputs().size() != 1) return false;
  const ir::Node& node = body.node(body.outputs()[0].value);
  if (node.op != ir::Op::repack || body.node(node.operands[0]).op != ir::Op::input) return false;
  const ir::Type& type = node.types[0];
  return type.shape[0] >= kLeastChannels && type.shape[3] >= kLeastChannels &&
         type.elements() < std::numeric_limits<int32_t>::max();
}

void emit_repack(const KernelSpec& spec, Emission& emission) {
  constexpr int64_t kTile = 64, kMostBlocks = 64;  // Of one filter: those of a joined launch find about as much to do.
  constexpr int kThreads = 256;
  const ir::Type& type = spec.body.type(spec.body.outputs()[0].value);
  const int64_t inputs = type.shape[0], taps = type.shape[1] * type.shape[2], outputs = type.shape[3];
  Parameters parameters(spec.body, spec);
  parameters.add("outputs", outputs);
  parameters.add("taps", taps);
  parameters.add("inputs", inputs);
  const int64_t blocks = std::min(kMostBlocks, taps * ceil_div(outputs, kTile) * ceil_div(inputs, kTile));
  parameters.add("blocks", blocks);
  KernelDraft draft;
  draft.name = "repack";
  draft.source = device_source({"repack.cuh"}) + filled(R"(
extern "C" __global__ void __launch_bounds__($threads) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  repack::turn($from, $to, static_cast<int>(outputs), static_cast<int>(taps), static_cast<int>(inputs),
               static_cast<int>(blockIdx.x), static_cast<int>(blocks));
}
)",
                                                        {{"threads", text(kThreads)},
                                                         {"parameters", parameters.text()},
                                                         {"from", parameters.operands()[0]},
                                                         {"to", Parameters::result(0)}});
  draft.grid.x = blocks;
  draft.threads = kThreads;
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  emission.launch(std::move(draft));
}

}  // namespace difuse::codegen::cuda
