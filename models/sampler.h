// A compiled sampler: parameters in, images out.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ir/options.h"
#include "models/diffusion/samplers.h"
#include "models/run/backend.h"
#include "models/unet_config.h"
#include "runtime/png.h"

namespace difuse::runtime {
class Executor;
}

namespace difuse::models {

/// What to draw.
struct DrawRequest {
  std::span<const float> parameters;  ///< The flat vector of the model's layout.
  uint64_t seed = 0;
  std::vector<int32_t> images;   ///< Numbers: image i of a seed is always the same.
  std::vector<int32_t> classes;  ///< Image i has class classes[i % size]. Empty if and only if the model has none.
  /// Pixels [k, h, w, C]: image i enlarges number i % k (low_res.h). Empty if and only if the model enlarges none.
  std::span<const uint8_t> low_res{};
};

/// first, first + 1, ..., as a request's images.
std::vector<int32_t> image_numbers(int64_t first, int64_t count);

/// Images at a time for `count` of them in as few batches of at most `most` as there can be: batches of one size, so
/// that the last has next to nothing to fill up.
int64_t even_batch(int64_t count, int64_t most);

/// Error where a value is not finite, naming the first such image. `pixels` are those of `images`, one after the other.
void require_finite(std::span<const int32_t> images, std::span<const float> pixels);

/// Image i depends on the parameters, the seed, i, its class and what it enlarges alone: not on how many are drawn, in
/// what batches, or by how many threads (but for the device and the precision).
class Sampler {
 public:
  /// Compiles; throws Error (wrong usage) when a configuration does not pass its check.
  Sampler(const UNetConfig& unet, const DiffusionConfig& diffusion, const SamplerConfig& config,
          const ir::Options& environment, const Backend& backend);
  ~Sampler();

  /// Another number of steps, spacing or strength, without compiling anything: whatever same_graph() leaves free.
  /// Throws Error (wrong usage) when the configuration does not pass its check.
  void use(const SamplerConfig& config);

  /// Called after every evaluation of the network with those done (on a GPU: begun) and in all; false stops.
  using Continue = std::function<bool(int64_t done, int64_t of)>;
  /// Called with the first image of the batch in the request, the row of the table that was run (sampler_rows.h), and x
  /// after it of all images of the request in this batch. Reading x waits for the device.
  using Watch = std::function<void(size_t first, const SamplerRow& row, std::span<const float> x)>;

  /// The images as 8 bits a channel; empty when `go_on` stopped it. The last batch is filled up with repetitions, so
  /// that no other batch size has to be compiled.
  std::vector<runtime::Image> draw(const DrawRequest& request, const Continue& go_on = {}, const Watch& watch = {});
  /// The same before rounding, one image after the other.
  std::vector<float> draw_exact(const DrawRequest& request, const Continue& go_on = {}, const Watch& watch = {});

 private:
  size_t image_size() const;

  UNetConfig unet_;
  DiffusionConfig diffusion_;
  SamplerConfig config_;
  std::vector<SamplerRow> rows_;
  std::unique_ptr<runtime::Executor> executor_;
};

/// One image of numbers in [-1, 1] as 8 bits a channel; beyond is cut off, NaN becomes 0.
runtime::Image to_image(const UNetConfig& unet, std::span<const float> pixels);
/// The same of images that lie one after the other.
std::vector<runtime::Image> to_images(const UNetConfig& unet, std::span<const float> pixels);

/// The two words of a seed, low first, as the graphs take it.
std::array<uint32_t, 2> seed_words(uint64_t seed);

/// All classes that a model's images can have, in order; empty when it has none.
std::vector<int32_t> every_class(const UNetConfig& unet, const DiffusionConfig& diffusion);

}  // namespace difuse::models
