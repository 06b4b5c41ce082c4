#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "ir/op.h"
#include "ir/text.h"

namespace difuse::ir {

std::string_view to_string(QkvOrder order) { return order == QkvOrder::heads_first ? "heads_first" : "qkv_first"; }
std::string_view to_string(WeightLayout) { return "flipped"; }
std::string_view to_string(Hero hero) {
  constexpr std::string_view kNames[] = {"pointwise", "reduction", "conv", "matmul", "attention"};
  return kNames[static_cast<size_t>(hero)];
}

std::string escaped(const std::string& text) {
  std::string result;
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

namespace {

std::string indented(const std::string& text) {
  std::string result;
  for (char c : text) {
    result += c;
    if (c == '\n') result += "  ";
  }
  return result;
}

class FieldPrinter {
 public:
  void operator()(std::string_view name, int64_t v) { field(name, std::to_string(v)); }
  void operator()(std::string_view name, bool v) { field(name, v ? "true" : "false"); }
  // fmt's shortest form that reads back to the same double.
  void operator()(std::string_view name, double v) { field(name, fmt::format("{}", v)); }
  void operator()(std::string_view name, const std::string& v) { field(name, fmt::format("\"{}\"", escaped(v))); }
  void operator()(std::string_view name, DType v) { field(name, to_string(v)); }
  void operator()(std::string_view name, QkvOrder v) { field(name, to_string(v)); }
  void operator()(std::string_view name, WeightLayout v) { field(name, to_string(v)); }
  void operator()(std::string_view name, Hero v) { field(name, to_string(v)); }
  void operator()(std::string_view name, const std::vector<int64_t>& v) {
    field(name, fmt::format("[{}]", fmt::join(v, ", ")));
  }
  void operator()(std::string_view name, const std::vector<double>& v) {
    field(name, fmt::format("[{}]", fmt::join(v, ", ")));
  }
  void operator()(std::string_view name, const std::shared_ptr<const Graph>& body) {
    std::string text = body ? print(*body) : "graph empty {\n}\n";
    text.pop_back();  // the line's own end
    field(name, text);
  }
  std::string take() { return out_.empty() ? out_ : "{" + out_ + "}"; }

 private:
  void field(std::string_view name, std::string_view value) {
    if (!out_.empty()) out_ += ", ";
    fmt::format_to(std::back_inserter(out_), "{} = {}", name, value);
  }
  std::string out_;
};

std::string print_value(const Graph& graph, Value v) {
  if (graph.node(v).types.size() == 1) return fmt::format("%{}", v.node);
  return fmt::format("%{}.{}", v.node, v.result);
}

}  // namespace

std::string print_attrs(const Attrs& attrs) {
  FieldPrinter printer;
  std::visit([&](auto a) { a.visit(printer); }, attrs);
  return printer.take();
}

std::string node_key(const Node& node) {
  std::string key(to_string(node.op));
  for (Value v : node.operands) fmt::format_to(std::back_inserter(key), " {}.{}", v.node, v.result);
  return key + print_attrs(node.attrs);
}

std::string print_node(const Graph& graph, int id) {
  const Node& node = graph.node(id);
  std::string line = fmt::format("%{} = {}", id, to_string(node.op));
  for (size_t i = 0; i < node.operands.size(); ++i) line += (i ? ", " : " ") + print_value(graph, node.operands[i]);
  if (const std::string attrs = print_attrs(node.attrs); !attrs.empty()) line += " " + attrs;
  for (size_t i = 0; i < node.types.size(); ++i) line += (i ? ", " : " : ") + to_string(node.types[i]);
  return line;
}

std::string print(const Graph& graph) {
  std::string text = fmt::format("graph {} {{\n", graph.name());
  for (int id = 0; id < graph.size(); ++id) text += "  " + indented(print_node(graph, id)) + "\n";
  for (const NamedValue& n : graph.outputs()) {
    text += fmt::format("  output \"{}\" = {}\n", escaped(n.name), print_value(graph, n.value));
  }
  for (const NamedValue& n : graph.updates()) {
    text += fmt::format("  update \"{}\" = {}\n", escaped(n.name), print_value(graph, n.value));
  }
  return text + "}\n";
}

}  // namespace difuse::ir
