#include "codegen/cuda/emit/wgrad_wgmma/problem.h"

#include <algorithm>

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
// 64 x 192 sums are 96 registers of a thread, and three consumers have room for them.
constexpr int64_t kMostChunks = 3;
constexpr int64_t kMostSlots = 8;
// Of a group's products: with less work, writing its partial sums and adding them costs more than the processor saves.
constexpr int64_t kLeastCycles = 4608;

/// The fewest of equal parts.
int64_t chunks_of(int64_t channels) {
  const int64_t all = ceil_div(channels, 64);
  return ceil_div(all, ceil_div(all, kMostChunks));
}

void cut(HaloWgrad& w) {
  if (w.is_line()) {
    w.rows = kLineRows;
    w.row_chunks = chunks_of(w.outputs), w.column_chunks = chunks_of(w.inputs);
    return;
  }
  // An instruction's 16 pixels are two rows.
  const int64_t pairs = ceil_div(ceil_div(w.height, ceil_div(w.height, kTileRows)), 2);
  w.rows = 2 * pairs;
  w.images = kTileRows / w.rows;
}

}  // namespace

int64_t HaloWgrad::tiles() const {
  if (is_line()) return ceil_div(batch * height * width, pixels());
  return ceil_div(width, 8) * ceil_div(height, rows) * ceil_div(batch, images);
}

int64_t HaloWgrad::blocks() const { return ceil_div(outputs, 64 * row_chunks) * ceil_div(inputs, 64 * column_chunks); }

int64_t HaloWgrad::columns() const { return is_line() ? 64 * column_chunks : 192; }

int64_t HaloWgrad::block_sums() const { return consumers() * 64 * columns(); }

int64_t HaloWgrad::shared_bytes(int64_t slots) const {
  const int64_t x = column_chunks * images * (rows + taps - 1) * (8 + taps - 1) * 128;
  return slots * (ceil_div(x, 1024) * 1024 + row_chunks * pixels() * 128 + 2 * 8);
}

int64_t HaloWgrad::slots(const ir::DeviceSpec& device) const {
  return std::min(kMostSlots, device.shared_memory_bytes / shared_bytes(1));
}

int64_t HaloWgrad::unit_cycles() const { return pixels() / 16 * consumers() * columns() / 2; }

int64_t HaloWgrad::groups(const ir::DeviceSpec& device) const {
  const int64_t units = blocks() * tiles();
  const int64_t all = std::clamp<int64_t>(units * unit_cycles() / kLeastCycles, 1, device.processors);
  const int64_t even = all / blocks() * blocks();
  return even > 0 && units * (all - even) < all * even ? even : all;
}

std::optional<HaloWgrad> halo_wgrad(const KernelSpec& spec) {
  const ir::Graph& body = spec.body;
  HaloWgrad w;
  w.value = find_contraction(body);
  if (spec.device.architecture != 90 || !w.value.valid() || body.node(w.value).op != Op::conv_wgrad) return {};
  const ir::Node& node = body.node(w.value);
  const auto& attrs = node.as<ir::ConvWgradAttrs>();
  const ir::Type &image = body.type(node.operands[0]), &gradient = body.type(node.operands[1]);
  if (image.dtype != DType::bf16 || gradient.dtype != DType::bf16) return {};
  if (attrs.stride != 1 || attrs.r != attrs.s || !is_epilogue(body, w.value)) return {};
  w.image = input_number(body.node(node.operands[0])), w.gradient = input_number(body.node(node.operands[1]));
  w.batch = image.shape[0], w.image_h = image.shape[1], w.image_w = image.shape[2], w.inputs = image.shape[3];
  w.height = gradient.shape[1], w.width = gradient.shape[2], w.outputs = gradient.shape[3];
  w.taps = attrs.r, w.pad = attrs.pad;
  const auto aligned = [&](int input) { return spec.alignment[static_cast<size_t>(input)] >= kEngineAlignment; };
  const int64_t pixels = w.batch * std::max(w.image_h * w.image_w, w.height * w.width);
  if (!takes_halo(w.taps, w.pad, w.inputs, w.outputs, pixels)) return {};
  if (!aligned(w.image) || !aligned(w.gradient) || sum_lanes(spec, w.value) != 4) return {};
  cut(w);
  return w;
}

}  // namespace difuse::codegen::cuda
