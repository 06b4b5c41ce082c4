// The emulator itself, on kernels written by hand: that it computes what a device would, and finds what it says it
// finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/embedded.h"
#include "tests/support/cuda_emulator/emulated_kernel.h"
#include "tests/support/temp_folder.h"

namespace difuse::testing {
namespace {

using codegen::CudaSource;
using codegen::cuda::Argument;
using codegen::cuda::device_source;
using test::error_of;

/// A kernel named `kernel` with all device headers before it.
CudaSource with_headers(const std::string& text) {
  return {.name = "kernel",
          .source = device_source({"ptx.cuh", "vector.cuh"}) + text,
          .architecture = "sm_90",
          .options = {}};
}

CudaSource plain(const std::string& text) {
  return {.name = "kernel", .source = text, .architecture = "sm_80", .options = {}};
}

template <class... A>
void launch(const CudaSource& source, int64_t blocks, int threads, int64_t shared_bytes, A... arguments) {
  const std::vector<uint64_t> words = {EmulatedKernel::argument(arguments)...};
  EmulatedKernel::build(source).launch({blocks, 1, 1}, threads, shared_bytes, words);
}

std::vector<float> numbers(size_t count, int step = 7) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) x[i] = static_cast<float>(static_cast<int>(i) * step % 31 - 15) * 0.25f;
  return x;
}

uint16_t bf16_bits(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

TEST(CudaEmulator, AddsVectorsWithATail) {
  const auto source = plain(R"cuda(
extern "C" __global__ void __launch_bounds__(128) kernel(const float* a, const float* b, float* sum, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) sum[i] = a[i] + b[i];
})cuda");
  const auto a = numbers(1000, 3), b = numbers(1000, 5);
  std::vector<float> sum(1001, -1.0f);
  launch(source, 8, 128, 0, a.data(), b.data(), sum.data(), int64_t{1000});
  for (size_t i = 0; i < 1000; ++i) ASSERT_EQ(sum[i], a[i] + b[i]) << i;
  EXPECT_EQ(sum[1000], -1.0f);
}

/// Sums blockDim.x numbers a block; `static_shared` or dynamic.
std::string tree_sum(const std::string& declaration, const std::string& sync) {
  return R"cuda(
extern "C" __global__ void kernel(const float* x, float* sums) {
  )cuda" +
         declaration +
         R"cuda(
  const int t = threadIdx.x;
  part[t] = x[blockIdx.x * blockDim.x + t];
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    )cuda" +
         sync +
         R"cuda(
    if (t < half) part[t] += part[t + half];
  }
  if (t == 0) sums[blockIdx.x] = part[0];
})cuda";
}

TEST(CudaEmulator, SumsABlockThroughSharedMemory) {
  const auto x = numbers(512);
  for (const char* declaration : {"extern __shared__ float part[];", "extern __shared__ alignas(1024) float part[];",
                                  "__shared__ float part[256];", "__shared__ alignas(16) float part[256];"}) {
    std::vector<float> sums(2);
    launch(plain(tree_sum(declaration, "__syncthreads();")), 2, 256, 1024, x.data(), sums.data());
    EXPECT_EQ(sums[0], std::accumulate(x.begin(), x.begin() + 256, 0.0f)) << declaration;
    EXPECT_EQ(sums[1], std::accumulate(x.begin() + 256, x.end(), 0.0f)) << declaration;
  }
}

TEST(CudaEmulator, AMissingBarrierGivesNaN) {
  const auto x = numbers(512);
  for (const char* declaration : {"extern __shared__ float part[];", "__shared__ float part[256];"}) {
    std::vector<float> sums(2);
    launch(plain(tree_sum(declaration, "")), 2, 256, 1024, x.data(), sums.data());
    EXPECT_TRUE(std::isnan(sums[0])) << declaration;
  }
}

