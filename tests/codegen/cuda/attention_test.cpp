// Attention and its gradient: the kernels compile without spills, and run on the CPU they give what the reference
// gives, bit by bit the same for an image alone and in a batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "codegen/cuda/emit/attention/tiles.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/jit/nvrtc.h"
#include "ir/builder.h"
#include "ir/reference.h"
#include "tests/codegen/cuda/recorder.h"
#include "tests/support/cuda_emulator/emulated_kernel.h"

namespace difuse::codegen::cuda {
namespace {

using difuse::testing::EmulatedKernel;
using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::QkvOrder;
using ir::Tensor;
using ir::TensorMap;
using ir::Type;
using ir::Value;

constexpr int64_t kGuard = 256;  ///< Bytes after every tensor, which nobody may write.

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

void store(double x, DType dtype, std::byte* to) {
  if (dtype == DType::f32) {
    const auto narrow = static_cast<float>(x);
    std::memcpy(to, &narrow, 4);
  } else if (dtype == DType::bf16) {
    const auto half = static_cast<uint16_t>(bits_of(static_cast<float>(x)) >> 16);
    std::memcpy(to, &half, 2);
  } else {
    const auto half = static_cast<_Float16>(x);
    std::memcpy(to, &half, 2);
  }
}
double load(DType dtype, const std::byte* from) {
  if (dtype == DType::f32) {
    float x;
    std::memcpy(&x, from, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  if (dtype == DType::bf16) return float_of(uint32_t{bits} << 16);
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<double>(half);
}

/// A body with its operands and results in one arena, everything `shift` bytes after a multiple of 256.
struct Problem {
  const Graph& body;
  int64_t shift = 0;
  std::vector<size_t> unwanted = {};
  ir::DeviceSpec device = *ir::find_device_spec("h100");
  bool find_races = false;
  bool tf32 = false;  ///< All operands hold floats rounded to tf32.

  const Type& operand(size_t i) const { return body.type(body.find_input(std::to_string(i))); }
  const Type& result(size_t r) const { return body.type(body.outputs()[r].value); }

  KernelSpec spec(int64_t& arena_bytes) const {
    KernelSpec spec{body, {}, {}, {}, {}, "test", 0, device, {}};
    const int64_t alignment = shift == 0 ? 256 : shift & -shift;
    arena_bytes = 0;
    const auto place = [&](const Type& type) {
      const Argument at{Argument::Kind::arena, arena_bytes + shift};
      arena_bytes += (type.bytes() + shift + kGuard + 255) / 256 * 256;
      return at;
    };
    for (size_t i = 0; i < body.leaves(ir::Op::input).size(); ++i) {
      spec.operands.push_back(place(operand(i)));
      spec.alignment.push_back(alignment);
      spec.is_tf32.push_back(tf32);
    }
    for (size_t r = 0; r < body.outputs().size(); ++r) {
      spec.results.push_back(std::ranges::count(unwanted, r) > 0 ? Argument::number(0) : place(result(r)));
      spec.result_alignment.push_back(alignment);
    }
    return spec;
  }

  Recorder emitted() const {
    Recorder recorder;
    int64_t arena_bytes = 0;
    EXPECT_TRUE(accepts_attention(body));
    emit_attention(spec(arena_bytes), recorder);
    return recorder;
  }
};

struct Aligned {
  explicit Aligned(int64_t bytes) : memory(static_cast<size_t>(bytes) + 256, std::byte{0xff}) {
    start = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
  }
  std::vector<std::byte> memory;
  std::byte* start;
};

/// Wanted results by output name.
TensorMap run(const Problem& problem, const TensorMap& inputs) {
  int64_t arena_bytes = 0;
  const KernelSpec spec = problem.spec(arena_bytes);
  const Recorder recorder = problem.emitted();
  Aligned arena(arena_bytes), workspace(recorder.workspace_bytes);
  std::vector<bool> owned(static_cast<size_t>(arena_bytes), false);
  const auto own = [&](const Argument& at, int64_t bytes) {
    std::fill_n(owned.begin() + at.value, bytes, true);
    return arena.start + at.value;
  };
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const Tensor& t = inputs.at(std::to_string(i));
    std::byte* const to = own(spec.operands[i], t.type.bytes());
    for (size_t e = 0; e < t.data.size(); ++e) {
      store(t.data[e], t.type.dtype, to + static_cast<int64_t>(e) * ir::size_of(t.type.dtype));
    }
  }
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (spec.wanted(r)) own(spec.results[r], problem.result(r).bytes());
  }
  std::vector<CudaSource> sources;
  for (const KernelDraft& draft : recorder.drafts) sources.push_back(source_of(draft, "sm_80"));
  const auto kernels = EmulatedKernel::build_all(sources, {.find_races = problem.find_races});
  for (size_t k = 0; k < kernels.size(); ++k) {
    const KernelDraft& draft = recorder.drafts[k];
    std::vector<uint64_t> arguments;
    for (const Argument& a : draft.arguments) {
      arguments.push_back(a.kind == Argument::Kind::number  ? static_cast<uint64_t>(a.value)
                          : a.kind == Argument::Kind::arena ? reinterpret_cast<uint64_t>(arena.start + a.value)
                                                            : reinterpret_cast<uint64_t>(workspace.start + a.value));
    }
    kernels[k].launch(draft.grid, draft.threads, draft.shared_bytes, arguments);
  }
  for (size_t i = 0; i < owned.size(); ++i) {
    if (owned[i] || arena.start[i] == std::byte{0xff}) continue;
    ADD_FAILURE() << "byte " << i << " of the arena belongs to nobody and was written";
    break;
  }
  TensorMap results;
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (!spec.wanted(r)) continue;
    Tensor t(problem.result(r));
    for (size_t e = 0; e < t.data.size(); ++e) {
      t.data[e] =
          load(t.type.dtype, arena.start + spec.results[r].value + static_cast<int64_t>(e) * ir::size_of(t.type.dtype));
    }
    results[std::to_string(r)] = std::move(t);
  }
  return results;
}

struct Case {
  DType dtype = DType::f32;
  int64_t length = 1, heads = 1, width = 8;
  QkvOrder order = QkvOrder::heads_first;
  int64_t images = 2, shift = 0;
  bool tf32 = false;

