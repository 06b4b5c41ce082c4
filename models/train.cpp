#include "models/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "ir/error.h"
#include "ir/flops.h"
#include "models/checkpoint.h"
#include "models/config/config_json.h"
#include "models/config/training_table.h"
#include "models/run/backend.h"
#include "models/run/console.h"
#include "models/run/data.h"
#include "models/run/interrupt.h"
#include "models/run/output_folder.h"
#include "models/run/setup.h"
#include "models/run/trainer.h"
#include "models/run/units.h"
#include "models/sampler.h"
#include "models/training_step.h"
#include "models/unet.h"
#include "models/weights/trained_model.h"
#include "runtime/compile.h"
#include "runtime/machine_memory.h"

namespace difuse::models {

namespace fs = std::filesystem;

namespace {

void start_states(runtime::Executor& executor, const RunConfig& config, std::span<const float> parameters) {
  const auto seed = seed_words(config.run.seed);
  const auto bytes = std::as_bytes(parameters);
  executor.write_state("seed", std::as_bytes(std::span(seed)));
  executor.write_state("params", bytes);
  for (size_t i = 0; i < config.training.optimizer.ema_decays.size(); ++i) executor.write_state(ema_state(i), bytes);
}

void print_model(const RunConfig& config, const ParameterLayout& layout) {
  const TrainingConfig& training = config.training;
  std::string batch = fmt::format("batch {}", step_images(training));
  if (training.accumulate > 1) batch += fmt::format(" ({} x {})", training.accumulate, training.batch);
  if (config.unet.num_classes > 0) batch += fmt::format(", {} classes", config.unet.num_classes);
  say("model: {}, {} parameters, {}, seed {}\n", config.run.model, format_count(layout.parameters()), batch,
      config.run.seed);
}

/// What a run goes on with that it did not have before.
void print_changes(const RunConfig& from, const RunConfig& to, int64_t step) {
  const OptimizerConfig &before = from.training.optimizer, &now = to.training.optimizer;
  const auto line = [step](const char* name, auto old_value, auto new_value) {
    if (old_value != new_value) say("{}: {} instead of {} from step {}\n", name, new_value, old_value, step);
  };
  line("lr", before.learning_rate, now.learning_rate);
  line("warmup", before.warmup, now.warmup);
  line("weight-decay", before.weight_decay, now.weight_decay);
  line("clip-norm", before.clip_norm, now.clip_norm);
  if (!from.run.dtype.empty()) line("dtype", from.run.dtype, to.run.dtype);
}

/// What a compiled step takes.
struct PlanSize {
  passes::MemoryPlan memory;
  int64_t kernels = 0;
  std::string scratch;
  int64_t machine_bytes = 0;  ///< Of this machine's own memory; none where a GPU computes.
};

std::string bytes_text(int64_t count) { return format_bytes(static_cast<uint64_t>(count)); }

PlanSize size_of_plan(ir::Graph graph, const ir::Options& environment, const Backend& backend) {
  runtime::CompileSettings settings;
  settings.precision = backend.precision;
  settings.prologues = backend.prologues;
  settings.log = &std::cerr;
  if (backend.target.is_cuda()) {
    // As the run has them: they decide about launches and memory, too.
    const codegen::TuningTable tuned = runtime::known_decisions(environment, *backend.target.cuda, settings.log);
    settings.tuned = &tuned;
    codegen::cuda::CudaPlan plan = runtime::plan_cuda(std::move(graph), environment, backend.target.spec(), settings);
    return {std::move(plan.memory), static_cast<int64_t>(plan.calls.size()), bytes_text(plan.workspace_bytes), 0};
  }
  const int threads = backend.target.threads;
  codegen::CpuPlan plan = runtime::plan_cpu(std::move(graph), environment, threads, settings);
  const int64_t scratch_bytes = plan.scratch_bytes * threads + plan.workspace_bytes;
  std::string scratch = fmt::format("{} ({} for each of {} threads, {} shared)", bytes_text(scratch_bytes),
                                    bytes_text(plan.scratch_bytes), threads, bytes_text(plan.workspace_bytes));
  const int64_t bytes = plan.memory.arena_bytes + scratch_bytes;
  return {std::move(plan.memory), static_cast<int64_t>(plan.kernels.size()), std::move(scratch), bytes};
}

/// What a run would take, from the plan alone.
void describe_run(const RunConfig& config, const ParameterLayout& layout, const runtime::ImageSet& images,
                  uint64_t checkpoint, ir::Graph graph, const ir::Options& environment, const Backend& backend) {
  const int64_t flops = ir::contraction_flops(graph) * config.training.accumulate;
  const PlanSize plan = size_of_plan(std::move(graph), environment, backend);
  say("parameters      {} in {} tensors\n", format_count(layout.parameters()), layout.specs().size());
  const size_t averages = config.training.optimizer.ema_decays.size();
  say("state           {} (parameters, two moments, {} average{}{}); a checkpoint takes {}\n",
      bytes_text(plan.memory.state_bytes), averages, averages == 1 ? "" : "s",
      config.training.accumulate > 1 ? ", accumulated gradient" : "", format_bytes(checkpoint));
  say("arena           {}, with the state; without reuse of memory it would be {}\n",
      bytes_text(plan.memory.arena_bytes), bytes_text(plan.memory.tensor_bytes));
  say("scratch         {}\n", plan.scratch);
  say("images          {} ({} of {})\n", bytes_text(images.count * images.image_bytes()), format_count(images.count),
      bytes_text(images.image_bytes()));
  say("operations      {:.3f} GFLOP a step in {} kernels, forward and backward (a multiply-add counts as two)\n",
      static_cast<double>(flops) / 1e9, plan.kernels * config.training.accumulate);
  if (plan.machine_bytes > 0) {
    const int64_t most = runtime::machine_memory();
    say("memory          {} in all, of this machine's {}{}\n", bytes_text(plan.machine_bytes), bytes_text(most),
        plan.machine_bytes > most ? ": it would be refused; use a smaller batch, image size or model" : "");
  }
  say("dry run: nothing was trained, nothing was written\n");
}

/// How often a run that begins after `step` may save.
int64_t most_saves(const TrainOptions& options, int64_t step) {
  if (options.save_every == 0) return 1;
  if (!options.steps) return std::numeric_limits<int64_t>::max();
  const int64_t regular = *options.steps / options.save_every - step / options.save_every;
  return std::max<int64_t>(1, regular + (*options.steps % options.save_every != 0 ? 1 : 0));
}

std::unique_ptr<Checkpoint> open_resumed(const TrainOptions& options) {
  if (!options.resume) return nullptr;
  const bool own = options.resume->empty();
  return std::make_unique<Checkpoint>(find_checkpoint(own ? options.out : *options.resume, own ? "--out" : "--resume"));
}

std::unique_ptr<TrainedModel> open_initial(const TrainOptions& options) {
  if (!options.init) return nullptr;
  const WeightsOptions weights{options.model, options.config, options.allow_partial};
  auto initial = std::make_unique<TrainedModel>(TrainedModel::open(*options.init, "--init", weights));
  for (const std::string& note : initial->notes()) say("{}\n", note);
  return initial;
}

/// The parameters of step 0.
std::vector<float> first_parameters(const RunConfig& config, const ParameterLayout& layout,
                                    const TrainedModel* initial) {
  if (initial == nullptr) return initial_parameters(layout, seed_words(config.run.seed));
  std::vector<std::string> report;
  std::vector<float> parameters;
  try {
    parameters = initial->parameters(initial->default_weights(), layout, &report);
  } catch (const Error& error) {
    if (config_to_json(config.unet) == config_to_json(initial->config().unet)) throw;
    throw Error(
        fmt::format("--init '{}' is another model than the one asked for: {}", initial->path().string(), error.what()),
        "leave out the flags and keys that change the model, or add --allow-partial to take what fits",
        error.exit_code());
  }
  for (const std::string& line : report) say("{}\n", line);
  return parameters;
}

int stopped(int signal) { return 128 + signal; }

/// That of --dtype, else the one that the resumed run computes in.
std::optional<passes::Precision> precision_of(const TrainOptions& options, const Checkpoint* resumed) {
  if (options.precision || resumed == nullptr) return options.precision;
  return passes::parse_precision(resumed->config().run.dtype);
}

int train_until_stopped(const TrainOptions& given, const ir::Options& environment, const InterruptGuard& interrupt) {
  TrainOptions options = given;
  std::optional<OutputFolder> folder;
  std::optional<RunLock> lock;  // Given up before the folder is.
  std::error_code ignored;
  if (!options.out.empty()) require_outside_data(options.out, options.data);
  if (!options.dry_run && fs::is_directory(options.out, ignored)) lock.emplace(options.out);
  const std::unique_ptr<Checkpoint> resumed = open_resumed(options);
  const std::unique_ptr<TrainedModel> initial = open_initial(options);
  RunConfig config = settle_config(options, resumed.get(), initial.get());
  const OptimizerConfig& optimizer = config.training.optimizer;
  if (optimizer.schedule == LearningRateSchedule::cosine && !options.steps) options.steps = optimizer.total_steps;
  if (!options.dry_run) {
    const fs::path resumed_path = resumed ? resumed->path() : fs::path();
    require_own_folder(options.out, resumed ? &resumed_path : nullptr);
    folder.emplace(options.out);
    if (!lock) {
      lock.emplace(options.out);
      require_own_folder(options.out, resumed ? &resumed_path : nullptr);  // Nobody wrote there in between.
    }
  }

  const Backend backend = open_backend(options.device, precision_of(options, resumed.get()), options.threads,
                                       environment, options.prologues);
  say("{}\n", backend_line(backend));
  config.run.dtype = passes::to_string(backend.precision);
  std::fflush(stdout);
  runtime::ImageSet images = load_data(options, config, resumed != nullptr, environment, interrupt);
  adopt_data(config, images, options, resumed.get());
  ParameterLayout layout = parameter_layout(config.unet);
  ir::Graph graph = build_training_step(config.unet, config.diffusion, config.training, config.run.flip);
  const int64_t step = resumed ? resumed->step() : 0;
  const uint64_t size = checkpoint_bytes(graph, config, layout);
  if (folder) {
    folder->require_space("checkpoint.safetensors", size,
                          checkpoints_to_come(options.out, most_saves(options, step), options.keep_last));
  }
  if (resumed) resumed->states(graph, layout);  // Finds what is missing before anything is compiled.
  std::vector<float> first;
  // A dry run draws none; those of --init are read, which says whether they fit.
  if (!resumed && (!options.dry_run || initial)) first = first_parameters(config, layout, initial.get());

  say("data: {}\n", images.summary);
  print_model(config, layout);
  if (initial) say("begins with {} ({} weights)\n", initial->path().string(), initial->default_weights());
  if (resumed) say("resumed: {} at step {}\n", resumed->path().string(), step);
  if (resumed && options.steps && *options.steps <= step) {
    say("the run already has {} steps: there is nothing to train up to {}\n", step, *options.steps);
  }
  if (resumed) print_changes(resumed->config(), config, step);
  if (options.dry_run) {
    describe_run(config, layout, images, size, std::move(graph), environment, backend);
    return 0;
  }
  if (!options.steps && !options.minutes) say("no --steps and no --minutes: training until Ctrl-C\n");
  std::fflush(stdout);

  interrupt.check();
  const auto stop = [&interrupt] { return interrupt.signal() != 0; };
  auto executor = compile(std::move(graph), environment, backend, {.stop = stop});
  say("memory: {} arena\n", format_bytes(static_cast<uint64_t>(executor->arena_bytes())));
  interrupt.check();
  if (resumed) {
    for (const auto& [name, value] : resumed->states(executor->graph(), layout))
      executor->write_state(name, value.bytes);
  } else {
    start_states(*executor, config, first);
    first = {};
  }
  const runtime::Cursor cursor = resumed ? resumed->cursor() : runtime::Cursor{};
  remove_leftovers(options.out);
  if (!resumed) set_earlier_files_aside(options.out);
  Trainer trainer(options, environment, backend, std::move(config), std::move(layout), std::move(images), cursor, step,
                  std::move(executor));
  folder->keep();
  const int signal = trainer.run(interrupt);
  say("{} at step {}; resume with --resume\n", signal == 0 ? "finished" : "stopped by a signal", trainer.step());
  say("{}\n", (options.out / "checkpoint.safetensors").string());
  std::fflush(stdout);
  return signal == 0 ? 0 : stopped(signal);
}

}  // namespace

int train(const TrainOptions& options, const ir::Options& environment) {
  const InterruptGuard interrupt;
  try {
    return train_until_stopped(options, environment, interrupt);
  } catch (const Interrupted& stop) {
    say("stopped by a signal before the first step; there is nothing to save\n");
    return stopped(stop.signal);
  }
}

}  // namespace difuse::models
