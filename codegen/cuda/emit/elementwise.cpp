// Bodies whose every element is computed from elements of the operands: pointwise clusters, data movement, random
// draws. A thread computes one run of consecutive elements of all results; or, where operands are repeated along rows
// (a normalise's statistics and parameters along the pixels), the same run of several rows, and reads those once.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/collapse.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/cuda/source/row_loop.h"
#include "ir/error.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 128;        ///< Where threads have several rows each: small blocks end evenly.
constexpr int64_t kBusyThreads = 1024;  ///< So many of an SM have enough loads in flight; what is more has rows each.
constexpr int64_t kFewRows = 16;        ///< Of an image: fewer are not worth a block.
constexpr int64_t kMostRows = 16;       ///< Of one thread: by then, what it reads once is a small part.
constexpr size_t kManyTensors = 8;      ///< From here on, long runs of every tensor would need too many registers.

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

/// Dimensions of the results' shape, from `begin` up to `end`.
struct Rows {
  size_t begin = 0, end = 0;
};

/// The dimensions along which the most operands with a run of their own are repeated, and of those the longest; none
/// where nothing is repeated so, or not often. The outermost extent, which may be the batch, does not matter.
Rows repeated_rows(const ir::Graph& body, const ir::Shape& shape) {
  for (const ir::NamedValue& n : body.outputs()) {
    if (body.type(n.value).shape != shape) return {};
  }
  const auto repeated = [&](size_t begin, size_t end) {
    int count = 0;
    for (int id = 0; id < body.size(); ++id) {
      const ir::Node& node = body.node(id);
      if (node.op != ir::Op::broadcast || node.types[0].shape != shape) continue;
      const auto& dims = node.as<ir::BroadcastAttrs>().dims;
      const bool has_run = !dims.empty() && static_cast<size_t>(dims.back()) + 1 == shape.size();
      const auto is_row = [&](int64_t d) { return static_cast<size_t>(d) >= begin && static_cast<size_t>(d) < end; };
      if (has_run && std::ranges::none_of(dims, is_row)) ++count;
    }
    return count;
  };
  Rows best;
  std::pair<int, int64_t> most{0, 0};  // operands repeated, rows
  for (size_t begin = 0; begin < shape.size(); ++begin) {
    int64_t rows = 1;
    for (size_t end = begin + 1; end < shape.size(); ++end) {
      if (end > 1) rows *= shape[end - 1];
      const std::pair found{repeated(begin, end), rows};
      if ((begin > 0 && rows < kFewRows) || found.first == 0 || found <= most) continue;
      most = found;
      best = {begin, end};
    }
  }
  return best;
}

/// Rows of one thread: one where otherwise the card would not be busy. A preamble that more rows share is worth fewer
/// threads.
int64_t rows_per_thread(int64_t runs, int at_once, const KernelSpec& spec) {
  const int64_t threads = spec.preamble == nullptr ? kBusyThreads : kBusyThreads / 2;
  const int64_t rows = ceil_div(runs, spec.device.processors * threads);
  return rows == 1 ? 1 : std::min(kMostRows, ceil_div(rows, at_once) * at_once);
}

void emit_repeated(const KernelSpec& spec, const ir::Graph& body, const Rows& at, Emission& emission) {
  const ir::Shape& shape = body.type(body.outputs()[0].value).shape;
  const auto extent = [&](size_t begin, size_t end) {
    return ir::element_count(
        {shape.begin() + static_cast<ptrdiff_t>(begin), shape.begin() + static_cast<ptrdiff_t>(end)});
  };
  const int lanes = choose_lanes(body, spec);
  const WholeTensors tensors = whole_tensors(body, shape);
  const int64_t outer = extent(0, at.begin), rows = extent(at.begin, at.end), inner = extent(at.end, shape.size());
  const int64_t runs = inner / lanes;
  const int64_t columns = block_columns(runs, std::max<int64_t>(8, 128 / (lanes * tensors.narrowest)), spec);
  const int64_t tiles = ceil_div(runs, columns);
  int64_t height = std::max<int64_t>(1, kRowThreads / columns);
  // Fewer where an image has no more; but the batch may be among the rows, and a preamble's threads are whole warps.
  if (at.begin > 0 && spec.preamble == nullptr) height = std::min(height, rows);
  const int at_once = tensors.runs_at_once(lanes);
  const int64_t chunk = height * rows_per_thread(outer * rows * runs, at_once, spec);

  std::vector<size_t> stored;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    if (spec.wanted(r)) stored.push_back(r);
  }
  Parameters parameters(body, spec);
  const RowCode code = row_code({body, shape, at.begin, at.end, lanes, at_once, height, inner}, spec, stored,
                                [](BodyCode&, const Index&) { return std::string(); });
  parameters.add("rows", rows);
  parameters.add("chunk", chunk);
  parameters.add("chunks", ceil_div(rows, chunk));
  parameters.add_outers(body, code.outers);

  const std::string preamble =
      preamble_text(spec, "o", columns * height,
                    fmt::format("blockIdx.x % {} == 0 && part % static_cast<unsigned>(chunks) == 0", tiles));
  const bool ragged = runs % columns != 0;
  KernelDraft draft;
  draft.name = spec.name;
  draft.source = device_source(with_preamble({"vector.cuh", "ops.cuh", "random.cuh"}, spec)) +
                 filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, $blocks) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const unsigned part = blockIdx.x / $tiles;
  const index_t o = static_cast<index_t>(part / static_cast<unsigned>(chunks));
  const int run = static_cast<int>(blockIdx.x % $tiles) * $columns + static_cast<int>(threadIdx.x) % $columns;
  const index_t i = $clamped * $lanes;
  const index_t begin = static_cast<index_t>(part % static_cast<unsigned>(chunks)) * static_cast<index_t>(chunk);
  const index_t past = begin + static_cast<index_t>(chunk), all = static_cast<index_t>(rows);
  const index_t end = $inside(past < all ? past : all), base = o * all * $inner + i;
  index_t r = begin + static_cast<int>(threadIdx.x) / $columns;
