// Reductions, channel_moments and group_finish: their kernels compile, and run on the CPU they give what the reference
// gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <set>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/jit/nvrtc.h"
#include "ir/builder.h"
#include "ir/reference.h"
#include "tests/codegen/cuda/recorder.h"
#include "tests/support/cuda_emulator/emulated_kernel.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Tensor;
using ir::TensorMap;
using ir::Type;
using ir::Value;

#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kGuard = 0;
#else
constexpr int64_t kGuard = 256;  ///< Bytes after every tensor, which nobody may write.
#endif
constexpr auto kUntouched = std::byte{0xff};  ///< NaNs.

std::vector<std::byte> stored(const Tensor& t) {
  std::vector<std::byte> bytes(static_cast<size_t>(t.type.bytes()));
  for (size_t i = 0; i < t.data.size(); ++i) {
    if (t.type.dtype == DType::f32) {
      const auto x = static_cast<float>(t.data[i]);
      std::memcpy(&bytes[i * 4], &x, 4);
    } else if (t.type.dtype == DType::bf16) {
      const auto x = static_cast<float>(t.data[i]);
      uint32_t bits;
      std::memcpy(&bits, &x, 4);
      const auto half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(&bytes[i * 2], &half, 2);
    } else {
      const auto x = static_cast<int32_t>(t.data[i]);
      std::memcpy(&bytes[i * 4], &x, 4);
    }
  }
  return bytes;
}

Tensor loaded(const Type& type, const std::byte* bytes) {
  Tensor t(type);
  for (size_t i = 0; i < t.data.size(); ++i) {
    uint32_t bits = 0;
    if (type.dtype == DType::bf16) {
      uint16_t half;
      std::memcpy(&half, bytes + i * 2, 2);
      bits = static_cast<uint32_t>(half) << 16;
    } else {
      std::memcpy(&bits, bytes + i * 4, 4);
    }
    float x;
    std::memcpy(&x, &bits, 4);
    t.data[i] = x;
  }
  return t;
}

const ir::DeviceSpec& device() { return *ir::find_device_spec("h100"); }

/// Memory that starts `shift` bytes after a multiple of 256.
class Block {
 public:
  Block(int64_t bytes, int64_t shift) : shift_(shift), size_(static_cast<size_t>(bytes)) {
    const size_t all = size_ + static_cast<size_t>(shift + kGuard);
    memory_.reset(static_cast<std::byte*>(::operator new(all, kAlignment)));
    std::fill_n(memory_.get(), all, kUntouched);
  }

  std::byte* data() const { return memory_.get() + shift_; }
  bool is_guard_intact() const {
    return std::all_of(data() + size_, data() + size_ + kGuard, [](std::byte b) { return b == kUntouched; });
  }

 private:
  static constexpr std::align_val_t kAlignment{256};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
  };
  int64_t shift_;
  size_t size_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// A body whose operands and results are blocks of their own: the argument's value is the block's number.
struct Problem {
  const Graph& body;
  std::map<int, int> in_place = {};  ///< Result -> the operand that it overwrites.
  std::set<int> unwanted = {};
  int64_t alignment = 256;

  size_t operand_count() const { return body.leaves(ir::Op::input).size(); }
  const Type& operand(size_t i) const { return body.type(body.find_input(std::to_string(i))); }
  const Type& result(size_t r) const { return body.type(body.outputs()[r].value); }

  KernelSpec spec() const {
    KernelSpec spec{body, {}, {}, {}, {}, "test", 0, device()};
    for (size_t i = 0; i < operand_count(); ++i) {
      spec.operands.push_back({Argument::Kind::arena, static_cast<int64_t>(i)});
      spec.alignment.push_back(alignment);
    }
    for (size_t r = 0; r < body.outputs().size(); ++r) {
      const auto shared = in_place.find(static_cast<int>(r));
      const int64_t own = static_cast<int64_t>(operand_count() + r);
      spec.results.push_back(unwanted.contains(static_cast<int>(r))
                                 ? Argument::number(0)
                                 : Argument{Argument::Kind::arena, shared != in_place.end() ? shared->second : own});
      spec.result_alignment.push_back(alignment);
    }
    return spec;
  }

