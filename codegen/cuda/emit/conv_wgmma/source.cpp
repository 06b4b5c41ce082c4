#include "codegen/cuda/emit/conv_wgmma/source.h"

#include <fmt/format.h>

#include <utility>

#include "codegen/cuda/emit/halo.h"
#include "codegen/cuda/emit/prologue.h"
#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/parameters.h"

namespace difuse::codegen::cuda {
namespace {

/// A dense tensor whose dimensions are listed outermost first, and a box of it.
TensorMapSpec dense_map(ir::DType dtype, const Argument& start, const ir::Shape& shape, std::vector<int64_t> box) {
  TensorMapSpec map{.start = start, .dtype = dtype, .extents = {shape.rbegin(), shape.rend()}, .box = std::move(box)};
  int64_t bytes = ir::size_of(map.dtype);
  for (size_t d = 0; d + 1 < map.extents.size(); ++d) map.strides.push_back(bytes *= map.extents[d]);
  map.steps.assign(map.extents.size(), 1);
  return map;
}

/// Of a part of the channels of images, or of one line of pixels.
TensorMapSpec pixel_map(const HaloConv& c, const HaloTile& tile, const Argument& start, const ir::Shape& shape,
                        int64_t wide, int64_t high, int64_t step_x = 1, int64_t step_y = 1) {
  if (c.is_line()) {
    return dense_map(c.dtype, start, {1, 1, shape[0] * shape[1] * shape[2], shape[3]},
                     {c.chunk(), tile.pixels(), 1, 1});
  }
  TensorMapSpec map = dense_map(c.dtype, start, shape, {c.chunk(), wide * step_x, high * step_y, tile.all_images()});
  map.steps = {1, step_x, step_y, 1};
  if (tile.is_dense()) put_images_before_rows(map);
  return map;
}

TensorMapSpec image_map(const HaloConv& c, const HaloTile& tile, const Argument& start, int64_t channels) {
  const int64_t wide = tile.width() + (tile.is_dense() ? 0 : (c.taps - 1) / c.stride);
  return pixel_map(c, tile, start, {c.batch, c.image_h, c.image_w, channels}, wide, box_rows(c, tile), c.stride,
                   tile.is_dense() ? c.stride : 1);
}

/// Of the result, and of what is read like it: a part of its channels.
TensorMapSpec result_map(const HaloConv& c, const HaloTile& tile, const Argument& start) {
  return pixel_map(c, tile, start, {c.batch, c.height, c.width, c.outputs}, tile.width(), tile.rows);
}
TensorMapSpec mask_map(const HaloConv& c, const HaloTile& tile, const Argument& start) {
  TensorMapSpec map = result_map(c, tile, start);
  map.dtype = ir::DType::u8;
  for (int64_t& stride : map.strides) stride /= ir::size_of(c.dtype);
  return map;
}

Parameters::Maps tensor_maps(const KernelSpec& spec, const HaloConv& c, const HaloTile& tile) {
  const auto operand = [&](int input) { return spec.operands[static_cast<size_t>(input)]; };
  Parameters::Maps maps;
  for (size_t i = 0; i < c.image.inputs.size(); ++i) {
    const int input = c.image.inputs[i];
    maps.operands[static_cast<size_t>(input)] =
        image_map(c, tile, operand(input), i == 0 ? c.first_inputs : c.inputs - c.first_inputs);
  }
  const auto [slow, fast] = c.is_turned ? std::pair(c.inputs, c.outputs) : std::pair(c.outputs, c.inputs);
  maps.operands[static_cast<size_t>(c.filter)] =
      dense_map(c.dtype, operand(c.filter), {slow, c.taps * c.taps, fast}, {c.chunk(), 1, 64});
  if (c.residual >= 0) {
    maps.operands[static_cast<size_t>(c.residual)] = result_map(c, tile, operand(c.residual));
  }
  if (c.mask >= 0) maps.operands[static_cast<size_t>(c.mask)] = mask_map(c, tile, operand(c.mask));
  maps.results[c.result] = result_map(c, tile, spec.results[c.result]);
  return maps;
}

std::string layout_type(const HaloConv& c, const HaloTile& tile) {
  return fmt::format(
      "conv::Layout<conv::Problem<{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}>, "
      "conv::Tile<{}, {}, {}, {}, {}, {}, {}, {}, {}>>",
      c.is_line() ? 1 : c.height, c.is_line() ? 1 : c.width, c.inputs, c.outputs, c.taps, c.pad, c.is_turned,
      c.residual >= 0, c.has_prologue(), c.first_inputs, c.finished, c.has_image_sums,
      c.dtype == ir::DType::f32 ? "f32" : "bf16", c.stride, c.mask >= 0, tile.rows, tile.images, tile.halo_slots,
      tile.tap_slots, tile.blocks, tile.consumers, tile.shares_halo, tile.abreast, transformers(c, tile));
}

/// What is done with the sums. Operands are read at coordinates inside the result, though the tile may reach beyond it.
struct Epilogue {
  std::string loads = {};    ///< Before the products: what depends on the image and the channel alone.
  std::string code = {};     ///< After them.
  std::string results = {};  ///< After the tile is on its way: sums.
  bool reads_image = false;
  std::set<int> outers = {};
};

/// For each image of the tile and each of a thread's two channels.
std::string for_channels(const std::string& statements) {
  if (statements.empty()) return {};
  return filled(R"(#pragma unroll
for (int image = 0; image < Layout::Tile::images; ++image) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
$statements  }
}
)",
                {{"statements", indented(statements, 4)}});
}

