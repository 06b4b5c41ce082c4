// Sums and maxima over axes, first stage. The iteration shape is outer x rows x inner, where rows are the first
// contiguous range of reduced dimensions (without the outermost one where a broadcast tells it apart: then every image
// has its own chunks and its operands per image stay in registers). A block does one chunk of the rows of one outer
// index. What remains to be combined - chunks, reduced dimensions further inside - is the second stage's (finish.cpp).
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/source/collapse.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"

namespace difuse::codegen::cuda::reduction {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Shape;
using ir::Value;

constexpr int64_t kSharedRows = 64;       ///< From so many rows an image on, images have chunks of their own.
constexpr int64_t kRowsPerThread = 16;    ///< Of a chunk, where rows do not fit into twice as much.
constexpr int64_t kMostChunks = 1024;     ///< Blocks of 256 threads that fill a large card.
constexpr int64_t kBytesInFlight = 96;    ///< Of one thread's loads.
constexpr int64_t kRunsPerNeighbour = 8;  ///< Up to so many runs a thread, a row is summed inside one warp.

int64_t bit_ceil(int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))); }
int64_t bit_floor(int64_t n) { return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n))); }

int64_t product(const Shape& shape, size_t begin, size_t end) {
  return ir::element_count(
      {shape.begin() + static_cast<ptrdiff_t>(begin), shape.begin() + static_cast<ptrdiff_t>(end)});
}

std::vector<int64_t> axes_of(const Graph& body) {
  for (const ir::NamedValue& output : body.outputs()) {
    const Node& node = body.node(output.value);
    if (ir::has_trait(node, ir::kReduction)) return node.as<ir::ReduceAttrs>().axes;
  }
  return {};
}

Graph with_axes(const Graph& body, const std::vector<int64_t>& axes) {
  return ir::rebuild(body, [&](Graph& to, int, const Node& node, const std::vector<Value>& operands) {
    if (!ir::has_trait(node, ir::kReduction)) return ir::copy_node(to, node, operands);
    return std::vector<Value>{to.add(node.op, operands, ir::ReduceAttrs{axes})};
  });
}

struct Chunks {
  int64_t length, count;  ///< Rows of a chunk (a multiple of `step` where there are several), chunks.
};
Chunks chunks_of(int64_t rows, int64_t step, int64_t most_per_chunk) {
  if (rows <= 2 * most_per_chunk) return {rows, 1};
  const int64_t length = ceil_div(std::max(most_per_chunk, ceil_div(rows, kMostChunks)), step) * step;
  return {length, ceil_div(rows, length)};
}

class FirstStage {
 public:
  FirstStage(const KernelSpec& spec, Emission& emission)
      : spec_(spec), emission_(emission), body_(collapsed(spec.body)) {
    // The dimensions as the reductions see them, then as this stage's axes do.
    const Shape whole = iteration_shape(body_);
    const std::vector<int64_t> axes = axes_of(body_);
    const auto reduced = [&](size_t d) { return std::ranges::count(axes, static_cast<int64_t>(d)) > 0; };
    size_t begin = static_cast<size_t>(axes[0]), end = begin;
    while (end < whole.size() && reduced(end)) ++end;
    // What has one element may as well be summed with the rest.
    if (product(whole, end, whole.size()) == 1) end = whole.size();
    if (begin == 0 && end > 1 && product(whole, 1, end) >= kSharedRows) begin = 1;
    for (size_t d = 0; d < begin; ++d) before_.push_back({whole[d], reduced(d)});
    for (size_t d = end; d < whole.size(); ++d) after_.push_back({whole[d], reduced(d)});
    std::vector<int64_t> stage_axes;
    for (size_t d = begin; d < end; ++d) stage_axes.push_back(static_cast<int64_t>(d));
    body_ = collapsed(with_axes(body_, stage_axes));
    shape_ = iteration_shape(body_);
    const std::vector<int64_t> own = axes_of(body_);
    begin_ = static_cast<size_t>(own.front());
    end_ = static_cast<size_t>(own.back()) + 1;
    outer_ = product(shape_, 0, begin_);
    rows_ = product(shape_, begin_, end_);
    inner_ = product(shape_, end_, shape_.size());
    open_ = begin_ == 0;
    tensors_ = whole_tensors(body_, shape_);
    for (size_t r = 0; r < body_.outputs().size(); ++r) {
      const Node& node = body_.node(body_.outputs()[r].value);
      (ir::has_trait(node, ir::kReduction) ? reductions_ : stored_).push_back(r);
    }
  }

