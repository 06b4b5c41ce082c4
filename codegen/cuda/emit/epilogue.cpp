#include "codegen/cuda/emit/epilogue.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/source/parameters.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {

bool is_epilogue(const ir::Graph& body, ir::Value value, std::initializer_list<ir::Op> reductions) {
  const std::vector<bool> live = body.live();
  std::vector<bool> depends(static_cast<size_t>(body.size()));
  depends[static_cast<size_t>(value.node)] = true;
  for (int id = 0; id < body.size(); ++id) {
    const ir::Node& node = body.node(id);
    if (!live[static_cast<size_t>(id)] || id == value.node) continue;
    const bool reads =
        std::ranges::any_of(node.operands, [&](ir::Value v) { return depends[static_cast<size_t>(v.node)]; });
    if (ir::has_trait(node, ir::kReduction)) {
      if (std::ranges::find(reductions, node.op) == reductions.end()) return false;
      if (!reads || body.type(node.operands[0]).shape != body.type(value).shape) return false;
      depends[static_cast<size_t>(id)] = true;
      continue;
    }
    if (!BodyCode::can(node)) return false;
    if (reads && node.op != ir::Op::reshape && !ir::has_trait(node, ir::kElementwise)) return false;
    depends[static_cast<size_t>(id)] = reads;
  }
  const int64_t elements = body.type(value).elements();
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    if (!is_reduced(body, r) && body.type(body.outputs()[r].value).elements() != elements) return false;
  }
  return true;
}

bool is_reduced(const ir::Graph& body, size_t output) {
  return ir::has_trait(body.node(body.outputs()[output].value), ir::kReduction);
}

std::vector<ir::Value> reduced_values(const ir::Graph& body) {
  std::vector<ir::Value> values;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    if (!is_reduced(body, r)) continue;
    const ir::Value v = body.node(body.outputs()[r].value).operands[0];
    if (std::ranges::find(values, v) == values.end()) values.push_back(v);
  }
  return values;
}

int epilogue_lanes(const KernelSpec& spec, ir::Value value, int most) {
  const ir::Graph& body = spec.body;
  const auto divides = [](int64_t lanes, const ir::Type& t) { return t.shape.empty() || t.shape.back() % lanes == 0; };
  int64_t narrowest = 4;
  for (const ir::NamedValue& n : body.outputs()) narrowest = std::min(narrowest, ir::size_of(body.type(n.value).dtype));
  int64_t lanes = std::min<int64_t>(most, 16 / narrowest);
  while (lanes > 1 && !divides(lanes, body.type(value))) lanes /= 2;
  for (size_t r = 0; r < body.outputs().size(); ++r) {
    if (!spec.wanted(r)) continue;
    const ir::Type& type = body.type(body.outputs()[r].value);
    const int64_t size = ir::size_of(type.dtype);
    while (lanes > 1 &&
           (!divides(lanes, type) || spec.result_alignment[r] % std::min<int64_t>(16, size * lanes) != 0)) {
      lanes /= 2;
    }
  }
  return static_cast<int>(lanes);
}

std::vector<size_t> wanted_outputs(const KernelSpec& spec) {
  std::vector<size_t> outputs;
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (spec.wanted(r) && !is_reduced(spec.body, r)) outputs.push_back(r);
  }
  return outputs;
}

EpilogueCode epilogue_code(const KernelSpec& spec, ir::Value value, const std::string& expression, int lanes,
                           const std::vector<std::string>& operands, const std::vector<Term>& coords,
                           const std::string& offset, const std::vector<size_t>& outputs,
                           const std::vector<StagedValue>& staged) {
  const ir::Graph& body = spec.body;
  BodyCode code(body, lanes, operands, spec.alignment);
  code.bind(value, expression);
  Index known = code.at(coords);
  known.linear = {offset, lanes == 1 ? Lanes::none : Lanes::unit};
  known.has_linear = true;
  std::string runs, lane, stores;
  const auto at = [&](ir::Value v) {
    const ir::Shape& shape = body.type(v).shape;
    const bool same = !coords.empty() && shape == body.type(value).shape;
    // The value itself is at hand: its coordinates, which would put its shape into the source, are not needed.
    return same || v == value ? known : code.at_linear(offset, shape);
  };
  const auto store = [&](const std::string& type, const std::string& x, const std::string& run, const std::string& to) {
    runs += fmt::format("Run<{}, {}> {};\n", type, lanes, run);
    lane += fmt::format("{}[l] = {};\n", run, x);
    stores += fmt::format("store_run<{}>({}, {});\n", lanes, to, run);
  };
  for (const size_t r : outputs) {
    const ir::Value v = body.outputs()[r].value;
    const std::string to = Parameters::result(r);
    store(register_type(body.type(v).dtype), code.unrounded(v, at(v)), "run_" + to, fmt::format("{} + {}", to, offset));
  }
  for (size_t i = 0; i < staged.size(); ++i) {
    store("float", code.value(staged[i].value, at(staged[i].value)), fmt::format("staged_{}", i), staged[i].to);
  }
  EpilogueCode made;
  made.text = code.take_before() + runs + "#pragma unroll\n" + fmt::format("for (int l = 0; l < {}; ++l) {{\n", lanes) +
              indented(code.take_lane() + lane, 2) + "}\n" + stores;
  made.outers = code.outers();
  return made;
}

}  // namespace difuse::codegen::cuda