TEST(CudaEmulator, ShufflesAndVotes) {
  const auto source = plain(R"cuda(
extern "C" __global__ void kernel(const float* x, float* out) {
  const unsigned t = threadIdx.x, all = 0xffffffffu;
  float sum = x[t];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(all, sum, lanes);
  out[t] = sum;
  out[32 + t] = __shfl_sync(all, x[t], 3);
  out[64 + t] = __shfl_up_sync(all, x[t], 1);
  out[96 + t] = __shfl_down_sync(all, x[t], 4, 8);
  out[128 + t] = static_cast<float>(__ballot_sync(all, t % 2) >> 28);
  out[160 + t] = static_cast<float>(__any_sync(all, t == 5) * 2 + __all_sync(all, t != 5));
  out[192 + t] = t < 16 ? static_cast<float>(__shfl_sync(0xffffu, static_cast<long long>(t) << 40, 5) >> 40) : 0.0f;
})cuda");
  const auto x = numbers(32);
  std::vector<float> out(224);
  launch(source, 1, 32, 0, x.data(), out.data());
  const float sum = std::accumulate(x.begin(), x.end(), 0.0f);
  for (size_t t = 0; t < 32; ++t) {
    EXPECT_EQ(out[t], sum);
    EXPECT_EQ(out[32 + t], x[3]);
    EXPECT_EQ(out[64 + t], x[t == 0 ? 0 : t - 1]);
    EXPECT_EQ(out[96 + t], x[t % 8 < 4 ? t + 4 : t]);
    EXPECT_EQ(out[128 + t], 10.0f);
    EXPECT_EQ(out[160 + t], 2.0f);
    EXPECT_EQ(out[192 + t], t < 16 ? 5.0f : 0.0f);
  }
}

/// C = A B for one warp: A [16, 16] and B as [8, 16] (by column) or, transposed on loading, [16, 8].
std::string product_16(bool half, bool b_by_row) {
  std::string text = R"cuda(
extern "C" __global__ void kernel(const unsigned short* a, const unsigned short* b, float* c) {
  extern __shared__ unsigned char shared[];
  unsigned short* const a_tile = reinterpret_cast<unsigned short*>(shared);
  unsigned short* const b_tile = a_tile + 256;
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  for (int i = lane; i < 256; i += 32) a_tile[i] = a[i];
  for (int i = lane; i < 256; i += 32) b_tile[i] = i < 128 ? b[i] : 0;
  __syncwarp();
  unsigned a_registers[4], b_registers[4];
  ldmatrix_x4(a_registers, a_tile + (lane % 16) * 16 + lane / 16 * 8);
  LOAD_B
  float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  const unsigned b_pair[2] = {b_registers[0], b_registers[1]};
  MMA(d, a_registers, b_pair);
  c[g * 8 + 2 * t] = d[0];
  c[g * 8 + 2 * t + 1] = d[1];
  c[(g + 8) * 8 + 2 * t] = d[2];
  c[(g + 8) * 8 + 2 * t + 1] = d[3];
})cuda";
  const auto put = [&](const std::string& word, const std::string& by) {
    text.replace(text.find(word), word.size(), by);
  };
  put("LOAD_B", b_by_row ? "ldmatrix_x4_trans(b_registers, b_tile + lane * 8);"
                         : "ldmatrix_x4(b_registers, b_tile + lane % 8 * 16 + lane / 8 % 2 * 8);");
  put("MMA", half ? "mma_f16" : "mma_bf16");
  return text;
}

