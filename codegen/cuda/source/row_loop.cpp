#include "codegen/cuda/source/row_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {

using ir::Node;
using ir::Op;
using ir::Value;

namespace {

constexpr int64_t kBytesInFlight = 96;  ///< Of a thread: as many as its registers hold beside its work.

}  // namespace

bool moves_in_runs(const Node& node) {
  constexpr std::array kMoves = {Op::slice, Op::concat, Op::upsample_nearest, Op::avg_pool};
  return std::ranges::find(kMoves, node.op) != kMoves.end();
}

WholeTensors whole_tensors(const ir::Graph& body, const ir::Shape& shape) {
  WholeTensors found;
  const auto see = [&](const ir::Type& t, bool read) {
    if (t.shape != shape) return;
    found.count += 1;
    if (read) found.read_bytes += ir::size_of(t.dtype);
    found.narrowest = std::min(found.narrowest, ir::size_of(t.dtype));
  };
  for (const int id : body.leaves(Op::input)) see(body.node(id).types[0], true);
  for (int id = 0; id < body.size(); ++id) {
    if (moves_in_runs(body.node(id))) see(body.node(id).types[0], true);
  }
  for (const ir::NamedValue& output : body.outputs()) see(body.type(output.value), false);
  return found;
}

int WholeTensors::longest_run() const {
  if (count > 16) return 1;
  if (count > 8) return 2;
  return count > 5 || narrowest == 4 ? 4 : 8;
}

int WholeTensors::runs_at_once(int lanes) const {
  if (read_bytes == 0) return 1;
  const int64_t bytes = read_bytes * lanes;
  return static_cast<int>(std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(kBytesInFlight / bytes, 1, 4))));
}

int64_t WholeTensors::blocks_at_once(int64_t threads) const {
  return std::max<int64_t>(1, (count > 8 ? 256 : 512) / (ceil_div(threads, 32) * 32));
}

std::vector<Term> split(const std::string& linear, std::span<const int64_t> extents, Lanes lanes) {
  std::vector<Term> terms(extents.size());
  std::string rest = linear;
  for (size_t d = extents.size(); d-- > 1;) {
    terms[d].text = fmt::format("remainder_of<{}>({})", extents[d], rest);
    rest = fmt::format("quotient<{}>({})", extents[d], rest);
  }
  if (!terms.empty()) {
    terms[0].text = rest;
    terms.back().lanes = lanes;
  }
  return terms;
}

namespace {

/// By node: whether its value, over `shape`, is the same along the dimensions from `begin` up to `end`.
std::vector<bool> repeated_values(const ir::Graph& body, const ir::Shape& shape, size_t begin, size_t end) {
  std::vector<bool> repeated(static_cast<size_t>(body.size()));
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    if (node.op == Op::broadcast && node.types[0].shape == shape) {
      const auto is_row = [&](int64_t d) { return static_cast<size_t>(d) >= begin && static_cast<size_t>(d) < end; };
      repeated[static_cast<size_t>(id)] = BodyCode::can(body.node(node.operands[0])) &&
                                          std::ranges::none_of(node.as<ir::BroadcastAttrs>().dims, is_row);
    } else if (ir::has_trait(node, ir::kElementwise) && node.types[0].shape == shape) {
      repeated[static_cast<size_t>(id)] = std::ranges::all_of(node.operands, [&](Value v) {
        return repeated[static_cast<size_t>(v.node)] || body.node(v).op == Op::constant;
      });
    }
  }
  return repeated;
}

}  // namespace

