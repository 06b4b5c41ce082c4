// What computes and how exactly: --device, --dtype, and the line about them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ir/graph.h"
#include "ir/options.h"
#include "runtime/compile.h"
#include "runtime/target.h"

namespace difuse::models {

/// What --device says.
struct DeviceChoice {
  enum class Kind : uint8_t {
    automatic,  ///< A GPU where one can be used, the CPU otherwise.
    cpu,
    cuda,
  };
  Kind kind = Kind::automatic;
  int ordinal = 0;  ///< Of the GPU.
};

/// "auto", "cpu", "cuda" or "cuda:N"; nothing for anything else.
std::optional<DeviceChoice> parse_device(const std::string& text);

struct Backend {
  /// The CPU with so many threads, in f32.
  Backend(int threads) : target(threads) {}  // NOLINT(google-explicit-constructor)
  Backend(runtime::Target where, passes::Precision how) : target(std::move(where)), precision(how) {}

  runtime::Target target;
  passes::Precision precision = passes::Precision::f32;
  bool fuse = true;  ///< false: every op is a kernel of its own.
  /// Whether contractions compute the image that they read (passes/fusion/prologue.h).
  passes::Prologues prologues = passes::Prologues::automatic;
  /// Why the choice of a device fell on the CPU although the machine has a driver for GPUs; empty otherwise.
  std::string why_cpu;
};

/// `threads` are the CPU's. The precision is bf16 on a GPU and f32 on the CPU unless given. Throws Error (wrong usage)
/// when the GPU that was asked for cannot be used.
Backend open_backend(const DeviceChoice& device, std::optional<passes::Precision> precision, int threads,
                     const ir::Options& environment, passes::Prologues prologues = passes::Prologues::automatic);

/// "CPU backend: oneDNN 2.6.3 (AVX-512), 2 threads", with the reason where oneDNN is not in use;
/// "CUDA backend: NVIDIA H100 80GB HBM3 (sm_90a, driver 13.0), bf16".
std::string backend_line(const Backend& backend);

/// Distinct kernels of a plan; none on the CPU.
struct KernelCount {
  int compiled = 0, cached = 0;
};

struct CompileWatch {
  bool quiet = false;              ///< No progress where kernels have to be compiled.
  KernelCount* kernels = nullptr;  ///< Counted there.
  std::function<bool()> stop{};    ///< True ends the tuning.
};

/// runtime::compile with what a person sees of it: warnings and progress. Where the environment says so, kernels are
/// tuned before.
std::unique_ptr<runtime::Executor> compile(ir::Graph graph, const ir::Options& environment, const Backend& backend,
                                           const CompileWatch& watch = {});

}  // namespace difuse::models
