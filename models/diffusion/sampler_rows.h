// A sampler as a table of numbers, one row per evaluation of the network, in the coordinates of noise_levels.h. Every
// sampler is the same rule, with some of its numbers zero:
//
//   x    = x + churn z                           noise before a step (Karras et al.)
//   x0   = skip x + out F(in x; time), clipped   the network's image
//   x'   = of_x x + of_x0 x0 + of_x_before x_before + of_x0_before x0_before + noise z
//
// where x_before and x0_before are x and x0 of the evaluation before: what a second stage or a multistep method needs.
// The last row's x' is the image.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/diffusion/noise_levels.h"
#include "models/diffusion/sampler_config.h"

namespace difuse::models {

struct SamplerRow {
  double sigma = 0, next_sigma = 0;  ///< Of x, with its churn, and of x'. Not read by the graph.

  double time = 0, in = 1, skip = 1, out = 0;
  double start = 0;  ///< Row 0: x is start z.
  double churn = 0;
  double of_x = 0, of_x0 = 0, of_x_before = 0, of_x0_before = 0;
  double noise = 0;
  /// Range of a learned variance of x' (of the posterior; of beta). It is in place of noise where that is not 0.
  double least_log_variance = 0, most_log_variance = 0;
  double guidance = 1;
};

/// The columns of the table that the graph reads, in this order.
inline constexpr std::array kColumns = {&SamplerRow::time,
                                        &SamplerRow::in,
                                        &SamplerRow::skip,
                                        &SamplerRow::out,
                                        &SamplerRow::start,
                                        &SamplerRow::churn,
                                        &SamplerRow::of_x,
                                        &SamplerRow::of_x0,
                                        &SamplerRow::of_x_before,
                                        &SamplerRow::of_x0_before,
                                        &SamplerRow::noise,
                                        &SamplerRow::least_log_variance,
                                        &SamplerRow::most_log_variance,
                                        &SamplerRow::guidance};

/// The visited noise levels, decreasing; the image, at 0, comes after the last.
std::vector<double> visited_sigmas(const SamplerConfig& config, const DiffusionConfig& diffusion);

/// evaluations(kind, steps) rows. Throws Error (wrong usage) when the configurations do not pass their checks.
std::vector<SamplerRow> sampler_rows(const SamplerConfig& config, const DiffusionConfig& diffusion);

/// Rows of the graph's table: those of as many steps as the process has timesteps.
int64_t table_rows(SamplerKind kind, const DiffusionConfig& diffusion);
/// f32 [table_rows, kColumns.size()], zero after the rows.
std::vector<float> sampler_table(const std::vector<SamplerRow>& rows, SamplerKind kind,
                                 const DiffusionConfig& diffusion);

}  // namespace difuse::models
