#include "codegen/cuda/join/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/error.h"

namespace difuse::codegen::cuda {
namespace {

constexpr std::string_view kWait = "  wait_for_previous_kernel();\n", kBody = ") {\n", kEnd = "}\n";
constexpr std::string_view kMayReadEarly = "may_read_early()";

struct Range {
  Argument::Kind memory;
  int64_t begin, end;
  bool written;
};

bool conflict(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::ranges::any_of(a, [&](const Range& x) {
    return std::ranges::any_of(b, [&](const Range& y) {
      return (x.written || y.written) && x.memory == y.memory && x.begin < y.end && y.begin < x.end;
    });
  });
}

/// What a launch reads and writes; nothing where that is not known of some argument.
class Touched {
 public:
  Touched(const CudaPlan& plan, const KernelCall& call) : plan_(plan), call_(call) {}

  std::optional<std::vector<Range>> ranges() const {
    if (call_.is_copy) return {};
    std::vector<Range> ranges;
    for (const Argument& argument : call_.arguments) {
      if (!add(argument, ranges)) return {};
    }
    for (const TensorMapSpec& map : call_.tensor_maps) {
      if (!add(map.start, ranges)) return {};
    }
    return ranges;
  }
  /// What it reads early; nothing where there is no such thing, or that is not known.
  std::optional<std::vector<Range>> early_ranges() const {
    std::vector<Range> ranges;
    if (call_.members > 1 || !call_.early || !add(*call_.early, ranges)) return {};
    return ranges;
  }

 private:
  bool add(const Argument& argument, std::vector<Range>& ranges) const {
    if (argument.kind == Argument::Kind::arena) return add_values(argument, ranges);
    if (argument.kind == Argument::Kind::workspace) return add_workspace(argument, ranges);
    return true;
  }

  /// The largest of the nodes' operands and results that lie there.
  bool add_values(const Argument& argument, std::vector<Range>& ranges) const {
    Range range{argument.kind, argument.value, -1, false};
    const auto see = [&](ir::Value v, bool written) {
      const passes::Placement& place = plan_.memory.at(v);
      if (place.offset != argument.value) return;
      range.end = std::max(range.end, place.offset + place.bytes);
      range.written = range.written || written;
    };
    for (int member = 0; member < call_.members; ++member) {
      const int id = call_.node_of(member);
      const ir::Node& node = plan_.graph.node(id);
      for (const ir::Value v : node.operands) see(v, false);
      for (int r = 0; r < static_cast<int>(node.types.size()); ++r) see({id, r}, true);
    }
    ranges.push_back(range);
    return range.end >= 0;
  }

  bool add_workspace(const Argument& argument, std::vector<Range>& ranges) const {
    const auto found = std::ranges::find(call_.workspace, argument.value, &WorkspaceRange::begin);
    if (found == call_.workspace.end()) return false;
    ranges.push_back({argument.kind, found->begin, found->end, true});
    return true;
  }

  const CudaPlan& plan_;
  const KernelCall& call_;
};

/// Where a member's argument lies: behind it comes, in a joined launch, the number of its blocks.
size_t place_of_waits(const KernelCall& call, size_t member) {
  const size_t each = call.arguments.size() / static_cast<size_t>(call.members);
  return (member + 1) * each - (call.members > 1 ? 2 : 1);
}

int64_t number_of(Waits waits) { return static_cast<int64_t>(waits); }

void set(KernelCall& call, Waits waits) {
  for (size_t m = 0; m < static_cast<size_t>(call.members); ++m) {
    call.arguments[place_of_waits(call, m)] = Argument::number(number_of(waits));
  }
}

}  // namespace

std::string with_waits_parameter(const std::string& source) {
  const size_t kernel = source.find("$kernel("), parameters = source.find(kBody, kernel);
  const size_t wait = source.find(kWait, parameters);
  if (kernel == std::string::npos || wait == std::string::npos || !source.ends_with(kEnd))
    throw Error("a kernel's source does not wait for the kernel before it");
  const size_t body = wait + kWait.size();
  std::string before = source.substr(parameters, wait - parameters);
  if (const size_t early = before.find(kMayReadEarly); early != std::string::npos) {
    before.replace(early, kMayReadEarly.size(), fmt::format("waits == {}", number_of(Waits::after_early_reads)));
  }
  const int64_t at_end = number_of(Waits::at_end);
  return source.substr(0, parameters) + ", long long waits" + before +
         fmt::format("  if (waits != {}) wait_for_previous_kernel();\n", at_end) +
         source.substr(body, source.size() - kEnd.size() - body) +
         fmt::format("  if (waits == {} && blockIdx.x == 0) wait_for_previous_kernel();\n}}\n", at_end);
}

void overlap_launches(CudaPlan& plan) {
  for (auto* calls : {&plan.once, &plan.calls}) {
    std::vector<std::optional<std::vector<Range>>> touched;  // since the last launch that waits at its beginning
    for (KernelCall& call : *calls) {
      const auto meets_none = [&](const std::optional<std::vector<Range>>& ranges) {
        return ranges && !touched.empty() &&
               std::ranges::all_of(touched, [&](const auto& other) { return other && !conflict(*ranges, *other); });
      };
      std::optional<std::vector<Range>> own = Touched(plan, call).ranges();
      if (meets_none(own)) {
        set(call, Waits::at_end);
      } else {
        if (meets_none(Touched(plan, call).early_ranges())) set(call, Waits::after_early_reads);
        touched.clear();
      }
      touched.push_back(std::move(own));
    }
  }
}

Waits waits_of(const KernelCall& call) { return static_cast<Waits>(call.arguments[place_of_waits(call, 0)].value); }

bool overlaps(const KernelCall& call) { return waits_of(call) == Waits::at_end; }

}  // namespace difuse::codegen::cuda
