#include "codegen/cuda/join/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/jit/sha256.h"
#include "ir/error.h"

namespace difuse::codegen::cuda {
namespace {

constexpr std::string_view kKernelBegin = "extern \"C\" __global__", kMapType = "const __grid_constant__ TensorMap";

/// A kernel's source in parts.
struct Parts {
  std::string before, attributes, parameters, body;  // up to `extern "C"`, up to the name, in and after parentheses
};

Parts parts_of(const CudaSource& kernel) {
  const std::string& text = kernel.source;
  const size_t begin = text.rfind(kKernelBegin);
  const size_t name = begin == std::string::npos ? begin : text.find(" " + kernel.name + "(", begin);
  const size_t end = name == std::string::npos ? name : text.find(") {\n", name);
  if (end == std::string::npos) throw Error(fmt::format("the source of {} has no kernel of its name", kernel.name));
  const size_t open = name + kernel.name.size() + 2, body = end + std::string_view(") {\n").size();
  return {text.substr(0, begin), text.substr(begin, name + 1 - begin), text.substr(open, end - open),
          text.substr(body)};
}

/// The types and names in "const f32* p0, long long count".
std::vector<std::pair<std::string, std::string>> declarations(const std::string& parameters) {
  std::vector<std::pair<std::string, std::string>> result;
  for (size_t at = 0; at < parameters.size();) {
    const size_t end = std::min(parameters.find(", ", at), parameters.size());
    const size_t name = parameters.rfind(' ', end - 1) + 1;
    result.emplace_back(parameters.substr(at, name - 1 - at), parameters.substr(name, end - name));
    at = end + 2;
  }
  return result;
}

/// Where a row's arguments lie, as a C++ compiler lays out a struct of them.
struct Row {
  std::vector<int64_t> places;
  int64_t bytes = 0;
};
Row row_of(std::span<const Argument> arguments) {
  constexpr int64_t kMapAlignment = alignof(TableLine);
  Row row;
  int64_t alignment = 8;
  const auto aligned = [](int64_t bytes, int64_t to) { return ceil_div(bytes, to) * to; };
  for (const Argument& argument : arguments) {
    const bool is_map = argument.kind == Argument::Kind::tensor_map;
    if (is_map) alignment = kMapAlignment;
    row.places.push_back(is_map ? aligned(row.bytes, kMapAlignment) : row.bytes);
    row.bytes = row.places.back() + (is_map ? kTensorMapBytes : 8);
  }
  row.bytes = aligned(row.bytes, alignment);
  return row;
}

/// A member's arguments and how many blocks it has.
std::vector<Argument> with_blocks(const KernelCall& single) {
  std::vector<Argument> arguments = single.arguments;
  arguments.push_back(Argument::number(single.grid.x));
  return arguments;
}

/// Of a table of such rows.
int64_t most_members(const KernelCall& single) { return kMostTableBytes / row_of(with_blocks(single)).bytes; }

std::span<const Argument> arguments_of(const KernelCall& joined, int member) {
  const size_t each = joined.arguments.size() / static_cast<size_t>(joined.members);
  return std::span(joined.arguments).subspan(each * static_cast<size_t>(member), each);
}

/// Blocks that find nothing to do, for the largest member's number of blocks is that of all. A launch takes as long as
/// these of them.
constexpr int64_t kMostIdle = 1000;
int64_t idle_blocks(const std::vector<const KernelCall*>& members, const KernelCall& one_more) {
  int64_t most = one_more.grid.x, sum = one_more.grid.x;
  for (const KernelCall* member : members) most = std::max(most, member->grid.x), sum += member->grid.x;
  return (std::ssize(members) + 1) * most - sum;
}

/// Whether every block of the kernel does the same whatever its z and the grid.
bool ignores_grid(const CudaSource& single) {
  const std::string_view text = single.source;
  const size_t kernel = text.rfind(kKernelBegin);
  return kernel != std::string_view::npos && text.find("blockIdx.z") == std::string_view::npos &&
         text.find("gridDim", kernel) == std::string_view::npos;
}

}  // namespace

CudaSource joined_source(const CudaSource& single) {
  const Parts parts = parts_of(single);
  std::string fields, locals;
  std::vector<Argument> row;
  for (const auto& [type, name] : declarations(parts.parameters)) {
    const bool is_map = type == kMapType;
    row.push_back({is_map ? Argument::Kind::tensor_map : Argument::Kind::number, 0});
    fields += fmt::format("  {} {};\n", is_map ? "TensorMap" : type, name);
    locals += fmt::format("  [[maybe_unused]] {0} {1} = joined.members[blockIdx.z].{1};\n",
                          is_map ? "const TensorMap&" : type, name);
  }
  row.push_back(Argument::number(0));
  const std::string source = parts.before +
                             filled(R"(struct JoinedMember {
$fields  long long grid_blocks;
};
struct JoinedTable {
  JoinedMember members[$most];
};

$attributes$kernel(const __grid_constant__ JoinedTable joined) {
  if (blockIdx.x >= joined.members[blockIdx.z].grid_blocks) return;
$locals)",
                                    {{"fields", fields},
                                     {"most", std::to_string(kMostTableBytes / row_of(row).bytes)},
                                     {"attributes", parts.attributes},
                                     {"locals", locals}}) +
                             parts.body;
  Sha256 hash;
  hash.add_field(source);
  for (const std::string& option : single.options) hash.add_field(option);
  const std::string base = single.name.substr(0, single.name.rfind('_'));
  const std::string name = fmt::format("{}_joined_{}", base, hash.hex().substr(0, 8));
  return {name, filled(source, {{"kernel", name}}), single.architecture, single.options};
}

