#include "codegen/cuda/emit/contraction/problem.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/node_body.h"
#include "ir/op.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda {

using ir::DType;
using ir::Op;

namespace {

constexpr int64_t kUsualBatch = 32, kUsualRows = 4096;
// Of a matrix product whose sides are all but the batch at most kNarrow: a projection of an image's embedding.
constexpr int64_t kNarrow = 2048, kUsualWidth = 256, kUsualImages = 128;
// A split's sum runs over at least this many products, and is one of k in steps of any tile's depth.
constexpr int64_t kLeastSplitDepth = 256, kSplitUnit = 64;
// Results of one block, for counting splits: every tile's choice must give the same sums.
constexpr int64_t kSplitTile = 64 * 128;
constexpr int64_t kMostSplits = 256;
constexpr const char* kProducts[] = {"bf16", "f16", "tf32", "f32"};

bool is_contraction(Op op) {
  return op == Op::conv_fprop || op == Op::conv_dgrad || op == Op::conv_wgrad || op == Op::matmul;
}

/// The input that operand `i` of the contraction is, perhaps rounded.
GemmProblem::Operand operand_of(const ir::Graph& body, ir::Value contraction, size_t i) {
  const ir::Node* node = &body.node(body.node(contraction).operands[i]);
  GemmProblem::Operand operand;
  operand.rounded = node->op == Op::round_tf32;
  if (operand.rounded) node = &body.node(node->operands[0]);
  operand.input = input_number(*node);
  return operand;
}

/// A convolution with a 1x1 filter, no stride and no border is a matrix product: its images are single pixels.
void flatten_pointwise(GemmProblem& p) {
  if (p.r != 1 || p.s != 1 || p.stride != 1 || p.pad != 0 || p.strip != 0) return;
  p.height = p.width = p.rows_h = p.rows_w = 1;
}

void set_conv(GemmProblem& p, const ir::Graph& body, const ir::Node& node) {
  const ir::Shape& first = body.type(node.operands[0]).shape;
  const ir::Shape& second = body.type(node.operands[1]).shape;
  const ir::Shape& result = node.types[0].shape;
  const int64_t batch = first[0];
  p.height = first[1], p.width = first[2], p.channels = first[3];
  p.result_h = result[1], p.result_w = result[2];
  int64_t pixels = 0;
  if (p.op == Op::conv_fprop) {
    const auto& a = node.as<ir::ConvAttrs>();
    p.stride = a.stride, p.pad = a.pad, p.r = second[1], p.s = second[2];
    p.rows_h = result[1], p.rows_w = result[2];
    p.columns = second[0];
    if (!reduced_values(body).empty()) p.strip = std::min(ir::kStripHeight, result[1]);
  } else if (p.op == Op::conv_dgrad) {
    const auto& a = node.as<ir::ConvDgradAttrs>();
    p.stride = a.stride, p.pad = a.pad, p.r = second[1], p.s = second[2];
    p.phases = a.stride * a.stride;
    p.rows_h = ceil_div(result[1], a.stride), p.rows_w = ceil_div(result[2], a.stride);
    p.columns = second[3];
    p.b.k_major = false;
  } else {
    const auto& a = node.as<ir::ConvWgradAttrs>();
    p.stride = a.stride, p.pad = a.pad, p.r = a.r, p.s = a.s;
    p.rows_h = second[1], p.rows_w = second[2];
    p.rows = p.usual_rows = second[3];
    p.columns = a.r * a.s * first[3];
    p.a.k_major = p.b.k_major = false;
    p.sums_batch = true;
  }
  pixels = p.rows_h * p.rows_w;
  (p.sums_batch ? p.depth : p.rows) = batch * pixels;
  (p.sums_batch ? p.usual_depth : p.usual_rows) = kUsualBatch * pixels;
  if (!p.sums_batch) p.depth = p.usual_depth = ceil_div(p.r, p.stride) * ceil_div(p.s, p.stride) * p.channels;
  if (p.op == Op::conv_fprop) p.depth = p.usual_depth = p.r * p.s * p.channels;
  p.usual_columns = p.columns;
  flatten_pointwise(p);
}

void set_matmul(GemmProblem& p, const ir::Graph& body, const ir::Node& node) {
  const auto& a = node.as<ir::MatmulAttrs>();
  const ir::Shape& first = body.type(node.operands[0]).shape;
  p.rows = node.types[0].shape[0], p.columns = node.types[0].shape[1];
  p.depth = first[a.transpose_a ? 0 : 1];
  p.a.k_major = !a.transpose_a, p.b.k_major = a.transpose_b;
  p.sums_batch = a.transpose_a;
  const bool is_narrow = p.columns <= kNarrow && (a.transpose_a ? p.rows : p.depth) <= kNarrow;
  const auto usual = [&](int64_t extent) { return is_narrow ? kUsualWidth : extent; };
  const int64_t batch = is_narrow ? kUsualImages : kUsualRows;
  p.usual_columns = usual(p.columns);
  p.usual_rows = a.transpose_a ? usual(p.rows) : batch;
  p.usual_depth = a.transpose_a ? batch : usual(p.depth);
}

void set_copies(GemmProblem& p, const KernelSpec& spec) {
  const int64_t size = p.element_bytes();
  const auto copy = [&](const GemmProblem::Operand& o, int64_t extent) {
    return copy_elements(extent, spec.alignment[static_cast<size_t>(o.input)], size);
  };
  switch (p.op) {
    case Op::conv_fprop:
      p.a.copy = copy(p.a, p.channels), p.b.copy = copy(p.b, p.channels);
      break;
    case Op::conv_dgrad:
      p.a.copy = copy(p.a, p.channels), p.b.copy = copy(p.b, p.columns);
      break;
    case Op::conv_wgrad:
      p.a.copy = copy(p.a, p.rows), p.b.copy = copy(p.b, p.channels);
      break;
    default:
      // A row as long as the batch may be of any length.
      p.a.copy = copy(p.a, p.a.k_major ? p.depth : p.rows);
      p.b.copy = !p.b.k_major ? copy(p.b, p.columns) : p.sums_batch ? 1 : copy(p.b, p.depth);
  }
}

void set_splits(GemmProblem& p, const ir::DeviceSpec& device) {
  if (!p.sums_batch) return;
  const int64_t results = ceil_div(p.rows, 64) * 64 * (ceil_div(p.columns, 64) * 64);
  const int64_t wanted = std::min(kMostSplits, 2 * device.processors * kSplitTile / results);
  p.is_split = wanted >= 2;
  if (p.is_split) {
    p.splits = std::clamp<int64_t>(p.depth / kLeastSplitDepth, 1, wanted);
    p.usual_splits = std::clamp<int64_t>(p.usual_depth / kLeastSplitDepth, 1, wanted);
  }
  p.split_depth = ceil_div(ceil_div(p.depth, p.splits), kSplitUnit) * kSplitUnit;
  p.splits = ceil_div(p.depth, p.split_depth);
}

}  // namespace

