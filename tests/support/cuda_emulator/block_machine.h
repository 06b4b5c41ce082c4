// Runs the threads of a block, one after the other, on stacks of their own: a thread runs until it has to wait in a
// collective, then the next one that need not wait goes on.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/support/cuda_emulator/device/machine.cuh"
#include "tests/support/cuda_emulator/fiber.h"
#include "tests/support/cuda_emulator/race_checker.h"

namespace difuse::testing {

struct Launch {
  std::string kernel;  ///< For messages.
  emulator::Exports code;
  emulator::Index3 grid;
  unsigned threads = 0;
  unsigned shared_bytes = 0;
  unsigned cluster = 1;  ///< Blocks.
  std::span<const uint64_t> arguments;
};

/// Runs all blocks, cluster after cluster. Throws Error where one did what a device forbids or leaves undefined (see
/// emulated_kernel.h).
void run_blocks(const Launch& launch, StackPool& pool, bool find_races);

class BlockMachine final : public emulator::Machine {
 public:
  /// `cluster`: the machines of a cluster's blocks by rank, this one among them.
  BlockMachine(const Launch& launch, StackPool& pool, bool find_races,
               std::span<const std::unique_ptr<BlockMachine>> cluster, unsigned rank);

  void begin(emulator::Index3 block);
  /// Runs the block to its end, or until all of its threads wait for those of the cluster's other blocks.
  void go_on();
  bool has_ended() const { return ended_ == launch_.threads; }
  /// All blocks of the cluster have come to its barrier.
  void pass_cluster_barrier();

  void meet(emulator::Collective collective, unsigned mask, emulator::Part& part) override;
  void copy_async(void* to, const void* from, unsigned bytes, bool valid) override;
  void copy_async_commit() override;
  void copy_async_wait(int pending) override;
  unsigned shared_address(const void* pointer) override;
  unsigned char* shared_pointer(unsigned address, unsigned bytes) override;
  float tensor_core_sum(const double* addends, unsigned count) override;
  void named_barrier(int id, int threads, bool waits) override;
  void meet_cluster() override;
  unsigned char* cluster_pointer(unsigned address, unsigned bytes) override;
  void defer(const emulator::Errand& errand) override { errands_.push_back(errand); }
  void wait_for_progress() override;
  void progress() override { idle_ = 0; }
  void access(const void* pointer, unsigned bytes, bool is_write) override;
  [[noreturn]] void fail(const char* message, const char* file, unsigned line) override;

 private:
  struct Copy {
    void* to;
    const void* from;  ///< Null: zeros.
    unsigned bytes;
    int group;
  };
  struct Thread {
    Context context;
    emulator::Part* part = nullptr;  ///< Not null while it waits.
    emulator::Collective collective{};
    unsigned mask = 0;
    bool ended = false;
    const char* waits_for = nullptr;            ///< Besides a collective.
    std::vector<Copy> copies;                   ///< Not done yet.
    int groups = 0;                             ///< Committed ones.
    int group_barriers = 0, warp_barriers = 0;  ///< That it has passed.
  };
  /// Lanes of a warp that wait for the others of their mask.
  struct Meeting {
    emulator::Collective collective;
    unsigned mask, arrived;
  };

  struct NamedBarrier {
    int arrived = 0;
    std::vector<unsigned> waiting;
  };

  static void run_thread(void* machine);
  void start_threads();
  void run(unsigned thread);
  void exchange_shared();
  void check_margin() const;
  /// Lets the others run until someone wakes the running thread, or for ever.
  void leave();
  [[noreturn]] void stop();
  static void on_fault(void* machine, int signal, const void* address);
  void wake(unsigned thread);

  void meet_block(emulator::Collective collective);
  void meet_warp(emulator::Collective collective, unsigned mask);
  void perform(const Meeting& meeting, unsigned first_thread);
  bool is_shared(const void* pointer, unsigned bytes) const;

  std::string place() const;
  std::string describe_waiting() const;

  const Launch& launch_;
  StackPool& pool_;
  const std::span<const std::unique_ptr<BlockMachine>> cluster_;
  std::vector<unsigned char> shared_;  ///< The block's shared memory while another block of the cluster runs.
  unsigned at_cluster_barrier_ = 0;    ///< Threads.
  Context main_;
  std::vector<Thread> threads_;
  std::vector<std::vector<Meeting>> warps_;
  std::array<unsigned, 4> block_arrived_{};  ///< By sync_threads*.
  std::array<NamedBarrier, 16> named_barriers_;
  std::vector<emulator::Errand> errands_;
  std::minstd_rand chance_{1};   ///< The same in every launch.
  unsigned idle_ = 0;            ///< Waits for progress since there was some.
  std::vector<unsigned> ready_;  ///< A ring: thread numbers, each at most once.
  size_t ready_begin_ = 0, ready_count_ = 0;
  bool backwards_ = false;
  std::optional<RaceChecker> races_;
  int block_barriers_ = 0;
  unsigned running_ = 0, ended_ = 0;
  std::string failure_;
};

}  // namespace difuse::testing