int64_t row_bytes(const KernelCall& call) { return row_of(arguments_of(call, 0)).bytes; }

std::vector<TableLine> table_of(const KernelCall& call, const std::function<uint64_t(const Argument&)>& address,
                                const std::function<const void*(int64_t)>& map) {
  constexpr auto kLine = static_cast<int64_t>(sizeof(TableLine));
  std::vector<TableLine> table(static_cast<size_t>(ceil_div(call.table_bytes, kLine)));
  auto* const bytes = reinterpret_cast<std::byte*>(table.data());
  for (int member = 0; member < call.members; ++member) {
    const std::span<const Argument> arguments = arguments_of(call, member);
    const Row row = row_of(arguments);
    for (size_t a = 0; a < arguments.size(); ++a) {
      std::byte* const to = bytes + member * row.bytes + row.places[a];
      if (arguments[a].kind == Argument::Kind::tensor_map) {
        std::memcpy(to, map(arguments[a].value), kTensorMapBytes);
      } else {
        const uint64_t value = address(arguments[a]);
        std::memcpy(to, &value, sizeof(value));
      }
    }
  }
  return table;
}

bool Joiner::can_join(const KernelCall& call) {
  if (call.grid.z != 1 || most_members(call) < 2) return false;
  const auto [it, fresh] = can_join_.try_emplace(call.source, false);
  if (fresh) it->second = ignores_grid(plan_.sources[static_cast<size_t>(call.source)]);
  return it->second;
}

bool Joiner::equal(const KernelCall& a, const KernelCall& b) {
  return a.source == b.source && a.grid.y == b.grid.y && a.threads == b.threads && a.shared_bytes == b.shared_bytes &&
         can_join(a) && can_join(b);
}

int Joiner::joined_form(int single) {
  const auto [it, fresh] = sources_.try_emplace(single, static_cast<int>(plan_.sources.size()));
  if (fresh) plan_.sources.push_back(joined_source(plan_.sources[static_cast<size_t>(single)]));
  return it->second;
}

void Joiner::prepare_both() {
  std::map<int, int> single_forms;
  for (const auto& [single, joined] : sources_) single_forms.emplace(joined, single);
  std::map<int, int> launches;  // by the single form
  for (const auto* calls : {&plan_.calls, &plan_.prepared, &plan_.once}) {
    for (const KernelCall& call : *calls) {
      if (call.members > 1) {
        launches[single_forms.at(call.source)] += call.members;
      } else if (can_join(call)) {
        ++launches[call.source];
      }
    }
  }
  for (const auto& [single, count] : launches) {
    if (count < 2) continue;
    for (const int source : {single, joined_form(single)})
      plan_.prepared.push_back({.source = source, .grid = {}, .arguments = {}});
  }
}

KernelCall Joiner::joined(const std::vector<const KernelCall*>& members) {
  KernelCall call = *members[0];
  if (members.size() == 1) return call;
  call.source = joined_form(call.source);
  call.members = static_cast<int>(members.size());
  call.table_bytes = most_members(call) * row_of(with_blocks(call)).bytes;
  call.grid = {0, call.grid.y, call.members};
  call.bytes = call.flops = 0;
  call.part_sums = {};
  call.arguments.clear();
  call.tensor_maps.clear();
  call.workspace.clear();
  for (const KernelCall* member : members) {
    for (Argument argument : with_blocks(*member)) {
      if (argument.kind == Argument::Kind::tensor_map) argument.value += std::ssize(call.tensor_maps);
      call.arguments.push_back(argument);
    }
    std::ranges::copy(member->tensor_maps, std::back_inserter(call.tensor_maps));
    std::ranges::copy(member->workspace, std::back_inserter(call.workspace));
    call.grid.x = std::max(call.grid.x, member->grid.x);
    call.bytes += member->bytes;
    call.flops += member->flops;
    if (member != members[0]) call.more_nodes.push_back(member->node);
  }
  return call;
}

std::vector<KernelCall> Joiner::join(const std::vector<KernelCall>& calls) {
  std::vector<std::vector<const KernelCall*>> groups;
  const auto takes = [&](const std::vector<const KernelCall*>& group, const KernelCall& call) {
    return std::ssize(group) < most_members(call) && equal(*group[0], call) && idle_blocks(group, call) <= kMostIdle;
  };
  for (const KernelCall& call : calls) {
    const auto found = std::ranges::find_if(groups, [&](const auto& group) { return takes(group, call); });
    if (found == groups.end()) {
      groups.push_back({&call});
    } else {
      found->push_back(&call);
    }
  }
  std::vector<KernelCall> result;
  for (const auto& group : groups) result.push_back(joined(group));
  return result;
}

void remove_unused_sources(CudaPlan& plan) {
  std::vector<int> place(plan.sources.size(), -1);
  for (const auto* calls : {&plan.calls, &plan.prepared, &plan.taken_over, &plan.once}) {
    for (const KernelCall& call : *calls) place[static_cast<size_t>(call.source)] = 0;
  }
  std::vector<CudaSource> used;
  for (size_t i = 0; i < place.size(); ++i) {
    if (place[i] < 0) continue;
    place[i] = static_cast<int>(used.size());
    used.push_back(std::move(plan.sources[i]));
  }
  plan.sources = std::move(used);
  for (auto* calls : {&plan.calls, &plan.prepared, &plan.taken_over, &plan.once}) {
    for (KernelCall& call : *calls) call.source = place[static_cast<size_t>(call.source)];
  }
}

}  // namespace difuse::codegen::cuda
