#include "codegen/cpu/kernels/schedule.h"

#include <algorithm>
#include <tuple>

#include "ir/op.h"

namespace difuse::codegen::cpu {
namespace {

/// A value of at most this many elements may be computed whole by one thread before a loop over images reads it.
constexpr int64_t kSmall = 16384;
/// The longest row that a loop over one long vector repeats or sums into.
constexpr int64_t kLongestRow = 4096;

bool any_by_image(const CallSpec& call) {
  auto by_image = [](const Slot& s) { return s.by_image; };
  return call.images > 0 && (std::ranges::any_of(call.in, by_image) || std::ranges::any_of(call.out, by_image));
}

const ir::Type& loop_type(const Item& item, const Body& body) {
  return item.kind == Item::Kind::reduce ? item.in[0].type : body.values[static_cast<size_t>(item.out[0])].type;
}

bool keeps_first_axis(const Item& item) {
  const auto& axes = item.node->as<ir::ReduceAttrs>().axes;
  return !std::ranges::count(axes, 0);
}

/// Whether one loop over long vectors, cut anywhere between rows, serves: no item needs to know where an image ends.
bool is_flat(const Body& body) {
  for (const Item& item : body.items) {
    if (item.kind == Item::Kind::call) {
      if (any_by_image(item.call)) return false;
      continue;
    }
    if (item.kind != Item::Kind::broadcast && item.kind != Item::Kind::reduce) continue;
    // Each image's own sum must come out as it does for the image alone.
    if (item.kind == Item::Kind::reduce && keeps_first_axis(item)) return false;
    const auto view = item.kind == Item::Kind::reduce ? reduce_view(*item.node, item.in[0].type.shape, 0)
                                                      : broadcast_view(*item.node, item.in[0].type.shape, 0);
    const Pattern pattern = classify(view->axes);
    if (pattern.kind == Pattern::Kind::strided ||
        (pattern.kind == Pattern::Kind::periodic && pattern.period > kLongestRow)) {
      if (loop_type(item, body).elements() > kSmall || item.kind == Item::Kind::reduce) return false;
    }
  }
  return true;
}

/// 0: everything on whole values.
int64_t choose_images(const Body& body) {
  int64_t flops = -1, images = 0;
  for (const Item& item : body.items) {
    if (item.kind != Item::Kind::call || !any_by_image(item.call)) continue;
    const int64_t weight = ir::has_trait(*item.node, ir::kContraction) ? 1 : 0;
    if (weight > flops) flops = weight, images = item.call.images;
  }
  if (images > 0) return images;
  if (is_flat(body)) return 0;
  const ir::Shape* largest = nullptr;
  for (const Item& item : body.items) {
    if (!item.is_block()) continue;
    const ir::Shape& shape = loop_type(item, body).shape;
    if (shape.empty()) continue;
    if (largest == nullptr || ir::element_count(shape) > ir::element_count(*largest)) largest = &shape;
  }
  return largest == nullptr ? 0 : (*largest)[0];
}

class Scheduler {
 public:
  explicit Scheduler(Body& body) : body_(body) { schedule_.images = choose_images(body); }

  Schedule run() {
    classify_items();
    assign_levels();
    assign_steps();
    delay_steps();
    form_groups();
    return std::move(schedule_);
  }

 private:
  Item& item(int i) { return body_.items[static_cast<size_t>(i)]; }
  int count() const { return static_cast<int>(body_.items.size()); }
  int maker(const Ref& r) const { return body_.value(r).item; }
  int64_t images() const { return schedule_.images; }

  bool can_run_by_image(const Item& it) const {
    if (images() == 0) return false;
    switch (it.kind) {
      case Item::Kind::call:
        return any_by_image(it.call) && it.call.images == images();
      case Item::Kind::broadcast:
        return broadcast_view(*it.node, it.in[0].type.shape, images()).has_value();
      case Item::Kind::reduce:
        return reduce_view(*it.node, it.in[0].type.shape, images()).has_value();
      default:
        return split_images(loop_type(it, body_).shape, images()).has_value();
    }
  }

  /// ready: small, and made from nothing that images make. after_images: made from a sum over images.
  struct Readiness {
    std::vector<bool> ready, after_images;
  };
  Readiness find_whole_ready() {
    std::vector<bool> ready(body_.items.size(), false), after(body_.items.size(), false);
    for (int i = 0; i < count(); ++i) {
      Item& it = item(i);
      bool is = it.is_block() && loop_type(it, body_).elements() <= kSmall;
      if (it.kind == Item::Kind::reduce && keeps_first_axis(it) && can_run_by_image(it)) is = false;
      for (const Ref& r : it.in) {
        if (maker(r) < 0) continue;
        const Item& from = item(maker(r));
        const bool sum = !can_run_by_image(from) || sums_over_images(from, images());
        is = is && (sum || ready[static_cast<size_t>(maker(r))]);
        if (sum || after[static_cast<size_t>(maker(r))]) after[static_cast<size_t>(i)] = true;
      }
      ready[static_cast<size_t>(i)] = is;
    }
    return {std::move(ready), std::move(after)};
  }

