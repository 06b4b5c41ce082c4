#include "runtime/kernel_dump.h"

#include <fmt/format.h>

#include <string>

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

}  // namespace

void dump_sources(const fs::path& folder, const codegen::cuda::CudaPlan& plan) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!fs::is_directory(folder)) {
    throw Error(fmt::format("the kernels cannot be written to '{}': {}", folder.string(),
                            fs::exists(folder) ? "it is a file, not a folder" : error.message()),
                "give a folder that can be made and written", ExitCode::wrong_usage);
  }
  for (const codegen::CudaSource& source : plan.sources) {
    write(folder / (source.name + ".cu"), std::as_bytes(std::span(source.source)));
  }
}

void dump_code(const fs::path& folder, std::span<const std::shared_ptr<const codegen::CompiledKernel>> kernels) {
  for (const auto& kernel : kernels) write(folder / (kernel->name + ".cubin"), kernel->cubin);
}

}  // namespace difuse::runtime
