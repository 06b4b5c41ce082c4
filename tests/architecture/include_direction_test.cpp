// The house rules, checked on the real tree; and the checker itself, checked on made-up files.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/architecture/architecture.h"

namespace difuse::architecture {
namespace {

using Faults = std::vector<std::string>;

const std::filesystem::path kRoot = DIFUSE_SOURCE_DIR;

template <typename Check>
Faults faults_of(const std::vector<SourceFile>& files, Check check) {
  Faults all;
  for (const auto& file : files) {
    for (auto& fault : check(file)) all.push_back(std::move(fault));
  }
  return all;
}

TEST(HouseRules, IncludesRunDown) {
  const auto files = layer_sources(kRoot);
  ASSERT_FALSE(files.empty()) << "no sources below " << kRoot;
  EXPECT_EQ(faults_of(files, include_faults), Faults{});
}

TEST(HouseRules, NoFileIsOver800Lines) { EXPECT_EQ(faults_of(all_sources(kRoot), length_faults), Faults{}); }

TEST(HouseRules, OnlyOptionsReadsTheEnvironment) {
  EXPECT_EQ(faults_of(layer_sources(kRoot), environment_faults), Faults{});
}

TEST(HouseRules, TopLevelHoldsWhatWasAgreed) {
  Faults names;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot))
    names.push_back(entry.path().filename().string());
  Faults ignore_lines;
  std::ifstream ignore(kRoot / ".gitignore");
  for (std::string line; std::getline(ignore, line);) ignore_lines.push_back(line);
  EXPECT_EQ(top_level_faults(names, ignore_lines), Faults{});
}

TEST(Checker, PassesIncludesThatRunDown) {
  const std::string text = "#include \"passes/pass.h\"\n#include <vector>\n#  include \"ir/ops.def\"\n";
  EXPECT_EQ(include_faults({"passes/fusion/grow.cpp", text}), Faults{});
}

TEST(Checker, CatchesAnIncludeThatRunsUp) {
  const Faults expected = {"ir/graph.cpp:2: \"runtime/arena.h\" is above ir"};
  EXPECT_EQ(include_faults({"ir/graph.cpp", "// A graph.\n#include \"runtime/arena.h\"\n"}), expected);
  EXPECT_EQ(include_faults({"ir/graph.cpp", "// A graph.\n  # include <runtime/arena.h>\n"}), expected);
}

TEST(Checker, CatchesAnIncludeThatIsNotRootRelative) {
  EXPECT_EQ(include_faults({"ir/graph.cpp", "#include \"node.h\"\n"}).size(), 1u);
  EXPECT_EQ(include_faults({"ir/graph.cpp", "#include \"../ir/node.h\"\n"}).size(), 1u);
  EXPECT_EQ(include_faults({"models/unet.cpp", "#include \"tests/support/golden.h\"\n"}).size(), 1u);
}

TEST(Checker, CatchesCudaBelowCodegen) {
  EXPECT_EQ(include_faults({"ir/graph.cpp", "#include <cuda_runtime.h>\n"}).size(), 1u);
  EXPECT_EQ(include_faults({"passes/schedule.cpp", "#include <nvrtc.h>\n"}).size(), 1u);
  EXPECT_EQ(include_faults({"codegen/jit/nvrtc.cpp", "#include <nvrtc.h>\n"}), Faults{});
}

TEST(Checker, CatchesALongFile) {
  EXPECT_EQ(length_faults({"ir/graph.cpp", std::string(800, '\n')}), Faults{});
  EXPECT_EQ(length_faults({"ir/graph.cpp", std::string(801, '\n')}).size(), 1u);
}

TEST(Checker, CatchesAReaderOfTheEnvironment) {
  const std::string text = "\nconst char* home = std::getenv(\"HOME\");\n";
  EXPECT_EQ(environment_faults({"ir/options.cpp", text}), Faults{});
  const Faults expected = {"codegen/plan.cpp:2: getenv: only ir/options.cpp reads the environment"};
  EXPECT_EQ(environment_faults({"codegen/plan.cpp", text}), expected);
}

TEST(Checker, CatchesAStrayAtTheTop) {
  const Faults names = {"ir", "build", "runs", "notes.txt"};
  const Faults expected = {"notes.txt has no place at the top of the repository"};
  EXPECT_EQ(top_level_faults(names, {"/build/", "/runs/", "*.o"}), expected);
}

}  // namespace
}  // namespace difuse::architecture
