// An attention kernel's problem, and how it may be cut into blocks.
#pragma once

#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

/// Which kernel: the value, or the gradient of queries, or of keys and values. The latter owns keys and streams
/// queries; the others own queries and stream keys.
enum class AttentionPart : uint8_t { forward, query_gradient, key_gradient };

struct AttentionProblem {
  ir::Value value;       ///< The first result of the body's attention node.
  ir::DType element{};   ///< What is multiplied; f32 where the operands have different types.
  ir::DType source{};    ///< Of qkv.
  ir::DType gradient{};  ///< Of dout; the forward's is `source`.
  bool is_tf32 = false;  ///< Elements are f32, all of them rounded to tf32.
  int64_t images = 1;
  int64_t length = 1, heads = 1, width = 1;
  int copy = 0, gradient_copy = 0;  ///< Elements of one copy; 0: one at a time, converted.
  bool is_wide_index = false;       ///< 32 bits do not reach every element.
  std::vector<int> inputs;          ///< The body's inputs that are the node's operands.

  bool is_grad() const { return inputs.size() > 1; }
  int64_t channels() const { return heads * width; }
  /// Products are chains of multiply-adds.
  bool is_chain() const { return element == ir::DType::f32 && !is_tf32; }
};

/// What the device headers call the elements: "tf32".
std::string element_type(const AttentionProblem& problem);

/// Whether a body is one attention node, its operands inputs, with elementwise ops on its results.
bool is_attention_problem(const ir::Graph& body);
AttentionProblem attention_problem(const KernelSpec& spec);

/// As in device/attention.cuh.
struct AttentionTile {
  int warps = 4, blocks_m = 1;
  int step = 64;     ///< Follows from the problem alone: it decides the order of sums.
  int columns = 64;  ///< Of the result, a block.
  int splits = 1;    ///< Blocks that share the result's columns.
  int depth = 64;    ///< Of a row's width, in shared memory at once.
  int chunks = 1;    ///< Of a row's width; more than one: both sides' rows are streamed.
  int stages = 2;

  int rows() const { return 16 * blocks_m * warps; }
  int threads() const { return 32 * warps; }
  bool is_wide() const { return chunks > 1; }
  bool operator==(const AttentionTile&) const = default;
};

/// "64 rows (4 warps x 1), step 64, 32 columns x 1, depth 32 x 1, 2 stages"
std::string to_string(const AttentionTile& tile);

/// As the device headers compute it.
int64_t shared_bytes(const AttentionProblem& problem, AttentionPart part, const AttentionTile& tile);

/// An estimate from above of a thread's registers.
int estimated_registers(const AttentionProblem& problem, AttentionPart part, const AttentionTile& tile);

/// How many blocks one processor is to hold at a time: what the compiler is told, so that it neither takes registers
/// that keep a block out nor spills to let one more in.
int resident_blocks(const AttentionProblem& problem, AttentionPart part, const AttentionTile& tile,
                    const ir::DeviceSpec& device);

/// All that fit, the one with the least estimated time first; at least one. Depends on nothing that holds the batch.
std::vector<AttentionTile> candidates(const AttentionProblem& problem, AttentionPart part,
                                      const ir::DeviceSpec& device);

}  // namespace difuse::codegen::cuda