  void emit() { inner_ == 1 ? emit_rows() : emit_columns(); }

 private:
  const Node& reduction(size_t r) const { return body_.node(body_.outputs()[r].value); }
  std::string combine(size_t r) const { return reduction(r).op == Op::reduce_max ? "reduce::Max" : "reduce::Sum"; }

  /// Runs whose loads a thread has in flight at once.
  int rows_at_once(int lanes) const {
    const int64_t bytes = std::max<int64_t>(1, tensors_.read_bytes * lanes);
    return static_cast<int>(bit_floor(std::clamp<int64_t>(kBytesInFlight / bytes, 1, 4)));
  }

  /// The results of this stage: the spec's own where nothing remains to be combined.
  std::vector<Argument> results(int64_t chunks) {
    std::vector<Dim> dims = before_;
    dims.push_back({chunks, true});
    dims.insert(dims.end(), after_.begin(), after_.end());
    std::vector<Argument> to = spec_.results;
    remains_ = std::ranges::any_of(dims, [](const Dim& d) { return d.reduced && d.extent > 1; });
    if (remains_) {
      for (const size_t r : reductions_) to[r] = emission_.workspace(outer_ * chunks * inner_ * 4);
      dims_ = std::move(dims);
    }
    return to;
  }

  void launch(std::string source, const Parameters& parameters, int64_t blocks, int64_t threads,
              const std::vector<Argument>& to) {
    KernelDraft draft;
    draft.name = spec_.name;
    draft.source = device_source({"vector.cuh", "ops.cuh", "reduce.cuh"}) + std::move(source);
    draft.grid.x = blocks;
    draft.threads = static_cast<int>(threads);
    draft.arguments = parameters.arguments();
    draft.bytes = parameters.bytes();
    draft.flops = spec_.flops;
    emission_.launch(std::move(draft));
    if (!remains_) return;
    std::vector<bool> maxima;
    std::vector<Argument> from, last;
    for (const size_t r : reductions_) {
      maxima.push_back(reduction(r).op == Op::reduce_max);
      from.push_back(to[r]);
      last.push_back(spec_.results[r]);
    }
    emit_finish(emission_, dims_, maxima, from, last);
  }

  Parameters parameters(const std::vector<Argument>& to) const {
    return Parameters(
        body_, {body_, spec_.operands, spec_.alignment, to, spec_.result_alignment, spec_.name, 0, spec_.device});
  }

  struct Loop {
    std::string hoisted, body;
  };

  /// The loop's body for `at_once` runs of each thread, `step` rows apart, the first at row `r`; row r of the thread's
  /// column is at `base` + r * `stride`. Rows up to `end` exist. Loads come first, so that they are all in flight; rows
  /// that do not exist repeat row r, uncounted and unstored.
  Loop loop(int lanes, int at_once, int64_t step, int64_t stride) const {
    const Lanes run = lanes == 1 ? Lanes::none : Lanes::unit;
    std::vector<std::string> pointers;
    for (size_t i = 0; i < spec_.operands.size(); ++i) pointers.push_back(fmt::format("p{}", i));
    BodyCode code(body_, lanes, pointers, spec_.alignment);
    const std::span<const int64_t> extents = shape_;
    const std::vector<Term> outer = split("o", extents.first(begin_), Lanes::none);
    const std::vector<Term> inner = split("i", extents.subspan(end_), run);
    const auto coords = [&](const std::string& row) {
      const Lanes of_row = end_ == shape_.size() ? run : Lanes::none;
      std::vector<Term> all = outer, rows = split(row, extents.subspan(begin_, end_ - begin_), of_row);
      all.insert(all.end(), rows.begin(), rows.end());
      all.insert(all.end(), inner.begin(), inner.end());
      return all;
    };
    hoist(code, body_, coords("row0"), begin_, end_);
    const std::string hoisted = code.take_before(), hoisted_lane = code.take_lane();

    std::string rows, runs, combined, stores;
    for (int u = 0; u < at_once; ++u) {
      const std::string live = u == 0 ? "" : fmt::format("live{}", u);
      if (u == 0) {
        rows += "const index_t row0 = r;\n";
      } else {
        rows += fmt::format("const bool {} = r + {} < end;\n", live, u * step);
        // A row that is not there reads the first one again: its own, which nobody else has written meanwhile.
        rows += fmt::format("const index_t row{} = {} ? r + {} : r;\n", u, live, u * step);
      }
      rows += fmt::format("[[maybe_unused]] const index_t at{} = base + row{}{};\n", u, u,
                          stride == 1 ? "" : fmt::format(" * {}", stride));
      Index index = code.at(coords(fmt::format("row{}", u)));
      index.linear = {fmt::format("at{}", u), run};
      index.has_linear = true;
      for (size_t q = 0; q < reductions_.size(); ++q) {
        const std::string x = code.value(reduction(reductions_[q]).operands[0], index), by = combine(reductions_[q]);
        combined += fmt::format("sum{}[l] = {}::both(sum{}[l], {});\n", q, by, q,
                                u == 0 ? x : fmt::format("{} ? {} : {}::start()", live, x, by));
      }
      for (const size_t r : stored_) {
        const Value v = body_.outputs()[r].value;
        const std::string dtype = storage_type(body_.type(v).dtype), name = fmt::format("run{}_{}", r, u);
        runs += fmt::format("Run<{}, {}> {};\n", dtype, lanes, name);
        combined += fmt::format("{}[l] = narrow<{}>({});\n", name, dtype, code.value(v, index));
        stores += fmt::format("{}store_run<{}>({} + at{}, {});\n", u == 0 ? "" : fmt::format("if ({}) ", live), lanes,
                              Parameters::result(r), u, name);
      }
    }
    std::string body = rows + code.take_before() + runs;
    body += fmt::format("#pragma unroll\nfor (int l = 0; l < {}; ++l) {{\n", lanes);
    body += indented(hoisted_lane + code.take_lane() + combined, 2) + "}\n" + stores;
    return {hoisted, body};
  }

