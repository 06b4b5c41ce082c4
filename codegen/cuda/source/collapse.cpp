#include "codegen/cuda/source/collapse.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "ir/builder.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Shape;
using ir::Value;

bool is_reduce(const Node& node) { return node.op == Op::reduce_sum || node.op == Op::reduce_max; }

/// Which dimensions of the iteration shape start a new dimension.
class Groups {
 public:
  explicit Groups(size_t rank) : starts_(rank, false) {
    if (rank > 0) starts_[0] = true;
  }

  /// `chosen` (increasing) and the others may not be merged.
  void separate(const std::vector<int64_t>& chosen) {
    const auto holds = [&](size_t d) { return std::ranges::count(chosen, static_cast<int64_t>(d)) > 0; };
    for (size_t d = 1; d < starts_.size(); ++d) starts_[d] = starts_[d] || holds(d) != holds(d - 1);
  }

  bool merges_nothing() const { return std::ranges::count(starts_, false) == 0; }

  /// The new numbers of dimensions that were chosen: each once.
  std::vector<int64_t> numbers(const std::vector<int64_t>& chosen) const {
    std::vector<int64_t> result;
    for (const int64_t d : chosen) {
      const int64_t number = std::count(starts_.begin(), starts_.begin() + d + 1, true) - 1;
      if (result.empty() || result.back() != number) result.push_back(number);
    }
    return result;
  }

  /// The shape of a tensor that has the dimensions `chosen`, with these extents.
  Shape shape(const Shape& extents, const std::vector<int64_t>& chosen) const {
    Shape result;
    for (size_t i = 0; i < extents.size(); ++i) {
      if (i == 0 || numbers({chosen[i - 1]}) != numbers({chosen[i]})) {
        result.push_back(extents[i]);
      } else {
        result.back() *= extents[i];
      }
    }
    return result;
  }

 private:
  std::vector<bool> starts_;
};

std::vector<int64_t> all_dims(size_t rank) {
  std::vector<int64_t> dims(rank);
  for (size_t d = 0; d < rank; ++d) dims[d] = static_cast<int64_t>(d);
  return dims;
}

std::vector<int64_t> kept_dims(size_t rank, const std::vector<int64_t>& axes) {
  std::vector<int64_t> dims = all_dims(rank);
  std::erase_if(dims, [&](int64_t d) { return std::ranges::count(axes, d) > 0; });
  return dims;
}

/// The dimensions of the iteration shape that each value has; nothing where a value has no such reading.
class Dims {
 public:
  explicit Dims(const Graph& body) : body_(body) {
    for (int id = 0; id < body.size() && ok_; ++id) {
      const Node& node = body.node(id);
      if (ir::has_trait(node, ir::Trait(ir::kElementwise | ir::kBroadcast | ir::kRandom)))
        set_shape(node.types[0].shape);
      if (is_reduce(node)) set_shape(body.type(node.operands[0]).shape);
    }
    if (!shape_) ok_ = false;
    for (int id = 0; id < body.size() && ok_; ++id) visit(id);
  }

  bool ok() const { return ok_; }
  const Shape& shape() const { return *shape_; }
  const std::vector<int64_t>& of(int id) const { return dims_.at(id); }
  bool known(int id) const { return dims_.contains(id); }

 private:
  void set_shape(const Shape& shape) {
    if (shape_ && *shape_ != shape) ok_ = false;
    shape_ = shape;
  }

  void set(int id, std::vector<int64_t> dims) {
    const auto [it, fresh] = dims_.emplace(id, std::move(dims));
    (void)it;
    if (!fresh) ok_ = false;
  }
  void set_or_agree(int id, const std::vector<int64_t>& dims) {
    const auto [it, fresh] = dims_.emplace(id, dims);
    if (!fresh && it->second != dims) ok_ = false;
  }

  void visit(int id) {
    const Node& node = body_.node(id);
    const auto whole = [&](Value v) { set_or_agree(v.node, all_dims(shape_->size())); };
    if (ir::has_trait(node, ir::kElementwise)) {
      for (const Value v : node.operands) whole(v);
      whole({id, 0});
    } else if (node.op == Op::broadcast) {
      set_or_agree(node.operands[0].node, node.as<ir::BroadcastAttrs>().dims);
      whole({id, 0});
    } else if (ir::has_trait(node, ir::kRandom)) {
      set_or_agree(node.operands[1].node, {0});  // An element's number in its sample is the same in any shape.
      whole({id, 0});
    } else if (is_reduce(node)) {
      whole(node.operands[0]);
      set(id, kept_dims(shape_->size(), node.as<ir::ReduceAttrs>().axes));
    } else if (node.op != Op::input && node.op != Op::constant) {
      ok_ = false;
    }
  }

  const Graph& body_;
  bool ok_ = true;
  std::optional<Shape> shape_;
  std::unordered_map<int, std::vector<int64_t>> dims_;
};

}  // namespace

Graph collapsed(const Graph& body) {
  const Dims dims(body);
  if (!dims.ok()) return body;
  const size_t rank = dims.shape().size();
  Groups groups(rank);
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    if (node.op == Op::broadcast) groups.separate(node.as<ir::BroadcastAttrs>().dims);
    if (is_reduce(node)) groups.separate(node.as<ir::ReduceAttrs>().axes);
    if (ir::has_trait(node, ir::kRandom)) groups.separate({0});
  }
  if (groups.merges_nothing()) return body;
  const Shape shape = groups.shape(dims.shape(), all_dims(rank));
  const Shape sample(shape.begin() + (shape.empty() ? 0 : 1), shape.end());
  const auto smaller = [&](int id, const Shape& old) { return dims.known(id) ? groups.shape(old, dims.of(id)) : old; };
  return ir::rebuild(body, [&](Graph& to, int id, const Node& node, const std::vector<Value>& operands) {
    ir::Attrs attrs = node.attrs;
    if (node.op == Op::input) {
      auto leaf = node.as<ir::LeafAttrs>();
      leaf.shape = smaller(id, leaf.shape);
      attrs = leaf;
    } else if (node.op == Op::constant) {
      auto constant = node.as<ir::ConstantAttrs>();
      constant.shape = smaller(id, constant.shape);
      attrs = constant;
    } else if (node.op == Op::broadcast) {
      attrs = ir::BroadcastAttrs{shape, groups.numbers(node.as<ir::BroadcastAttrs>().dims)};
    } else if (node.op == Op::random_int) {
      auto draw = node.as<ir::RandomIntAttrs>();
      draw.shape = sample;
      attrs = draw;
    } else if (ir::has_trait(node, ir::kRandom)) {
      auto draw = node.as<ir::RandomAttrs>();
      draw.shape = sample;
      attrs = draw;
    } else if (is_reduce(node)) {
      attrs = ir::ReduceAttrs{groups.numbers(node.as<ir::ReduceAttrs>().axes)};
    }
    return std::vector<Value>{to.add(node.op, operands, std::move(attrs))};
  });
}

}  // namespace difuse::codegen::cuda
