#include "passes/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_map>

#include "ir/error.h"
#include "ir/op.h"
#include "passes/hoist.h"
#include "passes/in_place.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

constexpr int kForever = std::numeric_limits<int>::max();

int64_t aligned(int64_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

/// A run of bytes that one or more values share. A storage inside another (a part in its packed vector) has a parent.
struct Storage {
  int64_t bytes = 0;
  int begin = 0, end = -1;  ///< First node that writes, last that reads any of its values.
  int rest_begin = 0;       ///< First node that writes what no part takes up.
  bool permanent = false;
  int parent = -1;
  int64_t parent_offset = 0, offset = -1;
};

struct Place {
  int storage = -1;
  int64_t offset = 0;
};

/// Bytes of a storage that are free until the same node. A packed vector has one piece for each of its parts.
struct Piece {
  int64_t offset = 0, bytes = 0;  ///< From the storage's start, later from the arena's.
  int begin = 0, end = -1;

  bool meets(const Piece& other) const { return begin <= other.end && other.begin <= end; }
};

class Planner {
 public:
  Planner(const Graph& graph, const MemoryOptions& options)
      : graph_(graph), options_(options), live_(graph.live()), once_end_(options.once ? invariant_prefix(graph) : 0) {}

  MemoryPlan plan() {
    find_turns();
    find_last_reads();
    claim_states();
    for (int id = 0; id < graph_.size(); ++id) assign(id);
    place_updates();
    layout();
    return finish();
  }

 private:
  const Node& node(int id) const { return graph_.node(id); }
  Place& place(Value v) { return places_[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)]; }
  int& last_read(Value v) { return last_read_[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)]; }

  /// When each node begins and ends: with the others that run at once.
  void find_turns() {
    for (int id = 0; id < graph_.size(); ++id) turns_.push_back({id, id});
    for (const NodeRange& range : options_.together) {
      for (int id = range.first; id <= range.last; ++id) turns_[static_cast<size_t>(id)] = range;
    }
  }
  const NodeRange& turn(int id) const { return turns_[static_cast<size_t>(id)]; }
  bool runs_alone(int id) const { return turn(id).first == turn(id).last; }

  /// Whether steps read it though they do not make it.
  bool is_kept(Value v) {
    if (node(v.node).op == Op::carry) return true;
    return v.node < once_end_ && !ir::has_trait(node(v.node), ir::kLeaf) && last_read(v) >= once_end_;
  }

  /// The outermost storage that holds the value, and where in it.
  Place root(Place p) const {
    while (storages_[static_cast<size_t>(p.storage)].parent >= 0) {
      const Storage& s = storages_[static_cast<size_t>(p.storage)];
      p = {s.parent, p.offset + s.parent_offset};
    }
    return p;
  }
  Storage& storage(int id) { return storages_[static_cast<size_t>(id)]; }

  /// A value is read by its readers and by the readers of what lies inside it (reshape, view).
  void find_last_reads() {
    places_.resize(static_cast<size_t>(graph_.size()));
    last_read_.resize(static_cast<size_t>(graph_.size()));
    for (int id = 0; id < graph_.size(); ++id) {
      places_[static_cast<size_t>(id)].resize(node(id).types.size());
      last_read_[static_cast<size_t>(id)].assign(node(id).types.size(), -1);
    }
    for (const auto* list : {&graph_.outputs(), &graph_.updates()}) {
      for (const ir::NamedValue& n : *list) last_read(n.value) = kForever;
    }
    for (int id = graph_.size() - 1; id >= 0; --id) {
      if (!live_[static_cast<size_t>(id)]) continue;
      for (Value v : node(id).operands) {
        const int until = ir::moves_nothing(node(id)) ? std::max(id, last_read({id, 0})) : turn(id).last;
        last_read(v) = std::max(last_read(v), until);
      }
    }
  }

  /// Each value that becomes a state, with the first state it becomes.
  void claim_states() {
    for (const ir::NamedValue& n : graph_.updates()) claims_.try_emplace(n.value, graph_.find_replaced(n.name));
  }

  int new_storage(Value v, bool permanent) {
    Storage s;
    s.bytes = graph_.type(v).bytes();
    s.begin = s.rest_begin = turn(v.node).first;
    s.permanent = permanent;
    storages_.push_back(s);
    return static_cast<int>(storages_.size()) - 1;
  }

  void join(Value v, Place p) {
    place(v) = p;
    Storage& s = storage(root(p).storage);
    s.end = std::max(s.end, last_read(v));
  }

  void assign(int id) {
    const Node& n = node(id);
    const bool leaf = ir::has_trait(n, ir::kLeaf), stays = leaf || n.op == Op::carry;
    if (!live_[static_cast<size_t>(id)] && n.op != Op::input && n.op != Op::state && n.op != Op::carry) return;
    if (ir::moves_nothing(n)) {
      const int64_t inside = n.op == Op::view ? n.as<ir::ViewAttrs>().offset * ir::size_of(n.types[0].dtype) : 0;
      const Place base = place(n.operands[0]);
      join({id, 0}, {base.storage, base.offset + inside});
      return;
    }
    const InPlace in_place(graph_, id);
    for (int r = 0; r < static_cast<int>(n.types.size()); ++r) {
      const Value v{id, r};
      if (last_read(v) < 0 && !stays) continue;
      if (!leaf && options_.reuse && n.op != Op::pack && runs_alone(id) && !is_kept(v)) {
        if (join_state(v, in_place) || join_operand(v, in_place)) continue;
      }
      join(v, {new_storage(v, leaf || is_kept(v)), 0});
    }
    if (n.op == Op::pack && options_.reuse) gather_parts(id);
  }

  /// Whether `result` of its node may overwrite the whole of storage `id`, as far as that node's own reads go.
  bool may_overwrite(Value result, int id, const InPlace& in_place) {
    const Node& n = node(result.node);
    for (int o = 0; o < static_cast<int>(n.operands.size()); ++o) {
      const Place p = root(place(n.operands[static_cast<size_t>(o)]));
      if (p.storage == id && !(p.offset == 0 && in_place.allows(o, result.result))) return false;
    }
    return true;
  }

  /// The next value of a state is made in the state's place when nobody reads the old one afterwards.
  bool join_state(Value v, const InPlace& in_place) {
    const auto claim = claims_.find(v);
    if (claim == claims_.end()) return false;
    const Value state = claim->second;
    const int home = place(state).storage;
    if (last_read(state) > v.node || !may_overwrite(v, home, in_place)) return false;
    join(v, {home, 0});
    return true;
  }

  /// An elementwise result takes the place of an operand that dies here.
  bool join_operand(Value v, const InPlace& in_place) {
    const Node& n = node(v.node);
    for (int o = 0; o < static_cast<int>(n.operands.size()); ++o) {
      if (!in_place.allows(o, v.result)) continue;
      const Place p = root(place(n.operands[static_cast<size_t>(o)]));
      const Storage& s = storage(p.storage);
      if (s.permanent || s.end > v.node || p.offset != 0 || s.bytes != graph_.type(v).bytes()) continue;
      if (!may_overwrite(v, p.storage, in_place)) continue;
      join(v, p);
      return true;
    }
    return false;
  }

  /// Moves the storages of a pack's operands into its own, where they are free to be moved.
  void gather_parts(int id) {
    const Node& n = node(id);
    const auto& attrs = n.as<ir::PackAttrs>();
    const int whole = place({id, 0}).storage;
    for (size_t i = 0; i < n.operands.size(); ++i) {
      const Place p = place(n.operands[i]);
      Storage& part = storage(p.storage);
      if (part.permanent || part.parent >= 0 || p.storage == whole || p.offset != 0 ||
          part.bytes != graph_.type(n.operands[i]).bytes()) {
        continue;
      }
      part.parent = whole;
      part.parent_offset = attrs.offsets[i] * ir::size_of(n.types[0].dtype);
      storage(whole).begin = std::min(storage(whole).begin, part.begin);
      storage(whole).end = std::max(storage(whole).end, part.end);
    }
  }

  /// Updates that are not yet made in place: moves their whole storage there if it is written after the state's last
  /// read, else copies after the last node.
  void place_updates() {
    for (const ir::NamedValue& n : graph_.updates()) {
      const Value state = graph_.find_replaced(n.name);
      const int home = place(state).storage;
      const Place p = root(place(n.value));
      if (p.storage == home && p.offset == 0) continue;
      Storage& s = storage(p.storage);
      if (options_.reuse && claims_.at(n.value) == state && !s.permanent && p.offset == 0 &&
          s.bytes == storage(home).bytes && last_read(state) < s.begin) {
        s.parent = home;
        s.parent_offset = 0;
        continue;
      }
      copies_.push_back({n.value, n.name});
    }
    check_old_outputs();
    order_copies();
  }

  /// An output is read after the step, when the state's place already holds the next value.
  void check_old_outputs() {
    for (const ir::NamedValue& out : graph_.outputs()) {
      Value v = out.value;
      while (ir::moves_nothing(graph_.node(v))) v = graph_.node(v).operands[0];
      const bool carried = graph_.node(v).op == Op::carry;
      if (graph_.node(v).op != Op::state && !carried) continue;
      const std::string& state =
          carried ? graph_.node(v).as<ir::CarryAttrs>().name : graph_.node(v).as<ir::LeafAttrs>().name;
      if (!copied(state)) continue;
      throw Error(
          fmt::format("output \"{}\" is the old value of the state \"{}\", which the step replaces", out.name, state),
          "make the output from a computed value");
    }
  }
  bool copied(const std::string& state) const {
    return std::ranges::any_of(copies_, [&](const StateCopy& c) { return c.state == state; });
  }

  /// A copy out of a state's old value runs before the copy that replaces that state.
  void order_copies() {
    std::vector<StateCopy> ordered;
    std::vector<StateCopy> left = std::move(copies_);
    auto home = [&](const StateCopy& c) { return place(graph_.find_replaced(c.state)).storage; };
    while (!left.empty()) {
      const auto next = std::ranges::find_if(left, [&](const StateCopy& c) {
        return std::ranges::none_of(left, [&](const StateCopy& other) {
          return other.state != c.state && root(place(other.from)).storage == home(c);
        });
      });
      if (next == left.end()) {
        throw Error(fmt::format("the states \"{}\" and \"{}\" exchange their values", left[0].state, left[1].state),
                    "compute one of the two instead of passing the other's old value on");
      }
      ordered.push_back(*next);
      left.erase(next);
    }
    copies_ = std::move(ordered);
  }

  void layout() {
    int64_t top = 0;
    // States first, so that what a checkpoint holds is one range; then the other values that stay.
    for (const bool states : {true, false}) {
      for (int id = 0; id < graph_.size(); ++id) {
        if (!ir::has_trait(node(id), ir::kLeaf) || (node(id).op == Op::state) != states) continue;
        if (place({id, 0}).storage < 0) continue;
        Storage& s = storage(place({id, 0}).storage);
        s.offset = top;
        top += aligned(s.bytes);
        if (states) plan_.state_bytes += s.bytes;
      }
    }
    for (Storage& s : storages_) {
      if (!s.permanent || s.offset >= 0) continue;
      s.offset = top;
      top += aligned(s.bytes);
    }
    plan_.arena_bytes = top;
    place_largest_first(top);
  }

  /// By storage that lies in no other.
  std::vector<std::vector<Piece>> pieces() {
    std::vector<std::vector<int>> parts(storages_.size());
    std::vector<std::vector<Piece>> result(storages_.size());
    for (int i = 0; i < static_cast<int>(storages_.size()); ++i) {
      if (storage(i).parent >= 0) parts[static_cast<size_t>(storage(i).parent)].push_back(i);
    }
    for (int i = 0; i < static_cast<int>(storages_.size()); ++i) {
      if (storage(i).parent < 0) add_pieces(i, 0, storage(i).end, parts, result[static_cast<size_t>(i)]);
    }
    return result;
  }

  /// Those of one storage, `offset` bytes from the start of the outermost one, which is read until `end`.
  void add_pieces(int id, int64_t offset, int end, const std::vector<std::vector<int>>& parts, std::vector<Piece>& to) {
    const Storage& s = storage(id);
    std::vector<int> inside = parts[static_cast<size_t>(id)];
    std::ranges::sort(inside, {}, [&](int part) { return storage(part).parent_offset; });
    int64_t at = 0;
    const auto rest_until = [&](int64_t next) {
      if (next > at) to.push_back({offset + at, next - at, s.rest_begin, end});
    };
    for (const int part : inside) {
      rest_until(storage(part).parent_offset);
      add_pieces(part, offset + storage(part).parent_offset, end, parts, to);
      at = storage(part).parent_offset + storage(part).bytes;
    }
    rest_until(s.bytes);
  }

  void place_largest_first(int64_t floor) {
    std::vector<std::vector<Piece>> pieces = this->pieces();
    std::vector<int> order;
    for (int i = 0; i < static_cast<int>(storages_.size()); ++i) {
      if (!storage(i).permanent && storage(i).parent < 0) order.push_back(i);
    }
    std::ranges::stable_sort(order, [&](int a, int b) { return storage(a).bytes > storage(b).bytes; });
    std::vector<Piece> placed;  // by offset
    for (int i : order) {
      Storage& s = storage(i);
      std::vector<Piece>& own = pieces[static_cast<size_t>(i)];
      s.offset = lowest(floor, own, placed);
      plan_.arena_bytes = std::max(plan_.arena_bytes, s.offset + aligned(s.bytes));
      for (Piece& piece : own) {
        piece.offset += s.offset;
        placed.insert(std::ranges::upper_bound(placed, piece.offset, {}, &Piece::offset), piece);
      }
    }
  }

  /// The first offset from `at` on where none of the pieces takes the place of one that is placed.
  int64_t lowest(int64_t at, const std::vector<Piece>& pieces, const std::vector<Piece>& placed) const {
    for (int64_t before = -1; before != at;) {
      before = at;
      for (const Piece& piece : pieces) {
        for (const Piece& other : placed) {
          if (options_.reuse && !piece.meets(other)) continue;
          if (other.offset >= at + piece.offset + piece.bytes) break;
          if (other.offset + other.bytes > at + piece.offset) at = aligned(other.offset + other.bytes - piece.offset);
        }
      }
      if (pieces.size() == 1) break;
    }
    return at;
  }

  MemoryPlan finish() {
    plan_.placements.resize(static_cast<size_t>(graph_.size()));
    for (int id = 0; id < graph_.size(); ++id) {
      for (int r = 0; r < static_cast<int>(node(id).types.size()); ++r) {
        Placement result;
        if (place({id, r}).storage >= 0) {
          const Place p = root(place({id, r}));
          result = {storage(p.storage).offset + p.offset, graph_.type({id, r}).bytes()};
          if (!ir::moves_nothing(node(id))) plan_.tensor_bytes += aligned(result.bytes);
        }
        plan_.placements[static_cast<size_t>(id)].push_back(result);
      }
    }
    plan_.state_copies = std::move(copies_);
    plan_.together = options_.together;
    plan_.once_end = once_end_;
    return std::move(plan_);
  }

  const Graph& graph_;
  const MemoryOptions options_;
  const std::vector<bool> live_;
  const int once_end_;
  std::vector<NodeRange> turns_;  // by node
  std::vector<std::vector<Place>> places_;
  std::vector<std::vector<int>> last_read_;
  std::vector<Storage> storages_;
  std::unordered_map<Value, Value, ir::ValueHash> claims_;
  std::vector<StateCopy> copies_;
  MemoryPlan plan_;
};

}  // namespace

bool is_alias(const Graph& graph, const MemoryPlan& memory, int id) {
  const Node& node = graph.node(id);
  if (node.op != Op::reshape && node.op != Op::view) return false;
  int64_t from = memory.at(node.operands[0]).offset;
  if (node.op == Op::view) from += node.as<ir::ViewAttrs>().offset * ir::size_of(node.types[0].dtype);
  return memory.at({id, 0}).offset == from;
}

MemoryPlan plan_memory(const Graph& graph, const MemoryOptions& options) { return Planner(graph, options).plan(); }

}  // namespace difuse::passes
