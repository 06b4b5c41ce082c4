#include "models/cli/fusion_listing.h"

#include <fmt/format.h>

#include <set>

#include "models/run/console.h"
#include "models/run/units.h"

namespace difuse::models {
namespace {

std::string moved(int64_t bytes, int64_t apart) {
  const auto text = [](int64_t count) { return format_bytes(static_cast<uint64_t>(count)); };
  return apart > bytes ? fmt::format("{} instead of {}", text(bytes), text(apart)) : text(bytes);
}

}  // namespace

void print_fusions(const codegen::cuda::CudaPlan& plan, const passes::FusionReport& report) {
  say("what each kernel holds, and the bytes that it moves instead of kernels of single ops:\n");
  int64_t bytes = 0, apart = 0;
  std::set<int> told;
  const auto print = [&](const codegen::cuda::KernelCall& call, const std::string& place) {
    for (int member = 0; member < call.members; ++member) {
      const int node = call.node_of(member);
      if (call.is_copy || !told.insert(node).second) {
        say("{:>5} {:>6} {}\n", place, fmt::format("%{}", node),
            call.is_copy ? "copies a state" : "another stage of it");
        continue;
      }
      const passes::KernelContent content = passes::content_of(plan.graph, plan.graph.node(node));
      say("{:>5} {:>6} {}; {}\n", place, fmt::format("%{}", node), content.ops,
          moved(content.bytes, content.bytes_apart));
      bytes += content.bytes, apart += content.bytes_apart;
    }
  };
  for (const codegen::cuda::KernelCall& call : plan.once) print(call, "once");
  bytes = apart = 0;  // A step's.
  for (size_t i = 0; i < plan.calls.size(); ++i) print(plan.calls[i], std::to_string(i));
  say("together: {}\n", moved(bytes, apart));
  say("what was decided on the way (nodes of the graph before fusion, which DIFUSE_DUMP writes):\n");
  for (const std::string& line : report.lines) say("  {}\n", line);
}

}  // namespace difuse::models
