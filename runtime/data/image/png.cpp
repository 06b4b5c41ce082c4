#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <string_view>
#include <vector>

#include "runtime/data/image/formats.h"

namespace difuse::runtime {

namespace {

/// Big-endian.
std::uint32_t read_u32(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  for (const std::byte byte : bytes.first(4)) value = value << 8 | std::to_integer<std::uint32_t>(byte);
  return value;
}

constexpr std::size_t kSignature = 8;
constexpr std::size_t kChunkFrame = 12;  // Length, name, checksum.
constexpr std::size_t kHeaderEnd = kSignature + kChunkFrame + 13;

/// Finds what libpng has no word for: an animation, and EXIF, which may stand before or behind the pixels.
void scan_chunks(std::span<const std::byte> file, Stored& stored) {
  std::size_t at = kSignature;
  while (at + kChunkFrame <= file.size()) {
    const std::size_t length = read_u32(file.subspan(at));
    if (length > file.size() - at - kChunkFrame) return;
    const std::string_view name(reinterpret_cast<const char*>(&file[at + 4]), 4);
    const std::span<const std::byte> contents = file.subspan(at + 8, length);
    if (name == "acTL" && length >= 4) stored.kind.animated = read_u32(contents) > 1;
    if (name == "eXIf") stored.orientation = exif_orientation(contents);
    at += kChunkFrame + length;
  }
}

/// libpng reports errors by longjmp: no function below that calls it between setjmp and return has a local with a
/// destructor, and what they change lives here.
class PngReader {
 public:
  explicit PngReader(std::span<const std::byte> file) : rest_(file) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &on_error, &on_warning);
    if (png_ == nullptr) throw std::bad_alloc();
    info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::bad_alloc();
    }
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  /// Reads up to the pixels and asks for 8-bit grey, RGB or RGBA.
  bool read_header(ImageKind& kind) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, &on_read);
    // Also a damaged ancillary chunk says that the file is not what was written.
    png_set_crc_action(png_, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    // Profiles, gamma and texts are not used, and broken ones are common: all that is no critical chunk but tRNS.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    constexpr png_byte kTransparency[] = {'t', 'R', 'N', 'S', 0};
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_AS_DEFAULT, kTransparency, 1);
    png_read_info(png_, info_);

    const int type = png_get_color_type(png_, info_);
    const bool transparency = png_get_valid(png_, info_, PNG_INFO_tRNS) != 0;
    const bool alpha = (type & PNG_COLOR_MASK_ALPHA) != 0 || transparency;
    kind.bits = png_get_bit_depth(png_, info_);
    if (type == PNG_COLOR_TYPE_PALETTE) {
      kind.colour = alpha ? Colour::palette_alpha : Colour::palette;
      png_set_palette_to_rgb(png_);
    } else if (type & PNG_COLOR_MASK_COLOR) {
      kind.colour = alpha ? Colour::rgba : Colour::rgb;
    } else {
      kind.colour = alpha ? Colour::grey_alpha : Colour::grey;
      if (kind.bits < 8) png_set_expand_gray_1_2_4_to_8(png_);
      if (alpha) png_set_gray_to_rgb(png_);
    }
    if (transparency) png_set_tRNS_to_alpha(png_);
    if (kind.bits == 16) png_set_scale_16(png_);  // (v * 255 + 32895) >> 16
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  /// After read_header().
  int channels() const { return png_get_channels(png_, info_); }
  std::size_t row_bytes() const { return png_get_rowbytes(png_, info_); }

  bool read_rows(Image& image) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    for (pass_ = 0; pass_ < passes_; ++pass_) {
      for (row_ = 0; row_ < image.height; ++row_) {
        png_read_row(png_, image.pixels.data() + static_cast<std::size_t>(row_) * row_bytes(), nullptr);
      }
    }
    png_read_end(png_, nullptr);
    return true;
  }

  Fault fault() const {
    if (truncated_) return "is a truncated PNG";
    return fmt::format("is a damaged PNG: {}", message_);
  }

  /// A warning after which pixels are not what the file meant.
  bool lost_transparency() const { return lost_transparency_; }

 private:
  static void on_error(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    self->keep_message(message);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    if (std::strncmp(message, "tRNS", 4) != 0) return;
    self->lost_transparency_ = true;
    self->keep_message(message);
  }
  static void on_read(png_structp png, png_bytep to, std::size_t count) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self->rest_.size()) {
      self->truncated_ = true;
      png_error(png, "truncated");
    }
    std::copy_n(self->rest_.begin(), count, reinterpret_cast<std::byte*>(to));
    self->rest_ = self->rest_.subspan(count);
  }
  void keep_message(const char* message) { std::strncpy(message_, message, sizeof(message_) - 1); }

  std::span<const std::byte> rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1, pass_ = 0, row_ = 0;
  bool truncated_ = false;
  bool lost_transparency_ = false;
  char message_[160] = {};
};

}  // namespace

Fault decode_png(std::span<const std::byte> file, const DecodeLimits& limits, Stored& stored) {
  if (file.size() < kHeaderEnd) return "is a truncated PNG";
  const std::uint32_t width = read_u32(file.subspan(16)), height = read_u32(file.subspan(20));
  if (Fault fault = check_size(width, height, limits)) return fault;

  PngReader reader(file);
  if (!reader.read_header(stored.kind)) return reader.fault();
  Image& image = stored.image;
  image = {static_cast<int>(width), static_cast<int>(height), reader.channels(), {}};
  if (image.channels != 1 && image.channels != 3 && image.channels != 4) {
    return fmt::format("is a PNG with {} channels, which is not supported", image.channels);
  }
  // Deflate never packs more than 1032 to 1: a file too small for its size is found before the allocation. One bit a
  // pixel is the least that a PNG stores.
  constexpr std::uint64_t kDeflateRatio = 1032;
  if (std::uint64_t{width} * height / 8 > file.size() * kDeflateRatio) return "is a truncated PNG";
  image.pixels.resize(reader.row_bytes() * height);
  if (!reader.read_rows(image)) return reader.fault();
  if (reader.lost_transparency()) return reader.fault();
  scan_chunks(file, stored);
  return std::nullopt;
}

}  // namespace difuse::runtime
