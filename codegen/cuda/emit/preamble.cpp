// Loops over images that repeat what is finished of an image's partial results: a group_finish, sums of the parts that
// another kernel left of an image's channels, or elementwise ops over short rows that are reduced (reduction/rows.cpp).
// Every block of the loop's kernel makes them of its image, in shared memory; the image's first block stores them where
// others read them too. What is left is an elementwise body, or sums over pixels, that reads them as it reads its other
// operands.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "codegen/cuda/emit/finishes.h"
#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/join/part_sums.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"
#include "ir/builder.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Shape;
using ir::Value;

class WithPreamble {
 public:
  explicit WithPreamble(const KernelSpec& spec) : spec_(spec), body_(spec.body) {
    const std::vector<bool> live = body_.live();
    rows_.assign(static_cast<size_t>(body_.size()), false);
    for (int id = 0; id < body_.size(); ++id) {
      if (!live[static_cast<size_t>(id)]) continue;
      const Node& node = body_.node(id);
      if (node.op == Op::group_finish) {
        finishes_.push_back(id);
        made_.push_back({id, 0});
        made_.push_back({id, 1});
      }
      if (adds_parts(body_, node)) {
        sums_.push_back(id);
        made_.push_back({id, 0});
        continue;
      }
      // A sum over an image's pixels reduces four dimensions to fewer; what is computed of rows begins with three.
      const bool reduces_rows =
          reduction::is_reduction(node) && node.op != Op::group_finish && body_.type(node.operands[0]).rank() == 3;
      rows_[static_cast<size_t>(id)] = reduces_rows || std::ranges::any_of(node.operands, [&](Value v) {
                                         return is_row(v) && node.types[0].rank() < 4;
                                       });
    }
    for (int id = 0; id < body_.size(); ++id) {
      if (!rows_[static_cast<size_t>(id)] || body_.node(id).op == Op::reshape) continue;
      if (is_read_outside(id)) made_.push_back({id, 0}), row_results_.push_back({id, 0});
    }
    for (size_t r = 0; r < body_.outputs().size(); ++r) {
      const Value v = body_.outputs()[r].value;
      if (made_number(v) < made_.size()) {
        stored_.push_back(r);
      } else {
        looped_.push_back(r);
      }
    }
    const Graph loop = with_inputs(made_.size());
    std::vector<Value> values;
    for (const size_t r : looped_) values.push_back(loop.outputs()[r].value);
    loop_ = part_of(loop, values);
  }

  bool accepts() const {
    if (made_.empty() || looped_.empty()) return false;
    const Shape shape = reduction::iteration_shape(loop_);
    if (shape.size() != 4 || shape[3] == 1) return false;
    for (const int id : finishes_) {
      const Node& node = body_.node(id);
      const auto is_input = [&](Value v) { return body_.node(v).op == Op::input; };
      if (!std::ranges::all_of(node.operands, is_input) || node.types[0].shape[0] != shape[0]) return false;
    }
    const auto is_of_images = [&](int id) { return body_.node(id).types[0].shape[0] == shape[0]; };
    if (!std::ranges::all_of(sums_, is_of_images) || part_bytes(body_) > kMostPartBytes) return false;
    if (!row_results_.empty()) {
      const Graph rows = this->rows();
      if (!accepts_reduction(rows) || !reduction::reads_rows_again(rows)) return false;
      if (body_.type(row_results_[0]).rank() != 3 || body_.type(row_results_[0]).shape[0] != shape[0]) return false;
    }
    return accepts_elementwise(loop_) || sums_pixels(shape);
  }

