// The entry point and the one catch.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <new>

#include "ir/error.h"
#include "models/cli/command_line.h"

namespace {

int report(const char* message, const std::string& remedy, int exit_code) {
  std::fflush(stdout);
  fmt::print(stderr, "difuse: {}\n", message);
  if (!remedy.empty()) fmt::print(stderr, "{}\n", remedy);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  const auto started = std::chrono::steady_clock::now();
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
