// A thread's loop over rows of a shape: several rows' loads are in flight at once, and what rows have in common -
// operands that a broadcast repeats along them, and what is computed of those alone - stays in registers.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/body_code.h"

namespace difuse::codegen::cuda {

/// Movement that is computed where it is read, in runs as they lie in memory.
bool moves_in_runs(const ir::Node& node);

/// Tensors over the whole of `shape` among the body's inputs, what moves in runs and its outputs: how many, the
/// bytes of an element of the narrowest, and of all inputs together.
struct WholeTensors {
  int count = 0;
  int64_t narrowest = 4, read_bytes = 0;

  /// The longest run whose loads all fit into registers at once: 16 bytes of the narrowest where tensors are few.
  int longest_run() const;
  /// Runs whose loads a thread has in flight at once.
  int runs_at_once(int lanes) const;
  /// Blocks of so many threads that an SM shall have room for: those of 512 threads, which leaves each 128 registers,
  /// and 255 where tensors are many.
  int64_t blocks_at_once(int64_t threads) const;
};
WholeTensors whole_tensors(const ir::Graph& body, const ir::Shape& shape);

/// Coordinates of a row-major offset `linear` inside `extents`; the outermost extent is not written.
std::vector<Term> split(const std::string& linear, std::span<const int64_t> extents, Lanes lanes);
/// What rows have in common, as statements, and which values it is.
struct Hoisted {
  struct Kept {
    ir::Value value;
    std::string expression;  ///< Of lane l, unless all lanes share it; it names a variable, a Run of all lanes.
    std::string variable;    ///< Empty where all lanes share the expression.
  };
  std::string text;
  std::vector<Kept> kept;
};
/// Statements that compute, before a loop over the dimensions of `shape` from `begin` up to `end`, what those have in
/// common: operands that a broadcast repeats along them, what is computed of those alone, and what an image's draws are
/// keyed by. `code` then knows these values. `index` is that of any row.
Hoisted hoist(BodyCode& code, const ir::Graph& body, const Index& index, const ir::Shape& shape, size_t begin,
              size_t end, int lanes);
/// Neighbouring runs of one block, of `runs` in all: at least `least`, a power of two, where there are so many, with
/// little left over. With a preamble, whose threads are whole warps, it is a power of two.
int64_t block_columns(int64_t runs, int64_t least, const KernelSpec& spec);

/// The shape is outer x rows x inner, where rows are the dimensions from `begin` up to `end`.
struct RowLoop {
  const ir::Graph& body;
  const ir::Shape& shape;
  size_t begin, end;
  int lanes;
  int at_once;           ///< Rows whose loads are in flight, a power of two: fewer where the body reads more of each.
  int64_t step, stride;  ///< From one of a thread's rows to its next, and from a row's elements to the next row's.
  bool whole = false;    ///< Every thread has a multiple of `at_once` rows.
};

/// What a thread does, from the row `r` on, a variable, up to `end`. It reads the variables `o` (outer) and `i`
/// (inner); row r of the thread's run is at `base` + r * `stride`.
struct RowCode {
  std::string loads;    ///< Begins to load what rows have in common and the first rows: nothing of the spec's preamble,
                        ///< before which it may stand.
  std::string hoisted;  ///< What rows have in common.
  std::string loops;    ///< What is done to each row.
  std::set<int> outers;  ///< As in BodyCode.
};

/// `stored`: outputs that are written. `more` gives statements for each lane `l` of a row; it gets the code and the
/// row's index. A thread's rows come in their order.
RowCode row_code(const RowLoop& loop, const KernelSpec& spec, const std::vector<size_t>& stored,
                 const std::function<std::string(BodyCode&, const Index&)>& more);

}  // namespace difuse::codegen::cuda
