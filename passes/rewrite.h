// Rules as data, applied until none fits.
#pragma once

#include <span>
#include <string_view>

#include "ir/builder.h"
#include "ir/op.h"
#include "passes/pass.h"

namespace difuse::passes {

/// One rewrite of one node with one result. `apply` sees the node with its operands already in the new graph, appends
/// what it needs with `build` and returns the value that takes the node's place, of the same type; an invalid Value
/// when the rule does not fit.
struct Rule {
  std::string_view name;
  ir::Op op;
  ir::Value (*apply)(ir::Builder& build, const ir::Node& node);
};

/// Before: any graph. After: a graph on which no rule fits, without dead nodes (inputs and states stay) and without
/// two equal nodes. Each rewrite spends fuel. Throws Error when the rules have not come to rest after 100 rounds.
PassResult rewrite(const ir::Graph& graph, std::span<const Rule> rules, PassContext& context);

/// Before: any graph. After: the same without nodes on which no output and no update depends. Spends no fuel.
PassResult remove_dead_code(const ir::Graph& graph, PassContext& context);

/// Whether the two graphs print alike.
bool same_graph(const ir::Graph& a, const ir::Graph& b);

}  // namespace difuse::passes
