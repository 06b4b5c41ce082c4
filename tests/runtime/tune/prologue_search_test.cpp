// The search for images that are computed on the way: what is kept, and when it ends. A step's times are made up.
#include "runtime/tune/prologue_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ir/error.h"

namespace difuse::runtime {
namespace {

using passes::FusionChoices;
using passes::PrologueSite;

constexpr int64_t kBatch = 32;

/// A step of 1 ms, of which each site takes or adds so many microseconds where it is computed.
class FakeStep {
 public:
  std::map<std::string, double> gains;  ///< By site.
  std::map<std::string, std::string> errors;
  double now = 0, per_comparison = 0;
  int comparisons = 0;

  PrologueResult tune(const std::vector<PrologueSite>& sites, PrologueSettings settings = {},
                      const FusionChoices& known = {}) {
    if (settings.budget == 0) settings.budget = std::numeric_limits<double>::infinity();
    const PrologueMeans means = {
        .compare = [this](const auto& first, const auto& second) { return compare(first, second); },
        .clock = [this] { return now; }};
    return tune_prologues(prologues_to_tune(sites), known, means, settings);
  }

 private:
  double seconds(const FusionChoices& choices) const {
    double us = 1000;
    for (const auto& [key, computed] : choices.prologues) {
      if (!computed) continue;
      if (const auto bad = errors.find(key.first); bad != errors.end()) throw Error(bad->second);
      if (const auto gain = gains.find(key.first); gain != gains.end()) us -= gain->second;
    }
    return us * 1e-6;
  }

  std::pair<double, double> compare(const FusionChoices& first, const FusionChoices& second) {
    ++comparisons;
    now += per_comparison;
    if (comparisons > 1) {
      const bool is_seen = first.prologues == first_ || first.prologues == second_;
      EXPECT_TRUE(is_seen) << "a step that runs already";
    }
    first_ = first.prologues, second_ = second.prologues;
    return {seconds(first), seconds(second)};
  }

