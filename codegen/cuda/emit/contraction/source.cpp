#include "codegen/cuda/emit/contraction/source.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda {

using ir::Op;

namespace {

std::string block_type(const GemmProblem& p, const GemmTile& tile) {
  constexpr const char* kEnumerators[] = {"bf16", "f16", "tf32"};
  const auto major = [](const GemmProblem::Operand& o) { return o.k_major ? "k" : "mn"; };
  const std::string shape = fmt::format("gemm::Tile<{}, {}, {}, {}, {}, {}>", tile.m, tile.n, tile.k, tile.warps_m,
                                        tile.warps_n, tile.stages);
  const std::string operands =
      fmt::format("gemm::Major::{}, gemm::Major::{}, {}, {}", major(p.a), major(p.b), p.a.rounded, p.b.rounded);
  if (p.is_fma()) return fmt::format("gemm::FmaBlock<{}, {}>", shape, operands);
  return fmt::format("gemm::Block<{}, {}, gemm::Product::{}, {}>", shape, storage_type(p.dtype),
                     kEnumerators[static_cast<int>(p.product)], operands);
}

/// A conv_dgrad of stride 1 is computed as the conv_fprop of the turned filter is, in the same order: taps from the
/// last one of the filter to the first.
bool is_turned(const GemmProblem& p) { return p.op == Op::conv_dgrad && p.stride == 1; }
/// By phases of the result's pixels.
bool is_phased(const GemmProblem& p) { return p.op == Op::conv_dgrad && p.stride > 1; }

/// The image that rows or columns are gathered from.
std::string window_type(const GemmProblem& p) {
  const bool backwards = is_phased(p);
  return fmt::format("gemm::Window<{}, {}, {}, {}, {}, {}, {}, {}>", p.height, p.width, p.channels, p.rows_h, p.rows_w,
                     backwards ? 1 : p.stride, backwards ? -1 : 1, p.strip);
}

struct Loader {
  std::string type;       ///< Its template arguments begin with the slot's tile, the copies' elements and the threads.
  std::string arguments;  ///< After the pointer.
};

std::string loader_type(const std::string& name, char operand, int copy, const std::string& rest) {
  return fmt::format("gemm::{}<Block::{}, {}, Block::Tile::threads, {}>", name, operand, copy, rest);
}

/// Columns of a matrix, or its rows, which are those of a filter of one tap.
Loader matrix_columns(char operand, int copy, const std::string& first, const std::string& columns) {
  return {loader_type("MatrixColumns", operand, copy, "index_t"), fmt::format("{}, {}", first, columns)};
}
Loader matrix_rows(char operand, int copy, const std::string& first, const std::string& rows) {
  return {loader_type("FilterRows", operand, copy, "1, 1, index_t"),
          fmt::format("{}, static_cast<int>({}), depth_count", first, rows)};
}

Loader loader_a(const GemmProblem& p) {
  const std::string first = "static_cast<int>(first_row)";
  if (!p.a.k_major) return matrix_columns('A', p.a.copy, first, "row_count");
  if (p.op == Op::matmul) return matrix_rows('A', p.a.copy, first, "row_count");
  const std::string origin = is_phased(p)   ? "phase_y.origin, phase_x.origin"
                             : is_turned(p) ? fmt::format("{}, {}", p.pad - p.r + 1, p.pad - p.s + 1)
                                            : fmt::format("{}, {}", -p.pad, -p.pad);
  return {loader_type("ImageRows", 'A', p.a.copy, window_type(p) + ", index_t"), "first_row, row_count, " + origin};
}

Loader loader_b(const GemmProblem& p) {
  switch (p.op) {
    case Op::conv_fprop:
      return {loader_type("FilterRows", 'B', p.b.copy, fmt::format("{}, {}, index_t", p.s, p.channels)),
              fmt::format("first_column, {}, {}", p.columns, p.r * p.s * p.channels)};
    case Op::conv_dgrad:
      return {loader_type("FilterColumns", 'B', p.b.copy,
                          fmt::format("{}, {}, {}, {}", p.r, p.s, p.columns, is_turned(p) ? -1 : p.stride)),
              is_turned(p) ? fmt::format("first_column, {}, {}", p.r - 1, p.s - 1)
                           : "first_column, phase_y.first, phase_x.first"};
    case Op::conv_wgrad:
      return {loader_type("ImageColumns", 'B', p.b.copy, fmt::format("{}, {}, {}, index_t", window_type(p), p.r, p.s)),
              fmt::format("first_column, {}, {}", -p.pad, -p.pad)};
    default:
      return p.b.k_major ? matrix_rows('B', p.b.copy, "first_column", "column_count")
                         : matrix_columns('B', p.b.copy, "first_column", "column_count");
  }
}

/// Which k the block sums.
std::string cursor(const GemmProblem& p) {
  if (p.sums_batch) return "gemm::RangeCursor<index_t> cursor(first_k, end_k);\n";
  if (p.op == Op::matmul) return "const gemm::RangeCursor<index_t> cursor(0, depth_count);\n";
  return fmt::format("const gemm::TapCursor<{}, {}> cursor({});\n", p.channels, p.chunk(),
                     is_phased(p) ? "phase_y.count, phase_x.count" : fmt::format("{}, {}", p.r, p.s));
}

/// A number divided by how many tiles there are along an extent.
struct Divided {
  std::string before, quotient, remainder;
};
Divided divided_by_tiles(const std::string& number, const GemmProblem& p, const char* extent, int64_t size, int tile) {
  if (p.op != Op::matmul) {
    const int64_t tiles = ceil_div(size, tile);
    return {"", fmt::format("quotient<{}>({})", tiles, number), fmt::format("remainder_of<{}>({})", tiles, number)};
  }
  return {fmt::format("const int {0}_tiles = (static_cast<int>({0}_count) + {1}) / {2};\n", extent, tile - 1, tile),
          fmt::format("{} / {}_tiles", number, extent), fmt::format("{} % {}_tiles", number, extent)};
}

/// The block's place, from its number. Blocks that follow each other share rows: the columns' operand is small, or its
/// tile stays in L2.
std::string placement(const GemmProblem& p, const GemmTile& tile) {
  const Divided block = divided_by_tiles("static_cast<int>(blockIdx.x)", p, "column", p.columns, tile.n);
  std::string code = block.before + fmt::format(
                                        "const int column_tile = {};\n"
                                        "const int place = {};\n"
                                        "const int first_column = column_tile * {};\n",
                                        block.remainder, block.quotient, tile.n);
  if (is_phased(p)) {
    code += fmt::format(
        "const int phase = remainder_of<{0}>(place);\n"
        "const gemm::Phase phase_y = gemm::phase_of(quotient<{1}>(phase), {2}, {1}, {4});\n"
        "const gemm::Phase phase_x = gemm::phase_of(remainder_of<{1}>(phase), {3}, {1}, {4});\n"
        "const index_t first_row = static_cast<index_t>(quotient<{0}>(place)) * {5};\n",
        p.phases, p.stride, p.r, p.s, p.pad, tile.m);
  } else if (p.sums_batch) {
    const Divided split = divided_by_tiles("place", p, "row", p.rows, tile.m);
    code += split.before + fmt::format(
                               "const int split = {};\n"
                               "const index_t first_row = {} * {};\n"
                               "const index_t first_k = static_cast<index_t>(split * split_depth);\n"
                               "const index_t end_k = static_cast<index_t>(min(depth, (split + 1) * split_depth));\n",
                               split.quotient, split.remainder, tile.m);
  } else {
    code += fmt::format("const index_t first_row = static_cast<index_t>(place) * {};\n", tile.m);
  }
  return code;
}

/// Row m of the result, for the epilogue: its row in memory and its coordinates but the last. Only those lines whose
/// names `uses` mentions.
std::string row_code(const GemmProblem& p, const std::string& uses) {
  if (p.op == Op::matmul || p.op == Op::conv_wgrad) return "const index_t at_row = m;\n";
  if (p.strip != 0) {
    return fmt::format(
        "const auto pixel = gemm::pixel_of<{0}, {1}, {2}>(m);\n"
        "const index_t at_image = pixel.n, at_y = pixel.y, at_x = pixel.x;\n"
        "const index_t at_row = (at_image * {0} + at_y) * {1} + at_x;\n",
        p.result_h, p.result_w, p.strip);
  }
  const bool phased = p.phases > 1;
  const auto pixel = [&](int64_t width, int64_t height) {
    return fmt::format(
        "const index_t line = quotient<{0}>(m), at_image = quotient<{1}>(line);\n"
        "const index_t at_y = remainder_of<{1}>(line)$y, at_x = remainder_of<{0}>(m)$x;\n",
        width, height);
  };
  if (!phased) {
    std::string code = "const index_t at_row = m;\n";
    const bool used = uses.find("at_image") != std::string::npos || uses.find("at_y") != std::string::npos ||
                      uses.find("at_x") != std::string::npos;
    return used ? code + filled(pixel(p.result_w, p.result_h), {{"y", ""}, {"x", ""}}) : code;
  }
  return filled(pixel(p.rows_w, p.rows_h), {{"y", fmt::format(" * {0} + quotient<{0}>(phase)", p.stride)},
                                            {"x", fmt::format(" * {0} + remainder_of<{0}>(phase)", p.stride)}}) +
         fmt::format(
             "if (at_y >= {0} || at_x >= {1}) continue;\n"
             "const index_t at_row = (at_image * {0} + at_y) * {1} + at_x;\n",
             p.result_h, p.result_w);
}

std::vector<Term> coords(const GemmProblem& p, int lanes) {
  const Term channel{"channel", lanes == 1 ? Lanes::none : Lanes::unit};
  if (p.op == Op::matmul) return {{"at_row", Lanes::none}, channel};
  if (p.op == Op::conv_wgrad) return {};
  return {{"at_image", Lanes::none}, {"at_y", Lanes::none}, {"at_x", Lanes::none}, channel};
}

/// The statistics of the value that the epilogue lays down in `staged`.
struct StripCode {
  std::string before, after;
  std::vector<StagedValue> staged;
};

StripCode strip_code(const KernelSpec& spec, const GemmProblem& p, int lanes) {
  if (p.strip == 0) return {};
  StripCode code;
  code.staged.push_back(
      {reduced_values(spec.body).front(),
       fmt::format("staged + gemm::Staged<Block::Tile>::offset(Block::row(i), Block::column<{}>(j))", lanes)});
  code.before =
      "float* const staged = reinterpret_cast<float*>(shared);\n"
      "__syncthreads();  // All warps have read the last slot.\n";
  std::string stores;
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (!spec.wanted(r) || !is_reduced(spec.body, r)) continue;
    stores +=
        fmt::format("{}[at] = {};\n", Parameters::result(r), spec.body.outputs()[r].value.result == 0 ? "mean" : "m2");
  }
  code.after = filled(R"(__syncthreads();
gemm::for_each_moments<Block::Tile, $tall>(staged, [&](int strip, int column, float mean, float m2) {
  const index_t number = quotient<$rows>(first_row) + strip;
  const int channel = first_column + column;
  if (number >= quotient<$rows>(row_count) || channel >= $columns) return;
  const index_t at = number * $columns + channel;
$stores});
)",
                      {{"tall", text(p.strip)},
                       {"rows", text(ir::kStripWidth * p.strip)},
                       {"columns", text(p.columns)},
                       {"stores", indented(stores, 2)}});
  return code;
}

