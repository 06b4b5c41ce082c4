#include "runtime/kernel_dump.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "ir/error.h"
#include "runtime/atomic_file.h"

namespace difuse::runtime {

namespace fs = std::filesystem;

namespace {

void write(const fs::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

/// Whether a file of this name is one that a dump wrote: "<what it computes>_<8 digits of its hash>.cu" or ".cubin".
bool is_kernel(const fs::path& file) {
  const std::string name = file.stem().string();
  if ((file.extension() != ".cu" && file.extension() != ".cubin") || name.size() < 9) return false;
  const std::string_view hash = std::string_view(name).substr(name.size() - 8);
  return name[name.size() - 9] == '_' && hash.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// The kernels of an earlier plan would be taken for this one's.
void remove_kernels(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator file(folder, error), end; !error && file != end; file.increment(error)) {
    if (is_kernel(file->path()) && file->is_regular_file(error)) found.push_back(file->path());
  }
  for (const fs::path& file : found) fs::remove(file, error);
}

}  // namespace

void dump_sources(const fs::path& folder, const codegen::cuda::CudaPlan& plan) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!fs::is_directory(folder)) {
    throw Error(fmt::format("the kernels cannot be written to '{}': {}", folder.string(),
                            fs::exists(folder) ? "it is a file, not a folder" : error.message()),
                "give a folder that can be made and written", ExitCode::wrong_usage);
  }
  remove_kernels(folder);
  for (const codegen::CudaSource& source : plan.sources) {
    write(folder / (source.name + ".cu"), std::as_bytes(std::span(source.source)));
  }
}

void dump_code(const fs::path& folder, std::span<const std::shared_ptr<const codegen::CompiledKernel>> kernels) {
  for (const auto& kernel : kernels) write(folder / (kernel->name + ".cubin"), kernel->cubin);
}

}  // namespace difuse::runtime
