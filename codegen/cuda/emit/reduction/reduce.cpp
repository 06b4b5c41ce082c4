// Sums and maxima over axes, first stage. The iteration shape is outer x rows x inner, where rows are the first
// contiguous range of reduced dimensions (without the outermost one where a broadcast tells it apart: then every image
// has its own chunks and its operands per image stay in registers). A block does one chunk of the rows of one outer
// index. What remains to be combined - chunks, reduced dimensions further inside - is the second stage's (finish.cpp).
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/preparation.h"
#include "codegen/cuda/source/collapse.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/error.h"
#include "ir/op.h"

namespace difuse::codegen::cuda::reduction {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Shape;
using ir::Value;

constexpr int64_t kSharedRows = 48;       ///< From so many rows an image on, images have chunks of their own.
constexpr int64_t kWholeRows = 512;       ///< Up to so many rows, an image is one chunk: no second stage.
constexpr int64_t kWideRow = 512;         ///< Bytes; of shorter rows, blocks that read 128 of each would be few.
constexpr int64_t kRowsPerThread = 16;    ///< Of a chunk, where rows do not fit into twice as much.
constexpr int64_t kMostChunks = 1024;     ///< Blocks of 256 threads that fill a large card.
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
/// One where they fit into twice what a chunk has at most; otherwise of at least so many rows.
Chunks chunks_of(int64_t rows, int64_t step, int64_t most_per_chunk, int64_t least_per_chunk) {
  if (rows <= 2 * most_per_chunk) return {rows, 1};
  const int64_t length = ceil_div(std::max(least_per_chunk, ceil_div(rows, kMostChunks)), step) * step;
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

  /// The results of this stage: the spec's own where nothing remains to be combined.
  std::vector<Argument> results(int64_t chunks) {
    std::vector<Dim> dims = before_;
    dims.push_back({chunks, true});
    dims.insert(dims.end(), after_.begin(), after_.end());
    std::vector<Argument> to = spec_.results;
    remains_ = std::ranges::any_of(dims, [](const Dim& d) { return d.reduced && d.extent > 1; });
    if (remains_) {
      for (const size_t r : reductions_) to[r] = emission_.workspace(outer_ * chunks * inner_ * 4);
    } else if (dims[0].reduced) {
      dims[0].extent = 2;  // As at a batch that leaves more of them.
    }
    dims_ = std::move(dims);
    return to;
  }

  void launch(std::string source, const Parameters& parameters, int64_t blocks, int64_t threads,
              const std::vector<Argument>& to) {
    KernelDraft draft;
    draft.name = spec_.name;
    draft.source = device_source(with_preamble({"vector.cuh", "ops.cuh", "reduce.cuh"}, spec_)) + std::move(source);
    draft.grid.x = blocks;
    draft.threads = static_cast<int>(threads);
    draft.arguments = parameters.arguments();
    draft.bytes = parameters.bytes();
    draft.flops = spec_.flops;
    emission_.launch(std::move(draft));
    if (!remains_ && !dims_[0].reduced) return;
    std::vector<bool> maxima;
    std::vector<Argument> from, last;
    for (const size_t r : reductions_) {
      maxima.push_back(reduction(r).op == Op::reduce_max);
      from.push_back(to[r]);
      last.push_back(spec_.results[r]);
    }
    Preparation larger_batch(emission_);
    emit_finish(remains_ ? emission_ : larger_batch, dims_, maxima, from, last);
  }

  Parameters parameters(const std::vector<Argument>& to) const {
    KernelSpec stage{body_, spec_.operands, spec_.alignment, to, spec_.result_alignment, spec_.name, 0, spec_.device};
    stage.preamble = spec_.preamble;
    return Parameters(body_, stage);
  }

  /// The loop of a thread whose rows are `step` apart, each `stride` elements after the one before.
  RowCode loop(int lanes, int at_once, int64_t step, int64_t stride, bool whole = false) const {
    return row_code({body_, shape_, begin_, end_, lanes, at_once, step, stride, whole}, spec_, stored_,
                    [&](BodyCode& code, const Index& index) {
                      std::string text;
                      for (size_t q = 0; q < reductions_.size(); ++q) {
                        text += fmt::format("sum{0}[l] = {1}::both(sum{0}[l], {2});\n", q, combine(reductions_[q]),
                                            code.value(reduction(reductions_[q]).operands[0], index));
                      }
                      return text;
                    });
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
    const int at_once = tensors_.runs_at_once(lanes);
    const int64_t runs = inner_ / lanes;
    // A block reads 128 bytes of a row, as many as lie together in memory; or 64, where images are whole chunks and
    // blocks would be few.
    const bool whole = !open_ && rows_ <= kWholeRows, narrow = whole && inner_ * tensors_.narrowest < kWideRow;
    const int64_t least_columns = std::max<int64_t>(4, 64 / (lanes * tensors_.narrowest)) * (narrow ? 1 : 2);
    const int64_t columns = block_columns(runs, least_columns, spec_);
    constexpr int64_t threads = 256;
    const int64_t tiles = ceil_div(runs, columns), most = bit_floor(threads / columns);
    int64_t height = most;
    if (!open_) {
      const int64_t least = std::min(most, bit_ceil(ceil_div(32, columns)));
      height = std::clamp(bit_ceil(ceil_div(rows_, at_once)), least, most);
    }
    // Of a whole batch of small images, every processor has a part.
    const int64_t each = open_ ? ceil_div(rows_ * tiles, height * spec_.device.processors) : kRowsPerThread;
    const int64_t rows_per_thread = std::min(each, kRowsPerThread);
    const Chunks chunks =
        whole ? Chunks{rows_, 1}
              : chunks_of(rows_, height * at_once, height * kRowsPerThread / (open_ ? 1 : 2), height * rows_per_thread);
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
    if (spec_.preamble != nullptr && begin_ != 1) throw Error("a block of the reduction is in several images");
    const std::string preamble =
        preamble_text(spec_, "o", columns * height, fmt::format("blockIdx.x % {} == 0", tiles * chunks.count));
    const bool ragged = runs % columns != 0;
    const bool whole_rows = !open_ && rows_ % chunks.length == 0 && chunks.length % (height * at_once) == 0;
    const RowCode loop = this->loop(lanes, at_once, height, inner_, whole_rows);
    std::string finish;
    for (size_t q = 0; q < reductions_.size(); ++q) {
      if (q > 0) finish += "__syncthreads();\n";
      finish += fmt::format("reduce::combine_rows<{}, {}, {}>(sum{}, shared);\n", combine(reductions_[q]), columns,
                            height, q);
      finish += fmt::format("if (row == 0 && inside) store_run<{}>({} + part * {} + i, sum{});\n", lanes,
                            Parameters::result(reductions_[q]), inner_, q);
    }
    launch(filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__($threads, $blocks) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  __shared__ alignas(16) float shared[$threads * $lanes];
  const int column = static_cast<int>(threadIdx.x) % $columns, row = static_cast<int>(threadIdx.x) / $columns;
$place  const int run = static_cast<int>(blockIdx.x) % $tiles * $columns + column;
  const bool inside = $inside;
  const index_t i = $clamped * $lanes, end = inside ? past : begin;
  const index_t base = $base;
  index_t r = begin + row;
$loads$preamble$hoisted$accumulators$loop$finish}
)",
                  {{"index", index_type(is_wide(body_))},
                   {"threads", std::to_string(columns * height)},
                   {"blocks", std::to_string(tensors_.blocks_at_once(columns * height))},
                   {"parameters", parameters.text()},
                   {"lanes", std::to_string(lanes)},
                   {"columns", std::to_string(columns)},
                   {"tiles", std::to_string(tiles)},
                   {"place", indented(place, 2)},
                   {"inside", ragged ? fmt::format("run < {}", runs) : "true"},
                   {"clamped", ragged ? fmt::format("(inside ? run : {})", runs - 1) : "run"},
                   {"base", begin_ == 0 ? "i" : fmt::format("o * {} + i", rows_ * inner_)},
                   {"loads", indented(loop.loads, 2)},
                   {"preamble", indented(preamble, 2)},
                   {"hoisted", indented(loop.hoisted, 2)},
                   {"accumulators", indented(accumulators(lanes), 2)},
                   {"loop", indented(loop.loops, 2)},
                   {"finish", indented(finish, 2)}}),
           parameters, outer_ * chunks.count * tiles, columns * height, to);
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
    const int at_once =
        static_cast<int>(std::min<int64_t>(tensors_.runs_at_once(lanes), bit_ceil(ceil_div(runs, sharers))));
    const std::vector<Argument> to = results(1);
    Parameters parameters = this->parameters(to);
    parameters.add("outer", outer_);
    const RowCode loop = this->loop(lanes, at_once, sharers * lanes, 1);
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
  index_t r = lane * $lanes;
