#include "tests/models/foreign_models.h"

#include <array>
#include <fstream>

namespace difuse::models {

namespace fs = std::filesystem;

const std::vector<ForeignModel> kForeignModels = {{"adm_plain", "adm_plain.pt", false},
                                                  {"adm_everything", "adm_everything.pt", false},
                                                  {"adm_half", "adm_half.pt", false},
                                                  {"adm_views", "adm_views.pt", false},
                                                  {"adm_upsampler", "adm_upsampler.pt", false},
                                                  {"unet_cu_names", "unet_cu_names.pt", false},
                                                  {"unet_cu", "", true},
                                                  {"diffusers_plain", "diffusers_plain"},
                                                  {"diffusers_ddpm", "diffusers_ddpm"},
                                                  {"diffusers_resnet", "diffusers_resnet"},
                                                  {"diffusers_sharded", "diffusers_sharded"},
                                                  {"diffusers_one_sided", "diffusers_one_sided"},
                                                  {"diffusers_old_names", "diffusers_old_names"},
                                                  {"strided", "strided.pt", false}};

namespace {

/// The same numbers as generate.py's hashed().
double hashed(uint32_t i) {
  uint32_t h = i * 2654435769u + 12345u;
  h = (h ^ (h >> 16)) * 0x45d9f3bu;
  h ^= h >> 16;
  return static_cast<double>(h >> 8) / 8388608 - 1;
}

/// The weights file of unet.cu that the golden describes, with moments behind the weights or without.
void write_unet_cu(const fs::path& path, bool moments) {
  const runtime::SafetensorsReader golden = foreign_golden("unet_cu");
  const auto sizes = values_of<int32_t>(golden, "sizes");
  const auto centres = values_of<double>(golden, "centres"), spreads = values_of<double>(golden, "spreads");
  std::array<int32_t, 256> header = {12345678, 2, 3, 32, 3, 8, 8, 1000, moments ? 1 : 0, 0};
  std::vector<float> values;
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    for (int32_t i = 0; i < sizes[tensor]; ++i) {
      const double u = hashed(static_cast<uint32_t>(values.size()));
      values.push_back(static_cast<float>(centres[tensor] + spreads[tensor] * u));
    }
  }
  const auto count = static_cast<std::streamsize>(values.size() * sizeof(float));
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), sizeof header);
  for (int copy = 0; copy < (moments ? 3 : 1); ++copy) file.write(reinterpret_cast<const char*>(values.data()), count);
}

}  // namespace

void PrintTo(const ForeignModel& model, std::ostream* out) { *out << model.name; }

runtime::SafetensorsReader foreign_golden(const std::string& name) {
  return runtime::SafetensorsReader(kForeignFolder / (name + ".golden.safetensors"));
}

TrainedModel open_foreign(const ForeignModel& model, const fs::path& scratch) {
  WeightsOptions options;
  if (!model.described) options.config = kForeignFolder / (model.name + ".toml");
  fs::path path = kForeignFolder / model.file;
  if (model.file.empty()) {
    path = scratch / "unet_cu.bin";
    write_unet_cu(path, /*moments=*/true);
  }
  return TrainedModel::open(path, "--from", options);
}

}  // namespace difuse::models
