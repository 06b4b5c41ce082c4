#include "codegen/cpu/kernels/body.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "codegen/cpu/kernels/register_ops.h"
#include "codegen/node_body.h"
#include "ir/error.h"
#include "ir/op.h"
#include "ir/reference.h"

namespace difuse::codegen::cpu {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;

class BodyMaker {
 public:
  BodyMaker(const Graph& graph, std::span<const BodyOperand> operands, const Contractions& contractions)
      : graph_(graph), operands_(operands), contractions_(contractions), refs_(static_cast<size_t>(graph.size())) {}

  Body make(std::span<const Place> results) {
    const std::vector<bool> live = graph_.live();
    for (int id = 0; id < graph_.size(); ++id) {
      if (live[static_cast<size_t>(id)]) add(id);
    }
    for (size_t r = 0; r < results.size(); ++r) {
      if (results[r].placed()) deliver(ref(graph_.outputs()[r].value), results[r]);
    }
    return std::move(body_);
  }

 private:
  const Ref& ref(ir::Value v) const { return refs_[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)]; }

  int new_value(BodyValue value) {
    body_.values.push_back(std::move(value));
    return static_cast<int>(body_.values.size()) - 1;
  }

  Item& new_item(Item::Kind kind, const Node* node, std::vector<Ref> in, const std::vector<ir::Type>& results) {
    Item item{kind, node, std::move(in), {}};
    for (const ir::Type& t : results) {
      item.out.push_back(new_value({t, static_cast<int>(body_.items.size()), {}, {}, {}}));
    }
    body_.items.push_back(std::move(item));
    return body_.items.back();
  }

  Ref copied(const Ref& from) {
    const Item& item = new_item(Item::Kind::copy, nullptr, {from}, {from.type});
    return {item.out[0], 0, from.type};
  }

  /// Puts a value where the graph wants it.
  void deliver(const Ref& from, const Place& to) {
    const BodyValue& value = body_.value(from);
    if (value.item >= 0 && body_.is_whole(from) && !value.destination.placed()) {
      body_.values[static_cast<size_t>(from.value)].destination = to;
      return;
    }
    const int64_t inside = from.offset * ir::size_of(from.type.dtype);
    const bool there = value.item < 0 && value.memory.base == to.base && value.memory.offset + inside == to.offset;
    if (there && !value.constant) return;
    body_.values[static_cast<size_t>(copied(from).value)].destination = to;
  }

