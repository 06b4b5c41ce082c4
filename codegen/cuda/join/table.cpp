#include "codegen/cuda/join/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/source/parameters.h"
#include "codegen/jit/sha256.h"
#include "ir/error.h"

namespace difuse::codegen::cuda {
namespace {

constexpr std::string_view kKernelBegin = "extern \"C\" __global__";

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

/// Of a member: its arguments, and how many blocks it has.
int64_t row_bytes(size_t arguments) { return 8 * static_cast<int64_t>(arguments + 1); }
int64_t most_members(size_t arguments) { return kMostTableBytes / row_bytes(arguments); }

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
  const auto all = declarations(parts.parameters);
  std::string fields, locals;
  for (const auto& [type, name] : all) {
    fields += fmt::format("  {} {};\n", type, name);
    locals += fmt::format("  [[maybe_unused]] {0} {1} = joined.members[blockIdx.z].{1};\n", type, name);
  }
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
                                     {"most", std::to_string(most_members(all.size()))},
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

std::vector<uint64_t> table_of(const KernelCall& call, const std::function<uint64_t(const Argument&)>& address) {
  std::vector<uint64_t> table;
  for (const Argument& argument : call.arguments) table.push_back(address(argument));
  table.resize(static_cast<size_t>(call.table_bytes / 8));
  return table;
}

bool Joiner::can_join(const KernelCall& call) {
  if (!call.tensor_maps.empty() || call.grid.z != 1 || most_members(call.arguments.size()) < 2) return false;
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
  for (const auto* calls : {&plan_.calls, &plan_.prepared}) {
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
  call.table_bytes = most_members(call.arguments.size()) * row_bytes(call.arguments.size());
  call.grid = {0, call.grid.y, call.members};
  call.bytes = call.flops = 0;
  call.arguments.clear();
  for (const KernelCall* member : members) {
    call.arguments.insert(call.arguments.end(), member->arguments.begin(), member->arguments.end());
    call.arguments.push_back(Argument::number(member->grid.x));
    call.grid.x = std::max(call.grid.x, member->grid.x);
    call.bytes += member->bytes;
    call.flops += member->flops;
    if (member != members[0]) call.more_nodes.push_back(member->node);
  }
  return call;
}

std::vector<KernelCall> Joiner::join(const std::vector<KernelCall>& calls) {
  std::vector<std::vector<const KernelCall*>> groups;
  for (const KernelCall& call : calls) {
    const auto found = std::ranges::find_if(groups, [&](const auto& group) {
      return std::ssize(group) < most_members(call.arguments.size()) && equal(*group[0], call);
    });
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
  for (const auto* calls : {&plan.calls, &plan.prepared}) {
    for (const KernelCall& call : *calls) place[static_cast<size_t>(call.source)] = 0;
  }
  std::vector<CudaSource> used;
  for (size_t i = 0; i < place.size(); ++i) {
    if (place[i] < 0) continue;
    place[i] = static_cast<int>(used.size());
    used.push_back(std::move(plan.sources[i]));
  }
  plan.sources = std::move(used);
  for (auto* calls : {&plan.calls, &plan.prepared}) {
    for (KernelCall& call : *calls) call.source = place[static_cast<size_t>(call.source)];
  }
}

}  // namespace difuse::codegen::cuda
