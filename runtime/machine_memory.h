// How much memory a process may take on this machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace difuse::runtime {

/// Bytes: the machine's memory, or the limit of the control group that the process is in, where that is less.
int64_t machine_memory();

/// Throws ir's Error, exit code 1, where `bytes` are more than machine_memory(): the system would grant them and kill
/// the process once it used them. `what`: who needs them, "the graph "train"".
void require_machine_memory(int64_t bytes, std::string_view what);

}  // namespace difuse::runtime
