// group_finish: neighbouring threads for each image and group. Groups may straddle the border between two operands, so
// a channel's moments are looked up in whichever has it. A kernel of its own, or, in front of an elementwise loop that
// repeats the results over the image, statements of that loop's kernel (preamble.h).
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "codegen/cuda/emit/finishes.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"
#include "ir/op.h"
#include "ir/strips.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

/// Whether it is made of tensors in memory.
bool reads_inputs(const Graph& body, const Node& node) {
  return std::ranges::all_of(node.operands, [&](Value v) { return body.node(v).op == Op::input; });
}

const Node* finish_node(const Graph& body) {
  if (body.outputs().empty()) return nullptr;
  const int id = body.outputs()[0].value.node;
  const Node& node = body.node(id);
  const bool alone = std::ranges::all_of(body.outputs(), [&](const auto& output) { return output.value.node == id; });
  return node.op == Op::group_finish && alone && reads_inputs(body, node) ? &node : nullptr;
}

/// A group_finish as code.
class Finish {
 public:
  Finish(const Graph& body, const Node& node) : body_(body), node_(node), attrs_(node.as<ir::GroupFinishAttrs>()) {}

  int64_t images() const { return node_.types[0].shape[0]; }
  int64_t channels() const { return node_.types[0].shape[1]; }
  int64_t groups() const { return attrs_.groups; }
  int64_t width() const { return channels() / groups(); }
  int64_t strips() const { return ir::Strips{attrs_.height, attrs_.width}.count(); }
  /// Of a group, in the order of its sums (device/group_finish.cuh); a kernel of its own has a thread for each.
  int64_t lanes() const {
    return std::min<int64_t>(32, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(strips() * width()))));
  }
  bool is_wide() const { return images() * strips() * channels() >= (int64_t{1} << 31); }

  /// The type of device/group_finish.cuh.
  std::string group() const {
    return fmt::format("group_finish::Group<{}, {}, {}>", attrs_.height, attrs_.width, width());
  }
  std::string eps() const { return fmt::format("{:a}f", static_cast<float>(attrs_.eps)); }

  /// Functions of (strip, channel) that need `n`, the image, and one that runs `stores` for (c, statistics). `pointers`
  /// are those of the operands.
  std::string functions(const std::vector<std::string>& pointers, const std::string& stores) const {
    return filled(R"(const auto mean_of = [=](int strip, int channel) -> float {
$means};
const auto m2_of = [=](int strip, int channel) -> float {
$m2s};
const auto store = [&](int c, const group_finish::Statistics& statistics) {
$stores};
)",
                  {{"means", look_up(0, pointers)}, {"m2s", look_up(1, pointers)}, {"stores", indented(stores, 2)}});
  }

 private:
  /// "channel" counts the tensors' channels in order. `which`: means or M2s.
  std::string look_up(size_t which, const std::vector<std::string>& pointers) const {
    std::string text;
    int64_t begin = 0;
    for (size_t i = which; i < node_.operands.size(); i += 2) {
      const int64_t size = body_.type(node_.operands[i]).shape[2];
      if (i + 2 < node_.operands.size()) text += fmt::format("if (channel < {}) ", begin + size);
      text += fmt::format("return {}[(n * {} + strip) * {} + channel - {}];\n", pointers[i], strips(), size, begin);
      begin += size;
    }
    return indented(text, 2);
  }

  const Graph& body_;
  const Node& node_;
  const ir::GroupFinishAttrs& attrs_;
};

const char* statistic(int result) { return result == 0 ? "statistics.mean" : "statistics.rstd"; }

}  // namespace

bool accepts_group_finish(const Graph& body) { return finish_node(body) != nullptr; }

void emit_group_finish(const KernelSpec& spec, Emission& emission) {
  const Graph& body = spec.body;
  const Node& node = *finish_node(body);
  const Finish finish(body, node);
  Parameters parameters(body, spec);
  parameters.add("images", finish.images());
  std::vector<std::string> pointers;
  for (const Value v : node.operands) {
    pointers.push_back(parameters.operands()[static_cast<size_t>(input_number(body.node(v)))]);
  }
  std::string stores;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    if (!spec.wanted(r)) continue;
    stores += fmt::format("{}[n * {} + c] = {};\n", Parameters::result(r), finish.channels(),
                          statistic(body.outputs()[r].value.result));
  }

  constexpr int kThreads = 128;
  KernelDraft draft;
  draft.name = spec.name;
  draft.source =
      device_source({"group_finish.cuh"}) + filled(R"(
using index_t = $index;
using Group = $group;

extern "C" __global__ void __launch_bounds__($threads, 1) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const long long own = static_cast<long long>(blockIdx.x) * $perblock + static_cast<int>(threadIdx.x) / Group::lanes;
  const bool inside = own < images * $groups;
  const long long group = inside ? own : images * $groups - 1;
  const index_t n = static_cast<index_t>(group / $groups);
  const int first = static_cast<int>(group % $groups) * Group::channels;
$functions  group_finish::finish_group<Group, Group::lanes>(threadIdx.x % Group::lanes, first, inside, $eps, mean_of, m2_of, store);
}
)",
                                                   {{"index", index_type(finish.is_wide())},
                                                    {"group", finish.group()},
                                                    {"threads", std::to_string(kThreads)},
                                                    {"perblock", cuda::text(kThreads / finish.lanes())},
                                                    {"parameters", parameters.text()},
                                                    {"groups", cuda::text(finish.groups())},
                                                    {"eps", finish.eps()},
                                                    {"functions", indented(finish.functions(pointers, stores), 2)}});
  draft.grid.x = ceil_div(finish.images() * finish.groups(), kThreads / finish.lanes());
  draft.threads = kThreads;
  draft.arguments = parameters.arguments();
  draft.bytes = parameters.bytes();
  draft.flops = spec.flops;
  emission.launch(std::move(draft));
}

std::string group_finish_statements(const Graph& body, int node, const std::vector<std::string>& pointers,
                                    const std::array<std::string, 2>& results, const std::string& thread) {
  const Finish finish(body, body.node(node));
  std::string stores;
  for (size_t r = 0; r < results.size(); ++r) {
    stores += fmt::format("{}[c] = {};\n", results[r], statistic(static_cast<int>(r)));
  }
  return filled(R"({
  const index_t n = this_image;
$functions  group_finish::finish_image<$group, $groups, $threads>($thread, $eps, mean_of, m2_of, store);
}
)",
                {{"group", finish.group()},
                 {"groups", cuda::text(finish.groups())},
                 {"threads", "$threads"},
                 {"thread", thread},
                 {"eps", finish.eps()},
                 {"functions", indented(finish.functions(pointers, stores), 2)}});
}

}  // namespace difuse::codegen::cuda
