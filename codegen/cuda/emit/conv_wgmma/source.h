// Hopper's convolution as CUDA source.
#pragma once

#include <optional>

#include "codegen/cuda/emit/conv_wgmma/problem.h"
#include "codegen/cuda/emit/conv_wgmma/tiles.h"
#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

/// The convolution and everything after it. `image_sums`: where the sums over its image's strips go, where it has them.
KernelDraft halo_conv_kernel(const KernelSpec& spec, const HaloConv& conv, const HaloTile& tile,
                             const std::optional<Argument>& image_sums = {});

}  // namespace difuse::codegen::cuda
