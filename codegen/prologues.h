// Which contractions a device's kernels compute with a prologue (passes/fusion/prologue.h).
#pragma once

#include <string>

#include "ir/device_spec.h"
#include "ir/graph.h"
#include "passes/fusion/choices.h"

namespace difuse::codegen {

/// Why no kernel of the device computes the body, a contraction whose image operand is computed in it; empty where one
/// does. On the CPU convolutions and products do, one image after the other in a thread's scratch; on a GPU what the
/// emitters for Hopper's engines accept.
std::string prologue_limit(const ir::Graph& body, const ir::DeviceSpec& device);

/// What the passes do about prologues on the device, which must outlive them, where a person wants `wanted`.
passes::FusionSettings prologue_settings(passes::Prologues wanted, const ir::DeviceSpec& device);

}  // namespace difuse::codegen
