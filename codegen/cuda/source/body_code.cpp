#include "codegen/cuda/source/body_code.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "codegen/node_body.h"
#include "ir/error.h"
#include "ir/op.h"
#include "ir/reference.h"

namespace difuse::codegen::cuda {

using ir::DType;
using ir::Op;

namespace {

Lanes both(Lanes a, Lanes b) { return a == Lanes::none && b == Lanes::none ? Lanes::none : Lanes::any; }

/// The lanes of an expression that is not the term itself.
Lanes per_lane(const Term& t) { return t.lanes == Lanes::none ? Lanes::none : Lanes::any; }

std::string literal(double value, DType dtype) {
  if (!ir::is_float(dtype)) {
    const auto whole = static_cast<int64_t>(ir::round_to(value, dtype));
    if (dtype != DType::i32) return fmt::format("{}u", whole);
    return whole == INT32_MIN ? "(-2147483647 - 1)" : fmt::format("({})", whole);
  }
  const double rounded = ir::round_to(value, dtype);
  if (std::isnan(rounded)) return "__int_as_float(0x7fffffff)";
  if (std::isinf(rounded)) return rounded > 0 ? "__int_as_float(0x7f800000)" : "__int_as_float(0xff800000)";
  return fmt::format("({:a}f)", static_cast<float>(rounded));
}

std::string zero_of(DType dtype) { return ir::is_float(dtype) ? "0.0f" : dtype == DType::i32 ? "0" : "0u"; }

void require_valid(Index& index, const std::string& condition, Lanes lanes) {
  index.valid = index.valid.empty() ? condition : fmt::format("{} && {}", index.valid, condition);
  index.valid_lanes = both(index.valid_lanes, lanes);
}

}  // namespace

std::string storage_type(DType dtype) { return std::string(ir::to_string(dtype)); }

std::string register_type(DType dtype) {
  if (ir::is_float(dtype)) return "float";
  return dtype == DType::i32 ? "int" : "unsigned";
}

std::string Index::key() const {
  std::string key;
  for (const Term& t : coords) key += fmt::format("{}/{};", t.text, static_cast<int>(t.lanes));
  if (has_linear) key += fmt::format("@{}/{}", linear.text, static_cast<int>(linear.lanes));
  return key + "?" + valid;
}

BodyCode::BodyCode(const ir::Graph& body, int lanes, std::vector<std::string> pointers, std::vector<int64_t> alignment,
                   std::string available)
    : body_(body),
      lanes_(lanes),
      pointers_(std::move(pointers)),
      alignment_(std::move(alignment)),
      available_(std::move(available)),
      has_halves_(has_halves(body)) {}

bool BodyCode::has_halves(const ir::Graph& body) {
  for (int id = 0; id < body.size(); ++id) {
    if (std::ranges::any_of(body.node(id).types, [](const ir::Type& t) { return ir::size_of(t.dtype) == 2; }))
      return true;
  }
  return false;
}

bool BodyCode::can(const ir::Node& node) {
  if (node.op == Op::pack || node.op == Op::literal || node.op == Op::state) return false;
  const auto traits =
      ir::Trait(ir::kElementwise | ir::kBroadcast | ir::kMovement | ir::kView | ir::kRandom | ir::kLeaf);
  return ir::has_trait(node, traits);
}

void BodyCode::bind(ir::Value v, std::string expression, Lanes lanes) { bound_[v] = {std::move(expression), lanes}; }

std::string BodyCode::value(ir::Value v, const Index& index) { return write(v, index).expression; }

bool BodyCode::is_shared(ir::Value v, const Index& index) { return write(v, index).lanes == Lanes::none; }

std::string BodyCode::unrounded(ir::Value v, const Index& index) {
  const ir::Node& node = body_.node(v);
  const bool rounds = node.op == Op::cast && ir::size_of(node.types[0].dtype) == 2;
  return value(rounds && !bound_.contains(v) ? node.operands[0] : v, index);
}

bool BodyCode::computes_index() const {
  for (int id = 0; id < body_.size(); ++id) {
    if (body_.node(id).op == Op::gather) return true;
  }
  return false;
}

void BodyCode::keep_shared_loads() { keeps_shared_loads_ = !computes_index(); }

void BodyCode::keep_run_loads() { keeps_run_loads_ = !computes_index(); }
std::vector<BodyCode::RunLoad> BodyCode::take_run_loads() { return std::exchange(run_loads_, {}); }
std::string BodyCode::take_indices() { return std::exchange(shared_indices_, {}); }

std::string BodyCode::take_before() { return std::exchange(before_, {}); }
std::string BodyCode::take_lane() { return std::exchange(lane_, {}); }
std::string BodyCode::take_lane_loop() {
  std::erase_if(written_, [](const auto& one) { return one.second.lanes != Lanes::none; });
  return take_lane();
}

BodyCode::Written BodyCode::define(Lanes lanes, DType dtype, const std::string& expression) {
  const std::string name = fresh("x");
  (lanes == Lanes::none ? before_ : lane_) +=
      fmt::format("const {} {} = {};\n", register_type(dtype), name, expression);
  return {name, lanes == Lanes::none ? Lanes::none : Lanes::any};
}

Term BodyCode::define_index(Lanes lanes, const std::string& expression) {
  const std::string name = fresh("i"), written = fmt::format("const index_t {} = {};\n", name, expression);
  if (lanes != Lanes::any) shared_indices_ += written;
  if (lanes == Lanes::any) lane_ += written;
  if (lanes != Lanes::any && !keeps_run_loads_) before_ += written;
  return {name, lanes};
}

Index BodyCode::at_linear(const std::string& linear, const ir::Shape& shape) {
  return from_linear({linear, lanes_ == 1 ? Lanes::none : Lanes::unit}, shape);
}

Index BodyCode::at(std::vector<Term> coords) const {
  Index index;
  index.coords = std::move(coords);
  return index;
}

/// Coordinates of a row-major offset. Where the run may cross a row's end they are those of each lane.
Index BodyCode::from_linear(const Term& linear, const ir::Shape& shape) {
  Index index;
  index.linear = linear;
  index.has_linear = true;
  index.coords.resize(shape.size());
  const bool whole_rows = linear.lanes != Lanes::unit || shape.size() < 2 || run_fits(shape.back());
  Term rest = whole_rows ? linear : Term{linear.in_lane(), Lanes::any};
  for (size_t d = shape.size(); d-- > 1;) {
    const bool is_run = rest.lanes == Lanes::unit;
    index.coords[d] = define_index(rest.lanes, fmt::format("remainder_of<{}>({})", shape[d], rest.text));
    rest = define_index(is_run ? Lanes::none : rest.lanes, fmt::format("quotient<{}>({})", shape[d], rest.text));
  }
  if (!shape.empty()) index.coords[0] = rest;
  return index;
}

Term BodyCode::offset(const ir::Shape& shape, const Index& index) const {
  if (index.has_linear) return index.linear;
  Term sum;
  for (size_t d = 0; d < shape.size(); ++d) {
    const Term& c = index.coords[d];
    const bool is_last = d + 1 == shape.size();
    if (c.lanes == Lanes::unit && is_last && sum.lanes == Lanes::none && (d == 0 || run_fits(shape[d]))) {
      sum = {d == 0 ? c.text : fmt::format("({} * {} + {})", sum.text, shape[d], c.text), Lanes::unit};
    } else {
      sum = {d == 0 ? c.in_lane() : fmt::format("({} * {} + {})", sum.text, shape[d], c.in_lane()),
             both(sum.lanes, c.lanes)};
    }
  }
  return sum;
}

const BodyCode::Written& BodyCode::write(ir::Value v, const Index& index) {
  if (const auto bound = bound_.find(v); bound != bound_.end()) return bound->second;
  const auto key = std::make_pair(v, index.key());
  if (const auto found = written_.find(key); found != written_.end()) return found->second;
  const ir::Node& node = body_.node(v);
  Written made;
  if (node.op == Op::input) {
    made = load(input_number(node), node.types[0], index);
  } else if (node.op == Op::constant) {
    made = {literal(node.as<ir::ConstantAttrs>().value, node.types[0].dtype), Lanes::none};
  } else {
    made = compute(node, index);
  }
  return written_.emplace(key, std::move(made)).first->second;
}

BodyCode::Written BodyCode::load(int input, const ir::Type& type, const Index& index) {
  const std::string& pointer = pointers_[static_cast<size_t>(input)];
  Term at = offset(type.shape, index);
  const int64_t size = ir::size_of(type.dtype);
  const int64_t aligned = alignment_.empty() ? 256 : alignment_[static_cast<size_t>(input)];
  const bool run_aligned = aligned % std::min<int64_t>(16, size * lanes_) == 0;
  if (at.lanes == Lanes::unit && (!run_aligned || index.valid_lanes != Lanes::none)) at = {at.in_lane(), Lanes::any};
  if (at.lanes == Lanes::unit) {
    const std::string name = fresh("r");
    const std::string declaration =
        fmt::format("{}<{}, {}>", keeps_run_loads_ ? "Held" : "Run", storage_type(type.dtype), lanes_);
    std::string read = fmt::format("load_{}<{}>({} + {}{})", keeps_run_loads_ ? "held" : "run", lanes_, pointer,
                                   at.text, available_.empty() ? "" : ", " + available_);
    if (!index.valid.empty()) read = fmt::format("{} ? {} : {}{{}}", index.valid, read, declaration);
    if (keeps_run_loads_) {
      run_loads_.push_back({input, size * lanes_, declaration, name, read});
    } else {
      before_ += fmt::format("const {} {} = {};\n", declaration, name, read);
    }
    return define(Lanes::any, type.dtype, fmt::format("widen({}[l])", name));
  }
  const Lanes lanes = both(at.lanes, index.valid_lanes);
  std::string condition = index.valid;
  if (lanes != Lanes::none && !available_.empty()) {
    condition = fmt::format("{}l < {}", condition.empty() ? "" : condition + " && ", available_);
  }
  std::string read = fmt::format("widen({}[{}])", pointer, at.text);
  if (!condition.empty()) read = fmt::format("{} ? {} : {}", condition, read, zero_of(type.dtype));
  if (lanes == Lanes::none && keeps_shared_loads_) {
    shared_loads_.push_back({register_type(type.dtype), fresh("x"), read});
    return {shared_loads_.back().name, Lanes::none};
  }
  return define(lanes, type.dtype, read);
}

BodyCode::Written BodyCode::compute(const ir::Node& node, const Index& index) {
  if (ir::has_trait(node, ir::kElementwise)) return elementwise(node, index);
  if (ir::has_trait(node, ir::kRandom)) return draw(node, index);
  switch (node.op) {
    case Op::concat:
      return concat(node, index);
    case Op::gather:
      return gather(node, index);
    case Op::scatter_add:
      return scatter_add(node, index);
    default:
      return moved(node, index);
  }
}

BodyCode::Written BodyCode::elementwise(const ir::Node& node, const Index& index) {
  std::string operands;
  Lanes lanes = Lanes::none;
  for (const ir::Value v : node.operands) {
    const Written& operand = write(v, index);
    operands += (operands.empty() ? "" : ", ") + operand.expression;
    lanes = both(lanes, operand.lanes);
  }
  const DType dtype = node.types[0].dtype;
  if (node.op == Op::cast) return define(lanes, dtype, fmt::format("op::cast<{}>({})", storage_type(dtype), operands));
  const bool is_exact = !has_halves_ && (node.op == Op::sigmoid || node.op == Op::silu);
  return define(lanes, dtype, fmt::format("op::{}{}({})", is_exact ? "exact_" : "", ir::to_string(node.op), operands));
}

Index BodyCode::shifted(const Index& index, size_t axis, int64_t by) const {
  Index to = index;
  to.has_linear = false;
  Term& c = to.coords[axis];
  if (by == 0) return to;
  // A run that starts elsewhere than at a multiple of its length is not aligned any more.
  if (c.lanes == Lanes::unit && by % lanes_ != 0) c = {c.in_lane(), Lanes::any};
  c.text = fmt::format("({} {} {})", c.text, by < 0 ? '-' : '+', std::abs(by));
  return to;
}

Index BodyCode::reshaped(const Index& index, const ir::Shape& from, const ir::Shape& to) {
  const Term linear = offset(from, index);
  Index result = from_linear(linear, to);
  result.valid = index.valid;
  result.valid_lanes = index.valid_lanes;
  return result;
}

BodyCode::Written BodyCode::moved(const ir::Node& node, const Index& index) {
  const ir::Value from = node.operands[0];
  const ir::Shape& shape = body_.type(from).shape;
  Index to = index;
  to.has_linear = false;
  switch (node.op) {
    case Op::broadcast: {
      to.coords.clear();
      for (const int64_t d : node.as<ir::BroadcastAttrs>().dims) {
        to.coords.push_back(index.coords[static_cast<size_t>(d)]);
      }
      return write(from, to);
    }
    case Op::reshape:
      return write(from, reshaped(index, node.types[0].shape, shape));
    case Op::view: {
      Term linear = offset(node.types[0].shape, index);
      const int64_t by = node.as<ir::ViewAttrs>().offset;
      if (linear.lanes == Lanes::unit && by % lanes_ != 0) linear = {linear.in_lane(), Lanes::any};
      linear.text = fmt::format("({} + {})", linear.text, by);
      to.coords = {linear};
      return write(from, to);
    }
    case Op::transpose: {
      const auto& perm = node.as<ir::TransposeAttrs>().perm;
      for (size_t d = 0; d < perm.size(); ++d) to.coords[static_cast<size_t>(perm[d])] = index.coords[d];
      return write(from, to);
    }
    case Op::slice: {
      const auto& a = node.as<ir::SliceAttrs>();
      return write(from, shifted(index, static_cast<size_t>(a.axis), a.begin));
    }
    case Op::reverse: {
      const auto axis = static_cast<size_t>(node.as<ir::ReverseAttrs>().axis);
      to.coords[axis] = {fmt::format("({} - {})", shape[axis] - 1, index.coords[axis].in_lane()),
                         per_lane(index.coords[axis])};
      return write(from, to);
    }
    case Op::pad: {
      const auto& a = node.as<ir::PadAttrs>();
      const auto axis = static_cast<size_t>(a.axis);
      const bool last = axis + 1 == shape.size();
      const bool in_runs = !last || (a.before % lanes_ == 0 && run_fits(shape[axis]));
      if (!in_runs) to.coords[axis] = {to.coords[axis].in_lane(), per_lane(to.coords[axis])};
      to = shifted(to, axis, -a.before);
      const Term& c = to.coords[axis];
      const Lanes lanes = c.lanes == Lanes::unit ? Lanes::none : c.lanes;
      const std::string inside = fmt::format("({} >= 0 && {} < {})", c.text, c.text, shape[axis]);
      require_valid(to, inside, lanes);
      const Written value = write(from, to);
      return define(both(value.lanes, lanes), node.types[0].dtype,
                    fmt::format("{} ? {} : {}", inside, value.expression, zero_of(node.types[0].dtype)));
    }
    case Op::upsample_nearest:
      for (const size_t d : {1, 2}) {
        to.coords[d] = {fmt::format("quotient<2>({})", index.coords[d].in_lane()), per_lane(index.coords[d])};
      }
      return write(from, to);
    case Op::avg_pool: {
      std::string pixels[4];
      Lanes lanes = Lanes::none;
      for (int i = 0; i < 4; ++i) {
        Index pixel = to;
        for (const size_t d : {1, 2}) {
          const int by = d == 1 ? i / 2 : i % 2;
          pixel.coords[d] = {fmt::format("({} * 2 + {})", index.coords[d].in_lane(), by), per_lane(index.coords[d])};
        }
        const Written value = write(from, pixel);
        pixels[i] = value.expression;
        lanes = both(lanes, value.lanes);
      }
      const DType dtype = node.types[0].dtype;
      return define(lanes, dtype,
                    fmt::format("op::cast<{}>(0.25f * (({} + {}) + ({} + {})))", storage_type(dtype), pixels[0],
                                pixels[1], pixels[2], pixels[3]));
    }
    case Op::repack: {  // flipped: [K, R, S, C] -> [C, R, S, K]
      to.coords[0] = index.coords[3];
      to.coords[3] = index.coords[0];
      for (const size_t d : {1, 2}) {
        to.coords[d] = {fmt::format("({} - {})", shape[d] - 1, index.coords[d].in_lane()), per_lane(index.coords[d])};
      }
      return write(from, to);
    }
    default:
      throw Error(fmt::format("no element code for the op {}", ir::to_string(node.op)));
  }
}

BodyCode::Written BodyCode::concat(const ir::Node& node, const Index& index) {
  const auto axis = static_cast<size_t>(node.as<ir::ConcatAttrs>().axis);
  bool in_runs = true;
  for (const ir::Value v : node.operands) in_runs = in_runs && run_fits(body_.type(v).shape[axis]);
  Index whole = index;
  Term& c = whole.coords[axis];
  if (c.lanes == Lanes::unit && !in_runs) c = {c.in_lane(), Lanes::any};
  const Lanes chosen = c.lanes == Lanes::unit ? Lanes::none : c.lanes;
  std::string expression;
  Lanes lanes = chosen;
  int64_t begin = 0;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const int64_t end = begin + body_.type(node.operands[i]).shape[axis];
    Index part = shifted(whole, axis, -begin);
    const std::string from = begin == 0 ? "" : fmt::format("{} >= {} && ", c.text, begin);
    require_valid(part, fmt::format("({}{} < {})", from, c.text, end), chosen);
    const Written value = write(node.operands[i], part);
    lanes = both(lanes, value.lanes);
    const bool is_last = i + 1 == node.operands.size();
    expression += is_last ? value.expression : fmt::format("{} < {} ? {} : ", c.text, end, value.expression);
    begin = end;
  }
  return define(lanes, node.types[0].dtype, expression);
}

