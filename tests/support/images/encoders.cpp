#include "tests/support/images/encoders.h"

#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
// libjpeg's header needs FILE and size_t first.
#include <jpeglib.h>
//
#include <webp/encode.h>
#include <webp/mux.h>

namespace difuse::test {

namespace {

std::string big_endian(std::uint32_t value, int bytes = 4) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::uint32_t read_big_endian(std::string_view text) {
  std::uint32_t value = 0;
  for (const char c : text.substr(0, 4)) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

std::string checksum(std::string_view bytes) {
  return big_endian(static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size()))));
}

std::string deflate_all(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string packed(size, '\0');
  if (compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(bytes.data()),
               bytes.size()) != Z_OK) {
    throw std::runtime_error("zlib");
  }
  packed.resize(size);
  return packed;
}

int channels_of(int type) { return type == 2 ? 3 : type == 4 ? 2 : type == 6 ? 4 : 1; }

/// The pixels first_x, first_x + step_x, ... of rows first_y, ..., each row behind its filter byte.
std::string png_rows(const PngSpec& spec, const SampleAt& sample, int first_x, int first_y, int step_x, int step_y) {
  std::string rows;
  const int channels = channels_of(spec.type);
  if (first_x >= spec.width) return rows;
  for (int y = first_y; y < spec.height; y += step_y) {
    rows += '\0';
    std::uint32_t pending = 0;
    int filled = 0;
    for (int x = first_x; x < spec.width; x += step_x) {
      for (int c = 0; c < channels; ++c) {
        pending = pending << spec.bits | static_cast<std::uint32_t>(sample(x, y, c));
        for (filled += spec.bits; filled >= 8; filled -= 8) rows += static_cast<char>(pending >> (filled - 8));
      }
    }
    if (filled > 0) rows += static_cast<char>(pending << (8 - filled));
  }
  return rows;
}

std::string take(std::uint8_t* bytes, std::size_t size) { return {reinterpret_cast<const char*>(bytes), size}; }

void require(bool done, const char* what) {
  if (!done) throw std::runtime_error(what);
}

/// `picture` is freed by the caller.
void import_picture(WebPPicture& to, const runtime::Image& image) {
  require(WebPPictureInit(&to) != 0, "WebPPictureInit");
  to.use_argb = 1;
  to.width = image.width;
  to.height = image.height;
  const int stride = image.width * image.channels;
  require((image.channels == 4 ? WebPPictureImportRGBA(&to, image.pixels.data(), stride)
                               : WebPPictureImportRGB(&to, image.pixels.data(), stride)) != 0,
          "WebPPictureImport");
}

}  // namespace

runtime::Image picture(int width, int height, int channels, const SampleAt& sample) {
  runtime::Image image{width, height, channels, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) image.pixels.push_back(static_cast<std::uint8_t>(sample(x, y, c)));
    }
  }
  return image;
}

std::string png_chunk(std::string_view name, std::string_view contents) {
  const std::string body = std::string(name) + std::string(contents);
  return big_endian(static_cast<std::uint32_t>(contents.size())) + body + checksum(body);
}

std::string repair_checksums(std::string png) {
  std::size_t at = 8;
  while (at + 12 <= png.size()) {
    const std::size_t length = read_big_endian(std::string_view(png).substr(at));
    if (length > png.size() - at - 12) break;
    png.replace(at + 8 + length, 4, checksum(std::string_view(png).substr(at + 4, length + 4)));
    at += 12 + length;
  }
  return png;
}