TEST(CudaEmulator, MultipliesMatricesOf16Bits) {
  const auto a = numbers(256, 7), b = numbers(128, 11);
  for (const bool half : {false, true}) {
    for (const bool b_by_row : {false, true}) {
      const auto bits = [&](const std::vector<float>& values) {
        std::vector<uint16_t> all;
        for (const float x : values) all.push_back(half ? std::bit_cast<uint16_t>(_Float16(x)) : bf16_bits(x));
        return all;
      };
      const auto a_bits = bits(a), b_bits = bits(b);
      std::vector<float> c(128);
      launch(with_headers(product_16(half, b_by_row)), 1, 32, 1024, a_bits.data(), b_bits.data(), c.data());
      for (size_t i = 0; i < 16; ++i) {
        for (size_t j = 0; j < 8; ++j) {
          float sum = 1.0f;
          for (size_t k = 0; k < 16; ++k) sum += a[i * 16 + k] * (b_by_row ? b[k * 8 + j] : b[j * 16 + k]);
          ASSERT_EQ(c[i * 8 + j], sum) << i << ", " << j << (half ? " f16" : " bf16") << (b_by_row ? " trans" : "");
        }
      }
    }
  }
}

TEST(CudaEmulator, MultipliesTf32) {
  const auto source = with_headers(R"cuda(
extern "C" __global__ void kernel(const float* a, const float* b, float* c) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const float left[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
  const float right[2] = {b[t * 8 + g], b[(t + 4) * 8 + g]};
  float d[4] = {};
  mma_tf32(d, left, right);
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
})cuda");
  auto a = numbers(128, 7);
  const auto b = numbers(64, 11);
  const auto exact = a;
  for (float& x : a) x = std::bit_cast<float>(std::bit_cast<uint32_t>(x) | 0x1fffu);  // Ignored bits.
  std::vector<float> c(128);
  launch(source, 1, 32, 0, a.data(), b.data(), c.data());
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      float sum = 0.0f;
      for (size_t k = 0; k < 8; ++k) sum += exact[i * 8 + k] * b[k * 8 + j];
      ASSERT_EQ(c[i * 8 + j], sum) << i << ", " << j;
    }
  }
}

TEST(CudaEmulator, RoundsAsADeviceDoes) {
  const auto source = with_headers(R"cuda(
extern "C" __global__ void kernel(const float* x, unsigned* out) {
  const int t = threadIdx.x;
  out[4 * t] = pack_bf16(x[t], 1.0f);
  out[4 * t + 1] = pack_f16(x[t], 1.0f);
  out[4 * t + 2] = __float_as_uint(round_to_tf32(x[t]));
  out[4 * t + 3] = __float_as_uint(unpack_f16(pack_f16(x[t], 0.0f)));
})cuda");
  const auto value = [](uint32_t bits) { return std::bit_cast<float>(bits); };
  // To bf16: a tie to even, down and up; to tf32 a tie away from zero.
  const std::vector<float> x = {
      value(0x3f808000), value(0x3f818000), value(0x3f801000), 65520.0f, 1e-7f, -INFINITY, NAN};
  std::vector<uint32_t> out(28);
  launch(source, 1, 7, 0, x.data(), out.data());
  EXPECT_EQ(out[0], 0x3f803f80u);
  EXPECT_EQ(out[4], 0x3f803f82u);
  EXPECT_EQ(out[10], 0x3f802000u);
  EXPECT_EQ(out[13], 0x3c007c00u);
  EXPECT_EQ(out[17], 0x3c000002u);
  EXPECT_EQ(out[20], 0x3f80ff80u);
  EXPECT_EQ(out[22], 0xff800000u);
  EXPECT_EQ(out[23], 0xff800000u);
  EXPECT_EQ(out[24], 0x3f807fffu);
  EXPECT_EQ(out[27] & 0x7f800000u, 0x7f800000u);
}

/// Copies [steps, 32] numbers through two stages of shared memory, `wait` groups behind.
std::string pipeline(const std::string& wait, const std::string& barrier = "__syncthreads();") {
  return R"cuda(
extern "C" __global__ void kernel(const float* x, float* out, long long steps) {
  __shared__ float stage[2][32];
  const int t = threadIdx.x;
  const auto fetch = [&](long long step) {
    if (step < steps) copy_async_4(&stage[step % 2][t], x + (t < 30 ? step * 32 + t : 0), t < 30);
    copy_async_commit();
  };
  fetch(0);
  for (long long step = 0; step < steps; ++step) {
    fetch(step + 1);
    )cuda" +
         wait +
         R"cuda(
    __syncthreads();
    out[step * 32 + t] = stage[step % 2][31 - t];
    )cuda" +
         barrier +
         R"cuda(
  }
})cuda";
}