  Recorder emitted() const {
    Recorder recorder;
    const bool finish = accepts_group_finish(body);
    EXPECT_NE(finish, accepts_reduction(body));
    (finish ? emit_group_finish : emit_reduction)(spec(), recorder);
    return recorder;
  }
};

/// Results by output name; those that are unwanted are missing.
TensorMap run(const Problem& problem, const TensorMap& inputs) {
  const KernelSpec spec = problem.spec();
  const Recorder recorder = problem.emitted();
  std::vector<Block> blocks;
  for (size_t i = 0; i < problem.operand_count(); ++i) {
    const std::vector<std::byte> bytes = stored(inputs.at(std::to_string(i)));
    std::ranges::copy(bytes, blocks.emplace_back(std::ssize(bytes), problem.alignment % 256).data());
  }
  for (size_t r = 0; r < spec.results.size(); ++r) {
    blocks.emplace_back(problem.result(r).bytes(), problem.alignment % 256);
  }
  const Block workspace(recorder.workspace_bytes, 0);
  std::vector<CudaSource> sources;
  for (const KernelDraft& draft : recorder.drafts) sources.push_back(source_of(draft, "sm_80"));
  const auto kernels = difuse::testing::EmulatedKernel::build_all(sources);
  for (size_t k = 0; k < kernels.size(); ++k) {
    const KernelDraft& draft = recorder.drafts[k];
    std::vector<uint64_t> arguments;
    for (const Argument& a : draft.arguments) {
      arguments.push_back(a.kind == Argument::Kind::number ? static_cast<uint64_t>(a.value)
                          : a.kind == Argument::Kind::arena
                              ? reinterpret_cast<uint64_t>(blocks[static_cast<size_t>(a.value)].data())
                              : reinterpret_cast<uint64_t>(workspace.data() + a.value));
    }
    kernels[k].launch(draft.grid, draft.threads, draft.shared_bytes, arguments);
  }
  EXPECT_TRUE(std::ranges::all_of(blocks, &Block::is_guard_intact)) << "a write past a tensor's end";
  TensorMap results;
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (!spec.wanted(r)) continue;
    results[std::to_string(r)] = loaded(problem.result(r), blocks[static_cast<size_t>(spec.results[r].value)].data());
  }
  return results;
}

TensorMap random_inputs(const Graph& body, double mean = 0.3) {
  TensorMap inputs;
  for (const int id : body.leaves(ir::Op::input)) {
    const auto& leaf = body.node(id).as<ir::LeafAttrs>();
    std::mt19937_64 random(static_cast<uint64_t>(id) + 17);
    std::normal_distribution<double> normal(mean, 1);
    Tensor t(body.node(id).types[0]);
    for (double& x : t.data) x = ir::round_to(normal(random), t.type.dtype);
    inputs[leaf.name] = std::move(t);
  }
  return inputs;
}

bool has_cast(const Graph& body) {
  for (int id = 0; id < body.size(); ++id) {
    if (body.node(id).op == ir::Op::cast) return true;
  }
  return false;
}

void expect_reference(const Problem& problem, const TensorMap& inputs) {
  const TensorMap got = run(problem, inputs), want = ir::run_reference(problem.body, inputs, {}).outputs;
  for (const auto& [name, tensor] : got) {
    // A cast may round to the neighbour where the reference's value lies between two.
    const double tolerance = tensor.type.dtype == DType::bf16 ? 8e-3 : has_cast(problem.body) ? 1e-3 : 1e-5;
    EXPECT_LE(ir::relative_error(tensor.data, want.at(name).data), tolerance) << "output " << name;
  }
}
void expect_reference(const Problem& problem) { expect_reference(problem, random_inputs(problem.body)); }

/// Writes a body of iteration shape `shape`, batch included.
using Write = std::function<void(Builder&, const ir::Shape&)>;

Graph body_of(const ir::Shape& shape, const Write& write) {
  Graph body("body");
  Builder b(body);
  write(b, shape);
  return body;
}