  void emit(Emission& emission) {
    Preamble preamble;
    preamble.headers = {"group_finish.cuh", "vector.cuh", "ops.cuh", "reduce.cuh", "stage.cuh"};
    preamble.first_operand = spec_.operands.size();
    preamble.text = "const index_t this_image = static_cast<index_t>($image);\n";
    KernelSpec loop{loop_, spec_.operands, spec_.alignment, {}, {}, spec_.name, spec_.flops, spec_.device};
    for (const size_t r : looped_) {
      loop.results.push_back(spec_.results[r]);
      loop.result_alignment.push_back(spec_.result_alignment[r]);
    }
    for (size_t i = 0; i < made_.size(); ++i) {
      preamble.text +=
          fmt::format("__shared__ alignas({}) {} made{}[{}];\n", kMadeAlignment, type_of(i), i, elements(i));
      loop.operands.push_back(Argument::number(0));
      loop.alignment.push_back(kMadeAlignment);
    }
    std::string finishes;
    for (const int id : finishes_) {
      const size_t first = made_number({id, 0});
      finishes += group_finish_statements(body_, id, staged_operands(id, preamble),
                                          {fmt::format("made{}", first), fmt::format("made{}", first + 1)});
    }
    std::string sums;
    for (const int id : sums_) sums += sum_statements(id, staged_operands(id, preamble)[0]);
    const std::string rows = row_results_.empty() ? "" : row_results(preamble);
    if (!staged_.empty()) preamble.text += "stage::wait();\n";
    preamble.text += finishes + sums;
    if (!rows.empty() && !(finishes + sums).empty()) preamble.text += "__syncthreads();\n";
    preamble.text += rows;
    preamble.text += "__syncthreads();\n";
    for (size_t i = 0; i < made_.size(); ++i) preamble.text += pointer(i, fmt::format("p{}", operand(i)));
    for (const size_t r : stored_) store(preamble, r);
    loop.preamble = &preamble;
    (accepts_elementwise(loop_) ? emit_elementwise : emit_reduction)(loop, emission);
  }

 private:
  static constexpr int64_t kMadeAlignment = 16;
  /// Elements: what blocks have as static shared memory holds them beside the most that is made and summed.
  static constexpr int64_t kMostStagedRows = 1024;

  bool is_row(Value v) const { return rows_[static_cast<size_t>(v.node)]; }
  /// Whether the loop reads it, in another shape, or somebody else.
  bool is_read_outside(int id) const {
    for (const ir::NamedValue& output : body_.outputs()) {
      if (before_reshape(output.value).node == id) return true;
    }
    for (int reader = id + 1; reader < body_.size(); ++reader) {
      if (body_.node(reader).op == Op::reshape && body_.node(reader).operands[0].node == id) return true;
    }
    return false;
  }
  Value before_reshape(Value v) const {
    while (body_.node(v).op == Op::reshape) v = body_.node(v).operands[0];
    return v;
  }
  /// made_.size() where the preamble does not make it.
  size_t made_number(Value v) const {
    return static_cast<size_t>(std::ranges::find(made_, before_reshape(v)) - made_.begin());
  }
  size_t operand(size_t made) const { return spec_.operands.size() + made; }
  /// Of one image.
  int64_t elements(size_t made) const {
    const ir::Type& type = body_.type(made_[made]);
    return type.elements() / type.shape[0];
  }
  std::string type_of(size_t made) const { return storage_type(body_.type(made_[made]).dtype); }
  /// Declares a pointer with which an offset in the whole tensor is one in what the block has made.
  std::string pointer(size_t made, const std::string& name) const {
    return fmt::format("[[maybe_unused]] {0}* const {1} = made{2} - this_image * {3};\n", type_of(made), name, made,
                       elements(made));
  }

  /// With the first `count` of what the preamble makes as inputs. `rows` gets the row results.
  Graph with_inputs(size_t count, std::vector<Value>* rows = nullptr) const {
    return ir::rebuild(body_, [&](Graph& to, int id, const Node& node, const std::vector<Value>& operands) {
      std::vector<Value> results = ir::copy_node(to, node, operands);
      if (rows != nullptr && std::ranges::count(row_results_, Value{id, 0}) > 0) rows->push_back(results[0]);
      for (int r = 0; r < static_cast<int>(results.size()); ++r) {
        const size_t made = made_number({id, r});
        if (made >= count) continue;
        results[static_cast<size_t>(r)] =
            ir::Builder(to).input(std::to_string(operand(made)), node.types[static_cast<size_t>(r)]);
      }
      return results;
    });
  }