TEST(CudaEmulator, CopiesAsynchronously) {
  const auto x = numbers(128);
  std::vector<float> out(128);
  launch(with_headers(pipeline("copy_async_wait<1>();")), 1, 32, 0, x.data(), out.data(), int64_t{4});
  for (size_t i = 0; i < 128; ++i) {
    const size_t from = 31 - i % 32;
    ASSERT_EQ(out[i], from < 30 ? x[i / 32 * 32 + from] : 0.0f) << i;
  }
}

TEST(CudaEmulator, AMissingWaitGivesNaN) {
  const auto x = numbers(128);
  for (const char* wait : {"", "copy_async_wait<2>();"}) {
    std::vector<float> out(128);
    launch(with_headers(pipeline(wait)), 1, 32, 0, x.data(), out.data(), int64_t{4});
    EXPECT_TRUE(std::isnan(out[0])) << wait;
  }
  // Without the second barrier the next copy overwrites what others still read.
  std::vector<float> out(128);
  launch(with_headers(pipeline("copy_async_wait<1>();", "")), 1, 32, 0, x.data(), out.data(), int64_t{4});
  EXPECT_TRUE(std::any_of(out.begin(), out.end(), [](float y) { return std::isnan(y); }));
}

TEST(CudaEmulator, RunsAPlan) {
  codegen::cuda::CudaPlan plan;
  plan.sources.push_back(plain(R"cuda(
extern "C" __global__ void kernel(const float* x, float* y, long long factor) {
  const unsigned i = (blockIdx.z * gridDim.y + blockIdx.y) * blockDim.x + threadIdx.x;
  y[i] = x[i] * factor;
})cuda"));
  plan.calls.push_back(
      {.source = 0,
       .grid = {1, 2, 2},
       .threads = 4,
       .arguments = {{Argument::Kind::arena, 64}, {Argument::Kind::workspace, 0}, Argument::number(3)}});
  plan.calls.push_back(
      {.source = 0,
       .grid = {1, 2, 2},
       .threads = 4,
       .arguments = {{Argument::Kind::workspace, 0}, {Argument::Kind::arena, 0}, Argument::number(-2)}});
  std::vector<float> arena(32), workspace(16);
  std::iota(arena.begin(), arena.end(), 0.0f);
  run_emulated(plan, reinterpret_cast<std::byte*>(arena.data()), reinterpret_cast<std::byte*>(workspace.data()));
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(arena[i], -6.0f * static_cast<float>(16 + i));
}

std::string fault_of(const CudaSource& source, int threads, int64_t shared_bytes = 0) {
  std::vector<float> memory(256);
  return error_of([&] { launch(source, 1, threads, shared_bytes, memory.data()); });
}

TEST(CudaEmulator, ReportsCollectivesThatNotAllComeTo) {
  EXPECT_CONTAINS(fault_of(plain(R"cuda(
extern "C" __global__ void kernel(float* x) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
})cuda"),
                           64),
                  "emulated kernel kernel, block (0, 0, 0): nobody can go on: threads 0-39 wait at __syncthreads; "
                  "threads 40-63 have ended");
  EXPECT_CONTAINS(fault_of(plain(R"cuda(
extern "C" __global__ void kernel(float* x) {
  if (threadIdx.x % 32 < 16) x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  __syncwarp();
})cuda"),
                           32),
                  "threads 0-15 wait at __shfl_xor_sync (mask 0xffffffff); threads 16-31 wait at __syncwarp");
  EXPECT_CONTAINS(fault_of(plain(R"cuda(
extern "C" __global__ void kernel(float* x) { x[threadIdx.x] = __shfl_sync(1u << threadIdx.x % 32, 1.0f, 3); })cuda"),
                           32),
                  "__shfl_sync: reads lane 3, which is not in the mask 0x00000001");
  EXPECT_CONTAINS(fault_of(plain(R"cuda(
extern "C" __global__ void kernel(float* x) { __syncwarp(1u); })cuda"),
                           32),
                  "thread 1: __syncwarp: its own lane 1 is not in the mask 0x00000001");
  // The next launch is not harmed.
  EXPECT_EQ(fault_of(plain("extern \"C\" __global__ void kernel(float* x) { __syncthreads(); }"), 64), "");
}

