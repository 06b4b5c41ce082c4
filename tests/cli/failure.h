// What every refused call owes its user.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/cli/process.h"
#include "tests/support/temp_folder.h"

namespace difuse::test {

/// One message that contains `parts`, a remedy on the next line, the exit code, and all of it soon.
inline void expect_refused(const Outcome& outcome, int exit_code, const Words& parts) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.out << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("difuse: ")) << outcome.err;
  for (const std::string& part : parts) EXPECT_CONTAINS(outcome.err, part);
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 2) << "a message and a remedy: " << outcome.err;
  EXPECT_FALSE(outcome.err.ends_with("\n\n")) << "no remedy: " << outcome.err;
  EXPECT_LT(outcome.seconds, 10);
}

}  // namespace difuse::test