$loads$hoisted$accumulators$loop$finish}
)",
                  {{"index", index_type(is_wide(body_))},
                   {"threads", std::to_string(kThreads)},
                   {"parameters", parameters.text()},
                   {"sharers", std::to_string(sharers)},
                   {"perblock", std::to_string(kThreads / sharers)},
                   {"rows", std::to_string(rows_)},
                   {"lanes", std::to_string(lanes)},
                   {"loads", indented(loop.loads, 2)},
                   {"hoisted", indented(loop.hoisted, 2)},
                   {"accumulators", indented(accumulators(lanes), 2)},
                   {"loop", indented(loop.loops, 2)},
                   {"finish", indented(finish, 2)}}),
           parameters, ceil_div(outer_, kThreads / sharers), kThreads, to);
  }

  void emit_rows_of_blocks(int lanes, int64_t runs, bool tail) {
    const int at_once = tensors_.runs_at_once(lanes);
    const int64_t threads = open_ ? 256 : std::clamp<int64_t>(bit_ceil(ceil_div(runs, at_once)), 32, 256);
    const Chunks chunks = chunks_of(runs * lanes, threads * lanes * at_once, threads * lanes * kRowsPerThread,
                                    threads * lanes * kRowsPerThread);
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
      const RowCode one = loop(1, 1, threads, 1);
      last =
          "if (blockIdx.x == gridDim.x - 1) {\n"
          "  const index_t end = static_cast<index_t>(rows);\n"
          "  index_t r = whole + static_cast<int>(threadIdx.x);\n" +
          indented(one.loads + one.hoisted + one.loops, 2) + "}\n";
    }
    const RowCode loop = this->loop(lanes, at_once, threads * lanes, 1);
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
$place  index_t r = begin + static_cast<index_t>(threadIdx.x) * $lanes;
$loads$hoisted$accumulators$loop$last$finish}
)",
                  {{"index", index_type(is_wide(body_))},
                   {"threads", std::to_string(threads)},
                   {"parameters", parameters.text()},
                   {"place", indented(place, 2)},
                   {"lanes", std::to_string(lanes)},
                   {"loads", indented(loop.loads, 2)},
                   {"hoisted", indented(loop.hoisted, 2)},
                   {"accumulators", indented(accumulators(lanes), 2)},
                   {"loop", indented(loop.loops, 2)},
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
  std::vector<Dim> dims_;                    ///< Of what this stage leaves, here or at a larger batch.
  bool remains_ = false;
};

}  // namespace

void emit_reduce(const KernelSpec& spec, Emission& emission) {
  if (sums_columns(spec)) {
    emit_column_sums(spec, emission);
  } else {
    FirstStage(spec, emission).emit();
  }
}

}  // namespace difuse::codegen::cuda::reduction
