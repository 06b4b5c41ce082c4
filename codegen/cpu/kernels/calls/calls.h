// The ops that are not block loops, each as one or a few calls: a function from operands to results for one image, for
// a few images, or for one tile of the whole.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/cpu/contractions.h"
#include "codegen/cpu/kernels/unit.h"
#include "ir/graph.h"

namespace difuse::codegen::cpu {

struct CallArguments {
  std::span<const std::byte* const> in;  ///< The image's part of an operand that is taken by images, else the whole.
  std::span<std::byte* const> out;
  std::byte* scratch;         ///< CallSpec::scratch_bytes of it, 64-byte aligned.
  int64_t image, images = 1;  ///< The first image (or the tile), and how many: 1 unless `unit` > 1.

  template <class T = float>
  const T* input(size_t i) const {
    return reinterpret_cast<const T*>(in[i]);
  }
  template <class T = float>
  T* output(size_t i) const {
    return reinterpret_cast<T*>(out[i]);
  }
};

/// An operand or result of a call: of the node, or a temporary that one call of the node hands to the next.
struct Slot {
  enum class Kind : uint8_t { operand, result, temporary } kind = Kind::operand;
  size_t index = 0;
  bool by_image = false;  ///< Image i has its own part, the i-th of equal size.
};

struct CallSpec {
  std::vector<Slot> in, out;
  int64_t images = 1;  ///< Calls, or images where `unit` > 1; tiles of whole operands where no slot is by image.
  int64_t unit = 1;    ///< Images that one call takes; the last takes what is left.
  int64_t scratch_bytes = 0;
  std::function<void(const CallArguments&)> run = {};
  bool expects_overlap = false;  ///< Its results may lie where its operands lie.
};

struct NodeCalls {
  std::vector<CallSpec> calls;
  std::vector<int64_t> temporary_bytes;
  std::string implementation;  ///< Of its contraction.
  int64_t flops = 0;
};

struct CallContext {
  const ir::Node& node;
  std::vector<ir::Type> operands;
  const Contractions& contractions;
};

/// The calls of a node that is neither a leaf nor elementwise, broadcast, reduce or an alias. Throws Error for an op
/// that has none.
NodeCalls make_calls(const CallContext& context);

// By family.
NodeCalls transpose_calls(const CallContext& context);
NodeCalls concat_calls(const CallContext& context);
NodeCalls slice_calls(const CallContext& context);
NodeCalls reverse_calls(const CallContext& context);
NodeCalls pad_calls(const CallContext& context);
NodeCalls gather_calls(const CallContext& context);
NodeCalls scatter_add_calls(const CallContext& context);
NodeCalls upsample_calls(const CallContext& context);
NodeCalls avg_pool_calls(const CallContext& context);
NodeCalls pack_calls(const CallContext& context);
NodeCalls repack_calls(const CallContext& context);
NodeCalls channel_moments_calls(const CallContext& context);
NodeCalls group_finish_calls(const CallContext& context);
NodeCalls matmul_calls(const CallContext& context);
NodeCalls conv_calls(const CallContext& context);
NodeCalls attention_calls(const CallContext& context);
NodeCalls attention_grad_calls(const CallContext& context);
NodeCalls random_calls(const CallContext& context);

inline Slot operand(size_t i, bool by_image) { return {Slot::Kind::operand, i, by_image}; }
inline Slot result(size_t i, bool by_image) { return {Slot::Kind::result, i, by_image}; }
inline Slot temporary(size_t i, bool by_image) { return {Slot::Kind::temporary, i, by_image}; }
inline int64_t aligned_bytes(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace difuse::codegen::cpu