  decltype(FusionChoices::prologues) first_, second_;
};

PrologueSite site(const std::string& name, double spared, double price, bool estimated = false, bool computed = false) {
  return {name, kBatch, spared * 1e-6, price * 1e-6, computed, estimated};
}

const TunedPrologue& found(const PrologueResult& result, const std::string& name) {
  const auto it = std::ranges::find_if(result.sites, [&](const TunedPrologue& t) { return t.site.site == name; });
  EXPECT_NE(it, result.sites.end()) << name;
  return *it;
}

TEST(PrologueSearch, KeepsWhatGainsMoreThanTheNoise) {
  FakeStep step;
  step.gains = {{"good", 10}, {"bad", -10}, {"nothing", 2}};
  const PrologueResult result = step.tune({site("bad", 9, 8), site("nothing", 8, 8), site("good", 7, 8)});
  EXPECT_EQ(result.sites.size(), 3u);
  EXPECT_TRUE(found(result, "good").site.computed);
  EXPECT_FALSE(found(result, "bad").site.computed);
  EXPECT_FALSE(found(result, "nothing").site.computed) << "0.2 % are noise";
  EXPECT_NEAR(found(result, "bad").stored_seconds, 1e-3, 1e-9);
  EXPECT_NEAR(found(result, "bad").computed_seconds, 1.01e-3, 1e-9);
  const auto& table = result.decisions.prologues();
  ASSERT_EQ(table.size(), 3u);
  EXPECT_EQ(table.at({"good", kBatch}), (codegen::PrologueDecision{true, 990, 1000}));
  EXPECT_EQ(table.at({"bad", kBatch}), (codegen::PrologueDecision{false, 1010, 1000}));
}

TEST(PrologueSearch, TriesWhatSparesMostFirstAndEachKindOnce) {
  FakeStep step;
  std::vector<std::string> order;
  const auto each = [&](const TunedPrologue& t, size_t done, size_t total) {
    order.push_back(t.site.site);
    EXPECT_EQ(done, order.size());
    EXPECT_EQ(total, 2u);
  };
  const PrologueResult result =
      step.tune({site("one", 8, 9), site("two", 5, 6), site("two", 5, 6)}, {.budget = 1e9, .each = each});
  EXPECT_EQ(order, (std::vector<std::string>{"two", "one"}));
  EXPECT_EQ(found(result, "two").uses, 2);
  EXPECT_NEAR(found(result, "two").site.spared, 10e-6, 1e-12);
  EXPECT_EQ(step.comparisons, 2);
}

/// Single ones may gain less than the noise.
TEST(PrologueSearch, BeginsWithAllEstimatesWhereTheyGainTogether) {
  FakeStep step;
  step.gains = {{"a", 2}, {"b", 2}, {"c", -8}};
  const std::vector<PrologueSite> sites = {site("a", 9, 5, true), site("b", 8, 5, true), site("c", 7, 8)};
  const PrologueResult result = step.tune(sites);
  EXPECT_TRUE(found(result, "a").site.computed);
  EXPECT_TRUE(found(result, "b").site.computed);
  EXPECT_FALSE(found(result, "c").site.computed);
  EXPECT_NEAR(found(result, "a").stored_seconds - found(result, "a").computed_seconds, 2e-6, 1e-9);
  EXPECT_NEAR(result.with_estimates, 996e-6, 1e-9);
  EXPECT_NEAR(result.before_estimates, 1e-3, 1e-9);
  FakeStep other;
  other.gains = {{"a", 2}, {"b", -2}};
  const PrologueResult apart = other.tune(sites);
  EXPECT_FALSE(found(apart, "a").site.computed);
  EXPECT_FALSE(found(apart, "b").site.computed);
}

TEST(PrologueSearch, GivesUpWhatIsComputedWhereThatIsSlower) {
  FakeStep step;
  step.gains = {{"a", -20}, {"b", 20}};
  FusionChoices known;
  known.prologues = {{{"a", kBatch}, true}, {{"b", kBatch}, true}};
  const PrologueResult result = step.tune({site("a", 9, 5, true, true), site("b", 5, 30, false, true)}, {}, known);
  EXPECT_FALSE(found(result, "a").site.computed);
  EXPECT_TRUE(found(result, "b").site.computed) << "it was computed before, whatever the estimate";
  EXPECT_EQ(result.decisions.prologues().at({"a", kBatch}), (codegen::PrologueDecision{false, 1000, 980}));
}

TEST(PrologueSearch, TimesNothingHopelessAndSaysWhatCannotBeTimed) {
  FakeStep step;
  step.gains = {{"hopeless", 100}, {"good", 10}};
  step.errors = {{"broken", "it does not compile"}};
  const PrologueResult result =
      step.tune({site("hopeless", 5, 21), site("broken", 9, 5, true), site("good", 7, 6, true)});
  EXPECT_NE(found(result, "hopeless").rejected, "");
  EXPECT_EQ(found(result, "broken").rejected, "it does not compile");
  EXPECT_TRUE(found(result, "good").site.computed);
  EXPECT_EQ(result.decisions.prologues().size(), 1u);
}

TEST(PrologueSearch, EndsWithItsTime) {
  FakeStep step;
  step.per_comparison = 1;
  const std::vector<PrologueSite> sites = {site("a", 9, 9), site("b", 8, 8), site("c", 7, 7)};
  const PrologueResult result = step.tune(sites, {.budget = 1.5});
  EXPECT_EQ(result.sites.size(), 2u);
  EXPECT_EQ(result.left, 1u);
  EXPECT_EQ(result.decisions.prologues().size(), 2u);
  const PrologueResult stopped = FakeStep().tune(sites, {.budget = 1e9, .stop = [] { return true; }});
  EXPECT_EQ(stopped.left, 3u);
  EXPECT_TRUE(stopped.decisions.empty());
}

}  // namespace
}  // namespace difuse::runtime
