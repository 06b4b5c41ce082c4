// Ops that move elements: transpose, concat, slice, reverse, pad, gather, scatter_add, upsample, avg_pool, pack,
// repack.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "codegen/cpu/isa.h"
#include "codegen/cpu/kernels/access.h"
#include "codegen/cpu/kernels/calls/calls.h"
#include "ir/error.h"

namespace difuse::codegen::cpu {
namespace {

using ir::Shape;

/// Bytes of what lies outside, at and inside one axis of a row-major tensor.
struct Rows {
  int64_t outer = 1, extent = 1, inner = 1;
  /// `first`: axes before it belong to the image.
  Rows(const ir::Type& type, int64_t axis, int64_t first) : inner(ir::size_of(type.dtype)) {
    for (int64_t d = first; d < type.rank(); ++d) {
      (d < axis ? outer : d == axis ? extent : inner) *= type.shape[static_cast<size_t>(d)];
    }
  }
  int64_t run() const { return extent * inner; }
};

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

/// Copies elements in the order of `groups`, which say where each lies in `from`.
template <class T>
void gather_elements(const std::vector<StridedAxis>& groups, int64_t n, const std::byte* from, std::byte* to) {
  const int64_t step = groups.back().stride;
  for_runs(groups, 0, n, [&](int64_t done, int64_t count, int64_t at) {
    const T* in = reinterpret_cast<const T*>(from) + at;
    T* out = reinterpret_cast<T*>(to) + done;
    for (int64_t i = 0; i < count; ++i) out[i] = in[i * step];
  });
}

}  // namespace

NodeCalls transpose_calls(const CallContext& context) {
  const auto& perm = context.node.as<ir::TransposeAttrs>().perm;
  const ir::Type& type = context.node.types[0];
  const Shape strides = strides_of(context.operands[0].shape);
  if (perm.empty()) {
    CallSpec copy{{operand(0, false)}, {result(0, false)}};
    copy.run = [bytes = type.bytes()](const CallArguments& a) { copy_bytes(a.out[0], a.in[0], bytes); };
    return {{std::move(copy)}, {}, {}, 0};
  }
  // One call makes one index of the result's first axis.
  std::vector<StridedAxis> axes;
  for (size_t d = 1; d < perm.size(); ++d) axes.push_back({type.shape[d], strides[static_cast<size_t>(perm[d])]});
  std::vector<StridedAxis> groups = collapse(axes);
  if (groups.empty()) groups.push_back({1, 1});
  const bool by_image = perm[0] == 0;
  CallSpec call{{operand(0, by_image)}, {result(0, true)}};
  call.images = type.shape[0];
  const int64_t size = ir::size_of(type.dtype), n = type.elements() / call.images;
  const int64_t step = by_image ? 0 : strides[static_cast<size_t>(perm[0])] * size;
  call.run = [groups, n, size, step](const CallArguments& a) {
    const std::byte* from = a.in[0] + a.image * step;
    if (size == 4) gather_elements<uint32_t>(groups, n, from, a.out[0]);
    if (size == 2) gather_elements<uint16_t>(groups, n, from, a.out[0]);
    if (size == 1) gather_elements<uint8_t>(groups, n, from, a.out[0]);
  };
  return {{std::move(call)}, {}, {}, 0};
}

NodeCalls concat_calls(const CallContext& context) {
  const int64_t axis = context.node.as<ir::ConcatAttrs>().axis;
  const bool by_image = axis > 0;
  const Rows to(context.node.types[0], axis, by_image ? 1 : 0);
  std::vector<int64_t> runs;
  CallSpec call;
  for (size_t i = 0; i < context.operands.size(); ++i) {
    call.in.push_back(operand(i, by_image));
    runs.push_back(Rows(context.operands[i], axis, by_image ? 1 : 0).run());
  }
  call.out = {result(0, by_image)};
  call.images = by_image ? context.node.types[0].shape[0] : 1;
  call.run = [runs, to](const CallArguments& a) {
    int64_t begin = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      for (int64_t o = 0; o < to.outer; ++o) {
        copy_bytes(a.out[0] + o * to.run() + begin, a.in[i] + o * runs[i], runs[i]);
      }
      begin += runs[i];
    }
  };
  return {{std::move(call)}, {}, {}, 0};
}