std::string encode_png(const PngSpec& spec, const SampleAt& sample) {
  std::string header =
      big_endian(static_cast<std::uint32_t>(spec.width)) + big_endian(static_cast<std::uint32_t>(spec.height));
  header += {static_cast<char>(spec.bits), static_cast<char>(spec.type), 0, 0, static_cast<char>(spec.interlaced)};
  std::string file = "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header);
  std::string palette;
  for (const auto& colour : spec.palette) {
    for (const int value : colour) palette += static_cast<char>(value);
  }
  if (!palette.empty()) file += png_chunk("PLTE", palette);
  if (!spec.transparency.empty()) file += png_chunk("tRNS", spec.transparency);
  file += spec.before_pixels;

  std::string rows;
  if (spec.interlaced) {
    // Adam7: where each pass begins and how far its pixels lie apart.
    constexpr int kPasses[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                   {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
    for (const auto& [x, y, step_x, step_y] : kPasses) rows += png_rows(spec, sample, x, y, step_x, step_y);
  } else {
    rows = png_rows(spec, sample, 0, 0, 1, 1);
  }
  return file + png_chunk("IDAT", deflate_all(rows)) + png_chunk("IEND", {});
}

std::string exif_block(int orientation, bool motorola) {
  const auto number = [&](std::uint32_t value, int bytes) {
    std::string text = big_endian(value, bytes);
    if (!motorola) std::reverse(text.begin(), text.end());
    return text;
  };
  std::string block = motorola ? "MM" : "II";
  block += number(42, 2) + number(8, 4) + number(2, 2);                       // Two entries.
  block += number(0x0100, 2) + number(4, 2) + number(1, 4) + number(640, 4);  // ImageWidth.
  block += number(0x0112, 2) + number(3, 2) + number(1, 4) + number(static_cast<std::uint32_t>(orientation), 2);
  return block + number(0, 2) + number(0, 4);
}

std::string encode_jpeg(const JpegSpec& spec, const SampleAt& sample) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);  // Ends the process on an error, which in a test is as good as any.
  jpeg_create_compress(&jpeg);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &bytes, &size);
  jpeg.image_width = static_cast<JDIMENSION>(spec.width);
  jpeg.image_height = static_cast<JDIMENSION>(spec.height);
  jpeg.input_components = spec.channels;
  jpeg.in_color_space = spec.channels == 1 ? JCS_GRAYSCALE : spec.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  if (spec.channels == 4) jpeg_set_colorspace(&jpeg, spec.ycck ? JCS_YCCK : JCS_CMYK);
  if (spec.channels == 4 && !spec.adobe) jpeg.write_Adobe_marker = FALSE;
  jpeg_set_quality(&jpeg, 95, TRUE);
  for (int i = 0; i < jpeg.num_components; ++i) jpeg.comp_info[i].h_samp_factor = jpeg.comp_info[i].v_samp_factor = 1;
  if (spec.progressive) jpeg_simple_progression(&jpeg);
  jpeg.arith_code = spec.arithmetic ? TRUE : FALSE;
  jpeg_start_compress(&jpeg, TRUE);
  if (spec.orientation > 0) {
    const std::string exif = std::string("Exif\0\0", 6) + exif_block(spec.orientation, spec.orientation % 2 == 0);
    jpeg_write_marker(&jpeg, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()),
                      static_cast<unsigned>(exif.size()));
  }
  runtime::Image image = picture(spec.width, spec.height, spec.channels, sample);
  for (int y = 0; y < spec.height; ++y) {
    JSAMPROW row = &image.pixels[static_cast<std::size_t>(y) * spec.width * spec.channels];
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string file = take(bytes, size);
  std::free(bytes);
  return file;
}

std::string encode_webp(const runtime::Image& image, bool lossless) {
  WebPConfig config;
  require(WebPConfigInit(&config) != 0, "WebPConfigInit");
  config.lossless = lossless;
  config.exact = 1;  // Keep the colours of transparent pixels.
  config.quality = 95;
  WebPPicture source;
  import_picture(source, image);
  WebPMemoryWriter writer;
  WebPMemoryWriterInit(&writer);
  source.writer = &WebPMemoryWrite;
  source.custom_ptr = &writer;
  require(WebPEncode(&config, &source) != 0, "WebPEncode");
  std::string file = take(writer.mem, writer.size);
  WebPMemoryWriterClear(&writer);
  WebPPictureFree(&source);
  return file;
}

std::string encode_webp_animation(const std::vector<runtime::Image>& frames) {
  constexpr int kFrameMs = 100;
  WebPAnimEncoderOptions options;
  require(WebPAnimEncoderOptionsInit(&options) != 0, "WebPAnimEncoderOptionsInit");
  const std::unique_ptr<WebPAnimEncoder, decltype(&WebPAnimEncoderDelete)> encoder(
      WebPAnimEncoderNew(frames.front().width, frames.front().height, &options), &WebPAnimEncoderDelete);
  WebPConfig config;
  require(encoder && WebPConfigInit(&config) != 0, "WebPAnimEncoderNew");
  config.lossless = 1;
  config.exact = 1;
  int time = 0;
  for (const runtime::Image& frame : frames) {
    WebPPicture source;
    import_picture(source, frame);
    require(WebPAnimEncoderAdd(encoder.get(), &source, time, &config) != 0, "WebPAnimEncoderAdd");
    WebPPictureFree(&source);
    time += kFrameMs;
  }
  require(WebPAnimEncoderAdd(encoder.get(), nullptr, time, nullptr) != 0, "WebPAnimEncoderAdd");
  WebPData data;
  WebPDataInit(&data);
  require(WebPAnimEncoderAssemble(encoder.get(), &data) != 0, "WebPAnimEncoderAssemble");
  std::string file(reinterpret_cast<const char*>(data.bytes), data.size);
  WebPDataClear(&data);
  return file;
}

}  // namespace difuse::test
