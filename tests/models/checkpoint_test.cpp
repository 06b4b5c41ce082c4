#include "models/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "models/config/config_json.h"
#include "models/presets.h"
#include "models/unet.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::read_file;

/// A tiny run in some state: every parameter slice holds values of its own, gaps are zero.
class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest()
      : config_{{.model = "tiny", .seed = 5, .images = 40, .version = "0"},
                find_preset("tiny").unet,
                find_preset("tiny").diffusion,
                find_preset("tiny").training},
        layout_(parameter_layout(config_.unet)),
        graph_(build_training_step(config_.unet, config_.diffusion, config_.training)) {
    float next = 1;
    for (const int id : graph_.leaves(ir::Op::state)) {
      const ir::Type& type = graph_.node(id).types[0];
      StateValue value{type, std::vector<std::byte>(static_cast<size_t>(type.bytes()))};
      if (type.elements() == layout_.size()) {
        for (size_t i = 0; i < layout_.specs().size(); ++i) {
          for (int64_t k = 0; k < layout_.specs()[i].elements(); ++k) {
            std::memcpy(&value.bytes[static_cast<size_t>(layout_.offsets()[i] + k) * 4], &next, 4);
            next += 1.0f / 8;
          }
        }
      } else {
        const int32_t step = 12;
        std::memcpy(value.bytes.data(), &step, 4);
      }
      states_.emplace(graph_.node(id).as<ir::LeafAttrs>().name, value);
    }
  }

  fs::path save(const char* name = "a.safetensors") {
    save_checkpoint(folder_ / name, config_, layout_, states_, {77});
    return folder_ / name;
  }

  /// The Error of reading everything.
  std::string read_error(const fs::path& path) {
    return error_of([&] { Checkpoint(path).states(graph_, layout_); });
  }

  /// A copy of a good file with other tensors or metadata, without a checksum.
  fs::path rewritten(const std::function<void(std::vector<runtime::TensorEntry>&, runtime::TensorMetadata&)>& change) {
    const runtime::SafetensorsReader good(save());
    std::vector<runtime::TensorEntry> tensors;
    for (const runtime::TensorInfo& tensor : good.tensors()) {
      tensors.push_back({tensor.name, tensor.dtype, tensor.shape, good.bytes(tensor)});
    }
    runtime::TensorMetadata metadata = good.metadata();
    EXPECT_EQ(metadata.erase("difuse.crc32"), 1u);
    change(tensors, metadata);
    runtime::write_safetensors(folder_ / "b.safetensors", metadata, tensors);
    return folder_ / "b.safetensors";
  }

  static runtime::TensorEntry& find(std::vector<runtime::TensorEntry>& tensors, const std::string& name) {
    return *std::ranges::find(tensors, name, &runtime::TensorEntry::name);
  }

  test::TempFolder folder_;
  RunConfig config_;
  ParameterLayout layout_;
  ir::Graph graph_;
  StateValues states_;
};

TEST_F(CheckpointTest, CountsTheFilesThatARunAdds) {
  const auto to_come = [&](int64_t saves, int64_t keep_last) {
    return checkpoints_to_come(folder_.path(), saves, keep_last);
  };
  EXPECT_EQ(to_come(1, 0), 1);
  EXPECT_EQ(to_come(9, 0), 2);  // The new one beside the old one.
  EXPECT_EQ(to_come(1, 1), 2);
  EXPECT_EQ(to_come(9, 1), 3);
  EXPECT_EQ(to_come(9, 3), 5);
  EXPECT_EQ(to_come(3, 3), 4);

  for (int64_t step = 1; step <= 2; ++step) save_run(folder_.path(), config_, layout_, states_, {}, step, 3);
  EXPECT_EQ(to_come(9, 0), 1);
  EXPECT_EQ(to_come(9, 3), 2);
  EXPECT_EQ(to_come(1, 3), 1);
  for (int64_t step = 3; step <= 5; ++step) save_run(folder_.path(), config_, layout_, states_, {}, step, 3);
  EXPECT_EQ(to_come(9, 3), 1);
}

