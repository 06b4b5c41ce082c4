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
  constexpr int64_t kBytesInFlight = 96;
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

RowCode row_code(const RowLoop& loop, const KernelSpec& spec, const std::vector<size_t>& stored,
                 const std::function<std::string(BodyCode&, const Index&)>& more) {
  const ir::Graph& body = loop.body;
  const Lanes run = loop.lanes == 1 ? Lanes::none : Lanes::unit;
  std::vector<std::string> pointers;
  for (size_t i = 0; i < spec.operands.size(); ++i) pointers.push_back(fmt::format("p{}", i));
  BodyCode code(body, loop.lanes, pointers, spec.alignment);
  const std::span<const int64_t> extents = loop.shape;
  const std::vector<Term> outer = split("o", extents.first(loop.begin), Lanes::none);
  const std::vector<Term> inner = split("i", extents.subspan(loop.end), run);
  const auto coords = [&](const std::string& row) {
    const Lanes of_row = inner.empty() ? run : Lanes::none;
    std::vector<Term> all = outer, rows = split(row, extents.subspan(loop.begin, loop.end - loop.begin), of_row);
    all.insert(all.end(), rows.begin(), rows.end());
    all.insert(all.end(), inner.begin(), inner.end());
    return all;
  };
  RowCode made;
  made.hoisted = hoist(code, body, code.at(coords("0")), loop.shape, loop.begin, loop.end, loop.lanes).text;
  int next_row = 0;
  const auto add_loop = [&](int at_once) {
    BodyCode scope = code;  // What one loop defines, the other does not see.
    std::string rows, values;
    for (int u = 0; u < at_once; ++u, ++next_row) {
      rows += fmt::format("const index_t row{} = r{};\n", next_row, u == 0 ? "" : fmt::format(" + {}", u * loop.step));
      rows += fmt::format("[[maybe_unused]] const index_t at{0} = base + row{0}{1};\n", next_row,
                          loop.stride == 1 ? "" : fmt::format(" * {}", loop.stride));
      Index index = scope.at(coords(fmt::format("row{}", next_row)));
      index.linear = {fmt::format("at{}", next_row), run};
      index.has_linear = true;
      std::string runs, lane = more(scope, index), stores;
      for (const size_t r : stored) {
        const Value v = body.outputs()[r].value;
        const std::string name = fmt::format("run{}_{}", r, next_row);
        runs += fmt::format("Run<{}, {}> {};\n", register_type(body.type(v).dtype), loop.lanes, name);
        lane += fmt::format("{}[l] = {};\n", name, scope.unrounded(v, index));
        stores += fmt::format("store_run<{}>({} + at{}, {});\n", loop.lanes, Parameters::result(r), next_row, name);
      }
      values += runs + fmt::format("#pragma unroll\nfor (int l = 0; l < {}; ++l) {{\n", loop.lanes);
      values += indented(scope.take_lane_loop() + lane, 2) + "}\n" + stores;
    }
    made.loops += fmt::format("#pragma unroll 1\nfor (; r{} < end; r += {}) {{\n",
                              at_once == 1 ? "" : fmt::format(" + {}", (at_once - 1) * loop.step), at_once * loop.step);
    made.loops += indented(rows + scope.take_before() + values, 2) + "}\n";
    made.outers.merge(std::set<int>(scope.outers()));
  };
  if (loop.at_once > 1) add_loop(loop.at_once);
  add_loop(1);
  return made;
}

}  // namespace difuse::codegen::cuda
