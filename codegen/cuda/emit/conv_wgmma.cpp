// Convolutions on Hopper's copy engine and warpgroup products (device/conv_wgmma.cuh), with what is computed from their
// value: a bias, a time embedding, a residual.
#include "codegen/cuda/emit/conv_wgmma/problem.h"
#include "codegen/cuda/emit/conv_wgmma/source.h"
#include "codegen/cuda/emit/conv_wgmma/tiles.h"
#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

bool accepts_conv_wgmma(const KernelSpec& spec) {
  const auto conv = halo_conv(spec);
  return conv && !candidates(*conv, spec.device).empty();
}

void emit_conv_wgmma(const KernelSpec& spec, Emission& emission) {
  const HaloConv conv = *halo_conv(spec);
  emission.launch(halo_conv_kernel(spec, conv, candidates(conv, spec.device).front()));
}

}  // namespace difuse::codegen::cuda
