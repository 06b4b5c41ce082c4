// A node's computation (a fusion's body, or one op) as items over values: what the scheduler orders.
//
// Reshapes, views and other ops that move nothing are gone: a Ref says where in a value an operand lies and what shape
// it is read in. A constant is a number.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/cpu/kernels/access.h"
#include "codegen/cpu/kernels/calls/calls.h"
#include "ir/graph.h"

namespace difuse::codegen::cpu {

/// `type.elements()` elements of a value from element `offset` on.
struct Ref {
  int value = -1;
  int64_t offset = 0;
  ir::Type type;
};

struct BodyValue {
  ir::Type type;
  int item = -1;                   ///< What makes it; -1 for what is there before.
  Place memory;                    ///< Where the whole of it lies, where it lies in memory.
  std::optional<double> constant;  ///< Every element.
  Place destination;               ///< Where a result is wanted.
};

struct Item {
  enum class Kind : uint8_t { elementwise, copy, broadcast, reduce, call } kind;
  const ir::Node* node = nullptr;  ///< Null for a copy.
  std::vector<Ref> in;
  std::vector<int> out;
  CallSpec call = {};

  // What the schedule says.
  bool by_image = false;  ///< Runs image by image; otherwise on whole values.
  int level = 0, step = 0;
  int group = -1;

  bool is_block() const { return kind != Kind::call; }
};

struct Body {
  std::vector<BodyValue> values;
  std::vector<Item> items;  ///< Operands are made before they are read.
  std::vector<std::unique_ptr<std::byte[]>> fixed;
  std::string implementation;
  int64_t flops = 0;

  const BodyValue& value(const Ref& r) const { return values[static_cast<size_t>(r.value)]; }
  /// Whether `r` is all of its value.
  bool is_whole(const Ref& r) const { return r.offset == 0 && r.type.elements() == value(r).type.elements(); }
};

/// An operand of the node: where it lies, and its number where it is a constant.
struct BodyOperand {
  Place place;
  std::optional<double> constant;
};

/// `graph` has inputs "0", "1", ... for `operands` and outputs "0", "1", ... for `results`; a result without a place is
/// not wanted. The items refer to the graph's nodes.
Body make_body(const ir::Graph& graph, std::span<const BodyOperand> operands, std::span<const Place> results,
               const Contractions& contractions);

/// How a block loop reads a broadcast's operand, or adds to a reduction's result.
struct RepeatView {
  std::vector<StridedAxis> axes;  ///< Of one image where `images` > 0.
  bool by_image = false;          ///< Each image reads, or adds to, its own part; otherwise all share the whole.
};
/// Nothing where the op mixes images in a way that no loop over images can follow. `images` 0: over whole values.
std::optional<RepeatView> broadcast_view(const ir::Node& node, const ir::Shape& operand, int64_t images);
std::optional<RepeatView> reduce_view(const ir::Node& node, const ir::Shape& operand, int64_t images);

}  // namespace difuse::codegen::cpu
