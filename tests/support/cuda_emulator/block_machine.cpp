#include "tests/support/cuda_emulator/block_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ir/error.h"
#include "tests/support/cuda_emulator/fault_guard.h"
#include "tests/support/cuda_emulator/instructions.h"

namespace difuse::testing {
namespace {

using emulator::Collective;
using emulator::Part;

constexpr int kPoison = 0xff;  // Bytes of a NaN in every float format.
// Addresses as instructions take them: zero is none of them, and static arrays lie apart from dynamic ones.
constexpr unsigned kDynamicBase = emulator::kDynamicBase, kStaticBase = 1 << 20;

constexpr std::array<const char*, 18> kNames = {
    "__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or", "__syncwarp",
    "__shfl_sync",   "__shfl_xor_sync",     "__shfl_up_sync",    "__shfl_down_sync", "__any_sync",
    "__all_sync",    "__ballot_sync",       "mma_bf16",          "mma_f16",          "mma_tf32",
    "ldmatrix_x4",   "ldmatrix_x4_trans",   "stmatrix_x4_trans"};

const char* name_of(Collective collective) { return kNames[static_cast<size_t>(collective)]; }
bool is_of_block(Collective collective) { return collective <= Collective::sync_threads_or; }

/// "0-15, 31"
std::string ranges(const std::vector<unsigned>& sorted) {
  std::string text;
  for (size_t i = 0; i < sorted.size();) {
    size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    text += text.empty() ? "" : ", ";
    text += end == i + 1 ? fmt::format("{}", sorted[i]) : fmt::format("{}-{}", sorted[i], sorted[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

void run_blocks(const Launch& launch, StackPool& pool, bool find_races) {
  std::vector<std::unique_ptr<BlockMachine>> cluster(launch.cluster);
  for (unsigned rank = 0; rank < launch.cluster; ++rank) {
    cluster[rank] = std::make_unique<BlockMachine>(launch, pool, find_races, cluster, rank);
  }
  const auto has_ended = [](const auto& machine) { return machine->has_ended(); };
  const auto run_cluster = [&](emulator::Index3 first) {
    for (auto& machine : cluster) machine->begin({first.x++, first.y, first.z});
    for (;;) {
      for (auto& machine : cluster) {
        if (!has_ended(machine)) machine->go_on();
      }
      if (std::all_of(cluster.begin(), cluster.end(), has_ended)) return;
      for (auto& machine : cluster) machine->pass_cluster_barrier();
    }
  };
  for (unsigned z = 0; z < launch.grid.z; ++z) {
    for (unsigned y = 0; y < launch.grid.y; ++y) {
      for (unsigned x = 0; x < launch.grid.x; x += launch.cluster) run_cluster({x, y, z});
    }
  }
}

BlockMachine::BlockMachine(const Launch& launch, StackPool& pool, bool find_races,
                           std::span<const std::unique_ptr<BlockMachine>> cluster, unsigned rank)
    : launch_(launch),
      pool_(pool),
      cluster_(cluster),
      shared_(cluster.size() > 1 ? launch.shared_bytes + emulator::kSharedMargin : 0),
      threads_(launch.threads),
      warps_((launch.threads + 31) / 32),
      ready_(launch.threads) {
  cluster_rank = rank;
  block_size = {launch.threads, 1, 1};
  grid_size = launch.grid;
  pool_.reserve(launch.threads * cluster.size());
  stacks = pool_.begin();
  stacks_end = pool_.end();
  if (find_races) {
    const auto& code = launch.code;
    races_.emplace(
        std::array{std::pair<const unsigned char*, const unsigned char*>(code.dynamic_shared,
                                                                         code.dynamic_shared + launch.shared_bytes),
                   std::pair<const unsigned char*, const unsigned char*>(code.static_shared, code.static_shared_end)});
  }
}

void BlockMachine::begin(emulator::Index3 block) {
  block_index = block;
  backwards_ = (block.x + block.y + block.z) % 2 != 0;
  const auto& code = launch_.code;
  std::memset(cluster_.size() > 1 ? shared_.data() : code.dynamic_shared, kPoison,
              launch_.shared_bytes + emulator::kSharedMargin);
  std::fill(code.static_shared, code.static_shared_end, static_cast<unsigned char>(kPoison));
  start_threads();
  if (races_) races_->start_block();
}

/// All blocks of a cluster have the same addresses.
void BlockMachine::exchange_shared() { std::swap_ranges(shared_.begin(), shared_.end(), launch_.code.dynamic_shared); }

void BlockMachine::go_on() {
  exchange_shared();
  *launch_.code.machine = this;
  {
    const FaultGuard guard(&BlockMachine::on_fault, this);
    --ready_count_;
    const unsigned first = ready_[ready_begin_++ % ready_.size()];
    ready_begin_ %= ready_.size();
    run(first);
    switch_context(main_, threads_[first].context);
  }
  if (!failure_.empty()) throw Error(failure_);
  if (ended_ + at_cluster_barrier_ != launch_.threads) {
    throw Error(fmt::format("{}: nobody can go on: {}", place(), describe_waiting()));
  }
  if (ended_ == launch_.threads && !errands_.empty()) {
    throw Error(fmt::format("{}: it ends before what it copies into shared memory has come", place()));
  }
  check_margin();
  exchange_shared();
}

void BlockMachine::check_margin() const {
  const unsigned char* const margin = launch_.code.dynamic_shared + launch_.shared_bytes;
  if (std::any_of(margin, margin + emulator::kSharedMargin, [](unsigned char byte) { return byte != kPoison; })) {
    throw Error(fmt::format("{}: something was written behind the {} bytes of dynamic shared memory", place(),
                            launch_.shared_bytes));
  }
}

void BlockMachine::meet_cluster() {
  ++at_cluster_barrier_;
  threads_[running_].waits_for = "the cluster's barrier";
  leave();
}

void BlockMachine::pass_cluster_barrier() {
  at_cluster_barrier_ = 0;
  ++block_barriers_;
  for (unsigned i = 0; i < launch_.threads; ++i) {
    const unsigned t = backwards_ ? launch_.threads - 1 - i : i;
    threads_[t].waits_for = nullptr;
    if (!threads_[t].ended) wake(t);
  }
}

unsigned char* BlockMachine::cluster_pointer(unsigned address, unsigned bytes) {
  const unsigned rank = address >> emulator::kRankBit, at = address % (1u << emulator::kRankBit);
  if (rank == cluster_rank) return shared_pointer(address, bytes);
  const bool is_there = rank < cluster_.size() && !cluster_[rank]->has_ended();
  if (!is_there || at < kDynamicBase || at + bytes > kDynamicBase + launch_.shared_bytes) {
    failure_ = fmt::format("{}, thread {}: {} bytes at {} of block {} of the cluster are not {}", place(), running_,
                           bytes, at, rank, is_there ? "in dynamic shared memory" : "there");
    stop();
  }
  return cluster_[rank]->shared_.data() + (at - kDynamicBase);
}

void BlockMachine::start_threads() {
  ended_ = 0;
  block_barriers_ = 0;
  ready_begin_ = ready_count_ = 0;
  block_arrived_ = {};
  for (auto& warp : warps_) warp.clear();
  named_barriers_ = {};
  idle_ = 0;
  at_cluster_barrier_ = 0;
  const unsigned count = launch_.threads;
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = threads_[i];
    thread.context = pool_.start(cluster_rank * count + i, &BlockMachine::run_thread, this);
    thread.part = nullptr;
    thread.ended = false;
    thread.waits_for = nullptr;
    thread.copies.clear();
    thread.groups = 0;
    thread.group_barriers = thread.warp_barriers = 0;
    wake(backwards_ ? count - 1 - i : i);
  }
}

void BlockMachine::run_thread(void* machine) {
  auto& self = *static_cast<BlockMachine*>(machine);
  self.launch_.code.run(reinterpret_cast<const unsigned long long*>(self.launch_.arguments.data()));
  self.threads_[self.running_].ended = true;
  ++self.ended_;
  self.progress();
  self.leave();
  std::abort();
}

void BlockMachine::run(unsigned thread) {
  running_ = thread;
  thread_index.x = thread;
  lane = thread % 32;
}

void BlockMachine::leave() {
  Context& own = threads_[running_].context;
  if (ready_count_ == 0) {
    switch_context(own, main_);
    return;
  }
  const unsigned next = ready_[ready_begin_];
  ready_begin_ = ready_begin_ + 1 == ready_.size() ? 0 : ready_begin_ + 1;
  --ready_count_;
  run(next);
  switch_context(own, threads_[next].context);
}

void BlockMachine::stop() {
  switch_context(threads_[running_].context, main_);
  std::abort();  // Nobody returns to a thread that failed.
}

void BlockMachine::wake(unsigned thread) {
  size_t end = ready_begin_ + ready_count_++;
  if (end >= ready_.size()) end -= ready_.size();
  ready_[end] = thread;
  progress();
}

float BlockMachine::tensor_core_sum(const double* addends, unsigned count) { return truncated_sum({addends, count}); }

void BlockMachine::named_barrier(int id, int threads, bool waits) {
  NamedBarrier& barrier = named_barriers_.at(static_cast<size_t>(id));
  if (waits) barrier.waiting.push_back(running_);
  if (++barrier.arrived < threads) {
    if (!waits) return;
    threads_[running_].waits_for = "a named barrier";
    return leave();
  }
  if (barrier.arrived > threads) {
    failure_ = fmt::format("{}, thread {}: more threads come to the named barrier {} than the {} it is for", place(),
                           running_, id, threads);
    stop();
  }
  constexpr size_t kGroup = 128;
  const bool is_group =
      barrier.waiting.size() == kGroup && threads == static_cast<int>(kGroup) &&
      std::ranges::all_of(barrier.waiting, [&](unsigned t) { return t / kGroup == running_ / kGroup; });
  for (const unsigned thread : barrier.waiting) {
    if (is_group) ++threads_[thread].group_barriers;
    threads_[thread].waits_for = nullptr;
    if (thread != running_) wake(thread);
  }
  barrier = {};
}

void BlockMachine::wait_for_progress() {
  if (++idle_ > ready_count_ + 1 && !errands_.empty()) {
    std::swap(errands_[chance_() % errands_.size()], errands_.back());
    const emulator::Errand errand = errands_.back();
    errands_.pop_back();
    errand.run(errand);
    return;
  }
  // When all have looked twice and nothing happened, nothing will.
  if (idle_ > 2 * launch_.threads) {
    failure_ = fmt::format("{}, thread {}: it waits at a barrier in shared memory for what nobody brings; {}", place(),
                           running_, describe_waiting());
    stop();
  }
  threads_[running_].waits_for = "a barrier in shared memory";
  const unsigned idle = idle_;
  wake(running_);
  idle_ = idle;
  leave();
  threads_[running_].waits_for = nullptr;
}

void BlockMachine::meet(Collective collective, unsigned mask, Part& part) {
  Thread& self = threads_[running_];
  self.part = &part;
  self.collective = collective;
  self.mask = mask;
  if (is_of_block(collective)) {
    meet_block(collective);
  } else {
    meet_warp(collective, mask);
  }
}

void BlockMachine::meet_block(Collective collective) {
  unsigned& arrived = block_arrived_[static_cast<size_t>(collective)];
  if (++arrived < launch_.threads) return leave();
  arrived = 0;
  ++block_barriers_;
  unsigned long long count = 0;
  for (const Thread& thread : threads_) count += thread.part->value;
  if (collective == Collective::sync_threads_and) count = count == launch_.threads;
  if (collective == Collective::sync_threads_or) count = count != 0;
  for (unsigned i = 0; i < launch_.threads; ++i) {
    const unsigned t = backwards_ ? launch_.threads - 1 - i : i;
    threads_[t].part->result = count;
    threads_[t].part = nullptr;
    if (t != running_) wake(t);
  }
}

void BlockMachine::meet_warp(Collective collective, unsigned mask) {
  const unsigned bit = 1u << lane;
  if ((mask & bit) == 0) {
    failure_ = fmt::format("{}, thread {}: {}: its own lane {} is not in the mask {:#010x}", place(), running_,
                           name_of(collective), lane, mask);
    stop();
  }
  auto& meetings = warps_[running_ / 32];
  auto meeting = std::find_if(meetings.begin(), meetings.end(),
                              [&](const Meeting& m) { return m.collective == collective && m.mask == mask; });
  if (meeting == meetings.end()) meeting = meetings.insert(meeting, {collective, mask, 0});
  meeting->arrived |= bit;
  if (meeting->arrived != mask) return leave();
  const Meeting complete = *meeting;
  meetings.erase(meeting);
  const unsigned first = running_ / 32 * 32;
  perform(complete, first);
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned l = backwards_ ? 31 - i : i;
    if ((mask >> l & 1u) == 0) continue;
    threads_[first + l].part = nullptr;
    if (collective == Collective::sync_warp) ++threads_[first + l].warp_barriers;
    if (l != lane) wake(first + l);
  }
}

void BlockMachine::perform(const Meeting& meeting, unsigned first_thread) {
  WarpParts parts{};
  for (unsigned l = 0; l < 32; ++l) {
    if (meeting.mask >> l & 1u) parts[l] = threads_[first_thread + l].part;
  }
  unsigned votes = 0;
  for (unsigned l = 0; l < 32; ++l) votes |= parts[l] != nullptr && parts[l]->value != 0 ? 1u << l : 0;
  for (unsigned l = 0; l < 32; ++l) {
    Part* const part = parts[l];
    if (part == nullptr) continue;
    switch (meeting.collective) {
      case Collective::shuffle:
      case Collective::shuffle_xor:
      case Collective::shuffle_up:
      case Collective::shuffle_down:
        if (parts[part->source] == nullptr) {
          failure_ = fmt::format("{}, thread {}: {}: reads lane {}, which is not in the mask {:#010x}", place(),
                                 first_thread + l, name_of(meeting.collective), part->source, meeting.mask);
          stop();
        }
        part->result = parts[part->source]->value;
        break;
      case Collective::any:
        part->result = votes != 0;
        break;
      case Collective::all:
        part->result = votes == meeting.mask;
        break;
      case Collective::ballot:
        part->result = votes;
        break;
      case Collective::ldmatrix:
      case Collective::ldmatrix_trans:
      case Collective::stmatrix_trans:
        if (reinterpret_cast<uintptr_t>(part->row) % 16 != 0 || !is_shared(part->row, 16)) {
          failure_ = fmt::format("{}, thread {}: {}: row address {} is not 16 aligned bytes of shared memory", place(),
                                 first_thread + l, name_of(meeting.collective), part->row);
          stop();
        }
        break;
      default:
        break;
    }
  }
  if (meeting.collective >= Collective::mma_bf16 && meeting.collective <= Collective::mma_tf32) {
    compute_mma(meeting.collective, parts);
  } else if (meeting.collective == Collective::stmatrix_trans) {
    compute_stmatrix_trans(parts);
  } else if (meeting.collective >= Collective::ldmatrix) {
    compute_ldmatrix(meeting.collective == Collective::ldmatrix_trans, parts);
  }
}

void BlockMachine::copy_async(void* to, const void* from, unsigned bytes, bool valid) {
  if (!is_shared(to, bytes) || reinterpret_cast<uintptr_t>(to) % bytes != 0) {
    failure_ = fmt::format("{}, thread {}: copy_async_{}: its destination is not {} aligned bytes of shared memory",
                           place(), running_, bytes, bytes);
    stop();
  }
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0) {
    failure_ = fmt::format("{}, thread {}: copy_async_{}: its source {} is not aligned{}", place(), running_, bytes,
                           from, valid ? "" : " (it must be even where nothing is read)");
    stop();
  }
  if (races_) {
    access(to, bytes, true);
    if (valid) access(from, bytes, false);
  }
  std::memset(to, kPoison, bytes);
  threads_[running_].copies.push_back({to, valid ? from : nullptr, bytes, threads_[running_].groups});
}

void BlockMachine::copy_async_commit() { ++threads_[running_].groups; }

void BlockMachine::copy_async_wait(int pending) {
  Thread& self = threads_[running_];
  size_t kept = 0;
  for (const Copy& copy : self.copies) {
    if (copy.group >= self.groups - pending) {
      self.copies[kept++] = copy;
      continue;
    }
    if (races_) access(copy.to, copy.bytes, true);
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, copy.bytes);
    } else {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  self.copies.resize(kept);
}

bool BlockMachine::is_shared(const void* pointer, unsigned bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  const auto inside = [&](const unsigned char* begin, const unsigned char* end) {
    return at >= reinterpret_cast<uintptr_t>(begin) && at + bytes <= reinterpret_cast<uintptr_t>(end);
  };
  const auto& code = launch_.code;
  return inside(code.dynamic_shared, code.dynamic_shared + launch_.shared_bytes) ||
         inside(code.static_shared, code.static_shared_end);
}

unsigned char* BlockMachine::shared_pointer(unsigned address, unsigned bytes) {
  // Some instructions take the address without the rank.
  const unsigned rank = address >> emulator::kRankBit, at = address % (1u << emulator::kRankBit);
  if ((rank == cluster_rank || rank == 0) && at >= kDynamicBase && at + bytes <= kDynamicBase + launch_.shared_bytes) {
    return launch_.code.dynamic_shared + (at - kDynamicBase);
  }
  failure_ =
      fmt::format("{}, thread {}: {} bytes at {} are not in dynamic shared memory", place(), running_, bytes, address);
  stop();
}

unsigned BlockMachine::shared_address(const void* pointer) {
  const unsigned rank = cluster_rank << emulator::kRankBit;
  const auto* at = static_cast<const unsigned char*>(pointer);
  const auto& code = launch_.code;
  if (at >= code.dynamic_shared && at <= code.dynamic_shared + launch_.shared_bytes) {
    return rank + kDynamicBase + static_cast<unsigned>(at - code.dynamic_shared);
  }
  if (at >= code.static_shared && at <= code.static_shared_end && code.static_shared != code.static_shared_end) {
    return rank + kStaticBase + static_cast<unsigned>(at - code.static_shared);
  }
  failure_ = fmt::format("{}, thread {}: {} is no address of shared memory", place(), running_, pointer);
  stop();
}

void BlockMachine::access(const void* pointer, unsigned bytes, bool is_write) {
  const auto* at = static_cast<const unsigned char*>(pointer);
  const bool is_own = at >= launch_.code.image && at < launch_.code.image_end && !is_shared(at, bytes);
  const auto* own = reinterpret_cast<const unsigned char*>(static_cast<emulator::Machine*>(this));
  if (is_own || (at >= own && at < own + sizeof(emulator::Machine))) return;
  const auto block = static_cast<int>((block_index.z * grid_size.y + block_index.y) * grid_size.x + block_index.x);
  failure_ = races_->access(pointer, bytes, is_write,
                            {block, static_cast<int>(running_), block_barriers_, threads_[running_].group_barriers,
                             threads_[running_].warp_barriers});
  if (failure_.empty()) return;
  failure_.insert(0, fmt::format("{}, thread {}: ", place(), running_));
  stop();
}

void BlockMachine::on_fault(void* machine, int signal, const void* address) {
  auto& self = *static_cast<BlockMachine*>(machine);
  self.failure_ = fmt::format("{}, thread {}: ", self.place(), self.running_) +
                  (signal == SIGFPE ? "an integer division by zero"
                                    : fmt::format("a crash ({}), at address {}", strsignal(signal), address));
  self.stop();
}

void BlockMachine::fail(const char* message, const char* file, unsigned line) {
  failure_ = fmt::format("{}, thread {}: {}", place(), running_, message);
  if (file != nullptr) failure_ += fmt::format(" at line {} of {}", line, file);
  stop();
}

std::string BlockMachine::place() const {
  return fmt::format("emulated kernel {}, block ({}, {}, {})", launch_.kernel, block_index.x, block_index.y,
                     block_index.z);
}

std::string BlockMachine::describe_waiting() const {
  std::vector<std::pair<std::string, std::vector<unsigned>>> groups;
  for (unsigned t = 0; t < launch_.threads; ++t) {
    const Thread& thread = threads_[t];
    std::string what = "have ended";
    if (thread.waits_for != nullptr) {
      what = fmt::format("wait at {}", thread.waits_for);
    } else if (!thread.ended) {
      what = fmt::format("wait at {}", name_of(thread.collective));
      if (!is_of_block(thread.collective)) what += fmt::format(" (mask {:#010x})", thread.mask);
    }
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == what; });
    if (group == groups.end()) group = groups.insert(group, {what, {}});
    group->second.push_back(t);
  }
  std::string text;
  for (const auto& [what, threads] : groups) {
    text += fmt::format("{}threads {} {}", text.empty() ? "" : "; ", ranges(threads), what);
  }
  return text;
}

}  // namespace difuse::testing
