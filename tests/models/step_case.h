// A training step at some point of a training, and what it should give.
#pragma once

#include "ir/reference.h"
#include "models/parameters.h"
#include "models/training_step.h"
#include "runtime/target.h"
#include "tests/support/backend/cpu_run.h"

namespace difuse::models {

struct StepCase {
  ParameterLayout layout;
  ir::Graph graph;
  ir::TensorMap inputs, states;
};

/// A step in the middle of a training: every parameter, moment and average is non-zero, so that no update hangs on the
/// sign of a gradient that is zero but for rounding. States of a step under way are zero.
StepCase mid_training_step(const UNetConfig& unet, const DiffusionConfig& diffusion, const TrainingConfig& training);
/// The same of a preset, with another batch.
StepCase mid_training_step(const char* model, int64_t batch);

/// Images [first, first + count) of a batch's inputs.
ir::TensorMap images_of(const ir::TensorMap& inputs, int64_t first, int64_t count);

/// Expects one step in f32, fused and unfused, within `tolerance` of the reference: scalars, gradient, parameters,
/// moments, average.
void expect_agrees(const StepCase& step, const runtime::Target& target, double tolerance);
/// The same on the CPU backend.
void expect_cpu_agrees(const StepCase& step, double tolerance);

}  // namespace difuse::models