TEST_F(CheckpointTest, EverythingComesBack) {
  const Checkpoint checkpoint(save());
  EXPECT_EQ(checkpoint.step(), 12);
  EXPECT_EQ(checkpoint.cursor(), runtime::Cursor{77});
  EXPECT_EQ(checkpoint.config().run.model, "tiny");
  EXPECT_EQ(checkpoint.config().run.seed, 5u);
  EXPECT_EQ(checkpoint.config().run.images, 40);
  EXPECT_EQ(checkpoint.config().unet, config_.unet);
  EXPECT_EQ(checkpoint.config().diffusion, config_.diffusion);
  EXPECT_EQ(checkpoint.config().training, config_.training);
  const StateValues values = checkpoint.states(graph_, layout_);
  ASSERT_EQ(values.size(), states_.size());
  for (const auto& [name, value] : states_) {
    EXPECT_EQ(values.at(name).type, value.type) << name;
    EXPECT_TRUE(values.at(name).bytes == value.bytes) << name;
  }
  const std::vector<float> ema = checkpoint.parameters("ema", layout_);
  EXPECT_EQ(std::memcmp(ema.data(), states_.at("ema").bytes.data(), ema.size() * 4), 0);
}

TEST_F(CheckpointTest, TheFileDependsOnTheStateAlone) {
  EXPECT_TRUE(read_file(save("a.safetensors")) == read_file(save("b.safetensors")));
  EXPECT_LE(fs::file_size(folder_ / "a.safetensors"), checkpoint_bytes(graph_, config_, layout_));
}

TEST_F(CheckpointTest, IsMadeBetweenStepsAndLeavesOutWhatIsWithinOne) {
  const std::string plain = read_file(save());
  config_.training.accumulate = 4;
  const ir::Graph graph = build_training_step(config_.unet, config_.diffusion, config_.training);
  for (const char* name : {"micro", "accumulated"}) {
    const ir::Type& type = graph.type(graph.find_state(name));
    states_[name] = {type, std::vector<std::byte>(static_cast<size_t>(type.bytes()))};
  }
  const Checkpoint checkpoint(save());
  EXPECT_EQ(checkpoint.config().training.accumulate, 4);
  EXPECT_EQ(fs::file_size(checkpoint.path()), plain.size());
  EXPECT_EQ(checkpoint_bytes(graph, config_, layout_), checkpoint_bytes(graph_, config_, layout_));
  const StateValues values = checkpoint.states(graph, layout_);
  EXPECT_EQ(values.size(), states_.size());
  for (const char* name : {"micro", "accumulated"}) {
    EXPECT_EQ(values.at(name).type, states_.at(name).type);
    EXPECT_TRUE(values.at(name).bytes == states_.at(name).bytes) << name;
  }

  const std::string before = read_file(save());
  states_["micro"].bytes[0] = std::byte{1};
  EXPECT_CONTAINS(error_of([&] { save(); }), "in the middle of a step: the state 'micro'");
  EXPECT_TRUE(read_file(checkpoint.path()) == before);
}

TEST_F(CheckpointTest, TensorsHaveTheParametersOwnNamesAndShapes) {
  const runtime::SafetensorsReader file(save());
  for (const char* set : {"params/", "adam_m/", "adam_v/", "ema/"}) {
    const auto* tensor = file.find(std::string(set) + "out.2.weight");
    ASSERT_NE(tensor, nullptr) << set;
    EXPECT_EQ(tensor->shape, (ir::Shape{1, 3, 3, 32}));
  }
  EXPECT_EQ(file.tensors().size(), 4 * layout_.specs().size() + 3);
}