struct Outputs {
  explicit Outputs(Builder& b) : graph(b.graph()) {}
  void add(Value v) { graph.set_output(std::to_string(next++), v); }
  Graph& graph;
  int next = 0;
};

/// The single node.
Write plain(std::vector<int64_t> axes, bool max = false) {
  return [=](Builder& b, const ir::Shape& shape) {
    const Value x = b.input("0", {DType::f32, shape});
    Outputs(b).add(max ? b.reduce_max(x, axes) : b.reduce_sum(x, axes));
  };
}

/// A normalise's gradient in small: operands per image and per channel, a sum and a result that is stored.
Write with_broadcasts(std::vector<int64_t> axes) {
  return [=](Builder& b, const ir::Shape& shape) {
    const Value x = b.input("0", {DType::f32, shape}), y = b.input("1", {DType::f32, shape});
    const Value mean = b.input("2", {DType::f32, {shape[0], shape[3]}}), scale = b.input("3", {DType::f32, {shape[3]}});
    const Value v = b.mul(b.sub(x, b.broadcast_image_channels(mean, shape)), b.broadcast_channels(scale, shape));
    const Value dz = b.mul(y, b.sigmoid(v));
    Outputs out(b);
    out.add(b.reduce_sum(b.mul(dz, v), axes));
    out.add(dz);
    out.add(b.reduce_sum(dz, axes));
  };
}

/// The same, with what is repeated computed here: a product, and a part of a longer vector.
Write with_small_values(std::vector<int64_t> axes) {
  return [=](Builder& b, const ir::Shape& shape) {
    const Value x = b.input("0", {DType::f32, shape});
    const Value rstd = b.input("1", {DType::f32, {shape[0], shape[3]}}), gamma = b.input("2", {DType::f32, {shape[3]}});
    const Value means = b.input("3", {DType::f32, {shape[0], 2 * shape[3]}});
    const Value mean = b.slice(means, 1, shape[3], 2 * shape[3]);
    const Value scale = b.mul(rstd, b.broadcast(gamma, {shape[0], shape[3]}, {1}));
    const ir::Shape wide{shape[0], shape[1], shape[2], 3 * shape[3]};
    const Value part = b.cast(b.slice(b.input("4", {DType::bf16, wide}), 3, shape[3], 2 * shape[3]), DType::f32);
    const Value centred = b.sub(b.add(x, part), b.broadcast_image_channels(mean, shape));
    const Value y = b.mul(centred, b.broadcast_image_channels(scale, shape));
    Outputs out(b);
    out.add(b.reduce_sum(y, axes));
    out.add(y);
  };
}

/// A vector per channel that is read for every pixel, and once more for what is computed per image of it.
Write with_a_vector_read_twice(std::vector<int64_t> axes) {
  return [=](Builder& b, const ir::Shape& shape) {
    const Value x = b.input("0", {DType::f32, shape});
    const Value rstd = b.input("1", {DType::f32, {shape[0], shape[3]}}), gamma = b.input("2", {DType::f32, {shape[3]}});
    const Value scale = b.mul(rstd, b.broadcast(gamma, {shape[0], shape[3]}, {1}));
    const Value y = b.mul(b.add(x, b.broadcast_channels(gamma, shape)), b.broadcast_image_channels(scale, shape));
    Outputs out(b);
    out.add(b.reduce_sum(y, axes));
    out.add(y);
  };
}

/// bf16 tensors in and out.
Write with_casts(std::vector<int64_t> axes) {
  return [=](Builder& b, const ir::Shape& shape) {
    const Value x = b.input("0", {DType::bf16, shape}), y = b.input("1", {DType::f32, shape});
    const Value wide = b.add(b.cast(x, DType::f32), y);
    Outputs out(b);
    out.add(b.reduce_sum(wide, axes));
    out.add(b.cast(wide, DType::bf16));
    out.add(b.reduce_max(wide, axes));
  };
}

Write image_moments(DType dtype = DType::f32) {
  return [=](Builder& b, const ir::Shape& shape) {
    const auto m = b.channel_moments(b.input("0", {dtype, shape}));
    Outputs out(b);
    out.add(m.mean);
    out.add(m.m2);
  };
}

