// The loop itself: batches in, steps, and what is written between them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoint.h"
#include "models/run/interrupt.h"
#include "models/run/progress.h"
#include "models/sampler.h"
#include "models/train.h"
#include "runtime/data/loader.h"
#include "runtime/executor.h"
#include "runtime/jsonl.h"

namespace difuse::models {

class Trainer {
 public:
  /// `executor` runs the training step of `config` and holds the states after `step` steps; `cursor` is where the data
  /// goes on. `options`, `environment` and `backend` must outlive the trainer.
  Trainer(const TrainOptions& options, const ir::Options& environment, const Backend& backend, RunConfig config,
          ParameterLayout layout, runtime::ImageSet images, runtime::Cursor cursor, int64_t step,
          std::unique_ptr<runtime::Executor> executor);

  /// Runs to the end that the options ask for, or to a signal, and saves; returns the signal, or 0. Error when the
  /// gradient stays not finite, or when something cannot be written.
  int run(const InterruptGuard& interrupt);

  int64_t step() const { return step_; }

 private:
  /// What happened since the last line of the metrics.
  struct Interval {
    int64_t steps = 0;
    int64_t finite_steps = 0;
    double loss = 0;  ///< Sum over the finite steps.
    double seconds = 0;
    double wait_seconds = 0;
  };

  std::optional<std::chrono::steady_clock::time_point> deadline() const;
  bool finished(int64_t first) const;
  bool out_of_time() const;
  void run_step();
  /// Hands the inputs of a step's run number `micro` to the device, which may still be at the run before.
  void give_inputs(int64_t micro);
  std::string bad_tensors() const;
  void handle_bad_step();
  /// What to do about gradients that stay not finite.
  std::string divergence_remedy() const;
  void report(bool line);
  void save();
  void draw_samples(const InterruptGuard& interrupt);

  const TrainOptions& options_;
  const ir::Options& environment_;
  const Backend& backend_;
  RunConfig config_;
  ParameterLayout layout_;
  runtime::Loader loader_;
  std::unique_ptr<runtime::Executor> executor_;
  std::unique_ptr<Sampler> sampler_;
  runtime::JsonlLog log_;
  Progress progress_;

  int64_t step_;
  runtime::Cursor cursor_;     ///< Of the data, after `step_` steps.
  bool inputs_given_ = false;  ///< Those of the next step.
  std::vector<uint8_t> pixels_, flips_;
  std::vector<int32_t> labels_, index_;
  double loss_ = 0;
  float grad_norm_ = 0;
  double smooth_loss_ = 0, smooth_weight_ = 0;
  int bad_steps_ = 0;
  int64_t all_bad_steps_ = 0;
  Interval interval_;
};

}  // namespace difuse::models
