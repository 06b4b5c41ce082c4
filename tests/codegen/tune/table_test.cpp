// Decisions as data: their text, what is refused, and which batch's decision is taken.
#include "codegen/tune/table.h"

#include <gtest/gtest.h>

#include "codegen/tune/store.h"
#include "tests/support/temp_folder.h"

namespace difuse::codegen {
namespace {

using test::error_of;

TuningFile example() {
  TuningFile file{{"NVIDIA H200", 132, "13.0"}, {}};
  file.table.set("conv \"a\" bf16", 32, {"128x64x32 2x2 4 stages", 41.25, 44});
  file.table.set("conv \"a\" bf16", 128, {"256x64x32 4x1 3 stages", 160.5, 161.75});
  file.table.set("attention", 32, {"64 rows", 1.5, 1.5});
  file.table.set_prologue("silu -> conv", 32, {true, 1530.25, 1537});
  file.table.set_prologue("silu -> conv", 4, {false, 400, 390.5});
  return file;
}

TEST(TuningTable, ComesBackFromItsText) {
  const std::string text = print(example());
  const TuningFile again = parse_tuning_file(text);
  EXPECT_EQ(again.device, example().device);
  EXPECT_EQ(again.table, example().table);
  EXPECT_EQ(print(again), text);
}

TEST(TuningTable, HasALineForEachDecision) {
  EXPECT_EQ(print({{"A", 1, "13.0"}, {}}),
            "{\n\"format\": 2,\n\"gpu\": \"A\",\n\"processors\": 1,\n\"driver\": \"13.0\",\n\"decisions\": [\n],\n"
            "\"prologues\": [\n]\n}\n");
  EXPECT_CONTAINS(print(example()),
                  "\n  {\"problem\": \"attention\", \"batch\": 32, \"tile\": \"64 rows\", \"microseconds\": 1.50, "
                  "\"default_microseconds\": 1.50},\n");
  EXPECT_CONTAINS(
      print(example()),
      "\n  {\"site\": \"silu -> conv\", \"batch\": 32, \"computed\": true, \"computed_microseconds\": 1530.25, "
      "\"stored_microseconds\": 1537.00}\n]\n");
}

TEST(TuningTable, ReadsWhatWasWrittenBeforePrologues) {
  const TuningFile file = parse_tuning_file(R"({
"format": 1,
"gpu": "NVIDIA H200",
"processors": 132,
"driver": "13.0",
"decisions": [
  {"problem": "attention", "batch": 32, "tile": "64 rows", "microseconds": 1.50, "default_microseconds": 1.50}
]
}
)");
  EXPECT_EQ(file.table.exact("attention", 32)->tile, "64 rows");
  EXPECT_TRUE(file.table.prologues().empty());
  EXPECT_CONTAINS(print(file), "\"format\": 2");
}

TEST(TuningTable, TellsThePassesWhatWasDecided) {
  const passes::FusionChoices choices = example().table.choices();
  EXPECT_TRUE(*choices.prologue("silu -> conv", 32));
  EXPECT_TRUE(*choices.prologue("silu -> conv", 1000));
  EXPECT_FALSE(*choices.prologue("silu -> conv", 1));
  EXPECT_EQ(choices.prologue("silu", 32), nullptr);
  TuningTable merged;
  merged.set_prologue("silu -> conv", 32, {false, 2, 1});
  merged.merge(example().table);
  EXPECT_EQ(merged, example().table) << "the news count";
}

TEST(TuningTable, RefusesAnyOtherText) {
  const std::string good = print(example());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::pair<std::string, const char*> cases[] = {
      {"", "not JSON"},
      {good.substr(0, good.size() / 2), "not JSON"},
      {"[]", "not an object"},
      {with("\"format\": 2", "\"format\": 3"), "its format is neither 2 nor 1"},
      {with("\"format\": 2", "\"format\": 1"), "unknown member \"prologues\""},
      {with("\"driver\": \"13.0\",\n", ""), "no \"driver\""},
      {with("\"processors\": 132", "\"processors\": 0"), "\"processors\" is not a count"},
      {with("\"processors\": 132", "\"processors\": 132, \"more\": 1"), "unknown member \"more\""},
      {with("\"processors\": 132", "\"processors\": 132, \"processors\": 132"), "stands twice"},
      {with("\"gpu\": \"NVIDIA H200\"", "\"gpu\": 1"), "\"gpu\" is not a text"},
      {with("\"batch\": 32", "\"batch\": 0.5"), "\"batch\" is not a count"},
      {with("\"batch\": 32", "\"batch\": -1"), "\"batch\" is not a count"},
      {with("\"microseconds\": 1.50", "\"microseconds\": 0"), "\"microseconds\" is not a time"},
      {with("\"microseconds\": 1.50", "\"microseconds\": 1e999"), "not JSON"},
      {with("\"tile\": \"64 rows\"", "\"tile\": \"\""), "\"tile\" is not a text"},
      {with("\"batch\": 128", "\"batch\": 32"), "decided twice"},
      {with("\"decisions\": [", "\"decisions\": 1, \"x\": ["), "unknown member"},
      {with("\"computed\": true", "\"computed\": 1"), "\"computed\" is neither true nor false"},
      {with("\"computed\": true, ", ""), "no \"computed\""},
      {with("\"batch\": 4,", "\"batch\": 32,"), "decided twice"},
      {with("\"stored_microseconds\": 1537.00", "\"stored_microseconds\": -1"), "is not a time"},
  };
  for (const auto& [text, part] : cases) EXPECT_CONTAINS(error_of([&] { parse_tuning_file(text); }), part) << text;
}

TEST(TuningTable, TakesTheNearestBatch) {
  TuningTable table;
  table.set("a", 16, {"of 16", 1, 1});
  table.set("a", 64, {"of 64", 1, 1});
  table.set("ab", 1, {"of another", 1, 1});
  EXPECT_EQ(table.find("a", 1)->tile, "of 16");
  EXPECT_EQ(table.find("a", 31)->tile, "of 16");
  EXPECT_EQ(table.find("a", 32)->tile, "of 16") << "as near as 64: the smaller counts";
  EXPECT_EQ(table.find("a", 33)->tile, "of 64");
  EXPECT_EQ(table.find("a", 1000)->tile, "of 64");
  EXPECT_EQ(table.find("", 1), nullptr);
  EXPECT_EQ(table.exact("a", 32), nullptr);
  EXPECT_EQ(table.exact("a", 64)->tile, "of 64");
  table.forbid("a", "of 16");
  EXPECT_EQ(table.find("a", 16)->tile, "of 64");
}

TEST(TuningTable, ThoseOfTheProgramAreInTheFormThatAStoreWrites) {
  ASSERT_FALSE(embedded_tables().empty());
  for (const EmbeddedTable& table : embedded_tables()) {
    EXPECT_EQ(print(parse_tuning_file(table.text)), table.text) << table.name;
  }
}

}  // namespace
}  // namespace difuse::codegen
