#include "models/run/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "ir/error.h"
#include "models/low_res.h"
#include "models/run/console.h"
#include "models/run/count_progress.h"
#include "models/run/units.h"

namespace difuse::models {

namespace fs = std::filesystem;

namespace {

runtime::LoadReport print_report(CountProgress& progress, const InterruptGuard* interrupt) {
  return {[](std::string_view line) {
            say("{}\n", line);
            std::fflush(stdout);
          },
          [](std::string_view line) {
            std::fflush(stdout);
            complain("{}\n", line);
          },
          [&progress, interrupt](int64_t done, int64_t total) {
            if (interrupt != nullptr) interrupt->check();
            progress.show(done, total);
          }};
}

/// "0: 5923, 1: 6742, ...", shortened.
void print_labels(const runtime::ImageSet& images) {
  const std::vector<int64_t> counts = runtime::class_counts(images);
  constexpr size_t kShown = 50;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, counts.size()); ++i) {
    text += fmt::format("{}{}: {}", i > 0 ? ", " : "", i, format_count(counts[i]));
  }
  if (counts.size() > kShown) text += fmt::format(" and {} more", counts.size() - kShown);
  say("labels: {}\n", text);
}

/// load_images() of a path that the user gave with `flag`, which every Error names.
runtime::ImageSet load_given(std::string_view flag, const fs::path& path, const runtime::LoadSettings& settings,
                             const runtime::LoadReport& report) {
  try {
    return runtime::load_images(path, settings, report);
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (message.starts_with("--")) throw;  // It names one of its own.
    const bool path_first = message.starts_with(fmt::format("'{}'", path.string()));
    throw Error(fmt::format("{}{} {}", flag, path_first ? "" : ":", message), error.remedy(), error.exit_code());
  }
}

}  // namespace

fs::path default_data_cache(const ir::Options& environment) {
  if (!environment.cache.empty()) return fs::path(environment.cache) / "images";
  if (!environment.user_cache.empty()) return fs::path(environment.user_cache) / "difuse" / "images";
  return {};
}

runtime::ImageSet load_data(const TrainOptions& options, const RunConfig& config, bool resumed,
                            const ir::Options& environment, const InterruptGuard& interrupt) {
  runtime::LoadSettings settings;
  settings.size = {static_cast<int>(config.unet.image_height), static_cast<int>(config.unet.image_width)};
  settings.channels = static_cast<int>(config.unet.image_channels);
  settings.crop = config.run.crop;
  settings.on_bad_image = config.run.skip_bad_images ? runtime::OnBadImage::skip : runtime::OnBadImage::error;
  settings.class_from_folder = config.run.class_from_folder;
  settings.idx_keeps_size = !options.image_size && !resumed;
  settings.idx_keeps_channels = !options.channels && !resumed;
  settings.look_only = options.dry_run;
  settings.threads = options.threads;
  settings.cache_folder = options.data_cache.value_or(default_data_cache(environment));
  CountProgress progress("decoding", "files");
  runtime::ImageSet images = load_given("--data", options.data, settings, print_report(progress, &interrupt));
  if (config.unet.num_classes > 0 && images.class_names.empty() && !images.labels.empty()) print_labels(images);
  return images;
}

std::vector<uint8_t> load_low_res(const fs::path& path, const UNetConfig& unet, int threads,
                                  const ir::Options& environment) {
  const ir::Shape shape = low_res_shape(unet);
  runtime::LoadSettings settings;
  settings.size = {static_cast<int>(shape[0]), static_cast<int>(shape[1])};
  settings.channels = static_cast<int>(shape[2]);
  settings.threads = threads;
  settings.cache_folder = default_data_cache(environment);
  settings.can_change = false;
  CountProgress progress("decoding", "files");
  const runtime::ImageSet images = load_given("--low-res", path, settings, print_report(progress, nullptr));
  say("low-res: {}\n", images.summary);
  return {images.pixels.begin(), images.pixels.end()};
}

std::vector<uint8_t> low_res_of(const runtime::ImageSet& images, const UNetConfig& unet, int64_t count) {
  const ir::Shape shape = low_res_shape(unet);
  const runtime::ImageSize size{static_cast<int>(shape[0]), static_cast<int>(shape[1])};
  return runtime::fit_pixels(images, std::min(count, images.count), size, images.channels, runtime::Crop::none, {});
}

void describe_data(const fs::path& path) {
  runtime::LoadSettings settings;
  settings.on_bad_image = runtime::OnBadImage::skip;
  settings.look_only = true;
  CountProgress progress("decoding", "files");
  const runtime::ImageSet images = runtime::load_images(path, settings, print_report(progress, nullptr));
  say("summary         {}\n", images.summary);
  if (!images.labels.empty()) print_labels(images);
}

}  // namespace difuse::models
