#include "tests/support/cuda_emulator/kernel_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "codegen/jit/sha256.h"
#include "ir/error.h"

extern char** environ;

namespace difuse::testing {
namespace {

namespace fs = std::filesystem;
using codegen::CudaSource;

constexpr const char* kCompiler = EMULATOR_COMPILER;

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string device_text(const char* name) {
  const fs::path path = fs::path(TESTS_SOURCE_DIR) / "support/cuda_emulator/device" / name;
  std::string text = read(path);
  if (text.empty()) throw Error(fmt::format("cannot read {}", path.string()));
  return fmt::format("#line 1 \"{}\"\n{}", path.string(), text);
}

std::vector<std::string> compiler_options(bool find_races) {
  std::vector<std::string> options = {"-std=c++20",
                                      "-O1",
                                      "-w",
                                      "-fPIC",
                                      "-shared",
                                      "-nostdlib",
                                      "-pipe",
                                      "-ffp-contract=off",
                                      "-fno-rtti",
                                      "-fno-exceptions",
                                      "-fvisibility=hidden",
                                      "-fno-strict-aliasing",
                                      "-fno-math-errno",
                                      "-fno-trapping-math",
                                      "-fsanitize=alignment,bounds",
                                      "-fno-sanitize-recover=all",
                                      "-fstack-clash-protection"};
#ifdef __x86_64__
  // Instructions for what would be calls of the C library. Their results are the same. What has avx2 has f16c.
  if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
    options.insert(options.end(), {"-mavx2", "-mfma", "-mf16c"});
  }
#endif
  if (find_races) {
    options.insert(options.end(), {"-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"});
    return options;
  }
#ifdef __SANITIZE_ADDRESS__
  options.insert(options.end(), {"-fsanitize=address", "--param=asan-stack=0", "--param=asan-globals=0"});
#endif
  return options;
}

size_t closing(const std::string& text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    if (depth == 0) return i;
  }
  throw Error("unbalanced parentheses in a kernel's source");
}

/// `alignas` after __shared__ is an error to a C++ compiler: moves it before. And makes of an `extern __shared__ T
/// x[];` a pointer to the block's memory.
std::string replace_shared(std::string text) {
  const std::string shared = "__shared__";
  for (size_t at = text.find(shared); at != std::string::npos; at = text.find(shared, at)) {
    size_t after = text.find_first_not_of(' ', at + shared.size());
    std::string alignment;
    for (const char* word : {"alignas(", "__align__("}) {
      if (text.compare(after, std::string_view(word).size(), word) != 0) continue;
      const size_t end = closing(text, text.find('(', after)) + 1;
      alignment = text.substr(after, end - after) + " ";
      after = text.find_first_not_of(' ', end);
    }
    size_t begin = at;
    const size_t before = text.find_last_not_of(' ', at - 1);
    constexpr std::string_view kExtern = "extern";
    std::string replacement = alignment + shared + " ";
    if (before != std::string::npos && before + 1 >= kExtern.size() &&
        text.compare(before + 1 - kExtern.size(), kExtern.size(), kExtern) == 0) {
      begin = before + 1 - kExtern.size();
      const size_t bracket = text.find('[', after), end = text.find(';', after);
      if (bracket == std::string::npos || end == std::string::npos) throw Error("`extern __shared__` without an array");
      const size_t name_end = text.find_last_not_of(' ', bracket - 1) + 1;
      const size_t name = text.find_last_of(" *&", name_end - 1) + 1;
      const std::string type = text.substr(after, name - after);
      replacement = fmt::format("{0}* const {1} = reinterpret_cast<{0}*>(::emulator::dynamic_shared)", type,
                                text.substr(name, name_end - name));
      after = end;
    }
    text.replace(begin, after - begin, replacement);
    at = begin + replacement.size();
  }
  return text;
}

std::string replace_header(const std::string& text, const char* name) {
  const std::string begin_mark = fmt::format("// -- {}\n", name), end_mark = fmt::format("// -- end of {}\n", name);
  const size_t begin = text.find(begin_mark);
  if (begin == std::string::npos) return text;
  const size_t end = text.find(end_mark, begin);
  if (end == std::string::npos) throw Error(fmt::format("{} has no end in a kernel's source", name));
  const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
  return text.substr(0, begin) + device_text(name) + fmt::format("#line {} \"kernel\"\n", lines + 1) + text.substr(end);
}

unsigned architecture_number(const std::string& architecture) {
  const size_t digits = architecture.find_first_of("0123456789");
  return digits == std::string::npos ? 0 : static_cast<unsigned>(std::stoi(architecture.substr(digits))) * 10;
}

/// The number that begins in parentheses after the last `name` of the source.
unsigned attribute(const std::string& source, std::string_view name, unsigned otherwise) {
  const size_t at = source.rfind(name);
  if (at == std::string::npos) return otherwise;
  const size_t digits = at + name.size();
  if (source[digits] < '0' || source[digits] > '9') return otherwise;
  return static_cast<unsigned>(std::stoi(source.substr(digits)));
}

