// Gradients of filters on Hopper's copy engine and warpgroup products (device/wgrad_wgmma.cuh), with what is computed
// from their value. Two kernels: the sum over pixels is divided among blocks, whose partial sums the second one adds.
// One where a block has all pixels, which are few.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/contraction/sum.h"
#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/emit/halo.h"
#include "codegen/cuda/emit/prologue.h"
#include "codegen/cuda/emit/wgrad_wgmma/problem.h"
#include "codegen/cuda/emit/wgrad_wgmma/tiles.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/preparation.h"
#include "codegen/cuda/problem_text.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"

namespace difuse::codegen::cuda {
namespace {

std::string layout_type(const HaloWgrad& w, const WgradTile& tile) {
  return fmt::format(
      "wgrad::Layout<wgrad::Problem<{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}>, "
      "wgrad::Tile<{}, {}, {}, {}, {}, {}, {}, {}, {}>>",
      w.is_line() ? 1 : w.height, w.is_line() ? 1 : w.width, w.inputs, w.outputs, w.taps, w.pad,
      w.is_float() ? "f32" : "bf16", w.first_inputs, w.image.has_prologue, w.gradient.has_prologue, w.stride, w.rows,
      w.images, tile.slots, tile.row_chunks, tile.column_chunks, tile.tap_rows, tile.blocks, w.cluster, w.abreast);
}

/// Images of one tensor, and the boxes of 128 bytes of its channels that a tile takes: so many pixels wider and higher,
/// of every `step`-th row and column.
TensorMapSpec image_map(const HaloWgrad& w, const Argument& start, int64_t height, int64_t width, int64_t channels,
                        int64_t wider, int64_t higher, int64_t step) {
  TensorMapSpec map{.start = start, .dtype = w.dtype, .steps = {1, 1, 1, 1}};
  if (w.is_line()) {
    map.extents = {channels, w.batch * height * width, 1, 1};
    map.box = {128 / ir::size_of(w.dtype), w.pixels(), 1, 1};
  } else {
    map.extents = {channels, width, height, w.batch};
    map.box = {128 / ir::size_of(w.dtype), (8 / w.abreast + (w.is_dense() ? 0 : wider)) * step,
               (w.rows + higher) * step, w.images * w.abreast};
    map.steps = {1, step, step, 1};
  }
  int64_t bytes = ir::size_of(map.dtype);
  for (size_t d = 0; d + 1 < map.extents.size(); ++d) map.strides.push_back(bytes *= map.extents[d]);
  if (w.is_dense()) put_images_before_rows(map);
  return map;
}

Parameters::Maps tensor_maps(const KernelSpec& spec, const HaloWgrad& w, const WgradTile& tile) {
  const auto operand = [&](int input) { return spec.operands[static_cast<size_t>(input)]; };
  Parameters::Maps maps;
  for (size_t i = 0; i < w.image.inputs.size(); ++i) {
    const int input = w.image.inputs[i];
    maps.operands[static_cast<size_t>(input)] =
        image_map(w, operand(input), w.image_h, w.image_w, i == 0 ? w.first_inputs : w.inputs - w.first_inputs,
                  w.taps - 1, (tile.tap_rows - 1) / w.stride, w.stride);
  }
  const int gradient = w.gradient.inputs[0];
  maps.operands[static_cast<size_t>(gradient)] = image_map(w, operand(gradient), w.height, w.width, w.outputs, 0, 0, 1);
  return maps;
}

/// The sums of one block of the result, where they are whole, into the results.
EpilogueCode whole_store(const KernelSpec& spec, const HaloWgrad& w, const std::vector<std::string>& operands) {
  EpilogueCode code = epilogue_code(spec, w.value, "sum[l]", 4, operands, {}, "element", wanted_outputs(spec));
  code.text = filled(R"(#pragma unroll
for (int i = 0; i < Layout::thread_runs; ++i) {
  const Run<f32, 4> sum = consumer.run(i);
  // Beside three consumers there is no register for what all runs' places have in common.
  constexpr bool is_full = Layout::consumers > 2;
  const unsigned thread = is_full ? computed_here(threadIdx.x) : threadIdx.x;
  const unsigned of_block = is_full ? computed_here(block) : block;
  const index_t element = wgrad::element_of(wgrad::sizes_of<Layout>(), of_block, i * Layout::owners + thread);
  if (element < 0) continue;
$epilogue}
)",
                     {{"epilogue", indented(code.text, 2)}});
  return code;
}

/// What the threads that are no consumers do: statements before the first block of the result, and for each.
struct OtherRoles {
  std::string before, work;
};

/// `maps`: the tensor maps, as Producer takes them.
OtherRoles other_roles(const KernelSpec& spec, const HaloWgrad& w, const std::string& maps,
                       const std::vector<std::string>& operands) {
  const std::string give = "wgrad::share_registers<Layout, false>();\n";
  if (w.has_prologue()) {
    const ir::Value value = only_contraction(spec.body);
    std::string code, sides;
    const auto add = [&](const ImageOperand& image, size_t operand, const std::string& suffix) {
      sides += ", ";
      if (!image.has_prologue) {
        sides += "wgrad::NoSide{}";
        return;
      }
      // Inputs are numbered as in the whole body; nodes are not.
      const ir::Value v = spec.body.node(value).operands[operand];
      code += prologue_code(spec, *image_operand(spec.body, value, v), v, operands, "", suffix);
      sides += filled("wgrad::side(other$suffix, channels_at$suffix, transformed$suffix)", {{"suffix", suffix}});
    };
    add(w.image, 0, "_x");
    add(w.gradient, 1, "_dy");
    return {give + code +
                fmt::format("wgrad::Transformer<Layout, {}> transformer(shared, {});\n", w.image_h * w.image_w, maps),
            fmt::format("transformer.transform(units.own_part<kCluster>(), static_cast<int>(images){});\n", sides)};
  }
  OtherRoles roles{fmt::format("wgrad::Producer<Layout> producer(shared, {});\n", maps),
                   "if (threadIdx.x == Layout::owners) producer.load(units.own_part<kCluster>());\n"};
  if (w.is_float()) {
    roles.before = give + roles.before +
                   "const int warp = (static_cast<int>(threadIdx.x) - Layout::owners) / 32;\n"
                   "wgrad::Turner<Layout> turner(shared, warp - 1);\n";
    roles.work = "if (warp > 0) turner.turn(units.own_part<kCluster>().count);\n" + roles.work;
  }
  return roles;
}

/// `spec`: where the sums are never whole, product_spec's; otherwise that of all results.
KernelDraft product_kernel(const KernelSpec& spec, const HaloWgrad& w, const WgradTile& tile,
                           const Argument& partials) {
  Parameters parameters(spec.body, spec, tensor_maps(spec, w, tile));
  parameters.add("tiles", w.tiles());
  parameters.add("groups", group_count(w, tile, spec.device));
  if (w.has_prologue()) parameters.add("images", w.batch);
  std::string store = "consumer.store(own + static_cast<long long>(block) * Layout::block_sums);\n";
  if (w.is_whole) {
    const EpilogueCode whole = whole_store(spec, w, parameters.operands());
    parameters.add("partials", "f32*", partials);
    parameters.add_outers(spec.body, whole.outers);
    store = fmt::format("if (groups == Layout::blocks) {{\n{}}} else {{\n{}}}\n", indented(whole.text, 2),
                        indented(store, 2));
  }

  std::string maps, prefetches;
  const auto add_map = [&](int input) {
    const std::string& map = parameters.operands()[static_cast<size_t>(input)];
    maps += fmt::format("{}{}", maps.empty() ? "" : ", ", map);
    prefetches += fmt::format("tensor_map_prefetch({});\n", map);
  };
  add_map(w.image.inputs[0]);
  add_map(w.gradient.inputs[0]);
  if (w.image.inputs.size() > 1) add_map(w.image.inputs[1]);
  const OtherRoles roles = other_roles(spec, w, maps, parameters.operands());
  KernelDraft draft;
  draft.name = spec.name;
  draft.source =
      device_source(
          {"vector.cuh", "ops.cuh", "random.cuh", w.has_prologue() ? "wgrad_prologue.cuh" : "wgrad_wgmma.cuh"}) +
      filled(R"(
using index_t = int;
using Layout = $layout;

extern "C" __global__ void __launch_bounds__(Layout::threads, Layout::Tile::blocks) $cluster$kernel($parameters) {
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr int kCluster = Layout::Tile::cluster;
  if (threadIdx.x == Layout::owners) {
$prefetches  }
  wgrad::Shared<Layout>{shared}.init();
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int group = static_cast<int>(blockIdx.x) / kCluster;
  if (threadIdx.x >= Layout::owners) {
$before    wgrad::for_each_block(group, groups, Layout::blocks, static_cast<int>(tiles), [&](const wgrad::Units& units) {
$work      if constexpr (kCluster > 1) wgrad::wait_for_exchange<Layout>();
    });
  } else {
$take    wgrad::Consumer<Layout> consumer(shared);
    f32* const own = wgrad::partials_of<Layout>($partials, group);
    wgrad::for_each_block(group, groups, Layout::blocks, static_cast<int>(tiles), [&](const wgrad::Units& units) {
      const int block = units.block;
      consumer.multiply(units.own_part<kCluster>().count);
      if constexpr (kCluster > 1) consumer.exchange();
$store    });
  }
}
)",
             {{"layout", layout_type(w, tile)},
              {"parameters", parameters.text()},
              {"prefetches", indented(prefetches, 4)},
              {"before", indented(roles.before, 4)},
              {"work", indented(roles.work, 6)},
              {"take", w.is_float() || w.has_prologue() ? "    wgrad::share_registers<Layout, true>();\n" : ""},
              {"cluster", w.cluster > 1 ? fmt::format("__cluster_dims__({}, 1, 1) ", w.cluster) : ""},
              {"partials", w.is_whole ? "partials" : Parameters::result(0)},
              {"store", indented(store, 6)}});
  draft.grid.x = group_count(w, tile, spec.device) * w.cluster;
  draft.threads = threads(w, tile);
  draft.shared_bytes = shared_bytes(w, tile);
  draft.arguments = parameters.arguments();
  draft.tensor_maps = parameters.tensor_maps();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  draft.choice = 0;
  return draft;
}

