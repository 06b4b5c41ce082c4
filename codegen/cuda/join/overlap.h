// Launches that run beside the one before them. With programmatic dependent launch a kernel starts as soon as every
// block of the kernel before it has passed its own wait, so all that came before that one is complete. A kernel that
// touches nothing of it needs no wait at its beginning; it waits at its end instead, so that who waits for this kernel
// has waited for both. Small kernels share the card, and large ones fill each other's last wave; no bit changes.
//
// What a kernel reads of tensors that were complete before, a convolution's filter, it may read before it waits: then
// that is there when the image is.
#pragma once

#include <cstdint>
#include <string>

#include "codegen/cuda/cuda_plan.h"

namespace difuse::codegen::cuda {

/// When a launch waits for the one before it; its kernel's last parameter, `waits`.
enum class Waits : int64_t {
  at_beginning = 0,
  at_end = 1,
  after_early_reads = 2,  ///< Of KernelDraft::early.
};

/// A kernel's source (KernelDraft::source) with that parameter, which answers may_read_early(). Throws Error where the
/// kernel does not wait for the one before it.
std::string with_waits_parameter(const std::string& source);

/// Sets that argument of every call: at the end where the kernel may overlap with those before it, because up to the
/// last one that waits earlier none touches what the other writes; after early reads where none of them writes what is
/// read so.
void overlap_launches(CudaPlan& plan);
/// Of a call of such a plan.
Waits waits_of(const KernelCall& call);
bool overlaps(const KernelCall& call);

}  // namespace difuse::codegen::cuda
