#include "models/run/schedule_text.h"

#include <fmt/format.h>

#include "models/diffusion/sampler_rows.h"

namespace difuse::models {

std::string schedule_text(const SamplerConfig& config, const DiffusionConfig& diffusion) {
  const std::vector<SamplerRow> rows = sampler_rows(config, diffusion);
  std::string text = fmt::format("{} process, {} sampler, {} steps, {} spacing, {} evaluations of the network\n",
                                 to_string(diffusion.process), to_string(config.kind), config.steps,
                                 to_string(config.spacing), rows.size());
  text += "sigma: of the noise in x = x0 + sigma noise; signal: what the process multiplies these coordinates by\n";
  text += "x' = of_x x + of_x0 x0 + before_x x_before + before_x0 x0_before + noise z\n";
  text += fmt::format("{:>5} {:>11} {:>11} {:>11} {:>9} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}\n", "row", "time",
                      "sigma", "next sigma", "signal", "of_x", "of_x0", "before_x", "before_x0", "noise", "churn");
  const NoiseLevels levels(diffusion);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SamplerRow& r = rows[i];
    text += fmt::format(
        "{:>5} {:>11.6g} {:>11.6g} {:>11.6g} {:>9.4g} {:>11.6g} {:>11.6g} {:>11.6g} {:>11.6g} "
        "{:>11.6g} {:>11.6g}\n",
        i, r.time, r.sigma, r.next_sigma, levels.signal(r.sigma), r.of_x, r.of_x0, r.of_x_before, r.of_x0_before,
        r.noise, r.churn);
  }
  return text;
}

}  // namespace difuse::models
