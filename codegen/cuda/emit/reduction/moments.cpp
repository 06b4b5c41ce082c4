// channel_moments: a thread has one column of a strip's pixels in registers, for a run of channels; a block has one
// strip (or several, where channels are few) of one image for some of the channels. Every pixel is read once, so the
// elementwise results are written on the way.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda::reduction {
namespace {

using ir::Value;

constexpr int kMostLanes = 4;  ///< sixteen pixels of them are held in registers

/// Runs of channels of one block: their pixels then fill it, with few left over.
int64_t block_runs(int64_t runs) {
  constexpr int64_t kLeast = 8, kMost = 16;
  int64_t best = std::min(runs, kMost);
  const auto left_over = [&](int64_t n) { return (runs + n - 1) / n * n - runs; };
  for (int64_t n = best; n >= kLeast; --n) {
    if (left_over(n) < left_over(best)) best = n;
  }
  return best;
}

/// Whether the image is what the value is as float: storing the one or the other makes no difference.
bool is_image(const ir::Graph& body, Value v, Value image) {
  if (v == image) return true;
  const ir::Node& node = body.node(image);
  return node.op == ir::Op::cast && node.operands[0] == v && node.types[0].dtype == ir::DType::f32 &&
         ir::is_float(body.type(v).dtype);
}

}  // namespace

void emit_moments(const KernelSpec& spec, Emission& emission) {
  const ir::Graph& body = spec.body;
  const ir::Shape shape = iteration_shape(body);
  const int64_t height = shape[1], width = shape[2], channels = shape[3];
  const ir::Strips strips{height, width};
  const WholeTensors tensors = whole_tensors(body, shape);
  const int lanes =
      fitting_lanes(spec, channels, tensors.count > 8 ? 1 : std::min(kMostLanes, tensors.longest_run()), true);
  const int64_t runs = channels / lanes, columns = block_runs(runs), tiles = (runs + columns - 1) / columns;
  const int64_t strip_threads = ir::kStripWidth * columns;
  const int64_t block_strips = std::max<int64_t>(1, 128 / strip_threads), threads = strip_threads * block_strips;
  const bool ragged_rows = height > ir::kStripHeight && height % ir::kStripHeight != 0;
  const bool ragged_columns = width % ir::kStripWidth != 0;

  const int64_t tall = std::min(height, ir::kStripHeight);
  int64_t at_once = tensors.count > 4 ? 1 : 4;  // pixels whose loads come before what is computed from them
  while (tall % at_once != 0) --at_once;
  const bool ragged = ragged_rows || ragged_columns;
  const auto inside = [&](const std::string& row) {
    if (!ragged_rows) return std::string("is_column");
    return fmt::format("{} < rows{}", row, ragged_columns ? " && is_column" : "");
  };

  Parameters parameters(body, spec);
  parameters.add("strips", shape[0] * strips.count());
  BodyCode code(body, lanes, parameters.operands(), spec.alignment);
  const Lanes run = lanes == 1 ? Lanes::none : Lanes::unit;
  const auto index_of = [&](int64_t u) {
    Index index = code.at({{"n", Lanes::none}, {fmt::format("h{}", u), Lanes::none}, {"w", Lanes::none}, {"c", run}});
    index.linear = {fmt::format("at{}", u), run};
    index.has_linear = true;
    return index;
  };
  const std::string hoisted = hoist(code, body, index_of(0), shape, 1, 2, lanes).text;

  Value image;
  std::string last;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    const Value v = body.outputs()[r].value;
    if (body.node(v).op != ir::Op::channel_moments) continue;
    image = body.node(v).operands[0];
    last += fmt::format("store_run<{}>({} + own * {} + c, {});\n", lanes, Parameters::result(r), channels,
                        v.result == 0 ? "mean" : "m2");
  }
  // The image itself is written once all of it is there, so that no store stands between loads.
  std::string pixels, lane, runs_text, stores, late;
  for (int64_t u = 0; u < at_once; ++u) {
    const std::string row = fmt::format("(r + {})", u);
    pixels += fmt::format("const index_t h{} = top + {};\n", u,
                          ragged_rows ? fmt::format("({} < rows ? {} : 0)", row, row) : row);
    if (ragged) pixels += fmt::format("const bool inside{} = {};\n", u, inside(row));
    pixels += fmt::format("[[maybe_unused]] const index_t at{} = base + h{} * {};\n", u, u, width * channels);
    const Index index = index_of(u);
    const std::string x = code.value(image, index), live = ragged ? fmt::format("live && inside{}", u) : "live";
    lane += fmt::format("value[r + {}][l] = {};\n", u, ragged ? fmt::format("inside{} ? {} : 0.0f", u, x) : x);
    for (size_t r = 0; r < body.outputs().size(); ++r) {
      const Value v = body.outputs()[r].value;
      if (body.node(v).op == ir::Op::channel_moments) continue;
      const std::string to = Parameters::result(r), name = fmt::format("run{}_{}", r, u);
      const std::string declare = fmt::format("Run<{}, {}> {};\n", register_type(body.type(v).dtype), lanes, name);
      const std::string store = fmt::format("if ({}) store_run<{}>({} + at{}, {});\n", live, lanes, to, u, name);
      if (is_image(body, v, image)) {
        late += declare + fmt::format("#pragma unroll\nfor (int l = 0; l < {}; ++l) ", lanes) +
                fmt::format("{}[l] = value[r + {}][l];\n", name, u) + store;
      } else {
        runs_text += declare;
        lane += fmt::format("{}[l] = {};\n", name, code.unrounded(v, index));
        stores += store;
      }
    }
  }
  const std::string loop = fmt::format("#pragma unroll\nfor (int r = 0; r < {}; r += {}) {{\n", tall, at_once);
  if (!late.empty()) late = loop + indented(pixels + late, 2) + "}\n";
  const std::string square = ragged ? fmt::format("{} ? away * away : 0.0f", inside("r")) : "away * away";

  KernelDraft draft;
  draft.name = spec.name;
  draft.source = device_source({"vector.cuh", "ops.cuh", "moments.cuh"}) +
                 filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  __shared__ alignas(16) float sums[$threads * $lanes], squares[$threads * $lanes];
  const int run = static_cast<int>(threadIdx.x) % $runs, column = static_cast<int>(threadIdx.x) / $runs % 8;
  const long long strip_here = static_cast<long long>(blockIdx.x) * $perblock + static_cast<int>(threadIdx.x) / $perstrip;
  const int run_here = static_cast<int>(blockIdx.y) * $runs + run;
  const bool live = strip_here < strips && run_here < $allruns;
  const index_t own = static_cast<index_t>(strip_here < strips ? strip_here : strips - 1);
  const index_t c = (run_here < $allruns ? run_here : $allruns - 1) * $lanes;
  const index_t n = quotient<$count>(own), strip = remainder_of<$count>(own);
  const index_t top = quotient<$across>(strip) * 16, left = remainder_of<$across>(strip) * 8;
  const int rows = static_cast<int>($height - top < 16 ? $height - top : 16);
  const int wide = static_cast<int>($width - left < 8 ? $width - left : 8);
  const bool is_column = column < wide;
  const index_t w = left + (is_column ? column : wide - 1);
  const index_t base = n * $image + w * $channels + c;