  std::string name() const {
    return fmt::format("{}_l{}_h{}_w{}_{}{}", tf32 ? "tf32" : ir::to_string(dtype), length, heads, width,
                       ir::to_string(order), shift == 0 ? "" : fmt::format("_at{}", shift));
  }
  friend void PrintTo(const Case& c, std::ostream* to) { *to << c.name(); }

  Type qkv() const { return {dtype, {images, length, 3 * heads * width}}; }
  Type out(DType type) const { return {type, {images, length, heads * width}}; }
  ir::AttentionAttrs attrs() const { return {heads, order}; }

  Graph forward() const {
    Graph body("body");
    Builder b(body);
    const auto a = b.attention(b.input("0", qkv()), attrs());
    body.set_output("0", a.out);
    body.set_output("1", a.lse);
    return body;
  }
  /// dout may have another type than qkv.
  Graph gradient(DType dout, bool cast = false) const {
    Graph body("body");
    Builder b(body);
    const Value x = b.input("0", qkv()), y = b.input("1", out(dtype));
    const Value log_sum = b.input("2", {DType::f32, {images, heads, length}});
    const Value dqkv = b.attention_grad(x, y, log_sum, b.input("3", out(dout)), attrs());
    body.set_output("0", dqkv);
    if (cast) body.set_output("1", b.cast(dqkv, DType::bf16));
    return body;
  }
};

double rounded_to(double x, DType dtype, bool tf32) {
  if (!tf32) return ir::round_to(x, dtype);
  return float_of((bits_of(static_cast<float>(x)) + 0x1000) & ~uint32_t{0x1fff});
}

Tensor random_tensor(const Type& type, uint64_t seed, double scale = 1, bool tf32 = false) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0.1, scale);
  Tensor t(type);
  for (double& x : t.data) x = rounded_to(normal(random), type.dtype, tf32);
  return t;
}

Tensor rounded(Tensor t, DType dtype) {
  for (double& x : t.data) x = ir::round_to(x, dtype);
  t.type.dtype = dtype;
  return t;
}

/// Operands of the gradient: what the reference's forward leaves.
TensorMap gradient_inputs(const Case& c, const Tensor& qkv, const Tensor& dout) {
  TensorMap forward = ir::run_reference(c.forward(), {{"0", qkv}}, {}).outputs;
  return {
      {"0", qkv}, {"1", rounded(forward.at("0"), c.dtype)}, {"2", rounded(forward.at("1"), DType::f32)}, {"3", dout}};
}

/// What may be multiplied.
struct Kind {
  DType dtype;
  bool tf32 = false;
};
constexpr Kind kKinds[] = {{DType::f32}, {DType::f32, true}, {DType::bf16}};

