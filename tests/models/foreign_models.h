// The small models of tests/golden/weights/, in the files of the programs that they come from.
#pragma once

#include <cstring>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "models/weights/trained_model.h"
#include "runtime/safetensors.h"

namespace difuse::models {

inline const std::filesystem::path kForeignFolder =
    std::filesystem::path(DIFUSE_SOURCE_DIR) / "tests" / "golden" / "weights";

struct ForeignModel {
  std::string name;
  std::string file;       ///< Below the folder; empty: made by open_foreign().
  bool described = true;  ///< The file says its whole model; otherwise NAME.toml does.
};

void PrintTo(const ForeignModel& model, std::ostream* out);

extern const std::vector<ForeignModel> kForeignModels;

/// The model; a file that has to be made is written into `scratch`.
TrainedModel open_foreign(const ForeignModel& model, const std::filesystem::path& scratch);

/// NAME.golden.safetensors.
runtime::SafetensorsReader foreign_golden(const std::string& name);

template <class T>
std::vector<T> values_of(const runtime::SafetensorsReader& file, const std::string& name) {
  const auto bytes = file.bytes(name);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace difuse::models
