// codegen/cuda/ says how a fused graph becomes CUDA source and launches. What must not live here: compiling the source
// (codegen/jit/), the driver, devices and memory (runtime/).
//
// This file: a graph lowered for a CUDA device, as plain data: what to compile and what to launch, in order. Everything
// in it can be made and read without a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codegen/jit/kernel.h"
#include "ir/graph.h"
#include "passes/memory_plan.h"

namespace difuse::codegen::cuda {

/// One argument of a launch; the kernel's parameter is 8 bytes wide, a pointer or a `long long`, or a tensor map's 128.
struct Argument {
  enum class Kind : uint8_t {
    arena,       ///< A pointer: the arena's start plus `value` bytes.
    workspace,   ///< A pointer: the workspace's start plus `value` bytes.
    number,      ///< `value` itself.
    tensor_map,  ///< The launch's tensor map number `value`, as a `const __grid_constant__ TensorMap`.
  };
  Kind kind = Kind::number;
  int64_t value = 0;

  static Argument number(int64_t n) { return {Kind::number, n}; }
  bool operator==(const Argument&) const = default;
};

/// What Hopper's copy engine is told of a tensor: where it lies and which box of it one copy moves. Dimensions are
/// listed innermost first. In shared memory a row of the box is 128 or 64 bytes, its 16-byte chunks exchanged
/// (device/ptx_sm90.cuh); what lies outside the tensor is read as zeros and not written.
struct TensorMapSpec {
  Argument start = {};  ///< In the arena or the workspace, at a multiple of 16 bytes.
  ir::DType dtype = ir::DType::bf16;
  std::vector<int64_t> extents = {};  ///< Elements.
  std::vector<int64_t> strides = {};  ///< Bytes, multiples of 16, of all dimensions but the innermost.
  std::vector<int64_t> box = {};      ///< Elements, at most 256; the innermost dimension's are 128 or 64 bytes.
  std::vector<int64_t> steps = {};    ///< Every how many elements one is copied.

  int64_t row_bytes() const { return box[0] * ir::size_of(dtype); }
  bool operator==(const TensorMapSpec&) const = default;
};

struct Grid {
  int64_t x = 1, y = 1, z = 1;
  bool operator==(const Grid&) const = default;
};

/// What a second stage does that only adds an image's parts of each channel: to[i] is [images, channels], the sum of
/// from[i], [images, terms, channels], over the terms; all f32. With images = 0 it does something else.
struct PartSums {
  int64_t images = 0, terms = 0, channels = 0;
  std::vector<Argument> from = {}, to = {};
};

/// Bytes [begin, end) of the workspace.
struct WorkspaceRange {
  int64_t begin = 0, end = 0;
};

/// One launch.
struct KernelCall {
  int source = -1;  ///< Index into CudaPlan::sources.
  int node = -1;    ///< The graph node that it computes, or takes part in.
  Grid grid;
  int threads = 128;         ///< Of a block.
  int64_t shared_bytes = 0;  ///< Dynamic shared memory of a block.
  std::vector<Argument> arguments;
  std::vector<TensorMapSpec> tensor_maps = {};
  std::vector<WorkspaceRange> workspace = {};  ///< Of the arguments that lie there.
  int64_t bytes = 0;                           ///< Operands read once and results written once.
  int64_t flops = 0;                           ///< Multiply and add of its contraction; 0 for other kernels.
  int choice = -1;                             ///< Which choice of the node's emitter its tile is; -1: it has no other.
  /// Equal launches in this one (join/table.h): blocks with z = i are the i-th's. With more than one, `arguments` are
  /// those of each, one after the other, and the kernel's one parameter is a table of them, of `table_bytes`.
  int members = 1;
  int64_t table_bytes = 0;
  std::vector<int> more_nodes = {};    ///< The nodes of the members after the first.
  bool is_copy = false;                ///< Copies a state, after all nodes; `node` is where the next value comes from.
  bool is_second_stage = false;        ///< KernelDraft::is_second_stage.
  PartSums part_sums = {};             ///< KernelDraft::part_sums.
  int64_t sharers = 1;                 ///< KernelDraft::sharers.
  std::optional<Argument> early = {};  ///< KernelDraft::early.

  int node_of(int member) const { return member == 0 ? node : more_nodes[static_cast<size_t>(member) - 1]; }
};

/// The tile of a problem that has several.
struct ChosenTile {
  int node = -1, choice = -1;  ///< Of the calls that have it.
  std::string problem, tile;
  bool is_tuned = false;  ///< From a table of decisions.
};

struct CudaPlan {
  ir::Graph graph;
  passes::MemoryPlan memory;
  std::vector<CudaSource> sources;  ///< Each distinct kernel once.
  std::vector<KernelCall> calls;    ///< Of a step, in stream order.
  int64_t workspace_bytes = 0;      ///< For whichever node runs; what waits (join/order.h) keeps its part.
  std::vector<ChosenTile> chosen = {};
  /// What a step has at another batch, for the sources alone: they are compiled with the others.
  std::vector<KernelCall> prepared = {};
  /// Second stages that a later node's kernel does as well (join/part_sums.h). Who looks at nodes one by one runs them
  /// behind their nodes' launches.
  std::vector<KernelCall> taken_over = {};
  /// Run before a step where what they read has been written (passes::MemoryPlan::once_end), in stream order.
  std::vector<KernelCall> once = {};
};

}  // namespace difuse::codegen::cuda
