// The search for tiles: what wins, what may not, and when it ends. Times are made up; kernels run in the emulator where
// their bits count.
#include "runtime/tune/tuner.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "codegen/cuda/lower_cuda.h"
#include "ir/builder.h"
#include "ir/error.h"
#include "passes/memory_plan.h"
#include "tests/support/backend/emulated_timer.h"

namespace difuse::runtime {
namespace {

using codegen::TuningTable;
using codegen::cuda::CudaPlan;
using codegen::cuda::TuningSite;

const ir::DeviceSpec& h100() { return *ir::find_device_spec("h100"); }

/// A product for each width; the first has the least work. So deep, each is a problem of its own (narrow ones are not).
std::vector<TuningSite> products(const std::vector<int64_t>& widths, int64_t depth = 4096) {
  ir::Graph graph("products");
  ir::Builder b(graph);
  for (const int64_t width : widths) {
    const std::string name = std::to_string(width);
    const ir::Value a = b.input("a" + name, {ir::DType::bf16, {96, depth}});
    const ir::Value w = b.input("w" + name, {ir::DType::bf16, {width, depth}});
    graph.set_output(name, b.matmul(a, w, false, /*transpose_b=*/true));
  }
  return codegen::cuda::tuning_sites(codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), h100()), h100());
}

/// The candidates in the order in which they are tried.
std::vector<std::string> tried(const TuningSite& site) {
  const codegen::cuda::TileChoice& choice = site.choice();
  std::vector<std::string> tiles = {choice.tiles.front()};
  for (const size_t i : choice.at_batch) {
    if (i != 0) tiles.push_back(choice.tiles[i]);
  }
  return tiles;
}

/// Times by tile, whatever the site; a tile that is not named takes 100 us.
class Scene {
 public:
  std::map<std::string, double> seconds;
  std::map<std::string, std::string> refused;  ///< tile -> what the compiler says.
  std::set<std::string> wrong;                 ///< Tiles that compute something else.
  double now = 0, per_site = 0, per_compilation = 0;
  int compilations = 0, timed_rounds = 0;
  std::vector<TunedSite> seen;

  TuneResult tune(const std::vector<TuningSite>& sites, const TuningTable& current = {}, TuneSettings settings = {}) {
    settings.each = [this](const TunedSite& site, size_t, size_t) { seen.push_back(site); };
    for (const TuningSite& site : sites) name_kernels(site);
    const TuneMeans means{.compile = [this](auto sources, const auto& progress) { return compile(sources, progress); },
                          .time =
                              [this](const TuningSite&, const CudaPlan& plan, const TuneMeans::Kernels&) {
                                now += per_site;
                                return std::make_unique<FakeTimer>(*this, tiles_of(plan));
                              },
                          .clock = [this] { return now; }};
    return tune_sites(sites, current, means, settings);
  }

 private:
  class FakeTimer : public Timer {
   public:
    FakeTimer(Scene& scene, std::vector<std::string> tiles) : scene_(scene), tiles_(std::move(tiles)) {}
    bool agrees(size_t candidate) override {
      return scene_.wrong.contains(tiles_[candidate]) == scene_.wrong.contains(tiles_[0]);
    }
    std::vector<std::vector<double>> time(std::span<const size_t> candidates, int rounds) override {
      std::vector<std::vector<double>> all;
      for (const size_t c : candidates) {
        const auto known = scene_.seconds.find(tiles_[c]);
        all.emplace_back(static_cast<size_t>(rounds), known == scene_.seconds.end() ? 1e-4 : known->second);
        if (rounds > 2) all.back()[0] = 1;  // An outlier.
      }
      scene_.timed_rounds += rounds * static_cast<int>(candidates.size());
      return all;
    }

   private:
    Scene& scene_;
    std::vector<std::string> tiles_;
  };

  /// A product is one kernel, whose name holds a hash of its source.
  void name_kernels(const TuningSite& site) {
    std::vector<size_t> all(site.choice().tiles.size());
    std::iota(all.begin(), all.end(), size_t{0});
    const CudaPlan plan = site.plan(all);
    for (const auto& call : plan.calls) {
      tile_of_[plan.sources[static_cast<size_t>(call.source)].name] =
          site.choice().tiles[static_cast<size_t>(call.node)];
    }
  }