std::vector<std::string_view> headers(std::string_view own) { return {"vector.cuh", "ops.cuh", "random.cuh", own}; }

}  // namespace

KernelDraft product_kernel(const KernelSpec& spec, const GemmProblem& p, const GemmTile& tile) {
  const ir::Graph& body = spec.body;
  const ir::Value value = find_contraction(body);
  const int lanes = epilogue_lanes(spec, value, p.is_fma() ? 4 : p.b.k_major ? 8 : 2);
  Parameters parameters(body, spec);
  const StripCode strips = strip_code(spec, p, lanes);
  const EpilogueCode epilogue =
      epilogue_code(spec, value, fmt::format("block.value<{}>(i, j, l)", lanes), lanes, parameters.operands(),
                    coords(p, lanes), "element", wanted_outputs(spec), strips.staged);
  const bool is_matrix = p.op == Op::matmul;
  if (!p.sums_batch || is_matrix) parameters.add("rows", p.rows);
  if (is_matrix) parameters.add("columns", p.columns);
  if (p.sums_batch || is_matrix) parameters.add("depth", p.depth);
  if (p.sums_batch) parameters.add("split_depth", p.split_depth);
  parameters.add_outers(body, epilogue.outers);
  const Loader a = loader_a(p), b = loader_b(p);
  const std::string columns = is_matrix ? "column_count" : text(p.columns);
  const std::string counts = is_matrix ? "const index_t column_count = static_cast<index_t>(columns);\n"
                                         "[[maybe_unused]] const index_t depth_count = static_cast<index_t>(depth);\n"
                                       : "";
  const std::string partial = p.is_split
                                  ? fmt::format("{} += split * {};\n", Parameters::result(0),
                                                is_matrix ? "rows * columns" : fmt::format("{}ll", p.rows * p.columns))
                                  : "";

  // So that the compiler takes no registers that keep a block out; the tensor cores' products have their own balance.
  const int64_t resident = p.is_fma() ? resident_blocks(p, tile, spec.device) : 1;

  const std::string_view operands_and_strips = p.strip == 0 ? "gemm_operands.cuh" : "gemm_moments.cuh";

  KernelDraft draft;
  draft.name = spec.name;
  draft.source = device_source(headers(operands_and_strips)) +
                 filled(R"(
using index_t = $index;
using Block = $block;
using LoadA = $load_a;
using LoadB = $load_b;

extern "C" __global__ void __launch_bounds__($threads, $resident) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  extern __shared__ __align__(128) unsigned char shared[];
  const index_t row_count = static_cast<index_t>($rows);
$counts$placement$cursor  const LoadA load_a(p$input_a, $arguments_a);
  const LoadB load_b(p$input_b, $arguments_b);
  Block block;
  block.multiply(shared, load_a, load_b, cursor);
$partial$strips#pragma unroll
  for (int i = 0; i < Block::row_count; ++i) {
    const index_t m = first_row + Block::row(i);
    if (m >= row_count) continue;
$row#pragma unroll
    for (int j = 0; j < Block::run_count<$lanes>; ++j) {
      const int channel = first_column + Block::column<$lanes>(j);
      if (channel >= $columns) continue;
      const index_t element = at_row * $columns + channel;
$epilogue    }
  }
$moments}
)",
                        {{"index", index_type(p.is_wide)},
                         {"block", block_type(p, tile)},
                         {"load_a", a.type},
                         {"load_b", b.type},
                         {"threads", text(tile.threads())},
                         {"resident", text(resident)},
                         {"parameters", parameters.text()},
                         {"counts", indented(counts, 2)},
                         {"placement", indented(placement(p, tile), 2)},
                         {"cursor", indented(cursor(p), 2)},
                         {"input_a", text(p.a.input)},
                         {"input_b", text(p.b.input)},
                         {"arguments_a", a.arguments},
                         {"arguments_b", b.arguments},
                         {"partial", indented(partial, 2)},
                         {"strips", indented(strips.before, 2)},
                         {"moments", indented(strips.after, 2)},
                         {"rows", p.sums_batch && !is_matrix ? text(p.rows) : "rows"},
                         {"columns", columns},
                         {"row", indented(row_code(p, epilogue.text), 4)},
                         {"lanes", text(lanes)},
                         {"epilogue", indented(epilogue.text, 6)}});
  draft.grid.x = ceil_div(p.rows, tile.m) * ceil_div(p.columns, tile.n) * p.phases * p.splits;
  draft.threads = tile.threads();
  draft.shared_bytes = shared_bytes(p, tile);
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  return draft;
}