/// With 16-bit operands the weights are rounded to 8 or 11 bits: half a unit of each, and sums of many of them.
double tolerance(DType dtype) { return dtype == DType::f32 ? 2e-6 : dtype == DType::bf16 ? 6e-3 : 7.5e-4; }
/// In tf32 the tensor cores cut their sums off: half a last bit for each 8 products, of scores and of weighted rows.
double tolerance(const Case& c) {
  const auto products = static_cast<double>((c.width + 7) / 8 + (c.length + 7) / 8);
  return tolerance(c.dtype) + (c.tf32 ? 2 * products * 0x1p-25 : 0);
}

void expect_reference(const Problem& problem, const TensorMap& inputs, double most) {
  const TensorMap got = run(problem, inputs), want = ir::run_reference(problem.body, inputs, {}).outputs;
  for (const auto& [name, tensor] : got) {
    const double allowed = tensor.type.dtype == DType::bf16 ? std::max(most, 8e-3) : most;
    EXPECT_LE(ir::relative_error(tensor.data, want.at(name).data), allowed) << "output " << name;
  }
}

std::vector<Case> cases() {
  constexpr int64_t kLengths[] = {1, 7, 49, 64, 65, 100}, kWidths[] = {8, 20, 32, 64, 128, 256};
  std::vector<Case> all;
  for (const auto& [dtype, tf32] : kKinds) {
    for (size_t w = 0; w < 6; ++w) {
      for (size_t l : {w, w + 3}) {
        const bool odd = (w + l) % 2 == 1;
        all.push_back({dtype, kLengths[(l + (dtype == DType::f32 ? 0 : 1)) % 6], odd ? 3 : 1, kWidths[w],
                       (w + l / 3) % 2 == 0 ? QkvOrder::heads_first : QkvOrder::qkv_first, 2, 0, tf32});
      }
    }
  }
  all.push_back({DType::f16, 65, 3, 32, QkvOrder::qkv_first});
  all.push_back({DType::f16, 49, 1, 256, QkvOrder::heads_first});
  // Narrower copies: odd widths, and operands that start anywhere.
  all.push_back({DType::f32, 16, 4, 5, QkvOrder::heads_first});
  all.push_back({DType::bf16, 20, 2, 5, QkvOrder::qkv_first});
  all.push_back({DType::bf16, 40, 2, 36, QkvOrder::qkv_first, 1, 4});
  all.push_back({DType::bf16, 40, 2, 32, QkvOrder::qkv_first, 1, 8});
  all.push_back({DType::f32, 33, 1, 16, QkvOrder::heads_first, 1, 4});
  all.push_back({DType::f32, 16, 4, 5, QkvOrder::heads_first, 2, 0, true});
  all.push_back({DType::f32, 33, 1, 16, QkvOrder::heads_first, 1, 4, true});
  // Many columns.
  all.push_back({DType::f32, 20, 1, 384, QkvOrder::heads_first, 1});
  all.push_back({DType::bf16, 130, 1, 200, QkvOrder::qkv_first, 1});
  all.push_back({DType::bf16, 33, 1, 512, QkvOrder::heads_first, 1});
  all.push_back({DType::bf16, 300, 1, 16, QkvOrder::heads_first, 1});
  return all;
}

class AttentionCase : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionCase, ValueAgreesWithTheReference) {
  const Case& c = GetParam();
  const Graph body = c.forward();
  expect_reference({.body = body, .shift = c.shift, .tf32 = c.tf32}, {{"0", random_tensor(c.qkv(), 1, 1, c.tf32)}},
                   tolerance(c));
}

TEST_P(AttentionCase, GradientAgreesWithTheReference) {
  const Case& c = GetParam();
  const Graph body = c.gradient(c.dtype);
  const TensorMap inputs =
      gradient_inputs(c, random_tensor(c.qkv(), 2, 1, c.tf32), random_tensor(c.out(c.dtype), 3, 1, c.tf32));
  expect_reference({.body = body, .shift = c.shift, .tf32 = c.tf32}, inputs, tolerance(c));
}

INSTANTIATE_TEST_SUITE_P(All, AttentionCase, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name(); });

TEST(Attention, LargeScoresStayFinite) {
  for (const auto& [dtype, tf32] : kKinds) {
    const Case c{dtype, 80, 1, 32, QkvOrder::heads_first};
    const Graph body = c.forward();
    // Scores of some hundreds: their own rounding, 2^-24 of them, is an error of the exponentials.
    expect_reference({.body = body, .tf32 = tf32}, {{"0", random_tensor(c.qkv(), 4, 12, tf32)}},
                     dtype == DType::f32 ? 1e-4 : 1e-2);
  }
}

