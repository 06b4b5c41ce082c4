#include "models/run/backend.h"

#include <fmt/format.h>

#include "codegen/cpu/contractions.h"

namespace difuse::models {

std::string backend_line(int threads) {
  std::string why_plain;
  const auto contractions = codegen::make_contractions(&why_plain);
  std::string line =
      fmt::format("CPU backend: {}, {} thread{}", contractions->description(), threads, threads == 1 ? "" : "s");
  if (!why_plain.empty()) line += fmt::format("; without oneDNN, more slowly: {}", why_plain);
  return line;
}

}  // namespace difuse::models
