#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <map>

#include "ir/error.h"
#include "ir/op.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace difuse::ir {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Graph parse_whole() {
    Graph graph = parse_graph();
    skip_space();
    if (pos_ != text_.size()) fail("the end of the text");
    return graph;
  }

  // The attribute structs' fields, in their order.
  void operator()(std::string_view name, int64_t& v) { field(name), v = integer(); }
  void operator()(std::string_view name, double& v) { field(name), v = number(); }
  void operator()(std::string_view name, std::string& v) { field(name), v = quoted(); }
  void operator()(std::string_view name, bool& v) { field(name), v = choice<bool>({{"true", true}, {"false", false}}); }
  void operator()(std::string_view name, DType& v) { field(name), v = dtype(); }
  void operator()(std::string_view name, QkvOrder& v) {
    field(name);
    v = choice<QkvOrder>({{"heads_first", QkvOrder::heads_first}, {"qkv_first", QkvOrder::qkv_first}});
  }
  void operator()(std::string_view name, WeightLayout& v) {
    field(name), v = choice<WeightLayout>({{"flipped", WeightLayout::flipped}});
  }
  void operator()(std::string_view name, Hero& v) {
    field(name);
    v = choice<Hero>({{"pointwise", Hero::pointwise},
                      {"reduction", Hero::reduction},
                      {"conv", Hero::conv},
                      {"matmul", Hero::matmul},
                      {"attention", Hero::attention}});
  }
  void operator()(std::string_view name, std::vector<int64_t>& v) {
    field(name), list([&] { v.push_back(integer()); });
  }
  void operator()(std::string_view name, std::vector<double>& v) {
    field(name), list([&] { v.push_back(number()); });
  }
  void operator()(std::string_view name, std::shared_ptr<const Graph>& v) {
    field(name), v = std::make_shared<const Graph>(parse_graph());
  }

 private:
  [[noreturn]] void fail(std::string_view expected) {
    skip_space();
    size_t line = 1, column = 1;
    for (size_t i = 0; i < pos_; ++i) {
      if (text_[i] == '\n') {
        ++line, column = 1;
      } else {
        ++column;
      }
    }
    std::string found(text_.substr(pos_, text_.substr(pos_, 20).find('\n')));
    throw Error(fmt::format("line {}, column {}: expected {}, found {}", line, column, expected,
                            found.empty() ? "the end of the text" : "\"" + found + "\""));
  }

  void skip_space() {
    while (pos_ < text_.size()) {
      if (text_[pos_] == '#') {
        while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
      } else if (std::isspace(static_cast<unsigned char>(text_[pos_]))) {
        ++pos_;
      } else {
        return;
      }
    }
  }

  bool accept(std::string_view token) {
    skip_space();
    if (text_.substr(pos_, token.size()) != token) return false;
    pos_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (!accept(token)) fail(fmt::format("\"{}\"", token));
  }

  std::string word() {
    skip_space();
    const size_t begin = pos_;
    while (pos_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[pos_])) || text_[pos_] == '_')) ++pos_;
    if (pos_ == begin) fail("a word");
    return std::string(text_.substr(begin, pos_ - begin));
  }

  std::string quoted() {
    expect("\"");
    std::string result;
    while (pos_ < text_.size() && text_[pos_] != '"') {
      if (text_[pos_] == '\\' && pos_ + 1 < text_.size()) ++pos_;
      result += text_[pos_++];
    }
    if (pos_ >= text_.size()) fail("\"\"\"");
    ++pos_;
    return result;
  }

  template <class T>
  T parse_number(std::string_view what) {
    skip_space();
    T value{};
    const auto [end, error] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail(what);
    pos_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  int64_t integer() { return parse_number<int64_t>("an integer"); }
  double number() { return parse_number<double>("a number"); }

  template <class T>
  T choice(const std::map<std::string, T>& words) {
    const size_t begin = pos_;
    const auto it = words.find(word());
    if (it == words.end()) {
      pos_ = begin;
      std::string names;
      for (const auto& [name, value] : words) names += (names.empty() ? "" : " or ") + name;
      fail(names);
    }
    return it->second;
  }

  DType dtype() {
    const size_t begin = pos_;
    if (const auto d = parse_dtype(word())) return *d;
    pos_ = begin;
    fail("a dtype (f32, bf16, f16, i32, u32, u8)");
  }

  void field(std::string_view name) {
    if (!first_field_) expect(",");
    first_field_ = false;
    expect(name), expect("=");
  }

  template <class Item>
  void list(Item item) {
    expect("[");
    if (accept("]")) return;
    do item();
    while (accept(","));
    expect("]");
  }

  Type type() {
    Type t{dtype(), {}};
    list([&] { t.shape.push_back(integer()); });
    return t;
  }

  Value value(const Graph& graph, const std::map<int64_t, int>& ids) {
    expect("%");
    const auto it = ids.find(integer());
    if (it == ids.end()) fail("a value defined above");
    Value v{it->second, 0};
    if (pos_ < text_.size() && text_[pos_] == '.') ++pos_, v.result = static_cast<int32_t>(integer());
    if (v.result < 0 || v.result >= static_cast<int>(graph.node(v).types.size())) fail("a result that exists");
    return v;
  }

  Graph parse_graph() {
    expect("graph");
    Graph graph(word());
    expect("{");
    std::map<int64_t, int> ids;
    while (!accept("}")) {
      if (accept("output")) {
        std::string name = quoted();
        expect("=");
        graph.set_output(std::move(name), value(graph, ids));
      } else if (accept("update")) {
        std::string name = quoted();
        expect("=");
        graph.set_update(std::move(name), value(graph, ids));
      } else {
        parse_node(graph, ids);
      }
    }
    return graph;
  }

  void parse_node(Graph& graph, std::map<int64_t, int>& ids) {
    expect("%");
    const int64_t id = integer();
    if (ids.contains(id)) fail("a new value number");
    expect("=");
    skip_space();
    const size_t begin = pos_;
    const OpInfo* op = find_op(word());
    if (op == nullptr) {
      pos_ = begin;
      fail("the name of an op");
    }
    std::vector<Value> operands;
    skip_space();
    if (pos_ < text_.size() && text_[pos_] == '%') {
      do operands.push_back(value(graph, ids));
      while (accept(","));
    }
    Attrs attrs = op->default_attrs;
    if (accept("{")) {
      const bool outer = std::exchange(first_field_, true);
      std::visit([&](auto& a) { a.visit(*this); }, attrs);
      first_field_ = outer;
      expect("}");
    }
    const Value made = graph.add(op->op, std::move(operands), std::move(attrs));
    ids[id] = made.node;
    expect(":");
    for (const Type& inferred : graph.node(made).types) {
      const Type written = type();
      if (written != inferred)
        fail(fmt::format("{} (inferred) where {} is written", to_string(inferred), to_string(written)));
      if (&inferred != &graph.node(made).types.back()) expect(",");
    }
  }

  std::string_view text_;
  size_t pos_ = 0;
  bool first_field_ = true;
};

}  // namespace

Graph parse(std::string_view text) {
  Graph graph = Parser(text).parse_whole();
  verify(graph);
  return graph;
}

}  // namespace difuse::ir