TEST_F(CheckpointTest, EveryPresetsConfigurationSurvivesJson) {
  for (const Preset& preset : presets()) {
    const auto round_trip = [](const auto& config) {
      const std::string text = config_to_json(config).dump();
      return config_from_json<std::decay_t<decltype(config)>>(nlohmann::json::parse(text), "here");
    };
    EXPECT_EQ(round_trip(preset.unet), preset.unet) << preset.name;
    EXPECT_EQ(round_trip(preset.diffusion), preset.diffusion) << preset.name;
    EXPECT_EQ(round_trip(preset.training), preset.training) << preset.name;
  }
}

TEST_F(CheckpointTest, AProcessOfBeforeThereWereOthersIsDdpm) {
  const auto read = [](const char* text) {
    return config_from_json<DiffusionConfig>(nlohmann::json::parse(text), "'x': its diffusion");
  };
  const DiffusionConfig old = read(R"({"schedule": "cosine", "timesteps": 250})");
  EXPECT_EQ(old, (DiffusionConfig{NoiseSchedule::cosine, 250}));
  EXPECT_CONTAINS(error_of([&] { read(R"({"schedule": "cosine"})"); }), "has no 'timesteps'");
}

TEST_F(CheckpointTest, ConfigurationsAreReadStrictly) {
  nlohmann::json object = config_to_json(config_.unet);
  const auto message = [](const nlohmann::json& json) {
    return error_of([&] { config_from_json<UNetConfig>(json, "'x': its model"); });
  };
  EXPECT_EQ(message(object), "");
  nlohmann::json changed = object;
  changed.erase("groups");
  EXPECT_CONTAINS(message(changed), "'x': its model has no 'groups'");
  changed = object;
  changed["wings"] = 2;
  EXPECT_CONTAINS(message(changed), "'wings'");
  for (const auto& [field, value] : {std::pair<const char*, nlohmann::json>{"groups", "eight"},
                                     {"groups", 8.5},
                                     {"dropout", true},
                                     {"conv_resample", 1},
                                     {"channel_mult", 2},
                                     {"channel_mult", nlohmann::json::array({1, "2"})},
                                     {"qkv_order", "sideways"}}) {
    changed = object;
    changed[field] = value;
    EXPECT_CONTAINS(message(changed), fmt::format("has the value {} for '{}'", value.dump(), field));
  }
  EXPECT_CONTAINS(message(nlohmann::json::array()), "not a JSON object");
}

TEST_F(CheckpointTest, AMissingTensorIsNamed) {
  for (const std::string name : {"step", "seed", "loader.position", "params/out.2.weight", "adam_v/out.2.weight"}) {
    const fs::path file = rewritten(
        [&](auto& tensors, auto&) { std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == name; }); });
    EXPECT_CONTAINS(read_error(file), fmt::format("has no tensor '{}'", name));
  }
}

TEST_F(CheckpointTest, AnExtraTensorIsNamed) {
  const std::byte one{1};
  const fs::path file = rewritten([&](auto& tensors, auto&) {
    tensors.push_back({"ema/more", runtime::TensorDType::u8, {1}, std::span(&one, 1)});
  });
  EXPECT_CONTAINS(read_error(file), "'ema/more'");
  EXPECT_CONTAINS(error_of([&] { Checkpoint(file).parameters("ema", layout_); }), "'ema/more'");
  EXPECT_EQ(error_of([&] { Checkpoint(file).parameters("params", layout_); }), "");
}

TEST_F(CheckpointTest, AnotherShapeOrTypeIsNamed) {
  EXPECT_CONTAINS(read_error(rewritten([&](auto& tensors, auto&) {
                    find(tensors, "ema/out.2.weight").shape = {1, 3, 32, 3};
                  })),
                  "tensor 'ema/out.2.weight' is F32[1, 3, 32, 3], but its configuration needs F32[1, 3, 3, 32]");
  EXPECT_CONTAINS(
      read_error(rewritten([&](auto& tensors, auto&) { find(tensors, "seed").dtype = runtime::TensorDType::i32; })),
      "tensor 'seed' is I32[2]");
}

