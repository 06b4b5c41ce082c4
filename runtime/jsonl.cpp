#include "runtime/jsonl.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "ir/error.h"
#include "runtime/atomic_file.h"
#include "runtime/mapped_file.h"

namespace difuse::runtime {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// `text` without the lines beyond `step`, without a cut-off last line, and only up to the zeros that a
/// power cut leaves.
std::string kept_lines(const fs::path& path, std::string_view text, std::int64_t step) {
  std::string kept;
  int line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (line.find('\0') != std::string_view::npos) break;
    if (!object.is_object()) {
      throw Error(
          fmt::format("line {} of '{}' is not a JSON object, so this is not a metrics log", line_number, path.string()),
          "move the file away, or repair the line");
    }
    const auto found = object.find("step");
    const bool beyond = found != object.end() && found->is_number() && found->get<double>() > static_cast<double>(step);
    if (!beyond) kept.append(line).push_back('\n');
  }
  return kept;
}

}  // namespace

JsonlLog JsonlLog::create(const fs::path& path) { return JsonlLog(path, /*empty_it=*/true); }

JsonlLog JsonlLog::resume(const fs::path& path, std::int64_t step) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    const std::string kept = kept_lines(path, text, step);
    if (kept.size() != text.size()) {
      AtomicFile shorter(path);
      shorter.write(kept);
      shorter.commit();
    }
  }
  return JsonlLog(path, /*empty_it=*/false);
}

JsonlLog::JsonlLog(fs::path path, bool empty_it) : path_(std::move(path)) {
  std::error_code ignored;
  if (fs::is_fifo(path_, ignored)) {  // opening it would wait for a reader
    throw Error(fmt::format("cannot write '{}': it is a pipe, not a file", path_.string()),
                "move it away, or choose another --out", ExitCode::wrong_usage);
  }
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (empty_it ? O_TRUNC : 0);
  descriptor_ = ::open(path_.c_str(), flags, 0666);
  if (descriptor_ < 0) throw write_error(path_, errno);
}

JsonlLog::~JsonlLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

JsonlLog::JsonlLog(JsonlLog&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

JsonlLog& JsonlLog::operator=(JsonlLog&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void JsonlLog::append(const nlohmann::ordered_json& object) {
  std::string line = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  line.push_back('\n');
  const off_t before = ::lseek(descriptor_, 0, SEEK_END);
  const int error_number = write_all(descriptor_, std::as_bytes(std::span(line)));
  if (error_number == 0) return;
  // Best effort: resume() also drops a cut-off last line.
  if (before >= 0) static_cast<void>(!::ftruncate(descriptor_, before));
  throw write_error(path_, error_number, "the lines before are complete");
}

}  // namespace difuse::runtime
