// The emulator's Hopper engines: products of what the copy engine brought, in both orders, and waits that never end.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "codegen/cuda/source/device_source.h"
#include "codegen/jit/kernel.h"
#include "codegen/jit/nvrtc.h"
#include "ir/error.h"
#include "tests/support/cuda_emulator/emulated_kernel.h"

namespace difuse::codegen::cuda {
namespace {

using difuse::testing::EmulatedKernel;

struct Half {
  uint16_t bits;
};

/// Small integers, exact in every format.
std::vector<Half> integers(size_t count, int seed) {
  std::vector<Half> halves(count);
  for (size_t i = 0; i < count; ++i) {
    const auto x = static_cast<float>((static_cast<int>(i * i) * 7 + static_cast<int>(i) * seed) % 9 - 4);
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    halves[i] = {static_cast<uint16_t>(bits >> 16)};
  }
  return halves;
}
float value(Half h) {
  const uint32_t bits = uint32_t{h.bits} << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

CudaSource source_of(const std::string& body) {
  return {"under_test", device_source({"vector.cuh", "ptx_sm90.cuh"}) + body, "sm_90a", {}};
}

/// A tensor of [chunks][rows][64].
TensorMapSpec map_of(int64_t rows, int64_t chunks) {
  return {.extents = {64, rows, chunks}, .strides = {128, rows * 128}, .box = {64, rows, chunks}, .steps = {1, 1, 1}};
}

/// Copies both operands, multiplies, and writes d as a matrix of 64 rows.
std::string product(int columns, int a_bytes, int b_bytes, const std::string& steps) {
  const std::string n = std::to_string(columns), a = std::to_string(a_bytes), b = std::to_string(b_bytes);
  return R"(
extern "C" __global__ void __launch_bounds__(128, 1) under_test(const __grid_constant__ TensorMap map_a,
                                                                const __grid_constant__ TensorMap map_b, float* out) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Barrier* const full = reinterpret_cast<Barrier*>(shared + )" +
         a + " + " + b + R"();
  if (threadIdx.x == 0) {
    barrier_init(full, 1);
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    barrier_arrive_expecting(full, )" +
         a + " + " + b + R"();
    tensor_load(shared, map_a, full, 0, 0, 0);
    tensor_load(shared + )" +
         a + R"(, map_b, full, 0, 0, 0);
  }
  barrier_wait(full, 0);
  float d[)" +
         n + R"( / 2];
  for (int i = 0; i < )" +
         n + R"( / 2; ++i) d[i] = 0.0f;
  multiply_registers(d);
  multiply_fence();
)" + steps +
         R"(
  multiply_commit();
  multiply_wait<0>();
  multiply_registers(d);
#pragma unroll
  for (int i = 0; i < )" +
         n + R"( / 2; ++i) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
    out[row * )" +
         n + R"( + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
  }
}
)";
}

std::vector<float> run(const CudaSource& source, const TensorMapSpec& map_a, std::vector<Half> a,
                       const TensorMapSpec& map_b, std::vector<Half> b, size_t results) {
  const auto first = difuse::testing::emulated_map(map_a, reinterpret_cast<std::byte*>(a.data()));
  const auto second = difuse::testing::emulated_map(map_b, reinterpret_cast<std::byte*>(b.data()));
  std::vector<float> out(results, -1.0f);
  const std::vector<uint64_t> arguments = {EmulatedKernel::argument(&first), EmulatedKernel::argument(&second),
                                           EmulatedKernel::argument(out.data())};
  EmulatedKernel::build(source).launch({1, 1, 1}, 128, 64 * 1024, arguments);
  return out;
}

/// The product of two matrices, of which `a` gives element (m, k) and `b` element (n, k).
void expect_product(const std::vector<float>& got, size_t rows, size_t columns, size_t depth,
                    const std::function<float(size_t m, size_t k)>& a,
                    const std::function<float(size_t n, size_t k)>& b) {
  for (size_t m = 0; m < rows; ++m) {
    for (size_t n = 0; n < columns; ++n) {
      float sum = 0;
      for (size_t k = 0; k < depth; ++k) sum += a(m, k) * b(n, k);
      ASSERT_EQ(got[m * columns + n], sum) << "row " << m << ", column " << n;
    }
  }
}

void expect_compiles(const CudaSource& source) {
  if (const auto nvrtc = NvrtcLibrary::load()) {
    EXPECT_NO_THROW(nvrtc->compile(source));
  }
}

TEST(EmulatedHopper, MultipliesWhatRunsAlongK) {
  constexpr int kRows = 64, kColumns = 128, kDepth = 64;
  const CudaSource source = source_of(product(kColumns, kRows * 128, kColumns * 128, R"(
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply_bf16(d, matrix_moved(matrix_descriptor(shared, 1024), k * 32),
                  matrix_moved(matrix_descriptor(shared + 64 * 128, 1024), k * 32), true);
  })"));
  const std::vector<Half> a = integers(kRows * kDepth, 3), b = integers(kColumns * kDepth, 5);
  const std::vector<float> got = run(source, map_of(kRows, 1), a, map_of(kColumns, 1), b, kRows * kColumns);
  expect_product(
      got, kRows, kColumns, kDepth, [&](size_t m, size_t k) { return value(a[m * kDepth + k]); },
      [&](size_t n, size_t k) { return value(b[n * kDepth + k]); });
  expect_compiles(source);
}

