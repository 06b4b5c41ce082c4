// Where a producer and its consumers are in a ring of slots in shared memory, each by its own count: slot i has a
// barrier that ends a phase when it is full, and one when it is empty again (ptx_sm90.cuh).
#pragma once

/// A slot, and the parity of the round: a consumer waits for that phase of `full`, the producer for the one before it
/// of `empty`.
template <int slots>
struct RingPlace {
  int slot = 0, parity = 0;

  __device__ __forceinline__ void advance(int by = 1) {
    slot += by % slots;
    parity ^= by / slots % 2;
    if (slot < slots) return;
    slot -= slots;
    parity ^= 1;
  }
};
