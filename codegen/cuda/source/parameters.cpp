#include "codegen/cuda/source/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "codegen/cuda/source/body_code.h"

namespace difuse::codegen::cuda {

Parameters::Parameters(const ir::Graph& body, const KernelSpec& spec, const Maps& maps) {
  operands_.resize(spec.operands.size());
  const auto users = body.users();
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    operands_[i] = fmt::format("p{}", i);
    const ir::Value v = body.find_input(std::to_string(i));
    const bool is_output = std::ranges::any_of(body.outputs(), [&](const auto& n) { return n.value == v; });
    if (spec.preamble != nullptr && i >= spec.preamble->first_operand) continue;
    if (!v.valid() || (users[static_cast<size_t>(v.node)].empty() && !is_output)) continue;
    if (const auto map = maps.operands.find(i); map != maps.operands.end()) {
      add(operands_[i], map->second);
    } else {
      add(operands_[i], fmt::format("const {}*", storage_type(body.type(v).dtype)), spec.operands[i]);
    }
    bytes_ += body.type(v).bytes();
  }
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (!spec.wanted(r)) continue;
    const ir::Type& type = body.type(body.outputs()[r].value);
    if (const auto map = maps.results.find(r); map != maps.results.end()) {
      add(result(r), map->second);
    } else {
      add(result(r), storage_type(type.dtype) + "*", spec.results[r]);
    }
    bytes_ += type.bytes();
  }
  if (spec.preamble == nullptr) return;
  for (const Preamble::Parameter& p : spec.preamble->parameters) add(p.name, p.type, p.argument);
  bytes_ += spec.preamble->bytes;
}

void Parameters::add(std::string name, int64_t number) { add(std::move(name), "long long", Argument::number(number)); }

void Parameters::add(std::string name, std::string type, Argument argument) {
  text_ += fmt::format("{}{} {}", text_.empty() ? "" : ", ", type, name);
  arguments_.push_back(argument);
}

void Parameters::add(std::string name, const TensorMapSpec& map) {
  add(std::move(name), "const __grid_constant__ TensorMap",
      {Argument::Kind::tensor_map, static_cast<int64_t>(tensor_maps_.size())});
  tensor_maps_.push_back(map);
}

void Parameters::add_outers(const ir::Graph& body, const std::set<int>& inputs) {
  for (const int input : inputs) {
    add(fmt::format("outer_{}", input), body.type(body.find_input(std::to_string(input))).shape[0]);
  }
}

std::vector<std::string_view> with_preamble(std::vector<std::string_view> headers, const KernelSpec& spec) {
  if (spec.preamble != nullptr) std::ranges::copy(spec.preamble->headers, std::back_inserter(headers));
  return headers;
}

std::string preamble_text(const KernelSpec& spec, const std::string& image, int64_t threads, const std::string& first) {
  if (spec.preamble == nullptr) return "";
  return filled(spec.preamble->text, {{"image", image}, {"threads", std::to_string(threads)}, {"first", first}});
}

std::string filled(std::string_view text, const std::vector<std::pair<std::string_view, std::string>>& fields) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '$') {
      result += text[at++];
      continue;
    }
    size_t end = at + 1;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) ++end;
    const std::pair<std::string_view, std::string>* best = nullptr;
    for (const auto& field : fields) {
      if (text.substr(at + 1, end - at - 1).starts_with(field.first) &&
          (best == nullptr || field.first.size() > best->first.size())) {
        best = &field;
      }
    }
    if (best == nullptr) {
      result += text[at++];
    } else {
      result += best->second;
      at += 1 + best->first.size();
    }
  }
  return result;
}

std::string indented(std::string_view lines, int spaces) {
  std::string result;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size() - 1);
    result.append(static_cast<size_t>(spaces), ' ').append(lines.substr(at, end + 1 - at));
    at = end + 1;
  }
  return result;
}

}  // namespace difuse::codegen::cuda
