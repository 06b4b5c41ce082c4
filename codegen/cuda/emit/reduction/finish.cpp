// Second stage: combines the parts that a first kernel left. Extents are arguments where the reduced dimensions lie
// together, so that all such finishes are one kernel.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "codegen/cuda/emit/reduction/parts.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/extents.h"
#include "codegen/cuda/source/parameters.h"

namespace difuse::codegen::cuda::reduction {
namespace {

/// Neighbours of one kind as one; the first one's extent is never written.
std::vector<Dim> merged(const std::vector<Dim>& dims) {
  std::vector<Dim> result;
  for (const Dim& d : dims) {
    if (!result.empty() && result.back().reduced == d.reduced) {
      result.back().extent *= d.extent;
    } else {
      result.push_back(d);
    }
  }
  return result;
}

/// The offset that index `x` of all dimensions of one kind stands for: a product of literals for each dimension.
std::string offset(const std::vector<Dim>& dims, bool reduced, std::string x) {
  std::string sum;
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    if (dims[d].reduced == reduced) {
      const bool outermost = std::none_of(dims.begin(), dims.begin() + static_cast<ptrdiff_t>(d),
                                          [&](const Dim& other) { return other.reduced == reduced; });
      const std::string own = outermost ? x : fmt::format("remainder_of<{}>({})", dims[d].extent, x);
      sum += fmt::format("{}{} * {}", sum.empty() ? "" : " + ", own, stride);
      x = fmt::format("quotient<{}>({})", dims[d].extent, x);
    }
    stride *= dims[d].extent;
  }
  return sum.empty() ? "0" : sum;
}

int64_t power_of_two(int64_t at_least, int64_t low, int64_t high) {
  return std::clamp(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(at_least))), low, high);
}

constexpr int64_t kTermsPerThread = 4;
// Of a block, however many share a result: finishes of all extents are one launch.
constexpr int64_t kFinishThreads = 1024;

/// Where all that it does is to add an image's parts.
PartSums part_sums(const std::vector<Dim>& dims, const std::vector<bool>& maxima, const std::vector<Argument>& from,
                   const std::vector<Argument>& to) {
  const bool of_channels = dims.size() == 3 && !dims[0].reduced && dims[1].reduced && !dims[2].reduced;
  if (!of_channels || std::ranges::count(maxima, true) > 0) return {};
  return {dims[0].extent, dims[1].extent, dims[2].extent, from, to};
}

}  // namespace

int64_t part_rows(int64_t terms) {
  constexpr int64_t kMany = 256;
  return power_of_two(ceil_div(terms, kTermsPerThread), 2, terms > kMany ? 128 : 32);
}

void emit_finish(Emission& emission, std::vector<Dim> dims, const std::vector<bool>& maxima,
                 const std::vector<Argument>& from, const std::vector<Argument>& to) {
  dims = merged(dims);
  int64_t results = 1, terms = 1;
  for (const Dim& d : dims) (d.reduced ? terms : results) *= d.extent;
  const bool together = std::ranges::count(dims, true, &Dim::reduced) == 1;
  const int64_t inner = dims.back().reduced ? 1 : dims.back().extent;

  // Results that lie together are read together; a long contiguous sum is read by neighbouring threads.
  int64_t rows = dims.back().reduced ? 1 : part_rows(terms), columns = kFinishThreads / rows;
  if (dims.back().reduced && terms >= 32) {
    columns = 1;
    rows = power_of_two(ceil_div(terms, kTermsPerThread), 32, 256);
  }

  KernelDraft draft;
  draft.is_second_stage = true;
  draft.part_sums = part_sums(dims, maxima, from, to);
  draft.name = fmt::format("finish_{}", from.size());
  std::string parameters, calls;
  for (size_t q = 0; q < from.size(); ++q) {
    parameters += fmt::format("const f32* x{}, f32* y{}, ", q, q);
    draft.arguments.push_back(from[q]);
    draft.arguments.push_back(to[q]);
    calls += fmt::format(
        "  if (blockIdx.y == {}) {{\n    reduce::finish<reduce::{}, index_t>(x{}, y{}, results, terms, "
        "columns, shared, first, step);\n  }}\n",
        q, maxima[q] ? "Max" : "Sum", q, q);
  }
  parameters += "long long results, long long terms, long long columns";
  for (const int64_t n : {results, terms, columns}) draft.arguments.push_back(Argument::number(n));
  std::string first = offset(dims, false, "m"), step = offset(dims, true, "t");
  if (together) {
    parameters += ", long long inner";
    draft.arguments.push_back(Argument::number(inner));
    first = "m / inside * many * inside + m % inside";
    step = "t * inside";
  }
  draft.source = device_source({"reduce.cuh"}) +
                 filled(R"(
using index_t = $index;

extern "C" __global__ void __launch_bounds__(1024, 2) $kernel($parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  __shared__ float shared[1024];
$extents  const auto first = [=](index_t m) -> index_t { return $first; };
  const auto step = [=](index_t t) -> index_t { return $step; };
$calls}
)",
                        {{"index", index_type(results * terms >= (int64_t{1} << 30))},
                         {"parameters", parameters},
                         {"extents", together ? "  const index_t inside = static_cast<index_t>(inner);\n"
                                                "  const index_t many = static_cast<index_t>(terms);\n"
                                              : ""},
                         {"first", first},
                         {"step", step},
                         {"calls", calls}});
  draft.grid.x = ceil_div(results, columns);
  draft.grid.y = std::ssize(from);
  draft.threads = static_cast<int>(columns * rows);
  draft.sharers = rows;
  draft.bytes = std::ssize(from) * (terms + 1) * results * 4;
  emission.launch(std::move(draft));
}

}  // namespace difuse::codegen::cuda::reduction
