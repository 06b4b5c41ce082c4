// Says whether a graph keeps the rules that every pass relies on.
#pragma once

#include "ir/graph.h"

namespace difuse::ir {

/// Throws Error naming the node and the broken rule: operands precede their reader, types are what inference gives,
/// leaf names are unique, updates have their state's type, and a fusion's body is a verified graph whose inputs "0",
/// "1", ... are the operands in type and number, whose outputs are "0", "1", ... and which has neither state nor a
/// fusion inside.
void verify(const Graph& graph);

/// Throws Error unless `body` fits operands of these types; gives the fusion's result types.
std::vector<Type> fusion_result_types(const Graph& body, std::span<const Type> operands);

}  // namespace difuse::ir
