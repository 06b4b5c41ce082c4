// What was measured at some batches, looked up at any.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace difuse::passes {

/// A name without the batch, and the batch: images, or rows of a matrix.
using BatchKey = std::pair<std::string, int64_t>;

/// Of what is known of the name, that of the batch whose ratio to `batch` is nearest to 1, the smaller of two; null
/// where there is none at all.
template <typename T>
const T* nearest_batch(const std::map<BatchKey, T>& known, const std::string& name, int64_t batch) {
  const T* nearest = nullptr;
  double distance = 0;
  for (auto it = known.lower_bound({name, 0}); it != known.end() && it->first.first == name; ++it) {
    const double d = std::abs(std::log(static_cast<double>(it->first.second) / static_cast<double>(batch)));
    if (nearest != nullptr && d >= distance) continue;
    nearest = &it->second;
    distance = d;
  }
  return nearest;
}

}  // namespace difuse::passes
