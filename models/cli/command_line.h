// The command line: one file per command, each turning flags into a plain options struct and handing it on. What must
// not live here: training, sampling or anything that could be called without a command line.
#pragma once

#include <chrono>

namespace difuse::models {

/// Parses and runs `difuse <command> ...`. Returns the exit code; throws Error (and what the libraries throw), which
/// main turns into one message. `started` is when the process began, for --minutes.
int run_command_line(int argc, const char* const* argv, std::chrono::steady_clock::time_point started);

}  // namespace difuse::models
