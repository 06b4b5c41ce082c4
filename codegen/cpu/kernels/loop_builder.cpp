#include "codegen/cpu/kernels/loop_builder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "codegen/cpu/kernels/register_ops.h"

namespace difuse::codegen::cpu {
namespace {

constexpr int64_t kLongestGrain = 2048;  ///< A block holds whole rows up to this length.

void copy_kernel(const float* const* in, float* out, int64_t n) {
  if (in[0] != out) std::memcpy(out, in[0], static_cast<size_t>(n) * sizeof(float));
}

class LoopBuilder {
 public:
  LoopBuilder(const Body& body, const Group& group, int64_t images, int64_t unit_images, ScratchCounter& scratch)
      : body_(body), group_(group), images_(images), unit_images_(unit_images), scratch_(scratch) {}

  BuiltLoop build() {
    loop_->elements = group_.elements;
    for (int i : group_.items) add(body_.items[static_cast<size_t>(i)]);
    for (int i : group_.items) settle_result(body_.items[static_cast<size_t>(i)]);
    for (int i : group_.items) add_stores(body_.items[static_cast<size_t>(i)]);
    loop_->contiguous = is_contiguous();
    choose_block();
    place_repeats();
    place_registers();
    return {std::move(loop_), std::move(reduced_)};
  }

 private:
  enum class Source : uint8_t { load, repeat, immediate, operation };
  struct Register {
    Source source;
    int index = 0;      // in the loop's list of that kind
    bool one = false;   // a single value
    int made_at = -1;   // instruction
    int last_use = -1;  // instruction; the program's end where a store reads it
    bool direct = false;
  };

  const BodyValue& value(int v) const { return body_.values[static_cast<size_t>(v)]; }
  Register& reg(int r) { return registers_[static_cast<size_t>(r)]; }
  int new_register(Source source, size_t index, bool one) {
    registers_.push_back({source, static_cast<int>(index), one, -1, -1, false});
    return static_cast<int>(registers_.size()) - 1;
  }

  Place place_of(const Ref& r, bool by_image) const {
    const int64_t inside = r.offset * ir::size_of(r.type.dtype);
    return value(r.value).memory.moved(inside).with_stride(by_image ? r.type.bytes() / images_ : 0);
  }

  int immediate(double number, ir::DType dtype) {
    uint32_t bits;
    if (dtype == ir::DType::i32 || dtype == ir::DType::u32) {
      bits = static_cast<uint32_t>(static_cast<int64_t>(number));
    } else {
      const float f = static_cast<float>(number);
      std::memcpy(&bits, &f, sizeof(bits));
    }
    const int r = new_register(Source::immediate, loop_->immediates.size(), true);
    loop_->immediates.push_back({r, bits});
    return r;
  }

  int linear_load(const Place& place, ir::DType dtype) {
    const int r = new_register(Source::load, loop_->loads.size(), false);
    loop_->loads.push_back({r, place, dtype, -1});
    return r;
  }

  /// The register that holds an operand read element by element.
  int read(const Ref& ref) {
    const BodyValue& v = value(ref.value);
    if (v.constant) {
      const auto [it, fresh] = immediates_.try_emplace({std::bit_cast<uint64_t>(*v.constant), ref.type.dtype}, -1);
      if (fresh) it->second = immediate(*v.constant, ref.type.dtype);
      return it->second;
    }
    if (const auto made = made_.find(ref.value); made != made_.end() && body_.is_whole(ref)) return made->second;
    const auto [it, fresh] = loads_.try_emplace({ref.value, ref.offset}, -1);
    if (fresh) it->second = linear_load(place_of(ref, images_ > 0), ref.type.dtype);
    return it->second;
  }

  int emit(ElementwiseKernel kernel, std::span<const int> in, bool one) {
    Operation op{kernel, {-1, -1, -1}, static_cast<int>(in.size()), -1, one};
    const int at = static_cast<int>(loop_->program.size());
    for (size_t k = 0; k < in.size(); ++k) {
      op.in[k] = in[k];
      reg(in[k]).last_use = at;
    }
    op.out = new_register(Source::operation, loop_->operations.size(), one);
    reg(op.out).made_at = at;
    loop_->program.push_back({BlockLoop::Instruction::Kind::operation, static_cast<int>(loop_->operations.size())});
    loop_->operations.push_back(op);
    return op.out;
  }

  int expanded(int r) { return reg(r).one ? emit(expand_kernel, std::array{r}, false) : r; }