  void classify_items() {
    const auto [ready, after_images] = find_whole_ready();
    std::vector<bool> wanted_whole(body_.items.size(), false);
    for (int i = count(); i-- > 0;) {
      Item& it = item(i);
      const bool as_whole = ready[static_cast<size_t>(i)] &&
                            (wanted_whole[static_cast<size_t>(i)] || after_images[static_cast<size_t>(i)]);
      it.by_image = !as_whole && can_run_by_image(it);
      for (size_t k = 0; k < it.in.size(); ++k) {
        if (maker(it.in[k]) < 0) continue;
        if (!it.by_image || !reads_by_image(it, k, images())) wanted_whole[static_cast<size_t>(maker(it.in[k]))] = true;
      }
    }
  }

  /// Whether operand k is at hand in the same pass over images.
  bool flows(const Item& it, size_t k) {
    const Ref& r = it.in[k];
    const Item& from = item(maker(r));
    return it.by_image && from.by_image && !sums_over_images(from, images()) && reads_by_image(it, k, images()) &&
           body_.is_whole(r);
  }

  void assign_levels() {
    for (int i = 0; i < count(); ++i) {
      Item& it = item(i);
      int level = it.by_image ? 1 : 0;
      for (size_t k = 0; k < it.in.size(); ++k) {
        if (maker(it.in[k]) < 0) continue;
        const int made = item(maker(it.in[k])).level;
        const bool same_level = flows(it, k) || (!it.by_image && !item(maker(it.in[k])).by_image);
        level = std::max(level, same_level ? made : made + 1);
      }
      it.level = level + ((level % 2 == 1) == it.by_image ? 0 : 1);
    }
  }

  int64_t elements(const Item& it) const { return loop_elements(it, body_, it.by_image ? images() : 0); }

  /// Whether operand k can be read from the block in which it is made.
  bool in_block(const Item& it, size_t k) {
    const Item& from = item(maker(it.in[k]));
    return from.level == it.level && from.is_block() && it.is_block() && from.by_image == it.by_image &&
           from.kind != Item::Kind::reduce && it.kind != Item::Kind::broadcast && body_.is_whole(it.in[k]) &&
           (!it.by_image || flows(it, k)) && elements(from) == elements(it);
  }

  void assign_steps() {
    for (int i = 0; i < count(); ++i) {
      Item& it = item(i);
      for (size_t k = 0; k < it.in.size(); ++k) {
        if (maker(it.in[k]) < 0) continue;
        const Item& from = item(maker(it.in[k]));
        if (from.level == it.level) it.step = std::max(it.step, from.step + (in_block(it, k) ? 0 : 1));
      }
    }
  }

  /// Moves an op that only later groups read into the first of them: its operands are read again, its result never
  /// goes through memory.
  void delay_steps() {
    std::vector<int> latest(body_.items.size(), -1);
    for (int i = count(); i-- > 0;) {
      Item& it = item(i);
      const bool movable = it.is_block() && it.kind != Item::Kind::reduce;
      if (movable && latest[static_cast<size_t>(i)] > it.step &&
          !body_.values[static_cast<size_t>(it.out[0])].destination.placed()) {
        it.step = latest[static_cast<size_t>(i)];
      }
      for (size_t k = 0; k < it.in.size(); ++k) {
        const int from = maker(it.in[k]);
        if (from < 0 || item(from).level != it.level) continue;
        const int needed = it.step - (in_block(it, k) ? 0 : 1);
        int& bound = latest[static_cast<size_t>(from)];
        bound = bound < 0 ? needed : std::min(bound, needed);
      }
    }
  }

  void form_groups() {
    using Key = std::tuple<int, int, bool, int64_t, int>;
    std::vector<std::pair<Key, int>> keyed;
    for (int i = 0; i < count(); ++i) {
      const Item& it = item(i);
      const bool call = !it.is_block();
      keyed.push_back({{it.level, it.step, call, call ? 0 : elements(it), call ? i : -1}, i});
    }
    std::ranges::stable_sort(keyed, [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t at = 0; at < keyed.size(); ++at) {
      Item& it = item(keyed[at].second);
      if (at == 0 || keyed[at].first != keyed[at - 1].first) {
        Group group{it.level, it.step, it.by_image, !it.is_block(), it.is_block() ? elements(it) : 0, {}};
        schedule_.groups.push_back(std::move(group));
      }
      it.group = static_cast<int>(schedule_.groups.size()) - 1;
      schedule_.groups.back().items.push_back(keyed[at].second);
    }
    for (Group& g : schedule_.groups) std::ranges::sort(g.items);
  }

  Body& body_;
  Schedule schedule_;
};

}  // namespace

Schedule make_schedule(Body& body) { return Scheduler(body).run(); }

bool reads_by_image(const Item& item, size_t k, int64_t images) {
  if (item.kind == Item::Kind::call) return item.call.in[k].by_image;
  if (item.kind == Item::Kind::broadcast) {
    const auto view = broadcast_view(*item.node, item.in[0].type.shape, images);
    return view && view->by_image;
  }
  return true;
}

bool sums_over_images(const Item& item, int64_t images) {
  if (item.kind == Item::Kind::call) {
    return std::ranges::none_of(item.call.out, [](const Slot& s) { return s.by_image; });
  }
  if (item.kind != Item::Kind::reduce || images == 0) return false;
  const auto view = reduce_view(*item.node, item.in[0].type.shape, images);
  return view && !view->by_image;
}

int64_t loop_elements(const Item& item, const Body& body, int64_t images) {
  return loop_type(item, body).elements() / (images == 0 ? 1 : images);
}

}  // namespace difuse::codegen::cpu
