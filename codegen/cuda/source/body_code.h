// Writes the CUDA statements that compute values of a body for a run of `lanes` consecutive elements.
//
// Statements come in two parts: those computed once for the run (vector loads, scalars that every lane shares), and
// those inside the loop over lanes, where the lane's number is the variable `l`. Each value is written at most once per
// index. Arithmetic is fp32; a cast rounds and the result stays a float; i32, u32 and u8 are `int`, `unsigned`,
// `unsigned`. Loads, stores and op functors are those of device/vector.cuh and device/ops.cuh.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace difuse::codegen::cuda {

/// How a coordinate or offset depends on the lane.
enum class Lanes : uint8_t {
  none,  ///< All lanes alike.
  unit,  ///< text + l.
  any,   ///< `text` mentions l.
};

/// An integer expression.
struct Term {
  std::string text = "0";
  Lanes lanes = Lanes::none;

  /// The expression for one lane.
  std::string in_lane() const { return lanes == Lanes::unit ? "(" + text + " + l)" : text; }
};

/// Where in a tensor: its coordinates, outermost first, and the row-major offset where that is known in itself.
struct Index {
  std::vector<Term> coords;
  Term linear;
  bool has_linear = false;
  std::string valid;                ///< A condition without which nothing may be loaded; empty: always.
  Lanes valid_lanes = Lanes::none;  ///< Never `unit`.

  std::string key() const;
};

class BodyCode {
 public:
  /// `index_t` is the integer that the generated code computes indices with (it declares `using index_t = ...`).
  /// `pointers[i]` is the pointer of input "i", which starts at a multiple of `alignment[i]` bytes (empty: of 256).
  /// `available` is the text of how many elements are left from the run's first one (at least 1), or empty where every
  /// run is whole. The outermost extent of input i, where it is needed, is the variable `outer_i` (see outers()).
  BodyCode(const ir::Graph& body, int lanes, std::vector<std::string> pointers, std::vector<int64_t> alignment = {},
           std::string available = "");

  /// Whether an op's element can be computed from elements of its operands.
  static bool can(const ir::Node& node);

  /// The run that starts at row-major offset `linear` of a tensor of `shape`: coordinates by division; the outermost
  /// extent is never written. `linear` must be a multiple of the lanes, and so must the last extent, or the rank be 1.
  Index at_linear(const std::string& linear, const ir::Shape& shape);
  /// The run at these coordinates; a last coordinate with Lanes::unit is the usual case.
  Index at(std::vector<Term> coords) const;

  /// Says that `v` is known, for whatever index: an expression, of one lane where `lanes` is not none.
  void bind(ir::Value v, std::string expression, Lanes lanes = Lanes::any);
  /// The value at an index: an expression to be used inside the lane loop (or anywhere where is_shared says so).
  std::string value(ir::Value v, const Index& index);
  bool is_shared(ir::Value v, const Index& index);
  /// The same, before the rounding that storing the value does anyway: for store_run.
  std::string unrounded(ir::Value v, const Index& index);

  /// Writes what the node, a random draw, has in common with the others of its image: what is written later for any
  /// index of that image refers to it.
  void write_key(const ir::Node& draw, const Index& index);

  /// From now on loads that all lanes share are kept out of take_before, which then refers to them by name; so that
  /// they can be done long before. Nothing is kept out where the body computes an index (Op::gather).
  void keep_shared_loads();
  struct SharedLoad {
    std::string type, name, expression;
  };
  const std::vector<SharedLoad>& shared_loads() const { return shared_loads_; }
  /// The indices that the shared loads are at, a statement a line; take_before has them too.
  const std::string& shared_indices() const { return shared_indices_; }

  /// From now on loads of runs are kept out of take_before, too, and so are indices, which take_indices has: so that a
  /// run, which is then Held, can be loaded long before it is used. Nothing is kept out where the body computes an
  /// index (Op::gather).
  void keep_run_loads();
  struct RunLoad {
    int input;
    int64_t bytes;
    std::string type, name, expression;
  };
  std::vector<RunLoad> take_run_loads();
  /// What the loads, and whatever is computed, take indices from: a statement a line.
  std::string take_indices();

  /// What has been written so far, a statement a line; takes it away. What is written later may refer to it.
  std::string take_before();
  std::string take_lane();
  /// The same, for a loop over lanes that ends here: what is written later is written anew.
  std::string take_lane_loop();
  /// Inputs whose outermost extent the statements read.
  const std::set<int>& outers() const { return outers_; }

 private:
  struct Written {
    std::string expression;
    Lanes lanes = Lanes::none;
  };
  static bool has_halves(const ir::Graph& body);
  bool computes_index() const;
  const Written& write(ir::Value v, const Index& index);
  Written load(int input, const ir::Type& type, const Index& index);
  Written compute(const ir::Node& node, const Index& index);
  Written elementwise(const ir::Node& node, const Index& index);
  Written moved(const ir::Node& node, const Index& index);
  Written concat(const ir::Node& node, const Index& index);
  Written gather(const ir::Node& node, const Index& index);
  Written scatter_add(const ir::Node& node, const Index& index);
  /// What a draw is keyed by.
  struct Key {
    Written low, high, sample, step;
  };
  Key key_of(const ir::Node& draw, const Index& index);
  Written draw(const ir::Node& node, const Index& index);
  /// A new constant of this type, written where its lanes allow.
  Written define(Lanes lanes, ir::DType dtype, const std::string& expression);
  Term define_index(Lanes lanes, const std::string& expression);

  Index shifted(const Index& index, size_t axis, int64_t by) const;
  Index reshaped(const Index& index, const ir::Shape& from, const ir::Shape& to);
  Index from_linear(const Term& linear, const ir::Shape& shape);
  Term offset(const ir::Shape& shape, const Index& index) const;
  bool run_fits(int64_t extent) const { return extent % lanes_ == 0; }
  std::string fresh(const char* prefix) { return prefix + std::to_string(names_++); }

  const ir::Graph& body_;
  int lanes_;
  std::vector<std::string> pointers_;
  std::vector<int64_t> alignment_;
  std::string available_;
  bool has_halves_;  ///< Numbers of 16 bits are among the body's, whose rounding hides that of quick functions.
  std::map<std::pair<ir::Value, std::string>, Written> written_;
  std::map<ir::Value, Written> bound_;
  std::string before_, lane_;
  bool keeps_shared_loads_ = false;
  std::vector<SharedLoad> shared_loads_;
  std::string shared_indices_;
  bool keeps_run_loads_ = false;
  std::vector<RunLoad> run_loads_;
  std::set<int> outers_;
  int names_ = 0;
};

/// As device/vector.cuh names it: "f32", "bf16", "u8", ...
std::string storage_type(ir::DType dtype);
/// The register type of a value: "float", "int" or "unsigned".
std::string register_type(ir::DType dtype);

}  // namespace difuse::codegen::cuda
