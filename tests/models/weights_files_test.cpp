// Files of tensors from outside: what is read of good ones, and what is said of bad ones.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>

#include "ir/error.h"
#include "models/config/config_json.h"
#include "models/diffusion/ddpm.h"
#include "models/presets.h"
#include "models/unet.h"
#include "models/weights/adm.h"
#include "models/weights/diffusers.h"
#include "models/weights/diffusers_schedule.h"
#include "models/weights/foreign_config.h"
#include "models/weights/trained_model.h"
#include "models/weights/unpickle.h"
#include "models/weights/zip_archive.h"
#include "runtime/data/unet_cu_data.h"
#include "runtime/safetensors.h"
#include "tests/models/foreign_models.h"
#include "tests/models/zip_writer.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::TempFolder;
using test::torch_file;
using test::zip_archive;

class WeightsFiles : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, std::string_view bytes) {
    test::write_file(folder_ / name, bytes);
    return folder_ / name;
  }
  /// What is said of these bytes as weights to sample from.
  std::string refusal(std::string_view bytes, const std::string& name = "model.pt") {
    const auto path = write(name, bytes);
    return error_of([&] { TrainedModel::open(path, "--checkpoint", {}); });
  }
  /// What is said of a pickle in an archive.
  std::string pickle_refusal(std::string_view pickle) {
    return refusal(zip_archive({{"archive/data.pkl", std::string(pickle)}}));
  }

  TempFolder folder_;
};

