#include "codegen/cpu/kernels/assemble.h"

#include <algorithm>
#include <cstring>

#include "codegen/cpu/kernels/loop_builder.h"
#include "codegen/cpu/kernels/schedule.h"

namespace difuse::codegen::cpu {
namespace {

constexpr int64_t kSegment = 16384;        ///< Elements of one unit of a long vector.
constexpr int64_t kSummedSegment = 65536;  ///< The same where the vector is summed: part of the order of the sum.
constexpr int64_t kImagesOfSum = 8;        ///< Images whose sums are added before they join the total.
constexpr int64_t kParallelWork = 16384;   ///< Less (elements, or a few flops) is not worth waking a thread.

/// Calls a CallSpec for the images of a unit.
class CallStep : public Step {
 public:
  CallStep(CallSpec spec, std::vector<Place> in, std::vector<Place> out, ScratchCounter& scratch)
      : spec_(std::move(spec)), in_(std::move(in)), out_(std::move(out)) {
    auto by_image = [](const Place& p) { return p.stride != 0; };
    moves_ = std::ranges::any_of(in_, by_image) || std::ranges::any_of(out_, by_image);
    addresses_ = scratch.take((std::ssize(in_) + std::ssize(out_)) * static_cast<int64_t>(sizeof(std::byte*)));
    scratch_ = scratch.take(spec_.scratch_bytes);
  }

  void run(const Unit& unit) const override {
    std::byte** addresses = reinterpret_cast<std::byte**>(unit.scratch + addresses_);
    const int64_t end = unit.first + unit.images;
    for (int64_t image = unit.first; image < end; image += spec_.unit) {
      if (moves_ || unit.fresh) {
        for (size_t i = 0; i < in_.size(); ++i) addresses[i] = unit.at(in_[i], image);
        for (size_t i = 0; i < out_.size(); ++i) addresses[in_.size() + i] = unit.at(out_[i], image);
      }
      CallArguments arguments{{addresses, in_.size()},
                              {addresses + in_.size(), out_.size()},
                              unit.scratch + scratch_,
                              image,
                              std::min(spec_.unit, end - image)};
      spec_.run(arguments);
    }
  }

 private:
  CallSpec spec_;
  std::vector<Place> in_, out_;
  bool moves_;
  int64_t addresses_, scratch_;
};

/// Adds (or compares) `count` partial results of `results` floats each, `together` at a time, in order.
CallSpec combine_call(int64_t count, int64_t results, bool largest, int64_t together) {
  static constexpr int64_t kPiece = 1024;
  CallSpec call;
  call.images = (results + kPiece - 1) / kPiece;
  call.run = [=](const CallArguments& a) {
    const int64_t begin = a.image * kPiece, n = std::min(kPiece, results - begin);
    float chunk[kPiece];
    float* total = a.output(0) + begin;
    auto combine = [&](float* to, const float* from) {
      for (int64_t i = 0; i < n; ++i) to[i] = !largest ? to[i] + from[i] : from[i] > to[i] ? from[i] : to[i];
    };
    for (int64_t first = 0; first < count; first += together) {
      float* sum = first == 0 ? total : chunk;
      std::copy_n(a.input(0) + first * results + begin, n, sum);
      for (int64_t i = first + 1; i < std::min(first + together, count); ++i) {
        combine(sum, a.input(0) + i * results + begin);
      }
      if (first > 0) combine(total, chunk);
    }
  };
  return call;
}

class Assembler {
 public:
  explicit Assembler(Body body) : body_(std::move(body)), schedule_(make_schedule(body_)) {}

  std::unique_ptr<PhaseKernel> run() {
    if (schedule_.groups.empty()) return nullptr;
    place_values();
    for (size_t begin = 0; begin < schedule_.groups.size();) {
      size_t end = begin + 1;
      if (group(begin).by_image) {
        while (end < schedule_.groups.size() && group(end).level == group(begin).level) ++end;
      }
      add_phase(begin, end);
      begin = end;
    }
    for (const auto& [from, to, bytes] : copies_) add_copy(from, to, bytes);
    kernel_->fixed = std::move(body_.fixed);
    kernel_->implementation = body_.implementation;
    kernel_->flops = body_.flops;
    kernel_->workspace_bytes = workspace_.bytes();
    return std::move(kernel_);
  }

 private:
  struct Copy {
    Place from, to;
    int64_t bytes;
  };

  const Group& group(size_t g) const { return schedule_.groups[g]; }
  const Item& item(int i) const { return body_.items[static_cast<size_t>(i)]; }
  BodyValue& value(int v) { return body_.values[static_cast<size_t>(v)]; }
  int64_t images() const { return schedule_.images; }

  // Values.

  struct Use {
    int item;
    size_t operand;
  };