$loads$preamble$hoisted$loops}
)",
                        {{"index", index_type(needs_wide_index(body, /*spare=*/1 << 24))},
                         {"threads", std::to_string(columns * height)},
                         {"blocks", std::to_string(tensors.blocks_at_once(columns * height))},
                         {"parameters", parameters.text()},
                         {"tiles", std::to_string(tiles)},
                         {"columns", std::to_string(columns)},
                         {"preamble", indented(preamble, 2)},
                         {"clamped", ragged ? fmt::format("(run < {} ? run : {})", runs, runs - 1) : "run"},
                         {"inside", ragged ? fmt::format("run >= {} ? begin : ", runs) : ""},
                         {"lanes", std::to_string(lanes)},
                         {"inner", std::to_string(inner)},
                         {"loads", indented(code.loads, 2)},
                         {"hoisted", indented(code.hoisted, 2)},
                         {"loops", indented(code.loops, 2)}});
  draft.grid.x = outer * ceil_div(rows, chunk) * tiles;
  draft.threads = static_cast<int>(columns * height);
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  emission.launch(std::move(draft));
}

/// Which run a thread has.
struct Place {
  std::string text;  ///< Declares `first`, its first element.
  int64_t blocks;
};
Place place_of(const KernelSpec& spec, const ir::Type& type, int lanes) {
  const std::vector<std::pair<std::string_view, std::string>> sizes = {{"threads", text(kThreads)},
                                                                       {"lanes", text(lanes)}};
  if (spec.preamble == nullptr) {
    return {filled(R"(const long long first = (static_cast<long long>(blockIdx.x) * $threads + threadIdx.x) * $lanes;
if (first >= count) return;
)",
                   sizes),
            ceil_div(type.elements(), kThreads * lanes)};
  }
  const int64_t each = type.elements() / type.shape[0], blocks = ceil_div(each, kThreads * lanes);
  std::string place =
      fmt::format("const unsigned image = blockIdx.x / {}, part = blockIdx.x % {};\n", blocks, blocks) +
      preamble_text(spec, "image", kThreads, "part == 0") +
      filled("const long long inside = (static_cast<long long>(part) * $threads + threadIdx.x) * $lanes;\n", sizes) +
      fmt::format("if (inside >= {}) return;\n", each) +
      fmt::format("const long long first = static_cast<long long>(image) * {} + inside;\n", each);
  return {std::move(place), type.shape[0] * blocks};
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
  const Rows rows = repeated_rows(body, type.shape);
  // A preamble is of one image, and so must a block be.
  if (rows.end > rows.begin && (spec.preamble == nullptr || rows.begin == 1)) {
    emit_repeated(spec, body, rows, emission);
    return;
  }
  const int lanes = choose_lanes(body, spec);
  Parameters parameters(body, spec);
  BodyCode code(body, lanes, parameters.operands(), spec.alignment, type.rank() > 1 || lanes == 1 ? "" : "available");
  const Index index = code.at_linear("i", type.shape);
  std::string runs, stores, lane;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    if (!spec.wanted(r)) continue;
    const ir::Value v = body.outputs()[r].value;
    const std::string to = parameters.result(r);
    runs += fmt::format("  Run<{}, {}> run_{};\n", register_type(body.type(v).dtype), lanes, to);
    lane += fmt::format("run_{}[l] = {};\n", to, code.unrounded(v, index));
    stores += fmt::format("  store_run<{}>({} + i, run_{}, available);\n", lanes, to, to);
  }
  parameters.add("count", type.elements());
  parameters.add_outers(body, code.outers());

  const Place place = place_of(spec, type, lanes);
  KernelDraft draft;
  draft.name = spec.name;
  draft.source = device_source(with_preamble({"vector.cuh", "ops.cuh", "random.cuh"}, spec)) +
                 filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
$place  const index_t i = static_cast<index_t>(first);
  const long long available = count - first;
$before$runs#pragma unroll
  for (int l = 0; l < $lanes; ++l) {
$lane  }
$stores}
)",
                        {{"place", indented(place.text, 2)},
                         {"index", index_type(needs_wide_index(body, /*spare=*/kThreads * 8))},
                         {"threads", std::to_string(kThreads)},
                         {"lanes", std::to_string(lanes)},
                         {"parameters", parameters.text()},
                         {"before", indented(code.take_before(), 2)},
                         {"runs", runs},
                         {"lane", indented(code.take_lane() + lane, 4)},
                         {"stores", stores}});
  draft.grid.x = place.blocks;
  draft.threads = kThreads;
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  emission.launch(std::move(draft));
}

}  // namespace difuse::codegen::cuda