  void add(const Item& item) {
    switch (item.kind) {
      case Item::Kind::copy:
        made_[item.out[0]] = read(item.in[0]);
        break;
      case Item::Kind::elementwise:
        made_[item.out[0]] = elementwise(item);
        break;
      case Item::Kind::broadcast:
        made_[item.out[0]] = broadcast(item);
        break;
      case Item::Kind::reduce:
        reduce(item);
        break;
      case Item::Kind::call:
        break;
    }
  }

  int elementwise(const Item& item) {
    std::vector<int> in;
    unsigned scalars = 0;
    for (size_t k = 0; k < item.in.size(); ++k) {
      in.push_back(read(item.in[k]));
      if (reg(in.back()).one) scalars |= 1u << k;
    }
    const bool one = scalars == (1u << in.size()) - 1;
    if (item.node->op == ir::Op::cast) {
      const ElementwiseKernel kernel = cast_kernel(item.in[0].type.dtype, item.node->types[0].dtype);
      return kernel == nullptr ? in[0] : emit(kernel, in, one);
    }
    // A unary op on one value has no scalar form: it runs over one element.
    const unsigned form = in.size() == 1 ? 0 : scalars;
    return emit(elementwise_kernel(item.node->op, item.in.back().type.dtype, form), in, one);
  }

  int broadcast(const Item& item) {
    const Ref& source = item.in[0];
    const RepeatView view = *broadcast_view(*item.node, source.type.shape, images_);
    const Pattern pattern = classify(view.axes);
    const Place place = place_of(source, view.by_image);
    if (pattern.kind == Pattern::Kind::linear) return linear_load(place, source.type.dtype);
    const bool one = pattern.kind == Pattern::Kind::scalar;
    const int r = new_register(Source::repeat, loop_->repeats.size(), one);
    const int64_t elements = source.type.elements() / (view.by_image ? images_ : 1);
    loop_->repeats.push_back({r, place, source.type.dtype, pattern, elements, -1, -1});
    return r;
  }

  void reduce(const Item& item) {
    const RepeatView view = *reduce_view(*item.node, item.in[0].type.shape, images_);
    Reduction made;
    made.reg = expanded(read(item.in[0]));
    made.largest = item.node->op == ir::Op::reduce_max;
    made.pattern = classify(view.axes);
    made.results = item.node->types[0].elements() / (view.by_image ? images_ : 1);
    reg(made.reg).last_use = static_cast<int>(loop_->program.size());
    loop_->program.push_back({BlockLoop::Instruction::Kind::reduction, static_cast<int>(loop_->reductions.size())});
    loop_->reductions.push_back(made);
    reduced_.push_back(item.out[0]);
  }

  bool reads_what_others_write(int r, int own) const {
    const Register& from = registers_[static_cast<size_t>(r)];
    if (from.source != Source::load) return false;
    const LinearAccess& load = loop_->loads[static_cast<size_t>(from.index)];
    return std::ranges::any_of(group_.items, [&](int i) {
      const Item& item = body_.items[static_cast<size_t>(i)];
      if (item.kind == Item::Kind::reduce || item.out[0] == own) return false;
      const BodyValue& v = value(item.out[0]);
      return overlap(v.memory, v.type.bytes(), load.place, v.type.elements() * ir::size_of(load.dtype));
    });
  }

  bool is_stored(const Item& item) const {
    return item.kind != Item::Kind::reduce && value(item.out[0]).memory.placed();
  }

  /// A result that is stored needs a full block of its own, read before any other is written.
  void settle_result(const Item& item) {
    if (!is_stored(item)) return;
    int& r = made_.at(item.out[0]);
    r = expanded(r);
    if (reads_what_others_write(r, item.out[0])) r = emit(copy_kernel, std::array{r}, false);
  }

  void add_stores(const Item& item) {
    if (!is_stored(item)) return;
    const BodyValue& v = value(item.out[0]);
    const Place to = v.memory.with_stride(images_ > 0 ? v.type.bytes() / images_ : 0);
    const int r = made_.at(item.out[0]);
    Register& from = reg(r);
    if (same_in_memory(v.type.dtype) && from.source == Source::operation && !from.direct &&
        !read_after(to, v.type.bytes(), from.made_at)) {
      from.direct = true;
      loop_->direct_stores.push_back({r, to, v.type.dtype, -1});
      return;
    }
    from.last_use = std::numeric_limits<int>::max();
    loop_->stores.push_back({r, to, v.type.dtype});
  }

  /// Whether an instruction after `at` still reads from memory at `to`.
  bool read_after(const Place& to, int64_t bytes, int at) const {
    return std::ranges::any_of(loop_->loads, [&](const LinearAccess& load) {
      const int64_t load_bytes = std::max<int64_t>(1, images_) * loop_->elements * ir::size_of(load.dtype);
      return overlap(to, bytes, load.place, load_bytes) && registers_[static_cast<size_t>(load.reg)].last_use > at;
    });
  }