/// Blocks of partial sums: one for each group, and one more for each block of the result that begins inside a group.
int64_t partial_blocks(const HaloWgrad& w, const WgradTile& tile, const ir::DeviceSpec& device) {
  return group_count(w, tile, device) + block_count(w, tile) - 1;
}

PartialSums partial_sums(const HaloWgrad& w, const WgradTile& tile, const ir::DeviceSpec& device) {
  // A run's loads follow one another only where there are enough of them in flight: several threads share it where the
  // result is small and its partial sums are many.
  constexpr int64_t kEnoughThreads = 150000, kLeastPartials = 4;
  constexpr int kMostParts = 8;
  // So many runs have most of their place in common, which takes longer to find than they take to add.
  constexpr int kEach = 4;
  PartialSums sums{.runs = block_count(w, tile) * block_sums(w, tile) / 4 / kEach, .each = kEach, .parts = 1};
  // No more than one where blocks are a choice: parts are the order of the sum.
  const int64_t partials = w.is_whole ? 1 : device.processors / w.cluster / block_count(w, tile);
  while (sums.parts < kMostParts && 2 * sums.parts * sums.runs * kEach <= kEnoughThreads &&
         2 * sums.parts * kLeastPartials <= partials) {
    sums.parts *= 2;
  }
  sums.headers = {"wgrad_wgmma.cuh"};
  // Sizes are arguments, so that the sums of all filters are one kernel.
  const int64_t owners = 128 * consumers(w, tile), block_runs = block_sums(w, tile) / 4;
  sums.numbers = {{"tiles", w.tiles()},
                  {"groups", group_count(w, tile, device)},
                  {"filter", w.taps},
                  {"outputs", w.outputs},
                  {"inputs", w.inputs},
                  {"owners", owners},
                  {"block_runs", block_runs},
                  {"blocks_y", ceil_div(w.outputs, 64 * tile.row_chunks)},
                  {"blocks_x", ceil_div(w.inputs, 64 * tile.column_chunks)},
                  {"block_outputs", 64 * tile.row_chunks},
                  {"block_inputs", 64 * tile.column_chunks},
                  {"tap_rows", tile.tap_rows},
                  {"is_turned", w.is_float() ? 1 : 0}};
  sums.place = R"(const wgrad::Sizes of = {
    static_cast<int>(filter), static_cast<int>(outputs), static_cast<int>(inputs), static_cast<int>(owners),
    static_cast<int>(block_runs), static_cast<int>(blocks_y), static_cast<int>(blocks_x),
    static_cast<int>(block_outputs), static_cast<int>(block_inputs), static_cast<int>(tap_rows),
    static_cast<int>(is_turned)};