  std::vector<std::string> tiles_of(const CudaPlan& plan) const {
    std::vector<std::string> tiles;
    for (const auto& call : plan.calls) {
      tiles.push_back(tile_of_.at(plan.sources[static_cast<size_t>(call.source)].name));
    }
    return tiles;
  }

  std::vector<codegen::CompileResult> compile(std::span<const codegen::CudaSource> sources,
                                              const codegen::KernelCompiler::Progress& progress) {
    ++compilations;
    std::vector<codegen::CompileResult> results(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      now += per_compilation;
      const auto found = refused.find(tile_of_.at(sources[i].name));
      if (found != refused.end()) results[i].error = Error(found->second);
      progress({static_cast<int>(i) + 1, static_cast<int>(sources.size()), 0, 0, sources[i].name});
    }
    return results;
  }

  std::map<std::string, std::string> tile_of_;  // By the kernel's name.
};

TEST(Tuner, TakesTheFastest) {
  const auto sites = products({64});
  const auto tiles = tried(sites[0]);
  Scene scene;
  scene.seconds = {{tiles[0], 5e-5}, {tiles[3], 4e-5}, {tiles[2], 6e-5}};
  const TuneResult result = scene.tune(sites);
  ASSERT_EQ(result.sites.size(), 1u);
  EXPECT_EQ(result.left, 0u);
  const codegen::Decision* decision = result.decisions.exact(sites[0].choice().problem, 96);
  ASSERT_NE(decision, nullptr);
  EXPECT_EQ(decision->tile, tiles[3]);
  EXPECT_DOUBLE_EQ(decision->microseconds, 40) << "an outlier does not move the median";
  EXPECT_DOUBLE_EQ(decision->default_microseconds, 50);
}

TEST(Tuner, TriesTheBestEstimatesAndWhatIsInUse) {
  const auto sites = products({64});
  const auto tiles = tried(sites[0]);
  ASSERT_GT(tiles.size(), 6u);
  TuningTable current;
  current.set(sites[0].choice().problem, 96, {tiles[5], 1, 1});
  Scene scene;
  const TuneResult result = scene.tune(sites, current, {.most_candidates = 3});
  const auto& candidates = result.sites.at(0).candidates;
  ASSERT_EQ(candidates.size(), 3u);
  EXPECT_EQ(candidates[0].tile, tiles[5]);
  EXPECT_EQ(candidates[1].tile, tiles[1]) << "the best estimate for this batch";
  EXPECT_EQ(candidates[2].tile, tiles[2]);
}

TEST(Tuner, BreaksATieBySharedMemory) {
  const auto sites = products({64});
  const auto tiles = tried(sites[0]);
  Scene scene;
  for (size_t i = 0; i < tiles.size(); ++i) scene.seconds[tiles[i]] = 4e-5 * (i % 2 == 0 ? 1 : 1.004);
  const TuneResult result = scene.tune(sites, {}, {.most_candidates = 100});
  const TunedSite& site = result.sites.at(0);
  for (const TunedCandidate& c : site.candidates) {
    EXPECT_LE(site.candidates[static_cast<size_t>(site.winner)].shared_bytes, c.shared_bytes);
  }
  scene.seconds[tiles[0]] = 3.9e-5;  // Two and a half percent are no tie.
  EXPECT_EQ(scene.tune(sites).sites.at(0).winner, 0);
}

TEST(Tuner, DoesNotTimeTheHopelessOn) {
  const auto sites = products({64});
  const auto tiles = tried(sites[0]);
  Scene scene;
  scene.seconds = {{tiles[1], 5e-5}, {tiles[2], 6e-5}};
  scene.tune(sites, {}, {.most_candidates = 8, .rounds = 11});
  EXPECT_EQ(scene.timed_rounds, 8 + 3 * 11) << "the first, whose time is kept beside the winner's, and the two best";
}

TEST(Tuner, RejectsWhatComputesOtherBits) {
  const auto sites = products({64});
  const auto tiles = tried(sites[0]);
  Scene scene;
  scene.wrong = {tiles[1]};
  scene.seconds = {{tiles[1], 1e-6}, {tiles[2], 5e-5}};
  const TuneResult result = scene.tune(sites);
  EXPECT_EQ(result.sites.at(0).winner, 2);
  EXPECT_NE(result.sites[0].candidates[1].rejected.find("other bits"), std::string::npos);
  EXPECT_EQ(result.sites[0].candidates[1].seconds, 0) << "it is not even timed";
}

