#include "codegen/jit/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "codegen/jit/compiler_log.h"
#include "ir/error.h"

namespace difuse::codegen {

#define DIFUSE_NVRTC_FUNCTIONS(X)                                                           \
  X(nvrtcGetErrorString, const char*(Result))                                               \
  X(nvrtcVersion, Result(int* major, int* minor))                                           \
  X(nvrtcGetNumSupportedArchs, Result(int* count))                                          \
  X(nvrtcGetSupportedArchs, Result(int* architectures))                                     \
  X(nvrtcCreateProgram, Result(Program*, const char* source, const char* name, int headers, \
                               const char* const* contents, const char* const* names))      \
  X(nvrtcDestroyProgram, Result(Program*))                                                  \
  X(nvrtcCompileProgram, Result(Program, int count, const char* const* options))            \
  X(nvrtcGetCUBINSize, Result(Program, size_t*))                                            \
  X(nvrtcGetCUBIN, Result(Program, char*))                                                  \
  X(nvrtcGetProgramLogSize, Result(Program, size_t*))                                       \
  X(nvrtcGetProgramLog, Result(Program, char*))

/// nvrtc.h's declarations, as far as they are used; the same in every version since 11.
struct NvrtcFunctions {
  using Program = struct ProgramTag*;
  enum class Result : int { success = 0, invalid_option = 5, compilation = 6 };
#define DIFUSE_NVRTC_POINTER(function, signature) std::add_pointer_t<signature> function = nullptr;
  DIFUSE_NVRTC_FUNCTIONS(DIFUSE_NVRTC_POINTER)
#undef DIFUSE_NVRTC_POINTER
  std::unique_ptr<void, int (*)(void*)> handle{nullptr, &dlclose};
};

namespace {

using Program = NvrtcFunctions::Program;
using Result = NvrtcFunctions::Result;

constexpr int kNewestKnownMajor = 13;

/// Every file name to try, in order.
std::vector<std::string> candidates(const NvrtcSearch& search) {
  std::vector<std::string> places;
  if (!search.toolkit.empty()) {
    places.push_back(search.toolkit + "/lib64/");
    places.push_back(search.toolkit + "/lib/");
  }
  places.push_back("");  // By the dynamic loader's rules.
  places.push_back("/usr/local/cuda/lib64/");
  std::vector<std::string> files;
  const int newest = search.newest_major == 0 ? kNewestKnownMajor : search.newest_major;
  for (const std::string& place : places) {
    for (int major = newest; major >= kOldestNvrtc.major; --major) {
      files.push_back(fmt::format("{}libnvrtc.so.{}", place, major));
    }
    // The unversioned link may name a newer one than this list knows, or one that is too old.
    files.push_back(place + "libnvrtc.so");
  }
  return files;
}

/// Null with `why` set when `file` is no usable NVRTC; `why` stays empty when it is simply not there.
std::shared_ptr<NvrtcFunctions> open(const std::string& file, std::string& why) {
  auto functions = std::make_shared<NvrtcFunctions>();
  // Never unloaded: it would leave the memory of its start behind every time.
  functions->handle.reset(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
  if (!functions->handle) {
    const std::string error = dlerror();
    if (error.find("No such file") == std::string::npos) why = fmt::format("{} cannot be loaded ({})", file, error);
    return nullptr;
  }
#define DIFUSE_NVRTC_LOAD(function, signature)                                                                      \
  functions->function = reinterpret_cast<decltype(functions->function)>(dlsym(functions->handle.get(), #function)); \
  if (functions->function == nullptr) {                                                                             \
    why = fmt::format("{} has no {}", file, #function);                                                             \
    return nullptr;                                                                                                 \
  }
  DIFUSE_NVRTC_FUNCTIONS(DIFUSE_NVRTC_LOAD)
#undef DIFUSE_NVRTC_LOAD
  return functions;
}

NvrtcStamp stamp_of(const NvrtcFunctions& functions, NvrtcVersion version) {
  NvrtcStamp stamp;
  stamp.version = version;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(functions.nvrtcVersion), &info) == 0 || info.dli_fname == nullptr) return stamp;
  const std::unique_ptr<char, void (*)(void*)> real(realpath(info.dli_fname, nullptr), &std::free);
  stamp.path = real ? real.get() : info.dli_fname;
  struct stat status {};
  if (stat(stamp.path.c_str(), &status) == 0) {
    stamp.bytes = static_cast<uint64_t>(status.st_size);
    stamp.modified_ns = static_cast<int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
  }
  return stamp;
}

/// 90 of "sm_90a"; 0 where it is not the name of an architecture.
int capability_of(const std::string& architecture) {
  constexpr std::string_view kPrefix = "sm_";
  int capability = 0;
  if (architecture.starts_with(kPrefix)) {
    std::from_chars(architecture.data() + kPrefix.size(), architecture.data() + architecture.size(), capability);
  }
  return capability;
}

}  // namespace

std::string NvrtcVersion::text() const { return fmt::format("{}.{}", major, minor); }

NvrtcVersion NvrtcVersion::parse(const std::string& text) {
  NvrtcVersion version;
  const char* end = text.data() + text.size();
  const auto [dot, error] = std::from_chars(text.data(), end, version.major);
  if (error != std::errc() || dot == end || *dot != '.') return {};
  const auto [rest, error_minor] = std::from_chars(dot + 1, end, version.minor);
  if (error_minor != std::errc() || rest != end) return {};
  return version;
}

bool NvrtcStamp::is_unchanged() const {
  struct stat status {};
  return !path.empty() && stat(path.c_str(), &status) == 0 && static_cast<uint64_t>(status.st_size) == bytes &&
         static_cast<int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec == modified_ns;
}

bool NvrtcStamp::is_gone() const {
  struct stat status {};
  return path.empty() || stat(path.c_str(), &status) != 0;
}

std::vector<std::string> nvrtc_options(const CudaSource& source, NvrtcVersion version) {
  std::vector<std::string> options = {
      "--gpu-architecture=" + source.architecture,
      "--std=c++20",
      "--device-as-default-execution-space",
      // A multiply and an add become one rounding only where the source says fmaf: otherwise fusing two pointwise
      // kernels would change bits.
      "--fmad=false",
      "--ftz=false",
      "--prec-div=true",
      "--prec-sqrt=true",
      // Otherwise every compilation changes the whole process's stack limit, and concurrent ones do not restore it.
      "--modify-stack-limit=false",
      // Registers, shared memory and spills go to the log.
      "--ptxas-options=-v",
  };
  // NVRTC's own cache skips the assembler, and with it the log.
  if (version >= NvrtcVersion{12, 9}) options.push_back("--no-cache");
  options.insert(options.end(), source.options.begin(), source.options.end());
  return options;
}

NvrtcLibrary::NvrtcLibrary(std::shared_ptr<const NvrtcFunctions> functions, NvrtcStamp stamp)
    : functions_(std::move(functions)), stamp_(std::move(stamp)) {
  int count = 0;
  if (functions_->nvrtcGetNumSupportedArchs(&count) != Result::success || count <= 0) return;
  architectures_.resize(static_cast<size_t>(count));
  if (functions_->nvrtcGetSupportedArchs(architectures_.data()) != Result::success) architectures_.clear();
  std::ranges::sort(architectures_);
}

std::shared_ptr<const NvrtcLibrary> NvrtcLibrary::load(const NvrtcSearch& search, std::string* reason) {
  std::string refused;
  for (const std::string& file : candidates(search)) {
    std::string why;
    const auto functions = open(file, why);
    NvrtcVersion version;
    if (functions && functions->nvrtcVersion(&version.major, &version.minor) != Result::success) {
      why = fmt::format("{} does not tell its version", file);
    } else if (functions && version < kOldestNvrtc) {
      why = fmt::format("{} is version {}", file, version.text());
    } else if (functions && search.newest_major != 0 && version.major > search.newest_major) {
      why = fmt::format("{} is version {}, newer than the driver", file, version.text());
    } else if (functions) {
      if (reason != nullptr) reason->clear();
      return std::shared_ptr<const NvrtcLibrary>(new NvrtcLibrary(functions, stamp_of(*functions, version)));
    }
    if (refused.empty()) refused = why;
  }
  if (reason != nullptr) {
    const int newest = search.newest_major == 0 ? kNewestKnownMajor : search.newest_major;
    const std::string range = newest > kOldestNvrtc.major ? fmt::format("{} down to {}", newest, kOldestNvrtc.major)
                                                          : fmt::format("{}", kOldestNvrtc.major);
    *reason = fmt::format(
        "NVRTC {} or newer was not found: looked for libnvrtc.so.{} {}among the system's libraries "
        "and in /usr/local/cuda/lib64{}{}",
        kOldestNvrtc.text(), range, search.toolkit.empty() ? "" : fmt::format("in {}/lib64 and lib, ", search.toolkit),
        refused.empty() ? "" : "; ", refused);
  }
  return nullptr;
}

CompiledKernel NvrtcLibrary::compile(const CudaSource& source) const {
  const auto start = std::chrono::steady_clock::now();
  const int capability = capability_of(source.architecture);
  if (capability == 0 ||
      (!architectures_.empty() && std::ranges::find(architectures_, capability) == architectures_.end())) {
    throw Error(
        fmt::format("NVRTC {} does not compile for '{}'", version().text(), source.architecture),
        fmt::format("use one of sm_{}, or another CUDA toolkit (set CUDA_HOME)", fmt::join(architectures_, ", sm_")),
        ExitCode::wrong_usage);
  }

  const NvrtcFunctions& nvrtc = *functions_;
  const auto destroy = [&](Program program) { nvrtc.nvrtcDestroyProgram(&program); };
  std::unique_ptr<std::remove_pointer_t<Program>, decltype(destroy)> program(nullptr, destroy);
  const auto require = [&](Result result, std::string_view what) {
    if (result == Result::success) return;
    throw Error(fmt::format("NVRTC {}: {} of kernel {} failed: {}", version().text(), what, source.name,
                            nvrtc.nvrtcGetErrorString(result)),
                "check that the machine has memory to spare and that the CUDA toolkit is whole");
  };

  Program made = nullptr;
  const std::string file = source.name + ".cu";
  require(nvrtc.nvrtcCreateProgram(&made, source.source.c_str(), file.c_str(), 0, nullptr, nullptr), "the start");
  program.reset(made);

  const std::vector<std::string> options = nvrtc_options(source, version());
  std::vector<const char*> pointers;
  for (const std::string& option : options) pointers.push_back(option.c_str());
  const Result result = nvrtc.nvrtcCompileProgram(made, static_cast<int>(pointers.size()), pointers.data());

  size_t log_bytes = 0;
  CompiledKernel kernel;
  kernel.name = source.name;
  kernel.architecture = source.architecture;
  require(nvrtc.nvrtcGetProgramLogSize(made, &log_bytes), "the log");
  kernel.log.resize(log_bytes);
  require(nvrtc.nvrtcGetProgramLog(made, kernel.log.data()), "the log");
  while (kernel.log.ends_with('\0')) kernel.log.pop_back();

  const std::string title = fmt::format("kernel {} for {}", source.name, source.architecture);
  const std::string remedy = "this is a fault of the generated source: difuse compile --dump DIR writes it out";
  if (result == Result::compilation || result == Result::invalid_option) {
    throw Error(fmt::format("{} does not compile: {}", title, error_lines(kernel.log)), remedy);
  }
  require(result, "the compilation");
  const std::string fault = find_fault(kernel.log);
  if (!fault.empty()) throw Error(fmt::format("{} is refused: {}", title, fault), remedy);
  const auto resources = read_resources(kernel.log, source.name);
  if (!resources) throw Error(fmt::format("{}: the source defines no extern \"C\" kernel of that name", title), remedy);
  kernel.resources = *resources;

  size_t cubin_bytes = 0;
  require(nvrtc.nvrtcGetCUBINSize(made, &cubin_bytes), "the code");
  kernel.cubin.resize(cubin_bytes);
  require(nvrtc.nvrtcGetCUBIN(made, reinterpret_cast<char*>(kernel.cubin.data())), "the code");
  kernel.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return kernel;
}

}  // namespace difuse::codegen