// A thread has runs i to i + 3 of one of the kernel's threads.
const unsigned threads = static_cast<unsigned>(of.block_runs) / 4, row = static_cast<unsigned>(of.owners);
const unsigned block = static_cast<unsigned>(run) / threads, thread = static_cast<unsigned>(run) % threads;
const unsigned first = thread / row * 4 * row + thread % row;
const wgrad::RunPlace place = wgrad::place_of(of, block, first);
const auto element_of_run = [&](int e) { return place.element(of, e); };
const int own = place.element(of) < 0 ? 0 : 4;
const wgrad::Groups from = wgrad::groups_of(block, of.blocks_y * of.blocks_x * (of.filter / of.tap_rows), tiles, groups);
const long long stride = 4ll * of.block_runs;
const f32* const at = partials + (from.first + static_cast<int>(block)) * stride + first * 4;
const int step = 4 * of.owners;
const int count = from.count;
)";
  sums.bytes = partial_blocks(w, tile, device) * block_sums(w, tile) * 4;
  return sums;
}

}  // namespace

bool accepts_wgrad_wgmma(const KernelSpec& spec) {
  const auto w = halo_wgrad(spec);
  if (!w) return false;
  // The products of all architectures share the sum of a small result among all processors: with a stride 64 to 64
  // channels take them 7.4 microseconds, for 7x7 pixels of 128 images, and here without one 12.8.
  constexpr int64_t kLeastStridedBlocks = 4;
  if (w->stride > 1 && ceil_div(w->inputs, 64) * ceil_div(w->outputs, 64) < kLeastStridedBlocks) return false;
  // Channels are computed in 64s. Where most of them would be none, those products are faster, too.
  constexpr double kLeastUse = 0.4;
  const auto use = [](int64_t channels) {
    return static_cast<double>(channels) / static_cast<double>(ceil_div(channels, 64) * 64);
  };
  return use(w->inputs) * use(w->outputs) >= kLeastUse;
}

