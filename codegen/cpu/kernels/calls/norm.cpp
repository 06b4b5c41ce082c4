// The statistics of GroupNorm: channel_moments and group_finish (their meaning: ir/ops/norm.cpp).
#include <algorithm>
#include <cmath>

#include "codegen/cpu/kernels/calls/calls.h"
#include "codegen/cpu/kernels/register_ops.h"
#include "ir/strips.h"

namespace difuse::codegen::cpu {

NodeCalls channel_moments_calls(const CallContext& context) {
  const ir::Shape& s = context.operands[0].shape;
  CallSpec call{{operand(0, true)}, {result(0, true), result(1, true)}};
  call.images = s[0];
  call.run = [strips = ir::Strips{s[1], s[2]}, width = s[2], channels = s[3]](const CallArguments& a) {
    for (int64_t i = 0; i < strips.count(); ++i) {
      const float* first = a.input(0) + (strips.top(i) * width + strips.left(i)) * channels;
      block_ops().strip_moments(first, width * channels, strips.bottom(i) - strips.top(i),
                                strips.right(i) - strips.left(i), channels, a.output(0) + i * channels,
                                a.output(1) + i * channels);
    }
  };
  return {{std::move(call)}, {}, {}, 0};
}

// Chan's update of (count, mean, M2) by a strip of p pixels: mean += delta p / (count + p), M2 += m2 + delta^2 count p
// / (count + p). Every group sees the same counts, so both quotients come from a table.
NodeCalls group_finish_calls(const CallContext& context) {
  const auto& attrs = context.node.as<ir::GroupFinishAttrs>();
  const ir::Strips strips{attrs.height, attrs.width};
  const int64_t channels = context.node.types[0].shape[1], width = channels / attrs.groups;
  struct Factors {
    double mean, square;
  };
  std::vector<Factors> factors;
  double count = 0;
  for (int64_t c = 0; c < width; ++c) {
    for (int64_t strip = 0; strip < strips.count(); ++strip) {
      const auto pixels = static_cast<double>(strips.pixels(strip));
      factors.push_back({pixels / (count + pixels), count * pixels / (count + pixels)});
      count += pixels;
    }
  }
  struct Source {
    size_t operand;  // its mean; M2 is the next
    int64_t channel, channels;
  };
  std::vector<Source> sources;  // of each channel
  CallSpec call;
  for (size_t i = 0; i < context.operands.size(); ++i) {
    call.in.push_back(operand(i, true));
    const int64_t size = context.operands[i].shape[2];
    for (int64_t c = 0; i % 2 == 0 && c < size; ++c) sources.push_back({i, c, size});
  }
  call.out = {result(0, true), result(1, true)};
  call.images = context.node.types[0].shape[0];
  call.run = [factors, sources, count, strip_count = strips.count(), width, groups = attrs.groups,
              eps = attrs.eps](const CallArguments& a) {
    for (int64_t group = 0; group < groups; ++group) {
      double mean = 0, m2 = 0;
      const Factors* factor = factors.data();
      for (int64_t c = group * width; c < (group + 1) * width; ++c) {
        const Source& s = sources[static_cast<size_t>(c)];
        const float* strip_mean = a.input(s.operand) + s.channel;
        const float* strip_m2 = a.input(s.operand + 1) + s.channel;
        for (int64_t strip = 0; strip < strip_count; ++strip, ++factor) {
          const double delta = static_cast<double>(strip_mean[strip * s.channels]) - mean;
          m2 += static_cast<double>(strip_m2[strip * s.channels]) + delta * delta * factor->square;
          mean += delta * factor->mean;
        }
      }
      std::fill_n(a.output(0) + group * width, width, static_cast<float>(mean));
      std::fill_n(a.output(1) + group * width, width, static_cast<float>(1 / std::sqrt(m2 / count + eps)));
    }
  };
  return {{std::move(call)}, {}, {}, 0};
}

}  // namespace difuse::codegen::cpu