  bool is_contiguous() const {
    if (images_ == 0 || !loop_->reductions.empty()) return false;
    for (const LinearAccess& a : loop_->loads) {
      if (a.place.stride != loop_->elements * ir::size_of(a.dtype)) return false;
    }
    return std::ranges::all_of(loop_->repeats, [](const RepeatedAccess& a) {
      return a.place.stride == 0 && a.pattern.kind != Pattern::Kind::strided;
    });
  }

  void choose_block() {
    std::vector<int64_t> rows;
    for (const RepeatedAccess& a : loop_->repeats) {
      if (a.pattern.kind == Pattern::Kind::periodic) rows.push_back(a.pattern.period);
    }
    for (const Reduction& r : loop_->reductions) {
      if (r.pattern.kind == Pattern::Kind::periodic) rows.push_back(r.pattern.period);
      if (r.pattern.kind == Pattern::Kind::strided && r.pattern.groups.back().stride == 0) {
        rows.push_back(r.pattern.groups.back().extent);
      }
    }
    std::ranges::sort(rows, std::greater<>());
    int64_t grain = 1;
    for (int64_t row : rows) {
      if (std::lcm(grain, row) <= kLongestGrain) grain = std::lcm(grain, row);
    }
    const int64_t whole = loop_->elements * (loop_->contiguous ? unit_images_ : 1);
    loop_->block = std::min(whole, std::max(grain, kBlock / grain * grain));
  }

  void place_repeats() {
    for (RepeatedAccess& a : loop_->repeats) {
      if (a.pattern.kind == Pattern::Kind::periodic && loop_->block % a.pattern.period != 0) {
        a.pattern.kind = Pattern::Kind::strided;
        loop_->contiguous = false;  // The groups say one image.
      }
      if (!same_in_memory(a.dtype)) a.converted = scratch_.take(a.elements * 4);
      if (a.pattern.kind != Pattern::Kind::scalar) a.buffer = scratch_.take(loop_->block * 4);
    }
    for (LinearAccess& a : loop_->loads) {
      if (!same_in_memory(a.dtype)) a.buffer = scratch_.take(loop_->block * 4);
    }
    for (Reduction& r : loop_->reductions) {
      r.accumulator = scratch_.take(r.results * 4);
      if (r.pattern.kind == Pattern::Kind::periodic) r.partial = scratch_.take(r.pattern.period * 4);
    }
  }

  /// Buffers for what operations make, used again after the last use.
  void place_registers() {
    std::vector<std::pair<int, int64_t>> busy;  // until which instruction it must not be written, buffer
    std::vector<int64_t> free;
    for (int r = 0; r < static_cast<int>(registers_.size()); ++r) {
      const Register& made = registers_[static_cast<size_t>(r)];
      if (made.source != Source::operation || made.direct) continue;
      std::erase_if(busy, [&](const auto& b) {
        if (b.first > made.made_at) return false;
        free.push_back(b.second);
        return true;
      });
      int64_t buffer;
      if (free.empty()) {
        buffer = scratch_.take(loop_->block * 4);
      } else {
        buffer = free.back();
        free.pop_back();
      }
      // An op may write over the block that it reads, but not over a single value: it reads that again and again.
      const int used = std::max(made.last_use, made.made_at);
      busy.push_back({made.one && used < std::numeric_limits<int>::max() ? used + 1 : used, buffer});
      loop_->buffers.push_back({r, buffer});
    }
    loop_->registers = static_cast<int>(registers_.size());
    loop_->register_file = scratch_.take(loop_->registers * 8 + std::ssize(loop_->immediates) * 4);
  }

  const Body& body_;
  const Group& group_;
  int64_t images_, unit_images_;
  ScratchCounter& scratch_;
  std::unique_ptr<BlockLoop> loop_ = std::make_unique<BlockLoop>();
  std::vector<int> reduced_;
  std::vector<Register> registers_;
  std::map<int, int> made_;                                   // value -> register
  std::map<std::pair<int, int64_t>, int> loads_;              // value, offset -> register
  std::map<std::pair<uint64_t, ir::DType>, int> immediates_;  // bits of the number
};

}  // namespace

BuiltLoop build_loop(const Body& body, const Group& group, int64_t images, int64_t unit_images,
                     ScratchCounter& scratch) {
  return LoopBuilder(body, group, images, unit_images, scratch).build();
}

bool overlap(const Place& a, int64_t a_bytes, const Place& b, int64_t b_bytes) {
  return a.base == Place::Base::arena && b.base == Place::Base::arena && a.offset < b.offset + b_bytes &&
         b.offset < a.offset + a_bytes;
}

}  // namespace difuse::codegen::cpu
