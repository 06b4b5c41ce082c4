// Quantities as people read them, and how they are taken.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace difuse::models {

/// "512 B", "4.5 MB", "2.1 GB": powers of 1000, as disks are sold.
std::string format_bytes(uint64_t bytes);
/// "45 s", "12 min 5 s", "3 h 20 min".
std::string format_duration(double seconds);
/// "1,112,801".
std::string format_count(int64_t count);

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace difuse::models