Hoisted hoist(BodyCode& code, const ir::Graph& body, const Index& index, const ir::Shape& shape, size_t begin,
              size_t end, int lanes) {
  const std::vector<bool> repeated = repeated_values(body, shape, begin, end), live = body.live();
  const auto users = body.users();
  Hoisted made;
  std::string runs, lane;
  for (int id = 0; id < body.size(); ++id) {
    if (!repeated[static_cast<size_t>(id)] || !live[static_cast<size_t>(id)]) continue;
    // What others compute from it at its own place; an op that moves elements reads it elsewhere.
    bool varies = false, moves = false;
    for (const int user : users[static_cast<size_t>(id)]) {
      varies = varies || !repeated[static_cast<size_t>(user)];
      moves = moves || !ir::has_trait(body.node(user), ir::Trait(ir::kElementwise | ir::kReduction));
    }
    if (!varies || moves) continue;
    const Value v{id, 0};
    const std::string x = code.value(v, index);
    if (code.is_shared(v, index)) {
      made.kept.push_back({v, x, ""});
      continue;
    }
    const std::string name = fmt::format("repeated{}", id);
    runs += fmt::format("Run<{}, {}> {};\n", register_type(body.type(v).dtype), lanes, name);
    lane += fmt::format("{}[l] = {};\n", name, x);
    made.kept.push_back({v, name + "[l]", name});
  }
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    const bool has_image = begin > 0 && live[static_cast<size_t>(id)] && ir::has_trait(node, ir::kRandom);
    if (has_image && node.types[0].shape == shape) code.write_key(node, index);
  }
  made.text = code.take_before() + runs;
  if (!lane.empty()) {
    made.text += fmt::format("#pragma unroll\nfor (int l = 0; l < {}; ++l) {{\n{}}}\n", lanes,
                             indented(code.take_lane_loop() + lane, 2));
  }
  for (const Hoisted::Kept& one : made.kept) {
    code.bind(one.value, one.expression, one.variable.empty() ? Lanes::none : Lanes::any);
  }
  return made;
}

int64_t block_columns(int64_t runs, int64_t least, const KernelSpec& spec) {
  if (spec.preamble != nullptr) {
    return std::min(least, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(runs))));
  }
  if (runs <= least) return runs;
  int64_t best = least;
  const auto left_over = [&](int64_t columns) { return ceil_div(runs, columns) * columns - runs; };
  for (int64_t columns = least; columns <= 2 * least; ++columns) {
    if (left_over(columns) < left_over(best)) best = columns;
  }
  return best;
}

namespace {

/// One statement for each load, with {0} its type, {1} its name and {2} the expression.
std::string each_load(const std::vector<BodyCode::RunLoad>& loads, std::string_view statement) {
  std::string text;
  for (const BodyCode::RunLoad& load : loads) {
    text += fmt::format(fmt::runtime(statement), load.type, load.name, load.expression);
  }
  return text;
}

/// Takes from `loads` those of what the spec's preamble makes.
std::vector<BodyCode::RunLoad> take_made(std::vector<BodyCode::RunLoad>& loads, const KernelSpec& spec) {
  const auto is_read = [&](const BodyCode::RunLoad& load) {
    return spec.preamble == nullptr || load.input < static_cast<int>(spec.preamble->first_operand);
  };
  const auto first = std::stable_partition(loads.begin(), loads.end(), is_read);
  std::vector<BodyCode::RunLoad> made(first, loads.end());
  loads.erase(first, loads.end());
  return made;
}

}  // namespace

