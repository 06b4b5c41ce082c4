#include "codegen/jit/compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <unordered_map>
#include <utility>

namespace difuse::codegen {
namespace {

/// Calls `work(i)` for 0 <= i < count from `threads` threads. The first exception stops further calls and is thrown.
void for_each_index(size_t count, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        next = count;
        const std::scoped_lock lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    }
  };
  const size_t helpers = std::min(count, static_cast<size_t>(threads));
  if (helpers <= 1) {
    run();
  } else {
    std::vector<std::jthread> pool;
    for (size_t i = 0; i < helpers; ++i) pool.emplace_back(run);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

KernelCompiler::KernelCompiler(KernelCache& cache, NvrtcSearch search, int threads)
    : cache_(cache),
      search_(std::move(search)),
      threads_(threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {}

std::optional<NvrtcVersion> KernelCompiler::version_without_opening() const {
  if (nvrtc_) return nvrtc_->version();
  const auto stamp = cache_.last_compiler();
  if (!stamp || (search_.newest_major != 0 && stamp->version.major > search_.newest_major)) return std::nullopt;
  // A library that is gone left kernels that are still good; one that changed may compile better ones.
  if (!stamp->is_unchanged() && !stamp->is_gone()) return std::nullopt;
  return stamp->version;
}

bool KernelCompiler::open_nvrtc(std::string& reason) {
  if (!nvrtc_) {
    nvrtc_ = NvrtcLibrary::load(search_, &reason);
    if (nvrtc_) cache_.set_last_compiler(nvrtc_->stamp());
  }
  return nvrtc_ != nullptr;
}

std::vector<CompileResult> KernelCompiler::compile(std::span<const CudaSource> sources, const Progress& progress) {
  // Equal sources are one kernel; any version tells them apart.
  std::vector<const CudaSource*> kernels;
  std::vector<size_t> kernel_of;
  std::unordered_map<std::string, size_t> index_of;
  for (const CudaSource& source : sources) {
    const auto [it, is_new] = index_of.try_emplace(kernel_key(source, kOldestNvrtc), kernels.size());
    if (is_new) kernels.push_back(&source);
    kernel_of.push_back(it->second);
  }

  std::vector<CompileResult> results(kernels.size());
  const auto look_up = [&](NvrtcVersion version) {
    for_each_index(kernels.size(), threads_, [&](size_t i) {
      results[i].kernel = cache_.find(*kernels[i], version);
      results[i].was_cached = results[i].kernel != nullptr;
    });
  };
  const auto missing = [&] { return std::ranges::count(results, nullptr, &CompileResult::kernel); };

  const auto expected = version_without_opening();
  if (expected) look_up(*expected);
  if (missing() > 0) {
    std::string reason;
    if (!open_nvrtc(reason)) {
      throw Error(fmt::format("{} of {} kernels must be compiled, and {}", missing(), kernels.size(), reason),
                  "install the CUDA toolkit's NVRTC, or set CUDA_HOME to the toolkit; --device cpu needs neither",
                  ExitCode::wrong_usage);
    }
    if (expected != nvrtc_->version()) look_up(nvrtc_->version());
  }

  std::vector<size_t> todo;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].kernel) todo.push_back(i);
  }
  std::mutex mutex;
  CompileProgress state;
  state.total = static_cast<int>(kernels.size());
  state.done = state.cached = state.total - static_cast<int>(todo.size());
  if (progress) progress(state);
  for_each_index(todo.size(), threads_, [&](size_t t) {
    const CudaSource& source = *kernels[todo[t]];
    CompileResult& result = results[todo[t]];
    try {
      result.kernel = cache_.store(source, nvrtc_->version(), nvrtc_->compile(source));
    } catch (const Error& error) {
      result.error = error;
    }
    const std::scoped_lock lock(mutex);
    ++state.done;
    if (result.error) ++state.failed;
    state.name = source.name;
    if (progress) progress(state);
  });

  std::vector<CompileResult> ordered;
  for (const size_t kernel : kernel_of) ordered.push_back(results[kernel]);
  return ordered;
}

std::vector<std::shared_ptr<const CompiledKernel>> require_all(std::span<const CompileResult> results) {
  std::vector<std::shared_ptr<const CompiledKernel>> kernels;
  const Error* first = nullptr;
  int failed = 0;
  for (const CompileResult& result : results) {
    kernels.push_back(result.kernel);
    if (!result.error) continue;
    ++failed;
    if (first == nullptr) first = &*result.error;
  }
  if (first == nullptr) return kernels;
  throw Error(failed == 1
                  ? std::string(first->what())
                  : fmt::format("{} of {} kernels failed; the first: {}", failed, results.size(), first->what()),
              first->remedy(), first->exit_code());
}

}  // namespace difuse::codegen
