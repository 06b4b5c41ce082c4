#include "models/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "ir/error.h"
#include "models/low_res.h"
#include "runtime/executor.h"

namespace difuse::models {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

std::vector<int32_t> image_numbers(int64_t first, int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), static_cast<int32_t>(first));
  return numbers;
}

int64_t even_batch(int64_t count, int64_t most) {
  const int64_t batches = (count + most - 1) / most;
  return (count + batches - 1) / batches;
}

void require_finite(std::span<const int32_t> images, std::span<const float> pixels) {
  const auto bad = std::ranges::find_if(pixels, [](float value) { return !std::isfinite(value); });
  if (bad == pixels.end()) return;
  const size_t at = static_cast<size_t>(bad - pixels.begin()) / (pixels.size() / images.size());
  throw Error(fmt::format("image {} is not a number: the sampler or the model left what numbers can hold", images[at]),
              "draw with the sampler's usual noise levels, or with --clip clip; a model that gives this with those has "
              "diverged in training");
}

std::array<uint32_t, 2> seed_words(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

std::vector<int32_t> every_class(const UNetConfig& unet, const DiffusionConfig& diffusion) {
  return image_numbers(0, labelled_classes(diffusion, unet.num_classes));
}

Sampler::Sampler(const UNetConfig& unet, const DiffusionConfig& diffusion, const SamplerConfig& config,
                 const ir::Options& environment, const Backend& backend)
    : unet_(unet),
      diffusion_(diffusion),
      config_(config),
      rows_(sampler_rows(config, diffusion)),
      executor_(compile(build_sampling_step(unet, diffusion, config), environment, backend)) {}

Sampler::~Sampler() = default;

void Sampler::use(const SamplerConfig& config) {
  assert(same_graph(config, config_));
  rows_ = sampler_rows(config, diffusion_);
  config_ = config;
}

runtime::Image to_image(const UNetConfig& unet, std::span<const float> pixels) {
  runtime::Image image{static_cast<int>(unet.image_width), static_cast<int>(unet.image_height),
                       static_cast<int>(unet.image_channels), std::vector<uint8_t>(pixels.size())};
  std::ranges::transform(pixels, image.pixels.begin(), [](float x) {
    const float level = std::nearbyint((x + 1) * 127.5f);
    return static_cast<uint8_t>(level > 0 ? std::min(level, 255.0f) : 0);
  });
  return image;
}

std::vector<runtime::Image> to_images(const UNetConfig& unet, std::span<const float> pixels) {
  const auto each = static_cast<size_t>(unet.image_height * unet.image_width * unet.image_channels);
  std::vector<runtime::Image> images;
  for (size_t at = 0; at < pixels.size(); at += each) images.push_back(to_image(unet, pixels.subspan(at, each)));
  return images;
}

size_t Sampler::image_size() const {
  return static_cast<size_t>(unet_.image_height * unet_.image_width * unet_.image_channels);
}

std::vector<float> Sampler::draw_exact(const DrawRequest& request, const Continue& go_on, const Watch& watch) {
  executor_->write_state("params", std::as_bytes(request.parameters));
  const std::array<uint32_t, 2> words = seed_words(request.seed);
  executor_->write_state("seed", std::as_bytes(std::span(words)));
  const std::vector<float> table = sampler_table(rows_, config_.kind, diffusion_);
  executor_->write_state("table", std::as_bytes(std::span(table)));
  const auto batch = static_cast<size_t>(config_.batch);
  const size_t count = request.images.size(), each = image_size();
  const size_t each_low_res = takes_low_res(unet_) ? static_cast<size_t>(ir::element_count(low_res_shape(unet_))) : 0;
  std::vector<int32_t> index(batch), labels(batch);
  std::vector<uint8_t> low_res(batch * each_low_res);
  std::vector<float> x(batch * each), all;
  const size_t evaluations = (count + batch - 1) / batch * rows_.size();
  int64_t done = 0;
  for (size_t begin = 0; begin < count; begin += batch) {
    const size_t used = std::min(batch, count - begin);
    for (size_t i = 0; i < batch; ++i) index[i] = request.images[begin + i % used];
    executor_->write_input("index", std::as_bytes(std::span(index)));
    if (!request.classes.empty()) {
      std::ranges::transform(index, labels.begin(), [&](int32_t i) {
        return request.classes[static_cast<size_t>(i) % request.classes.size()];
      });
      executor_->write_input("label", std::as_bytes(std::span(labels)));
    }
    if (each_low_res > 0) {
      const size_t given = request.low_res.size() / each_low_res;
      assert(given > 0);
      for (size_t i = 0; i < batch; ++i) {
        const auto from = request.low_res.subspan(static_cast<size_t>(index[i]) % given * each_low_res, each_low_res);
        std::ranges::copy(from, low_res.begin() + static_cast<std::ptrdiff_t>(i * each_low_res));
      }
      executor_->write_input("low_res", std::as_bytes(std::span(low_res)));
    }
    executor_->write_state("position", bytes_of(int32_t{0}));
    const auto read = [&] {
      executor_->read_state("x", std::as_writable_bytes(std::span(x)));
      return std::span<const float>(x).first(used * each);
    };
    for (const SamplerRow& row : rows_) {
      executor_->run();
      if (watch) watch(begin, row, read());
      if (go_on && !go_on(++done, static_cast<int64_t>(evaluations))) return {};
    }
    const auto drawn = read();
    all.insert(all.end(), drawn.begin(), drawn.end());
  }
  return all;
}

std::vector<runtime::Image> Sampler::draw(const DrawRequest& request, const Continue& go_on, const Watch& watch) {
  return to_images(unet_, draw_exact(request, go_on, watch));
}

}  // namespace difuse::models
