#include "codegen/cuda/emit/conv_wgmma/source.h"

#include <fmt/format.h>

#include <utility>

#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/parameters.h"

namespace difuse::codegen::cuda {
namespace {

/// A dense tensor whose dimensions are listed outermost first, and a box of it.
TensorMapSpec dense_map(const Argument& start, const ir::Shape& shape, std::vector<int64_t> box) {
  TensorMapSpec map{.start = start, .extents = {shape.rbegin(), shape.rend()}, .box = std::move(box)};
  int64_t bytes = ir::size_of(map.dtype);
  for (size_t d = 0; d + 1 < map.extents.size(); ++d) map.strides.push_back(bytes *= map.extents[d]);
  map.steps.assign(map.extents.size(), 1);
  return map;
}

TensorMapSpec image_map(const HaloConv& c, const HaloTile& tile, const Argument& start) {
  if (c.is_line())
    return dense_map(start, {1, 1, c.batch * c.image_h * c.image_w, c.inputs}, {64, tile.pixels(), 1, 1});
  return dense_map(start, {c.batch, c.image_h, c.image_w, c.inputs},
                   {64, 8 + c.taps - 1, tile.rows + c.taps - 1, tile.images});
}

/// Of the result, and of what is read like it.
TensorMapSpec result_map(const HaloConv& c, const HaloTile& tile, const Argument& start) {
  if (c.is_line()) return dense_map(start, {1, 1, c.batch * c.height * c.width, c.outputs}, {64, tile.pixels(), 1, 1});
  return dense_map(start, {c.batch, c.height, c.width, c.outputs}, {64, 8, tile.rows, tile.images});
}

Parameters::Maps tensor_maps(const KernelSpec& spec, const HaloConv& c, const HaloTile& tile) {
  const auto operand = [&](int input) { return spec.operands[static_cast<size_t>(input)]; };
  Parameters::Maps maps;
  maps.operands[static_cast<size_t>(c.image)] = image_map(c, tile, operand(c.image));
  const auto [slow, fast] = c.is_turned ? std::pair(c.inputs, c.outputs) : std::pair(c.outputs, c.inputs);
  maps.operands[static_cast<size_t>(c.filter)] =
      dense_map(operand(c.filter), {slow, c.taps * c.taps, fast}, {64, 1, 64});
  if (c.residual >= 0) {
    maps.operands[static_cast<size_t>(c.residual)] = result_map(c, tile, operand(c.residual));
  }
  maps.results[c.result] = result_map(c, tile, spec.results[c.result]);
  return maps;
}

std::string layout_type(const HaloConv& c, const HaloTile& tile) {
  return fmt::format("conv::Layout<conv::Problem<{}, {}, {}, {}, {}, {}, {}>, conv::Tile<{}, {}, {}, {}, {}, {}>>",
                     c.is_line() ? 1 : c.height, c.is_line() ? 1 : c.width, c.inputs, c.outputs, c.taps, c.pad,
                     c.is_turned, tile.rows, tile.images, tile.halo_slots, tile.tap_slots, tile.blocks, tile.consumers);
}

/// What is done with the sums of one output channel in one image of the tile, `lanes` of them to a thread. Operands are
/// read at coordinates inside the result, though the tile may reach beyond it.
struct Epilogue {
  std::string code = {};  ///< Empty: nothing.
  bool reads_image = false;
  std::set<int> outers = {};
};

Epilogue epilogue(const KernelSpec& spec, const HaloConv& c, int64_t lanes, const std::vector<std::string>& operands) {
  const ir::Graph& body = spec.body;
  BodyCode code(body, static_cast<int>(lanes), operands, spec.alignment);
  code.bind(c.value, "consumer.sum(image, half, l)");
  if (c.residual >= 0) {
    code.bind(body.find_input(text(c.residual)), "consumer.operand(l)");
  }
  const std::string value = code.value(
      body.outputs()[c.result].value,
      code.at({{"at_image", Lanes::none}, {"at_y", Lanes::any}, {"at_x", Lanes::any}, {"channel", Lanes::none}}));
  std::string declared, added, summed;
  for (const HaloConv::Sum& sum : c.sums) {
    const std::string name = fmt::format("sum_{}", Parameters::result(sum.output));
    declared += fmt::format("conv::StripSums<Consumer> {};\n", name);
    added += fmt::format("{}.add(consumer, l, {});\n", name,
                         code.value(sum.value, code.at({{"at_image", Lanes::none},
                                                        {"at_y", Lanes::any},
                                                        {"at_x", Lanes::any},
                                                        {"channel", Lanes::none}})));
    summed += fmt::format("{}.store(consumer, image, half, {}, static_cast<int>(images));\n", name,
                          Parameters::result(sum.output));
  }
  const std::string before = code.take_before(), lane = code.take_lane();
  Epilogue made{.outers = code.outers()};
  const auto uses = [&](const char* name) { return (before + lane).find(name) != std::string::npos; };
  std::string of_half, of_lane;
  if (uses("channel"))
    of_half += fmt::format("const index_t channel = min(consumer.channel(half), {});\n", c.outputs - 1);
  if (uses("at_image")) {
    of_half += "const index_t at_image = min(consumer.image(image), static_cast<index_t>(images) - 1);\n";
    made.reads_image = true;
  }
  if (uses("at_y")) of_lane += fmt::format("const index_t at_y = min(consumer.y(l), {});\n", c.height - 1);
  if (uses("at_x")) of_lane += fmt::format("const index_t at_x = min(consumer.x(l), {});\n", c.width - 1);
  if (lane.empty() && value == "consumer.sum(image, half, l)") return made;
  made.code = filled(R"(#pragma unroll
for (int image = 0; image < Layout::Tile::images; ++image) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
$of_half$before$declared#pragma unroll
    for (int l = 0; l < Consumer::lanes; ++l) {
$read$of_lane$lane$added      consumer.sum(image, half, l) = $value;
    }
$summed  }
}
)",
                     {{"of_half", indented(of_half, 4)},
                      {"before", indented(before, 4)},
                      {"read", c.residual < 0 ? "" : "      if (l % 8 == 0) consumer.read_operand(image, half, l);\n"},
                      {"of_lane", indented(of_lane, 6)},
                      {"lane", indented(lane, 6)},
                      {"declared", indented(declared, 4)},
                      {"added", indented(added, 6)},
                      {"summed", indented(summed, 4)},
                      {"value", value}});
  return made;
}

}  // namespace