TEST(CudaEmulator, ReportsBadAddresses) {
  const std::string begin = "extern \"C\" __global__ void kernel(float* x) {\n";
  EXPECT_CONTAINS(fault_of(plain(begin + "*reinterpret_cast<float4*>(x + 1) = float4{};\n}"), 1),
                  "block (0, 0, 0), thread 0: a misaligned access at line 2 of kernel");
  EXPECT_CONTAINS(
      fault_of(plain(begin + "float y[4];\nfor (int i = 0; i < x[0] + 5; ++i) y[i] = i;\nx[0] = y[2];\n}"), 1),
      "an index outside its array");
  EXPECT_CONTAINS(fault_of(plain(begin + "extern __shared__ float s[];\ns[65] = 1.0f;\nx[0] = s[65];\n}"), 1, 256),
                  "something was written behind the 256 bytes of dynamic shared memory");
  EXPECT_CONTAINS(fault_of(with_headers(begin + "__shared__ float s[8];\ncopy_async_8(s + 1, x, true);\n}"), 1),
                  "copy_async_8: its destination");
  EXPECT_CONTAINS(fault_of(with_headers(begin + "__shared__ float s[8];\ncopy_async_8(s + 6, x + 1, false);\n}"), 1),
                  "copy_async_8: its source");
  EXPECT_CONTAINS(fault_of(with_headers(begin + "unsigned r[4];\nldmatrix_x4(r, x);\n}"), 32),
                  "ldmatrix_x4: row address");
}

#ifndef __SANITIZE_ADDRESS__
TEST(CudaEmulator, ReportsCrashes) {
  const std::string begin = "extern \"C\" __global__ void kernel(float* x) {\n";
  EXPECT_CONTAINS(fault_of(plain(begin + "x[1ll << 44] = 1.0f;\n}"), 1), "thread 0: a crash (Segmentation fault)");
  EXPECT_CONTAINS(fault_of(plain(begin + "x[0] = 100 / static_cast<int>(x[0]);\n}"), 1),
                  "thread 0: an integer division by zero");
  EXPECT_CONTAINS(fault_of(plain(begin + "volatile float big[100000];\nbig[0] = 1.0f;\nx[0] = big[0];\n}"), 1),
                  "a crash (Segmentation fault)");
}
#endif

std::string race_of(const CudaSource& source, int64_t blocks, int threads) {
  std::vector<float> memory(256);
  const std::vector<uint64_t> arguments = {EmulatedKernel::argument(memory.data())};
  return error_of([&] {
    EmulatedKernel::build(source, {.find_races = true}).launch({blocks, 1, 1}, threads, 1024, arguments);
  });
}

