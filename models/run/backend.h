// The line about what computes.
#pragma once

#include <string>

namespace difuse::models {

/// "CPU backend: oneDNN 2.6.3 (AVX-512), 2 threads", with the reason where oneDNN is not in use.
std::string backend_line(int threads);

}  // namespace difuse::models
