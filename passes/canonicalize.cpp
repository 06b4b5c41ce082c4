#include "passes/canonicalize.h"

#include "passes/rewrite.h"

namespace difuse::passes {
PassResult canonicalize(const ir::Graph& graph, PassContext& context) { return rewrite(graph, {}, context); }
}  // namespace difuse::passes
