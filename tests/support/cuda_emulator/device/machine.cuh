// What an emulated kernel and the emulator know of each other. Part of both: the tests include it, and it is the first
// text of every emulated kernel, so it includes nothing.
#pragma once

namespace emulator {

struct Index3 {
  unsigned x, y, z;
};

/// What all lanes of a warp, or all threads of a block, do together.
enum class Collective : unsigned char {
  sync_threads,
  sync_threads_count,
  sync_threads_and,
  sync_threads_or,
  sync_warp,
  shuffle,
  shuffle_xor,
  shuffle_up,
  shuffle_down,
  any,
  all,
  ballot,
  mma_bf16,
  mma_f16,
  mma_tf32,
  ldmatrix,
  ldmatrix_trans,
  stmatrix_trans,
};

/// A thread's part in a collective; it lies on the thread's stack while the thread waits.
struct Part {
  unsigned long long value = 0, result = 0;  ///< Shuffles, votes, counts.
  unsigned source = 0;                       ///< Shuffles: the lane whose value becomes the result.
  float* d = nullptr;                        ///< mma: 4 values that the product is added to.
  const unsigned* a = nullptr;               ///< mma: 4 registers.
  const unsigned* b = nullptr;               ///< mma: 2 registers.
  const void* row = nullptr;                 ///< ldmatrix, stmatrix: the address of 16 bytes.
  unsigned* r = nullptr;                     ///< ldmatrix, stmatrix: 4 registers.
};

/// What an engine does later, at a time of its own.
struct Errand {
  void (*run)(const Errand&);
  alignas(64) unsigned char data[192];
};

/// The running thread's view of the block, and what it may ask for. The emulator changes the indices whenever another
/// thread goes on.
class Machine {
 public:
  Index3 thread_index{}, block_index{}, block_size{}, grid_size{};
  unsigned lane = 0, cluster_rank = 0;
  const unsigned char *stacks = nullptr, *stacks_end = nullptr;  ///< Of all threads.

  /// Returns when all threads of `mask` in the warp (sync_threads*: all of the block) have come to the same collective.
  virtual void meet(Collective collective, unsigned mask, Part& part) = 0;
  virtual void copy_async(void* to, const void* from, unsigned bytes, bool valid) = 0;
  virtual void copy_async_commit() = 0;
  virtual void copy_async_wait(int pending) = 0;
  /// The address as instructions take it: 32 bits. Only for pointers into shared memory.
  virtual unsigned shared_address(const void* pointer) = 0;
  /// Where `bytes` bytes of dynamic shared memory lie that instructions know by this address.
  virtual unsigned char* shared_pointer(unsigned address, unsigned bytes) = 0;
  /// What a tensor core adds up (instructions.h).
  virtual float tensor_core_sum(const double* addends, unsigned count) = 0;
  /// bar.sync and bar.arrive: `threads` come to barrier `id`, and those that wait go on when all have come.
  virtual void named_barrier(int id, int threads, bool waits) = 0;
  /// Returns when all threads of all blocks of the cluster have come.
  virtual void meet_cluster() = 0;
  /// Where `bytes` bytes of dynamic shared memory of any block of the cluster lie.
  virtual unsigned char* cluster_pointer(unsigned address, unsigned bytes) = 0;
  /// Errands are run when no thread can go on without, in no order: engines owe nobody one.
  virtual void defer(const Errand& errand) = 0;
  /// Lets the others run: what the thread waits for has not happened. Ends the launch when nothing can happen any more.
  virtual void wait_for_progress() = 0;
  /// Says that something has happened which others may wait for.
  virtual void progress() = 0;
  /// Called for every access outside of the stacks, in kernels that were compiled to find races.
  virtual void access(const void* pointer, unsigned bytes, bool is_write) = 0;
  /// Ends the launch with this message.
  [[noreturn]] virtual void fail(const char* message, const char* file, unsigned line) = 0;

 protected:
  ~Machine() = default;
};

/// What a compiled kernel exports, under the name `emulated_kernel`.
struct Exports {
  void (*run)(const unsigned long long* arguments);  ///< One thread, from beginning to end.
  unsigned parameters;
  Machine** machine;  ///< To be set before running.
  unsigned char* dynamic_shared;
  unsigned char *static_shared, *static_shared_end;
  const unsigned char *image, *image_end;  ///< All of the compiled kernel, its variables included.
};

/// A tensor map's 128 bytes; the driver's own are opaque. Dimensions are listed innermost first.
struct alignas(64) TensorMapContent {
  unsigned char* start;
  unsigned long long extents[5];  ///< Elements.
  unsigned long long strides[4];  ///< Bytes, of all dimensions but the innermost.
  unsigned short box[5];          ///< Elements.
  unsigned short element_bytes, rank;
  unsigned char steps[5];  ///< Every how many elements one is copied.
};

inline constexpr unsigned kDynamicBase = 1024;      ///< The first address of dynamic shared memory.
inline constexpr unsigned kRankBit = 24;            ///< From which on an address has the block's rank in its cluster.
inline constexpr unsigned kDynamicShared = 232448;  ///< Bytes: what a block of sm_90 can have.
inline constexpr unsigned kSharedMargin = 1024;     ///< Bytes after it that nobody may write.

}  // namespace emulator
