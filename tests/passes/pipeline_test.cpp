#include "passes/pipeline.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "ir/error.h"
#include "ir/text.h"
#include "tests/support/graphs/graphs.h"
#include "tests/support/temp_folder.h"

namespace difuse::passes {
namespace {

ir::Graph small() {
  return ir::parse(R"(graph g {
    %0 = input {name = "x", dtype = f32, shape = [4, 8]} : f32[4, 8]
    %1 = constant {value = 0, dtype = f32, shape = [4, 8]} : f32[4, 8]
    %2 = add %0, %1 : f32[4, 8]
    %3 = silu %2 : f32[4, 8]
    %4 = mul %3, %2 : f32[4, 8]
    output "y" = %4
  })");
}

ir::Graph run(const ir::Options& options, std::ostream* log = nullptr) {
  return run_pipeline(small(), {}, {.options = &options, .log = log});
}

TEST(Pipeline, KeepsResults) {
  for (const ir::Graph& graph :
       {tests::norm_block(2, 8, 8, 8, 2), tests::norm_block(3, 20, 12, 6, 3), tests::adam(70)}) {
    tests::expect_same_results(graph, run_pipeline(graph, {}, {}));
    tests::expect_same_results(graph, run_pipeline(graph, {}, {.fuse = false}));
  }
}

TEST(Pipeline, IsIdempotent) {
  const ir::Graph once = run_pipeline(tests::norm_block(2, 8, 8, 8, 2), {}, {});
  EXPECT_EQ(ir::print(run_pipeline(once, {}, {})), ir::print(once));
}

TEST(Pipeline, RoundsBeforeItFuses) {
  std::vector<std::string> names;
  for (const Pass& pass : default_passes({.precision = Precision::bf16}, nullptr)) names.push_back(pass.name);
  EXPECT_EQ(names, (std::vector<std::string>{"canonicalize", "precision", "filter_layout", "carry", "fuse", "dead_code",
                                             "rematerialize", "late_updates", "hoist"}));
  const ir::Graph graph = tests::norm_block(2, 8, 8, 8, 2);
  for (const Precision precision : {Precision::tf32, Precision::bf16}) {
    const ir::Graph fused = run_pipeline(graph, {}, {.precision = precision});
    EXPECT_EQ(ir::print(run_pipeline(fused, {}, {.precision = precision})), ir::print(fused));
    for (const bool epilogues : {true, false}) {
      const PipelineOptions options{.precision = precision, .fusion = {.epilogues = epilogues}};
      tests::expect_same_results(run_pipeline(graph, {}, {.fuse = false, .precision = precision}),
                                 run_pipeline(graph, {}, options));
    }
  }
}

TEST(Pipeline, WithoutFusionNothingIsFused) {
  const ir::Graph graph = run_pipeline(small(), {}, {.fuse = false});
  EXPECT_EQ(tests::kernel_count(graph), 2);
  EXPECT_EQ(ir::print(graph).find("fusion"), std::string::npos);
}

TEST(Pipeline, DisablesByName) {
  ir::Options options;
  options.disable = {"fuse"};
  EXPECT_EQ(tests::kernel_count(run(options)), 2);
  options.disable = {"fuse", "canonicalize"};
  EXPECT_EQ(tests::kernel_count(run(options)), 3);
}

TEST(Pipeline, AnUnknownNameIsAnErrorThatListsTheNames) {
  ir::Options options;
  options.disable = {"fuze"};
  try {
    run(options);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"fuze\""), std::string::npos);
    EXPECT_EQ(
        e.remedy(),
        "the passes are canonicalize, precision, filter_layout, carry, fuse, dead_code, rematerialize, late_updates, "
        "hoist");
    EXPECT_EQ(e.exit_code(), ExitCode::wrong_usage);
  }
}

TEST(Pipeline, FuelBisectsToTheRewriteThatMatters) {
  ir::Options options;
  options.fuel = 0;
  EXPECT_EQ(ir::print(run(options)), ir::print(small()));
  options.fuel = 1;  // x + 0 is gone.
  EXPECT_EQ(tests::kernel_count(run(options)), 2);
  options.fuel = 2;  // And the rest is one kernel.
  EXPECT_EQ(tests::kernel_count(run(options)), 1);
}

std::string read(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(Pipeline, DumpsEveryPassBeforeAndAfter) {
  const test::TempFolder folder;
  ir::Options options;
  options.dump = (folder.path() / "dumps").string();
  const ir::Graph result = run(options);
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(options.dump + "/" + small().name()))
    files.insert(entry.path().filename());
  const std::set<std::string> expected = {
      "01_canonicalize.before.ir",  "01_canonicalize.after.ir",  "02_fuse.before.ir",
      "02_fuse.after.ir",           "03_dead_code.before.ir",    "03_dead_code.after.ir",
      "04_rematerialize.before.ir", "04_rematerialize.after.ir", "05_late_updates.before.ir",
      "05_late_updates.after.ir",   "06_hoist.before.ir",        "06_hoist.after.ir"};
  EXPECT_EQ(files, expected);
  EXPECT_EQ(read(folder.path() / "dumps" / small().name() / "01_canonicalize.before.ir"), ir::print(small()));
  EXPECT_EQ(read(folder.path() / "dumps" / small().name() / "01_canonicalize.after.ir"),
            read(folder.path() / "dumps" / small().name() / "02_fuse.before.ir"));
  EXPECT_EQ(read(folder.path() / "dumps" / small().name() / "06_hoist.after.ir"), ir::print(result));
}

TEST(Pipeline, ADumpThatCannotBeWrittenNamesTheFile) {
  const test::TempFolder folder;
  std::ofstream(folder.path() / "file") << "in the way";
  ir::Options options;
  options.dump = (folder.path() / "file").string();
  try {
    run(options);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("01_canonicalize.before.ir"), std::string::npos) << e.what();
  }
}

TEST(Pipeline, DebugPrintsEachPassAndTheFusionReport) {
  ir::Options options;
  options.debug = true;
  std::ostringstream log;
  run(options, &log);
  EXPECT_NE(log.str().find("pass 01 canonicalize: 5 -> 3 nodes, 1 rewrites"), std::string::npos) << log.str();
  EXPECT_NE(log.str().find("fused pointwise"), std::string::npos) << log.str();
}

void expect_error(const Pass& pass, const std::string& what) {
  try {
    run_passes(small(), std::vector<Pass>{pass}, {}, {});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
  }
}

TEST(Pipeline, ChecksThatChangedIsHonest) {
  expect_error({"quiet",
                [](const ir::Graph&, PassContext&) {
                  return PassResult{ir::Graph("other"), false};
                }},
               "pass quiet says that it did not change the graph");
  expect_error({"loud",
                [](const ir::Graph& g, PassContext&) {
                  return PassResult{g, true};
                }},
               "pass loud says that it changed the graph");
}

}  // namespace
}  // namespace difuse::passes
