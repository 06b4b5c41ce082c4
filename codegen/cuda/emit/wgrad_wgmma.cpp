// Gradients of filters on Hopper's copy engine and warpgroup products (device/wgrad_wgmma.cuh), with what is computed
// from their value. Two kernels: the sum over pixels is divided among blocks, whose partial sums the second one adds.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/emit/contraction/sum.h"
#include "codegen/cuda/emit/wgrad_wgmma/problem.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"

namespace difuse::codegen::cuda {
namespace {

std::string layout_type(const HaloWgrad& w, const ir::DeviceSpec& device) {
  return fmt::format("wgrad::Layout<wgrad::Problem<{}, {}, {}, {}, {}, {}>, wgrad::Tile<{}, {}, {}, {}, {}>>",
                     w.is_line() ? 1 : w.height, w.is_line() ? 1 : w.width, w.inputs, w.outputs, w.taps, w.pad, w.rows,
                     w.images, w.slots(device), w.row_chunks, w.column_chunks);
}

/// Images of one tensor, and the boxes of 64 channels of it that a tile takes: `border` pixels wider and higher.
TensorMapSpec image_map(const HaloWgrad& w, const Argument& start, int64_t height, int64_t width, int64_t channels,
                        int64_t border) {
  TensorMapSpec map{.start = start, .steps = {1, 1, 1, 1}};
  if (w.is_line()) {
    map.extents = {channels, w.batch * height * width, 1, 1};
    map.box = {64, w.pixels(), 1, 1};
  } else {
    map.extents = {channels, width, height, w.batch};
    map.box = {64, 8 + border, w.rows + border, w.images};
  }
  int64_t bytes = ir::size_of(map.dtype);
  for (size_t d = 0; d + 1 < map.extents.size(); ++d) map.strides.push_back(bytes *= map.extents[d]);
  return map;
}

Parameters::Maps tensor_maps(const KernelSpec& spec, const HaloWgrad& w) {
  const auto operand = [&](int input) { return spec.operands[static_cast<size_t>(input)]; };
  Parameters::Maps maps;
  maps.operands[static_cast<size_t>(w.image)] =
      image_map(w, operand(w.image), w.image_h, w.image_w, w.inputs, w.taps - 1);
  maps.operands[static_cast<size_t>(w.gradient)] = image_map(w, operand(w.gradient), w.height, w.width, w.outputs, 0);
  return maps;
}

KernelDraft product_kernel(const KernelSpec& spec, const HaloWgrad& w) {
  Parameters parameters(spec.body, spec, tensor_maps(spec, w));
  parameters.add("tiles", w.tiles());

  KernelDraft draft;
  draft.name = spec.name;
  draft.source = device_source({"wgrad_wgmma.cuh"}) + filled(R"(
using Layout = $layout;

extern "C" __global__ void __launch_bounds__(Layout::threads, 1) $kernel($parameters) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if (threadIdx.x == Layout::owners) {
    tensor_map_prefetch($image);
    tensor_map_prefetch($gradient);
  }
  wgrad::Shared<Layout>{shared}.init();
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int group = static_cast<int>(blockIdx.x);
  const wgrad::Units units = wgrad::units_of(group, static_cast<int>(gridDim.x), Layout::blocks * tiles);
  if (threadIdx.x >= Layout::owners) {
    if (threadIdx.x == Layout::owners) wgrad::produce<Layout>(shared, $image, $gradient, units, tiles);
  } else {
    wgrad::Consumer<Layout> consumer(shared);
#pragma unroll 1
    for (long long unit = units.first; unit < units.end;) {
      const long long block = unit / tiles, stop = (block + 1) * tiles, end = stop < units.end ? stop : units.end;
      consumer.multiply(static_cast<int>(end - unit));
      consumer.store($partials + (group + block) * Layout::block_sums);
      unit = end;
    }
  }
}
)",
                                                             {{"layout", layout_type(w, spec.device)},
                                                              {"parameters", parameters.text()},
                                                              {"image", "p" + text(w.image)},
                                                              {"gradient", "p" + text(w.gradient)},
                                                              {"partials", Parameters::result(0)}});
  draft.grid.x = w.groups(spec.device);
  draft.threads = static_cast<int>(128 * w.consumers() + 32);
  draft.shared_bytes = w.shared_bytes(w.slots(spec.device));
  draft.arguments = parameters.arguments();
  draft.tensor_maps = parameters.tensor_maps();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  return draft;
}

/// Blocks of partial sums: one for each group, and one more for each block of the result that begins inside a group.
int64_t partial_blocks(const HaloWgrad& w, const ir::DeviceSpec& device) { return w.groups(device) + w.blocks() - 1; }

PartialSums partial_sums(const HaloWgrad& w, const ir::DeviceSpec& device) {
  // A run's loads follow one another only where there are enough of them in flight: several threads share it where the
  // result is small and its partial sums are many.
  constexpr int64_t kThreads = 150000, kLeastPartials = 4;
  constexpr int kMostParts = 8, kBlockThreads = 128, kLeastRuns = 32;
  PartialSums sums{.runs = w.blocks() * w.block_sums() / 4, .parts = 1};
  const int64_t partials = device.processors / w.blocks();
  while (sums.parts < kMostParts && 2 * sums.parts * sums.runs <= kThreads &&
         2 * sums.parts * kLeastPartials <= partials) {
    sums.parts *= 2;
  }
  sums.block_runs = std::max(kLeastRuns, kBlockThreads / sums.parts);
  sums.headers = {"wgrad_wgmma.cuh"};
  sums.declarations = fmt::format("using Layout = {};\n", layout_type(w, device));
  sums.numbers = {{"tiles", w.tiles()}, {"groups", w.groups(device)}};
  sums.place = R"(const int block = quotient<Layout::block_runs>(run), place = remainder_of<Layout::block_runs>(run);
const index_t element = wgrad::element_of<Layout>(block, place);
const bool valid = element >= 0;
const wgrad::Groups of = wgrad::groups_of(block, Layout::blocks, tiles, groups);
const f32* const at = partials + (of.first + block) * static_cast<long long>(Layout::block_sums) + place * 4;
const long long stride = Layout::block_sums;
const int count = of.count;
)";
  sums.bytes = partial_blocks(w, device) * w.block_sums() * 4;
  return sums;
}

}  // namespace

bool accepts_wgrad_wgmma(const KernelSpec& spec) {
  const auto w = halo_wgrad(spec);
  if (!w) return false;
  // Channels are computed in 64s. Where most of them would be none, the products of all architectures are faster.
  constexpr double kLeastUse = 0.4;
  const auto use = [](int64_t channels) {
    return static_cast<double>(channels) / static_cast<double>(ceil_div(channels, 64) * 64);
  };
  return use(w->inputs) * use(w->outputs) >= kLeastUse;
}

void emit_wgrad_wgmma(const KernelSpec& spec, Emission& emission) {
  const HaloWgrad w = *halo_wgrad(spec);
  const ir::Graph product = part_of(spec.body, {w.value});
  const Argument partials = emission.workspace(partial_blocks(w, spec.device) * w.block_sums() * 4);
  emission.launch(product_kernel(product_spec(spec, product, partials), w));
  emit_sum(spec, w.value, partials, partial_sums(w, spec.device), emission);
}

}  // namespace difuse::codegen::cuda
