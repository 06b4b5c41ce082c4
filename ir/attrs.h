// The named attributes of ops. Each struct lists its fields once, in `visit`; printing, parsing and equality derive
// from that list.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ir/types.h"

namespace difuse::ir {

class Graph;

struct NoAttrs {
  template <class Visitor>
  void visit(Visitor&&) {}
};

/// input, state: a named value of the outside world.
struct LeafAttrs {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("name", name), v("dtype", dtype), v("shape", shape);
  }
};

/// constant: every element has the same value.
struct ConstantAttrs {
  double value = 0;
  DType dtype = DType::f32;
  Shape shape;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("value", value), v("dtype", dtype), v("shape", shape);
  }
};

/// literal: a small table (a noise schedule, frequencies), row-major.
struct LiteralAttrs {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<double> values;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("dtype", dtype), v("shape", shape), v("values", values);
  }
};

struct CastAttrs {
  DType dtype = DType::f32;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("dtype", dtype);
  }
};

/// carry: a state as contractions read it, cast to `dtype` or, where that is f32, rounded to tf32. It is made of the
/// state before the first step; an update of this name then makes it of the state's next value in every step.
struct CarryAttrs {
  std::string name;
  DType dtype = DType::bf16;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("name", name), v("dtype", dtype);
  }
};

/// broadcast: operand dimension i becomes result dimension dims[i] (increasing); the others repeat.
struct BroadcastAttrs {
  Shape shape;
  std::vector<int64_t> dims;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("shape", shape), v("dims", dims);
  }
};

/// Reductions drop these axes (increasing).
struct ReduceAttrs {
  std::vector<int64_t> axes;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("axes", axes);
  }
};

struct ReshapeAttrs {
  Shape shape;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("shape", shape);
  }
};

/// transpose: result dimension i is operand dimension perm[i].
struct TransposeAttrs {
  std::vector<int64_t> perm;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("perm", perm);
  }
};

struct ConcatAttrs {
  int64_t axis = 0;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("axis", axis);
  }
};

/// slice: elements [begin, end) of one axis.
struct SliceAttrs {
  int64_t axis = 0, begin = 0, end = 0;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("axis", axis), v("begin", begin), v("end", end);
  }
};

/// reverse: element i of one axis becomes its element extent - 1 - i.
struct ReverseAttrs {
  int64_t axis = 0;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("axis", axis);
  }
};

/// pad: zeros before and after along one axis; the gradient of slice.
struct PadAttrs {
  int64_t axis = 0, before = 0, after = 0;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("axis", axis), v("before", before), v("after", after);
  }
};

/// scatter_add: the number of rows of the result.
struct ScatterAttrs {
  int64_t rows = 0;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("rows", rows);
  }
};

/// conv_fprop. `pad` is the zero border on every side of the image.
struct ConvAttrs {
  int64_t stride = 1, pad = 0;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("stride", stride), v("pad", pad);
  }
};

/// conv_dgrad: `height` and `width` are those of the image whose gradient it gives.
struct ConvDgradAttrs {
  int64_t stride = 1, pad = 0, height = 0, width = 0;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("stride", stride), v("pad", pad), v("height", height), v("width", width);
  }
};

/// conv_wgrad: `r` and `s` are the filter's height and width.
struct ConvWgradAttrs {
  int64_t stride = 1, pad = 0, r = 0, s = 0;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("stride", stride), v("pad", pad), v("r", r), v("s", s);
  }
};

struct MatmulAttrs {
  bool transpose_a = false, transpose_b = false;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("transpose_a", transpose_a), v("transpose_b", transpose_b);
  }
};

/// How the 3*C channels of a qkv projection are laid out.
enum class QkvOrder : uint8_t {
  heads_first,  ///< [heads][q, k, v][width]: guided-diffusion's QKVAttentionLegacy.
  qkv_first,    ///< [q, k, v][heads][width]: guided-diffusion's QKVAttention ("new attention order").
};

struct AttentionAttrs {
  int64_t heads = 1;
  QkvOrder order = QkvOrder::heads_first;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("heads", heads), v("order", order);
  }
};

/// group_finish: the image size is needed because strips at the edge hold fewer pixels.
struct GroupFinishAttrs {
  int64_t groups = 1;
  double eps = 1e-5;
  int64_t height = 0, width = 0;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("groups", groups), v("eps", eps), v("height", height), v("width", width);
  }
};

/// Random ops: `stream` keeps draws of one step apart, `shape` is that of one sample.
struct RandomAttrs {
  int64_t stream = 0;
  Shape shape;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("stream", stream), v("shape", shape);
  }
};

/// random_int: uniform in [0, bound).
struct RandomIntAttrs {
  int64_t stream = 0;
  Shape shape;
  int64_t bound = 1;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("stream", stream), v("shape", shape), v("bound", bound);
  }
};

/// pack: operand i lies at elements [offsets[i], offsets[i] + its size) of a flat vector of `size` elements.
struct PackAttrs {
  int64_t size = 0;
  std::vector<int64_t> offsets;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("size", size), v("offsets", offsets);
  }
};

/// view: a tensor inside a flat vector, starting at element `offset`.
struct ViewAttrs {
  int64_t offset = 0;
  Shape shape;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("offset", offset), v("shape", shape);
  }
};

enum class WeightLayout : uint8_t {
  flipped,  ///< [Cout, R, S, Cin] -> [Cin, R, S, Cout] with r and s reversed: fprop on it is the stride-1 dgrad.
};

struct RepackAttrs {
  WeightLayout layout = WeightLayout::flipped;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("layout", layout);
  }
};

/// What a fusion grew from.
enum class Hero : uint8_t { pointwise, reduction, conv, matmul, attention };

/// fusion: the body's inputs are named "0", "1", ... and are the operands; its outputs "0", "1", ... are the results.
struct FusionAttrs {
  Hero hero = Hero::pointwise;
  std::shared_ptr<const Graph> body;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("hero", hero), v("body", body);
  }
};

std::string_view to_string(QkvOrder order);
std::string_view to_string(WeightLayout layout);
std::string_view to_string(Hero hero);

using Attrs =
    std::variant<NoAttrs, LeafAttrs, ConstantAttrs, LiteralAttrs, CastAttrs, CarryAttrs, BroadcastAttrs, ReduceAttrs,
                 ReshapeAttrs, TransposeAttrs, ConcatAttrs, SliceAttrs, ReverseAttrs, PadAttrs, ScatterAttrs, ConvAttrs,
                 ConvDgradAttrs, ConvWgradAttrs, MatmulAttrs, AttentionAttrs, GroupFinishAttrs, RandomAttrs,
                 RandomIntAttrs, PackAttrs, ViewAttrs, RepackAttrs, FusionAttrs>;

}  // namespace difuse::ir
