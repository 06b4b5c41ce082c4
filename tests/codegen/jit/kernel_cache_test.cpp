// The cache by itself: what it keeps is not looked into, so any bytes serve as code.
#include "codegen/jit/kernel_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/codegen/jit/sources.h"
#include "tests/support/temp_folder.h"

namespace difuse::codegen {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using namespace difuse::test;

constexpr NvrtcVersion kVersion = {13, 0};
constexpr const char* kFiles[] = {"kernel.cu", "kernel.cubin", "meta.json"};

/// A kernel whose code follows from its source, so that mixed-up entries show.
CompiledKernel code_of(const CudaSource& source) {
  CompiledKernel kernel;
  kernel.name = source.name;
  kernel.architecture = source.architecture;
  for (int i = 0; i < 200; ++i) {
    for (const char c : source.source) kernel.cubin.push_back(static_cast<std::byte>(c + i));
  }
  kernel.resources = {
      .registers = 42, .barriers = 1, .static_shared_bytes = 512, .local_bytes = 0, .constant_bytes = 7};
  kernel.log = "a log with \xff and \"quotes\"\n";
  kernel.seconds = 0.125;
  return kernel;
}

struct Cache {
  explicit Cache(const fs::path& root) : cache(root, [this](const std::string& line) { lines.push_back(line); }) {}

  /// The kernel, made when the cache has none.
  std::shared_ptr<const CompiledKernel> get(const CudaSource& source) {
    auto kernel = cache.find(source, kVersion);
    return kernel ? kernel : cache.store(source, kVersion, code_of(source));
  }
  std::vector<std::string> lines;
  KernelCache cache;
};

TEST(KernelKey, DependsOnAllThatDecidesTheCode) {
  const CudaSource source = axpy("axpy");
  const std::string key = kernel_key(source, kVersion);
  EXPECT_EQ(key.size(), 64u);
  EXPECT_EQ(key, kernel_key(axpy("axpy"), kVersion));
  CudaSource other = source;
  other.source += " ";
  EXPECT_NE(key, kernel_key(other, kVersion));
  other = source;
  other.architecture = "sm_90a";
  EXPECT_NE(key, kernel_key(other, kVersion));
  other = source;
  other.options = {"--maxrregcount=64"};
  EXPECT_NE(key, kernel_key(other, kVersion));
  other = source;
  other.name = "other";
  EXPECT_NE(key, kernel_key(other, kVersion));
  EXPECT_NE(key, kernel_key(source, {13, 1}));
}

TEST(KernelCacheFolder, IsTheUsersUnlessSaidOtherwise) {
  ir::Options options;
  EXPECT_EQ(kernel_cache_folder(options), fs::path());
  options.user_cache = "/home/a/.cache";
  EXPECT_EQ(kernel_cache_folder(options), "/home/a/.cache/difuse/kernels");
  options.cache = "/fast";
  EXPECT_EQ(kernel_cache_folder(options), "/fast/kernels");
}

TEST(KernelCache, KeepsAKernelForTheNextProcess) {
  const TempFolder folder;
  const CudaSource source = axpy("axpy");
  Cache first(folder / "deep/er");
  EXPECT_FALSE(fs::exists(folder / "deep")) << "nothing is stored yet";
  EXPECT_EQ(first.cache.find(source, kVersion), nullptr);
  const auto stored = first.cache.store(source, kVersion, code_of(source));
  EXPECT_EQ(first.cache.find(source, kVersion), stored);
  EXPECT_EQ(first.cache.counts().memory_hits, 1);
  EXPECT_EQ(first.cache.counts().misses, 1);

  const fs::path entry = first.cache.entry_folder(source, kVersion);
  EXPECT_EQ(entry.parent_path(), folder / "deep/er");
  EXPECT_EQ(entry.filename(), "axpy-" + kernel_key(source, kVersion).substr(0, 16));
  EXPECT_EQ(read_file(entry / "kernel.cu"), source.source);
  EXPECT_EQ(read_file(entry / "kernel.cubin").size(), stored->cubin.size());
  EXPECT_CONTAINS(read_file(entry / "meta.json"), "--gpu-architecture=sm_80");
  EXPECT_TRUE(fs::is_empty(folder / "deep/er/tmp"));

  Cache second(folder / "deep/er");
  const auto found = second.cache.find(source, kVersion);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->name, "axpy");
  EXPECT_EQ(found->architecture, "sm_80");
  EXPECT_EQ(found->cubin, stored->cubin);
  EXPECT_EQ(found->resources, stored->resources);
  EXPECT_EQ(found->seconds, stored->seconds);
  EXPECT_CONTAINS(found->log, "\"quotes\"");
  EXPECT_EQ(second.cache.counts().disk_hits, 1);
  EXPECT_EQ(second.cache.find(source, {13, 1}), nullptr) << "another compiler's";
  EXPECT_EQ(first.lines, std::vector<std::string>{});
  EXPECT_EQ(second.lines, std::vector<std::string>{});
}

