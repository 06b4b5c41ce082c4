// Launches that run beside the one before them. With programmatic dependent launch a kernel starts as soon as every
// block of the kernel before it has passed its own wait, so all that came before that one is complete. A kernel that
// touches nothing of it needs no wait at its beginning; it waits at its end instead, so that who waits for this kernel
// has waited for both. Small kernels share the card, and large ones fill each other's last wave; no bit changes.
#pragma once

#include <string>

#include "codegen/cuda/cuda_plan.h"

namespace difuse::codegen::cuda {

/// A kernel's source (KernelDraft::source) with one parameter more, the last, which says whether it overlaps: 0 or 1.
/// Throws Error where the kernel does not wait for the one before it.
std::string with_overlap_parameter(const std::string& source);

/// Sets that argument of every call whose kernel may overlap with those before it: up to the last one that waits at its
/// beginning, none touches what the other writes.
void overlap_launches(CudaPlan& plan);
/// Of a call of such a plan.
bool overlaps(const KernelCall& call);

}  // namespace difuse::codegen::cuda
