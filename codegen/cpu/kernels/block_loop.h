// A run of elementwise ops, broadcasts and reductions over one tensor (or each image of one), block by block.
//
// A block of about a thousand elements stays in the first-level cache while every op of the program passes over it.
// Each value of the program has a register: an address that holds its block, either memory itself (a f32 operand that
// is read as it lies, a result that is written as it is computed) or a buffer in the thread's scratch. Operands are
// read before results are written, so a result may lie where an operand lies.
#pragma once

#include <vector>

#include "codegen/cpu/block_ops.h"
#include "codegen/cpu/kernels/access.h"
#include "codegen/cpu/kernels/unit.h"
#include "ir/types.h"

namespace difuse::codegen::cpu {

inline constexpr int64_t kBlock = 1024;  ///< Elements; a whole number of rows where operands have rows.

/// A register's block starts at element i of `place`: loaded (converted into `buffer` where memory and block differ),
/// or written there directly.
struct LinearAccess {
  int reg = -1;
  Place place;
  ir::DType dtype = ir::DType::f32;
  int64_t buffer = -1;
};

/// An operand that repeats. What is repeated is first converted to block form (`converted`) where memory differs.
struct RepeatedAccess {
  int reg = -1;
  Place place;
  ir::DType dtype = ir::DType::f32;
  Pattern pattern;
  int64_t elements = 1;    ///< Of the source.
  int64_t converted = -1;  ///< Scratch.
  int64_t buffer = -1;     ///< Scratch: the repeated block; none for a scalar.
};

struct Immediate {
  int reg = -1;
  uint32_t bits = 0;  ///< A float, or an integer for i32 and u32.
};

struct Operation {
  ElementwiseKernel kernel = nullptr;
  int in[3] = {-1, -1, -1};
  int count = 0;
  int out = -1;
  bool one = false;  ///< All operands are single values, so is the result.
};

struct Reduction {
  int reg = -1;
  bool largest = false;     ///< reduce_max instead of reduce_sum.
  Pattern pattern;          ///< Where element i adds to.
  int64_t results = 1;      ///< Elements of the result.
  int64_t accumulator = 0;  ///< Scratch.
  int64_t partial = 0;      ///< Scratch: one block's sum, so that long sums keep their digits.
  Place place;              ///< f32; per segment, `results` floats apart, in a segmented phase.
};

struct Store {
  int reg = -1;
  Place place;
  ir::DType dtype = ir::DType::f32;
};

class BlockLoop : public Step {
 public:
  void run(const Unit& unit) const override;

  int64_t elements = 0;  ///< Of one image.
  int64_t block = kBlock;
  bool contiguous = false;  ///< A unit's images lie side by side everywhere and nothing is per image: one long run.
  int registers = 0;
  int64_t register_file = 0;                     ///< Scratch: the registers' addresses.
  std::vector<std::pair<int, int64_t>> buffers;  ///< Registers in scratch, with their place there.
  std::vector<Immediate> immediates;
  std::vector<LinearAccess> loads, direct_stores;
  std::vector<RepeatedAccess> repeats;
  struct Instruction {
    enum class Kind : uint8_t { operation, reduction } kind;
    int index;
  };
  std::vector<Instruction> program;
  std::vector<Operation> operations;
  std::vector<Reduction> reductions;
  std::vector<Store> stores;  ///< After the block's last op.

 private:
  void start_thread(const Unit& unit) const;
  void start_image(const Unit& unit, int64_t image) const;
  void run_range(const Unit& unit, int64_t image, int64_t begin, int64_t end) const;
  void run_block(const Unit& unit, int64_t image, int64_t i, int64_t n, float** regs) const;
  void reduce_block(const Unit& unit, const Reduction& r, const float* in, int64_t i, int64_t n) const;
  void finish_image(const Unit& unit, int64_t image) const;
};

}  // namespace difuse::codegen::cpu
