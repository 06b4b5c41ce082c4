#include "models/weights/zip_archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "ir/error.h"

namespace difuse::models {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50, kEntrySignature = 0x02014b50, kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint64_t kMaxComment = 0xffff;
constexpr uint32_t kSaturated32 = 0xffffffff;  // The value is in the 64-bit extension.
constexpr uint16_t kSaturated16 = 0xffff, kExtension64 = 1, kEncrypted = 1, kStored = 0, kDeflated = 8;

// Weights hardly compress. Zeros do, a thousandfold, so a small archive may hold that much of them.
constexpr uint64_t kHonestBytes = uint64_t{64} << 20, kHonestRatio = 100;

[[noreturn]] void broken(const std::filesystem::path& path, std::string_view what) {
  throw Error(fmt::format("'{}' is a broken zip archive: {}", path.string(), what), "copy or download the file again");
}

template <class Number>
Number number_at(std::span<const std::byte> bytes, uint64_t at) {
  Number value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// Whether [at, at + count) lies in `size` bytes.
bool inside(uint64_t at, uint64_t count, uint64_t size) { return at <= size && count <= size - at; }

/// Replaces what is saturated by the values of the 64-bit extension: size, compressed size, offset, in that order.
void apply_extension64(std::span<const std::byte> extra, uint64_t& size, uint64_t& compressed, uint64_t& offset) {
  while (extra.size() >= 4) {
    const auto tag = number_at<uint16_t>(extra, 0), bytes = number_at<uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) return;
    std::span<const std::byte> body = extra.subspan(4, bytes);
    extra = extra.subspan(4 + size_t{bytes});
    if (tag != kExtension64) continue;
    for (uint64_t* value : {&size, &compressed, &offset}) {
      if (*value != kSaturated32) continue;
      if (body.size() < sizeof(uint64_t)) return;
      *value = number_at<uint64_t>(body, 0);
      body = body.subspan(sizeof(uint64_t));
    }
  }
}

}  // namespace

ZipArchive::ZipArchive(std::filesystem::path path, std::span<const std::byte> file)
    : path_(std::move(path)), file_(file) {
  const uint64_t size = file.size();
  uint64_t end = size >= kEndBytes ? size - kEndBytes : 0;
  const uint64_t first = end > kMaxComment ? end - kMaxComment : 0;
  auto is_end = [&](uint64_t at) {
    return inside(at, kEndBytes, size) && number_at<uint32_t>(file, at) == kEndSignature &&
           number_at<uint16_t>(file, at + 20) == size - at - kEndBytes;
  };
  while (end > first && !is_end(end)) --end;
  if (!is_end(end)) {
    throw Error(fmt::format("'{}' is truncated: it is a zip archive without the directory at its end ({} bytes found)",
                            path_.string(), size),
                "copy or download the file again");
  }
  uint64_t count = number_at<uint16_t>(file, end + 10);
  uint64_t bytes = number_at<uint32_t>(file, end + 12), at = number_at<uint32_t>(file, end + 16);
  if (count == kSaturated16 || bytes == kSaturated32 || at == kSaturated32) {
    if (end < kLocator64Bytes || number_at<uint32_t>(file, end - kLocator64Bytes) != kLocator64Signature) {
      broken(path_, "the record of its 64-bit directory is missing");
    }
    const auto end64 = number_at<uint64_t>(file, end - kLocator64Bytes + 8);
    if (!inside(end64, kEnd64Bytes, size) || number_at<uint32_t>(file, end64) != kEnd64Signature) {
      broken(path_, "its 64-bit directory is not where the record says");
    }
    count = number_at<uint64_t>(file, end64 + 32);
    bytes = number_at<uint64_t>(file, end64 + 40);
    at = number_at<uint64_t>(file, end64 + 48);
  }
  if (!inside(at, bytes, end)) broken(path_, "its directory leaves the file");
  if (count > bytes / kEntryBytes) {
    broken(path_, fmt::format("its directory of {} bytes cannot hold {} entries", bytes, count));
  }
  read_directory(at, bytes, count);
  check_overlaps();
}

