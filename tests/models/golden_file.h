// The files of tests/golden/: what a PyTorch model in float64 says of the UNet and of ten training steps. Their layout
// is written down in tests/golden/generate.py, which makes them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/reference.h"
#include "models/diffusion/ddpm.h"
#include "models/parameters.h"
#include "models/training_step.h"
#include "models/unet_config.h"
#include "runtime/safetensors.h"

namespace difuse::models {

/// "plain", "scale_shift_norm", ...: sorted.
std::vector<std::string> golden_names();

class GoldenFile {
 public:
  explicit GoldenFile(std::string_view name);

  const UNetConfig& unet() const { return unet_; }
  const DiffusionConfig& diffusion() const { return diffusion_; }
  const TrainingConfig& training() const { return training_; }
  const ParameterLayout& layout() const { return layout_; }

  /// A tensor's elements; Error when the file has none of that name or another shape.
  std::vector<double> values(const std::string& name, const ir::Shape& shape) const;
  /// The tensors "<prefix>/<parameter>" in the flat vector of the layout, whose gaps are zero. Error when a parameter
  /// is missing, has another shape, or the layout has no such parameter.
  std::vector<double> packed(const std::string& prefix) const;

 private:
  std::filesystem::path path_;
  runtime::SafetensorsReader file_;
  UNetConfig unet_;
  DiffusionConfig diffusion_;
  TrainingConfig training_;
  ParameterLayout layout_;
};

/// A forward and backward pass on given data. Inputs "x", "target", "timesteps", "index" and, where there are classes,
/// "label"; states "seed", "step", "params"; outputs "output", "loss" and "gradient" f32[P], named as in the files.
ir::Graph golden_model_graph(const GoldenFile& golden);

/// What the graph of golden_model_graph starts from: its inputs, or its states.
ir::TensorMap golden_model_leaves(const ir::Graph& graph, ir::Op op, const GoldenFile& golden);

/// The same for the graph of build_training_step: the inputs of one of the ten steps, and the states before the first.
ir::TensorMap golden_step_inputs(const ir::Graph& graph, const GoldenFile& golden, int64_t step);
ir::TensorMap golden_start_states(const ir::Graph& graph, const GoldenFile& golden);
inline constexpr int64_t kGoldenSteps = 10;

/// Expects max|actual - golden| of each parameter's slice to be within `tolerance` of what ir::relative_error divides
/// by; a difference names the parameter.
void expect_parameters_near(const ParameterLayout& layout, std::span<const double> actual,
                            std::span<const double> golden, double tolerance, std::string_view what);

/// The same for one tensor.
void expect_near(std::span<const double> actual, std::span<const double> golden, double tolerance,
                 std::string_view what);

}  // namespace difuse::models
