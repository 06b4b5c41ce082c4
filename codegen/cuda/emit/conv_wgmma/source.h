// Hopper's convolution as CUDA source.
#pragma once

#include "codegen/cuda/emit/conv_wgmma/problem.h"
#include "codegen/cuda/emit/conv_wgmma/tiles.h"
#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

/// The convolution and everything after it.
KernelDraft halo_conv_kernel(const KernelSpec& spec, const HaloConv& conv, const HaloTile& tile);

}  // namespace difuse::codegen::cuda
