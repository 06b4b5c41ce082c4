#include "models/run/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "ir/error.h"
#include "models/config/training_table.h"
#include "models/low_res.h"
#include "models/run/data.h"
#include "models/run/units.h"
#include "models/sample.h"
#include "models/training_step.h"
#include "runtime/atomic_file.h"
#include "runtime/png.h"

namespace difuse::models {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

namespace {

constexpr int kMostBadSteps = 10;  // In a row.
constexpr int64_t kGridImages = 16;
constexpr double kLossMemory = 0.98;  // The displayed loss is an exponential average of the steps' losses.

template <class T>
T read_scalar(const runtime::Executor& executor, std::string_view output) {
  T value{};
  executor.read_output(output, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

template <class T>
T scalar(runtime::Fetch& fetch) {
  T value{};
  std::memcpy(&value, fetch.bytes().data(), sizeof(value));
  return value;
}

template <class T>
void write_input(runtime::Executor& executor, std::string_view name, const std::vector<T>& values) {
  executor.write_input(name, std::as_bytes(std::span(values)));
}

/// All states between two steps.
StateValues read_states(const runtime::Executor& executor) {
  StateValues values;
  const ir::Graph& graph = executor.graph();
  for (const int id : graph.leaves(ir::Op::state)) {
    const ir::Type& type = graph.node(id).types[0];
    const std::string& name = graph.node(id).as<ir::LeafAttrs>().name;
    if (is_within_step(name)) continue;
    StateValue value{type, std::vector<std::byte>(static_cast<size_t>(type.bytes()))};
    executor.read_state(name, value.bytes);
    values.emplace(name, std::move(value));
  }
  return values;
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, const ir::Options& environment, const Backend& backend, RunConfig config,
                 ParameterLayout layout, runtime::ImageSet images, runtime::Cursor cursor, int64_t step,
                 std::unique_ptr<runtime::Executor> executor)
    : options_(options),
      environment_(environment),
      backend_(backend),
      config_(std::move(config)),
      layout_(std::move(layout)),
      loader_(std::move(images),
              {.batch = config_.training.batch, .seed = config_.run.seed, .flip = config_.run.flip, .start = cursor}),
      executor_(std::move(executor)),
      log_(options.resume ? runtime::JsonlLog::resume(options.out / "metrics.jsonl", step)
                          : runtime::JsonlLog::create(options.out / "metrics.jsonl")),
      progress_({options.steps, deadline()}),
      step_(step),
      cursor_(cursor),
      pixels_(static_cast<size_t>(config_.training.batch * loader_.images().image_bytes())),
      flips_(config_.run.flip ? static_cast<size_t>(config_.training.batch) : 0),
      labels_(config_.unet.num_classes > 0 ? static_cast<size_t>(config_.training.batch) : 0),
      index_(static_cast<size_t>(config_.training.batch)) {}

int Trainer::run(const InterruptGuard& interrupt) {
  int64_t saved_at = -1;
  bool save_due = false;
  const int64_t first = step_;
  // What is only for people to read may fail, and what is trained is saved before that ends the run.
  const auto or_save = [&](const auto& work) {
    try {
      work();
    } catch (...) {
      try {
        if (bad_steps_ == 0 && saved_at != step_) save();
      } catch (const std::exception&) {  // The first failure is the one to tell.
      }
      throw;
    }
  };
  while (!finished(first) && interrupt.signal() == 0) {
    run_step();
    if (step_ == first + 1 || step_ % options_.log_every == 0) {
      or_save([&] { report(/*line=*/true); });
    } else if (progress_.due()) {
      report(/*line=*/false);
    }
    // Nothing is saved while steps are being skipped: what led there must not replace a good checkpoint.
    save_due = save_due || (options_.save_every > 0 && step_ % options_.save_every == 0);
    if (save_due && bad_steps_ == 0) {
      save();
      saved_at = step_;
      save_due = false;
    }
    if (options_.sample_every > 0 && step_ % options_.sample_every == 0) {
      or_save([&] { draw_samples(interrupt); });
    }
  }
  or_save([&] { report(/*line=*/true); });
  progress_.finish();
  if (bad_steps_ > 0) {
    throw Error(fmt::format("the run ends at step {} with {} step{} skipped in a row, because the gradient is not "
                            "finite; nothing was saved since",
                            step_, bad_steps_, bad_steps_ == 1 ? "" : "s"),
                divergence_remedy());
  }
  if (saved_at != step_) save();
  return interrupt.signal();
}

std::optional<steady_clock::time_point> Trainer::deadline() const {
  if (!options_.minutes) return std::nullopt;
  return options_.started + std::chrono::duration_cast<steady_clock::duration>(
                                std::chrono::duration<double, std::ratio<60>>(*options_.minutes));
}

bool Trainer::finished(int64_t first) const {
  return (options_.steps && step_ >= *options_.steps) || (step_ > first && out_of_time());
}

bool Trainer::out_of_time() const { return options_.minutes && steady_clock::now() >= *deadline(); }

void Trainer::give_inputs(int64_t micro) {
  loader_.next(pixels_, labels_, flips_);
  // An image's noise hangs on its place in the whole batch.
  std::iota(index_.begin(), index_.end(), static_cast<int32_t>(micro * config_.training.batch));
  write_input(*executor_, "pixels", pixels_);
  write_input(*executor_, "index", index_);
  if (!labels_.empty()) write_input(*executor_, "label", labels_);
  if (!flips_.empty()) write_input(*executor_, "flip", flips_);
}

/// The host reads a step's results before it starts the next one. What it does besides (the next batch, its upload) it
/// does while a GPU computes.
void Trainer::run_step() {
  const auto began = steady_clock::now();
  const double waited = loader_.wait_seconds();
  const int64_t runs = config_.training.accumulate;
  std::vector<std::unique_ptr<runtime::Fetch>> losses;
  for (int64_t micro = 0; micro < runs; ++micro) {
    if (!inputs_given_) give_inputs(micro);
    inputs_given_ = false;
    executor_->run();
    losses.push_back(executor_->fetch_output("loss"));
  }
  const auto grad_norm = executor_->fetch_output("grad_norm"), nonfinite = executor_->fetch_output("nonfinite");
  cursor_ = loader_.cursor();
  if (!options_.steps || step_ + 1 < *options_.steps) {
    give_inputs(0);
    inputs_given_ = true;
  }
  loss_ = 0;
  for (const auto& loss : losses) loss_ += scalar<float>(*loss) / static_cast<double>(runs);
  ++step_;
  grad_norm_ = scalar<float>(*grad_norm);
  const bool bad = scalar<float>(*nonfinite) > 0;

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
std::string Trainer::bad_tensors() const {
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

void Trainer::handle_bad_step() {
  ++bad_steps_;
  ++all_bad_steps_;
  const std::string names = bad_tensors();
  if (bad_steps_ < kMostBadSteps) {
    progress_.note(fmt::format("step {}: the gradient is not finite, the step is skipped ({} so far): {}", step_,
                               all_bad_steps_, names));
    return;
  }
  throw Error(fmt::format("the gradient was not finite in {} steps in a row, the last of them step {}: {}",
                          kMostBadSteps, step_, names),
              divergence_remedy());
}

std::string Trainer::divergence_remedy() const {
  const fs::path last = options_.out / "checkpoint.safetensors";
  std::error_code ignored;
  if (!fs::exists(last, ignored)) return "no checkpoint was saved before; use a smaller --lr, or --clip-norm 1";
  return fmt::format(
      "the last good checkpoint '{}' is kept; go on from there with --resume and a smaller --lr, or --clip-norm 1",
      last.string());
}

void Trainer::report(bool line) {
  if (interval_.steps == 0) return;
  ProgressLine now;
  now.step = step_;
  now.loss = smooth_weight_ > 0 ? smooth_loss_ / smooth_weight_ : std::nan("");
  now.grad_norm = grad_norm_;
  now.step_seconds = interval_.seconds / static_cast<double>(interval_.steps);
  now.rate = static_cast<double>(step_images(config_.training)) / now.step_seconds;
  now.wait_share = interval_.wait_seconds / interval_.seconds;
  now.memory = backend_.target.is_cuda() ? executor_->arena_bytes() : peak_memory();
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

void Trainer::save() {
  save_run(options_.out, config_, layout_, read_states(*executor_), cursor_, step_, options_.keep_last);
}

/// A grid of the same images every time, so that a run can be watched. One that is not ready when the time is up is
/// given up: what --minutes says is for training.
void Trainer::draw_samples(const InterruptGuard& interrupt) {
  if (out_of_time()) return;
  if (!sampler_) {
    SamplerConfig sampling = default_sampler(config_.diffusion);
    sampling.batch = std::min(kGridImages, config_.training.batch);  // What memory is known to hold.
    sampler_ = std::make_unique<Sampler>(config_.unet, config_.diffusion, sampling, environment_, backend_);
  }
  std::vector<float> parameters(static_cast<size_t>(layout_.size()));
  const bool averaged = !config_.training.optimizer.ema_decays.empty();
  executor_->read_state(averaged ? "ema" : "params", std::as_writable_bytes(std::span(parameters)));
  std::vector<uint8_t> low_res;
  std::vector<int32_t> classes = every_class(config_.unet, config_.diffusion);
  if (takes_low_res(config_.unet)) {
    const runtime::ImageSet& data = loader_.images();
    const int64_t count = std::min(kGridImages, data.count);
    low_res = low_res_of(data, config_.unet, count);
    if (!classes.empty()) classes.assign(data.labels.begin(), data.labels.begin() + count);  // What they show.
  }
  const auto images = sampler_->draw({parameters, config_.run.seed, image_numbers(0, kGridImages), classes, low_res},
                                     [&](int64_t, int64_t) { return interrupt.signal() == 0 && !out_of_time(); });
  if (images.empty()) return;
  const fs::path path = options_.out / "samples" / fmt::format("step_{:06}.png", step_);
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) throw runtime::write_error(path, error.value());
  runtime::write_png(path, runtime::make_grid(images, grid_columns(kGridImages), 2));
  progress_.note(fmt::format("samples: {}", path.string()));
}

}  // namespace difuse::models
