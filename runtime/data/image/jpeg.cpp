#include <fmt/format.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
// libjpeg's header needs FILE and size_t first.
#include <jpeglib.h>
//
#include <jerror.h>

#include "runtime/data/image/formats.h"

namespace difuse::runtime {

namespace {

/// Warnings after which the pixels are still all there: garbage between segments, odd version numbers.
bool is_harmless(int code) {
  return code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR ||
         code == JWRN_TOO_MUCH_DATA || code == JWRN_BOGUS_ICC;
}

/// libjpeg reports errors by longjmp: no function below that calls it between setjmp and return has a local with a
/// destructor, and what they change lives here.
class JpegReader {
 public:
  explicit JpegReader(std::span<const std::byte> file) : file_(file) {}
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  bool read_header() {
    jpeg_.err = jpeg_std_error(&errors_);
    jpeg_.client_data = this;
    errors_.error_exit = &on_error;
    errors_.emit_message = &on_message;
    errors_.output_message = [](j_common_ptr) {};
    if (setjmp(escape_) != 0) return false;
    jpeg_create_decompress(&jpeg_);
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(file_.data()), file_.size());
    jpeg_save_markers(&jpeg_, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&jpeg_, TRUE);
    switch (jpeg_.num_components) {
      case 1:
        jpeg_.out_color_space = JCS_GRAYSCALE;
        break;
      case 3:
        jpeg_.out_color_space = JCS_RGB;
        break;
      case 4:
        jpeg_.out_color_space = JCS_CMYK;
        break;
      default:
        break;
    }
    progress_.progress_monitor = &on_progress;
    jpeg_.progress = &progress_;
    return true;
  }

  /// `pixels` has num_components channels.
  bool read_rows(std::uint8_t* pixels) {
    if (setjmp(escape_) != 0) return false;
    jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      row_ = pixels + static_cast<std::size_t>(jpeg_.output_scanline) * jpeg_.output_width * jpeg_.num_components;
      jpeg_read_scanlines(&jpeg_, &row_, 1);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  const jpeg_decompress_struct& info() const { return jpeg_; }

  int orientation() const {
    for (jpeg_saved_marker_ptr marker = jpeg_.marker_list; marker != nullptr; marker = marker->next) {
      const std::span contents(reinterpret_cast<const std::byte*>(marker->data), marker->data_length);
      if (contents.size() > 6 && std::memcmp(contents.data(), "Exif", 5) == 0) return exif_orientation(contents);
    }
    return 1;
  }

  Fault fault() const {
    if (end_seen_) return "is a truncated JPEG";
    if (too_many_scans_) return fmt::format("is a JPEG of more than {} scans, made to keep decoders busy", kMaxScans);
    const int code = errors_.msg_code;
    if (code == JERR_EMPTY_IMAGE) return "has no pixels: its header says a width or height of 0";
    const bool unsupported = code == JERR_SOF_UNSUPPORTED || code == JERR_BAD_PRECISION || code == JERR_ARITH_NOTIMPL ||
                             code == JERR_CONVERSION_NOTIMPL;
    return fmt::format("is {} JPEG: {}", unsupported ? "an unsupported" : "a damaged", message_);
  }

 private:
  // A progressive file has a few dozen scans at most; each costs a pass over the image however small it is.
  static constexpr int kMaxScans = 500;

  static JpegReader& self(j_common_ptr jpeg) { return *static_cast<JpegReader*>(jpeg->client_data); }

  static void on_error(j_common_ptr jpeg) {
    jpeg->err->format_message(jpeg, self(jpeg).message_);
    std::longjmp(self(jpeg).escape_, 1);
  }
  static void on_message(j_common_ptr jpeg, int level) {
    if (level >= 0) return;  // A trace.
    if (jpeg->err->msg_code == JWRN_JPEG_EOF) self(jpeg).end_seen_ = true;
    if (!is_harmless(jpeg->err->msg_code)) on_error(jpeg);
  }
  static void on_progress(j_common_ptr jpeg) {
    if (self(jpeg).jpeg_.input_scan_number <= kMaxScans) return;
    self(jpeg).too_many_scans_ = true;
    std::longjmp(self(jpeg).escape_, 1);
  }

  std::span<const std::byte> file_;
  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf escape_{};
  JSAMPROW row_ = nullptr;
  bool end_seen_ = false;
  bool too_many_scans_ = false;
  char message_[JMSG_LENGTH_MAX] = {};
};

std::uint8_t times_255th(int a, int b) { return static_cast<std::uint8_t>((a * b + 127) / 255); }

/// [.., 4] complements of C, M, Y, K (or, not `inverted`, the inks themselves) to RGB, in place.
void cmyk_to_rgb(Image& image, bool inverted) {
  const std::uint8_t mask = inverted ? 0 : 255;
  const std::size_t count = image.pixels.size() / 4;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* from = &image.pixels[i * 4];
    const int k = from[3] ^ mask;
    const std::uint8_t r = times_255th(from[0] ^ mask, k), g = times_255th(from[1] ^ mask, k),
                       b = times_255th(from[2] ^ mask, k);
    std::uint8_t* to = &image.pixels[i * 3];
    to[0] = r;
    to[1] = g;
    to[2] = b;
  }
  image.pixels.resize(count * 3);
  image.channels = 3;
}

}  // namespace

Fault decode_jpeg(std::span<const std::byte> file, const DecodeLimits& limits, Stored& stored) {
  JpegReader reader(file);
  if (!reader.read_header()) return reader.fault();
  const jpeg_decompress_struct& info = reader.info();
  if (Fault fault = check_size(info.image_width, info.image_height, limits)) return fault;
  const int components = info.num_components;
  if (components != 1 && components != 3 && components != 4) {
    return fmt::format("is an unsupported JPEG: {} components", components);
  }
  Image& image = stored.image;
  image = {static_cast<int>(info.image_width), static_cast<int>(info.image_height), components, {}};
  image.pixels.resize(static_cast<std::size_t>(image.width) * image.height * components);
  stored.kind.colour = components == 1 ? Colour::grey : components == 3 ? Colour::rgb : Colour::cmyk;
  stored.orientation = reader.orientation();
  if (!reader.read_rows(image.pixels.data())) return reader.fault();
  if (components == 4) cmyk_to_rgb(image, info.saw_Adobe_marker);
  return std::nullopt;
}

}  // namespace difuse::runtime