TEST_F(WeightsFiles, ReadsTensorsOfATorchArchive) {
  for (const bool deflate : {false, true}) {
    const TensorFile file = TensorFile::open(write("a.pt", torch_file("module._orig_mod.w", deflate)));
    ASSERT_EQ(file.tensors().size(), 1u);
    const FileTensor& tensor = file.tensors().at("w");
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(to_f32(tensor, "w"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  }
}

TEST_F(WeightsFiles, ReadsThe64BitExtension) {
  const std::string bytes = zip_archive({{"a", "first"}, {"b", std::string(5000, 'x'), true}}, /*zip64=*/true);
  const ZipArchive archive("a.zip", std::as_bytes(std::span(bytes)));
  std::vector<std::byte> buffer;
  EXPECT_EQ(archive.read(*archive.find("a"), buffer).size(), 5u);
  EXPECT_EQ(archive.read(*archive.find("b"), buffer).size(), 5000u);
}

TEST_F(WeightsFiles, HalfPrecisionIsExact) {
  const std::vector<uint16_t> halves = {0x3c00, 0xc000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x8000};
  const std::vector<float> wanted = {1, -2, 0x1p-24f, 0x1.ff8p-15f, 0x1p-14f, 65504, -0.0f};
  FileTensor tensor{runtime::TensorDType::f16, {7}, {}, std::as_bytes(std::span(halves))};
  EXPECT_EQ(to_f32(tensor, "h"), wanted);
  tensor.strides = {-1};
  const std::vector<uint16_t> brain = {0x3f80, 0xc049};
  EXPECT_EQ(to_f32({runtime::TensorDType::bf16, {2}, {}, std::as_bytes(std::span(brain))}, "b"),
            (std::vector<float>{1, -3.140625f}));
}

TEST_F(WeightsFiles, APickleThatWantsToRunCodeIsNamedAndNotRun) {
  using namespace std::string_literals;
  const std::filesystem::path mark = folder_ / "ran";
  const std::string command = "touch " + mark.string();
  const std::string size(1, static_cast<char>(command.size()));
  const std::string protocol2 =
      "\x80\x02"
      "cposix\nsystem\nX"s +
      size + "\0\0\0"s + command + "\x85R.";
  EXPECT_CONTAINS(pickle_refusal(protocol2), "wants to run code: its pickle asks for the global 'posix.system'");
  const std::string protocol4 =
      "\x80\x04\x8c\x08"
      "builtins\x8c\x04"
      "eval\x93\x8c"s +
      size + command + "\x85R.";
  EXPECT_CONTAINS(pickle_refusal(protocol4), "'builtins.eval'");
  const std::string instance = "(X"s + size + "\0\0\0"s + command + "ios\nsystem\n.";
  EXPECT_CONTAINS(pickle_refusal(instance), "'os.system'");
  // A global whose name only begins like one that is known.
  EXPECT_CONTAINS(pickle_refusal("\x80\x02"
                                 "ctorch._utils\n_rebuild_tensor_v2.__globals__\n)R."),
                  "wants to run code");
  EXPECT_CONTAINS(pickle_refusal("\x80\x02"
                                 "ctorch\nload\n)R."),
                  "'torch.load'");
  EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST_F(WeightsFiles, PicklesThatUseTheirStackWrongly) {
  using namespace std::string_literals;
  for (const std::string& pickle :
       {"\x80\x02R."s, "."s, ""s, "\x80\x02K"s, "t."s, "(((."s, "Ns."s, "h\x07."s, "]N\x85R."s, "}K\x01K\x02K\x03u."s,
        "\x80\x06N."s, "N\x94q\xff"s, "NN."s, "ctorch\nFloatStorage\n)R."s, "X\xff\xff\xff\xff"s, "\x8a\x10"s}) {
    EXPECT_CONTAINS(pickle_refusal(pickle), "is a broken pickle");
  }
  EXPECT_CONTAINS(pickle_refusal("}."), "holds no dictionary of tensors");
}

TEST_F(WeightsFiles, ATensorThatLeavesItsStorage) {
  for (const auto& [from, to] :
       {std::pair{"K\x02K\x03\x86", "K\x03K\x03\x86"}, std::pair{"K\x03K\x01\x86", "K\x04K\x01\x86"},
        std::pair{"K\x03K\x01\x86", "J\xff\xff\xff\xffK\x01\x86"}}) {
    std::string pickle = test::tensor_pickle("w");
    pickle.replace(pickle.find(from), std::strlen(from), to);
    EXPECT_CONTAINS(refusal(zip_archive({{"a/data.pkl", pickle}, {"a/data/0", std::string(24, '\0')}})),
                    "the tensor 'w' is not in its storage");
  }
  EXPECT_CONTAINS(refusal(zip_archive({{"a/data.pkl", test::tensor_pickle("w")}})), "is not in its storage");
}

/// Runs with at most that much more memory than now; an allocation for what a file claims would throw bad_alloc.
class MemoryLimit {
 public:
  explicit MemoryLimit(rlim_t more) {
    ::getrlimit(RLIMIT_DATA, &before_);
    std::ifstream statistics("/proc/self/statm");
    rlim_t total = 0, resident = 0, shared = 0, text = 0, library = 0, data = 0;
    statistics >> total >> resident >> shared >> text >> library >> data;
    const rlimit limit{data * 4096 + more, before_.rlim_max};
    ::setrlimit(RLIMIT_DATA, &limit);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_DATA, &before_); }

 private:
  rlimit before_{};
};

TEST_F(WeightsFiles, AZipBombIsRefusedWithoutUnpackingIt) {
  const MemoryLimit limit(64 << 20);
  std::string bomb = zip_archive({{"archive/data.pkl", std::string(1000, '\0'), true, uint64_t{1} << 40}});
  EXPECT_CONTAINS(refusal(bomb), "is a zip bomb: ");
  EXPECT_CONTAINS(refusal(zip_archive({{"archive/data.pkl", "N.", true, uint64_t{1} << 62},
                                       {"b", "N.", true, uint64_t{1} << 63},
                                       {"c", "N.", true, ~uint64_t{0} - 5}})),
                  "is a zip bomb");
  // Two names for the same bytes, as a bomb of overlapping entries has.
  std::string twins = zip_archive({{"archive/a", "same bytes"}, {"archive/b", "same bytes"}});
  const size_t second = twins.rfind("PK\x01\x02");
  std::memset(twins.data() + second + 42, 0, 4);
  EXPECT_CONTAINS(refusal(twins), "is a zip bomb: its entries 'archive/a' and 'archive/b' share bytes");
  // The directory says less than the entry holds, or more.
  for (const uint64_t claimed : {5000, 100}) {
    EXPECT_CONTAINS(refusal(zip_archive({{"archive/data.pkl", std::string(2000, '\0'), true, claimed}})),
                    "does not unpack to its");
  }
}

TEST_F(WeightsFiles, TruncatedArchives) {
  const std::string whole = torch_file("w");
  for (size_t size = 4; size < whole.size(); size += 7) {
    EXPECT_CONTAINS(refusal(std::string_view(whole).substr(0, size)), "is truncated: it is a zip archive without");
  }
  std::string changed = whole;
  changed[changed.find("archive/data/0") + 16] ^= 1;
  EXPECT_CONTAINS(refusal(changed), "another check sum");
}

TEST_F(WeightsFiles, ForeignFilesAreNamed) {
  const MemoryLimit limit(64 << 20);
  EXPECT_CONTAINS(refusal(""), "is empty");
  EXPECT_CONTAINS(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
                  "Git-LFS pointer");
  EXPECT_CONTAINS(refusal("<!DOCTYPE html><html><body>404</body></html>"), "HTML page");
  EXPECT_CONTAINS(refusal(std::string("\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 16)), "Python pickle");
  std::string header(64, ' ');
  const uint64_t huge = uint64_t{1} << 60;
  std::memcpy(header.data(), &huge, sizeof huge);
  EXPECT_CONTAINS(refusal(header, "model.safetensors"), "announce a header of 1152921504606846976 bytes");
  EXPECT_CONTAINS(refusal(zip_archive({{"word/document.xml", "<w/>"}})), "not of PyTorch: it has no data.pkl");
  EXPECT_CONTAINS(refusal(torch_file("fc.weight")),
                  "is not a checkpoint of difuse, and its 1 tensors have the names of no UNet");
  EXPECT_CONTAINS(refusal(zip_archive({{"a/data.pkl", "N."}, {"a/byteorder", "big"}})), "big-endian");
}

TEST_F(WeightsFiles, UnetCuHeaders) {
  std::array<int32_t, 256> header = {12345678, 1, 3, 32, 3, 8, 8, 1000};
  const auto bytes = [&] { return std::string(reinterpret_cast<const char*>(header.data()), sizeof header); };
  EXPECT_CONTAINS(refusal(bytes()), "is truncated: its header needs");
  EXPECT_CONTAINS(refusal(bytes().substr(0, 100)), "is truncated: 100 bytes, fewer than its header");
  header[3] = 1 << 30;
  EXPECT_CONTAINS(refusal(bytes()), "has a header of no model of unet.cu: model_channels is 1073741824");
  header[0] = 20240620;
  EXPECT_CONTAINS(refusal(bytes()), "holds images of unet.cu, not weights");
}

TEST_F(WeightsFiles, UnetCuDataIsReadAndChecked) {
  std::array<int32_t, 256> header = {20240620, 2, 3, 1, 2};
  std::vector<float> values;
  for (int i = 0; i < 12; ++i) values.push_back(static_cast<float>(i * 20) / 127.5f - 1);
  const auto bytes = [&] {
    std::string text(reinterpret_cast<const char*>(header.data()), sizeof header);
    return text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  const runtime::ImageSet set = runtime::read_unet_cu_data(write("a.bin", bytes()));
  EXPECT_EQ(set.count, 2);
  EXPECT_EQ(std::vector<int>(set.pixels.begin(), set.pixels.end()),
            (std::vector<int>{0, 40, 80, 20, 60, 100, 120, 160, 200, 140, 180, 220}));
  const auto refused = [&] { return error_of([&] { runtime::read_unet_cu_data(write("b.bin", bytes())); }); };
  values[3] = 2;
  EXPECT_CONTAINS(refused(), "its image 0 has the value 2");
  values.pop_back();
  EXPECT_CONTAINS(refused(), "is truncated: its header says 2 images of 1x2x3, and it has 44 bytes");
  header[1] = std::numeric_limits<int32_t>::max(), header[3] = header[4] = 1 << 14;
  EXPECT_CONTAINS(refused(), "is truncated");
  header[2] = 2;
  EXPECT_CONTAINS(refused(), "says 2 channels");
}

TEST_F(WeightsFiles, AnIndexCannotLeaveItsFolder) {
  test::write_file(folder_ / "config.json", R"({"_class_name": "UNet2DModel"})");
  const auto refused = [&](std::string_view index) {
    test::write_file(folder_ / "diffusion_pytorch_model.safetensors.index.json", index);
    return error_of([&] { TrainedModel::open(folder_.path(), "--checkpoint", {}); });
  };
  EXPECT_CONTAINS(refused(R"({"weight_map": {"a": "../secret.safetensors"}})"),
                  "names no file of its own folder for 'a'");
  EXPECT_CONTAINS(refused(R"({"weight_map": {"a": "missing.safetensors"}})"), "missing.safetensors");
  EXPECT_CONTAINS(refused("{"), "is not a JSON object");
  EXPECT_CONTAINS(refused("{}"), "has no 'weight_map'");
}

TEST_F(WeightsFiles, DiffusersKeysThatHaveNoCounterpart) {
  const auto refused = [&](std::string_view key, std::string_view value) {
    test::write_file(folder_ / "config.json", fmt::format(R"({{"_class_name": "UNet2DModel", "{}": {}}})", key, value));
    std::set<std::string> unknown;
    return error_of([&] { read_diffusers_config(folder_.path(), {}, unknown); });
  };
  EXPECT_CONTAINS(refused("act_fn", "\"gelu\""), "\"act_fn\": \"gelu\" is not supported");
  EXPECT_CONTAINS(refused("time_embedding_type", "\"fourier\""), "time_embedding_type");
  EXPECT_CONTAINS(refused("mid_block_scale_factor", "1.41"), "mid_block_scale_factor");
  EXPECT_CONTAINS(refused("down_block_types", R"(["SkipDownBlock2D", "DownBlock2D", "DownBlock2D", "DownBlock2D"])"),
                  "has 'SkipDownBlock2D', which is not supported");
  EXPECT_CONTAINS(refused("down_block_types", R"(["DownBlock2D"])"), "has not 4 entries");
  EXPECT_CONTAINS(refused("block_out_channels", "[8, -8, 8, 8]"), "is no list of widths");
  EXPECT_CONTAINS(refused("layers_per_block", "1e30"), "is of the wrong kind");
}

TEST_F(WeightsFiles, SchedulersOfDiffusers) {
  const auto read = [&](std::string_view text, const UNetConfig& unet = {}) {
    return read_diffusers_schedule(write("scheduler_config.json", fmt::format("{{{}}}", text)), unet);
  };
  const auto refused = [&](std::string_view text) { return error_of([&] { read(text); }); };
  EXPECT_EQ(read("").diffusion, DiffusionConfig());
  const DiffusersSchedule latent = read(
      R"("_class_name": "PNDMScheduler", "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012,
         "prediction_type": "v_prediction", "clip_sample": false)");
  EXPECT_EQ(latent.diffusion.schedule, NoiseSchedule::scaled_linear);
  EXPECT_EQ(latent.diffusion.prediction, Prediction::v);
  EXPECT_EQ(latent.diffusion.beta_start, 0.00085);
  EXPECT_CONTAINS(latent.note, "--clip none");
  // Betas are as they stand there, whatever the number of timesteps.
  EXPECT_NEAR(betas(read(R"("num_train_timesteps": 250)").diffusion).back(), 0.02, 1e-15);
  EXPECT_EQ(read(R"("beta_schedule": "squaredcos_cap_v2", "prediction_type": "sample")").diffusion.prediction,
            Prediction::x0);
  const DiffusionConfig edm = read(R"("_class_name": "EDMEulerScheduler", "sigma_data": 0.4)").diffusion;
  EXPECT_EQ(edm.process, Process::edm);
  EXPECT_EQ(edm.sigma_data, 0.4);
  EXPECT_CONTAINS(refused(R"("_class_name": "FlowMatchEulerDiscreteScheduler")"), "\"_class_name\": \"FlowMatch");
  EXPECT_CONTAINS(refused(R"("beta_schedule": "sigmoid")"), "\"beta_schedule\": \"sigmoid\" is not supported");
  EXPECT_CONTAINS(refused(R"("prediction_type": "flow")"), "\"prediction_type\": \"flow\" is not supported");
  EXPECT_CONTAINS(refused(R"("trained_betas": [0.1])"), "trained_betas");
  EXPECT_CONTAINS(refused(R"("rescale_betas_zero_snr": true)"), "rescale_betas_zero_snr");
  EXPECT_CONTAINS(refused(R"("beta_end": 2)"), "beta from");
  EXPECT_CONTAINS(refused(R"("num_train_timesteps": -1)"), "is of the wrong kind");
  EXPECT_CONTAINS(refused(R"("timestep_type": "continuous")"), "\"timestep_type\": \"continuous\" is not supported");
  EXPECT_CONTAINS(refused(R"("use_flow_sigmas": true)"), "use_flow_sigmas");
  EXPECT_CONTAINS(refused(R"("snr_shift_scale": 3.0)"), "snr_shift_scale");
  EXPECT_CONTAINS(refused(R"("label_dropout": 0.1)"), "0 classes");
}

TEST_F(WeightsFiles, HowSchedulersOfDiffusersDraw) {
  UNetConfig unet;
  const auto note = [&](const std::string& name, std::string_view more) {
    const std::string text = fmt::format(R"({{"_class_name": "{}Scheduler"{}}})", name, more);
    return read_diffusers_schedule(write("scheduler_config.json", text), unet).note;
  };
  const std::string begin = "its scheduler draws as difuse sample does with ";
  const auto linspace = [&](const char* name, const std::string& more) {
    return note(name, R"(, "timestep_spacing": "linspace")" + more);
  };
  EXPECT_EQ(linspace("DDPM", R"(, "variance_type": "fixed_small_log", "clip_sample_range": 1)"), "");
  // It has no key of the variance, and does not read it.
  EXPECT_EQ(linspace("DDIM", R"(, "variance_type": "fixed_large")"), begin + "--sampler ddim");
  EXPECT_EQ(linspace("DDPM", R"(, "variance_type": "fixed_large")"), begin + "--variance large");
  EXPECT_EQ(linspace("DDPM", R"(, "clip_sample": false)"), begin + "--clip none");
  // Those of the others that clip do so when asked.
  EXPECT_EQ(note("EulerDiscrete", R"(, "clip_sample": true)"), begin + "--sampler euler --spacing linear --clip none");
  EXPECT_EQ(note("HeunDiscrete", ""), begin + "--sampler heun --spacing linear --clip none");
  EXPECT_EQ(note("HeunDiscrete", R"(, "clip_sample": true, "use_karras_sigmas": true)"), begin + "--sampler heun");
  // Thresholds of at most sample_max_value, 1 unless said.
  EXPECT_EQ(linspace("DDPM", R"(, "thresholding": true)"), "");
  EXPECT_EQ(linspace("DDPM", R"(, "thresholding": true, "sample_max_value": 2, "dynamic_thresholding_ratio": 0.9)"),
            begin + "--clip dynamic --percentile 0.9");
  EXPECT_EQ(note("EDMEuler", R"(, "sigma_min": 0.002, "sigma_max": 80)"), begin + "--sampler euler");
  EXPECT_EQ(note("EDMEuler", R"(, "sigma_min": 0.01, "sigma_max": 40.5, "rho": 5)"),
            begin + "--sampler euler --sigma-min 0.01 --sigma-max 40.5 --rho 5");
  // The spacing that each has unless it says another, and what has no flag.
  EXPECT_EQ(note("DDPM", ""), begin + "--spacing leading");
  EXPECT_EQ(note("DDIM", R"(, "timestep_spacing": "trailing")"), begin + "--sampler ddim --spacing trailing");
  EXPECT_EQ(note("DDPM", R"(, "steps_offset": 1)"), "no spacing here is its own; not taken from it: steps_offset");
  EXPECT_EQ(note("DPMSolverMultistep", R"(, "use_karras_sigmas": true)"), begin + "--sampler dpm++2m --clip none");
  // As Python writes numbers, and as texts have them.
  EXPECT_EQ(note("DPMSolverMultistep", R"(, "use_karras_sigmas": true, "lambda_min_clipped": -Infinity)"),
            begin + "--sampler dpm++2m --clip none");
  EXPECT_EQ(linspace("DDPM", R"(, "_name": "\", NaN \\", "trained_betas": null)"), "");
  EXPECT_EQ(note("DPMSolverMultistep", R"(, "timestep_spacing": "linspace")"),
            begin + "--sampler dpm++2m --clip none; no spacing here is its own; not taken from it: timestep_spacing");
  EXPECT_EQ(note("DPMSolverMultistep", R"(, "solver_order": 3)"),
            begin + "--clip none; no sampler here is its DPMSolverMultistep; not taken from it: solver_order");
  EXPECT_EQ(note("PNDM", R"(, "skip_prk_steps": true, "set_alpha_to_one": false)"),
            begin + "--clip none; no sampler here is its PNDM; not taken from it: set_alpha_to_one, skip_prk_steps");
  EXPECT_CONTAINS(error_of([&] { note("DDPM", R"(, "variance_type": "learned_range")"); }), "gives a variance");
  for (const char* variance : {"learned", "fixed_large_log", "any"}) {
    EXPECT_CONTAINS(error_of([&] { note("DDPM", fmt::format(R"(, "variance_type": "{}")", variance)); }),
                    fmt::format("\"variance_type\": \"{}\" is not supported", variance));
  }
  EXPECT_CONTAINS(error_of([&] { note("DDIM", R"(, "clip_sample_range": 2)"); }), "\"clip_sample_range\": 2 is not");
  unet.learn_sigma = true;
  EXPECT_EQ(linspace("DDPM", R"(, "variance_type": "fixed_large")"), "");  // --variance is refused of such a model.
  EXPECT_EQ(linspace("DDPM", R"(, "variance_type": "learned_range")"), "");
}

TEST_F(WeightsFiles, APartThatDoesNotFitLeavesTheOthersInTheirPlaces) {
  const fs::path from = kForeignFolder / "diffusers_plain";
  const std::string attention = "mid_block.attentions.0.";
  const TensorFile plain = TensorFile::open(from / "diffusion_pytorch_model.safetensors");
  std::map<std::string, std::vector<float>> values;
  std::vector<runtime::TensorEntry> entries;
  for (const auto& [name, tensor] : plain.tensors()) {
    if (name == attention + "to_v.weight") continue;  // Missing alone.
    const bool shortened = name == attention + "to_q.bias";
    const float value = name == attention + "to_k.bias" ? 2.0f : name == attention + "to_v.bias" ? 3.0f : 1.0f;
    const std::vector<float>& kept = values[name] =
        std::vector<float>(shortened ? 5 : static_cast<size_t>(tensor.elements()), value);
    entries.push_back(
        {name, runtime::TensorDType::f32, shortened ? ir::Shape{5} : tensor.shape, std::as_bytes(std::span(kept))});
  }
  fs::copy(from / "config.json", folder_ / "config.json");
  runtime::write_safetensors(folder_ / "diffusion_pytorch_model.safetensors", {}, entries);
  WeightsOptions options;
  options.allow_partial = true;
  const TrainedModel model = TrainedModel::open(folder_.path(), "--checkpoint", options);
  const ParameterLayout layout = parameter_layout(model.config().unet);
  std::vector<std::string> report;
  const std::vector<float> flat = model.parameters(model.default_weights(), layout, &report);
  const std::string all = fmt::format("{}", fmt::join(report, "\n"));
  EXPECT_CONTAINS(all, "misshapen  " + attention + "to_q.bias [5]");
  EXPECT_CONTAINS(all, "missing    " + attention + "to_v.weight [");
  EXPECT_EQ(report.size(), 2u) << all;
  const auto spec = std::ranges::find(layout.specs(), "middle_block.1.qkv.bias", &ParameterSpec::name);
  ASSERT_NE(spec, layout.specs().end());
  const auto at = flat.begin() + layout.offsets()[static_cast<size_t>(spec - layout.specs().begin())];
  const int64_t width = spec->shape[0] / 3;
  EXPECT_EQ(std::vector<float>(at + width, at + 2 * width), std::vector<float>(static_cast<size_t>(width), 2.0f));
  EXPECT_EQ(std::vector<float>(at + 2 * width, at + 3 * width), std::vector<float>(static_cast<size_t>(width), 3.0f));
}

TEST_F(WeightsFiles, ASchedulerBesideTheUnetHoweverItIsNamed) {
  const std::filesystem::path unet = folder_ / "pipe" / "unet", scheduler = folder_ / "pipe" / "scheduler";
  std::filesystem::create_directories(unet);
  std::filesystem::create_directories(scheduler);
  test::write_file(scheduler / "scheduler_config.json", "{}");
  std::filesystem::create_directory_symlink(unet, folder_ / "link");
  for (const auto& path : {unet, unet / "", unet / ".", unet / ".." / "unet", folder_ / "link"}) {
    EXPECT_TRUE(std::filesystem::exists(find_diffusers_schedule(path))) << path;
  }
  EXPECT_EQ(find_diffusers_schedule(scheduler / ".."), std::filesystem::path());
}

TEST_F(WeightsFiles, SecondImagesAndVariancesByTheirChannels) {
  struct Row {
    int64_t in, out, image, second;
    bool learned;
  };
  for (const auto& [in, out, image, second, learned] :
       {Row{3, 3, 3, 0, false}, Row{3, 6, 3, 0, true}, Row{6, 3, 3, 3, false}, Row{6, 6, 3, 3, true},
        Row{1, 1, 1, 0, false}, Row{1, 2, 1, 0, true}, Row{2, 1, 1, 1, false}, Row{2, 2, 1, 1, true},
        Row{4, 4, 4, 0, false}, Row{4, 3, 3, 1, false}, Row{8, 4, 4, 4, false}, Row{8, 8, 4, 4, true}}) {
    UNetConfig config;
    std::set<std::string> unknown;
    infer_channels(config, in, out, unknown);
    EXPECT_EQ(config.image_channels, image) << in << " " << out;
    EXPECT_EQ(config.conditioning_channels, second) << in << " " << out;
    EXPECT_EQ(config.learn_sigma, learned) << in << " " << out;
    EXPECT_TRUE(unknown.empty());
  }
  UNetConfig config;
  std::set<std::string> unknown;
  infer_channels(config, std::nullopt, 3, unknown);
  EXPECT_TRUE(unknown.contains("image_channels") && unknown.contains("learn_sigma"));
}

TEST_F(WeightsFiles, HowMuchAModelEnlargesIsNotGuessed) {
  UNetConfig unet = find_preset("tiny").unet;
  unet.conditioning_channels = 1, unet.low_res_factor = 2;
  auto object = diffusers_config(unet);
  const auto read = [&](std::set<std::string>& unknown) {
    test::write_file(folder_ / "config.json", object.dump());
    return read_diffusers_config(folder_.path(), {}, unknown);
  };
  std::set<std::string> unknown;
  EXPECT_EQ(read(unknown).low_res_factor, 2);
  EXPECT_TRUE(unknown.empty());
  object.erase("low_res_factor");
  ForeignConfig described;
  described.unet = read(described.unknown);
  EXPECT_CONTAINS(error_of([&] { settle_foreign_config(folder_.path(), described, {}); }), "open are low_res_factor");
  object["low_res_factor"] = 1;
  EXPECT_CONTAINS(error_of([&] { read(unknown); }), "low_res_factor is 1");
  unet.conditioning_channels = 0;
  EXPECT_FALSE(diffusers_config(unet).contains("low_res_factor"));
}

TEST_F(WeightsFiles, WrittenSchedulersReadBack) {
  DiffusionConfig v{NoiseSchedule::cosine, 4000}, latent{NoiseSchedule::scaled_linear, 1000}, edm, guided;
  UNetConfig unet;
  unet.num_classes = 3;
  v.prediction = Prediction::v;
  latent.beta_start = 0.00085, latent.beta_end = 0.012, latent.prediction = Prediction::x0;
  edm.process = Process::edm, edm.sigma_data = 0.3, edm.label_dropout = 0.2;
  guided.label_dropout = 0.1;
  for (const DiffusionConfig& diffusion : {DiffusionConfig(), v, latent, edm, guided}) {
    const auto path = write("scheduler_config.json", diffusers_schedule(diffusion, false).dump());
    EXPECT_EQ(read_diffusers_schedule(path, unet).diffusion, diffusion);
  }
  v.rescale_timesteps = true;
  EXPECT_CONTAINS(error_of([&] { diffusers_schedule(v, false); }), "no rescaled timesteps");
  v.rescale_timesteps = false, v.unit_timesteps = true;
  EXPECT_CONTAINS(error_of([&] { diffusers_schedule(v, false); }), "no rescaled timesteps");
}

}  // namespace
}  // namespace difuse::models