void ZipArchive::read_directory(uint64_t at, uint64_t bytes, uint64_t count) {
  const uint64_t end = at + bytes;
  uint64_t total = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (!inside(at, kEntryBytes, end) || number_at<uint32_t>(file_, at) != kEntrySignature) {
      broken(path_, fmt::format("entry {} of its directory is damaged", i));
    }
    Entry entry;
    const auto flags = number_at<uint16_t>(file_, at + 8), method = number_at<uint16_t>(file_, at + 10);
    entry.crc = number_at<uint32_t>(file_, at + 16);
    entry.compressed = number_at<uint32_t>(file_, at + 20);
    entry.size = number_at<uint32_t>(file_, at + 24);
    uint64_t local = number_at<uint32_t>(file_, at + 42);
    const auto name = number_at<uint16_t>(file_, at + 28), extra = number_at<uint16_t>(file_, at + 30),
               comment = number_at<uint16_t>(file_, at + 32);
    const uint64_t rest = uint64_t{name} + extra + comment;
    if (!inside(at + kEntryBytes, rest, end)) broken(path_, fmt::format("entry {} leaves the directory", i));
    entry.name.assign(reinterpret_cast<const char*>(file_.data() + at + kEntryBytes), name);
    apply_extension64(file_.subspan(at + kEntryBytes + name, extra), entry.size, entry.compressed, local);
    at += kEntryBytes + rest;

    if ((flags & kEncrypted) != 0) broken(path_, fmt::format("'{}' is encrypted", entry.name));
    if (method != kStored && method != kDeflated) {
      broken(path_, fmt::format("'{}' is compressed by method {}, not stored or deflated", entry.name, method));
    }
    entry.deflated = method == kDeflated;
    if (!inside(local, kLocalBytes, file_.size()) || number_at<uint32_t>(file_, local) != kLocalSignature) {
      broken(path_, fmt::format("'{}' is not where the directory says", entry.name));
    }
    entry.offset =
        local + kLocalBytes + number_at<uint16_t>(file_, local + 26) + number_at<uint16_t>(file_, local + 28);
    if (!inside(entry.offset, entry.compressed, file_.size())) {
      broken(path_, fmt::format("'{}' leaves the file", entry.name));
    }
    if (!entry.deflated && entry.size != entry.compressed) {
      broken(path_, fmt::format("'{}' is stored, with two sizes", entry.name));
    }
    if (__builtin_add_overflow(total, entry.size, &total) || total > kHonestBytes + kHonestRatio * file_.size()) {
      throw Error(fmt::format("'{}' is a zip bomb: {} bytes that unpack to {} or more", path_.string(), file_.size(),
                              std::max(total, entry.size)),
                  "do not use this file");
    }
    if (!index_.emplace(entry.name, entries_.size()).second) {
      broken(path_, fmt::format("the name '{}' comes twice", entry.name));
    }
    entries_.push_back(std::move(entry));
  }
}

void ZipArchive::check_overlaps() const {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries_) order.push_back(&entry);
  std::ranges::sort(order, {}, &Entry::offset);
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->compressed > order[i]->offset) {
      throw Error(fmt::format("'{}' is a zip bomb: its entries '{}' and '{}' share bytes", path_.string(),
                              order[i - 1]->name, order[i]->name),
                  "do not use this file");
    }
  }
}

const ZipArchive::Entry* ZipArchive::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

std::span<const std::byte> ZipArchive::read(const Entry& entry, std::vector<std::byte>& buffer) const {
  std::span<const std::byte> bytes = file_.subspan(entry.offset, entry.compressed);
  if (entry.deflated) {
    buffer.resize(entry.size);
    z_stream stream{};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
    uint64_t in = 0, out = 0;
    int result = Z_OK;
    std::byte beyond{};  // zlib wants a place to write to, even where nothing is expected.
    while (result == Z_OK) {
      constexpr uint64_t kMost = std::numeric_limits<uInt>::max();
      const auto give = std::min(bytes.size() - in, kMost), take = std::min(buffer.size() - out, kMost);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + in));
      stream.next_out = reinterpret_cast<Bytef*>(take == 0 ? &beyond : buffer.data() + out);
      stream.avail_in = static_cast<uInt>(give);
      stream.avail_out = static_cast<uInt>(take == 0 ? 1 : take);
      result = inflate(&stream, Z_NO_FLUSH);
      in += give - stream.avail_in;
      out += take == 0 ? 1 - stream.avail_out : take - stream.avail_out;
      if (out > buffer.size()) break;
    }
    inflateEnd(&stream);
    if (result != Z_STREAM_END || out != buffer.size()) {
      broken(path_, fmt::format("'{}' does not unpack to its {} bytes", entry.name, entry.size));
    }
    bytes = buffer;
  }
  const auto sum = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  if (sum != entry.crc) broken(path_, fmt::format("'{}' has another check sum than it should", entry.name));
  return bytes;
}

}  // namespace difuse::models