/// `damage` is done to an entry; the next process says so in one line, makes it again, and the one after finds it.
void expect_remade(const std::string& what, const std::function<void(const fs::path&)>& damage) {
  const TempFolder folder;
  const CudaSource source = axpy("axpy");
  Cache(folder.path()).get(source);
  const fs::path entry = KernelCache(folder.path()).entry_folder(source, kVersion);
  damage(entry);

  Cache second(folder.path());
  EXPECT_EQ(second.get(source)->cubin, code_of(source).cubin) << what;
  EXPECT_EQ(second.cache.counts().damaged, 1) << what;
  ASSERT_EQ(second.lines.size(), 1u) << what;
  EXPECT_CONTAINS(second.lines[0], entry.string());
  EXPECT_EQ(second.lines[0].find('\n'), std::string::npos) << second.lines[0];

  Cache third(folder.path());
  third.get(source);
  EXPECT_EQ(third.cache.counts().disk_hits, 1) << what;
  EXPECT_TRUE(third.lines.empty()) << what;
  EXPECT_TRUE(fs::is_empty(folder / "tmp")) << what;
}

TEST(KernelCache, MakesDamagedEntriesAgain) {
  for (const char* file : kFiles) {
    for (const char* kept : {"nothing", "half", "all but one byte"}) {
      expect_remade(fmt::format("{} of {}", kept, file), [&](const fs::path& entry) {
        const auto bytes = fs::file_size(entry / file);
        fs::resize_file(entry / file, *kept == 'n' ? 0 : *kept == 'h' ? bytes / 2 : bytes - 1);
      });
    }
    expect_remade(fmt::format("no {}", file), [&](const fs::path& entry) { fs::remove(entry / file); });
    expect_remade(fmt::format("one byte of {}", file), [&](const fs::path& entry) {
      std::string content = read_file(entry / file);
      // In meta.json a digit of "registers": 42.
      const size_t at = std::string(file) == "meta.json" ? content.find("42") : content.size() / 2;
      ASSERT_NE(at, std::string::npos);
      content[at] ^= 1;
      write_file(entry / file, content);
    });
    expect_remade(fmt::format("a folder for {}", file), [&](const fs::path& entry) {
      fs::remove(entry / file);
      fs::create_directory(entry / file);
    });
  }
  expect_remade("a pipe", [](const fs::path& entry) {
    fs::remove(entry / "meta.json");
    ASSERT_EQ(::mkfifo((entry / "meta.json").c_str(), 0666), 0);
  });
}

TEST(KernelCache, MakesForeignEntriesAgain) {
  expect_remade("a file", [](const fs::path& entry) {
    fs::remove_all(entry);
    write_file(entry, "not a folder");
  });
  expect_remade("another program's folder", [](const fs::path& entry) {
    fs::remove_all(entry);
    fs::create_directory(entry);
    write_file(entry / "notes.txt", "mine");
  });
  expect_remade("other JSON", [](const fs::path& entry) { write_file(entry / "meta.json", "[1, 2]\n"); });
  expect_remade("another kernel's entry", [](const fs::path& entry) {
    const CudaSource other = axpy("other");
    Cache cache(entry.parent_path());
    cache.get(other);
    fs::remove_all(entry);
    fs::rename(cache.cache.entry_folder(other, kVersion), entry);
  });
}

TEST(KernelCache, AnEmptyFolderIsDamagedToo) {
  expect_remade("an empty folder", [](const fs::path& entry) {
    fs::remove_all(entry);
    fs::create_directory(entry);
  });
}

