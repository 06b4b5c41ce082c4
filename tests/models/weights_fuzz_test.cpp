// Mutations of small valid files, through every reader of foreign files: each is read or refused by an Error, never
// anything else, and within little memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ir/error.h"
#include "models/config/toml_file.h"
#include "models/unet.h"
#include "models/weights/adm.h"
#include "models/weights/diffusers.h"
#include "models/weights/diffusers_schedule.h"
#include "models/weights/export.h"
#include "models/weights/strided.h"
#include "models/weights/trained_model.h"
#include "models/weights/unpickle.h"
#include "models/weights/zip_archive.h"
#include "runtime/data/idx.h"
#include "runtime/data/unet_cu_data.h"
#include "tests/models/foreign_models.h"
#include "tests/models/zip_writer.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;

/// Reads a file; throws Error where it is not good.
using Reader = void (*)(const fs::path& file);

struct Format {
  const char* name;
  std::string file;   ///< Its name in the folder.
  std::string valid;  ///< Its bytes.
  Reader read;
  int times = 1;      ///< How many cases it gets for one of the others'.
  bool whole = true;  ///< Unchanged it is read.
};

void read_tensors(const fs::path& path) {
  const TensorFile file = TensorFile::open(path);
  for (const auto& [name, tensor] : file.tensors()) {
    try {
      to_f32(tensor, name);
    } catch (const Error&) {  // Integers.
    }
  }
  for (const auto infer : {&infer_adm_config, &infer_strided_config}) {
    std::set<std::string> unknown;
    try {
      infer(file.tensors(), unknown);
    } catch (const Error&) {  // Not every good file is such a UNet.
    }
  }
}

void read_config(const fs::path& path) {
  std::set<std::string> unknown;
  read_diffusers_config(path.parent_path(), {}, unknown);
}

void read_folder(const fs::path& path) { TensorFile::open_folder(path.parent_path()); }
void read_schedule(const fs::path& path) { read_diffusers_schedule(path, {}); }
void read_checkpoint(const fs::path& path) {
  const TrainedModel model = TrainedModel::open(path, "--from", {});
  model.parameters(model.default_weights(), parameter_layout(model.config().unet));
}
void read_toml(const fs::path& path) { read_config_file(path); }
void read_idx_images(const fs::path& path) { runtime::read_idx(path); }
void read_bin(const fs::path& path) { UnetCuWeights weights(path); }
void read_images(const fs::path& path) { runtime::read_unet_cu_data(path); }
void read_pickle(const fs::path& path) {
  const std::string bytes = test::read_file(path);
  Pickle(path, std::as_bytes(std::span(bytes)));
}

/// The readers of archives check sums, so a change of what is inside needs an archive made around it.
void read_tensors_of_pickle(const fs::path& path) {
  const fs::path archive = path.parent_path() / "archive.pt";
  test::write_file(archive,
                   test::zip_archive({{"a/data.pkl", test::read_file(path)}, {"a/data/0", std::string(24, '\1')}}));
  read_tensors(archive);
}

std::string header_of(std::initializer_list<int32_t> words, size_t more) {
  std::string bytes(256 * sizeof(int32_t) + more, '\0');
  std::memcpy(bytes.data(), words.begin(), words.size() * sizeof(int32_t));
  return bytes;
}

/// The state_dict of a small model, so that inference of its configuration has something to see.
std::string model_archive() {
  const std::string golden = test::read_file(kForeignFolder / "adm_half.pt");
  const ZipArchive archive("adm_half.pt", std::as_bytes(std::span(golden)));
  std::vector<test::ZipEntry> entries;
  std::vector<std::byte> buffer;
  for (const auto& entry : archive.entries()) {
    const auto bytes = archive.read(entry, buffer);
    // Zeros deflate to nothing: the archive is mostly directory and pickle.
    const bool weights = entry.name.find("/data/") != std::string::npos;
    entries.push_back({entry.name,
                       weights ? std::string(bytes.size(), '\0')
                               : std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                       weights, 0});
  }
  return test::zip_archive(entries);
}

std::string small_safetensors() {
  const std::string one =
      R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]}})";
  std::string safetensors(8, '\0');
  const uint64_t length = one.size();
  std::memcpy(safetensors.data(), &length, sizeof length);
  safetensors += one + std::string(28, '\1');
  return safetensors;
}

/// A checkpoint of the smallest UNet.
std::string small_checkpoint() {
  RunConfig config;
  config.unet.image_height = config.unet.image_width = 4;
  config.unet.image_channels = 1;
  config.unet.model_channels = 2;
  config.unet.channel_mult = {1};
  config.unet.num_res_blocks = 1;
  config.unet.groups = 1;
  const ParameterLayout layout = parameter_layout(config.unet);
  const test::TempFolder folder;
  export_weights(WeightsFormat::difuse, folder / "c.safetensors", config, layout, initial_parameters(layout, {}));
  return test::read_file(folder / "c.safetensors");
}