  /// The whole loop is one first stage whose images have blocks of their own.
  bool sums_pixels(const Shape& shape) const {
    constexpr int64_t kLeastPixels = 48;
    for (int id = 0; id < loop_.size(); ++id) {
      const Node& node = loop_.node(id);
      if (!reduction::is_reduction(node)) continue;
      if (node.op != Op::reduce_sum) return false;
      const auto& axes = node.as<ir::ReduceAttrs>().axes;
      if (axes != std::vector<int64_t>{1, 2} && axes != std::vector<int64_t>{0, 1, 2}) return false;
    }
    return shape[1] * shape[2] >= kLeastPixels && accepts_reduction(loop_);
  }

  /// What is computed of rows, of what is finished before.
  Graph rows() const {
    std::vector<Value> results;
    const Graph finished = with_inputs(made_.size() - row_results_.size(), &results);
    return part_of(finished, results);
  }

  /// Copies the block's image of an operand (`of_image`), or all of it, into shared memory, and gives a pointer with
  /// which an offset in the whole tensor is one in that.
  std::string staged(int input, bool of_image, Preamble& preamble) {
    const ir::Type& type = body_.type(body_.find_input(std::to_string(input)));
    const std::string from = read(input, preamble), name = fmt::format("staged{}", input);
    const std::string pointer = fmt::format("whole{}", input);
    if (!staged_.insert(input).second) return pointer;
    const int64_t elements = of_image ? type.elements() / type.shape[0] : type.elements();
    const bool in_runs = elements % 4 == 0 && spec_.alignment[static_cast<size_t>(input)] % 16 == 0;
    const std::string first = of_image ? fmt::format("this_image * {}", elements) : "0";
    preamble.text += fmt::format(R"(__shared__ alignas({0}) float {1}[{2}];
stage::copy<{2}, {3}, $threads>({1}, {4} + {6});
const float* const {5} = {1} - {6};
)",
                                 kMadeAlignment, name, elements, in_runs ? 4 : 1, from, pointer, first);
    return pointer;
  }

  std::vector<std::string> staged_operands(int id, Preamble& preamble) {
    std::vector<std::string> pointers;
    for (const Value v : body_.node(id).operands)
      pointers.push_back(staged(input_number(body_.node(v)), true, preamble));
    return pointers;
  }

  /// In the order in which a kernel that only adds the parts does it.
  std::string sum_statements(int id, const std::string& parts) const {
    const Node& node = body_.node(id);
    const size_t made = made_number({id, 0});
    const int64_t terms = body_.type(node.operands[0]).shape[1], channels = elements(made);
    return fmt::format(R"(#pragma unroll
for (int first = 0; first < {0}; first += $threads) {{
  const int c = first + static_cast<int>(threadIdx.x);
  if (c < {0}) made{1}[c] = reduce::sum_of_parts<{2}, {3}>({4} + this_image * {5} + c, {0});
}}
)",
                       channels, made, terms, reduction::part_rows(terms), parts, terms * channels);
  }

  /// The name of an operand's pointer in the preamble.
  std::string read(int input, Preamble& preamble) {
    std::string name = fmt::format("q{}", input);
    if (!read_.insert(input).second) return name;
    const ir::Type& type = body_.type(body_.find_input(std::to_string(input)));
    preamble.parameters.push_back(
        {name, fmt::format("const {}*", storage_type(type.dtype)), spec_.operands[static_cast<size_t>(input)]});
    preamble.bytes += type.bytes();
    return name;
  }

  static bool is_of_image(const ir::Type& type, const Graph& rows) {
    return type.shape == rows.type(rows.outputs()[0].value).shape;
  }
  /// Elements of an operand of the rows that a block needs: those of its image, or, where they have no image, all. None
  /// where it is neither.
  std::optional<int64_t> row_elements(const Graph& rows, int id) const {
    const ir::Type& type = rows.node(id).types[0];
    if (type.dtype != ir::DType::f32) return {};
    if (is_of_image(type, rows)) return type.elements() / type.shape[0];
    const std::vector<int> users = rows.users()[static_cast<size_t>(id)];
    const bool has_image = std::ranges::any_of(users, [&](int user) {
      const Node& node = rows.node(user);
      return node.op != Op::broadcast || std::ranges::count(node.as<ir::BroadcastAttrs>().dims, 0) > 0;
    });
    return has_image ? std::nullopt : std::optional(type.elements());
  }

  /// What is read of memory for the rows is copied together with what is finished before, where a block has room.
  std::string row_results(Preamble& preamble) {
    const Graph rows = this->rows();
    KernelSpec spec{rows, spec_.operands, spec_.alignment, {}, {}, spec_.name, 0, spec_.device};
    std::string pointers;
    int64_t room = kMostStagedRows;
    for (const int id : rows.leaves(Op::input)) {
      const int input = input_number(rows.node(id));
      const std::string type = storage_type(rows.node(id).types[0].dtype);
      if (input >= static_cast<int>(spec_.operands.size())) {
        pointers += pointer(static_cast<size_t>(input) - spec_.operands.size(), fmt::format("p{}", input));
        spec.operands.resize(static_cast<size_t>(input) + 1);
        spec.alignment.resize(spec.operands.size(), kMadeAlignment);
        continue;
      }
      std::string from;
      if (const auto elements = row_elements(rows, id); elements && *elements <= room) {
        room -= *elements;
        from = staged(input, is_of_image(rows.node(id).types[0], rows), preamble);
        spec.alignment[static_cast<size_t>(input)] = kMadeAlignment;
      } else {
        from = read(input, preamble);
      }
      pointers += fmt::format("[[maybe_unused]] const {}* const p{} = {};\n", type, input, from);
    }
    for (size_t r = 0; r < row_results_.size(); ++r) {
      pointers += pointer(made_number(row_results_[r]), Parameters::result(r));
      spec.results.push_back({Argument::Kind::workspace, 0});
      spec.result_alignment.push_back(kMadeAlignment);
    }
    const Shape& shape = rows.type(rows.outputs()[0].value).shape;
    return "{\n" + indented(pointers + row_statements(spec, shape[1]), 2) + "}\n";
  }

  void store(Preamble& preamble, size_t r) const {
    if (!spec_.wanted(r)) return;
    const size_t made = made_number(body_.outputs()[r].value);
    const std::string to = fmt::format("z{}", r);
    preamble.parameters.push_back({to, type_of(made) + "*", spec_.results[r]});
    preamble.bytes += body_.type(made_[made]).bytes();
    preamble.text += fmt::format(R"(if ($first) {{
#pragma unroll 1
  for (int c = static_cast<int>(threadIdx.x); c < {0}; c += $threads) {1}[this_image * {0} + c] = made{2}[c];
}}
)",
                                 elements(made), to, made);
  }

  const KernelSpec& spec_;
  const Graph& body_;
  std::vector<bool> rows_;  // by node: computed of a row's reduction
  std::vector<int> finishes_, sums_;
  std::vector<Value> made_, row_results_;
  std::vector<size_t> stored_, looped_;  // outputs
  Graph loop_{"loop"};
  std::set<int> read_, staged_;  // inputs
};

}  // namespace

bool accepts_with_preamble(const KernelSpec& spec) { return WithPreamble(spec).accepts(); }

void emit_with_preamble(const KernelSpec& spec, Emission& emission) { WithPreamble(spec).emit(emission); }

}  // namespace difuse::codegen::cuda
