// Loops over images that repeat what is finished of an image's partial results: a group_finish, or elementwise ops over
// short rows that are reduced (reduction/rows.cpp). Every block of the loop's kernel makes them of its image, in shared
// memory; the image's first block stores them where others read them too. What is left is an elementwise body, or sums
// over pixels, that reads them as it reads its other operands.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "codegen/cuda/emit/finishes.h"
#include "codegen/cuda/emit/reduction/parts.h"
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
    const Graph loop = loop_body();
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
    if (!row_results_.empty()) {
      const Graph rows = part_of(body_, row_results_);
      if (!accepts_reduction(rows) || !reduction::reads_rows_again(rows)) return false;
      if (body_.type(row_results_[0]).rank() != 3 || body_.type(row_results_[0]).shape[0] != shape[0]) return false;
    }
    return accepts_elementwise(loop_) || sums_pixels(shape);
  }

  void emit(Emission& emission) {
    Preamble preamble;
    preamble.headers = {"group_finish.cuh", "vector.cuh", "ops.cuh", "reduce.cuh"};
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
    for (const int id : finishes_) {
      const size_t first = made_number({id, 0});
      preamble.text += group_finish_statements(body_, id, operands_of(id, preamble),
                                               {fmt::format("made{}", first), fmt::format("made{}", first + 1)});
    }
    if (!row_results_.empty()) add_rows(preamble);
    preamble.text += "__syncthreads();\n";
    for (size_t i = 0; i < made_.size(); ++i) preamble.text += pointer(i, fmt::format("p{}", operand(i)));
    for (const size_t r : stored_) store(preamble, r);
    loop.preamble = &preamble;
    (accepts_elementwise(loop_) ? emit_elementwise : emit_reduction)(loop, emission);
  }

 private:
  static constexpr int64_t kMadeAlignment = 16;

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

  /// With what the preamble makes as inputs.
  Graph loop_body() const {
    return ir::rebuild(body_, [&](Graph& to, int id, const Node& node, const std::vector<Value>& operands) {
      std::vector<Value> results = ir::copy_node(to, node, operands);
      for (int r = 0; r < static_cast<int>(results.size()); ++r) {
        const size_t made = made_number({id, r});
        if (made == made_.size()) continue;
        results[static_cast<size_t>(r)] =
            ir::Builder(to).input(std::to_string(operand(made)), node.types[static_cast<size_t>(r)]);
      }
      return results;
    });
  }

  /// The whole loop is one first stage whose images have blocks of their own.
  bool sums_pixels(const Shape& shape) const {
    constexpr int64_t kLeastPixels = 64;
    for (int id = 0; id < loop_.size(); ++id) {
      const Node& node = loop_.node(id);
      if (!reduction::is_reduction(node)) continue;
      if (node.op != Op::reduce_sum) return false;
      const auto& axes = node.as<ir::ReduceAttrs>().axes;
      if (axes != std::vector<int64_t>{1, 2} && axes != std::vector<int64_t>{0, 1, 2}) return false;
    }
    return shape[1] * shape[2] >= kLeastPixels && accepts_reduction(loop_);
  }

  std::vector<std::string> operands_of(int id, Preamble& preamble) {
    std::vector<std::string> pointers;
    for (const Value v : body_.node(id).operands) pointers.push_back(read(input_number(body_.node(v)), preamble));
    return pointers;
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

  void add_rows(Preamble& preamble) {
    const Graph rows = part_of(body_, row_results_);
    KernelSpec spec{rows, spec_.operands, spec_.alignment, {}, {}, spec_.name, 0, spec_.device};
    std::string pointers;
    for (const int id : rows.leaves(Op::input)) {
      const int input = input_number(rows.node(id));
      const std::string type = storage_type(rows.node(id).types[0].dtype);
      pointers += fmt::format("[[maybe_unused]] const {}* const p{} = {};\n", type, input, read(input, preamble));
    }
    for (size_t r = 0; r < row_results_.size(); ++r) {
      pointers += pointer(made_number(row_results_[r]), Parameters::result(r));
      spec.results.push_back({Argument::Kind::workspace, 0});
      spec.result_alignment.push_back(kMadeAlignment);
    }
    const Shape& shape = rows.type(rows.outputs()[0].value).shape;
    preamble.text += "{\n" + indented(pointers + row_statements(spec, shape[1]), 2) + "}\n";
  }

  void store(Preamble& preamble, size_t r) const {
    if (!spec_.wanted(r)) return;
    const size_t made = made_number(body_.outputs()[r].value);
    const std::string to = fmt::format("z{}", r);
    preamble.parameters.push_back({to, type_of(made) + "*", spec_.results[r]});
    preamble.bytes += body_.type(made_[made]).bytes();
    preamble.text += fmt::format(R"(if ($first) {{
  for (int c = static_cast<int>(threadIdx.x); c < {0}; c += $threads) {1}[this_image * {0} + c] = made{2}[c];
}}
)",
                                 elements(made), to, made);
  }

  const KernelSpec& spec_;
  const Graph& body_;
  std::vector<bool> rows_;  // by node: computed of a row's reduction
  std::vector<int> finishes_;
  std::vector<Value> made_, row_results_;
  std::vector<size_t> stored_, looped_;  // outputs
  Graph loop_{"loop"};
  std::set<int> read_;
};

}  // namespace

bool accepts_with_preamble(const KernelSpec& spec) { return WithPreamble(spec).accepts(); }

void emit_with_preamble(const KernelSpec& spec, Emission& emission) { WithPreamble(spec).emit(emission); }

}  // namespace difuse::codegen::cuda
