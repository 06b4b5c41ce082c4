// A device as plain data, so that passes and codegen can be tested for any card without one.
#pragma once

#include <string>

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

}  // namespace difuse::ir
