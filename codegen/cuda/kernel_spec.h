// What an emitter gets and what it gives.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_plan.h"
#include "codegen/cuda/preamble.h"
#include "ir/device_spec.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

/// One node of the graph as a problem: a body (node_body.h: inputs "0", "1", ..., outputs "0", "1", ...) and where its
/// operands and results lie.
struct KernelSpec {
  const ir::Graph& body;
  std::vector<Argument> operands;  ///< By input. Every operand starts at a multiple of its `alignment`.
  std::vector<int64_t> alignment;  ///< Bytes, by input; at most 256.
  std::vector<Argument> results;   ///< By output; kind `number` where nobody reads the result: it is not stored.
  std::vector<int64_t> result_alignment;
  std::string name;  ///< What it computes, without the batch: "conv_fprop_3x3_h28w28c32k32".
  int64_t flops = 0;
  const ir::DeviceSpec& device;
  std::vector<bool> is_tf32 = {};  ///< By input, empty for none: every element is a float rounded to tf32.
  std::vector<size_t> tiles = {};  ///< By choice of its emitter: the candidate to take; the first where it is missing.
  const Preamble* preamble = nullptr;  ///< The kernel's blocks are then inside one image each.
  int members = 1;  ///< Equal specs that run at once, this one among them: they share the processors.

  bool reads_tf32(int input) const {
    return static_cast<size_t>(input) < is_tf32.size() && is_tf32[static_cast<size_t>(input)];
  }
  bool wanted(size_t result) const { return results[result].kind != Argument::Kind::number; }
  size_t tile(size_t choice) const { return choice < tiles.size() ? tiles[choice] : 0; }
};

/// What an emitter leaves open: the tile of one of its kernels. No bit of a result depends on it.
struct TileChoice {
  std::string problem;  ///< All that the times depend on but the batch and the card (problem_text).
  int64_t batch = 1;    ///< Images, or rows of a matrix.
  std::vector<std::string>
      tiles;                     ///< The candidates' names, each once, the best estimate first; the same at any batch.
  std::vector<size_t> at_batch;  ///< The candidates by estimate for this very batch; empty where that is their order.
};

/// A kernel's source before it has a name: `$kernel` stands for the name in `source`, which defines
/// `extern "C" __global__ void $kernel(...)` and begins with the device headers it needs (device_source).
///
/// The batch never appears in the source: it is an argument, so that a new batch compiles nothing.
struct KernelDraft {
  std::string name;  ///< What it computes; a hash of the source is appended.
  std::string source;
  std::vector<std::string> options;  ///< NVRTC options beyond the fixed ones.
  Grid grid;
  int threads = 128;
  int64_t shared_bytes = 0;
  std::vector<Argument> arguments;
  std::vector<TensorMapSpec> tensor_maps = {};
  int64_t bytes = 0, flops = 0;
  int choice = -1;  ///< Which choice of its emitter is the kernel's tile; -1: none.
  /// Makes results of what an earlier launch of the spec left in the workspace, which it does not change.
  bool is_second_stage = false;
  PartSums part_sums = {};  ///< Of such a second stage.
  int64_t sharers = 1;      ///< Of such a second stage: threads that share a sum.
  /// An operand that the kernel reads, where `waits` is Waits::after_early_reads (join/overlap.h), before it waits for
  /// the launch before it.
  std::optional<Argument> early = {};
};

/// Bytes: what an emitter has of the workspace starts at a multiple.
inline constexpr int64_t kWorkspaceAlignment = 256;

/// Collects what an emitter makes of one spec.
class Emission {
 public:
  virtual ~Emission() = default;
  /// `bytes` of workspace, at a multiple of kWorkspaceAlignment, that the spec's own launches share.
  virtual Argument workspace(int64_t bytes) = 0;
  /// Launches run in the order of these calls.
  virtual void launch(KernelDraft draft) = 0;
  /// Adds the kernel of a launch that the spec has at another batch, so that a new batch compiles nothing.
  virtual void prepare(KernelDraft draft) = 0;
};

