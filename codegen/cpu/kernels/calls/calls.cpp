#include "codegen/cpu/kernels/calls/calls.h"

#include <fmt/format.h>

#include "ir/error.h"
#include "ir/op.h"

namespace difuse::codegen::cpu {

NodeCalls make_calls(const CallContext& context) {
  switch (context.node.op) {
    case ir::Op::transpose:
      return transpose_calls(context);
    case ir::Op::concat:
      return concat_calls(context);
    case ir::Op::slice:
      return slice_calls(context);
    case ir::Op::pad:
      return pad_calls(context);
    case ir::Op::gather:
      return gather_calls(context);
    case ir::Op::scatter_add:
      return scatter_add_calls(context);
    case ir::Op::reverse:
      return reverse_calls(context);
    case ir::Op::upsample_nearest:
      return upsample_calls(context);
    case ir::Op::avg_pool:
      return avg_pool_calls(context);
    case ir::Op::pack:
      return pack_calls(context);
    case ir::Op::repack:
      return repack_calls(context);
    case ir::Op::channel_moments:
      return channel_moments_calls(context);
    case ir::Op::group_finish:
      return group_finish_calls(context);
    case ir::Op::matmul:
      return matmul_calls(context);
    case ir::Op::conv_fprop:
    case ir::Op::conv_dgrad:
    case ir::Op::conv_wgrad:
      return conv_calls(context);
    case ir::Op::attention:
      return attention_calls(context);
    case ir::Op::attention_grad:
      return attention_grad_calls(context);
    case ir::Op::random_normal:
    case ir::Op::random_uniform:
    case ir::Op::random_int:
      return random_calls(context);
    default:
      throw Error(fmt::format("the CPU backend has no kernel for {}", ir::to_string(context.node.op)));
  }
}

}  // namespace difuse::codegen::cpu