/// The cast to bf16 that all users of the convolution's value read; none where another reads it too, or only the
/// result.
ir::Value only_rounding(const ir::Graph& body, const HaloConv& c) {
  const std::vector<int> users = body.users()[static_cast<size_t>(c.value.node)];
  if (users.size() != 1 || body.node(users[0]).op != ir::Op::cast) return {};
  const ir::Value rounded{users[0], 0};
  const bool has_users = !body.users()[static_cast<size_t>(rounded.node)].empty();
  return has_users && body.type(rounded).dtype == ir::DType::bf16 ? rounded : ir::Value{};
}

Epilogue epilogue(const KernelSpec& spec, const HaloConv& c, const std::vector<std::string>& operands) {
  const ir::Graph& body = spec.body;
  // Of one output channel in two rows of an image.
  constexpr int kLanes = 4;
  const std::string held = "consumer.sum(image, half, l)";
  BodyCode code(body, kLanes, operands, spec.alignment);
  code.keep_shared_loads();
  const ir::Value rounded = only_rounding(body, c);
  code.bind(rounded.valid() ? rounded : c.value, held);
  if (c.residual >= 0) code.bind(body.find_input(text(c.residual)), "consumer.operand(image, half, l)");
  if (c.mask >= 0) code.bind(body.find_input(text(c.mask)), "consumer.mask(image, half, l)");
  const Index at =
      code.at({{"at_image", Lanes::none}, {"at_y", Lanes::any}, {"at_x", Lanes::any}, {"channel", Lanes::none}});
  const ir::Value result = body.outputs()[c.result].value;
  const std::string value = result == rounded ? held : code.unrounded(result, at);
  const bool is_kept = value == held;
  std::string declared, added, summed;
  for (const HaloConv::Sum& sum : c.sums) {
    const std::string to = Parameters::result(sum.output);
    declared += fmt::format("conv::StripSums<Consumer> sum_{}[Layout::Tile::images][2];\n", to);
    added += fmt::format("sum_{}[image][half].add(consumer, l, {});\n", to, code.value(sum.value, at));
    summed += fmt::format("sum_{}[image][half].store(consumer, image, half, {}, static_cast<int>(images));\n", to, to);
  }
  std::string members, values, loaded, loads;
  for (const BodyCode::SharedLoad& load : code.shared_loads()) {
    members += fmt::format("  {} {};\n", load.type, load.name);
    values += fmt::format("{}{}", values.empty() ? "" : ", ", load.name);
    loaded += fmt::format("const {} {} = loaded[image][half].{};\n", load.type, load.name, load.name);
    loads += fmt::format("const {} {} = {};\n", load.type, load.name, load.expression);
  }
  const std::string before = loaded + code.take_before(), lane = code.take_lane();
  Epilogue made{.outers = code.outers()};
  const auto coordinates = [&](const std::string& statements) {
    const auto uses = [&](const char* name) { return statements.find(name) != std::string::npos; };
    std::string of_half;
    if (uses("channel"))
      of_half += fmt::format("const index_t channel = min(consumer.channel(half), {});\n", c.outputs - 1);
    if (uses("at_image")) {
      of_half += "const index_t at_image = min(consumer.image(image), static_cast<index_t>(images) - 1);\n";
      made.reads_image = true;
    }
    return of_half;
  };
  if (!members.empty()) {
    const std::string statements = code.shared_indices() + loads;
    made.loads =
        fmt::format("struct {{\n{}}} loaded[Layout::Tile::images][2];\n", members) +
        for_channels(coordinates(statements) + statements + fmt::format("loaded[image][half] = {{{}}};\n", values));
  }
  made.results = for_channels(summed);
  const auto uses = [&](const char* name) { return lane.find(name) != std::string::npos; };
  std::string of_lane;
  if (uses("at_y")) of_lane += fmt::format("const index_t at_y = min(consumer.y(l), {});\n", c.height - 1);
  if (uses("at_x")) of_lane += fmt::format("const index_t at_x = min(consumer.x(l), {});\n", c.width - 1);
  std::string of_rows, kept;
  if (c.residual >= 0) of_rows += "    consumer.read_operand(image, row);\n";
  if (rounded.valid()) of_rows += "    consumer.round_rows(image, row);\n";
  if (!is_kept) kept = fmt::format("{} = {};\n", held, value);
  if (!lane.empty() || !added.empty() || !is_kept) {
    of_rows += filled(R"(#pragma unroll
    for (int half = 0; half < 2; ++half) {
$of_half$before#pragma unroll
      for (int l = 2 * row; l < 2 * row + 4; ++l) {
$of_lane$lane$added$kept      }
    }
)",
                      {{"of_half", indented(coordinates(before + lane), 6)},
                       {"before", indented(before, 6)},
                       {"of_lane", indented(of_lane, 8)},
                       {"lane", indented(lane, 8)},
                       {"added", indented(added, 8)},
                       {"kept", indented(kept, 8)}});
  }
  // Statistics are taken from what was stored.
  if (c.has_moments() && c.dtype == ir::DType::bf16) of_rows += "    consumer.round_rows(image, row);\n";
  made.code = declared + filled(R"(consumer.start_rows();
#pragma unroll
for (int image = 0; image < Layout::Tile::images; ++image) {
#pragma unroll
  for (int row = 0; row < Layout::Tile::rows; row += 2) {
$of_rows    consumer.stage_rows(image, row);
  }
}
)",
                                {{"of_rows", of_rows}});
  return made;
}

}  // namespace

