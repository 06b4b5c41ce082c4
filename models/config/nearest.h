// "Did you mean": the nearest of the names that would have been right.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace difuse::models {

/// The candidate that `word` most likely stands for: the fewest insertions, deletions, substitutions and swaps of
/// neighbours apart (at most a third of its length, at least 1), or the only one that begins with it. Empty where none
/// is near.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// A remedy: "did you mean 'linear'? Choose from linear, cosine".
std::string choose_from(std::string_view word, std::span<const std::string> candidates);

}  // namespace difuse::models
