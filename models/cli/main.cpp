// The entry point and the one catch.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "ir/error.h"
#include "models/cli/command_line.h"
#include "models/run/console.h"

namespace {

int report(const char* message, const std::string& remedy, int exit_code) {
  std::fflush(stdout);
  difuse::models::complain("difuse: {}\n", message);
  if (!remedy.empty()) difuse::models::complain("{}\n", remedy);
  return exit_code;
}

/// A descriptor 0, 1 or 2 that is closed would go to the next file that is opened, and a message would end up in a
/// checkpoint.
void open_standard_descriptors() {
  int descriptor = 0;
  do {
    descriptor = ::open("/dev/null", O_RDWR);
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor > STDERR_FILENO) ::close(descriptor);
}

}  // namespace

int main(int argc, char** argv) {
  const auto started = std::chrono::steady_clock::now();
  open_standard_descriptors();
  // A file over the limit and a pipe without a reader become errors of the write, which name what was written.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return difuse::models::run_command_line(argc, argv, started);
  } catch (const difuse::Error& error) {
    return report(error.what(), error.remedy(), static_cast<int>(error.exit_code()));
  } catch (const std::bad_alloc&) {
    return report("out of memory", "use a smaller --batch or a smaller --model", 1);
  } catch (const std::exception& error) {
    return report(error.what(), "this is a fault of difuse itself, not of its input", 1);
  }
}
