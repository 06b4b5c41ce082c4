// Golden files: text that a test's subject printed once and that was read and accepted by a person.
//
// They lie in tests/<folder>/golden/ and are rewritten by `./dev update-golden`, which runs every test whose name holds
// the word Golden with UPDATE_GOLDEN=1 in the environment.
#pragma once

#include <string>

namespace difuse::tests {

/// Expects `text` to equal the golden file `path`, relative to tests/ (e.g. "passes/golden/dead_code.ir"); when golden
/// files are being updated, writes the file instead. A difference is reported at its first line.
void expect_golden(const std::string& path, const std::string& text);

}  // namespace difuse::tests