/// A row that is not in the table gives NaN, which the loss then shows.
BodyCode::Written BodyCode::gather(const ir::Node& node, const Index& index) {
  const ir::Shape& table = body_.type(node.operands[0]).shape;
  Index of_row = at({index.coords[0]});
  of_row.valid = index.valid;
  of_row.valid_lanes = index.valid_lanes;
  const Written row = write(node.operands[1], of_row);
  const std::string inside = fmt::format("({} >= 0 && {} < {})", row.expression, row.expression, table[0]);
  Index to = index;
  to.has_linear = false;
  to.coords[0] = {fmt::format("static_cast<index_t>({})", row.expression), row.lanes};
  require_valid(to, inside, row.lanes);
  const Written value = write(node.operands[0], to);
  const DType dtype = node.types[0].dtype;
  return define(both(value.lanes, row.lanes), dtype,
                fmt::format("{} ? {} : {}", inside, value.expression,
                            ir::is_float(dtype) ? "__int_as_float(0x7fffffff)" : zero_of(dtype)));
}

/// Rows are added in index order by whoever owns the element.
BodyCode::Written BodyCode::scatter_add(const ir::Node& node, const Index& index) {
  const ir::Node &rows = body_.node(node.operands[1]), &indices = body_.node(node.operands[0]);
  if (rows.op != Op::input || indices.op != Op::input) throw Error("scatter_add reads tensors in memory only");
  const int at_rows = input_number(rows), at_index = input_number(indices);
  outers_.insert(at_index);
  Index in_row = index;
  in_row.has_linear = false;
  in_row.coords[0] = {"n", Lanes::none};
  Term from = offset(rows.types[0].shape, in_row);
  const std::string sum = fresh("s");
  const DType dtype = node.types[0].dtype;
  lane_ += fmt::format("{} {} = {};\n", register_type(dtype), sum, zero_of(dtype));
  lane_ += fmt::format("for (index_t n = 0; n < outer_{}; ++n) {{\n", at_index);
  const std::string guard = available_.empty() ? "" : fmt::format("l < {} && ", available_);
  lane_ += fmt::format("  if ({}{}[n] == {}) {} += widen({}[{}]);\n", guard, pointers_[static_cast<size_t>(at_index)],
                       index.coords[0].in_lane(), sum, pointers_[static_cast<size_t>(at_rows)], from.in_lane());
  lane_ += "}\n";
  return {sum, Lanes::any};
}

