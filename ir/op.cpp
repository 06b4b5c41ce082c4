#include "ir/op.h"

#include <array>

namespace difuse::ir {

#define DIFUSE_OP(name, attrs, least, most, results, traits) OpRules rules_##name();
#include "ir/ops.def"

std::span<const OpInfo> all_ops() {
  static const std::array kTable = {
#define DIFUSE_OP(name, attrs, least, most, results, traits) \
  OpInfo{Op::name, #name, least, most, results, traits, attrs{}, rules_##name()},
#include "ir/ops.def"
  };
  return kTable;
}

const OpInfo& info(Op op) { return all_ops()[static_cast<size_t>(op)]; }

const OpInfo* find_op(std::string_view name) {
  for (const OpInfo& o : all_ops()) {
    if (o.name == name) return &o;
  }
  return nullptr;
}

}  // namespace difuse::ir
