#include "codegen/cuda/emit/wgrad_wgmma/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/contraction/sum.h"
#include "codegen/cuda/emit/epilogue.h"
#include "codegen/cuda/emit/halo.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/node_body.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {

using ir::DType;
using ir::Op;

namespace {

constexpr int64_t kTileRows = 16;  // Of 8 pixels: 128 pixels amortise the barriers, and five tiles fit.
constexpr int64_t kLineRows = 8, kFloatLineRows = 4;
constexpr int64_t kDenseRows = 8;  // x is there several times.
// 128 instructions of 16 pixels and 192 columns take about 7 microseconds, what 20 MB of partial sums cost both
// kernels: 32 images of 8 x 8.
constexpr int64_t kWholePixels = 2048, kUsualBatch = 32;
// A pair saves about 4 microseconds of a card's memory, and what it waits for one another is a few per cent of the
// products: 50 microseconds of them.
constexpr double kMostPairedFlops = 48e9;

void cut(HaloWgrad& w) {
  const int64_t pixels = kUsualBatch * w.height * w.width;
  // In f32 blocks are as large as they can be, for what is turned: so few take longer than partial sums.
  w.is_whole = !w.is_float() && pixels <= kWholePixels;
  const double flops = 2.0 * static_cast<double>(pixels) * static_cast<double>(w.outputs * w.inputs * w.taps * w.taps);
  w.cluster = !w.is_whole && flops <= kMostPairedFlops ? 2 : 1;
  if (w.is_line()) {
    w.rows = w.is_float() ? kFloatLineRows : kLineRows;
    return;
  }
  w.abreast = w.is_float() ? 1 : images_abreast(w.width);
  const int64_t most = w.is_dense() ? kDenseRows : kTileRows;
  // An instruction's 16 pixels are two rows.
  const int64_t pairs = ceil_div(ceil_div(w.height, ceil_div(w.height, most)), 2);
  w.rows = 2 * pairs;
  w.images = most / w.rows;
  // Each image has a border: two of floats' tiles fit if it is that of one image.
  if (w.is_float()) w.images = std::clamp((kTileRows + w.taps - 1) / (w.rows + w.taps - 1), int64_t{1}, w.images);
}

bool is_input(const ir::Graph& body, ir::Value v) { return body.node(v).op == Op::input; }

/// Whether the tensor cores multiply such operands as they are: in f32 those that were rounded.
bool takes_elements(const KernelSpec& spec, const HaloWgrad& w) {
  if (w.dtype == DType::bf16) return true;
  return w.dtype == DType::f32 && is_input(spec.body, w.image.value) && is_input(spec.body, w.gradient.value) &&
         spec.reads_tf32(w.image.inputs[0]) && spec.reads_tf32(w.gradient.inputs[0]);
}

bool takes_stride(const HaloWgrad& w) { return w.stride == 1 || (w.stride == 2 && w.taps == 3 && !w.is_float()); }

/// What x or dy is: an input, which others may read as well, or one or two, and what a prologue makes of them.
std::optional<ImageOperand> image_of(const ir::Graph& body, ir::Value gradient, size_t operand) {
  const ir::Value v = body.node(gradient).operands[operand];
  if (is_input(body, v)) return ImageOperand{v, {input_number(body.node(v))}};
  return image_operand(body, gradient, v);
}

/// Whether prologues read none of what the copy engine does, but what it copies for them.
bool are_apart(const ImageOperand& x, const ImageOperand& dy) {
  const auto is_read = [&](int input) { return input == dy.inputs[0] || input == dy.other; };
  return std::ranges::none_of(x.inputs, is_read) && x.other != dy.inputs[0];
}

}  // namespace

int64_t HaloWgrad::tiles() const {
  if (is_line()) return ceil_div(batch * height * width, pixels());
  return ceil_div(width, 8 / abreast) * ceil_div(height, rows) * ceil_div(batch, images * abreast);
}

int64_t HaloWgrad::splits() const { return ceil_div(tiles() * pixels(), kWholePixels); }

std::optional<HaloWgrad> halo_wgrad(const KernelSpec& spec) {
  const ir::Graph& body = spec.body;
  HaloWgrad w;
  w.value = only_contraction(body);
  if (spec.device.architecture != 90 || !w.value.valid() || body.node(w.value).op != Op::conv_wgrad) return {};
  const ir::Node& node = body.node(w.value);
  const auto& attrs = node.as<ir::ConvWgradAttrs>();
  const ir::Type &image = body.type(node.operands[0]), &gradient = body.type(node.operands[1]);
  w.dtype = image.dtype;
  if (gradient.dtype != w.dtype) return {};
  const auto x = image_of(body, w.value, 0), dy = image_of(body, w.value, 1);
  if (!x || !dy || dy->inputs.size() > 1) return {};
  if (!are_apart(*x, *dy)) return {};  // One tensor has one box that the copy engine takes.
  if (attrs.r != attrs.s || !is_epilogue(body, w.value)) return {};
  w.image = *x, w.gradient = *dy;
  w.first_inputs = body.type(body.find_input(std::to_string(w.image.inputs[0]))).shape[3];
  w.batch = image.shape[0], w.image_h = image.shape[1], w.image_w = image.shape[2], w.inputs = image.shape[3];
  w.height = gradient.shape[1], w.width = gradient.shape[2], w.outputs = gradient.shape[3];
  w.taps = attrs.r, w.pad = attrs.pad, w.stride = attrs.stride, w.members = spec.members;
  if (!takes_elements(spec, w) || !takes_stride(w)) return {};
  const auto aligned = [&](int input) { return spec.alignment[static_cast<size_t>(input)] >= kEngineAlignment; };
  const int64_t pixels = w.batch * std::max(w.image_h * w.image_w, w.height * w.width);
  if (!takes_halo(w.taps, w.pad, w.inputs, w.outputs, pixels, ir::size_of(w.dtype))) return {};
  if (!std::ranges::all_of(w.image.inputs, aligned) || !aligned(w.gradient.inputs[0])) return {};
  for (const int other : {w.image.other, w.gradient.other}) {
    if (other >= 0 && !aligned(other)) return {};
  }
  if (sum_lanes(spec, w.value) != 4) return {};
  cut(w);
  if (w.is_dense() && w.has_prologue()) return {};
  return w;
}

std::string geometry(const HaloWgrad& w) {
  std::string_view kind = w.is_whole ? ", whole" : "";
  if (w.cluster > 1) kind = ", pairs";
  return fmt::format("engines {}{}x{}x{} by {}x{}x{}, filter {}x{}, pad {}{}{}{}{}{}", w.is_float() ? "tf32 " : "",
                     w.image_h, w.image_w, w.inputs, w.height, w.width, w.outputs, w.taps, w.taps, w.pad,
                     w.stride > 1 ? fmt::format(", stride {}", w.stride) : "", kind,
                     w.image.has_prologue ? ", prologue" : "", w.gradient.has_prologue ? ", of dy" : "",
                     w.image.inputs.size() > 1 ? fmt::format(", first {}", w.first_inputs) : "");
}

}  // namespace difuse::codegen::cuda