NodeCalls slice_calls(const CallContext& context) {
  const auto& attrs = context.node.as<ir::SliceAttrs>();
  const bool by_image = attrs.axis > 0;
  const Rows from(context.operands[0], attrs.axis, by_image ? 1 : 0);
  CallSpec call{{operand(0, by_image)}, {result(0, by_image)}};
  call.images = by_image ? context.node.types[0].shape[0] : 1;
  call.run = [from, begin = attrs.begin, run = (attrs.end - attrs.begin) * from.inner](const CallArguments& a) {
    for (int64_t o = 0; o < from.outer; ++o) {
      copy_bytes(a.out[0] + o * run, a.in[0] + o * from.run() + begin * from.inner, run);
    }
  };
  return {{std::move(call)}, {}, {}, 0};
}

NodeCalls reverse_calls(const CallContext& context) {
  const int64_t axis = context.node.as<ir::ReverseAttrs>().axis;
  const bool by_image = axis > 0;
  const Rows rows(context.operands[0], axis, by_image ? 1 : 0);
  CallSpec call{{operand(0, by_image)}, {result(0, by_image)}};
  call.images = by_image ? context.node.types[0].shape[0] : 1;
  call.run = [rows](const CallArguments& a) {
    for (int64_t o = 0; o < rows.outer; ++o) {
      for (int64_t i = 0; i < rows.extent; ++i) {
        copy_bytes(a.out[0] + o * rows.run() + i * rows.inner,
                   a.in[0] + o * rows.run() + (rows.extent - 1 - i) * rows.inner, rows.inner);
      }
    }
  };
  return {{std::move(call)}, {}, {}, 0};
}

NodeCalls pad_calls(const CallContext& context) {
  const auto& attrs = context.node.as<ir::PadAttrs>();
  const bool by_image = attrs.axis > 0;
  const Rows from(context.operands[0], attrs.axis, by_image ? 1 : 0);
  CallSpec call{{operand(0, by_image)}, {result(0, by_image)}};
  call.images = by_image ? context.node.types[0].shape[0] : 1;
  const int64_t before = attrs.before * from.inner, after = attrs.after * from.inner;
  call.run = [from, before, after](const CallArguments& a) {
    std::byte* to = a.out[0];
    for (int64_t o = 0; o < from.outer; ++o) {
      std::memset(to, 0, static_cast<size_t>(before));
      copy_bytes(to + before, a.in[0] + o * from.run(), from.run());
      std::memset(to + before + from.run(), 0, static_cast<size_t>(after));
      to += before + from.run() + after;
    }
  };
  return {{std::move(call)}, {}, {}, 0};
}

NodeCalls gather_calls(const CallContext& context) {
  const int64_t rows = context.operands[0].shape[0], row_bytes = context.operands[0].bytes() / rows;
  CallSpec call{{operand(0, false), operand(1, true)}, {result(0, true)}};
  call.images = context.operands[1].shape[0];
  call.run = [rows, row_bytes](const CallArguments& a) {
    const int64_t row = a.input<int32_t>(1)[0];
    if (row < 0 || row >= rows) throw Error(fmt::format("gather: index {} of {} rows", row, rows));
    copy_bytes(a.out[0], a.in[0] + row * row_bytes, row_bytes);
  };
  return {{std::move(call)}, {}, {}, 0};
}

namespace {
template <class T>
void add_rows(const CallArguments& a, int64_t count, int64_t rows, int64_t inner) {
  T* out = a.output<T>(0);
  std::fill_n(out, rows * inner, T{0});
  for (int64_t n = 0; n < count; ++n) {
    const int64_t row = a.input<int32_t>(0)[n];
    if (row < 0 || row >= rows) throw Error(fmt::format("scatter_add: index {} of {} rows", row, rows));
    const T* from = a.input<T>(1) + n * inner;
    for (int64_t i = 0; i < inner; ++i) out[row * inner + i] += from[i];
  }
}
}  // namespace

NodeCalls scatter_add_calls(const CallContext& context) {
  const ir::Type& type = context.node.types[0];
  const int64_t count = context.operands[0].shape[0], rows = type.shape[0], inner = type.elements() / rows;
  CallSpec call{{operand(0, false), operand(1, false)}, {result(0, false)}};
  call.run = [count, rows, inner, is_float = type.dtype == ir::DType::f32](const CallArguments& a) {
    if (is_float) {
      add_rows<float>(a, count, rows, inner);
    } else {
      add_rows<uint32_t>(a, count, rows, inner);
    }
  };
  return {{std::move(call)}, {}, {}, 0};
}