/// As floats whose lowest 13 bits are set: tf32 does not see them.
TensorMapSpec map_of_floats(int64_t rows) {
  return {.dtype = ir::DType::f32, .extents = {32, rows}, .strides = {128}, .box = {32, rows}, .steps = {1, 1}};
}

TEST(EmulatedHopper, MultipliesFloatsThatRunAlongK) {
  constexpr int kRows = 64, kColumns = 64, kDepth = 32;
  const CudaSource source = source_of(product(kColumns, kRows * 128, kColumns * 128, R"(
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply_tf32(d, matrix_moved(matrix_descriptor(shared, 1024), k * 32),
                  matrix_moved(matrix_descriptor(shared + 64 * 128, 1024), k * 32), true);
  })"));
  const std::vector<Half> a = integers(kRows * kDepth, 3), b = integers(kColumns * kDepth, 5);
  const auto floats = [](const std::vector<Half>& from) {
    std::vector<Half> words;  // Low half first.
    for (const Half h : from) words.insert(words.end(), {Half{0x1fff}, h});
    return words;
  };
  const std::vector<float> got =
      run(source, map_of_floats(kRows), floats(a), map_of_floats(kColumns), floats(b), kRows * kColumns);
  expect_product(
      got, kRows, kColumns, kDepth, [&](size_t m, size_t k) { return value(a[m * kDepth + k]); },
      [&](size_t n, size_t k) { return value(b[n * kDepth + k]); });
  expect_compiles(source);
}

TEST(EmulatedHopper, MultipliesWhatRunsAlongMAndN) {
  constexpr int kRows = 64, kColumns = 192, kDepth = 32;
  const CudaSource source = source_of(product(kColumns, kDepth * 128, 3 * kDepth * 128, R"(
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    multiply_bf16<1, 1>(d, matrix_moved(matrix_descriptor(shared, 1024), k * 2048),
                        matrix_moved(matrix_descriptor(shared + 32 * 128, 1024, 32 * 128), k * 2048), true);
  })"));
  const std::vector<Half> a = integers(kDepth * kRows, 3), b = integers(kDepth * kColumns, 5);
  const std::vector<float> got = run(source, map_of(kDepth, 1), a, map_of(kDepth, 3), b, kRows * kColumns);
  expect_product(
      got, kRows, kColumns, kDepth, [&](size_t m, size_t k) { return value(a[k * kRows + m]); },
      [&](size_t n, size_t k) { return value(b[(n / 64 * kDepth + k) * 64 + n % 64]); });
  expect_compiles(source);
}

