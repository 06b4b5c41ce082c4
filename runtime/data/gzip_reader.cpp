#include "runtime/data/gzip_reader.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "ir/error.h"

namespace difuse::runtime {

namespace {

constexpr int kGzipWindow = 15 + 16;  // zlib's way to say "gzip wrapper only".

bool begins_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

}  // namespace

GzipReader::GzipReader(std::filesystem::path path) : path_(std::move(path)), file_(path_), rest_(file_.bytes()) {
  if (!begins_gzip(rest_)) return;
  auto stream = std::make_unique<z_stream>();
  if (inflateInit2(stream.get(), kGzipWindow) != Z_OK) throw std::bad_alloc();
  stream_ = std::move(stream);
}

GzipReader::~GzipReader() {
  if (stream_) inflateEnd(stream_.get());
}

std::size_t GzipReader::read(std::span<std::byte> out) {
  if (compressed()) return inflate_into(out);
  const std::size_t count = std::min(out.size(), rest_.size());
  std::copy_n(rest_.begin(), count, out.begin());
  rest_ = rest_.subspan(count);
  return count;
}

std::size_t GzipReader::inflate_into(std::span<std::byte> out) {
  constexpr std::size_t kChunk = std::numeric_limits<uInt>::max();
  std::size_t filled = 0;
  while (filled < out.size()) {
    if (between_members_) {
      // gzip files may be concatenated; anything else behind a member is padding that gzip itself ignores.
      if (!begins_gzip(rest_)) break;
      inflateReset(stream_.get());
      between_members_ = false;
    }
    const std::size_t input = std::min(rest_.size(), kChunk);
    const std::size_t space = std::min(out.size() - filled, kChunk);
    stream_->next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest_.data()));
    stream_->avail_in = static_cast<uInt>(input);
    stream_->next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    stream_->avail_out = static_cast<uInt>(space);
    const int result = inflate(stream_.get(), Z_NO_FLUSH);
    rest_ = rest_.subspan(input - stream_->avail_in);
    filled += space - stream_->avail_out;
    if (result == Z_STREAM_END) {
      between_members_ = true;
    } else if (result == Z_BUF_ERROR || (result == Z_OK && rest_.empty() && stream_->avail_out > 0)) {
      throw Error(
          fmt::format("'{}' is a truncated gzip file: {} bytes are not enough", path_.string(), file_.bytes().size()),
          "copy or download the file again");
    } else if (result != Z_OK) {
      throw Error(fmt::format("'{}' is a damaged gzip file ({})", path_.string(),
                              stream_->msg ? stream_->msg : "unknown error"),
                  "copy or download the file again");
    }
  }
  return filled;
}

std::uint64_t GzipReader::most_bytes() const {
  constexpr std::uint64_t kDeflateRatio = 1032;
  return file_.bytes().size() * (compressed() ? kDeflateRatio : 1);
}

}  // namespace difuse::runtime
