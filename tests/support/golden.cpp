#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace difuse::tests {
namespace {

/// Where the two texts first differ, as a line number and both lines.
std::string first_difference(const std::string& expected, const std::string& actual) {
  std::istringstream expected_lines(expected);
  std::istringstream actual_lines(actual);
  for (int number = 1;; ++number) {
    std::string wanted;
    std::string got;
    const bool more_wanted = static_cast<bool>(std::getline(expected_lines, wanted));
    const bool more_got = static_cast<bool>(std::getline(actual_lines, got));
    if (!more_wanted && !more_got) return "they differ in the last line's end";
    if (more_wanted != more_got || wanted != got) {
      return "line " + std::to_string(number) + "\n  golden: " + (more_wanted ? wanted : "(end of file)") +
             "\n  now:    " + (more_got ? got : "(end of text)");
    }
  }
}

}  // namespace

void expect_golden(const std::string& path, const std::string& text) {
  const std::filesystem::path file = std::filesystem::path(TESTS_SOURCE_DIR) / path;
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return;
  }
  std::ifstream stream(file, std::ios::binary);
  ASSERT_TRUE(stream) << "no golden file tests/" << path << ": ./dev update-golden writes it";
  const std::string golden{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_TRUE(golden == text) << "tests/" << path << " differs, " << first_difference(golden, text)
                              << "\nall of it now:\n"
                              << text;
}

}  // namespace difuse::tests