KernelDraft halo_conv_kernel(const KernelSpec& spec, const HaloConv& c, const HaloTile& tile,
                             const std::optional<Argument>& image_sums) {
  const ir::Graph& body = spec.body;
  Parameters parameters(body, spec, tensor_maps(spec, c, tile));
  const Epilogue after = epilogue(spec, c, parameters.operands());
  const auto operand = [&](int input) { return parameters.operands()[static_cast<size_t>(input)]; };
  const int64_t works = work_count(c, tile, c.batch);
  parameters.add("works", works);
  if (image_sums) parameters.add("image_sums", "f32*", *image_sums);
  if (c.has_finish()) parameters.add("share", work_share(c, tile, works, spec.device));
  if (after.reads_image || c.has_strips() || c.has_prologue()) parameters.add("images", c.batch);
  parameters.add_outers(body, after.outers);

  const std::string result = Parameters::result(c.result);
  const std::string_view header = c.has_strips() ? "conv_strips.cuh" : "conv_wgmma.cuh";
  std::string moments;
  if (c.has_moments()) {
    moments =
        fmt::format("conv::store_moments(consumer, {}, {}, static_cast<int>(images));\n",
                    Parameters::result(static_cast<size_t>(c.mean)), Parameters::result(static_cast<size_t>(c.m2)));
  }

  const std::string_view turns =
      c.has_finish() ? "conv::works_in_a_row<Layout>(static_cast<int>(works), gridDim.x, static_cast<int>(share))"
                     : "conv::works_in_turns(static_cast<int>(works), gridDim.x)";
  const bool has_two = c.image.inputs.size() > 1;
  std::vector<std::string> maps = {operand(c.image.inputs[0]), operand(c.filter), result};
  if (has_two) maps.push_back(operand(c.image.inputs[1]));
  if (c.residual >= 0) maps.push_back(operand(c.residual));
  if (c.mask >= 0) maps.push_back(operand(c.mask));
  std::string more;
  if (c.residual >= 0 || has_two) more = c.residual >= 0 ? ", &" + operand(c.residual) : ", nullptr";
  if (has_two || c.mask >= 0) more += has_two ? ", &" + operand(c.image.inputs[1]) : ", nullptr";
  if (c.mask >= 0) more += ", &" + operand(c.mask);
  std::string prefetches;
  for (const std::string& map : maps) prefetches += fmt::format("tensor_map_prefetch({});\n", map);

  std::string fetch;
  if (tile.shares_halo && c.residual >= 0) {
    fetch =
        fmt::format("consumer.fetch_operand({}{});\n", operand(c.residual), c.mask >= 0 ? ", &" + operand(c.mask) : "");
  }

  std::vector<std::string_view> headers = {"vector.cuh", "ops.cuh", "random.cuh", header};
  std::string transformer;
  if (c.has_prologue()) {
    headers.push_back("conv_prologue.cuh");
    std::string declarations, finish, finishers;
    if (c.has_finish()) {
      declarations = spec.preamble->declarations;
      finish = spec.preamble->text, finishers = ", finish, store";
    }
    transformer = filled(R"(} else if (conv::is_transformer<Layout>()) {
$code  conv::Transformer<Layout>(shared).transform(of_block, static_cast<int>(images), other, $sums, channels_at, transformed$finishers);
)",
                         {{"code", indented(finish + prologue_code(spec, c.image, body.node(c.value).operands[0],
                                                                   parameters.operands(), declarations),
                                            2)},
                          {"sums", image_sums ? "image_sums" : "nullptr"},
                          {"finishers", finishers}});
  }

  KernelDraft draft;
  draft.name = spec.name;
  draft.source = device_source(with_preamble(headers, spec)) + filled(
                                                                   R"(
using index_t = int;
using Layout = $layout;
using Consumer = conv::Consumer<Layout>;

extern "C" __global__ void __launch_bounds__(Layout::threads, Layout::Tile::blocks) $kernel($parameters) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if (threadIdx.x == 0) {
$prefetches  }
  conv::Shared<Layout>{shared}.init();
  const conv::Works of_block = $turns;
  const bool has_begun = may_read_early();
  if (has_begun && threadIdx.x == Layout::producer_thread) {
    conv::Producer<Layout>(shared, $image, $filter$more).begin(of_block);
  }
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (conv::is_producer<Layout>()) {
    conv::share_registers<Layout, true>();
    if (threadIdx.x == Layout::producer_thread) {
      conv::Producer<Layout>(shared, $image, $filter$more).produce(of_block, has_begun);
    }
$transformer  } else {
    conv::share_registers<Layout, false>();
    Consumer consumer(shared);
#pragma unroll 1
    for (int work = of_block.begin; work < of_block.end; work += of_block.step) {
      consumer.start(work);
$fetch$loads      consumer.multiply();
$epilogue      consumer.store($result);
$results      consumer.finish();
    }
    consumer.leave();
  }
}
)",
                                                                   {{"layout", layout_type(c, tile)},
                                                                    {"turns", std::string(turns)},
                                                                    {"more", more},
                                                                    {"prefetches", indented(prefetches, 4)},
                                                                    {"parameters", parameters.text()},
                                                                    {"image", operand(c.image.inputs[0])},
                                                                    {"filter", operand(c.filter)},
                                                                    {"transformer", indented(transformer, 2)},
                                                                    {"fetch", indented(fetch, 6)},
                                                                    {"loads", indented(after.loads, 6)},
                                                                    {"epilogue", indented(after.code, 6)},
                                                                    {"results", indented(after.results + moments, 6)},
                                                                    {"result", result}});
  draft.grid.x = block_count(c, tile, works, spec.device);
  draft.threads = threads(c, tile);
  draft.shared_bytes = shared_bytes(c, tile);
  draft.arguments = parameters.arguments();
  draft.tensor_maps = parameters.tensor_maps();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  draft.early = spec.operands[static_cast<size_t>(c.filter)];
  return draft;
}

}  // namespace difuse::codegen::cuda
