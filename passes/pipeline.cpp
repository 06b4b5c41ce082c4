#include "passes/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "ir/error.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/canonicalize.h"
#include "passes/carry.h"
#include "passes/filter_layout.h"
#include "passes/fusion/grow.h"
#include "passes/hoist.h"
#include "passes/late_updates.h"
#include "passes/rematerialize.h"
#include "passes/rewrite.h"

namespace difuse::passes {

std::vector<Pass> default_passes(const PipelineOptions& options, FusionReport* report) {
  std::vector<Pass> passes;
  // Simplify first: what is folded here need not be fused, and sums that move out of a broadcast leave the fusions'
  // bodies. It must precede fusion, because no rule looks inside a body.
  passes.push_back({"canonicalize", canonicalize});
  // Round what is left. After canonicalize, so that no rule looks through a cast (a sum that moves past a factor must
  // not move past a rounding), and so that the same graph is rounded whatever its builder wrote. Before fusion: a cast
  // is part of the meaning, fusing neither adds, removes nor moves one, and what a contraction's body stores is decided
  // here.
  if (options.precision != Precision::f32) {
    const Precision precision = options.precision;
    passes.push_back(
        {"precision", [precision](const ir::Graph& g, PassContext& c) { return set_precision(g, c, precision); }});
    // Which way a filter is read depends on the device and on what it is rounded to.
    passes.push_back({"filter_layout", set_filter_layout});
    // Before fusion, which makes the rounded value where the next one is made.
    passes.push_back({"carry", carry_rounded});
  }
  // Grow fusions last: they freeze the choice of what is computed together.
  if (options.fuse) {
    passes.push_back({"fuse", [report, settings = options.fusion](const ir::Graph& g, PassContext& c) {
                        return fuse_clusters(g, c, report, settings);
                      }});
  }
  // What fusion recomputes inside its bodies leaves dead values behind; nothing may follow that makes more.
  passes.push_back({"dead_code", remove_dead_code});
  // What is kept for long depends on what the kernels read, and on their order: after fusion, and after what is dead.
  if (options.fuse) {
    passes.push_back(
        {"rematerialize", [report](const ir::Graph& g, PassContext& c) { return rematerialize(g, c, report); }});
  }
  // When a state has been read for the last time depends on the kernels, too.
  passes.push_back({"late_updates", update_late});
  // Last: which kernels there are is settled, and one that reads anything of the step is run in every step.
  passes.push_back({"hoist", hoist_invariant});
  return passes;
}

namespace {

std::vector<Pass> all_passes() {
  PipelineOptions options;
  options.precision = Precision::bf16;
  return default_passes(options, nullptr);
}

std::vector<std::string> names_of(std::span<const Pass> passes) {
  std::vector<std::string> names;
  for (const Pass& p : passes) names.push_back(p.name);
  return names;
}

void check_disabled(const std::vector<std::string>& disabled, const std::vector<std::string>& names) {
  for (const std::string& name : disabled) {
    if (std::ranges::count(names, name)) continue;
    throw Error(fmt::format("cannot disable the pass \"{}\": there is none of that name", name),
                fmt::format("the passes are {}", fmt::join(names, ", ")), ExitCode::wrong_usage);
  }
}

void dump(const std::filesystem::path& folder, size_t number, const std::string& name, const char* when,
          const std::string& text) {
  const std::filesystem::path file = folder / fmt::format("{:02}_{}.{}.ir", number, name, when);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  if (!stream.flush()) {
    throw Error(fmt::format("cannot write the dump {}", file.string()), "give DIFUSE_DUMP a folder that can be written",
                ExitCode::wrong_usage);
  }
}

void verify_after(const ir::Graph& graph, const std::string& pass) {
  try {
    ir::verify(graph);
  } catch (const Error& e) {
    throw Error(fmt::format("pass {} broke the graph: {}", pass, e.what()), fmt::format("DIFUSE_DISABLE={}", pass));
  }
}

}  // namespace

ir::Graph run_passes(ir::Graph graph, std::span<const Pass> passes, const ir::DeviceSpec& device,
                     const PipelineOptions& options) {
  const ir::Options defaults;
  const ir::Options& o = options.options ? *options.options : defaults;
  Fuel fuel(o.fuel);
  PassContext context{device, fuel};
  ir::verify(graph);
  std::string before = ir::print(graph);
  const std::filesystem::path dumps = std::filesystem::path(o.dump) / graph.name();
  for (size_t i = 0; i < passes.size(); ++i) {
    const Pass& pass = passes[i];
    if (std::ranges::count(o.disable, pass.name)) continue;
    if (!o.dump.empty()) dump(dumps, i + 1, pass.name, "before", before);
    const int64_t fuel_before = fuel.spent();
    const int nodes_before = graph.size();
    const auto start = std::chrono::steady_clock::now();
    PassResult result = pass.run(graph, context);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    std::string after = ir::print(result.graph);
    if (!o.dump.empty()) dump(dumps, i + 1, pass.name, "after", after);
    verify_after(result.graph, pass.name);
    if (result.changed != (after != before)) {
      throw Error(fmt::format("pass {} says that it {} the graph, which is not so", pass.name,
                              result.changed ? "changed" : "did not change"),
                  "this is a bug in the pass");
    }
    if (o.debug && options.log) {
      *options.log << fmt::format("pass {:02} {}: {} -> {} nodes, {} rewrites, {:.1f} ms\n", i + 1, pass.name,
                                  nodes_before, result.graph.size(), fuel.spent() - fuel_before, time.count());
    }
    graph = std::move(result.graph);
    before = std::move(after);
  }
  return graph;
}

ir::Graph run_pipeline(ir::Graph graph, const ir::DeviceSpec& device, const PipelineOptions& options) {
  FusionReport own;
  FusionReport* report = options.report ? options.report : &own;
  if (options.options) check_disabled(options.options->disable, names_of(all_passes()));
  graph = run_passes(std::move(graph), default_passes(options, report), device, options);
  if (options.options && options.options->debug && options.log) {
    for (const std::string& line : report->lines) *options.log << line << "\n";
  }
  return graph;
}

}  // namespace difuse::passes
