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
constexpr int64_t kLineRows = 8;
constexpr int64_t kDenseRows = 8;  // x is there several times.
// 128 instructions of 16 pixels and 192 columns take about 7 microseconds, what 20 MB of partial sums cost both
// kernels: 32 images of 8 x 8.
constexpr int64_t kWholePixels = 2048, kUsualBatch = 32;
// A pair saves about 4 microseconds of a card's memory, and what it waits for one another is a few per cent of the
// products: 50 microseconds of them.
constexpr double kMostPairedFlops = 48e9;

void cut(HaloWgrad& w) {
  const int64_t pixels = kUsualBatch * w.height * w.width;
  // In f32 a block has all rows of taps: so few blocks take longer than partial sums.
  w.is_whole = !w.is_float() && pixels <= kWholePixels;
  const double flops = 2.0 * static_cast<double>(pixels) * static_cast<double>(w.outputs * w.inputs * w.taps * w.taps);
  w.cluster = !w.is_whole && flops <= kMostPairedFlops ? 2 : 1;
  if (w.is_line()) {
    w.rows = kLineRows;
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

/// Whether the tensor cores multiply such operands as they are: in f32 those that were rounded.
bool takes_elements(const KernelSpec& spec, const HaloWgrad& w) {
  if (w.dtype == DType::bf16) return true;
  return w.dtype == DType::f32 && w.taps == 3 && !w.has_prologue() && spec.reads_tf32(w.image.inputs[0]) &&
         spec.reads_tf32(w.gradient);
}

bool takes_stride(const HaloWgrad& w) { return w.stride == 1 || (w.stride == 2 && w.taps == 3 && !w.is_float()); }

bool is_input(const ir::Graph& body, ir::Value v) { return body.node(v).op == Op::input; }

/// What x is: an input, which others may read as well, or what a prologue makes of one or two.
std::optional<ImageOperand> image_of(const ir::Graph& body, ir::Value gradient) {
  const ir::Value x = body.node(gradient).operands[0];
  if (is_input(body, x)) return ImageOperand{x, {input_number(body.node(x))}};
  const auto found = image_operand(body, gradient, x);
  return found && found->has_prologue ? found : std::nullopt;
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
  const auto x = image_of(body, w.value);
  if (!x || !is_input(body, node.operands[1])) return {};
  if (attrs.r != attrs.s || !is_epilogue(body, w.value)) return {};
  w.image = *x, w.gradient = input_number(body.node(node.operands[1]));
  w.first_inputs = body.type(body.find_input(std::to_string(w.image.inputs[0]))).shape[3];
  w.batch = image.shape[0], w.image_h = image.shape[1], w.image_w = image.shape[2], w.inputs = image.shape[3];
  w.height = gradient.shape[1], w.width = gradient.shape[2], w.outputs = gradient.shape[3];
  w.taps = attrs.r, w.pad = attrs.pad, w.stride = attrs.stride, w.members = spec.members;
  if (!takes_elements(spec, w) || !takes_stride(w)) return {};
  const auto aligned = [&](int input) { return spec.alignment[static_cast<size_t>(input)] >= kEngineAlignment; };
  const int64_t pixels = w.batch * std::max(w.image_h * w.image_w, w.height * w.width);
  if (!takes_halo(w.taps, w.pad, w.inputs, w.outputs, pixels, ir::size_of(w.dtype))) return {};
  if (!std::ranges::all_of(w.image.inputs, aligned) || !aligned(w.gradient) || sum_lanes(spec, w.value) != 4) return {};
  cut(w);
  if (w.is_dense() && w.has_prologue()) return {};
  return w;
}

std::string geometry(const HaloWgrad& w) {
  std::string_view kind = w.is_whole ? ", whole" : "";
  if (w.cluster > 1) kind = ", pairs";
  return fmt::format("engines {}{}x{}x{} by {}x{}x{}, filter {}x{}, pad {}{}{}{}{}", w.is_float() ? "tf32 " : "",
                     w.image_h, w.image_w, w.inputs, w.height, w.width, w.outputs, w.taps, w.taps, w.pad,
                     w.stride > 1 ? fmt::format(", stride {}", w.stride) : "", kind,
                     w.has_prologue() ? ", prologue" : "",
                     w.image.inputs.size() > 1 ? fmt::format(", first {}", w.first_inputs) : "");
}

}  // namespace difuse::codegen::cuda
