// Runs a pass that moves nodes: it spends one unit of fuel where it moves some, and finds nothing to move after itself.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "ir/text.h"
#include "passes/pass.h"

namespace difuse::tests {

using MovingPass = passes::PassResult (*)(const ir::Graph&, passes::PassContext&);

/// The graph after the pass; `changed`: whether something is to move.
inline ir::Graph moved(MovingPass pass, const ir::Graph& graph, bool changed) {
  const ir::DeviceSpec device;
  passes::Fuel fuel;
  passes::PassContext context{device, fuel};
  passes::PassResult result = pass(graph, context);
  EXPECT_EQ(result.changed, changed);
  EXPECT_EQ(fuel.spent(), changed ? 1 : 0);
  if (changed) {
    EXPECT_FALSE(pass(result.graph, context).changed);
  }
  return std::move(result.graph);
}

inline void expect_not_moved(MovingPass pass, const char* text) {
  const ir::Graph graph = ir::parse(text);
  EXPECT_EQ(ir::print(moved(pass, graph, false)), ir::print(graph));
}

}  // namespace difuse::tests