std::string failure_of(const std::string& body, int threads) {
  const EmulatedKernel kernel = EmulatedKernel::build(source_of(R"(
extern "C" __global__ void __launch_bounds__(128, 1) under_test(long long) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Barrier* const barrier = reinterpret_cast<Barrier*>(shared);
  if (threadIdx.x == 0) barrier_init(barrier, 2);
  __syncthreads();
)" + body + "}\n"));
  const std::vector<uint64_t> arguments = {EmulatedKernel::argument(int64_t{0})};
  try {
    kernel.launch({1, 1, 1}, threads, 1024, arguments);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(EmulatedHopper, SaysWhoWaitsForWhatNobodyBrings) {
  const std::string two_of_two = "  barrier_arrive(barrier);\n  barrier_wait(barrier, 0);\n";
  EXPECT_EQ(failure_of("  if (threadIdx.x < 2) {\n" + two_of_two + "  }\n", 32), "");
  const std::string one = failure_of("  if (threadIdx.x < 1) {\n" + two_of_two + "  }\n", 32);
  EXPECT_NE(one.find("waits at a barrier in shared memory for what nobody brings"), std::string::npos) << one;
  EXPECT_EQ(failure_of("  if (threadIdx.x < 32) named_barrier_arrive(1, 64);\n  else named_barrier_sync(1, 64);\n", 64),
            "");
  const std::string named = failure_of("  if (threadIdx.x < 32) named_barrier_sync(1, 64);\n", 64);
  EXPECT_NE(named.find("threads 0-31 wait at a named barrier"), std::string::npos) << named;
}

TEST(EmulatedHopper, BulkLoadsArriveAtABarrier) {
  const CudaSource source = source_of(R"(
extern "C" __global__ void __launch_bounds__(64, 1) under_test(const float* from, float* out, long long bytes) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Barrier* const full = reinterpret_cast<Barrier*>(shared + 512);
  if (threadIdx.x == 0) {
    barrier_init(full, 1);
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    barrier_arrive_expecting(full, static_cast<int>(bytes));
    bulk_load(shared, from, full, static_cast<int>(bytes));
  }
  barrier_wait(full, 0);
  out[threadIdx.x] = reinterpret_cast<const float*>(shared)[threadIdx.x];
}
)");
  alignas(16) float from[68];
  std::iota(from, from + 68, 0.0f);
  std::vector<float> out(64);
  const auto failure = [&](const float* start, int64_t bytes) -> std::string {
    const std::vector<uint64_t> arguments = {EmulatedKernel::argument(start), EmulatedKernel::argument(out.data()),
                                             EmulatedKernel::argument(bytes)};
    try {
      EmulatedKernel::build(source).launch({1, 1, 1}, 64, 1024, arguments);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(failure(from + 4, 256), "");
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], from[i + 4]) << i;
  EXPECT_NE(failure(from + 1, 256).find("no multiple of 16"), std::string::npos);
  EXPECT_NE(failure(from, 248).find("no multiple of 16"), std::string::npos);
  expect_compiles(source);
}

/// Pairs of blocks: each tells the other its number.
CudaSource pairs(const std::string& body) {
  return source_of(R"(
extern "C" __global__ void __launch_bounds__(64, 1) __cluster_dims__(2, 1, 1) under_test(float* out) {
  extern __shared__ __align__(1024) unsigned char shared[];
  float* const own = reinterpret_cast<float*>(shared) + threadIdx.x * 4;
  const int rank = cluster_rank();
)" + body + "}\n");
}

std::string failure_of(const CudaSource& source, int64_t blocks, std::vector<float>& out) {
  const std::vector<uint64_t> arguments = {EmulatedKernel::argument(out.data())};
  try {
    EmulatedKernel::build(source, {.find_races = true}).launch({blocks, 1, 1}, 64, 1024, arguments);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// A named barrier of a whole warpgroup orders its threads, and nobody else.
TEST(EmulatedHopper, FindsRacesWhereNoBarrierOfTheWarpgroupIs) {
  const auto races = [](const std::string& between, const std::string& read) {
    std::vector<float> x(256);
    const std::vector<uint64_t> arguments = {EmulatedKernel::argument(x.data())};
    const CudaSource source = source_of(
        "extern \"C\" __global__ void under_test(float* x) {\n  __shared__ float s[256];\n  const int t = "
        "threadIdx.x;\n"
        "  s[t] = x[t];\n  " +
        between + "\n  x[t] = s[" + read + "];\n  " + between + "\n  s[t] = 0.0f;\n}\n");
    try {
      EmulatedKernel::build(source, {.find_races = true}).launch({1, 1, 1}, 256, 0, arguments);
    } catch (const Error& error) {
      return std::string(error.what()).find("a race: ") != std::string::npos;
    }
    return false;
  };
  const std::string own = "named_barrier_sync(1 + t / 128, 128);", inside = "t / 128 * 128 + (t + 40) % 128";
  EXPECT_FALSE(races(own, inside));
  EXPECT_TRUE(races(own, "(t + 40) % 256"));
  EXPECT_TRUE(races("", inside));
  EXPECT_TRUE(races("named_barrier_sync(1 + t / 64, 64);", inside));
}

TEST(EmulatedHopper, BlocksOfAClusterReachEachOther) {
  const CudaSource source = pairs(R"(
  own[0] = -1.0f;
  cluster_sync();
  const float number = blockIdx.x * 64 + threadIdx.x;
  cluster_store(cluster_address(own, rank ^ 1), number, 0.0f, 0.0f, number);
  cluster_sync();
  out[blockIdx.x * 64 + threadIdx.x] = own[0] + own[3];
)");
  std::vector<float> out(4 * 64, -1.0f);
  EXPECT_EQ(failure_of(source, 4, out), "");
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], 2.0f * static_cast<float>(i ^ 64)) << i;
  expect_compiles(source);
  EXPECT_NE(failure_of(source, 3, out).find("3 blocks in clusters of 2"), std::string::npos);
}

TEST(EmulatedHopper, SaysWhoDoesNotComeToTheClustersBarrier) {
  std::vector<float> out(1);
  const std::string fault = failure_of(pairs("  if (rank == 0 || threadIdx.x > 0) cluster_sync();\n"
                                             "  else named_barrier_sync(1, 64);\n"),
                                       2, out);
  EXPECT_NE(fault.find("block (1, 0, 0): nobody can go on: threads 0 wait at a named barrier; threads 1-63 wait at the "
                       "cluster's barrier"),
            std::string::npos)
      << fault;
  const std::string beyond = failure_of(
      pairs("  cluster_sync();\n  cluster_store(cluster_address(own, 1) + 1024, 0.0f, 0.0f, 0.0f, 0.0f);\n"), 2, out);
  EXPECT_NE(beyond.find("of block 1 of the cluster are not in dynamic shared memory"), std::string::npos) << beyond;
}

}  // namespace
}  // namespace difuse::codegen::cuda