TEST_F(CheckpointTest, MetadataIsChecked) {
  EXPECT_CONTAINS(read_error(rewritten([](auto&, auto& metadata) { metadata.clear(); })), "not a checkpoint of difuse");
  EXPECT_CONTAINS(read_error(rewritten([](auto&, auto& metadata) { metadata["difuse.format"] = "2"; })), "format 2");
  EXPECT_CONTAINS(read_error(rewritten([](auto&, auto& metadata) { metadata.erase("difuse.model"); })),
                  "has no 'difuse.model'");
  EXPECT_CONTAINS(read_error(rewritten([](auto&, auto& metadata) { metadata["difuse.run"] = "{"; })), "'difuse.run'");
}

TEST_F(CheckpointTest, AFlippedBitOrAZeroedBlockIsDamage) {
  const fs::path path = save();
  const std::string good = read_file(path);
  const runtime::SafetensorsReader file(path);
  for (const char* name : {"adam_v/out.2.weight", "loader.position", "params/out.2.weight", "step"}) {
    std::string changed = good;
    changed[file.find(name)->offset] ^= 1;
    test::write_file(folder_ / "b.safetensors", changed);
    EXPECT_CONTAINS(error_of([&] { Checkpoint(folder_ / "b.safetensors"); }), "b.safetensors' is damaged: ") << name;
  }
  std::string changed = good;
  changed.replace(file.find("ema/out.2.weight")->offset, 1024, 1024, '\0');
  test::write_file(folder_ / "b.safetensors", changed);
  EXPECT_CONTAINS(error_of([&] { Checkpoint(folder_ / "b.safetensors"); }), "copy the file again");
}

TEST_F(CheckpointTest, ABrokenOneNamesTheNewestNumberedOne) {
  const fs::path latest = folder_ / "checkpoint.safetensors", numbered = folder_ / "checkpoints";
  for (const int64_t step : {3, 11, 20}) save_run(folder_.path(), config_, layout_, states_, {}, step, 3);
  const std::string good = read_file(latest), newest = "step_00000020.safetensors'";
  std::string changed = good;
  changed.back() ^= 16;
  for (const std::string& broken : {changed, good.substr(0, good.size() / 2), std::string()}) {
    test::write_file(latest, broken);
    EXPECT_CONTAINS(error_of([&] { Checkpoint{latest}; }), newest);
    // Neither itself nor another name of itself is the remedy.
    test::write_file(numbered / "step_00000020.safetensors", broken);
    EXPECT_CONTAINS(error_of([&] { Checkpoint(numbered / "step_00000020.safetensors"); }),
                    "step_00000011.safetensors'");
    test::write_file(numbered / "step_00000020.safetensors", good);
  }
}

TEST_F(CheckpointTest, AStepOrPlaceThatCannotBeIsDamage) {
  const auto with = [&](const char* name, const auto& value) {
    return read_error(
        rewritten([&](auto& tensors, auto&) { find(tensors, name).bytes = std::as_bytes(std::span(&value, 1)); }));
  };
  EXPECT_CONTAINS(with("step", int32_t{-1}), "is damaged: its step is -1");
  // 40 images, 2^32 passes over them.
  EXPECT_EQ(with("loader.position", (uint64_t{40} << 32) - 1), "");
  EXPECT_CONTAINS(with("loader.position", uint64_t{40} << 32),
                  "is damaged: its place in the data is sample 171798691840");
}

TEST_F(CheckpointTest, ModelsOfBeforeThereWasAFieldHaveItsDefault) {
  const fs::path file = rewritten([](auto&, auto& metadata) {
    auto model = nlohmann::ordered_json::parse(metadata["difuse.model"]);
    UNetConfig().visit_later_fields([&model](const char* name, const auto&) { EXPECT_EQ(model.erase(name), 1u); });
    metadata["difuse.model"] = model.dump();
  });
  EXPECT_EQ(Checkpoint(file).config().unet, config_.unet);
}