std::vector<Format> formats() {
  const std::string index =
      R"({"metadata": {"total_size": 24}, "weight_map": {"w": "a.safetensors", "b": "a.safetensors"}})";
  const std::string config = test::read_file(kForeignFolder / "diffusers_resnet" / "config.json");
  return {{"pickle", "data.pkl", test::tensor_pickle("weight"), &read_pickle, 4},
          {"pickle in an archive", "data.pkl", test::tensor_pickle("weight"), &read_tensors_of_pickle, 4},
          {"archive", "a.pt", test::torch_file("weight"), &read_tensors, 4},
          {"deflated archive", "a.pt", test::torch_file("weight", true), &read_tensors, 4},
          {"64-bit archive", "a.pt",
           test::zip_archive({{"a/data.pkl", test::tensor_pickle("w")}, {"a/data/0", std::string(24, '\1')}}, true),
           &read_tensors, 4},
          {"model", "model.pt", model_archive(), &read_tensors, 1},
          {"safetensors", "a.safetensors", small_safetensors(), &read_tensors, 4},
          {"config.json", "config.json", config, &read_config, 4},
          {"scheduler_config.json", "scheduler_config.json",
           diffusers_schedule({NoiseSchedule::scaled_linear, 1000}, false).dump(), &read_schedule, 4},
          {"checkpoint", "c.safetensors", small_checkpoint(), &read_checkpoint, 1},
          {"configuration", "a.toml", to_toml("tiny", {}, {}, {}), &read_toml, 1},
          {"IDX", "a-idx3-ubyte", std::string("\0\0\10\3\0\0\0\2\0\0\0\4\0\0\0\4", 16) + std::string(32, '\1'),
           &read_idx_images, 2},
          {"index", "diffusion_pytorch_model.safetensors.index.json", index, &read_folder, 2},
          {"unet.cu weights", "a.bin", header_of({12345678, 1, 3, 32, 3, 8, 8, 1000}, 4096), &read_bin, 1,
           /*whole=*/false},
          {"unet.cu images", "b.bin", header_of({20240620, 2, 1, 4, 4}, 128), &read_images, 4}};
}

/// One to four changes: a bit, a byte, a number of 2, 4 or 8 bytes at an edge of its range, a piece removed, repeated
/// or copied elsewhere, the end cut off.
std::string mutate(std::string bytes, std::mt19937_64& random) {
  const auto below = [&random](uint64_t bound) { return bound == 0 ? 0 : random() % bound; };
  constexpr std::array<uint64_t, 10> kEdges = {
      0, 1, 0x7f, 0xff, 0x7fff, 0xffffffff, 0x7fffffff, uint64_t{1} << 60, uint64_t{1} << 63, ~uint64_t{0}};
  for (uint64_t changes = 1 + below(4); changes > 0; --changes) {
    const size_t at = below(bytes.size() + 1);
    switch (below(7)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(below(256));
        break;
      case 2: {
        const uint64_t value = kEdges[below(kEdges.size())];
        const size_t width = size_t{2} << below(3);
        if (at + width <= bytes.size()) std::memcpy(bytes.data() + at, &value, width);
        break;
      }
      case 3:
        bytes.erase(at, 1 + below(16));
        break;
      case 4:
        bytes.insert(at, bytes.substr(at, 1 + below(64)));
        break;
      case 5: {
        const std::string piece = bytes.substr(below(bytes.size() + 1), 1 + below(32));
        bytes.replace(at, piece.size(), piece);
        break;
      }
      default:
        if (below(8) == 0) bytes.resize(at);
    }
  }
  return bytes;
}

void fuzz(uint64_t seed, int rounds) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::cout << "seed " << seed << "\n";
  const test::TempFolder folder;
  std::mt19937_64 random(seed);
  std::vector<int> good;
  for (const Format& format : formats()) {
    SCOPED_TRACE(format.name);
    const fs::path own = folder / format.name;
    fs::create_directory(own);
    test::write_file(own / "a.safetensors", small_safetensors());  // What the index names.
    const fs::path file = own / format.file;
    int read = 0;
    for (int i = 0; i < rounds * format.times; ++i) {
      const std::string bytes = i == 0 ? format.valid : mutate(format.valid, random);
      fs::remove(file);  // A file system may write one to the disk at once that is cut to nothing and written again.
      test::write_file(file, bytes);
      try {
        format.read(file);
        ++read;
      } catch (const Error& error) {
        ASSERT_FALSE(i == 0 && format.whole) << error.what();
        ASSERT_NE(std::string(error.what()), "") << "case " << i;
        ASSERT_LT(std::string(error.what()).size(), 100'000u) << "case " << i;
      } catch (const std::exception& error) {
        FAIL() << "case " << i << ": " << error.what();
      }
    }
    ::testing::Test::RecordProperty(format.name, fmt::format("{} of {} read", read, rounds * format.times));
    EXPECT_LT(read, rounds * format.times);
  }
}

// About eight seconds.
TEST(WeightsFuzz, EveryReaderSurvivesMutations) { fuzz(20240620, 1500); }

// About a minute.
TEST(SlowWeightsFuzz, EveryReaderSurvivesMutations) {
  for (uint64_t seed = 1; seed <= 10; ++seed) fuzz(seed, 1500);
}

}  // namespace
}  // namespace difuse::models