TEST(CudaEmulator, FindsRacesWhereItIsAsked) {
  const auto in_shared = [](const std::string& between) {
    return plain(
        "extern \"C\" __global__ void kernel(float* x) {\nextern __shared__ float s[];\nconst int t = threadIdx.x;\n"
        "s[t] = x[t];\n" +
        between + "\nx[t] = s[t ^ 1] + s[t];\n}");
  };
  EXPECT_EQ(race_of(in_shared("__syncthreads();"), 1, 64), "");
  EXPECT_EQ(race_of(in_shared("__syncwarp();"), 1, 64), "");
  EXPECT_CONTAINS(race_of(in_shared(""), 1, 64), "thread 1: a race: writes what thread 0 of block 0 read");
  EXPECT_CONTAINS(race_of(in_shared("__shfl_sync(0xffffffffu, t, 0);"), 1, 64), "a race: ");

  const auto in_global = [](const std::string& read) {
    return plain(
        "extern \"C\" __global__ void kernel(float* x) {\nconst int t = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "x[t] = x[" +
        read + "] + 1.0f;\n}");
  };
  EXPECT_EQ(race_of(in_global("t"), 2, 64), "");
  EXPECT_CONTAINS(race_of(in_global("(t + 1) % 128"), 2, 64), "a race: writes what thread 0 of block 0 read");
  EXPECT_CONTAINS(race_of(in_global("t % 64"), 2, 64), "block (1, 0, 0), thread 63: a race: reads what");
  EXPECT_CONTAINS(race_of(in_global("0"), 2, 64), "a race: reads what thread 0 of block 0 wrote");

  // A barrier of some lanes orders those.
  EXPECT_EQ(race_of(plain(R"cuda(
extern "C" __global__ void kernel(float* x) {
  __shared__ float s[32];
  const int t = threadIdx.x;
  s[t] = x[t];
  __syncwarp(t < 16 ? 0xffffu : 0xffff0000u);
  x[t] = s[t ^ 8];
})cuda"),
                    1, 32),
            "");
}

TEST(CudaEmulator, FindsRacesOfAsynchronousCopies) {
  const auto x = numbers(128);
  std::vector<float> out(128);
  const auto race = [&](const std::string& wait, const std::string& barrier) {
    const std::vector<uint64_t> arguments = {EmulatedKernel::argument(x.data()), EmulatedKernel::argument(out.data()),
                                             EmulatedKernel::argument(int64_t{4})};
    return error_of([&] {
      EmulatedKernel::build(with_headers(pipeline(wait, barrier)), {.find_races = true})
          .launch({1, 1, 1}, 32, 0, arguments);
    });
  };
  EXPECT_EQ(race("copy_async_wait<1>();", "__syncthreads();"), "");
  EXPECT_CONTAINS(race("copy_async_wait<1>();", ""), "a race: ");
}

TEST(CudaEmulator, ReportsImpossibleLaunches) {
  const auto source = plain("extern \"C\" __global__ void __launch_bounds__(64) kernel(float* x) {}");
  EXPECT_CONTAINS(fault_of(source, 128), "128 threads a block, but it has at most 64");
  EXPECT_CONTAINS(fault_of(source, 64, 300000), "300000 bytes of dynamic shared memory");
  EXPECT_CONTAINS(error_of([&] { launch(source, 1, 64, 0, int64_t{1}, int64_t{2}); }), "2 arguments for 1 parameters");
  EXPECT_CONTAINS(fault_of(plain("extern \"C\" __global__ void kernel(float* x) { x[0] = y; }"), 1),
                  "was not declared in this scope");
}

/// Names of the functions that a device header defines.
std::vector<std::string> functions_of(const std::string& text) {
  std::vector<std::string> names;
  const std::string begin = "__device__ __forceinline__ ";
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    const size_t open = text.find('(', at);
    names.push_back(text.substr(text.rfind(' ', open) + 1, open - text.rfind(' ', open) - 1));
  }
  std::ranges::sort(names);
  return names;
}

TEST(CudaEmulator, KnowsEveryInstruction) {
  std::string real;
  for (const auto& header : codegen::cuda::embedded_headers()) {
    if (header.name == "ptx.cuh") real = header.text;
  }
  const std::string folder = std::string(DIFUSE_SOURCE_DIR) + "/tests/support/cuda_emulator/device/";
  EXPECT_EQ(functions_of(test::read_file(folder + "ptx.cuh")), functions_of(real));
}

}  // namespace
}  // namespace difuse::testing
