// Decoded images in one file, so that a second start maps them instead of decoding. Laid out as
//
//   "difuse images 1\n" padded with zeros to 64 bytes, the pixels, what decoding found (JSON), and a footer of 56
//   bytes: "DIFUSEIM", bytes of pixels, bytes of JSON, the content key (16 bytes), and an FNV-1a checksum (16 bytes) of
//   all of this but the pixels; integers are little-endian.
//
// The file's name comes from the folder and the settings, so a folder that changed replaces its own old cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/atomic_file.h"
#include "runtime/data/image/image_kind.h"
#include "runtime/mapped_file.h"

namespace difuse::runtime {

/// A 128-bit FNV-1a hash: against accidents, not attackers.
/// Source: http://www.isthe.com/chongo/tech/comp/fnv/
class Fingerprint {
 public:
  Fingerprint& add(std::span<const std::byte> bytes);
  Fingerprint& add(std::uint64_t value);
  Fingerprint& add(std::string_view text);  ///< With its length, so that neighbours cannot run together.

  std::string hex() const;  ///< 32 digits.

 private:
  __extension__ using Uint128 = unsigned __int128;
  Uint128 state_ = Uint128{0x6c62272e07bb0142} << 64 | 0x62b821756295c58d;
};

/// What decoding a folder found out; with the pixels, all that a later start needs.
struct Findings {
  std::int64_t count = 0;  ///< Usable images.
  int height = 0;
  int width = 0;
  int channels = 0;
  std::map<ImageKind, std::int64_t> kinds;
  std::map<std::int64_t, std::string> bad;  ///< By number in the sorted list of files: what is wrong.
  int least_height = 0, most_height = 0;    ///< As stored, upright.
  int least_width = 0, most_width = 0;
  std::int64_t resized = 0;  ///< Images that had another size than height x width.
};

struct CacheId {
  std::string name;     ///< Hex, of the folder and the settings: names the file.
  std::string content;  ///< Hex, of that and every file's name, size and time.
};

std::filesystem::path cache_path(const std::filesystem::path& cache_folder, const std::filesystem::path& data,
                                 const CacheId& id);

struct CachedImages {
  MappedFile file;
  std::span<const std::uint8_t> pixels;  ///< In `file`.
  Findings findings;
};

/// Opens a cache and checks its lengths, its checksum and its key (the pixels themselves are not read). Without a
/// usable one, `why_not` says what is wrong with it ("is damaged"), or is empty when there is no file.
std::optional<CachedImages> open_cache(const std::filesystem::path& path, const CacheId& id, std::string& why_not);

/// A cache that is being written; without finish() nothing stays.
class CacheWriter {
 public:
  /// Makes the folder where needed and claims the space for `images` images. Errors: AtomicFile's.
  CacheWriter(const std::filesystem::path& path, std::uint64_t images, std::uint64_t image_bytes);

  void append(std::span<const std::uint8_t> image);
  void finish(const CacheId& id, const Findings& findings);

 private:
  AtomicFile file_;
  std::uint64_t pixel_bytes_ = 0;
};

}  // namespace difuse::runtime