RowCode row_code(const RowLoop& loop, const KernelSpec& spec, const std::vector<size_t>& stored,
                 const std::function<std::string(BodyCode&, const Index&)>& more) {
  const ir::Graph& body = loop.body;
  const Lanes run = loop.lanes == 1 ? Lanes::none : Lanes::unit;
  std::vector<std::string> pointers;
  for (size_t i = 0; i < spec.operands.size(); ++i) pointers.push_back(fmt::format("p{}", i));
  BodyCode code(body, loop.lanes, pointers, spec.alignment);
  const std::span<const int64_t> extents = loop.shape;
  const auto coords = [&](const std::string& row) {
    const std::vector<Term> inner = split("i", extents.subspan(loop.end), run);
    const Lanes of_row = inner.empty() ? run : Lanes::none;
    std::vector<Term> all = split("o", extents.first(loop.begin), Lanes::none);
    std::ranges::move(split(row, extents.subspan(loop.begin, loop.end - loop.begin), of_row), std::back_inserter(all));
    std::ranges::copy(inner, std::back_inserter(all));
    return all;
  };
  RowCode made;
  code.keep_run_loads();
  const Hoisted common = hoist(code, body, code.at(coords("0")), loop.shape, loop.begin, loop.end, loop.lanes);
  std::vector<BodyCode::RunLoad> common_loads = code.take_run_loads();
  const std::vector<BodyCode::RunLoad> common_made = take_made(common_loads, spec);
  made.loads = code.take_indices() + each_load(common_loads, "const {} {} = {};\n");
  made.hoisted = each_load(common_made, "const {} {} = {};\n") + common.text;

  Index index = code.at(coords("row"));
  index.linear = {"at", run};
  index.has_linear = true;
  std::string runs, lane = more(code, index), stores;
  for (const size_t r : stored) {
    const Value v = body.outputs()[r].value;
    runs += fmt::format("Run<{}, {}> run{};\n", register_type(body.type(v).dtype), loop.lanes, r);
    lane += fmt::format("run{}[l] = {};\n", r, code.unrounded(v, index));
    stores += fmt::format("store_run<{0}>({1} + at, run{2});\n", loop.lanes, Parameters::result(r), r);
  }
  made.outers.merge(std::set<int>(code.outers()));
  std::vector<BodyCode::RunLoad> loads = code.take_run_loads();
  const std::string place = fmt::format("[[maybe_unused]] const index_t at = base + row{};\n",
                                        loop.stride == 1 ? "" : fmt::format(" * {}", loop.stride)) +
                            code.take_indices();
  int64_t bytes = 0, many = loop.at_once;
  for (const BodyCode::RunLoad& load : loads) bytes += load.bytes;
  while (many > 1 && many * bytes > kBytesInFlight) many /= 2;
  const std::vector<std::pair<std::string_view, std::string>> sizes = {
      {"lanes", text(loop.lanes)}, {"step", text(loop.step)}, {"many", text(many)}};
  // A row makes place for a later one, whose loads begin, before anything is computed of it or stored; unless registers
  // have no room for two.
  std::string held, own;
  if (many == 1) {
    own = each_load(loads, "const {} {} = {};\n");
  } else if (!loads.empty()) {
    const std::string slots = filled("{} next_{}[$many];\n", sizes);
    const std::string first = each_load(loads, slots) + "const auto load_row = [&](int u, index_t row) {\n" +
                              indented(place + each_load(loads, "next_{1}[u] = {2};\n"), 2) +
                              filled(R"(};
#pragma unroll
for (int u = 0; u < $many; ++u) {
  if (r + u * $step < end) load_row(u, r + u * $step);
}
)",
                                     sizes);
    held = each_load(loads, "const {0} {1} = next_{1}[u];\n") +
           filled("if (row + $many * $step < end) load_row(u, row + $many * $step);\n", sizes);
    (take_made(loads, spec).empty() ? made.loads : made.hoisted) += first;
  }
  made.loops = filled(filled(R"(#pragma unroll 1
for (; r < end; r += $many * $step) {
#pragma unroll
  for (int u = 0; u < $many; ++u) {
    const index_t row = r + u * $step;
$held    $if{
$place$before#pragma unroll
      for (int l = 0; l < $lanes; ++l) {
$lane      }
$stores    }
  }
}
)",
                             {{"held", indented(held, 4)},
                              {"if", loop.whole ? "" : "if (row < end) "},
                              {"place", indented(place, 6)},
                              {"before", indented(own + code.take_before() + runs, 6)},
                              {"lane", indented(code.take_lane_loop() + lane, 8)},
                              {"lanes", text(loop.lanes)},
                              {"stores", indented(stores, 6)}}),
                      sizes);
  return made;
}

}  // namespace difuse::codegen::cuda
