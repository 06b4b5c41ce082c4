// The text form of a graph: printed, parsed, stable. Golden tests and dumps are this text.
//
//   graph norm {
//     %0 = input {name = "x", dtype = f32, shape = [2, 8, 8, 4]} : f32[2, 8, 8, 4]
//     %1 = channel_moments %0 : f32[2, 1, 4], f32[2, 1, 4]
//     %2 = add %1.0, %1.1 : f32[2, 1, 4]
//     output "sum" = %2
//   }
//
// A result other than a node's only one is written %node.result. A fusion's body stands in its attributes as a graph.
// `#` starts a comment that ends with the line.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace difuse::ir {

std::string print(const Graph& graph);
/// One line (more where a fusion's body is printed) for one node, without indentation.
std::string print_node(const Graph& graph, int id);
/// "{stride = 1, pad = 1}", empty when the op has no attributes.
std::string print_attrs(const Attrs& attrs);

/// The text between quotation marks: these, and backslashes, follow a backslash.
std::string escaped(const std::string& text);

/// Throws Error naming line and column, what was found and what was expected. The result is verified.
Graph parse(std::string_view text);

/// Identifies a node for hash-consing: op, operands and attributes as text.
std::string node_key(const Node& node);

}  // namespace difuse::ir
