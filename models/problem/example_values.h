// Values with which a step that has neither data nor a checkpoint can run.
#pragma once

#include <cstdint>

#include "models/problem/problem.h"
#include "runtime/executor.h"

namespace difuse::models {

/// Fills every input and state, the same way for the same seed.
///
/// A preset's step is put into the middle of a training: every parameter, moment and average is non-zero (layers that
/// start at zero would hide what is behind them), gaps of packed vectors are zero. For other graphs: floats of inputs
/// are near 0, those of states in [0.1, 1], integers in 0 .. 3.
void write_example_values(runtime::Executor& executor, const Problem& problem, uint64_t seed = 1);

}  // namespace difuse::models