  void place_values() {
    std::vector<std::vector<Use>> uses(body_.values.size());
    for (int i = 0; i < static_cast<int>(body_.items.size()); ++i) {
      for (size_t k = 0; k < item(i).in.size(); ++k) uses[static_cast<size_t>(item(i).in[k].value)].push_back({i, k});
    }
    for (size_t v = 0; v < body_.values.size(); ++v) {
      BodyValue& made = body_.values[v];
      if (made.item >= 0) place_value(made, uses[v], uses);
    }
  }

  void place_value(BodyValue& made, const std::vector<Use>& uses, const std::vector<std::vector<Use>>& all_uses) {
    const Item& maker = item(made.item);
    if (made.destination.placed()) {
      if (is_safe(made, all_uses)) {
        made.memory = made.destination;
        return;
      }
      made.memory = {Place::Base::workspace, workspace_.take(made.type.bytes())};
      copies_.push_back({made.memory, made.destination, made.type.bytes()});
      return;
    }
    const bool outside_group =
        std::ranges::any_of(uses, [&](const Use& u) { return item(u.item).group != maker.group; });
    const bool in_memory = maker.kind == Item::Kind::call || maker.kind == Item::Kind::reduce || outside_group;
    if (!in_memory) return;
    const bool within_images =
        maker.by_image && !sums_over_images(maker, images()) && std::ranges::all_of(uses, [&](const Use& u) {
          const Item& reader = item(u.item);
          return reader.level == maker.level && reads_by_image(reader, u.operand, images());
        });
    if (within_images) {
      within_images_.push_back(&made);  // Placed with its phase.
    } else {
      made.memory = {Place::Base::workspace, workspace_.take(made.type.bytes())};
    }
  }

  /// Whether the value may be made at its destination: nothing that lies there is read afterwards.
  bool is_safe(const BodyValue& made, const std::vector<std::vector<Use>>& uses) const {
    const Item& maker = item(made.item);
    if (maker.kind == Item::Kind::call && maker.call.expects_overlap) return true;
    const int64_t bytes = made.type.bytes();
    for (size_t v = 0; v < body_.values.size(); ++v) {
      const BodyValue& old = body_.values[v];
      if (old.item >= 0 || old.constant || !overlap(old.memory, old.type.bytes(), made.destination, bytes)) continue;
      for (const Use& use : uses[v]) {
        const Item& reader = item(use.item);
        const Ref& ref = reader.in[use.operand];
        const bool same_place =
            old.memory.offset + ref.offset * ir::size_of(ref.type.dtype) == made.destination.offset &&
            ref.type.bytes() == bytes;
        const bool together = reader.group == maker.group;
        const bool earlier = reader.group < maker.group;
        const bool same_loop = reader.by_image && maker.by_image && reader.level == maker.level;
        const bool element_by_element = same_place && reader.is_block() && maker.is_block() &&
                                        reader.kind != Item::Kind::broadcast && reader.kind != Item::Kind::reduce &&
                                        maker.kind != Item::Kind::reduce;
        const bool image_by_image = same_place && same_loop && reads_by_image(reader, use.operand, images());
        const bool reduced_together = same_place && together && reader.kind == Item::Kind::reduce;
        if (together ? !(element_by_element || reduced_together) : !(earlier && (!same_loop || image_by_image))) {
          return false;
        }
      }
    }
    return true;
  }

  // Phases.

  void add_phase(size_t begin, size_t end) {
    const Group& first = group(begin);
    Phase phase;
    const bool one_loop = end == begin + 1 && !first.is_call;
    int64_t work = 0;
    if (first.by_image) {
      phase.images = images();
      for (size_t g = begin; g < end; ++g) {
        if (!group(g).is_call) {
          work += group(g).elements * std::ssize(group(g).items) * images();
          continue;
        }
        phase.unit_images = std::max(phase.unit_images, item(group(g).items[0]).call.unit);
        work += call_work(item(group(g).items[0]));
      }
      if (one_loop) phase.unit_images = std::clamp<int64_t>(kSegment / first.elements, 1, phase.images);
    } else if (first.is_call) {
      const CallSpec& call = item(first.items[0]).call;
      phase.images = call.images;
      phase.unit_images = call.unit;
      work = call_work(item(first.items[0]));
    } else {
      work = first.elements * std::ssize(first.items);
    }
    phase.parallel = work >= kParallelWork;

    ScratchCounter scratch;
    for (BodyValue* v : within_images_) {
      const int g = item(v->item).group;
      if (g < static_cast<int>(begin) || g >= static_cast<int>(end)) continue;
      v->memory = {Place::Base::scratch, scratch.take(v->type.bytes() / images() * phase.unit_images)};
    }
    std::vector<Phase> after;
    for (size_t g = begin; g < end; ++g) {
      if (group(g).is_call) {
        add_call(phase, item(group(g).items[0]), scratch);
      } else {
        add_loop(phase, group(g), one_loop, scratch, after);
      }
    }
    finish_phase(std::move(phase), scratch);
    for (Phase& p : after) kernel_->phases.push_back(std::move(p));
  }