TEST(Attention, MissingKeysOfVeryNegativeScoresAddNothing) {
  for (const auto& [dtype, tf32] : kKinds) {
    const Case c{dtype, 80, 1, 32, QkvOrder::qkv_first};
    Tensor qkv = random_tensor(c.qkv(), 16, 0.5, tf32);
    for (size_t i = 0; i < qkv.data.size(); ++i) {
      const double shift = i % 96 < 32 ? 6 : i % 96 < 64 ? -6 : 0;  // Scores about -200.
      qkv.data[i] = rounded_to(qkv.data[i] + shift, dtype, tf32);
    }
    const Graph forward = c.forward(), gradient = c.gradient(dtype);
    const double most = dtype == DType::f32 ? 1e-4 : 2e-2;
    expect_reference({.body = forward, .tf32 = tf32}, {{"0", qkv}}, most);
    expect_reference({.body = gradient, .tf32 = tf32},
                     gradient_inputs(c, qkv, random_tensor(c.out(dtype), 17, 1, tf32)), most);
  }
}

TEST(Attention, BodiesMayCastTheResults) {
  const Case c{DType::bf16, 49, 2, 20, QkvOrder::heads_first};
  Graph forward("body");
  Builder b(forward);
  const auto a = b.attention(b.input("0", c.qkv()), c.attrs());
  const Value residual = b.input("1", c.out(DType::f32));
  forward.set_output("0", b.cast(a.out, DType::bf16));
  forward.set_output("1", a.lse);
  forward.set_output("2", b.add(b.reshape(a.out, {2, 7, 7, 40}), b.reshape(residual, {2, 7, 7, 40})));
  const TensorMap inputs = {{"0", random_tensor(c.qkv(), 5)}, {"1", random_tensor(c.out(DType::f32), 6)}};
  expect_reference({forward}, inputs, tolerance(DType::bf16));
  expect_reference({forward, 0, {1, 2}}, inputs, tolerance(DType::bf16));
  expect_reference({forward, 0, {0, 2}}, inputs, tolerance(DType::bf16));

  const Graph gradient = c.gradient(DType::bf16, true);
  expect_reference({gradient}, gradient_inputs(c, inputs.at("0"), random_tensor(c.out(DType::bf16), 7)),
                   tolerance(DType::bf16));
}

TEST(Attention, GradientOfAnotherTypeIsMultipliedInF32) {
  const Case c{DType::bf16, 20, 2, 20, QkvOrder::qkv_first};
  const Graph body = c.gradient(DType::f32);
  expect_reference({body}, gradient_inputs(c, random_tensor(c.qkv(), 8), random_tensor(c.out(DType::f32), 9)),
                   tolerance(DType::f32));
}

TEST(Attention, OtherBodiesAreNotTaken) {
  const Case c{DType::f32, 9, 1, 8, QkvOrder::heads_first};
  Graph body("body");
  Builder b(body);
  const Value x = b.input("0", c.qkv());
  const auto a = b.attention(b.neg(x), c.attrs());
  body.set_output("0", a.out);
  EXPECT_FALSE(accepts_attention(body));
  Graph sums("sums");
  Builder s(sums);
  sums.set_output("0", s.reduce_sum(s.attention(s.input("0", c.qkv()), c.attrs()).out, {1}));
  EXPECT_FALSE(accepts_attention(sums));
}

/// Image 1 of `batch`.
Tensor second_image(const Tensor& batch) {
  Type type = batch.type;
  const auto size = static_cast<ptrdiff_t>(type.elements() / type.shape[0]);
  type.shape[0] = 1;
  Tensor t(type);
  std::copy_n(batch.data.begin() + size, size, t.data.begin());
  return t;
}

