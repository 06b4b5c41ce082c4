#include "models/weights/mismatch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "models/weights/tensor_layout.h"

namespace difuse::models {
namespace {

bool any_name(const std::vector<Mismatch::Row>& rows, std::string_view part) {
  return std::ranges::any_of(rows, [part](const auto& row) { return row.name.find(part) != std::string::npos; });
}

/// Whether a tensor with that in its name has `times` as many values along the first axis as the model wants.
bool first_axis_is(const std::vector<Mismatch::Row>& rows, std::string_view part, double times) {
  return std::ranges::any_of(rows, [&](const auto& row) {
    return row.name.find(part) != std::string::npos && !row.found.empty() && !row.wanted.empty() &&
           static_cast<double>(row.found[0]) == times * static_cast<double>(row.wanted[0]);
  });
}

std::string likely_cause(const Mismatch& m, bool none) {
  if (none) return "these are the weights of another kind of model";
  if (any_name(m.extra, "label_emb") || any_name(m.extra, "class_embedding")) {
    return "the weights have classes and the model has none (num_classes)";
  }
  if (any_name(m.missing, "label_emb") || any_name(m.missing, "class_embedding")) {
    return "the model has classes and the weights have none (num_classes)";
  }
  if (any_name(m.misshapen, "label_emb") || any_name(m.misshapen, "class_embedding")) {
    return "the weights have another number of classes (num_classes)";
  }
  const auto only = [&m](std::initializer_list<std::string_view> parts) {
    return m.missing.empty() && m.extra.empty() && std::ranges::all_of(m.misshapen, [&](const auto& row) {
             return std::ranges::any_of(
                 parts, [&](std::string_view part) { return row.name.find(part) != std::string::npos; });
           });
  };
  for (const std::string_view name : {"emb_layers.1", "time_emb_proj", "l_emb"}) {
    if (!only({name})) continue;  // Other widths have other sizes there, too.
    if (first_axis_is(m.misshapen, name, 2)) return "the weights have scale and shift (use_scale_shift_norm = true)";
    if (first_axis_is(m.misshapen, name, 0.5))
      return "the weights have no scale and shift (use_scale_shift_norm = false)";
  }
  if (only({"input_blocks.0.0.", "out.2.", "conv_in.", "conv_out.", "down.0.", "up."})) {
    return "the weights are for images of other channels, or with or without a learned variance (image_channels, "
           "conditioning_channels, learn_sigma)";
  }
  constexpr size_t kFew = 3;  // Of an attention there are more.
  if (m.extra.empty() && m.missing.size() + m.misshapen.size() <= kFew) {
    return "these tensors were changed or left out when the file was written: all others fit";
  }
  if (any_name(m.missing, "qkv") || any_name(m.extra, "qkv") || any_name(m.missing, "to_q") ||
      any_name(m.extra, "to_q")) {
    return "the weights have attention at other levels (attention_resolutions)";
  }
  if (m.missing.empty() && m.extra.empty()) return "the weights have other widths (model_channels, channel_mult)";
  return "the weights have other levels, blocks or resampling (channel_mult, num_res_blocks, resblock_updown), or the "
         "file is cut off";
}

}  // namespace

std::vector<std::string> mismatch_lines(const Mismatch& mismatch) {
  std::vector<std::string> lines;
  const auto text = [](const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); };
  for (const auto& row : mismatch.missing) {
    lines.push_back(fmt::format("  missing    {} {}", row.name, text(file_shape(row.wanted))));
  }
  for (const auto& row : mismatch.misshapen) {
    lines.push_back(
        fmt::format("  misshapen  {} {}, the model needs {}", row.name, text(row.found), text(file_shape(row.wanted))));
  }
  for (const auto& row : mismatch.extra) lines.push_back(fmt::format("  left over  {} {}", row.name, text(row.found)));
  return lines;
}

Error mismatch_error(const std::filesystem::path& path, const Mismatch& mismatch, const RunConfig& config, bool none) {
  const std::string message = fmt::format(
      "'{}' does not fit the model {}: {} tensors missing, {} misshapen, {} left over\n{}\nlikely cause: {}",
      path.string(), config.run.model, mismatch.missing.size(), mismatch.misshapen.size(), mismatch.extra.size(),
      fmt::join(mismatch_lines(mismatch), "\n"), likely_cause(mismatch, none));
  return Error(message, none ? "give the weights of a UNet"
                             : "give the matching --model or --config, or --allow-partial to take what fits");
}

}  // namespace difuse::models