std::vector<TileChoice> wgrad_wgmma_choices(const KernelSpec& spec) {
  const HaloWgrad w = *halo_wgrad(spec);
  const ir::Graph product = part_of(spec.body, {w.value});
  TileChoice choice;
  choice.problem =
      problem_text(w.is_whole ? spec : product_spec(spec, product, {Argument::Kind::workspace, 0}), geometry(w));
  choice.batch = w.batch;
  const std::vector<WgradTile> tiles = candidates(w, spec.device);
  if (tiles.size() == 1) return {};  // Two of floats' tiles with a halo are all that fits.
  for (const WgradTile& tile : tiles) choice.tiles.push_back(to_string(tile));
  if (!w.is_whole) return {choice};
  choice.at_batch.resize(tiles.size());
  std::iota(choice.at_batch.begin(), choice.at_batch.end(), size_t{0});
  std::ranges::stable_sort(choice.at_batch, {}, [&](size_t i) { return estimated_cycles(w, tiles[i], spec.device); });
  return {choice};
}

void emit_wgrad_wgmma(const KernelSpec& spec, Emission& emission) {
  const HaloWgrad w = *halo_wgrad(spec);
  const WgradTile tile = candidates(w, spec.device).at(spec.tile(0));
  if (is_direct(w, tile, spec.device)) {
    emission.launch(product_kernel(spec, w, tile, Argument::number(0)));
    Preparation larger_batch(emission);
    emit_sum(spec, w.value, Argument::number(0), partial_sums(w, tile, spec.device), larger_batch);
    return;
  }
  const Argument partials = emission.workspace(partial_blocks(w, tile, spec.device) * block_sums(w, tile) * 4);
  const ir::Graph product = part_of(spec.body, {w.value});
  emission.launch(product_kernel(w.is_whole ? spec : product_spec(spec, product, partials), w, tile, partials));
  emit_sum(spec, w.value, partials, partial_sums(w, tile, spec.device), emission);
}

}  // namespace difuse::codegen::cuda