NodeCalls upsample_calls(const CallContext& context) {
  const Shape& s = context.operands[0].shape;
  CallSpec call{{operand(0, true)}, {result(0, true)}};
  call.images = s[0];
  call.run = [h = s[1], w = s[2], pixel = s[3] * ir::size_of(context.operands[0].dtype)](const CallArguments& a) {
    const std::byte* from = a.in[0];
    std::byte* to = a.out[0];
    for (int64_t y = 0; y < h; ++y) {
      std::byte* const row = to;
      for (int64_t x = 0; x < w; ++x, from += pixel) {
        copy_bytes(to, from, pixel);
        copy_bytes(to + pixel, from, pixel);
        to += 2 * pixel;
      }
      copy_bytes(to, row, 2 * w * pixel);
      to += 2 * w * pixel;
    }
  };
  return {{std::move(call)}, {}, {}, 0};
}

namespace {
struct PoolRow {
  DIFUSE_ALWAYS_INLINE static void run(const float* __restrict top, const float* __restrict bottom,
                                       float* __restrict out, int64_t width, int64_t channels) {
    for (int64_t x = 0; x < width; ++x) {
      const float* a = top + 2 * x * channels;
      const float* b = bottom + 2 * x * channels;
      float* o = out + x * channels;
      for (int64_t c = 0; c < channels; ++c) {
        o[c] = 0.25f * ((a[c] + a[channels + c]) + (b[c] + b[channels + c]));
      }
    }
  }
};
}  // namespace

NodeCalls avg_pool_calls(const CallContext& context) {
  const Shape& s = context.node.types[0].shape;
  CallSpec call{{operand(0, true)}, {result(0, true)}};
  call.images = s[0];
  call.run = [h = s[1], w = s[2], c = s[3], pool = pick<PoolRow>(best_isa())](const CallArguments& a) {
    for (int64_t y = 0; y < h; ++y) {
      const float* top = a.input(0) + 4 * y * w * c;
      pool(top, top + 2 * w * c, a.output(0) + y * w * c, w, c);
    }
  };
  return {{std::move(call)}, {}, {}, 0};
}

// Each call brings one operand to its slice, where it is not already there, and zeroes the gap behind it.
NodeCalls pack_calls(const CallContext& context) {
  const auto& attrs = context.node.as<ir::PackAttrs>();
  const int64_t size = ir::size_of(context.node.types[0].dtype);
  struct Part {
    int64_t begin, bytes, next;  // bytes; where the next slice begins
  };
  std::vector<Part> parts;
  CallSpec call;
  for (size_t i = 0; i < attrs.offsets.size(); ++i) {
    call.in.push_back(operand(i, false));
    const int64_t next = i + 1 < attrs.offsets.size() ? attrs.offsets[i + 1] : attrs.size;
    parts.push_back({attrs.offsets[i] * size, context.operands[i].bytes(), next * size});
  }
  call.out = {result(0, false)};
  call.images = std::ssize(parts);
  call.expects_overlap = true;
  call.run = [parts](const CallArguments& a) {
    const auto i = static_cast<size_t>(a.image);
    const Part& part = parts[i];
    std::byte* to = a.out[0] + part.begin;
    if (a.in[i] != to) copy_bytes(to, a.in[i], part.bytes);
    std::memset(to + part.bytes, 0, static_cast<size_t>(part.next - part.begin - part.bytes));
    if (i == 0) std::memset(a.out[0], 0, static_cast<size_t>(part.begin));
  };
  return {{std::move(call)}, {}, {}, 0};
}

namespace {
template <class T>
void flip_channel(const CallArguments& a, int64_t k_count, int64_t taps, int64_t channels) {
  const T* in = a.input<T>(0) + a.image;
  T* out = a.output<T>(0);
  for (int64_t tap = 0; tap < taps; ++tap) {
    T* row = out + (taps - 1 - tap) * k_count;
    for (int64_t k = 0; k < k_count; ++k) row[k] = in[(k * taps + tap) * channels];
  }
}
}  // namespace

NodeCalls repack_calls(const CallContext& context) {
  const Shape& s = context.operands[0].shape;
  CallSpec call{{operand(0, false)}, {result(0, true)}};  // one call for each input channel
  call.images = s[3];
  call.run = [k = s[0], taps = s[1] * s[2], c = s[3],
              size = ir::size_of(context.operands[0].dtype)](const CallArguments& a) {
    if (size == 4) flip_channel<uint32_t>(a, k, taps, c);
    if (size == 2) flip_channel<uint16_t>(a, k, taps, c);
    if (size == 1) flip_channel<uint8_t>(a, k, taps, c);
  };
  return {{std::move(call)}, {}, {}, 0};
}

}  // namespace difuse::codegen::cpu