/// A convolution's bias and residual, cast as the residual stream is.
Write moments_of_sum(DType dtype) {
  return [=](Builder& b, const ir::Shape& shape) {
    const Value x = b.input("0", {DType::f32, shape}), residual = b.input("1", {dtype, shape});
    const Value bias = b.input("2", {DType::f32, {shape[3]}}), time = b.input("3", {DType::f32, {shape[0], shape[3]}});
    const Value biased = b.add(b.add(x, b.broadcast_channels(bias, shape)), b.broadcast_image_channels(time, shape));
    const Value sum = b.cast(b.add(biased, b.cast(residual, DType::f32)), dtype);
    const auto m = b.channel_moments(sum);
    Outputs out(b);
    out.add(sum);
    out.add(m.mean);
    out.add(m.m2);
    out.add(b.silu(biased));
  };
}

/// An enlarged image that is stored, and its statistics.
Write moments_of_enlarged(DType dtype) {
  return [=](Builder& b, const ir::Shape& shape) {
    const Value small = b.input("0", {dtype, {shape[0], shape[1] / 2, shape[2] / 2, shape[3]}});
    const Value image = b.upsample_nearest(small);
    const auto m = b.channel_moments(b.cast(image, DType::f32));
    Outputs out(b);
    out.add(m.mean);
    out.add(m.m2);
    out.add(image);
  };
}

/// What is read again over the row: the axes are the last ones.
Write softmax(std::vector<int64_t> axes) {
  return [=](Builder& b, const ir::Shape& shape) {
    std::vector<int64_t> kept;
    for (int64_t d = 0; d < axes[0]; ++d) kept.push_back(d);
    const Value x = b.input("0", {DType::f32, shape});
    const Value most = b.reduce_max(x, axes);
    const Value e = b.exp(b.sub(x, b.broadcast(most, shape, kept)));
    const Value sum = b.reduce_sum(e, axes);
    Outputs out(b);
    out.add(b.div(e, b.broadcast(sum, shape, kept)));
    out.add(sum);
    out.add(most);
  };
}

/// A group's part of a norm's gradient: two chains over the same rows, one more sum of what they give, bf16 in and out.
Write group_gradient() {
  return [](Builder& b, const ir::Shape& shape) {
    const Value x = b.input("0", {DType::f32, shape}), y = b.input("1", {DType::bf16, shape});
    const Value scale = b.broadcast(b.input("2", {DType::f32, {shape[1], shape[2]}}), shape, {1, 2});
    const Value wide = b.mul(b.cast(y, DType::f32), scale);
    const auto back = [&](Value v) { return b.broadcast(v, shape, {0, 1}); };
    const Value shift = b.mul(back(b.reduce_sum(b.mul(x, scale), {2})), 0.25);
    const Value slope = b.mul(b.neg(back(b.reduce_sum(wide, {2}))), 0.125);
    Outputs out(b);
    out.add(shift);
    out.add(b.cast(slope, DType::bf16));
    out.add(b.reduce_sum(b.add(b.mul(shift, wide), slope), {2}));
  };
}

/// A number per image, read through a slice of what repeats it.
Write with_sliced_scale(std::vector<int64_t> axes) {
  return [=](Builder& b, const ir::Shape& shape) {
    ir::Shape wide = shape;
    wide[3] *= 2;
    const Value scale = b.broadcast(b.input("1", {DType::f32, {shape[0]}}), wide, {0});
    const Value x = b.cast(b.input("0", {DType::bf16, shape}), DType::f32);
    Outputs out(b);
    out.add(b.reduce_sum(b.mul(x, b.slice(scale, 3, 0, shape[3])), axes));
  };
}

struct Case {
  const char* name;
  ir::Shape shape;
  Write write;

  friend void PrintTo(const Case& one, std::ostream* to) { *to << one.name; }
};

