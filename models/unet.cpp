#include "models/unet.h"

#include <fmt/format.h>

#include "ir/error.h"
#include "ir/flops.h"
#include "ir/op.h"
#include "models/low_res.h"

namespace difuse::models {
namespace {

using ir::DType;
using ir::Value;

void require_input(const ir::Builder& build, std::string_view name, Value value, const ir::Type& wanted) {
  if (value.valid() && build.type(value) == wanted) return;
  throw Error(fmt::format("the UNet's {} must be {}, is {}", name, to_string(wanted),
                          value.valid() ? to_string(build.type(value)) : "missing"));
}

void check_inputs(const ir::Builder& build, const UNetConfig& config, const UNetInputs& inputs) {
  if (!inputs.x.valid() || build.type(inputs.x).rank() != 4) throw Error("the UNet's x must be an image [N, H, W, C]");
  const int64_t batch = build.shape(inputs.x)[0];
  require_input(build, "x", inputs.x,
                {DType::f32, {batch, config.image_height, config.image_width, config.image_channels}});
  require_input(build, "timesteps", inputs.timesteps, {DType::f32, {batch}});
  if (config.num_classes > 0) require_input(build, "labels", inputs.labels, {DType::i32, {batch}});
  if (config.conditioning_channels == 0) return;
  require_input(build, "conditioning", inputs.conditioning,
                {DType::f32, {batch, config.image_height, config.image_width, config.conditioning_channels}});
}

/// The image and what stands beside it.
Value model_input(ir::Builder& build, const UNetConfig& config, const UNetInputs& inputs) {
  if (config.conditioning_channels == 0) return inputs.x;
  return build.concat({inputs.x, inputs.conditioning}, 3);
}

/// silu of the time embedding (plus the class embedding), [N, 4 * model_channels].
Value embed(ir::Builder& build, Blocks& blocks, ParameterSource& parameters, const UNetConfig& config,
            const UNetInputs& inputs) {
  const int64_t width = 4 * config.model_channels;
  Value emb = timestep_embedding(build, inputs.timesteps, config);
  emb = blocks.linear("time_embed.2", build.silu(blocks.linear("time_embed.0", emb, width)), width);
  if (config.num_classes > 0) {
    const Value table = parameters.get("label_emb.weight", {config.num_classes, width}, ParameterInit::normal());
    emb = build.add(emb, build.gather(table, inputs.labels));
  }
  return build.silu(emb);
}

/// A UNet on a graph of its own, batch 1.
struct ScratchModel {
  ir::Graph graph{"unet"};
  std::vector<ParameterSpec> specs;

