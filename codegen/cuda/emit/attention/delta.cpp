#include "codegen/cuda/emit/attention/delta.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {

KernelDraft delta_kernel(const KernelSpec& spec, const AttentionProblem& p, const Argument& delta) {
  constexpr int kThreads = 128;
  const ir::Graph& body = spec.body;
  const auto type = [&](size_t i) -> const ir::Type& { return body.type(body.node(p.value).operands[i]); };
  int64_t vec = 8;
  const auto fits = [&](size_t i) {
    const int64_t run = vec * ir::size_of(type(i).dtype);
    return p.width % vec == 0 && spec.alignment[static_cast<size_t>(p.inputs[i])] % std::min<int64_t>(run, 16) == 0;
  };
  while (vec > 1 && !(fits(1) && fits(3))) vec /= 2;
  int64_t sharers = 1;
  while (sharers < 32 && sharers * vec < p.width) sharers *= 2;

  const ir::Graph nothing("delta");
  Parameters parameters(nothing, {nothing, {}, {}, {}, {}, "", 0, spec.device});
  const auto add = [&](const char* name, size_t i) {
    parameters.add(name, fmt::format("const {}*", storage_type(type(i).dtype)),
                   spec.operands[static_cast<size_t>(p.inputs[i])]);
  };
  add("out", 1);
  add("dout", 3);
  parameters.add("delta", "f32*", delta);
  const int64_t rows = p.images * p.length * p.heads;
  parameters.add("rows", rows);

  KernelDraft draft;
  draft.name = spec.name + "_delta";
  draft.source = device_source({"attention_backward.cuh"}) + filled(R"(
extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  attention::write_delta<$length, $heads, $width, $vec, $sharers>(out, dout, delta, rows);
}
)",
                                                                    {{"threads", text(kThreads)},
                                                                     {"parameters", parameters.text()},
                                                                     {"length", text(p.length)},
                                                                     {"heads", text(p.heads)},
                                                                     {"width", text(p.width)},
                                                                     {"vec", text(vec)},
                                                                     {"sharers", text(sharers)}});
  draft.grid.x = ceil_div(rows * sharers, kThreads);
  draft.threads = kThreads;
  draft.arguments = parameters.arguments();
  draft.bytes = type(1).bytes() + type(3).bytes() + rows * 4;
  return draft;
}

}  // namespace difuse::codegen::cuda