PartialSums partial_sums(const KernelSpec& spec, const GemmProblem& p) {
  const int lanes = sum_lanes(spec, p.value);
  const int64_t size = p.rows * p.columns;
  PartialSums sums{.runs = ceil_div(size, lanes), .lanes = lanes, .is_wide = p.is_wide, .bytes = p.splits * size * 4};
  // The size is an argument, so that the sums of all products are one kernel.
  sums.numbers = {{"splits", p.splits}, {"size", size}};
  constexpr int64_t kManyRuns = 8192;  // Enough blocks; of more, to begin takes longer than what they do.
  if (sums.runs >= kManyRuns) {
    constexpr int kEach = 4;
    sums.each = kEach;
    sums.runs = ceil_div(sums.runs, int64_t{kEach} * sums.block_runs()) * sums.block_runs();
    sums.place = fmt::format(
        "constexpr int each = {}, block_runs = {}, step = block_runs * {};\n"
        "const index_t first = (run / block_runs * each * block_runs + run % block_runs) * {};\n"
        "const auto element_of_run = [&](int e) {{ return first + e * step < size ? first + e * step : -1; }};\n"
        "int own = 0;\n"
        "for (int e = 0; e < each; ++e) own += element_of_run(e) < 0 ? 0 : 1;\n"
        "const f32* const at = partials + first;\n"
        "const long long stride = size;\n"
        "const int count = static_cast<int>(splits);\n",
        kEach, sums.block_runs(), lanes, lanes);
    return sums;
  }
  sums.place = fmt::format(
      "const index_t element = run * {};\n"
      "const bool valid = element < size;\n"
      "const f32* const at = partials + element;\n"
      "const long long stride = size;\n"
      "const int count = static_cast<int>(splits);\n",
      lanes);
  return sums;
}

}  // namespace difuse::codegen::cuda