  void finish_phase(Phase phase, const ScratchCounter& scratch) {
    kernel_->scratch_bytes = std::max(kernel_->scratch_bytes, scratch.bytes());
    kernel_->phases.push_back(std::move(phase));
  }

  int64_t call_work(const Item& it) const {
    int64_t bytes = 0;
    for (const Ref& r : it.in) bytes += r.type.bytes();
    for (int v : it.out) bytes += body_.values[static_cast<size_t>(v)].type.bytes();
    return bytes / 4 + body_.flops / 16;
  }

  void add_call(Phase& phase, const Item& it, ScratchCounter& scratch) {
    std::vector<Place> in, out;
    for (size_t k = 0; k < it.in.size(); ++k) {
      const Ref& r = it.in[k];
      const Place whole = value(r.value).memory.moved(r.offset * ir::size_of(r.type.dtype));
      in.push_back(whole.with_stride(it.call.in[k].by_image ? r.type.bytes() / it.call.images : 0));
    }
    for (size_t k = 0; k < it.out.size(); ++k) {
      const BodyValue& v = value(it.out[k]);
      out.push_back(v.memory.with_stride(it.call.out[k].by_image ? v.type.bytes() / it.call.images : 0));
    }
    phase.steps.push_back(std::make_unique<CallStep>(it.call, std::move(in), std::move(out), scratch));
  }

  void add_loop(Phase& phase, const Group& g, bool alone, ScratchCounter& scratch, std::vector<Phase>& after) {
    const int64_t count = g.by_image ? images() : 0;
    BuiltLoop built = build_loop(body_, g, count, phase.unit_images, scratch);
    BlockLoop& loop = *built.loop;
    const bool sums = !loop.reductions.empty();
    if (alone && (!g.by_image || !sums)) {
      const int64_t longest = sums ? kSummedSegment : kSegment;
      const int64_t segment = std::max<int64_t>(1, longest / loop.block) * loop.block;
      if (g.elements > segment) {
        phase.segment = segment;
        phase.elements = g.elements;
        phase.unit_images = 1;
        loop.contiguous = false;
      }
    }
    for (size_t r = 0; r < loop.reductions.size(); ++r) {
      Reduction& reduction = loop.reductions[r];
      const Place whole = value(built.reduced[r]).memory;
      const int64_t bytes = reduction.results * static_cast<int64_t>(sizeof(float));
      const bool over_images =
          g.by_image && reduction.results == value(built.reduced[r]).type.elements() && images() > 1;
      const bool over_segments = phase.segment > 0;
      if (!over_images && !over_segments) {
        reduction.place = whole.with_stride(g.by_image ? bytes : 0);
        continue;
      }
      const int64_t parts = over_images ? images() : phase.segments();
      const Place partial{Place::Base::workspace, workspace_.take(parts * bytes)};
      reduction.place = partial.with_stride(over_images ? bytes : 0);
      const CallSpec call =
          combine_call(parts, reduction.results, reduction.largest, over_images ? kImagesOfSum : parts);
      Phase combine;
      combine.images = call.images;
      combine.parallel = parts * reduction.results >= kParallelWork;
      ScratchCounter combine_scratch;
      combine.steps.push_back(
          std::make_unique<CallStep>(call, std::vector{partial}, std::vector{whole}, combine_scratch));
      kernel_->scratch_bytes = std::max(kernel_->scratch_bytes, combine_scratch.bytes());
      after.push_back(std::move(combine));
    }
    phase.steps.push_back(std::move(built.loop));
  }

  void add_copy(const Place& from, const Place& to, int64_t bytes) {
    static constexpr int64_t kPiece = 1 << 16;
    CallSpec call;
    call.images = (bytes + kPiece - 1) / kPiece;
    call.run = [bytes](const CallArguments& a) {
      const int64_t begin = a.image * kPiece;
      std::memcpy(a.out[0] + begin, a.in[0] + begin, static_cast<size_t>(std::min(kPiece, bytes - begin)));
    };
    Phase phase;
    phase.images = call.images;
    phase.parallel = bytes / 4 >= kParallelWork;
    ScratchCounter scratch;
    phase.steps.push_back(std::make_unique<CallStep>(call, std::vector{from}, std::vector{to}, scratch));
    finish_phase(std::move(phase), scratch);
  }

  Body body_;
  Schedule schedule_;
  ScratchCounter workspace_;
  std::vector<BodyValue*> within_images_;
  std::vector<Copy> copies_;
  std::unique_ptr<PhaseKernel> kernel_ = std::make_unique<PhaseKernel>();
};

}  // namespace

std::unique_ptr<PhaseKernel> assemble(Body body) { return Assembler(std::move(body)).run(); }

}  // namespace difuse::codegen::cpu