std::vector<Case> cases() {
  return {
      {"rows_of_channels", {37, 64}, plain({0})},
      {"few_rows", {3, 100}, plain({0})},
      {"many_rows_odd", {1500, 33}, plain({0})},
      {"images_to_channels", {3, 14, 14, 36}, plain({0, 1, 2})},
      {"images_to_channels_in_chunks", {4, 28, 28, 20}, plain({0, 1, 2})},
      {"images_to_image_channels", {2, 9, 9, 100}, plain({1, 2})},
      {"images_to_image_channels_in_chunks", {2, 80, 48, 12}, plain({1, 2})},
      {"three_channels", {2, 31, 17, 3}, plain({0, 1, 2})},
      {"one_channel", {2, 28, 28, 1}, plain({0, 1, 2})},
      {"last", {50, 7}, plain({1})},
      {"last_even", {33, 96}, plain({1}, true)},
      {"last_wide", {5, 1000}, plain({1})},
      {"last_long", {3, 40001}, plain({1})},
      {"channels_of_pixels", {2, 5, 5, 24}, plain({3})},
      {"pairs", {32, 32, 2}, plain({2})},
      {"all", {3, 5, 7, 11}, plain({0, 1, 2, 3})},
      {"vector_short", {3}, plain({0})},
      {"vector_odd", {1027}, plain({0}, true)},
      {"vector_long", {100003}, plain({0})},
      {"pixels_and_group", {2, 300, 4, 6}, plain({1, 3})},
      {"first_and_third", {5, 3, 4, 8}, plain({0, 2})},
      {"image_and_group_channels", {3, 20, 4, 5}, plain({0, 1, 3})},
      {"norm_gradient", {2, 20, 20, 64}, with_broadcasts({1, 2})},
      {"norm_gradient_chunks", {2, 48, 48, 20}, with_broadcasts({1, 2})},
      {"norm_gradient_to_channels", {3, 16, 16, 32}, with_broadcasts({0, 1, 2})},
      {"norm_gradient_small_images", {5, 4, 4, 8}, with_broadcasts({0, 1, 2})},
      {"norm_gradient_odd_channels", {2, 9, 7, 5}, with_broadcasts({1, 2})},
      {"whole_images", {3, 6, 6, 8}, with_broadcasts({1, 2, 3})},
      {"small_values", {2, 20, 20, 64}, with_small_values({1, 2})},
      {"small_values_to_channels", {3, 16, 16, 12}, with_small_values({0, 1, 2})},
      {"small_values_odd", {2, 9, 7, 5}, with_small_values({1, 2})},
      {"vector_read_twice", {2, 20, 20, 64}, with_a_vector_read_twice({1, 2})},
      {"vector_read_twice_to_channels", {3, 4, 6, 6}, with_a_vector_read_twice({0, 1, 2})},
      {"casts", {2, 14, 14, 64}, with_casts({1, 2})},
      {"casts_to_channels", {3, 7, 7, 20}, with_casts({0, 1, 2})},
      {"casts_whole_images", {2, 8, 8, 6}, with_casts({1, 2, 3})},
      {"sliced_scale", {2, 20, 20, 64}, with_sliced_scale({1, 2})},
      {"sliced_scale_to_channels", {3, 16, 16, 32}, with_sliced_scale({0, 1, 2})},
      {"softmax", {37, 64}, softmax({1})},
      {"softmax_odd", {5, 3, 7}, softmax({2})},
      {"softmax_long", {3, 1000}, softmax({1})},
      {"softmax_of_images", {3, 4, 4, 6}, softmax({1, 2, 3})},
      {"softmax_one_row", {1, 40}, softmax({1})},
      {"groups_of_8", {3, 32, 8}, group_gradient()},
      {"groups_of_2", {3, 4, 2}, group_gradient()},
      {"groups_of_14", {2, 32, 14}, group_gradient()},
      {"moments_64", {2, 64, 64, 64}, image_moments()},
      {"moments_30_odd", {2, 30, 30, 3}, image_moments()},
      {"moments_30", {2, 30, 30, 100}, image_moments()},
      {"moments_7", {3, 7, 7, 20}, image_moments()},
      {"moments_48x80", {1, 48, 80, 20}, image_moments(DType::bf16)},
      {"moments_one_channel", {2, 64, 64, 1}, image_moments()},
      {"moments_one_pixel", {3, 1, 1, 3}, image_moments()},
      {"moments_of_sum", {2, 16, 24, 64}, moments_of_sum(DType::f32)},
      {"moments_of_enlarged", {2, 32, 16, 64}, moments_of_enlarged(DType::bf16)},
      {"moments_of_enlarged_odd", {2, 18, 14, 20}, moments_of_enlarged(DType::bf16)},
      {"moments_of_sum_bf16", {2, 30, 30, 20}, moments_of_sum(DType::bf16)},
      {"moments_of_sum_7", {2, 7, 7, 36}, moments_of_sum(DType::bf16)},
  };
}

