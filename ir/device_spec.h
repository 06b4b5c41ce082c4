// A device as plain data, so that passes and codegen can be tested for any card without one.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ir/types.h"

namespace difuse::ir {

struct DeviceSpec {
  enum class Kind : uint8_t { cpu, cuda };

  Kind kind = Kind::cpu;
  std::string name = "cpu";
  int architecture = 0;             ///< Compute capability times ten: 90 for sm_90. 0 on a CPU.
  int64_t processors = 1;           ///< SMs, or cores.
  int64_t shared_memory_bytes = 0;  ///< Largest dynamic shared memory of one block.
  int64_t l2_bytes = 0;             ///< L2 of the card, or of one core.
  double bandwidth = 0;             ///< Bytes a second, read + written.
  double contraction_flops = 0;     ///< Floating-point operations a second in the fastest contraction.
};

/// What NVRTC calls the card's own instruction set: "sm_80", "sm_90a". From Hopper on the suffix `a` is what makes the
/// card's matrix and copy engines available (wgmma, setmaxnreg); such code runs on that architecture alone.
std::string architecture_name(const DeviceSpec& device);

/// Known cards, by their datasheets (dense bf16 with fp32 accumulation; shared memory from the CUDA C++ Programming
/// Guide's table of technical specifications). Where a card is present, runtime asks the driver instead.
std::span<const DeviceSpec> known_devices();

/// By a card's name ("h100", "rtx4090") or by an architecture ("sm_90", "sm_90a": the first known card that has it).
/// Null where there is none.
const DeviceSpec* find_device_spec(std::string_view name);

}  // namespace difuse::ir
