#include "tests/support/backend/rematerialized.h"

#include "passes/rematerialize.h"

namespace difuse::testing {

ir::Graph rematerialized(const ir::Graph& fused) {
  passes::Fuel fuel;
  passes::PassContext context{*ir::find_device_spec("h100"), fuel};
  return passes::rematerialize(fused, context, nullptr, {.kept = 0, .tensor = 0}).graph;
}

}  // namespace difuse::testing
