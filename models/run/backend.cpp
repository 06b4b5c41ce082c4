#include "models/run/backend.h"

#include <fmt/format.h>

#include <charconv>
#include <iostream>

#include "codegen/cpu/contractions.h"
#include "models/run/compile_progress.h"
#include "models/run/tuning.h"

namespace difuse::models {

std::optional<DeviceChoice> parse_device(const std::string& text) {
  using enum DeviceChoice::Kind;
  if (text == "auto") return DeviceChoice{automatic, 0};
  if (text == "cpu") return DeviceChoice{cpu, 0};
  if (text == "cuda") return DeviceChoice{cuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  if (!text.starts_with(kPrefix)) return std::nullopt;
  DeviceChoice choice{cuda, -1};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + kPrefix.size(), last, choice.ordinal);
  if (error != std::errc() || end != last || choice.ordinal < 0) return std::nullopt;
  return choice;
}

Backend open_backend(const DeviceChoice& device, std::optional<passes::Precision> precision, int threads,
                     const ir::Options& environment, passes::Prologues prologues) {
  using enum DeviceChoice::Kind;
  std::shared_ptr<const runtime::CudaDevice> gpu;
  std::string reason;
  if (device.kind == cuda) gpu = runtime::CudaDevice::open(device.ordinal);
  if (device.kind == automatic) gpu = runtime::CudaDevice::find(device.ordinal, &reason);
  if (!gpu) {
    Backend backend({threads}, precision.value_or(passes::Precision::f32));
    if (runtime::CudaDriver::is_installed()) backend.why_cpu = reason;
    backend.prologues = prologues;
    return backend;
  }
  Backend backend({std::move(gpu), runtime::open_kernel_cache(environment, &std::cerr)},
                  precision.value_or(passes::Precision::bf16));
  backend.prologues = prologues;
  return backend;
}

std::string backend_line(const Backend& backend) {
  if (backend.target.is_cuda()) {
    return fmt::format("CUDA backend: {}, {}", backend.target.cuda->description(),
                       passes::to_string(backend.precision));
  }
  std::string why_plain;
  const auto contractions = codegen::make_contractions(&why_plain);
  const int threads = backend.target.threads;
  std::string line =
      fmt::format("CPU backend: {}, {} thread{}", contractions->description(), threads, threads == 1 ? "" : "s");
  if (backend.precision != passes::Precision::f32) line += fmt::format(", {}", passes::to_string(backend.precision));
  if (!why_plain.empty()) line += fmt::format("; without oneDNN, more slowly: {}", why_plain);
  if (!backend.why_cpu.empty()) line += fmt::format("; no GPU: {}", backend.why_cpu);
  return line;
}

std::unique_ptr<runtime::Executor> compile(ir::Graph graph, const ir::Options& environment, const Backend& backend,
                                           const CompileWatch& watch) {
  if (backend.target.is_cuda() && environment.tune == ir::Tuning::on) {
    runtime::TuneSettings tuning;
    tuning.budget = environment.tune_budget;
    tuning.stop = watch.stop;
    tune(graph, environment, backend, tuning, /*again=*/false, watch.quiet);
  }
  CompileProgress progress;
  runtime::CompileSettings settings;
  settings.precision = backend.precision;
  settings.fuse = backend.fuse;
  settings.prologues = backend.prologues;
  settings.log = &std::cerr;
  settings.progress = [&](const codegen::CompileProgress& now) {
    if (watch.kernels != nullptr) *watch.kernels = {now.total - now.cached, now.cached};
    if (!watch.quiet) progress.show(now);
  };
  return runtime::compile(std::move(graph), environment, backend.target, settings);
}

}  // namespace difuse::models
