// Sums over an image's pixels beside Hopper's convolution: its kernel leaves each strip's (ir/strips.h), and a second
// stage adds those in index order.
#pragma once

#include "codegen/cuda/emit/conv_wgmma/problem.h"
#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

/// The spec of the convolution's kernel: sums of more than one strip go to the workspace.
KernelSpec with_strip_sums(const KernelSpec& spec, const HaloConv& conv, Emission& emission);

/// Where the kernel leaves the sums over its image's strips that end in `sum`.
Argument image_strip_sums(const HaloConv& conv, const Argument& sum, Emission& emission);
/// Their second stage, where there is more than one strip.
void add_image_strip_sums(const HaloConv& conv, const Argument& strips, const Argument& sum, Emission& emission);

/// The second stage, where `strips`, which is the spec with_strip_sums, needs one.
void add_strip_sums(const KernelSpec& spec, const KernelSpec& strips, const HaloConv& conv, Emission& emission);

}  // namespace difuse::codegen::cuda