/// Runs the compiler; returns whether it succeeded. What it says is in `log`.
bool run_compiler(const std::vector<std::string>& arguments, const fs::path& log) {
  std::vector<char*> argv;
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw Error(fmt::format("cannot start {}", arguments[0]));
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// The file of the compiled kernel, which is made where it is missing.
fs::path compiled(const std::string& name, const std::string& text, const std::string& key, bool find_races) {
  static std::atomic<int> serial = 0;
  const fs::path folder = EMULATOR_CACHE;
  const fs::path library = folder / (key + ".so");
  if (fs::exists(library)) return library;
  fs::create_directories(folder);
  const std::string own = fmt::format("{}.{}.{}", key, getpid(), serial++);
  const fs::path source = folder / (own + ".cpp"), log = folder / (own + ".log"), output = folder / (own + ".so");
  std::ofstream(source, std::ios::binary) << text;
  std::vector<std::string> arguments = compiler_options(find_races);
  arguments.insert(arguments.begin(), kCompiler);
  arguments.insert(arguments.end(), {"-o", output.string(), source.string(), "-lgcc"});
  const bool worked = run_compiler(arguments, log);
  const std::string said = read(log);
  fs::remove(log);
  if (!worked) {
    const fs::path kept = folder / "failed.cpp";
    fs::rename(source, kept);
    throw Error(fmt::format("the emulator cannot compile kernel {} (kept as {}):\n{}", name, kept.string(), said));
  }
  fs::rename(source, folder / (key + ".cpp"));  // For debuggers and readers.
  fs::rename(output, library);
  return library;
}

void open(KernelLibrary& kernel, const fs::path& file) {
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);  // Stays open: results may point into it.
  if (handle == nullptr) throw Error(fmt::format("cannot load emulated kernel {}: {}", kernel.name, dlerror()));
  const auto* exports = static_cast<const emulator::Exports*>(dlsym(handle, "emulated_kernel"));
  if (exports == nullptr) throw Error(fmt::format("{} is no emulated kernel", file.string()));
  kernel.code = *exports;
}

struct Loaded {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<KernelLibrary>> by_key;
};

Loaded& loaded() {
  static Loaded all;
  return all;
}

std::string key_of(const std::string& text, bool find_races) {
  codegen::Sha256 hash;
  for (const std::string& option : compiler_options(find_races)) hash.add_field(option);
  return hash.add_field(kCompiler).add_field(__VERSION__).add_field(text).hex().substr(0, 32);
}

}  // namespace

std::string translate(const CudaSource& source, bool find_races) {
  std::string text = fmt::format("#define __CUDA_ARCH__ {}\n", architecture_number(source.architecture));
  if (find_races) text += "#define EMULATOR_FIND_RACES 1\n";
  text += device_text("machine.cuh");
  text += device_text("prelude.cuh");
  // Without a name, so that nothing is kept that the kernel does not use.
  text += "namespace {\n#line 1 \"kernel\"\n";
  text += replace_header(replace_header(replace_shared(source.source), "ptx.cuh"), "ptx_sm90.cuh");
  text += fmt::format("\n}}\n#define EMULATED_KERNEL {}\n", source.name);
  text += device_text("exports.cuh");
  return text;
}

std::vector<std::shared_ptr<KernelLibrary>> load_kernels(std::span<const CudaSource> sources, bool find_races) {
  std::vector<std::string> keys(sources.size());
  std::vector<size_t> wanted;
  std::vector<std::shared_ptr<KernelLibrary>> kernels(sources.size());
  std::vector<std::string> texts(sources.size());
  Loaded& all = loaded();
  {
    const std::lock_guard lock(all.mutex);
    for (size_t i = 0; i < sources.size(); ++i) {
      texts[i] = translate(sources[i], find_races);
      keys[i] = key_of(texts[i], find_races);
      const bool is_new = !all.by_key.contains(keys[i]) &&
                          std::none_of(wanted.begin(), wanted.end(), [&](size_t w) { return keys[w] == keys[i]; });
      if (is_new) wanted.push_back(i);
    }
  }
  std::vector<std::string> faults(wanted.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t w = next++; w < wanted.size(); w = next++) {
      const size_t i = wanted[w];
      try {
        auto kernel = std::make_shared<KernelLibrary>();
        kernel->name = sources[i].name;
        kernel->finds_races = find_races;
        kernel->most_threads = attribute(sources[i].source, "__launch_bounds__(", 1024);
        kernel->cluster = attribute(sources[i].source, "__cluster_dims__(", 1);
        open(*kernel, compiled(kernel->name, texts[i], keys[i], find_races));
        const std::lock_guard lock(all.mutex);
        all.by_key.emplace(keys[i], std::move(kernel));
      } catch (const std::exception& error) {
        faults[w] = error.what();
      }
    }
  };
  {
    const size_t workers = std::min<size_t>(wanted.size(), std::max(1u, std::thread::hardware_concurrency()));
    std::vector<std::jthread> pool;
    for (size_t i = 1; i < workers; ++i) pool.emplace_back(work);
    work();
  }
  for (const std::string& fault : faults) {
    if (!fault.empty()) throw Error(fault);
  }
  const std::lock_guard lock(all.mutex);
  for (size_t i = 0; i < sources.size(); ++i) kernels[i] = all.by_key.at(keys[i]);
  return kernels;
}

}  // namespace difuse::testing