  explicit ScratchModel(const UNetConfig& config) {
    ir::Builder build(graph);
    ParameterCollector collector(build);
    UNetInputs inputs{
        build.input("x", {DType::f32, {1, config.image_height, config.image_width, config.image_channels}}),
        build.input("timesteps", {DType::f32, {1}}),
        build.input("labels", {DType::i32, {1}}),
        {},
        {}};
    if (config.conditioning_channels > 0) {
      inputs.conditioning = build.input(
          "conditioning", {DType::f32, {1, config.image_height, config.image_width, config.conditioning_channels}});
    }
    graph.set_output("out", build_unet(build, collector, config, inputs));
    specs = collector.specs();
  }
};

/// Down by strided convolutions, through the middle, up by transposed ones; ReLU after each but the last. Skips of one
/// size are concatenated behind what comes from below.
Value build_strided(ir::Builder& build, Blocks& blocks, const UNetConfig& config, const UNetInputs& inputs) {
  const Value x = model_input(build, config, inputs);
  ir::Shape plane = build.shape(x);
  plane[3] = 1;
  const Value time = build.reshape(build.broadcast(inputs.timesteps, {plane[0], plane[1], plane[2]}, {0}), plane);
  auto relu = [&](Value v) { return build.max(v, 0.0); };
  Value h = build.concat({x, time}, 3);
  std::vector<Value> skips;
  for (int64_t level = 0; level < config.levels(); ++level) {
    h = relu(blocks.strided_conv(fmt::format("down.{}", level), h, config.width(level)));
    skips.push_back(h);
  }
  for (int64_t i = 0; i < config.num_res_blocks; ++i) {
    h = relu(blocks.conv(fmt::format("middle.{}", i), h, config.width(config.levels() - 1), 3));
  }
  for (int64_t level = config.levels() - 1; level >= 0; --level) {
    h = build.concat({h, skips[static_cast<size_t>(level)]}, 3);
    const bool last = level == 0;
    const ir::Shape target = last ? build.shape(x) : build.shape(skips[static_cast<size_t>(level - 1)]);
    const int64_t out = last ? config.out_channels() : config.width(level - 1);
    const std::string name = fmt::format("up.{}", config.levels() - 1 - level);
    h = blocks.transposed_conv(name, h, out, target[1], target[2]);
    if (!last) h = relu(h);
  }
  return h;
}

}  // namespace

Value build_unet(ir::Builder& build, ParameterSource& parameters, const UNetConfig& config, const UNetInputs& inputs) {
  check(config);
  check_inputs(build, config, inputs);
  Blocks blocks(build, parameters, config, inputs.dropout);
  if (config.family == UNetFamily::strided) return build_strided(build, blocks, config, inputs);
  const Value embedding = embed(build, blocks, parameters, config, inputs);

  Value h = blocks.conv("input_blocks.0.0", model_input(build, config, inputs), config.width(0), 3);
  std::vector<Value> skips{h};
  for (int64_t level = 0; level < config.levels(); ++level) {
    for (int64_t i = 0; i < config.num_res_blocks; ++i) {
      const std::string name = fmt::format("input_blocks.{}", skips.size());
      h = blocks.residual(name + ".0", Image(h), embedding, config.width(level));
      if (config.attention_at(level)) h = blocks.attention(name + ".1", h);
      skips.push_back(h);
    }
    if (level + 1 == config.levels()) break;
    h = blocks.resample_block(fmt::format("input_blocks.{}.0", skips.size()), h, embedding, Resample::down,
                              config.downsampling(level));
    skips.push_back(h);
  }

  const int64_t deepest = config.width(config.levels() - 1);
  h = blocks.residual("middle_block.0", Image(h), embedding, deepest);
  if (config.middle_attention) h = blocks.attention("middle_block.1", h, config.middle_attention_norm);
  h = blocks.residual("middle_block.2", Image(h), embedding, deepest);

  for (int64_t level = config.levels() - 1, block = 0; level >= 0; --level) {
    for (int64_t i = 0; i <= config.num_res_blocks; ++i, ++block) {
      int64_t part = 0;
      auto name = [&] { return fmt::format("output_blocks.{}.{}", block, part++); };
      h = blocks.residual(name(), Image::concat(build, h, skips.back()), embedding, config.width(level));
      skips.pop_back();
      if (config.decoder_attention_at(level)) h = blocks.attention(name(), h);
      if (level > 0 && i == config.num_res_blocks) {
        h = blocks.resample_block(name(), h, embedding, Resample::up, config.upsampling(level - 1));
      }
    }
  }
  h = build.silu(blocks.group_norm("out.0", Image(h)));
  return blocks.conv("out.2", h, config.out_channels(), 3, 1, true);
}

ParameterLayout parameter_layout(const UNetConfig& config) { return ParameterLayout(ScratchModel(config).specs); }

ir::Graph build_forward(const UNetConfig& config, int64_t batch) {
  check(config);
  if (batch < 1) throw Error(fmt::format("a batch of {}", batch), "choose at least 1", ExitCode::wrong_usage);
  const ParameterLayout layout = parameter_layout(config);
  ir::Graph graph("forward");
  ir::Builder build(graph);
  UNetInputs inputs;
  inputs.x = build.input("x", {DType::f32, {batch, config.image_height, config.image_width, config.image_channels}});
  inputs.timesteps = build.input("timesteps", {DType::f32, {batch}});
  if (config.num_classes > 0) inputs.labels = build.input("label", {DType::i32, {batch}});
  if (takes_low_res(config)) inputs.conditioning = conditioning_input(build, config, batch);
  PackedParameters parameters(build, layout, build.state("params", {DType::f32, {layout.size()}}));
  graph.set_output("output", build_unet(build, parameters, config, inputs));
  return graph;
}

int64_t forward_flops(const UNetConfig& config) { return ir::contraction_flops(ScratchModel(config).graph); }

}  // namespace difuse::models