class ReductionCase : public ::testing::TestWithParam<Case> {};

TEST_P(ReductionCase, AgreesWithTheReference) {
  const Graph body = body_of(GetParam().shape, GetParam().write);
  expect_reference({body});
}

TEST_P(ReductionCase, CompilesWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const Graph body = body_of(GetParam().shape, GetParam().write);
  for (const KernelDraft& draft : Problem{body}.emitted().drafts) {
    expect_compiles(*nvrtc, draft, {"sm_80", "sm_90a"});
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReductionCase, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return std::string(one.param.name); });

/// Sums over images and over pixels of one loss.
Write two_axes() {
  return [](Builder& b, const ir::Shape& shape) {
    const Value x = b.input("0", {DType::f32, shape}), y = b.input("1", {DType::f32, shape});
    const Value d = b.sub(x, y), twice = b.add(d, d);
    Outputs out(b);
    out.add(b.reduce_sum(b.square(d), {1, 2, 3}));
    out.add(twice);
    out.add(b.reduce_sum(twice, {0, 1, 2}));
  };
}

Write moments_beside_a_sum() {
  return [](Builder& b, const ir::Shape& shape) {
    const Value x = b.input("0", {DType::f32, shape});
    const Value y = b.mul(x, x), z = b.add(y, 1.0);
    const auto of_x = b.channel_moments(x), of_z = b.channel_moments(z);
    Outputs out(b);
    out.add(z);
    out.add(of_z.m2);
    out.add(b.reduce_sum(y, {1, 2}));
    out.add(of_x.mean);
    out.add(of_x.m2);
  };
}

TEST(Reduction, EachSetOfAxesHasItsOwnKernels) {
  const Graph loss = body_of({3, 10, 10, 3}, two_axes()), moments = body_of({2, 20, 9, 12}, moments_beside_a_sum());
  expect_reference({loss});
  expect_reference({moments});
  EXPECT_EQ(Problem{loss}.emitted().drafts.size(), 2u);
  EXPECT_EQ(Problem{moments}.emitted().drafts.size(), 3u);
}

/// A store between them would make the loads wait for one another.
TEST(Reduction, AnImageIsStoredOnceAllOfItIsThere) {
  const Recorder recorder = Problem{body_of({2, 32, 16, 64}, moments_of_enlarged(DType::bf16))}.emitted();
  const std::string& source = recorder.drafts.at(0).source;
  const std::string kernel = source.substr(source.rfind("__global__"));
  EXPECT_LT(kernel.rfind("load_run<"), kernel.find("store_run<")) << kernel;
}

TEST(Reduction, ResultsMayOverwriteOperands) {
  const Graph loss = body_of({3, 10, 10, 3}, two_axes());
  for (const int operand : {0, 1}) expect_reference({loss, {{1, operand}}});
  const Graph gradient = body_of({2, 21, 19, 12}, with_broadcasts({1, 2}));
  for (const int operand : {0, 1}) expect_reference({gradient, {{1, operand}}});
}

TEST(Reduction, WhatNobodyReadsIsNotStored) {
  const Graph gradient = body_of({2, 9, 9, 12}, with_broadcasts({1, 2})), loss = body_of({3, 5, 5, 3}, two_axes());
  for (const std::set<int>& unwanted : std::vector<std::set<int>>{{0}, {1}, {2}, {0, 1}, {0, 2}}) {
    expect_reference({gradient, {}, unwanted});
    expect_reference({loss, {}, unwanted});
  }
  const Graph moments = body_of({2, 9, 9, 12}, moments_of_sum(DType::f32));
  for (const std::set<int>& unwanted : std::vector<std::set<int>>{{0}, {1}, {2, 3}, {1, 2}}) {
    expect_reference({moments, {}, unwanted});
  }
}

