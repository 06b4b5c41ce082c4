#include "ir/dot.h"

#include <fmt/format.h>

#include <iterator>
#include <map>

#include "ir/op.h"
#include "ir/text.h"

namespace difuse::ir {
namespace {

std::string quoted(const std::string& text) { return fmt::format("\"{}\"", escaped(text)); }

class DotWriter {
 public:
  std::string write(const Graph& graph) {
    add("digraph {} {{\n", quoted(graph.name()));
    add("  node [shape=box, fontname=\"Helvetica\"]; edge [fontname=\"Helvetica\", fontsize=9];\n");
    const Makers makers = draw(graph, "n", {});
    for (const NamedValue& n : graph.outputs()) end(graph, n, "output", makers);
    for (const NamedValue& n : graph.updates()) end(graph, n, "update", makers);
    // At last: an edge named within a frame would draw both its ends into it.
    return text_ + edges_ + "}\n";
  }

 private:
  using Makers = std::map<Value, std::string>;  // the box that makes the value

  template <class... Args>
  void add(fmt::format_string<Args...> form, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), form, std::forward<Args>(args)...);
  }

  void box(const std::string& name, const std::string& label, std::string_view more = "") {
    add("  {} [label={}{}];\n", name, quoted(label), more);
  }

  void edge(const std::string& from, const std::string& to, const Type& type) {
    fmt::format_to(std::back_inserter(edges_), "  {} -> {} [label={}];\n", from, to, quoted(to_string(type)));
  }

  /// `operands`: of a fusion, the boxes that make what its body's inputs stand for.
  Makers draw(const Graph& graph, const std::string& prefix, const std::vector<std::string>& operands) {
    Makers makers;
    for (int id = 0; id < graph.size(); ++id) {
      const Node& node = graph.node(id);
      const std::string name = fmt::format("{}{}", prefix, id);
      if (!operands.empty() && node.op == Op::input) {
        makers[{id, 0}] = operands[static_cast<size_t>(std::stoi(node.as<LeafAttrs>().name))];
        continue;
      }
      if (node.op == Op::fusion) {
        draw_fusion(node, name, makers, id);
        continue;
      }
      if (node.op == Op::input || node.op == Op::state) {
        box(name, fmt::format("{} {}", to_string(node.op), node.as<LeafAttrs>().name), ", shape=ellipse");
      } else {
        box(name, fmt::format("%{} {}", id, to_string(node.op)));
      }
      for (Value v : node.operands) edge(makers.at(v), name, graph.type(v));
      for (int r = 0; r < static_cast<int>(node.types.size()); ++r) makers[{id, r}] = name;
    }
    return makers;
  }

  void draw_fusion(const Node& node, const std::string& name, Makers& makers, int id) {
    const auto& fusion = node.as<FusionAttrs>();
    std::vector<std::string> operands;
    for (Value v : node.operands) operands.push_back(makers.at(v));
    add("  subgraph cluster_{} {{\n  label={}; style=rounded;\n", name,
        quoted(fmt::format("%{} {}", id, to_string(fusion.hero))));
    const Makers inner = draw(*fusion.body, name + "_", operands);
    add("  }}\n");
    for (const NamedValue& n : fusion.body->outputs()) makers[{id, std::stoi(n.name)}] = inner.at(n.value);
  }

  void end(const Graph& graph, const NamedValue& n, std::string_view kind, const Makers& makers) {
    const std::string name = fmt::format("end{}", ends_++);
    box(name, fmt::format("{} {}", kind, n.name), ", shape=ellipse, style=bold");
    edge(makers.at(n.value), name, graph.type(n.value));
  }

  std::string text_, edges_;
  int ends_ = 0;
};

}  // namespace

std::string to_dot(const Graph& graph) { return DotWriter().write(graph); }

}  // namespace difuse::ir
