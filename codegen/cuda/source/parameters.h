// Small pieces that every emitter's source text needs: a kernel's parameters, and templates with named fields.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

/// What a template's field takes a number as.
inline std::string text(int64_t n) { return std::to_string(n); }

/// A kernel's parameter list as text and as arguments, in one order: operands that the body reads, results that are
/// wanted, what the preamble reads and writes, numbers.
class Parameters {
 public:
  /// Operands and results that are passed as tensor maps, under the names of their pointers.
  struct Maps {
    std::map<size_t, TensorMapSpec> operands, results;
  };

  /// `body` is the spec's, or one with the same inputs and outputs.
  Parameters(const ir::Graph& body, const KernelSpec& spec, const Maps& maps = {});

  /// Appends a `long long`.
  void add(std::string name, int64_t number);
  /// Appends a pointer: "const f32*".
  void add(std::string name, std::string type, Argument argument);

  /// Appends a tensor map.
  void add(std::string name, const TensorMapSpec& map);

  /// The outermost extents of these inputs (BodyCode::outers), as `outer_i`.
  void add_outers(const ir::Graph& body, const std::set<int>& inputs);

  /// The pointers of the body's inputs "0", "1", ...: "p0", "p1", ...
  const std::vector<std::string>& operands() const { return operands_; }
  /// "y0", ...
  static std::string result(size_t r) { return "y" + std::to_string(r); }

  std::string text() const { return text_; }
  const std::vector<Argument>& arguments() const { return arguments_; }
  const std::vector<TensorMapSpec>& tensor_maps() const { return tensor_maps_; }
  /// Of the operands and results among the parameters, each once.
  int64_t bytes() const { return bytes_; }

 private:
  std::string text_;
  std::vector<std::string> operands_;
  std::vector<Argument> arguments_;
  std::vector<TensorMapSpec> tensor_maps_;
  int64_t bytes_ = 0;
};

/// The headers, and those of the spec's preamble.
std::vector<std::string_view> with_preamble(std::vector<std::string_view> headers, const KernelSpec& spec);
/// The spec's preamble, with its fields filled in; empty where there is none.
std::string preamble_text(const KernelSpec& spec, const std::string& image, int64_t threads, const std::string& first);

/// `text` with every `$name` of `fields` replaced; a longer name wins. Other `$` stay ($kernel is filled in later).
std::string filled(std::string_view text, const std::vector<std::pair<std::string_view, std::string>>& fields);

/// Every line moved right by `spaces`.
std::string indented(std::string_view lines, int spaces);

}  // namespace difuse::codegen::cuda