KernelDraft halo_conv_kernel(const KernelSpec& spec, const HaloConv& c, const HaloTile& tile) {
  const ir::Graph& body = spec.body;
  Parameters parameters(body, spec, tensor_maps(spec, c, tile));
  const Epilogue after = epilogue(spec, c, tile.rows * 2, parameters.operands());
  const auto operand = [&](int input) { return parameters.operands()[static_cast<size_t>(input)]; };
  const int64_t works = work_count(c, tile, c.batch);
  parameters.add("works", works);
  if (after.reads_image || c.has_strips()) parameters.add("images", c.batch);
  parameters.add_outers(body, after.outers);
  const std::string residual =
      c.residual >= 0 ? fmt::format("consumer.load_operand({});\n", operand(c.residual)) : std::string();

  const std::string result = Parameters::result(c.result);
  const std::string_view header = c.has_strips() ? "conv_strips.cuh" : "conv_wgmma.cuh";
  std::string moments;
  if (c.has_moments()) {
    moments =
        fmt::format("conv::store_moments(consumer, {}, {}, static_cast<int>(images));\n",
                    Parameters::result(static_cast<size_t>(c.mean)), Parameters::result(static_cast<size_t>(c.m2)));
  }

  std::string prefetches;
  for (const std::string& map : {operand(c.image), operand(c.filter), result}) {
    prefetches += fmt::format("tensor_map_prefetch({});\n", map);
  }

  KernelDraft draft;
  draft.name = spec.name;
  draft.source = device_source({"vector.cuh", "ops.cuh", "random.cuh", header}) +
                 filled(R"(
using index_t = int;
using Layout = $layout;
using Consumer = conv::Consumer<Layout>;

extern "C" __global__ void __launch_bounds__(Layout::threads, Layout::Tile::blocks) $kernel($parameters) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if (threadIdx.x == 0) {
$prefetches  }
  conv::Shared<Layout>{shared}.init();
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (conv::is_producer<Layout>()) {
    conv::share_registers<Layout, true>();
    if (threadIdx.x == Layout::consumers * Layout::warpgroup) {
      conv::Producer<Layout>(shared, $image, $filter).produce(static_cast<int>(works)$ahead);
    }
  } else {
    conv::share_registers<Layout, false>();
    Consumer consumer(shared);
#pragma unroll 1
    for (int work = static_cast<int>(blockIdx.x); work < works; work += static_cast<int>(gridDim.x)) {
      consumer.multiply(work);
$residual$epilogue$moments      consumer.store($result);
    }
  }
}
)",
                        {{"layout", layout_type(c, tile)},
                         {"ahead", c.residual >= 0 ? ", &" + operand(c.residual) : ""},
                         {"prefetches", indented(prefetches, 4)},
                         {"parameters", parameters.text()},
                         {"image", operand(c.image)},
                         {"filter", operand(c.filter)},
                         {"residual", indented(residual, 6)},
                         {"epilogue", indented(after.code, 6)},
                         {"moments", indented(moments, 6)},
                         {"result", result}});
  draft.grid.x = block_count(c, tile, works, spec.device);
  draft.threads = threads(tile);
  draft.shared_bytes = shared_bytes(c, tile);
  draft.arguments = parameters.arguments();
  draft.tensor_maps = parameters.tensor_maps();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  return draft;
}

}  // namespace difuse::codegen::cuda
