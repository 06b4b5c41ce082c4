// group_finish: a warp for each image and group. Groups may straddle the border between two operands, so a channel's
// moments are looked up in whichever has it.
#include <fmt/format.h>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"
#include "ir/op.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda {
namespace {

const ir::Node* finish_node(const ir::Graph& body) {
  if (body.outputs().empty()) return nullptr;
  const int id = body.outputs()[0].value.node;
  const ir::Node& node = body.node(id);
  if (node.op != ir::Op::group_finish) return nullptr;
  for (const ir::NamedValue& output : body.outputs()) {
    if (output.value.node != id) return nullptr;
  }
  for (const ir::Value v : node.operands) {
    if (body.node(v).op != ir::Op::input) return nullptr;
  }
  return &node;
}

}  // namespace

bool accepts_group_finish(const ir::Graph& body) { return finish_node(body) != nullptr; }

void emit_group_finish(const KernelSpec& spec, Emission& emission) {
  const ir::Graph& body = spec.body;
  const ir::Node& node = *finish_node(body);
  const auto& attrs = node.as<ir::GroupFinishAttrs>();
  const int64_t images = node.types[0].shape[0], channels = node.types[0].shape[1], width = channels / attrs.groups;
  const int64_t strips = ir::Strips{attrs.height, attrs.width}.count();

  Parameters parameters(body, spec);
  parameters.add("images", images);
  // "channel" counts the tensors' channels in order.
  const auto look_up = [&](size_t which) {
    std::string text;
    int64_t first = 0;
    for (size_t i = which; i < node.operands.size(); i += 2) {
      const int64_t size = body.type(node.operands[i]).shape[2];
      const std::string& pointer =
          parameters.operands()[static_cast<size_t>(input_number(body.node(node.operands[i])))];
      if (i + 2 < node.operands.size()) text += fmt::format("if (channel < {}) ", first + size);
      text += fmt::format("return {}[(n * {} + strip) * {} + channel - {}];\n", pointer, strips, size, first);
      first += size;
    }
    return indented(text, 4);
  };
  std::string stores;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    if (!spec.wanted(r)) continue;
    stores += fmt::format("    {}[n * {} + first + c] = statistics.{};\n", Parameters::result(r), channels,
                          body.outputs()[r].value.result == 0 ? "mean" : "rstd");
  }

  constexpr int kThreads = 128;
  const bool wide = images * strips * channels >= (int64_t{1} << 31);
  KernelDraft draft;
  draft.name = spec.name;
  draft.source =
      device_source({"group_finish.cuh"}) + filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const long long warp = static_cast<long long>(blockIdx.x) * $warps + static_cast<int>(threadIdx.x) / 32;
  if (warp >= images * $groups) return;
  const index_t n = static_cast<index_t>(warp / $groups);
  const int first = static_cast<int>(warp % $groups) * $width;
  const auto mean_of = [=](int strip, int own) -> float {
    const int channel = first + own;
$means  };
  const auto m2_of = [=](int strip, int own) -> float {
    const int channel = first + own;
$m2s  };
  const group_finish::Statistics statistics = group_finish::finish<$height, $wide, $width>($eps, mean_of, m2_of);
  for (int c = static_cast<int>(threadIdx.x) % 32; c < $width; c += 32) {
$stores  }
}
)",
                                                   {{"index", index_type(wide)},
                                                    {"threads", std::to_string(kThreads)},
                                                    {"warps", std::to_string(kThreads / 32)},
                                                    {"parameters", parameters.text()},
                                                    {"groups", std::to_string(attrs.groups)},
                                                    {"width", std::to_string(width)},
                                                    {"means", look_up(0)},
                                                    {"m2s", look_up(1)},
                                                    {"height", std::to_string(attrs.height)},
                                                    {"wide", std::to_string(attrs.width)},
                                                    {"eps", fmt::format("{:a}f", static_cast<float>(attrs.eps))},
                                                    {"stores", stores}});
  draft.grid.x = ceil_div(images * attrs.groups, kThreads / 32);
  draft.threads = kThreads;
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  emission.launch(std::move(draft));
}

}  // namespace difuse::codegen::cuda