TEST_F(CheckpointTest, KeepsTheLastAndFindsTheLatest) {
  const fs::path run = folder_ / "run";
  fs::create_directory(run);
  EXPECT_FALSE(holds_checkpoint(run));
  EXPECT_CONTAINS(error_of([&] { find_checkpoint(run, "--resume"); }), "--resume");
  for (const int64_t step : {1, 2, 3, 10}) save_run(run, config_, layout_, states_, {}, step, 2);
  EXPECT_TRUE(holds_checkpoint(run));
  EXPECT_EQ(find_checkpoint(run, "--resume"), run / "checkpoint.safetensors");
  EXPECT_EQ(find_checkpoint(run / "checkpoint.safetensors", "--resume"), run / "checkpoint.safetensors");
  EXPECT_FALSE(fs::exists(run / "checkpoints" / "step_00000002.safetensors"));
  EXPECT_TRUE(fs::exists(run / "checkpoints" / "step_00000003.safetensors"));
  fs::remove(run / "checkpoint.safetensors");
  EXPECT_EQ(find_checkpoint(run, "--resume"), run / "checkpoints" / "step_00000010.safetensors");

  // Going on from an older step leaves what came later alone.
  save_run(run, config_, layout_, states_, {}, 4, 2);
  EXPECT_TRUE(fs::exists(run / "checkpoints" / "step_00000010.safetensors"));
  EXPECT_TRUE(fs::exists(run / "checkpoints" / "step_00000004.safetensors"));

  test::write_file(run / "checkpoint.safetensors.tmp.123", "cut");
  test::write_file(run / "checkpoints" / "step_00000010.safetensors.tmp.7", "cut");
  remove_leftovers(run);
  EXPECT_FALSE(fs::exists(run / "checkpoint.safetensors.tmp.123"));
  EXPECT_FALSE(fs::exists(run / "checkpoints" / "step_00000010.safetensors.tmp.7"));
  EXPECT_TRUE(fs::exists(run / "checkpoints" / "step_00000010.safetensors"));
}

TEST_F(CheckpointTest, WhatIsWrittenOverTheLatestChangesNoNumberedFile) {
  const fs::path latest = folder_ / "checkpoint.safetensors", numbered = folder_ / "checkpoints";
  for (int32_t step = 1; step <= 2; ++step) {
    std::memcpy(states_.at("step").bytes.data(), &step, sizeof step);
    save_run(folder_.path(), config_, layout_, states_, {}, step, 2);
  }
  fs::copy_file(numbered / "step_00000001.safetensors", latest, fs::copy_options::overwrite_existing);
  test::write_file(latest, read_file(numbered / "step_00000001.safetensors"));  // As cp does: into the file itself.
  EXPECT_EQ(Checkpoint(numbered / "step_00000002.safetensors").step(), 2);

  // Going back by a link is the same.
  fs::remove(latest);
  fs::create_symlink("checkpoints/step_00000001.safetensors", latest);
  save_run(folder_.path(), config_, layout_, states_, {}, 2, 2);
  EXPECT_EQ(Checkpoint(numbered / "step_00000001.safetensors").step(), 1);
  EXPECT_EQ(Checkpoint(latest).step(), 2);
}

TEST_F(CheckpointTest, AFailedSaveKeepsTheOldFile) {
  const fs::path path = save();
  const std::string before = read_file(path);
  {
    const test::FileSizeLimit limit(1000);
    states_.at("step").bytes[0] = std::byte{13};
    EXPECT_CONTAINS(error_of([&] { save(); }), "unchanged");
  }
  EXPECT_TRUE(read_file(path) == before);
  EXPECT_EQ(folder_.entries(), 1u);
}

}  // namespace
}  // namespace difuse::models
