#include "ir/options.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "ir/error.h"

namespace difuse {
namespace {

ir::Options parse(const std::map<std::string, std::string>& environment) {
  return ir::Options::parse([&](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}

TEST(Options, NothingSetGivesTheDefaults) {
  const auto o = parse({});
  EXPECT_FALSE(o.debug);
  EXPECT_FALSE(o.fuel.has_value());
  EXPECT_TRUE(o.cuda_graphs);
  EXPECT_EQ(o.tune, ir::Tuning::cached);
}

TEST(Options, ReadsEachVariable) {
  const auto o = parse({{"DIFUSE_DEBUG", "1"},
                        {"DIFUSE_DUMP", "out"},
                        {"DIFUSE_DISABLE", "fuse,canonicalize"},
                        {"DIFUSE_FUEL", "7"},
                        {"DIFUSE_CUDA_GRAPHS", "0"}});
  EXPECT_TRUE(o.debug);
  EXPECT_EQ(o.dump, "out");
  EXPECT_EQ(o.disable, (std::vector<std::string>{"fuse", "canonicalize"}));
  EXPECT_EQ(o.fuel, 7);
  EXPECT_FALSE(o.cuda_graphs);
}

TEST(Options, TuningIsAWordOrASecondsBudget) {
  EXPECT_EQ(parse({{"DIFUSE_TUNE", "off"}}).tune, ir::Tuning::off);
  EXPECT_EQ(parse({{"DIFUSE_TUNE", "cached"}}).tune, ir::Tuning::cached);
  EXPECT_EQ(parse({{"DIFUSE_TUNE", "on"}}).tune, ir::Tuning::on);
  EXPECT_EQ(parse({{"DIFUSE_TUNE", "on"}}).tune_budget, std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse({{"DIFUSE_TUNE", "2.5"}}).tune, ir::Tuning::on);
  EXPECT_EQ(parse({{"DIFUSE_TUNE", "2.5"}}).tune_budget, 2.5);
}

TEST(Options, FindsTheToolkitAndTheUsersCacheByTheirCommonNames) {
  EXPECT_EQ(parse({}).cuda_toolkit, "");
  EXPECT_EQ(parse({{"CUDA_PATH", "/a"}}).cuda_toolkit, "/a");
  EXPECT_EQ(parse({{"CUDA_PATH", "/a"}, {"CUDA_HOME", "/b"}}).cuda_toolkit, "/b");
  EXPECT_EQ(parse({{"CUDA_PATH", "/a"}, {"CUDA_HOME", ""}}).cuda_toolkit, "/a");

  EXPECT_EQ(parse({}).user_cache, "");
  EXPECT_EQ(parse({{"HOME", ""}}).user_cache, "");
  EXPECT_EQ(parse({{"HOME", "/home/a"}}).user_cache, "/home/a/.cache");
  EXPECT_EQ(parse({{"HOME", "/home/a"}, {"XDG_CACHE_HOME", "/c"}}).user_cache, "/c");
}

TEST(Options, AMalformedValuePrintsItsGrammar) {
  const std::map<std::string, std::string> bad = {
      {"DIFUSE_DEBUG", "yes"}, {"DIFUSE_FUEL", "-1"},      {"DIFUSE_TUNE", "1s"},
      {"DIFUSE_TUNE", "0"},    {"DIFUSE_TUNE", "inf"},     {"DIFUSE_TUNE", "-1"},
      {"DIFUSE_FUEL", "12x"},  {"DIFUSE_DISABLE", "a,,b"}, {"DIFUSE_DUMP", ""}};
  for (const auto& [name, value] : bad) {
    try {
      parse({{name, value}});
      ADD_FAILURE() << name << "=" << value << " was accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos);
      EXPECT_NE(e.remedy().find(name + "="), std::string::npos) << e.remedy();
      EXPECT_EQ(e.exit_code(), ExitCode::wrong_usage);
    }
  }
}

}  // namespace
}  // namespace difuse
