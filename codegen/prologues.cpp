#include "codegen/prologues.h"

#include <fmt/format.h>

#include "codegen/cuda/kernel_spec.h"
#include "ir/op.h"
#include "passes/memory_plan.h"

namespace difuse::codegen {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;

bool is_cpu(const ir::DeviceSpec& device) { return device.kind == ir::DeviceSpec::Kind::cpu; }

std::string cpu_limit(const Graph& body) {
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    // Rows that are summed are no images of their own.
    if (node.op == Op::matmul && node.as<ir::MatmulAttrs>().transpose_a) return "its rows are read as a whole";
  }
  return {};
}

std::string engine_limit(const Graph& body, const ir::DeviceSpec& device) {
  // As the memory plan places tensors: each at a place of its own.
  cuda::KernelSpec spec{body, {}, {}, {}, {}, "prologue", 0, device};
  int64_t offset = 0;
  const auto place = [&](std::vector<cuda::Argument>& to, std::vector<int64_t>& alignment, const ir::Type& type) {
    to.push_back({cuda::Argument::Kind::arena, offset});
    alignment.push_back(passes::kArenaAlignment);
    offset += (type.bytes() + passes::kArenaAlignment - 1) / passes::kArenaAlignment * passes::kArenaAlignment;
  };
  for (size_t i = 0; body.find_input(fmt::format("{}", i)).valid(); ++i) {
    place(spec.operands, spec.alignment, body.type(body.find_input(fmt::format("{}", i))));
  }
  for (const ir::NamedValue& n : body.outputs()) place(spec.results, spec.result_alignment, body.type(n.value));
  if (cuda::accepts_conv_wgmma(spec) || cuda::accepts_wgrad_wgmma(spec)) return {};
  return fmt::format("no engine of {} computes it", ir::architecture_name(device));
}

}  // namespace

std::string prologue_limit(const Graph& body, const ir::DeviceSpec& device) {
  return is_cpu(device) ? cpu_limit(body) : engine_limit(body, device);
}

passes::FusionSettings prologue_settings(passes::Prologues wanted, const ir::DeviceSpec& device) {
  passes::FusionSettings settings;
  settings.prologues = wanted;
  // On the CPU a training step of fashion-demo takes 5 % longer with all prologues, a forward pass as long as without.
  if (is_cpu(device) && wanted == passes::Prologues::automatic) settings.prologues = passes::Prologues::never;
  // On an H200 a forward pass of adm-seed64 took 1.566 ms with those that were expected to gain, and 1.552 ms without.
  settings.estimates = false;
  settings.prologue_limits = [&device](const ir::Graph& body) { return prologue_limit(body, device); };
  return settings;
}

}  // namespace difuse::codegen