TEST(KernelCache, WorksFromMemoryWhereNothingCanBeWritten) {
  const TempFolder folder;
  write_file(folder / "file", "");
  for (const fs::path& root : {fs::path(), folder / "file/cache", fs::path("/proc/nowhere")}) {
    Cache cache(root);
    for (const char* name : {"one", "two"}) {
      const auto kernel = cache.get(axpy(name));
      EXPECT_EQ(kernel->cubin, code_of(axpy(name)).cubin);
      EXPECT_EQ(cache.get(axpy(name)), kernel);
    }
    EXPECT_EQ(cache.cache.counts().misses, 2);
    EXPECT_EQ(cache.cache.counts().memory_hits, 2);
    cache.cache.set_last_compiler({.path = "/a", .bytes = 1, .modified_ns = 2, .version = kVersion});
    EXPECT_EQ(cache.cache.last_compiler(), std::nullopt);
    ASSERT_EQ(cache.lines.size(), 1u) << root;
    EXPECT_CONTAINS(cache.lines[0], "DIFUSE_CACHE");
    EXPECT_CONTAINS(cache.lines[0], root.string());
  }
}

TEST(KernelCache, RemembersTheCompiler) {
  const TempFolder folder;
  const NvrtcStamp stamp{.path = "/usr/lib/libnvrtc.so.13", .bytes = 109, .modified_ns = -5, .version = kVersion};
  EXPECT_EQ(KernelCache(folder.path()).last_compiler(), std::nullopt);
  KernelCache(folder.path()).set_last_compiler(stamp);
  EXPECT_EQ(KernelCache(folder.path()).last_compiler(), stamp);
  fs::resize_file(folder / "nvrtc.json", 20);
  EXPECT_EQ(KernelCache(folder.path()).last_compiler(), std::nullopt);
  KernelCache(folder.path()).set_last_compiler(stamp);
  EXPECT_EQ(KernelCache(folder.path()).last_compiler(), stamp);
}

TEST(KernelCache, ClearsAwayWhatKilledProcessesLeft) {
  const TempFolder folder;
  fs::create_directories(folder / "tmp/1.0");
  fs::create_directories(folder / "tmp/2.0");
  fs::last_write_time(folder / "tmp/1.0", fs::file_time_type::clock::now() - std::chrono::hours(48));
  Cache(folder.path()).get(axpy("axpy"));
  EXPECT_FALSE(fs::exists(folder / "tmp/1.0"));
  EXPECT_TRUE(fs::exists(folder / "tmp/2.0")) << "may be in use";
}

TEST(KernelCache, ThreadsShareOne) {
  const TempFolder folder;
  Cache cache(folder.path());
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 8; ++i) cache.get(axpy(fmt::format("k{}", i)));
      });
    }
  }
  const auto counts = cache.cache.counts();
  EXPECT_EQ(counts.memory_hits + counts.disk_hits + counts.misses, 32);
  EXPECT_TRUE(cache.lines.empty());
  EXPECT_TRUE(fs::is_empty(folder / "tmp"));
}

/// Runs `work` in eight processes at once; the number of those that did not end with 0.
int failures_of_eight(const std::function<int()>& work) {
  std::vector<pid_t> children;
  for (int p = 0; p < 8; ++p) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work());
    children.push_back(child);
  }
  int failures = 0;
  for (const pid_t child : children) {
    int status = 0;
    failures += child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  return failures;
}

TEST(KernelCache, ProcessesShareOneFolder) {
  constexpr int kKernels = 12;
  const TempFolder folder;
  for (const bool damaged : {false, true}) {
    if (damaged) {
      for (int i = 0; i < kKernels; ++i) {
        const CudaSource source = axpy(fmt::format("k{}", i));
        fs::resize_file(KernelCache(folder.path()).entry_folder(source, kVersion) / kFiles[i % 3], 3);
      }
    }
    EXPECT_EQ(failures_of_eight([&] {
                Cache cache(folder.path());
                for (int round = 0; round < 3; ++round) {
                  for (int i = 0; i < kKernels; ++i) {
                    const CudaSource source = axpy(fmt::format("k{}", i));
                    if (cache.get(source)->cubin != code_of(source).cubin) return 1;
                  }
                }
                return !damaged && !cache.lines.empty() ? 2 : 0;
              }),
              0);
    Cache after(folder.path());
    for (int i = 0; i < kKernels; ++i) after.get(axpy(fmt::format("k{}", i)));
    EXPECT_EQ(after.cache.counts().disk_hits, kKernels);
    EXPECT_TRUE(after.lines.empty());
    EXPECT_TRUE(fs::is_empty(folder / "tmp"));
  }
}

}  // namespace
}  // namespace difuse::codegen
