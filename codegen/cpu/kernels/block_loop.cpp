#include "codegen/cpu/kernels/block_loop.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "codegen/cpu/kernels/register_ops.h"

namespace difuse::codegen::cpu {
namespace {

float* floats(std::byte* at) { return reinterpret_cast<float*>(at); }

/// The block form of the value that an access repeats.
float* source_of(const Unit& unit, const RepeatedAccess& a, int64_t image) {
  return a.converted >= 0 ? floats(unit.scratch + a.converted) : floats(unit.at(a.place, image));
}

void prepare(const Unit& unit, const RepeatedAccess& a, int64_t image, int64_t block) {
  if (a.converted >= 0) load_block(a.dtype, unit.at(a.place, image), floats(unit.scratch + a.converted), a.elements);
  if (a.pattern.kind != Pattern::Kind::periodic || a.buffer < 0) return;
  const int64_t period = a.pattern.period;
  float* tile = floats(unit.scratch + a.buffer);
  std::memcpy(tile, source_of(unit, a, image), static_cast<size_t>(std::min(period, block)) * sizeof(float));
  for (int64_t filled = period; filled < block; filled *= 2) {
    std::memcpy(tile + filled, tile, static_cast<size_t>(std::min(filled, block - filled)) * sizeof(float));
  }
}

/// One block of a strided operand.
void repeat_block(const RepeatedAccess& a, const float* from, float* to, int64_t begin, int64_t n) {
  const bool runs = a.pattern.groups.back().stride != 0;
  for_runs(a.pattern.groups, begin, n, [&](int64_t done, int64_t count, int64_t at) {
    if (runs) {
      std::memcpy(to + done, from + at, static_cast<size_t>(count) * sizeof(float));
    } else {
      const float* const value[] = {from + at};
      expand_kernel(value, to + done, count);
    }
  });
}

}  // namespace

void BlockLoop::run(const Unit& unit) const {
  if (unit.fresh) start_thread(unit);
  if (contiguous) {
    start_image(unit, unit.first);
    run_range(unit, unit.first, 0, unit.images * elements);
    return;
  }
  for (int64_t image = unit.first; image < unit.first + unit.images; ++image) {
    start_image(unit, image);
    run_range(unit, image, std::max<int64_t>(unit.begin, 0), unit.end < 0 ? elements : unit.end);
    finish_image(unit, image);
  }
}

void BlockLoop::start_thread(const Unit& unit) const {
  float** regs = reinterpret_cast<float**>(unit.scratch + register_file);
  // Immediates live behind the registers' addresses.
  float* values = reinterpret_cast<float*>(regs + registers);
  for (const Immediate& m : immediates) {
    std::memcpy(values, &m.bits, sizeof(m.bits));
    regs[m.reg] = values++;
  }
  for (const auto& [reg, offset] : buffers) regs[reg] = floats(unit.scratch + offset);
  for (const LinearAccess& a : loads) {
    if (a.buffer >= 0) regs[a.reg] = floats(unit.scratch + a.buffer);
  }
  for (const RepeatedAccess& a : repeats) {
    if (a.buffer >= 0) regs[a.reg] = floats(unit.scratch + a.buffer);
    if (a.place.stride != 0) continue;
    prepare(unit, a, 0, block);
    if (a.buffer < 0) regs[a.reg] = source_of(unit, a, 0);
  }
}

void BlockLoop::start_image(const Unit& unit, int64_t image) const {
  float** regs = reinterpret_cast<float**>(unit.scratch + register_file);
  for (const RepeatedAccess& a : repeats) {
    if (a.place.stride == 0) continue;
    prepare(unit, a, image, block);
    if (a.buffer < 0) regs[a.reg] = source_of(unit, a, image);
  }
  for (const Reduction& r : reductions) {
    const float start = r.largest ? -std::numeric_limits<float>::infinity() : 0.0f;
    std::fill_n(floats(unit.scratch + r.accumulator), r.results, start);
  }
}

void BlockLoop::run_range(const Unit& unit, int64_t image, int64_t begin, int64_t end) const {
  float** regs = reinterpret_cast<float**>(unit.scratch + register_file);
  for (int64_t i = begin; i < end; i += block) run_block(unit, image, i, std::min(block, end - i), regs);
}

void BlockLoop::run_block(const Unit& unit, int64_t image, int64_t i, int64_t n, float** regs) const {
  for (const LinearAccess& a : loads) {
    std::byte* at = unit.at(a.place, image) + i * ir::size_of(a.dtype);
    if (a.buffer < 0) {
      regs[a.reg] = floats(at);
    } else {
      load_block(a.dtype, at, regs[a.reg], n);
    }
  }
  for (const LinearAccess& a : direct_stores) {
    regs[a.reg] = floats(unit.at(a.place, image) + i * ir::size_of(a.dtype));
  }
  for (const RepeatedAccess& a : repeats) {
    if (a.pattern.kind == Pattern::Kind::strided) repeat_block(a, source_of(unit, a, image), regs[a.reg], i, n);
  }
  for (const Instruction& instruction : program) {
    if (instruction.kind == Instruction::Kind::operation) {
      const Operation& op = operations[static_cast<size_t>(instruction.index)];
      const float* in[3] = {};
      for (int k = 0; k < op.count; ++k) in[k] = regs[op.in[k]];
      op.kernel(in, regs[op.out], op.one ? 1 : n);
    } else {
      const Reduction& r = reductions[static_cast<size_t>(instruction.index)];
      reduce_block(unit, r, regs[r.reg], i, n);
    }
  }
  for (const Store& s : stores) {
    std::byte* at = unit.at(s.place, image) + i * ir::size_of(s.dtype);
    if (same_in_memory(s.dtype)) {
      if (floats(at) != regs[s.reg]) std::memcpy(at, regs[s.reg], static_cast<size_t>(n) * sizeof(float));
    } else {
      store_block(s.dtype, regs[s.reg], at, n);
    }
  }
}

void BlockLoop::reduce_block(const Unit& unit, const Reduction& r, const float* in, int64_t i, int64_t n) const {
  const BlockOps& ops = block_ops();
  float* acc = floats(unit.scratch + r.accumulator);
  auto combine = [&](float& to, float x) { to = r.largest ? (x > to ? x : to) : to + x; };
  if (r.pattern.kind == Pattern::Kind::scalar) {
    combine(acc[0], r.largest ? ops.max(in, n) : ops.sum(in, n));
    return;
  }
  if (r.pattern.kind == Pattern::Kind::periodic && !r.largest && i % r.pattern.period == 0 &&
      n % r.pattern.period == 0) {
    const int64_t columns = r.pattern.period;
    float* partial = floats(unit.scratch + r.partial);
    std::fill_n(partial, columns, 0.0f);
    ops.column_sums(in, n / columns, columns, partial);
    for (int64_t c = 0; c < columns; ++c) acc[c] += partial[c];
    return;
  }
  const bool columns = r.pattern.groups.back().stride != 0;
  for_runs(r.pattern.groups, i, n, [&](int64_t done, int64_t count, int64_t at) {
    if (columns) {
      for (int64_t c = 0; c < count; ++c) combine(acc[at + c], in[done + c]);
    } else {
      combine(acc[at], r.largest ? ops.max(in + done, count) : ops.sum(in + done, count));
    }
  });
}

void BlockLoop::finish_image(const Unit& unit, int64_t image) const {
  for (const Reduction& r : reductions) {
    std::byte* to = unit.at(r.place, image);
    if (unit.end >= 0) to += unit.index * r.results * static_cast<int64_t>(sizeof(float));
    std::memcpy(to, unit.scratch + r.accumulator, static_cast<size_t>(r.results) * sizeof(float));
  }
}

}  // namespace difuse::codegen::cpu