  Place literal(const Node& node) {
    const ir::Type& type = node.types[0];
    const auto& values = node.as<ir::LiteralAttrs>().values;
    std::vector<float> block(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (type.dtype == ir::DType::i32 || type.dtype == ir::DType::u32) {
        const auto bits = static_cast<uint32_t>(static_cast<int64_t>(values[i]));
        std::memcpy(&block[i], &bits, sizeof(bits));
      } else {
        block[i] = static_cast<float>(values[i]);
      }
    }
    body_.fixed.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(type.bytes())));
    std::byte* to = body_.fixed.back().get();
    if (same_in_memory(type.dtype)) {
      std::memcpy(to, block.data(), static_cast<size_t>(type.bytes()));
    } else {
      store_block(type.dtype, block.data(), to, type.elements());
    }
    return {Place::Base::fixed, 0, 0, to};
  }

  void add(int id) {
    const Node& node = graph_.node(id);
    std::vector<Ref> in;
    for (ir::Value v : node.operands) in.push_back(ref(v));
    auto& out = refs_[static_cast<size_t>(id)];
    const ir::Type& type = node.types[0];
    switch (node.op) {
      case Op::input: {
        const BodyOperand& o = operands_[static_cast<size_t>(input_number(node))];
        out = {{new_value({type, -1, o.place, o.constant, {}}), 0, type}};
        return;
      }
      case Op::constant:
        out = {{new_value({type, -1, {}, node.as<ir::ConstantAttrs>().value, {}}), 0, type}};
        return;
      case Op::literal:
        out = {{new_value({type, -1, literal(node), {}, {}}), 0, type}};
        return;
      case Op::view:
        out = {{in[0].value, in[0].offset + node.as<ir::ViewAttrs>().offset, type}};
        return;
      case Op::reshape:
        out = {{in[0].value, in[0].offset, type}};
        return;
      default:
        break;
    }
    // A constant stays one however it is repeated; an axis of extent 1 is neither repeated nor summed.
    const bool repeats = node.op == Op::broadcast, reduces = node.op == Op::reduce_sum || node.op == Op::reduce_max;
    if ((repeats || reduces) &&
        (in[0].type.elements() == type.elements() || (repeats && body_.value(in[0]).constant))) {
      out = {{in[0].value, in[0].offset, type}};
      return;
    }
    if (repeats || reduces || ir::has_trait(node, ir::kElementwise)) {
      const auto kind = repeats ? Item::Kind::broadcast : reduces ? Item::Kind::reduce : Item::Kind::elementwise;
      const Item& item = new_item(kind, &node, std::move(in), node.types);
      out = {{item.out[0], 0, type}};
      return;
    }
    add_calls(node, in, out);
  }

  void add_calls(const Node& node, std::vector<Ref>& in, std::vector<Ref>& out) {
    CallContext context{node, {}, contractions_};
    for (Ref& r : in) {
      // Calls read memory.
      if (body_.value(r).constant && !body_.value(r).memory.placed()) r = copied(r);
      context.operands.push_back(r.type);
    }
    NodeCalls made = make_calls(context);
    body_.flops += made.flops;
    if (!made.implementation.empty()) body_.implementation = made.implementation;

    std::vector<int> temporaries;
    for (int64_t bytes : made.temporary_bytes) {
      temporaries.push_back(new_value({{ir::DType::u8, {bytes}}, -1, {}, {}, {}}));
    }
    for (const ir::Type& t : node.types) out.push_back({new_value({t, -1, {}, {}, {}}), 0, t});
    for (CallSpec& call : made.calls) {
      Item item{Item::Kind::call, &node, {}, {}};
      for (const Slot& s : call.in) {
        if (s.kind == Slot::Kind::operand) {
          item.in.push_back(in[s.index]);
        } else {
          const int value = temporaries[s.index];
          item.in.push_back({value, 0, body_.values[static_cast<size_t>(value)].type});
        }
      }
      for (const Slot& s : call.out) {
        const int value = s.kind == Slot::Kind::result ? out[s.index].value : temporaries[s.index];
        item.out.push_back(value);
        body_.values[static_cast<size_t>(value)].item = static_cast<int>(body_.items.size());
      }
      item.call = std::move(call);
      body_.items.push_back(std::move(item));
    }
  }

  const Graph& graph_;
  std::span<const BodyOperand> operands_;
  const Contractions& contractions_;
  std::vector<std::vector<Ref>> refs_;
  Body body_;
};

/// The parts of a shape's axes; all inside one image where `images` is 0.
std::optional<std::vector<AxisPart>> parts_of(const ir::Shape& shape, int64_t images) {
  return split_images(shape, images == 0 ? 1 : images);
}

/// Axes of one image, each with the stride it has in the smaller tensor (0 where it repeats or is summed). The leading
/// ones must all repeat or all not.
std::optional<RepeatView> view_of(const ir::Shape& large, const ir::Shape& strides, int64_t images) {
  const auto parts = parts_of(large, images);
  if (!parts) return std::nullopt;
  RepeatView view;
  int64_t kept = 1, repeated = 1;
  for (const AxisPart& p : *parts) {
    const int64_t stride = strides[p.axis] * p.inner;
    if (p.leading) {
      (stride == 0 ? repeated : kept) *= p.extent;
    } else {
      view.axes.push_back({p.extent, stride});
    }
  }
  if (kept > 1 && repeated > 1) return std::nullopt;
  view.by_image = images > 0 && repeated == 1;
  return view;
}

}  // namespace

Body make_body(const Graph& graph, std::span<const BodyOperand> operands, std::span<const Place> results,
               const Contractions& contractions) {
  return BodyMaker(graph, operands, contractions).make(results);
}

std::optional<RepeatView> broadcast_view(const Node& node, const ir::Shape& operand, int64_t images) {
  const auto& attrs = node.as<ir::BroadcastAttrs>();
  const ir::Shape from = strides_of(operand);
  ir::Shape strides(attrs.shape.size(), 0);
  for (size_t i = 0; i < attrs.dims.size(); ++i) strides[static_cast<size_t>(attrs.dims[i])] = from[i];
  return view_of(attrs.shape, strides, images);
}

std::optional<RepeatView> reduce_view(const Node& node, const ir::Shape& operand, int64_t images) {
  const auto& axes = node.as<ir::ReduceAttrs>().axes;
  const ir::Shape to = strides_of(node.types[0].shape);
  ir::Shape strides(operand.size(), 0);
  for (size_t d = 0, kept = 0; d < operand.size(); ++d) {
    if (!std::ranges::count(axes, static_cast<int64_t>(d))) strides[d] = to[kept++];
  }
  return view_of(operand, strides, images);
}

}  // namespace difuse::codegen::cpu
