#include <fmt/format.h>

#include <system_error>
#include <thread>

#include "codegen/cpu/contractions.h"
#include "codegen/cpu/isa.h"
#include "codegen/jit/kernel_cache.h"
#include "models/cli/commands.h"
#include "models/cli/probe.h"
#include "models/run/console.h"
#include "models/run/data.h"
#include "runtime/atomic_file.h"

namespace difuse::models {
namespace {

void print_row(const char* name, const std::string& text) { say("{:<14} {}\n", name, text); }

std::string cache_text(const ir::Options& options) {
  const std::filesystem::path folder = codegen::kernel_cache_folder(options);
  if (folder.empty()) return "none: neither DIFUSE_CACHE nor HOME is set; compiled kernels stay in memory";
  // The folder itself is made by the first kernel.
  std::filesystem::path there = folder;
  std::error_code ignored;
  while (!std::filesystem::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  try {
    runtime::require_writable(there / "probe", 1);
  } catch (const Error& error) {
    return fmt::format("{}: {}; compiled kernels stay in memory", folder.string(), error.what());
  }
  return fmt::format("{}, writable", folder.string());
}

int run_doctor(const CommandContext& context) {
  print_row("difuse", DIFUSE_VERSION);
  print_row("cpu", cpu_name());
  print_row("threads", fmt::format("{}", std::thread::hardware_concurrency()));
  print_row("own loops", std::string(codegen::isa_name(codegen::best_isa())));
  std::string why_plain;
  const auto contractions = codegen::make_contractions(&why_plain);
  print_row("oneDNN", why_plain.empty() ? contractions->description()
                                        : fmt::format("not found: looked for libdnnl.so.2 ({})", why_plain));
  print_row("CPU backend", contractions->description() +
                               (why_plain.empty() ? "" : "; install libdnnl2 (Debian) for several times the speed"));
  const CudaFindings cuda = probe_cuda(context.options);
  print_row("CUDA driver", cuda.driver);
  print_row("NVRTC", cuda.nvrtc);
  print_row("devices", "cpu");
  for (const std::string& device : cuda.devices) print_row("", device);
  print_row("kernel cache", cache_text(context.options));
  const std::filesystem::path images = default_data_cache(context.options);
  print_row("image cache", images.empty() ? "none: neither DIFUSE_CACHE nor HOME is set" : images.string());

  say("\nEnvironment variables\n");
  for (const ir::OptionRow& row : ir::option_table()) {
    say("  {:<20} {:<16} {}\n", row.variable, row.grammar, row.meaning);
  }
  return 0;
}

}  // namespace

Action add_doctor(CLI::App&) { return run_doctor; }

}  // namespace difuse::models
