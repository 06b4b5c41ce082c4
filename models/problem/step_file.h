// One step on given numbers: its inputs and states from a safetensors file, what it makes of them into another.
//
// Tensors are called what the graph calls them and have its dtypes and shapes. Of a preset, whatever is a flat vector
// of parameters is stored parameter by parameter, as in checkpoints: "params/<name>", "gradient/<name>". Metadata and
// the order of tensors say nothing.
#pragma once

#include <filesystem>

#include "models/problem/problem.h"
#include "runtime/executor.h"

namespace difuse::models {

/// Fills every input and state of `executor`, which `problem` was compiled to. Error naming the tensor (wrong usage)
/// that is missing, has another dtype or shape, or belongs to nothing; nothing was written then.
void read_step(runtime::Executor& executor, const Problem& problem, const std::filesystem::path& path);

/// The outputs and the states that the step changes.
void write_step(const runtime::Executor& executor, const Problem& problem, const std::filesystem::path& path);

}  // namespace difuse::models