/// Turns one kind of body into launches.
struct Emitter {
  std::string_view name;
  bool (*accepts)(const KernelSpec& spec);
  void (*emit)(const KernelSpec& spec, Emission& emission);
  std::vector<TileChoice> (*choices)(const KernelSpec& spec) = nullptr;  ///< Null: it leaves nothing open.
  bool independent = false;        ///< None of a spec's launches reads what another writes.
  bool shares_processors = false;  ///< Has fewer blocks, and less to do in all, where a spec has other members.
};

/// In the order in which they are asked; the first that accepts a body emits it.
std::span<const Emitter> emitters();
/// Throws Error where there is none.
const Emitter& find_emitter(const KernelSpec& spec);

// By hero; each in emit/<name>.cpp.
bool accepts_conv_wgmma(const KernelSpec& spec);  ///< conv_fprop in bf16 or tf32, conv_dgrad in bf16 on Hopper, of the
                                                  ///< shapes that its engines take.
void emit_conv_wgmma(const KernelSpec& spec, Emission& emission);
std::vector<TileChoice> conv_wgmma_choices(const KernelSpec& spec);
bool accepts_wgrad_wgmma(const KernelSpec& spec);  ///< conv_wgrad in bf16 or tf32 on Hopper, likewise.
void emit_wgrad_wgmma(const KernelSpec& spec, Emission& emission);
std::vector<TileChoice> wgrad_wgmma_choices(const KernelSpec& spec);
bool accepts_contraction(const ir::Graph& body);  ///< conv_fprop, conv_dgrad, conv_wgrad, matmul and what is around it.
void emit_contraction(const KernelSpec& spec, Emission& emission);
std::vector<TileChoice> contraction_choices(const KernelSpec& spec);
bool accepts_attention_wgmma(const KernelSpec& spec);  ///< Likewise on Hopper, heads that fit a block's shared memory.
void emit_attention_wgmma(const KernelSpec& spec, Emission& emission);
std::vector<TileChoice> attention_wgmma_choices(const KernelSpec& spec);
bool accepts_attention_stream(const KernelSpec& spec);  ///< Likewise, of any length, heads of 64, 128 or 256 channels.
void emit_attention_stream(const KernelSpec& spec, Emission& emission);
bool accepts_attention(const ir::Graph& body);  ///< attention or attention_grad.
void emit_attention(const KernelSpec& spec, Emission& emission);
std::vector<TileChoice> attention_choices(const KernelSpec& spec);
bool accepts_apart(const KernelSpec& spec);  ///< Contractions with reductions that their emitters do not take.
void emit_apart(const KernelSpec& spec, Emission& emission);
std::vector<TileChoice> apart_choices(const KernelSpec& spec);
bool accepts_pack(const ir::Graph& body);
void emit_pack(const KernelSpec& spec, Emission& emission);
bool accepts_repack(const ir::Graph& body);  ///< A filter that is turned, and nothing else, of 16 channels or more.
void emit_repack(const KernelSpec& spec, Emission& emission);
bool accepts_group_finish(const ir::Graph& body);
void emit_group_finish(const KernelSpec& spec, Emission& emission);
bool accepts_reduction(const ir::Graph& body);  ///< reduce_sum, reduce_max, channel_moments, with elementwise ops.
void emit_reduction(const KernelSpec& spec, Emission& emission);
bool accepts_with_preamble(
    const KernelSpec& spec);  ///< A loop over images, and what it repeats of their partial results.
void emit_with_preamble(const KernelSpec& spec, Emission& emission);
bool accepts_elementwise(const ir::Graph& body);  ///< Ops whose element is computed from elements: BodyCode::can.
void emit_elementwise(const KernelSpec& spec, Emission& emission);

}  // namespace difuse::codegen::cuda
