#include "models/problem/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "ir/error.h"
#include "ir/text.h"
#include "models/diffusion/samplers.h"
#include "models/presets.h"
#include "models/training_step.h"
#include "models/unet.h"

namespace difuse::models {
namespace {

Problem read_graph(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored)) {
    wrong_usage(fmt::format("--graph '{}' cannot be read", path),
                "give a file with a graph in text form; DIFUSE_DUMP writes such files");
  }
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  try {
    return {ir::parse(content), std::filesystem::path(path).filename().string(), 0, ""};
  } catch (const Error& error) {
    // What stands there instead of a graph may be a whole file.
    const std::string text = error.what();
    constexpr size_t kLongest = 200;
    const size_t end = std::min(text.find('\n'), kLongest);
    wrong_usage(fmt::format("--graph '{}': {}{}", path, text.substr(0, end), end < text.size() ? " ..." : ""),
                error.remedy());
  }
}

Problem build_model(const ProblemChoice& choice) {
  const Preset preset = find_preset(*choice.model);
  const std::string mode = choice.mode.value_or("train");
  if (choice.sampler && mode != "sample") {
    wrong_usage(fmt::format("--sampler has no meaning with --mode {}", mode), "leave it out, or use --mode sample");
  }
  Problem problem;
  if (mode == "train") {
    TrainingConfig training = preset.training;
    training.batch = choice.batch.value_or(training.batch);
    problem.batch = training.batch;
    problem.graph = build_training_step(preset.unet, preset.diffusion, training);
  } else if (mode == "forward") {
    problem.batch = choice.batch.value_or(SamplerConfig{}.batch);
    problem.graph = build_forward(preset.unet, problem.batch);
  } else {
    std::optional<SamplerKind> kind;
    if (choice.sampler) kind = parse_sampler_kind(*choice.sampler);
    SamplerConfig sampler = default_sampler(preset.diffusion, kind);
    sampler.batch = choice.batch.value_or(sampler.batch);
    problem.batch = sampler.batch;
    problem.graph = build_sampling_step(preset.unet, preset.diffusion, sampler);
  }
  problem.title = fmt::format("{}, {}{}, batch {}", preset.name, mode,
                              choice.sampler ? fmt::format(" by {}", *choice.sampler) : "", problem.batch);
  problem.preset = preset.name;
  return problem;
}

}  // namespace

Problem load_problem(const ProblemChoice& choice, const char* command) {
  if (!choice.graph.empty()) {
    if (choice.model || choice.mode || choice.sampler || choice.batch) {
      wrong_usage("--graph says all about the step, so --model, --mode, --sampler and --batch have no meaning with it",
                  "leave them out, or leave --graph out");
    }
    return read_graph(choice.graph);
  }
  if (!choice.model) {
    std::vector<std::string> names;
    for (const Preset& preset : presets()) names.push_back(preset.name);
    wrong_usage(fmt::format("difuse {} needs --model or --graph", command),
                fmt::format("for example: difuse {} --model tiny --batch 2; the models are {}", command,
                            fmt::join(names, ", ")));
  }
  return build_model(choice);
}

}  // namespace difuse::models