TEST(Reduction, OperandsNeedNotBeAligned) {
  for (const Case& one : cases()) {
    if (ir::element_count(one.shape) > 60000) continue;
    SCOPED_TRACE(one.name);
    const Graph body = body_of(one.shape, one.write);
    expect_reference({body, {}, {}, 4});
  }
}

TEST(Reduction, DeviationsAreTakenFromTheMean) {
  const Graph body = body_of({1, 30, 30, 8}, image_moments());
  expect_reference({body}, random_inputs(body, 200));
}

TEST(Reduction, TheMaximumPassesOverNaN) {
  const Graph body = body_of({4, 40}, plain({1}, true));
  TensorMap inputs = random_inputs(body);
  inputs["0"].data[3] = inputs["0"].data[41] = std::nan("");
  expect_reference({body}, inputs);
}

/// The part of a tensor that belongs to one image, where it has one.
Tensor of_image(const Tensor& t, int64_t images, int64_t n) {
  if (t.type.shape.empty() || t.type.shape[0] != images) return t;
  Type type = t.type;
  type.shape[0] = 1;
  const auto begin = t.data.begin() + n * type.elements();
  return {type, {begin, begin + type.elements()}};
}

TEST(Reduction, AnImageAloneGivesTheSameBits) {
  const std::vector<Case> images = {
      {"sums", {3, 48, 48, 20}, with_broadcasts({1, 2})}, {"sum", {3, 80, 48, 12}, plain({1, 2})},
      {"whole", {3, 60, 40, 16}, with_casts({1, 2, 3})},  {"moments", {3, 30, 30, 20}, image_moments()},
      {"both", {3, 17, 9, 36}, moments_beside_a_sum()},
  };
  for (const Case& one : images) {
    SCOPED_TRACE(one.name);
    ir::Shape alone = one.shape;
    alone[0] = 1;
    const Graph batch = body_of(one.shape, one.write), single = body_of(alone, one.write);
    const TensorMap inputs = random_inputs(batch), all = run({batch}, inputs);
    for (int64_t n = 0; n < 3; ++n) {
      TensorMap own;
      for (const auto& [name, t] : inputs) own[name] = of_image(t, 3, n);
      for (const auto& [name, t] : run({single}, own)) EXPECT_EQ(t.data, of_image(all.at(name), 3, n).data) << name;
    }
  }
}

TEST(Reduction, TheBatchIsNotInTheSource) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    std::set<std::string> sources;
    size_t most = 0;
    for (const int64_t batch : {1, 3, 13, 64}) {
      ir::Shape shape = one.shape;
      shape[0] *= batch;
      const Graph body = body_of(shape, one.write);
      const Recorder recorder = Problem{body}.emitted();
      most = std::max(most, recorder.drafts.size());
      for (const KernelDraft& draft : recorder.drafts) sources.insert(draft.source);
    }
    EXPECT_EQ(sources.size(), most);
  }
}

TEST(Reduction, LargeTensorsHaveLongIndices) {
  const std::vector<Case> large = {{"gradient", {40000, 64, 64, 64}, with_broadcasts({1, 2})},
                                   {"to_channels", {40000, 64, 64, 64}, with_broadcasts({0, 1, 2})},
                                   {"all", {40000, 64, 64, 64}, plain({0, 1, 2, 3})},
                                   {"last", {40000, 64, 64, 64}, plain({3})},
                                   {"moments", {40000, 64, 64, 64}, moments_of_sum(DType::bf16)}};
  const auto nvrtc = NvrtcLibrary::load();
  for (const Case& one : large) {
    const Graph body = body_of(one.shape, one.write);
    const Recorder recorder = Problem{body}.emitted();
    EXPECT_NE(recorder.drafts[0].source.find("using index_t = long long"), std::string::npos) << one.name;
    for (const KernelDraft& draft : recorder.drafts) {
      if (nvrtc) nvrtc->compile(source_of(draft, "sm_90a"));
    }
  }
}