TEST(Attention, AnImagesBitsDoNotDependOnTheBatch) {
  for (const auto& [dtype, tf32] : kKinds) {
    for (const int64_t width : {32, 256}) {
      Case c{dtype, 65, width == 32 ? 2 : 1, width, QkvOrder::qkv_first, 3};
      const TensorMap batch =
          gradient_inputs(c, random_tensor(c.qkv(), 10, 1, tf32), random_tensor(c.out(dtype), 11, 1, tf32));
      TensorMap one;
      for (const auto& [name, tensor] : batch) one[name] = second_image(tensor);
      const Graph forward = c.forward(), gradient = c.gradient(dtype);
      c.images = 1;
      const Graph one_forward = c.forward(), one_gradient = c.gradient(dtype);
      const auto expect_same = [](const Problem& of_batch, const TensorMap& inputs, const Problem& of_one,
                                  const TensorMap& one_inputs) {
        const Recorder several = of_batch.emitted(), alone = of_one.emitted();
        for (size_t i = 0; i < several.drafts.size(); ++i) {
          EXPECT_EQ(several.drafts[i].source, alone.drafts[i].source);
        }
        const TensorMap all = run(of_batch, inputs);
        for (const auto& [name, tensor] : run(of_one, one_inputs)) {
          EXPECT_EQ(second_image(all.at(name)).data, tensor.data) << name;
        }
      };
      expect_same({.body = forward, .tf32 = tf32}, {{"0", batch.at("0")}}, {.body = one_forward, .tf32 = tf32},
                  {{"0", one.at("0")}});
      expect_same({.body = gradient, .tf32 = tf32}, batch, {.body = one_gradient, .tf32 = tf32}, one);
    }
  }
}

TEST(Attention, BlocksDoNotChangeBits) {
  for (const auto& [dtype, tf32] : kKinds) {
    for (const int64_t width : {24, 136}) {
      const Case c{dtype, 140, 1, width, QkvOrder::heads_first, 1};
      const Graph forward = c.forward(), gradient = c.gradient(dtype);
      const TensorMap inputs =
          gradient_inputs(c, random_tensor(c.qkv(), 12, 1, tf32), random_tensor(c.out(dtype), 13, 1, tf32));
      Problem problem{.body = forward, .tf32 = tf32}, gradient_problem{.body = gradient, .tf32 = tf32};
      const TensorMap value = run(problem, {{"0", inputs.at("0")}}), grad = run(gradient_problem, inputs);
      std::set<int> threads;
      for (const int64_t processors : {1, 32, 4096}) {
        for (const int64_t kilobytes : {48, 160}) {
          for (Problem* p : {&problem, &gradient_problem}) {
            p->device.processors = processors;
            p->device.shared_memory_bytes = kilobytes * 1024;
          }
          if (kilobytes == 48 && width == 136) continue;  // Nothing fits.
          for (const KernelDraft& draft : problem.emitted().drafts) threads.insert(draft.threads);
          EXPECT_EQ(run(problem, {{"0", inputs.at("0")}}).at("0").data, value.at("0").data);
          EXPECT_EQ(run(gradient_problem, inputs).at("0").data, grad.at("0").data);
        }
      }
      EXPECT_GE(threads.size(), 2u) << c.name() << ": always the same tile";
    }
  }
}

TEST(Attention, NothingRaces) {
  for (const auto& [dtype, tf32] : kKinds) {
    for (const int64_t width : {20, 144}) {
      const Case c{dtype, 70, 1, width, QkvOrder::heads_first, 1};
      const Graph forward = c.forward(), gradient = c.gradient(dtype);
      const TensorMap inputs =
          gradient_inputs(c, random_tensor(c.qkv(), 14, 1, tf32), random_tensor(c.out(dtype), 15, 1, tf32));
      Problem problem{.body = forward, .tf32 = tf32}, gradient_problem{.body = gradient, .tf32 = tf32};
      problem.find_races = gradient_problem.find_races = true;
      run(problem, {{"0", inputs.at("0")}});
      run(gradient_problem, inputs);
    }
  }
}

void expect_no_spills(int64_t length, const std::vector<int64_t>& widths) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const auto& [dtype, tf32] : kKinds) {
    for (const int64_t width : widths) {
      const Case c{dtype, length, 1, width, QkvOrder::qkv_first};
      for (const Graph& body : {c.forward(), c.gradient(dtype)}) {
        for (const KernelDraft& draft : Problem{.body = body, .tf32 = tf32}.emitted().drafts) {
          EXPECT_LE(draft.shared_bytes, 99 * 1024) << c.name();
          expect_compiles(*nvrtc, draft, {"sm_80", "sm_90a"});
        }
      }
    }
  }
}

TEST(Attention, CompilesWithoutSpills) { expect_no_spills(256, {32, 64, 256}); }
TEST(SlowAttention, CompilesWithoutSpills) {
  expect_no_spills(49, {8, 16, 20, 32, 40, 64, 128, 256, 512});
  expect_no_spills(1024, {8, 16, 20, 32, 40, 64, 96, 128, 200, 256, 384, 512});
}

}  // namespace
}  // namespace difuse::codegen::cuda
