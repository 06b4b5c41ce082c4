#include "models/config/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace difuse::models {
namespace {

/// Optimal string alignment distance (Damerau-Levenshtein without repeated edits of one substring).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t apart = distance(word, candidate);
    if (apart < best_distance) {
      best = candidate;
      best_distance = apart;
    }
  }
  if (!best.empty() || word.empty()) return best;
  for (const std::string& candidate : candidates) {
    if (!candidate.starts_with(word)) continue;
    if (!best.empty()) return {};
    best = candidate;
  }
  return best;
}

std::string choose_from(std::string_view word, std::span<const std::string> candidates) {
  const std::string near = nearest(word, candidates);
  const std::string list = fmt::format("choose from {}", fmt::join(candidates, ", "));
  return near.empty() ? list : fmt::format("did you mean '{}'? {}", near, list);
}

}  // namespace difuse::models
