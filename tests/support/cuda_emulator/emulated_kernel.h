// Runs the project's CUDA kernels on the CPU, to show without a GPU that they compute the right values.
//
// A kernel's source is compiled as C++: its intrinsics are functions of device/prelude.cuh, and the texts of
// codegen/cuda/device/ptx.cuh and ptx_sm90.cuh (between the marks that device_source() writes) are replaced by those of
// this folder's device/. Blocks run one after the other; the threads of a block take turns, each running until it waits
// in a collective: the first runs first in blocks whose indices have an even sum, the last in the others. The blocks of
// a cluster take turns as well, each running until all of its threads wait at the cluster's barrier.
//
// What it shows:
// - values: fp32 operations as written, fmaf and conversions exactly as on a device; mma accumulates in fp32; exp, sin
//   and the like are the C library's, a few units in the last place away;
// - errors, each naming kernel, block and threads:
//   - a collective (__syncthreads, __syncwarp, shuffles, votes, mma, ldmatrix) that not all of its threads come to,
//     because some have ended or wait elsewhere; a shuffle that reads a lane outside its mask;
//   - a misaligned access, one through a null pointer, an index outside an array whose length the type tells, a crash;
//   - a copy_async_* or ldmatrix whose addresses are misaligned or not in shared memory;
//   - writes right behind dynamic shared memory; more threads than __launch_bounds__ says; limits of the hardware;
//   - where it is asked (EmulatorOptions::find_races), two accesses that nothing orders, of which one writes: a missing
//     barrier, an element read by one thread in whose place another stores its result. Judged by what orders the two,
//     not by how they happened to run; but only accesses that this launch makes are seen;
// - as wrong values: shared memory that is read before it is written (every block begins with NaNs in it); a
// copy_async_*
//   that is read without copy_async_wait (NaNs are there until the wait), or overwrites what is still to be read.
// Built with the address sanitizer, kernels are instrumented too: what lies outside of a heap block is found.
//
// Hopper's engines do at once what they are told: a copy has arrived when tensor_load returns, and a product is there
// when multiply_bf16 does. So a barrier that is not waited for shows where the threads' order lets it, and what only an
// engine reads or writes is not looked at for races; nor is what a block writes into another one of its cluster, whose
// accesses to global memory are looked at block by block.
//
// What it does not show: accesses beyond a tensor that stay inside the arena; races between launches, such as a missing
// wait_for_previous_kernel; without find_races, races that this one order of threads does not turn into wrong values;
// timing, bank conflicts, registers and spills; whether NVRTC accepts the source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codegen/cuda/cuda_plan.h"
#include "tests/support/cuda_emulator/device/machine.cuh"

namespace difuse::testing {

struct KernelLibrary;

struct EmulatorOptions {
  /// Also report accesses that nothing orders, of which one writes (race_checker.h); several times as slow.
  bool find_races = false;
};

class EmulatedKernel {
 public:
  /// Compiles the source, unless this process or one before it did. Throws Error with the compiler's messages.
  static EmulatedKernel build(const codegen::CudaSource& source, const EmulatorOptions& options = {});
  /// All of them, on all cores at once.
  static std::vector<EmulatedKernel> build_all(std::span<const codegen::CudaSource> sources,
                                               const EmulatorOptions& options = {});

  /// Runs all blocks. Every argument is a pointer or a `long long` (see argument()), or the address of a tensor map.
  /// Throws Error for what is listed above; what the kernel wrote so far stays.
  void launch(const codegen::cuda::Grid& grid, int threads, int64_t dynamic_shared_bytes,
              std::span<const uint64_t> arguments) const;

  static uint64_t argument(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
  static uint64_t argument(int64_t number) { return static_cast<uint64_t>(number); }

 private:
  explicit EmulatedKernel(std::shared_ptr<KernelLibrary> library) : library_(std::move(library)) {}

  std::shared_ptr<KernelLibrary> library_;
};

/// A tensor map for emulated kernels; `start` is the address of the tensor's first element.
emulator::TensorMapContent emulated_map(const codegen::cuda::TensorMapSpec& spec, std::byte* start);

/// Calls of the plan, in order. The arena holds the plan's memory.arena_bytes, the workspace workspace_bytes, both at
/// multiples of 256.
void run_emulated(const codegen::cuda::CudaPlan& plan, std::span<const codegen::cuda::KernelCall> calls,
                  std::byte* arena, std::byte* workspace, const EmulatorOptions& options = {});
/// A step's.
inline void run_emulated(const codegen::cuda::CudaPlan& plan, std::byte* arena, std::byte* workspace,
                         const EmulatorOptions& options = {}) {
  run_emulated(plan, plan.calls, arena, workspace, options);
}

}  // namespace difuse::testing