ir::Value only_contraction(const ir::Graph& body) {
  const std::vector<bool> live = body.live();
  ir::Value found;
  for (int id = 0; id < body.size(); ++id) {
    if (!live[static_cast<size_t>(id)] || !ir::has_trait(body.node(id), ir::kContraction)) continue;
    if (found.valid() || !is_contraction(body.node(id).op)) return {};
    found = {id, 0};
  }
  return found;
}

ir::Value find_contraction(const ir::Graph& body) {
  const ir::Value found = only_contraction(body);
  if (!found.valid()) return {};
  for (ir::Value v : body.node(found).operands) {
    if (body.node(v).op == Op::round_tf32) v = body.node(v).operands[0];
    if (body.node(v).op != Op::input) return {};
  }
  return found;
}

GemmProblem gemm_problem(const KernelSpec& spec) {
  const ir::Graph& body = spec.body;
  GemmProblem p;
  p.value = find_contraction(body);
  const ir::Node& node = body.node(p.value);
  p.op = node.op;
  p.dtype = body.type(node.operands[0]).dtype;
  // What the gradient's rows are comes second in conv_wgrad: A is dy, B the image's patches.
  const size_t first = p.op == Op::conv_wgrad ? 1 : 0;
  p.a = operand_of(body, p.value, first);
  p.b = operand_of(body, p.value, 1 - first);
  const auto is_tf32 = [&](const GemmProblem::Operand& o) { return o.rounded || spec.reads_tf32(o.input); };
  p.product = p.dtype == DType::bf16         ? GemmProblem::Product::bf16
              : p.dtype == DType::f16        ? GemmProblem::Product::f16
              : is_tf32(p.a) && is_tf32(p.b) ? GemmProblem::Product::tf32
                                             : GemmProblem::Product::f32;
  if (p.op == Op::matmul) {
    set_matmul(p, body, node);
  } else {
    set_conv(p, body, node);
  }
  set_copies(p, spec);
  set_splits(p, spec.device);
  // Rows past the end have offsets too, though nothing is read or written there.
  p.is_wide = needs_wide_index(body, int64_t{1} << 25);
  return p;
}

std::string geometry(const GemmProblem& p) {
  const auto operand = [](const GemmProblem::Operand& o) {
    return fmt::format("{} x{}{}", o.k_major ? "k" : "mn", o.copy, o.rounded ? " rounded" : "");
  };
  const std::string form =
      p.op == Op::matmul ? fmt::format("{} by {}", p.usual_columns, p.sums_batch ? p.usual_rows : p.usual_depth)
                         : fmt::format("{}x{}x{}, {}x{} rows, {} columns, filter {}x{}, stride {}, pad {}", p.height,
                                       p.width, p.channels, p.rows_h, p.rows_w, p.columns, p.r, p.s, p.stride, p.pad);
  return fmt::format("{} {}, a {}, b {}{}", kProducts[static_cast<int>(p.product)], form, operand(p.a), operand(p.b),
                     p.is_wide ? ", wide" : "");
}

std::string to_string(const GemmProblem& p) {
  const auto operand = [](const GemmProblem::Operand& o) {
    return fmt::format("{}-major x{}", o.k_major ? "k" : "mn", o.copy);
  };
  return fmt::format("{} m {} n {} k {} {} a {} b {} splits {}{}", ir::to_string(p.op), p.rows, p.columns, p.depth,
                     kProducts[static_cast<int>(p.product)], operand(p.a), operand(p.b), p.splits,
                     p.is_wide ? " wide" : "");
}

}  // namespace difuse::codegen::cuda
