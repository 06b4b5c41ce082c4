#include "models/train.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "ir/error.h"
#include "models/checkpoint.h"
#include "models/run/backend.h"
#include "models/run/interrupt.h"
#include "models/run/output_folder.h"
#include "models/run/progress.h"
#include "models/run/setup.h"
#include "models/run/units.h"
#include "models/sample.h"
#include "models/training_step.h"
#include "models/unet.h"
#include "runtime/atomic_file.h"
#include "runtime/compile.h"
#include "runtime/data/idx.h"
#include "runtime/data/loader.h"
#include "runtime/jsonl.h"

namespace difuse::models {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

namespace {

constexpr int kMostBadSteps = 10;  // In a row.
constexpr int64_t kGridImages = 16;
constexpr double kLossMemory = 0.98;  // The displayed loss is an exponential average of the steps' losses.

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

template <class T>
T read_scalar(const runtime::Executor& executor, std::string_view output) {
  T value{};
  executor.read_output(output, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

/// Mirrors the images that `flips` says, left to right.
void mirror(std::span<uint8_t> pixels, std::span<const uint8_t> flips, const runtime::ImageSet& images) {
  const auto channels = static_cast<size_t>(images.channels), row = static_cast<size_t>(images.width) * channels;
  const size_t image = row * static_cast<size_t>(images.height);
  for (size_t i = 0; i < flips.size(); ++i) {
    if (flips[i] == 0) continue;
    for (size_t begin = i * image; begin < (i + 1) * image; begin += row) {
      for (size_t left = begin, right = begin + row - channels; left < right; left += channels, right -= channels) {
        std::swap_ranges(&pixels[left], &pixels[left] + channels, &pixels[right]);
      }
    }
  }
}

/// What happened since the last line of the metrics.
struct Interval {
  int64_t steps = 0;
  int64_t finite_steps = 0;
  double loss = 0;  ///< Sum over the finite steps.
  double seconds = 0;
  double wait_seconds = 0;
};

class Trainer {
 public:
  Trainer(const TrainOptions& options, const ir::Options& environment, RunConfig config, ParameterLayout layout,
          runtime::ImageSet images, runtime::Cursor cursor, int64_t step, std::unique_ptr<runtime::Executor> executor)
      : options_(options),
        environment_(environment),
        config_(std::move(config)),
        layout_(std::move(layout)),
        loader_(std::move(images),
                {.batch = config_.training.batch, .seed = config_.run.seed, .flip = config_.run.flip, .start = cursor}),
        executor_(std::move(executor)),
        log_(options.resume ? runtime::JsonlLog::resume(options.out / "metrics.jsonl", step)
                            : runtime::JsonlLog::create(options.out / "metrics.jsonl")),
        progress_({options.steps, deadline()}),
        step_(step),
        pixels_(static_cast<size_t>(config_.training.batch * loader_.images().image_bytes())),
        flips_(config_.run.flip ? static_cast<size_t>(config_.training.batch) : 0) {
    std::vector<int32_t> index(static_cast<size_t>(config_.training.batch));
    std::iota(index.begin(), index.end(), 0);
    executor_->write_input("index", std::as_bytes(std::span(index)));
  }

  /// Runs to the end that the options ask for, or to a signal; returns it, or 0.
  int run(const InterruptGuard& interrupt) {
    int64_t saved_at = -1;
    const int64_t first = step_;
    while (!finished(first) && interrupt.signal() == 0) {
      run_step();
      if (step_ == first + 1 || step_ % options_.log_every == 0) {
        report(/*line=*/true);
      } else if (progress_.due()) {
        report(/*line=*/false);
      }
      if (options_.save_every > 0 && step_ % options_.save_every == 0) {
        save();
        saved_at = step_;
      }
      if (options_.sample_every > 0 && step_ % options_.sample_every == 0) draw_samples(interrupt);
    }
    report(/*line=*/true);
    progress_.finish();
    if (saved_at != step_) save();
    return interrupt.signal();
  }

  int64_t step() const { return step_; }

 private:
  std::optional<steady_clock::time_point> deadline() const {
    if (!options_.minutes) return std::nullopt;
    return options_.started + std::chrono::duration_cast<steady_clock::duration>(
                                  std::chrono::duration<double, std::ratio<60>>(*options_.minutes));
  }

  bool finished(int64_t first) const {
    if (options_.steps && step_ >= *options_.steps) return true;
    return options_.minutes && step_ > first && steady_clock::now() >= *deadline();
  }

  void run_step() {
    const auto began = steady_clock::now();
    const double waited = loader_.wait_seconds();
    loader_.next(pixels_, {}, flips_);
    if (config_.run.flip) mirror(pixels_, flips_, loader_.images());
    executor_->write_input("pixels", std::as_bytes(std::span(pixels_)));
    executor_->run();
    ++step_;
    loss_ = read_scalar<float>(*executor_, "loss");
    grad_norm_ = read_scalar<float>(*executor_, "grad_norm");
    const bool bad = read_scalar<float>(*executor_, "nonfinite") > 0;

    ++interval_.steps;
    interval_.seconds += seconds_since(began);
    interval_.wait_seconds += loader_.wait_seconds() - waited;
    if (bad || !std::isfinite(loss_)) {
      handle_bad_step();
      return;
    }
    bad_steps_ = 0;
    ++interval_.finite_steps;
    interval_.loss += loss_;
    smooth_loss_ = kLossMemory * smooth_loss_ + (1 - kLossMemory) * loss_;
    smooth_weight_ = kLossMemory * smooth_weight_ + (1 - kLossMemory);
  }

  /// The names of the parameters whose gradient is not finite.
  std::string bad_tensors() const {
    std::vector<float> gradient(static_cast<size_t>(layout_.size()));
    executor_->read_output("gradient", std::as_writable_bytes(std::span(gradient)));
    std::vector<std::string> names;
    for (size_t i = 0; i < layout_.specs().size(); ++i) {
      const auto begin = gradient.begin() + layout_.offsets()[i];
      if (!std::all_of(begin, begin + layout_.specs()[i].elements(), [](float g) { return std::isfinite(g); })) {
        names.push_back(layout_.specs()[i].name);
      }
    }
    constexpr size_t kMostNames = 5;
    if (names.empty()) return "no single tensor: the norm overflows";
    const size_t more = names.size() - std::min(names.size(), kMostNames);
    names.resize(names.size() - more);
    return fmt::format("{}{}", fmt::join(names, ", "), more > 0 ? fmt::format(" and {} more", more) : std::string());
  }

  void handle_bad_step() {
    ++bad_steps_;
    ++all_bad_steps_;
    const std::string names = bad_tensors();
    if (bad_steps_ < kMostBadSteps) {
      progress_.note(fmt::format("step {}: the gradient is not finite, the step is skipped ({} so far): {}", step_,
                                 all_bad_steps_, names));
      return;
    }
    const fs::path last = options_.out / "checkpoint.safetensors";
    std::error_code ignored;
    throw Error(fmt::format("the gradient was not finite in {} steps in a row, the last of them step {}: {}",
                            kMostBadSteps, step_, names),
                fmt::format("use a smaller --lr, or --clip-norm 1; {}",
                            fs::exists(last, ignored) ? fmt::format("the last good checkpoint is '{}'", last.string())
                                                      : std::string("no checkpoint was saved before")));
  }

  void report(bool line) {
    if (interval_.steps == 0) return;
    ProgressLine now;
    now.step = step_;
    now.loss = smooth_weight_ > 0 ? smooth_loss_ / smooth_weight_ : std::nan("");
    now.grad_norm = grad_norm_;
    now.step_seconds = interval_.seconds / static_cast<double>(interval_.steps);
    now.rate = static_cast<double>(config_.training.batch) / now.step_seconds;
    now.wait_share = interval_.wait_seconds / interval_.seconds;
    now.memory = peak_memory();
    progress_.show(now);
    if (!line) return;
    nlohmann::ordered_json metrics;
    metrics["step"] = step_;
    metrics["loss"] = interval_.loss / static_cast<double>(interval_.finite_steps);
    metrics["grad_norm"] = grad_norm_;
    metrics["lr"] = read_scalar<float>(*executor_, "lr");
    metrics["images_per_second"] = now.rate;
    metrics["seconds"] = seconds_since(options_.started);
    metrics["wait_share"] = now.wait_share;
    metrics["skipped_steps"] = all_bad_steps_;
    log_.append(metrics);
    interval_ = {};
  }

  StateValues states() const {
    StateValues values;
    const ir::Graph& graph = executor_->graph();
    for (const int id : graph.leaves(ir::Op::state)) {
      const ir::Type& type = graph.node(id).types[0];
      const std::string& name = graph.node(id).as<ir::LeafAttrs>().name;
      StateValue value{type, std::vector<std::byte>(static_cast<size_t>(type.bytes()))};
      executor_->read_state(name, value.bytes);
      values.emplace(name, std::move(value));
    }
    return values;
  }

  void save() { save_run(options_.out, config_, layout_, states(), loader_.cursor(), step_, options_.keep_last); }

  /// A grid of the same images every time, so that a run can be watched.
  void draw_samples(const InterruptGuard& interrupt) {
    if (!sampler_) {
      SamplerConfig sampling;
      sampling.steps = std::min(sampling.steps, config_.diffusion.timesteps);
      sampling.batch = kGridImages;
      sampler_ = std::make_unique<Sampler>(config_.unet, config_.diffusion, sampling, environment_, options_.threads);
    }
    std::vector<float> parameters(static_cast<size_t>(layout_.size()));
    executor_->read_state("ema", std::as_writable_bytes(std::span(parameters)));
    const auto images = sampler_->draw(parameters, config_.run.seed, 0, kGridImages,
                                       [&](int64_t, int64_t) { return interrupt.signal() == 0; });
    if (images.empty()) return;
    const fs::path path = options_.out / "samples" / fmt::format("step_{:06}.png", step_);
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    if (error) throw runtime::write_error(path, error.value());
    runtime::write_png(path, runtime::make_grid(images, grid_columns(kGridImages), 2));
    progress_.note(fmt::format("samples: {}", path.string()));
  }

  const TrainOptions& options_;
  const ir::Options& environment_;
  RunConfig config_;
  ParameterLayout layout_;
  runtime::Loader loader_;
  std::unique_ptr<runtime::Executor> executor_;
  std::unique_ptr<Sampler> sampler_;
  runtime::JsonlLog log_;
  Progress progress_;

  int64_t step_;
  std::vector<uint8_t> pixels_, flips_;
  float loss_ = 0, grad_norm_ = 0;
  double smooth_loss_ = 0, smooth_weight_ = 0;
  int bad_steps_ = 0;
  int64_t all_bad_steps_ = 0;
  Interval interval_;
};

void start_states(runtime::Executor& executor, const RunConfig& config, const ParameterLayout& layout) {
  const auto seed = seed_words(config.run.seed);
  const std::vector<float> parameters = initial_parameters(layout, seed);
  const auto bytes = std::as_bytes(std::span(parameters));
  executor.write_state("seed", std::as_bytes(std::span(seed)));
  executor.write_state("params", bytes);
  for (size_t i = 0; i < config.training.optimizer.ema_decays.size(); ++i) executor.write_state(ema_state(i), bytes);
}

}  // namespace

int train(const TrainOptions& options, const ir::Options& environment) {
  std::unique_ptr<Checkpoint> resumed;
  if (options.resume) {
    const bool own = options.resume->empty();
    resumed =
        std::make_unique<Checkpoint>(find_checkpoint(own ? options.out : *options.resume, own ? "--out" : "--resume"));
  }
  RunConfig config = settle_config(options, resumed.get());
  const fs::path resumed_path = resumed ? resumed->path() : fs::path();
  require_own_folder(options.out, resumed ? &resumed_path : nullptr);
  OutputFolder folder(options.out);
  remove_leftovers(options.out);
  runtime::ImageSet images = runtime::read_idx(options.data);
  check_data(images, options.data, config, resumed.get());
  config.run.images = images.count;
  ParameterLayout layout = parameter_layout(config.unet);
  ir::Graph graph = build_training_step(config.unet, config.diffusion, config.training);
  folder.require_space("checkpoint.safetensors", checkpoint_bytes(graph, layout));
  if (resumed) resumed->states(graph, layout);  // Finds what is missing before anything is compiled.
  const int64_t step = resumed ? resumed->step() : 0;

  fmt::print("{}\n", backend_line(options.threads));
  fmt::print("data: {}\n", images.summary);
  fmt::print("model: {}, {} parameters, batch {}, seed {}\n", config.run.model, format_count(layout.parameters()),
             config.training.batch, config.run.seed);
  if (resumed) fmt::print("resumed: {} at step {}\n", resumed->path().string(), step);
  if (!options.steps && !options.minutes) fmt::print("no --steps and no --minutes: training until Ctrl-C\n");
  std::fflush(stdout);

  const InterruptGuard interrupt;
  auto executor = runtime::compile(std::move(graph), environment, options.threads);
  fmt::print("memory: {} arena\n", format_bytes(static_cast<uint64_t>(executor->arena_bytes())));
  if (resumed) {
    for (const auto& [name, value] : resumed->states(executor->graph(), layout))
      executor->write_state(name, value.bytes);
  } else {
    start_states(*executor, config, layout);
  }
  const runtime::Cursor cursor = resumed ? resumed->cursor() : runtime::Cursor{};
  Trainer trainer(options, environment, std::move(config), std::move(layout), std::move(images), cursor, step,
                  std::move(executor));
  folder.keep();
  const int signal = trainer.run(interrupt);
  fmt::print("{} at step {}; resume with --resume\n", signal == 0 ? "finished" : "stopped by a signal", trainer.step());
  fmt::print("{}\n", (options.out / "checkpoint.safetensors").string());
  std::fflush(stdout);
  return signal == 0 ? 0 : 128 + signal;
}

}  // namespace difuse::models
