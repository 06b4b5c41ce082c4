// Training of a learned variance (Nichol and Dhariwal, "Improved Denoising Diffusion Probabilistic Models", 2021,
// section 3.1): beside the noise, the model says where between two bounds the log variance of a reverse step lies, and
// the variational bound teaches it that.
//
// The lower bound is the variance of the posterior q(x_{t-1} | x_t, x_0), the upper one is beta_t. Everything here is
// in units of the posterior's standard deviation, so that no two nearly equal images are subtracted: with error =
// predicted noise - noise, the model's mean is `distance` = error * beta_t / sqrt(alpha_t (1 - alpha_bar_t) variance_t)
// such units away from the posterior's, and with share in [0, 1] (the model may leave it) the model's log variance is
// that of the posterior plus excess = share * log(beta_t / variance_t).
#pragma once

#include <vector>

#include "ir/builder.h"
#include "models/diffusion/diffusion_config.h"

namespace difuse::models {

/// Per timestep, in double. At t = 0, where the posterior has no variance, that of t = 1 stands in, as in
/// guided-diffusion.
struct LearnedVarianceTables {
  std::vector<double> log_range;  ///< log(beta_t / variance_t)
  std::vector<double> distance;   ///< distance / error
  double half_bin = 0;            ///< Half a step between pixel values at t = 0.
};
/// Throws Error (wrong usage) for a process without a variance to learn (check_model).
LearnedVarianceTables learned_variance_tables(const DiffusionConfig& diffusion);

struct VariationalBound {
  ir::Value bits;      ///< f32 [N, H, W, C]: each element's share of the term that belongs to t, in bits.
  ir::Value distance;  ///< f32 [N, H, W, C]. To be held in the gradient: the bound does not teach the mean.
};

/// The term of the variational bound: for t > 0 the divergence of the model's step from the posterior; for t = 0 the
/// negative log likelihood of the pixels x0 (in [-1, 1], 256 values), whose Gaussian's distribution function is
/// approximated by (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2, and likelihoods by no less than 1e-12.
/// `error` and `output` f32 [N, H, W, C], t i32 [N]; output -1 is the lower bound of the variance, 1 the upper.
VariationalBound variational_bound(ir::Builder& build, const DiffusionConfig& diffusion, ir::Value x0, ir::Value error,
                                   ir::Value output, ir::Value t);

}  // namespace difuse::models
