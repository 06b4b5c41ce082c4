#include "models/cli/problem_flags.h"

#include "models/cli/flags.h"
#include "models/cli/names.h"
#include "models/cli/sampler_flags.h"

namespace difuse::models {

void add_problem(CLI::App& app, ProblemChoice& to) {
  add_choice(app, "--model", to.model, preset_names(), "Preset; difuse inspect NAME describes it");
  add_choice(app, "--mode", to.mode, {"train", "sample", "forward"},
             "A training step, a sampling step, or the UNet alone", "train");
  add_choice(app, "--sampler", to.sampler, sampler_names(), "Of --mode sample", "ddpm");
  add_whole(app, "--batch", to.batch, {1, 1 << 20}, "Images a step", "the preset's; 16 unless training");
  add_path(app, "--graph", to.graph, "A graph in text form instead of a model; DIFUSE_DUMP writes such files");
}

}  // namespace difuse::models
