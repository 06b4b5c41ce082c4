#include "codegen/cuda/emit/attention/runs.h"

#include <cmath>
#include <set>
#include <vector>

#include "codegen/cuda/emit/attention/source.h"
#include "codegen/cuda/emit/epilogue.h"

namespace difuse::codegen::cuda {
namespace {

/// `run` is run i, `channel` where the head's columns begin.
std::string store_runs(const KernelSpec& spec, const AttentionProblem& p, const std::string& run,
                       const std::string& scale, const std::string& channel, int64_t pitch,
                       const std::vector<size_t>& outputs, const Parameters& parameters, std::set<int>& outers) {
  const EpilogueCode made = epilogue_code(spec, p.value, "(sum[l] * " + scale + ")", kRunLanes, parameters.operands(),
                                          row_coords(kRunLanes), "element", outputs);
  outers.insert(made.outers.begin(), made.outers.end());
  return filled(R"(#pragma unroll
  for (int i = 0; i < Block::run_count; ++i) {
    const Run<f32, 4> sum = $run;
    const int token = block.token(i), column = attention_wgmma::run_column(i);
    if (token >= $length || column >= $width) continue;
    const int channel = $channel + column;
    const index_t element = (image * $length + token) * $pitch + channel;
$statements  }
)",
                {{"run", run},
                 {"length", text(p.length)},
                 {"width", text(p.width)},
                 {"channel", channel},
                 {"pitch", text(pitch)},
                 {"statements", indented(made.text, 4)}});
}

}  // namespace

std::string store_value_runs(const KernelSpec& spec, const AttentionProblem& p, Parameters& parameters) {
  const ir::Value log_sum{p.value.node, 1};
  const std::vector<size_t> outs = outputs_of(spec, p.value), log_sums = outputs_of(spec, log_sum);
  std::set<int> outers;
  std::string store;
  if (!outs.empty()) {
    store = store_runs(spec, p, "block.value_run(i)", "1.0f", "head * " + text(p.width), p.channels(), outs, parameters,
                       outers);
  }
  if (!log_sums.empty()) {
    const EpilogueCode made =
        epilogue_code(spec, log_sum, "block.log_sum(half)", 1, parameters.operands(),
                      {{"image", Lanes::none}, {"head", Lanes::none}, {"token", Lanes::none}}, "element", log_sums);
    outers.insert(made.outers.begin(), made.outers.end());
    store += filled(R"(#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = block.token(half);
    if (token >= $length || !Block::is_first_of_row()) continue;
    const index_t element = (image * $heads + head) * $length + token;
$statements  }
)",
                    {{"statements", indented(made.text, 4)}, {"heads", text(p.heads)}, {"length", text(p.length)}});
  }
  parameters.add_outers(spec.body, outers);
  return store;
}

GradientStores store_gradient_runs(const KernelSpec& spec, const AttentionProblem& p, Parameters& parameters) {
  std::set<int> outers;
  const std::vector<size_t> outs = outputs_of(spec, p.value);
  const std::string scale = literal(1 / std::sqrt(static_cast<double>(p.width)));
  const auto store = [&](const std::string& run, const std::string& factor, const char* part) {
    return store_runs(spec, p, run, factor, first_channel(spec, p, part), 3 * p.channels(), outs, parameters, outers);
  };
  GradientStores stores{store("block.key_run(i)", scale, "1"), store("block.value_run(i)", "1.0f", "2"),
                        store("block.query_run(i)", scale, "0")};
  parameters.add_outers(spec.body, outers);
  return stores;
}

}  // namespace difuse::codegen::cuda
