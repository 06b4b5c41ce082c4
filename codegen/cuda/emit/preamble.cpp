// Loops over images that repeat what is finished of an image's partial results: a group_finish, sums of the parts that
// another kernel left of an image's channels, or elementwise ops over short rows that are reduced (reduction/rows.cpp).
// Every block of the loop's kernel makes them of its image, in shared memory; the image's first block stores them where
// others read them too. What is left is an elementwise body, or sums over pixels, that reads them as it reads its other
// operands.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "codegen/cuda/emit/finished.h"
#include "codegen/cuda/emit/finishes.h"
#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/join/part_sums.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/node_body.h"
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
  explicit WithPreamble(const KernelSpec& spec) : spec_(spec), body_(spec.body), parts_(spec.body) {
    for (size_t r = 0; r < body_.outputs().size(); ++r) {
      const Value v = body_.outputs()[r].value;
      if (parts_.number(v) < made_.size()) {
        stored_.push_back(r);
      } else {
        looped_.push_back(r);
      }
    }
    const Graph loop = parts_.with_inputs(operand(0), made_.size());
    std::vector<Value> values;
    for (const size_t r : looped_) values.push_back(loop.outputs()[r].value);
    loop_ = part_of(loop, values);
  }

  bool accepts() const {
    if (made_.empty() || looped_.empty()) return false;
    const Shape shape = reduction::iteration_shape(loop_);
    if (shape.size() != 4 || shape[3] == 1 || !parts_.accepts(shape[0])) return false;
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
    for (const int id : parts_.finishes()) {
      const size_t first = parts_.number({id, 0});
      finishes += group_finish_statements(body_, id, staged_operands(id, preamble),
                                          {fmt::format("made{}", first), fmt::format("made{}", first + 1)});
    }
    std::string sums;
    for (const int id : parts_.sums()) sums += sum_statements(id, staged_operands(id, preamble)[0]);
    const std::string rows = parts_.row_results().empty() ? "" : row_results(preamble);
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

  size_t operand(size_t made) const { return spec_.operands.size() + made; }
  int64_t elements(size_t made) const { return parts_.elements(made); }
  std::string type_of(size_t made) const { return storage_type(body_.type(made_[made]).dtype); }
  /// Declares a pointer with which an offset in the whole tensor is one in what the block has made.
  std::string pointer(size_t made, const std::string& name) const {
    return fmt::format("[[maybe_unused]] {0}* const {1} = made{2} - this_image * {3};\n", type_of(made), name, made,
                       elements(made));
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
    const size_t made = parts_.number({id, 0});
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
    const Graph rows = parts_.rows(operand(0));
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
    for (size_t r = 0; r < parts_.row_results().size(); ++r) {
      pointers += pointer(parts_.number(parts_.row_results()[r]), Parameters::result(r));
      spec.results.push_back({Argument::Kind::workspace, 0});
      spec.result_alignment.push_back(kMadeAlignment);
    }
    const Shape& shape = rows.type(rows.outputs()[0].value).shape;
    return "{\n" + indented(pointers + row_statements(spec, shape[1]), 2) + "}\n";
  }

  void store(Preamble& preamble, size_t r) const {
    if (!spec_.wanted(r)) return;
    const size_t made = parts_.number(body_.outputs()[r].value);
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
  const FinishedParts parts_;
  const std::vector<Value>& made_ = parts_.made();
  std::vector<size_t> stored_, looped_;  // outputs
  Graph loop_{"loop"};
  std::set<int> read_, staged_;  // inputs
};

}  // namespace

bool accepts_with_preamble(const KernelSpec& spec) { return WithPreamble(spec).accepts(); }

void emit_with_preamble(const KernelSpec& spec, Emission& emission) { WithPreamble(spec).emit(emission); }

}  // namespace difuse::codegen::cuda