$hoisted  float value[$tall][$lanes];
$loop$pixels$before$declare#pragma unroll
    for (int l = 0; l < $lanes; ++l) {
$lane    }
$stores  }
  const float pixels = static_cast<float>(rows * wide);
  Run<float, $lanes> down;
#pragma unroll
  for (int l = 0; l < $lanes; ++l) {
    down[l] = value[0][l];
#pragma unroll
    for (int r = 1; r < $tall; ++r) down[l] += value[r][l];
  }
  Run<float, $lanes> mean = moments::strip_sum<$runs>(down, sums);
#pragma unroll
  for (int l = 0; l < $lanes; ++l) {
    mean[l] /= pixels;
    down[l] = 0.0f;
#pragma unroll
    for (int r = 0; r < $tall; ++r) {
      const float away = value[r][l] - mean[l];
      down[l] += $square;
    }
  }
  const Run<float, $lanes> m2 = moments::strip_sum<$runs>(down, squares);
$late  if (live && column == 0) {
$last  }
}
)",
                        {{"index", index_type(is_wide(body))},
                         {"threads", std::to_string(threads)},
                         {"parameters", parameters.text()},
                         {"lanes", std::to_string(lanes)},
                         {"runs", std::to_string(columns)},
                         {"perblock", std::to_string(block_strips)},
                         {"perstrip", std::to_string(strip_threads)},
                         {"allruns", std::to_string(runs)},
                         {"count", std::to_string(strips.count())},
                         {"across", std::to_string(strips.across())},
                         {"height", std::to_string(height)},
                         {"width", std::to_string(width)},
                         {"image", std::to_string(height * width * channels)},
                         {"channels", std::to_string(channels)},
                         {"hoisted", indented(hoisted, 2)},
                         {"tall", std::to_string(tall)},
                         {"loop", indented(loop, 2)},
                         {"pixels", indented(pixels, 4)},
                         {"before", indented(code.take_before(), 4)},
                         {"declare", indented(runs_text, 4)},
                         {"lane", indented(code.take_lane() + lane, 6)},
                         {"stores", indented(stores, 4)},
                         {"square", square},
                         {"late", indented(late, 2)},
                         {"last", indented(last, 4)}});
  draft.grid.x = (shape[0] * strips.count() + block_strips - 1) / block_strips;
  draft.grid.y = tiles;
  draft.threads = static_cast<int>(threads);
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  emission.launch(std::move(draft));
}

}  // namespace difuse::codegen::cuda::reduction
