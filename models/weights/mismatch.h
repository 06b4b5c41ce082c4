// What to say when a file's tensors are not those of the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ir/error.h"
#include "ir/types.h"
#include "models/checkpoint.h"

namespace difuse::models {

struct Mismatch {
  struct Row {
    std::string name;            ///< In the file.
    ir::Shape wanted;            ///< In our order of axes; empty for what the model has no use for.
    std::vector<int64_t> found;  ///< Empty for what is missing.
  };
  std::vector<Row> missing, extra, misshapen;

  bool empty() const { return missing.empty() && extra.empty() && misshapen.empty(); }
};

/// One line for each tensor.
std::vector<std::string> mismatch_lines(const Mismatch& mismatch);

/// All of them with the likely cause. `none`: not one tensor was of use.
Error mismatch_error(const std::filesystem::path& path, const Mismatch& mismatch, const RunConfig& config, bool none);

}  // namespace difuse::models