BodyCode::Key BodyCode::key_of(const ir::Node& draw, const Index& index) {
  Index of_sample = at({index.coords[0]});
  of_sample.valid = index.valid;
  of_sample.valid_lanes = index.valid_lanes;
  const auto seed = [&](const char* word) { return write(draw.operands[0], at({{word, Lanes::none}})); };
  const Written low = seed("0"), high = seed("1");
  return {low, high, write(draw.operands[1], of_sample), write(draw.operands[2], at({}))};
}

void BodyCode::write_key(const ir::Node& draw, const Index& index) { key_of(draw, index); }

BodyCode::Written BodyCode::draw(const ir::Node& node, const Index& index) {
  const auto [low, high, sample, step] = key_of(node, index);
  const ir::Shape& shape = node.types[0].shape;
  Index inside = at({index.coords.begin() + 1, index.coords.end()});
  const Term element = offset({shape.begin() + 1, shape.end()}, inside);
  const bool is_int = node.op == Op::random_int;
  const int64_t stream = is_int ? node.as<ir::RandomIntAttrs>().stream : node.as<ir::RandomAttrs>().stream;
  const auto words_of = [&](const std::string& at) {
    return fmt::format("block_of({}, {}, {}u, {}, {}, {})", low.expression, high.expression,
                       static_cast<uint32_t>(stream), sample.expression, step.expression, at);
  };
  const std::string bound = is_int ? fmt::format(", {}u", node.as<ir::RandomIntAttrs>().bound) : "";
  const std::string op{ir::to_string(node.op)};
  // Four neighbours have their words in common, and a run of the whole tensor begins with the first of four.
  constexpr int kNeighbours = 4;
  if (lanes_ % kNeighbours == 0 && index.has_linear && index.valid.empty() && element.lanes == Lanes::unit &&
      sample.lanes == Lanes::none) {
    const std::string name = fresh("words");
    std::string fours;
    for (int at = 0; at < lanes_; at += kNeighbours) {
      fours += fmt::format("{}{}", at == 0 ? "" : ", ", words_of(fmt::format("{} + {}", element.text, at)));
    }
    before_ += fmt::format("const Words {}[] = {{{}}};\n", name, fours);
    return define(Lanes::any, node.types[0].dtype, fmt::format("{}({}[l / 4], l % 4{})", op, name, bound));
  }
  const std::string at = element.in_lane();
  return define(both(element.lanes, sample.lanes), node.types[0].dtype,
                fmt::format("{}({}, static_cast<unsigned>({}) % 4{})", op, words_of(at), at, bound));
}

}  // namespace difuse::codegen::cuda