/// Many tensors, each through a function with branches.
Write many_operands(int count, bool moments) {
  return [=](Builder& b, const ir::Shape& shape) {
    Value sum = b.sigmoid(b.input("0", {DType::f32, shape}));
    for (int i = 1; i < count; ++i) {
      sum = b.add(b.mul(sum, sum), b.sigmoid(b.input(std::to_string(i), {DType::f32, shape})));
    }
    Outputs out(b);
    out.add(moments ? b.channel_moments(sum).m2 : b.reduce_sum(sum, {1, 2}));
    out.add(sum);
  };
}

TEST(Reduction, ManyOperandsFitIntoRegisters) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const auto& [count, moments] : {std::pair{12, true}, std::pair{12, false}, std::pair{64, false}}) {
    const Graph body = body_of({2, 32, 32, 64}, many_operands(count, moments));
    nvrtc->compile(source_of(Problem{body}.emitted().drafts[0], "sm_90a"));
  }
}

Write finish(int64_t height, int64_t width, std::vector<int64_t> channels, int64_t groups) {
  return [=](Builder& b, const ir::Shape& shape) {
    std::vector<Builder::Moments> moments;
    int next = 0;
    for (const int64_t c : channels) {
      const Type type{DType::f32, {shape[0], shape[1], c}};
      const Value mean = b.input(std::to_string(next++), type);
      moments.push_back({mean, b.input(std::to_string(next++), type)});
    }
    const auto s = b.group_finish(moments, {groups, 1e-5, height, width});
    Outputs out(b);
    out.add(s.mean);
    out.add(s.rstd);
  };
}

std::vector<Case> finish_cases() {
  return {
      {"one_tensor", {3, 32, 0}, finish(64, 64, {64}, 32)},
      {"straddling", {2, 30, 0}, finish(48, 80, {18, 46}, 16)},
      {"three_tensors", {2, 8, 0}, finish(30, 30, {3, 20, 1}, 3)},
      {"one_group", {2, 1, 0}, finish(7, 7, {20}, 1)},
      {"wide_groups", {1, 6, 0}, finish(17, 24, {100}, 2)},
      {"one_pixel", {5, 1, 0}, finish(1, 1, {12}, 4)},
  };
}

TensorMap moments_inputs(const Graph& body) {
  TensorMap inputs = random_inputs(body);
  for (auto& [name, t] : inputs) {
    if (std::stoi(name) % 2 == 1) std::ranges::transform(t.data, t.data.begin(), [](double x) { return std::abs(x); });
  }
  return inputs;
}

TEST(GroupFinish, AgreesWithTheReference) {
  for (const Case& one : finish_cases()) {
    SCOPED_TRACE(one.name);
    const Graph body = body_of(one.shape, one.write);
    expect_reference({body}, moments_inputs(body));
    expect_reference({body, {}, {0}, 4}, moments_inputs(body));
  }
}

TEST(GroupFinish, AnImageAloneGivesTheSameBits) {
  const Graph batch = body_of({3, 30, 0}, finish(48, 80, {18, 46}, 16)),
              single = body_of({1, 30, 0}, finish(48, 80, {18, 46}, 16));
  const TensorMap inputs = moments_inputs(batch), all = run({batch}, inputs);
  for (int64_t n = 0; n < 3; ++n) {
    TensorMap own;
    for (const auto& [name, t] : inputs) own[name] = of_image(t, 3, n);
    for (const auto& [name, t] : run({single}, own)) EXPECT_EQ(t.data, of_image(all.at(name), 3, n).data) << name;
  }
  EXPECT_EQ(Problem{batch}.emitted().drafts[0].source, Problem{single}.emitted().drafts[0].source);
}

TEST(GroupFinish, CompilesWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const Case& one : finish_cases()) {
    const Graph body = body_of(one.shape, one.write);
    for (const char* architecture : {"sm_80", "sm_90a"}) {
      nvrtc->compile(source_of(Problem{body}.emitted().drafts[0], architecture));
    }
  }
}

}  // namespace
}  // namespace difuse::codegen::cuda
