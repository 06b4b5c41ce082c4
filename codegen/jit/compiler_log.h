// Reads NVRTC's log: resources, and the remarks after which a kernel may not be used. Text in, text out.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "codegen/jit/kernel.h"

namespace difuse::codegen {

/// The resources of the entry `name` in a log made with --ptxas-options=-v; nullopt where the log does not speak of it.
std::optional<KernelResources> read_resources(std::string_view log, std::string_view name);

/// What is wrong with code that did compile, in one sentence that quotes the log's line; empty when nothing is.
/// - Local memory: a stack frame or a spill in any function (an array indexed at run time, or too few registers).
/// - A "potential performance loss": `setmaxnreg` ignored (C7504, C7508), wgmma serialised (C7510 to C7520).
std::string find_fault(std::string_view log);

/// The lines of a failed compilation's log that say why: from the first error on, ten at most.
std::string error_lines(std::string_view log);

}  // namespace difuse::codegen