TEST(Tuner, SaysWhatTheCompilerRefused) {
  const auto sites = products({64});
  const auto tiles = tried(sites[0]);
  Scene scene;
  scene.refused = {{tiles[0], "it spills"}, {tiles[2], "it spills too"}};
  const TuneResult result = scene.tune(sites);
  const TunedSite& site = result.sites.at(0);
  EXPECT_EQ(site.candidates[0].rejected, "it spills");
  EXPECT_EQ(site.candidates[2].rejected, "it spills too");
  EXPECT_GT(site.winner, 0);
  EXPECT_NE(site.winner, 2);
  for (const std::string& tile : tiles) scene.refused[tile] = "no";
  const TuneResult nothing = scene.tune(sites);
  EXPECT_EQ(nothing.sites.at(0).winner, -1);
  EXPECT_TRUE(nothing.decisions.empty());
}

TEST(Tuner, BeginsWithTheMostWorkAndEndsWithItsBudget) {
  const auto sites = products({64, 128, 192, 256});
  Scene scene;
  scene.per_site = 10;
  const TuneResult result = scene.tune(sites, {}, {.budget = 15, .most_candidates = 2, .compiled_at_once = 100});
  ASSERT_EQ(result.sites.size(), 2u) << "the second began in time";
  EXPECT_EQ(result.left, 2u);
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(result.sites[0].site, &sites[3]);
  EXPECT_EQ(result.sites[1].site, &sites[2]);
  EXPECT_EQ(result.decisions.decisions().size(), 2u);
  EXPECT_EQ(scene.seen.size(), 2u);
}

TEST(Tuner, BreaksOffACompilationThatTakesTooLong) {
  const auto sites = products({64, 128, 192, 256});
  Scene scene;
  scene.per_compilation = 1;
  const TuneResult result = scene.tune(sites, {}, {.budget = 5.5, .most_candidates = 4, .compiled_at_once = 4});
  EXPECT_EQ(result.sites.size(), 1u) << "what was compiled in time counts";
  EXPECT_EQ(scene.compilations, 2);
  EXPECT_LE(scene.now, 7);
}

TEST(Tuner, KeepsWhatIsDecidedWhenItIsStopped) {
  const auto sites = products({64, 128, 192});
  Scene scene;
  TuningTable kept;
  TuneSettings settings{.most_candidates = 2, .compiled_at_once = 100};
  settings.stop = [&] { return scene.seen.size() == 2; };
  settings.decided = [&](const TuningTable& news) { kept.merge(news); };
  const TuneResult result = scene.tune(sites, {}, settings);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.left, 1u);
  EXPECT_EQ(kept.decisions().size(), 2u);
  EXPECT_EQ(kept, result.decisions);
}

/// Real kernels: every candidate computes the same bits, but for one that was tampered with.
TEST(Tuner, FindsAPlantedFaultByItsBits) {
  const auto sites = products({32}, 64);
  const auto spoil = [](std::string source) {
    const std::string from = "block.multiply(shared, load_a, load_b, cursor);";
    const size_t at = source.find(from);
    EXPECT_NE(at, std::string::npos);
    // The last slot's depth is left out.
    return source.replace(at, from.size(),
                          "block.multiply(shared, load_a, load_b, gemm::RangeCursor<index_t>(0, 32));");
  };
  const TuneMeans means{
      .compile = [](auto sources, const auto&) { return std::vector<codegen::CompileResult>(sources.size()); },
      .time =
          [&](const TuningSite& site, CudaPlan plan, const TuneMeans::Kernels&) {
            plan.sources[1].source = spoil(plan.sources[1].source);
            return std::make_unique<testing::EmulatedTimer>(site, std::move(plan),
                                                            [](size_t candidate) { return 1e-5 / (1 + candidate); });
          },
      .clock = [] { return 0.0; }};
  const TuneResult result = tune_sites(sites, {}, means, {.most_candidates = 3});
  const TunedSite& site = result.sites.at(0);
  EXPECT_NE(site.candidates[1].rejected.find("other bits"), std::string::npos);
  EXPECT_EQ(site.candidates[0].rejected, "");
  EXPECT_EQ(site.winner, 2);
}

}  // namespace
}  // namespace difuse::runtime