  std::string accumulators(int lanes) const {
    std::string text;
    for (size_t q = 0; q < reductions_.size(); ++q) {
      text += fmt::format("Run<float, {}> sum{} = reduce::start_run<{}, {}>();\n", lanes, q, combine(reductions_[q]),
                          lanes);
    }
    return text;
  }

  /// Where `inner` is more than one: a thread has a run of columns, and rows that lie `height` apart.
  void emit_columns() {
    const int lanes = fitting_lanes(spec_, shape_.back(), tensors_.longest_run(), true);
    const int at_once = rows_at_once(lanes);
    const int64_t runs = inner_ / lanes;
    const int64_t columns = block_columns(runs, std::max<int64_t>(8, 128 / (lanes * tensors_.narrowest)));
    const int64_t tiles = ceil_div(runs, columns), most = bit_floor((open_ ? 256 : 512) / columns);
    int64_t height = most;
    if (!open_) {
      const int64_t least = std::min(most, bit_ceil(ceil_div(32, columns)));
      height = std::clamp(bit_ceil(ceil_div(rows_, at_once)), least, most);
    }
    const Chunks chunks = chunks_of(rows_, height * at_once, height * kRowsPerThread);
    const std::vector<Argument> to = results(chunks.count);
    Parameters parameters = this->parameters(to);
    std::string place;
    if (open_) {
      parameters.add("rows", rows_);
      parameters.add("chunk", chunks.length);
      place =
          "const index_t part = blockIdx.x / $tiles;\n"
          "const index_t begin = part * static_cast<index_t>(chunk);\n"
          "const index_t past = begin + static_cast<index_t>(chunk) < rows ? begin + chunk : rows;\n";
    } else if (chunks.count == 1) {
      place =
          "const index_t o = blockIdx.x / $tiles, part = o;\n"
          "const index_t begin = 0, past = $rows;\n";
    } else {
      place =
          "const index_t part = blockIdx.x / $tiles, o = quotient<$chunks>(part);\n"
          "const index_t begin = remainder_of<$chunks>(part) * $chunk;\n"
          "const index_t past = reduce::lesser<index_t>(begin + $chunk, $rows);\n";
    }
    place = filled(place, {{"tiles", std::to_string(tiles)},
                           {"rows", std::to_string(rows_)},
                           {"chunks", std::to_string(chunks.count)},
                           {"chunk", std::to_string(chunks.length)}});
    const Loop loop = this->loop(lanes, at_once, height, inner_);
    std::string finish;
    for (size_t q = 0; q < reductions_.size(); ++q) {
      if (q > 0) finish += "__syncthreads();\n";
      finish += fmt::format("reduce::combine_rows<{}, {}, {}>(sum{}, shared);\n", combine(reductions_[q]), columns,
                            height, q);
      finish += fmt::format("if (row == 0 && inside) store_run<{}>({} + part * {} + i, sum{});\n", lanes,
                            Parameters::result(reductions_[q]), inner_, q);
    }
    const bool ragged = runs % columns != 0;
    launch(filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  __shared__ alignas(16) float shared[$threads * $lanes];
  const int column = static_cast<int>(threadIdx.x) % $columns, row = static_cast<int>(threadIdx.x) / $columns;
$place  const int run = static_cast<int>(blockIdx.x) % $tiles * $columns + column;
  const bool inside = $inside;
  const index_t i = $clamped * $lanes, end = inside ? past : begin;
  const index_t base = $base;
$hoisted$accumulators#pragma unroll 1
  for (index_t r = begin + row; r < end; r += $step) {
$loop  }
$finish}
)",
                  {{"index", index_type(is_wide(body_))},
                   {"threads", std::to_string(columns * height)},
                   {"parameters", parameters.text()},
                   {"lanes", std::to_string(lanes)},
                   {"columns", std::to_string(columns)},
                   {"tiles", std::to_string(tiles)},
                   {"place", indented(place, 2)},
                   {"inside", ragged ? fmt::format("run < {}", runs) : "true"},
                   {"clamped", ragged ? fmt::format("(inside ? run : {})", runs - 1) : "run"},
                   {"base", begin_ == 0 ? "i" : fmt::format("o * {} + i", rows_ * inner_)},
                   {"hoisted", indented(loop.hoisted, 2)},
                   {"accumulators", indented(accumulators(lanes), 2)},
                   {"step", std::to_string(height * at_once)},
                   {"loop", indented(loop.body, 4)},
                   {"finish", indented(finish, 2)}}),
           parameters, outer_ * chunks.count * tiles, columns * height, to);
  }

  /// Neighbouring runs of one block: few enough that a small tensor has many blocks, and with little left over.
  static int64_t block_columns(int64_t runs, int64_t least) {
    if (runs <= least) return runs;
    int64_t best = least;
    const auto left_over = [&](int64_t columns) { return ceil_div(runs, columns) * columns - runs; };
    for (int64_t columns = least; columns <= 2 * least; ++columns) {
      if (left_over(columns) < left_over(best)) best = columns;
    }
    return best;
  }

  /// Where every row is one value of a contiguous range: neighbouring threads read neighbouring runs.
  void emit_rows() {
    // With one open range, the last elements that make no run are done one by one.
    const bool tail = open_ && shape_.size() == 1;
    const int lanes =
        fitting_lanes(spec_, tail ? tensors_.longest_run() : shape_.back(), tensors_.longest_run(), false);
    const int64_t runs = ceil_div(rows_, lanes);
    if (!open_ && runs <= 32 * kRunsPerNeighbour) {
      emit_rows_of_neighbours(lanes, runs);
    } else {
      emit_rows_of_blocks(lanes, runs, tail && lanes > 1);
    }
  }

  void emit_rows_of_neighbours(int lanes, int64_t runs) {
    constexpr int64_t kThreads = 128;
    const int64_t sharers = std::min<int64_t>(32, bit_ceil(ceil_div(runs, 4)));
    const int at_once = static_cast<int>(std::min<int64_t>(rows_at_once(lanes), bit_ceil(ceil_div(runs, sharers))));
    const std::vector<Argument> to = results(1);
    Parameters parameters = this->parameters(to);
    parameters.add("outer", outer_);
    const Loop loop = this->loop(lanes, at_once, sharers * lanes, 1);
    std::string finish;
    for (size_t q = 0; q < reductions_.size(); ++q) {
      const std::string by = combine(reductions_[q]);
      finish +=
          fmt::format("const float total{} = reduce::combine_neighbours<{}, {}>(reduce::combine_lanes<{}>(sum{}));\n",
                      q, by, sharers, by, q);
      finish += fmt::format("if (inside && lane == 0) {}[o] = total{};\n", Parameters::result(reductions_[q]), q);
    }
    launch(filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % $sharers;
  const long long own = static_cast<long long>(blockIdx.x) * $perblock + static_cast<int>(threadIdx.x) / $sharers;
  const bool inside = own < outer;
  const index_t o = static_cast<index_t>(inside ? own : outer - 1), end = inside ? $rows : 0;
  const index_t base = o * $rows;
$hoisted$accumulators#pragma unroll 1
  for (index_t r = lane * $lanes; r < end; r += $step) {
$loop  }
$finish}
)",
                  {{"index", index_type(is_wide(body_))},
                   {"threads", std::to_string(kThreads)},
                   {"parameters", parameters.text()},
                   {"sharers", std::to_string(sharers)},
                   {"perblock", std::to_string(kThreads / sharers)},
                   {"rows", std::to_string(rows_)},
                   {"lanes", std::to_string(lanes)},
                   {"hoisted", indented(loop.hoisted, 2)},
                   {"accumulators", indented(accumulators(lanes), 2)},
                   {"step", std::to_string(sharers * lanes * at_once)},
                   {"loop", indented(loop.body, 4)},
                   {"finish", indented(finish, 2)}}),
           parameters, ceil_div(outer_, kThreads / sharers), kThreads, to);
  }

  void emit_rows_of_blocks(int lanes, int64_t runs, bool tail) {
    const int at_once = rows_at_once(lanes);
    const int64_t threads = open_ ? 256 : std::clamp<int64_t>(bit_ceil(ceil_div(runs, at_once)), 32, 256);
    const Chunks chunks = chunks_of(runs * lanes, threads * lanes * at_once, threads * lanes * kRowsPerThread);
    const std::vector<Argument> to = results(chunks.count);
    Parameters parameters = this->parameters(to);
    std::string place, last;
    if (open_) {
      parameters.add("rows", rows_);
      parameters.add("chunk", chunks.length);
      place =
          "const index_t part = blockIdx.x, whole = static_cast<index_t>(rows)$whole;\n"
          "const index_t begin = part * static_cast<index_t>(chunk);\n"
          "const index_t end = reduce::lesser<index_t>(begin + static_cast<index_t>(chunk), whole);\n"
          "const index_t base = 0;\n";
    } else {
      place =
          "const index_t part = blockIdx.x, o = quotient<$chunks>(part);\n"
          "const index_t begin = remainder_of<$chunks>(part) * $chunk;\n"
          "const index_t end = reduce::lesser<index_t>(begin + $chunk, $rows);\n"
          "const index_t base = o * $rows;\n";
    }
    place = filled(place, {{"whole", tail ? fmt::format(" / {} * {}", lanes, lanes) : ""},
                           {"rows", std::to_string(rows_)},
                           {"chunks", std::to_string(chunks.count)},
                           {"chunk", std::to_string(chunks.length)}});
    if (tail) {
      const Loop one = loop(1, 1, 1, 1);
      last =
          "if (blockIdx.x == gridDim.x - 1 && whole + static_cast<int>(threadIdx.x) < rows) {\n"
          "  const index_t r = whole + static_cast<int>(threadIdx.x);\n" +
          indented(one.hoisted + one.body, 2) + "}\n";
    }
    const Loop loop = this->loop(lanes, at_once, threads * lanes, 1);
    std::string finish;
    for (size_t q = 0; q < reductions_.size(); ++q) {
      const std::string by = combine(reductions_[q]);
      if (q > 0) finish += "__syncthreads();\n";
      finish += fmt::format(
          "const float total{} = reduce::combine_block<{}, {}>(reduce::combine_lanes<{}>(sum{}), shared);\n", q, by,
          threads, by, q);
      finish += fmt::format("if (threadIdx.x == 0) {}[part] = total{};\n", Parameters::result(reductions_[q]), q);
    }
    launch(filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  __shared__ float shared[32];
$place$hoisted$accumulators#pragma unroll 1
  for (index_t r = begin + static_cast<index_t>(threadIdx.x) * $lanes; r < end; r += $step) {
$loop  }
$last$finish}
)",
                  {{"index", index_type(is_wide(body_))},
                   {"threads", std::to_string(threads)},
                   {"parameters", parameters.text()},
                   {"place", indented(place, 2)},
                   {"lanes", std::to_string(lanes)},
                   {"hoisted", indented(loop.hoisted, 2)},
                   {"accumulators", indented(accumulators(lanes), 2)},
                   {"step", std::to_string(threads * lanes * at_once)},
                   {"loop", indented(loop.body, 4)},
                   {"last", indented(last, 2)},
                   {"finish", indented(finish, 2)}}),
           parameters, outer_ * chunks.count, threads, to);
  }

  const KernelSpec& spec_;
  Emission& emission_;
  Graph body_;
  Shape shape_;
  size_t begin_ = 0, end_ = 0;  ///< The rows among the dimensions.
  int64_t outer_ = 1, rows_ = 1, inner_ = 1;
  bool open_ = false;  ///< The rows include the outermost extent, which is an argument.
  WholeTensors tensors_;
  std::vector<size_t> reductions_, stored_;  ///< By output.
  std::vector<Dim> before_, after_;          ///< Around the rows, as the reductions see them.
  std::vector<Dim> dims_;                    ///< Of what this stage leaves.
  bool remains_ = false;
};

}  // namespace

void emit_reduce(const KernelSpec& spec, Emission& emission) { FirstStage(spec, emission).emit(); }

}  // namespace difuse::codegen::cuda::reduction
