#include "runtime/data/image/decode.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/data/image/formats.h"

namespace difuse::runtime {

namespace {

using namespace std::string_view_literals;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The whole of a regular file in memory: unlike a mapping, it cannot vanish while a decoder reads it.
Fault read_whole(const std::filesystem::path& path, std::uint64_t max_bytes, std::vector<std::byte>& bytes) {
  const auto cannot_read = [] { return fmt::format("cannot be read: {}", std::strerror(errno)); };
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return cannot_read();
  struct Closer {
    int file;
    ~Closer() { ::close(file); }
  } const closer{file};
  struct stat info {};
  if (::fstat(file, &info) != 0) return cannot_read();
  if (!S_ISREG(info.st_mode)) return S_ISDIR(info.st_mode) ? "is a folder" : "is a device or a pipe";
  if (static_cast<std::uint64_t>(info.st_size) > max_bytes) {
    return fmt::format("is too large: {} bytes, more than {}", info.st_size, max_bytes);
  }
  bytes.resize(static_cast<std::size_t>(info.st_size));
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = ::read(file, bytes.data() + filled, bytes.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return cannot_read();
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
  }
  bytes.resize(filled);
  return std::nullopt;
}

}  // namespace

std::optional<ImageFormat> format_of(std::span<const std::byte> head) {
  const std::string_view text = text_of(head);
  if (text.starts_with("\x89PNG\r\n\x1a\n"sv)) return ImageFormat::png;
  if (text.starts_with("\xff\xd8\xff"sv)) return ImageFormat::jpeg;
  if (text.size() >= 12 && text.starts_with("RIFF"sv) && text.substr(8, 4) == "WEBP"sv) return ImageFormat::webp;
  return std::nullopt;
}

std::string describe_foreign(std::span<const std::byte> head) {
  const std::string_view text = text_of(head.first(std::min<std::size_t>(head.size(), 256)));
  if (text.empty()) return "empty";
  constexpr std::pair<std::string_view, const char*> kMagic[] = {
      {"GIF8"sv, "a GIF image"},
      {"BM"sv, "a BMP image"},
      {"II*\0"sv, "a TIFF image"},
      {"MM\0*"sv, "a TIFF image"},
      {"8BPS"sv, "a Photoshop image"},
      {"\0\0\x01\0"sv, "an icon"},
      {"\xff\x0a"sv, "a JPEG XL image"},
      {"\0\0\0\x0cJXL "sv, "a JPEG XL image"},
      {"\0\0\0\x0cjP  "sv, "a JPEG 2000 image"},
      {"%PDF"sv, "a PDF file"},
      {"PK\x03\x04"sv, "a ZIP archive"},
      {"\x1f\x8b"sv, "a gzip file"},
      {"version https://git-lfs"sv, "a Git LFS pointer, not the file itself"},
  };
  for (const auto& [magic, name] : kMagic) {
    if (text.starts_with(magic)) return name;
  }
  if (text.size() >= 12 && text.substr(4, 4) == "ftyp"sv) {
    const std::string_view brand = text.substr(8, 4);
    if (brand.starts_with("avi"sv)) return "an AVIF image";
    return brand.starts_with("he"sv) || brand.starts_with("mif"sv) ? "a HEIF image" : "a video";
  }
  const std::size_t begin = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (begin != std::string_view::npos) {
    std::string start(text.substr(begin, 14));
    std::transform(start.begin(), start.end(), start.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    if (start.starts_with("<!doctype html") || start.starts_with("<html")) return "an HTML page";
    if (start.starts_with("<svg")) return "an SVG drawing";
    if (start.starts_with("<?xml")) return "an XML file";
  }
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\r' || c == '\t' || c == '\f';
  });
  return printable ? "a text file" : "not an image that is known";
}

Fault check_size(std::uint64_t width, std::uint64_t height, const DecodeLimits& limits) {
  constexpr std::uint64_t kMaxSide = 1'000'000;
  if (width == 0 || height == 0) return fmt::format("has no pixels: its header says {} x {}", width, height);
  if (width > kMaxSide || height > kMaxSide || width * height > limits.max_pixels) {
    return fmt::format("is too large: its header says {} x {} pixels, and the limit is {} in all and {} a side", width,
                       height, limits.max_pixels, kMaxSide);
  }
  return std::nullopt;
}

Fault decode(std::span<const std::byte> file, const DecodeLimits& limits, Decoded& decoded) {
  const std::optional<ImageFormat> format = format_of(file);
  if (!format) {
    constexpr std::string_view kNeeded = "; PNG, JPEG and WebP are read";
    return fmt::format("is {}{}", describe_foreign(file), file.empty() ? std::string_view() : kNeeded);
  }
  Stored stored;
  stored.kind.format = *format;
  Fault fault;
  switch (*format) {
    case ImageFormat::png:
      fault = decode_png(file, limits, stored);
      break;
    case ImageFormat::jpeg:
      fault = decode_jpeg(file, limits, stored);
      break;
    case ImageFormat::webp:
      fault = decode_webp(file, limits, stored);
      break;
  }
  if (fault) return fault;
  decoded.kind = stored.kind;
  decoded.kind.turned = stored.orientation != 1;
  decoded.image = turn_upright(std::move(stored.image), stored.orientation);
  return std::nullopt;
}

Fault decode_file(const std::filesystem::path& path, const DecodeLimits& limits, Decoded& decoded) {
  std::vector<std::byte> bytes;
  if (Fault fault = read_whole(path, limits.max_file_bytes, bytes)) return fault;
  return decode(bytes, limits, decoded);
}

}  // namespace difuse::runtime
