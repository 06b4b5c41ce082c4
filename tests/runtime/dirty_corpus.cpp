#include "tests/runtime/dirty_corpus.h"

#include <sys/stat.h>

#include <cstdint>
#include <stdexcept>

#include "tests/support/images/encoders.h"
#include "tests/support/temp_folder.h"

namespace difuse::test {

namespace {

namespace fs = std::filesystem;
using runtime::Image;
using namespace std::string_literals;

constexpr int kWidth = 24, kHeight = 20;
constexpr int kLossy = 12;  // How far JPEG and lossy WebP may be off, anywhere.

/// Smooth, and different in every channel and direction, so that a swap shows.
int smooth(int x, int y, int c) {
  switch (c) {
    case 0:
      return x * 9;
    case 1:
      return y * 12;
    case 2:
      return 200 - x * 3 - y * 4;
    default:
      return 55 + x * 4 + y * 5;
  }
}
int grey(int x, int y, int) { return x * 6 + y * 5; }
int opaque(int x, int y, int c) { return c == 3 ? 255 : smooth(x, y, c); }
/// All values of `bits` bits, in turn.
SampleAt steps(int bits) {
  return [bits](int x, int y, int) { return (x + y * kWidth) & ((1 << bits) - 1); };
}
/// 16-bit samples that clipping or truncation would get wrong.
int wide(int x, int y, int c) { return (x * 2731 + y * 1201 + c * 16411) & 0xffff; }
int narrow(int value) { return (value + 128) / 257; }

Image expect(int channels, const SampleAt& sample) { return picture(kWidth, kHeight, channels, sample); }

/// Channel 0 in the three colours, and `alpha` behind them.
Image expect_grey_alpha(const SampleAt& value, const SampleAt& alpha) {
  return expect(4, [&](int x, int y, int c) { return c < 3 ? value(x, y, 0) : alpha(x, y, 0); });
}

PngSpec png(int type, int bits) {
  PngSpec spec;
  spec.width = kWidth;
  spec.height = kHeight;
  spec.type = type;
  spec.bits = bits;
  return spec;
}

JpegSpec jpeg(int channels) {
  JpegSpec spec;
  spec.width = kWidth;
  spec.height = kHeight;
  spec.channels = channels;
  return spec;
}

void add_png(std::vector<DirtyFile>& files) {
  const auto used = [&](const std::string& name, const std::string& contents, const std::string& says, Image expected) {
    files.push_back({name, contents, Fate::used, says, std::move(expected), 0});
  };
  used("png/grey.png", encode_png(png(0, 8), grey), "PNG grey", expect(1, grey));
  used("png/grey_alpha.png", encode_png(png(4, 8), smooth), "PNG grey + alpha",
       expect_grey_alpha(smooth, [](int x, int y, int) { return smooth(x, y, 1); }));
  used("png/rgb.png", encode_png(png(2, 8), smooth), "PNG RGB", expect(3, smooth));
  used("png/rgba.png", encode_png(png(6, 8), smooth), "PNG RGB + alpha", expect(4, smooth));
  for (const int bits : {1, 2, 4}) {
    used("png/grey" + std::to_string(bits) + ".png", encode_png(png(0, bits), steps(bits)),
         "PNG " + std::to_string(bits) + "-bit grey",
         expect(1, [&](int x, int y, int c) { return steps(bits)(x, y, c) * 255 / ((1 << bits) - 1); }));
  }

  PngSpec palette = png(3, 2);
  palette.palette = {{255, 0, 0}, {0, 255, 0}, {1, 2, 3}, {250, 251, 252}};
  const auto looked_up = [&](int x, int y, int c) { return palette.palette[steps(2)(x, y, 0)][c]; };
  used("png/palette.png", encode_png(palette, steps(2)), "PNG 2-bit palette", expect(3, looked_up));
  palette.transparency = "\x00\x80"s;  // The rest is opaque.
  used("png/palette_alpha.png", encode_png(palette, steps(2)), "PNG 2-bit palette + alpha",
       expect(4, [&](int x, int y, int c) {
         constexpr int kAlpha[] = {0, 128, 255, 255};
         return c < 3 ? looked_up(x, y, c) : kAlpha[steps(2)(x, y, 0)];
       }));

  const auto narrowed = [](int x, int y, int c) { return narrow(wide(x, y, c)); };
  used("png/grey16.png", encode_png(png(0, 16), wide), "PNG 16-bit grey", expect(1, narrowed));
  used("png/grey_alpha16.png", encode_png(png(4, 16), wide), "PNG 16-bit grey + alpha",
       expect_grey_alpha(narrowed, [&](int x, int y, int) { return narrowed(x, y, 1); }));
  used("png/rgb16.png", encode_png(png(2, 16), wide), "PNG 16-bit RGB", expect(3, narrowed));
  used("png/rgba16.png", encode_png(png(6, 16), wide), "PNG 16-bit RGB + alpha", expect(4, narrowed));

  PngSpec keyed = png(0, 16);  // One transparent grey, told apart in all 16 bits.
  keyed.transparency = "\x0a\xab"s;
  const auto near_key = [](int x, int, int) { return 0x0aab + x % 2; };
  used("png/grey16_transparent_colour.png", encode_png(keyed, near_key), "PNG 16-bit grey + alpha",
       expect_grey_alpha([&](int x, int y, int c) { return narrow(near_key(x, y, c)); },
                         [](int x, int, int) { return x % 2 ? 255 : 0; }));

  PngSpec interlaced = png(2, 8);
  interlaced.interlaced = true;
  used("png/interlaced.png", encode_png(interlaced, smooth), "PNG RGB", expect(3, smooth));
  interlaced.bits = 16;
  used("png/interlaced16.png", encode_png(interlaced, wide), "PNG 16-bit RGB", expect(3, narrowed));

  PngSpec animated = png(2, 8);
  animated.before_pixels = png_chunk("acTL", "\0\0\0\x02\0\0\0\0"s);
  used("png/animated.apng", encode_png(animated, smooth), "PNG RGB, animated", expect(3, smooth));
  PngSpec profiled = png(2, 8);
  profiled.before_pixels =
      png_chunk("gAMA", "\0\x01\x86\xa0"s) + png_chunk("iCCP", "broken") + png_chunk("tEXt", "k\0v"s);
  used("png/gamma_and_broken_profile.png", encode_png(profiled, smooth), "PNG RGB", expect(3, smooth));
  PngSpec turned = png(2, 8);
  turned.before_pixels = png_chunk("eXIf", exif_block(3, true));
  used("png/turned.png", encode_png(turned, smooth), "PNG RGB, turned",
       expect(3, [](int x, int y, int c) { return smooth(kWidth - 1 - x, kHeight - 1 - y, c); }));
  used("png/more_behind_the_end.png", encode_png(png(2, 8), smooth) + "trailing", "PNG RGB", expect(3, smooth));
}

void add_jpeg(std::vector<DirtyFile>& files) {
  const auto used = [&](const std::string& name, const std::string& contents, const std::string& says, Image expected) {
    files.push_back({name, contents, Fate::used, says, std::move(expected), kLossy});
  };
  used("jpeg/rgb.jpg", encode_jpeg(jpeg(3), smooth), "JPEG RGB", expect(3, smooth));
  used("jpeg/UPPER.JPEG", encode_jpeg(jpeg(3), smooth), "JPEG RGB", expect(3, smooth));
  used("jpeg/grey.jpg", encode_jpeg(jpeg(1), grey), "JPEG grey", expect(1, grey));
  JpegSpec progressive = jpeg(3), arithmetic = jpeg(3);
  progressive.progressive = true;
  used("jpeg/progressive.jpg", encode_jpeg(progressive, smooth), "JPEG RGB", expect(3, smooth));
  arithmetic.arithmetic = true;
  used("jpeg/arithmetic.jpg", encode_jpeg(arithmetic, smooth), "JPEG RGB", expect(3, smooth));
  used(
      "jpeg/garbage_before_the_end.jpg",
      [] {
        std::string file = encode_jpeg(jpeg(3), smooth);
        return file.insert(file.size() - 2, 5, '\0');
      }(),
      "JPEG RGB", expect(3, smooth));

  // What is stored with an Adobe marker are complements: R = C * K / 255. Without one the inks themselves.
  const auto product = [](int a, int k) { return (a * k + 127) / 255; };
  JpegSpec cmyk = jpeg(4);
  used("jpeg/cmyk_adobe.jpg", encode_jpeg(cmyk, smooth), "JPEG CMYK",
       expect(3, [&](int x, int y, int c) { return product(smooth(x, y, c), smooth(x, y, 3)); }));
  cmyk.ycck = true;
  used("jpeg/ycck_adobe.jpg", encode_jpeg(cmyk, smooth), "JPEG CMYK",
       expect(3, [&](int x, int y, int c) { return product(smooth(x, y, c), smooth(x, y, 3)); }));
  cmyk.ycck = cmyk.adobe = false;
  used("jpeg/cmyk_plain.jpg", encode_jpeg(cmyk, smooth), "JPEG CMYK",
       expect(3, [&](int x, int y, int c) { return product(255 - smooth(x, y, c), 255 - smooth(x, y, 3)); }));

  for (int orientation = 1; orientation <= 8; ++orientation) {
    JpegSpec turned = jpeg(3);
    turned.orientation = orientation;
    // EXIF's definition: where the stored row 0 and column 0 are in the shown image.
    const bool swap = orientation >= 5;
    const auto shown = [&](int x, int y, int c) {
      const int right = kWidth - 1, bottom = kHeight - 1;
      switch (orientation) {
        case 1:
          return smooth(x, y, c);  // top, left
        case 2:
          return smooth(right - x, y, c);  // top, right
        case 3:
          return smooth(right - x, bottom - y, c);  // bottom, right
        case 4:
          return smooth(x, bottom - y, c);  // bottom, left
        case 5:
          return smooth(y, x, c);  // left, top
        case 6:
          return smooth(y, bottom - x, c);  // right, top
        case 7:
          return smooth(right - y, bottom - x, c);  // right, bottom
        default:
          return smooth(right - y, x, c);  // left, bottom
      }
    };
    Image expected = swap ? picture(kHeight, kWidth, 3, shown) : picture(kWidth, kHeight, 3, shown);
    used("jpeg/exif" + std::to_string(orientation) + ".jpg", encode_jpeg(turned, smooth),
         orientation == 1 ? "JPEG RGB" : "JPEG RGB, turned", std::move(expected));
  }
}

void add_webp(std::vector<DirtyFile>& files) {
  const Image rgb = expect(3, smooth), rgba = expect(4, smooth);
  files.push_back({"webp/lossless.webp", encode_webp(rgb, true), Fate::used, "WebP RGB", rgb, 0});
  files.push_back({"webp/lossless_alpha.webp", encode_webp(rgba, true), Fate::used, "WebP RGB + alpha", rgba, 0});
  files.push_back({"webp/lossy.webp", encode_webp(rgb, false), Fate::used, "WebP RGB", rgb, kLossy});
  files.push_back({"webp/lossy_alpha.webp", encode_webp(rgba, false), Fate::used, "WebP RGB + alpha", rgba, kLossy});
  const Image second = expect(4, [](int x, int y, int c) { return 255 - smooth(x, y, c); });
  files.push_back({"webp/animated.webp", encode_webp_animation({rgba, second, rgba}), Fate::used,
                   "WebP RGB + alpha, animated", rgba, 0});
}

std::string replaced(std::string text, std::size_t at, const std::string& by) {
  return text.replace(at, by.size(), by);
}

void add_bad(std::vector<DirtyFile>& files) {
  const auto bad = [&](const std::string& name, const std::string& contents, const std::string& says) {
    files.push_back({name, contents, Fate::bad, says, {}, 0});
  };
  const std::string good_png = encode_png(png(2, 8), smooth), good_jpeg = encode_jpeg(jpeg(3), smooth);
  const std::string lossy = encode_webp(expect(3, smooth), false), lossless = encode_webp(expect(3, smooth), true);
  JpegSpec progressive = jpeg(3);
  progressive.progressive = true;
  const std::string scans = encode_jpeg(progressive, smooth);
  bad("bad/truncated.png", good_png.substr(0, good_png.size() * 2 / 3), "is a truncated PNG");
  bad("bad/truncated_header.png", good_png.substr(0, 20), "is a truncated PNG");
  bad("bad/without_end.png", good_png.substr(0, good_png.size() - 12), "is a truncated PNG");
  bad("bad/truncated.jpg", good_jpeg.substr(0, good_jpeg.size() * 2 / 3), "is a truncated JPEG");
  bad("bad/truncated_header.jpg", good_jpeg.substr(0, 30), "is a truncated JPEG");
  bad("bad/truncated_progressive.jpg", scans.substr(0, scans.size() * 2 / 3), "is a truncated JPEG");
  bad("bad/truncated_lossy.webp", lossy.substr(0, lossy.size() * 2 / 3), "is a truncated WebP");
  bad("bad/truncated_lossless.webp", lossless.substr(0, lossless.size() * 2 / 3), "is a truncated WebP");
  bad("bad/empty.png", "", "is empty");
  bad("bad/text.png", "this is no image\n", "is a text file; PNG, JPEG and WebP are read");
  bad("bad/page.jpg", "<!DOCTYPE html>\n<html><body>404</body></html>", "is an HTML page");
  bad("bad/pointer.png", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "is a Git LFS pointer");
  bad("bad/animation.webp", "GIF89a\x01\0\x01\0"s, "is a GIF image");
  bad("bad/zeros.jpeg", std::string(300, '\0'), "is not an image that is known");
  bad("bad/zero_width.png", repair_checksums(replaced(good_png, 16, "\0\0\0\0"s)),
      "has no pixels: its header says 0 x 20");
  // SOF0's height and width; its marker is found, not assumed.
  const std::size_t frame = good_jpeg.find("\xff\xc0"s);
  bad("bad/zero_height.jpg", replaced(good_jpeg, frame + 5, "\0\0"s), "has no pixels");
  bad("bad/twelve_bits.jpg", replaced(good_jpeg, frame + 4, "\x0c"), "is an unsupported JPEG");
  bad("bad/lossless_process.jpg", replaced(good_jpeg, frame + 1, "\xc3"), "is an unsupported JPEG");
  bad("bad/bomb.png", repair_checksums(replaced(good_png, 16, "\0\x07\0\0\0\x07\0\0"s)), "is too large");
  bad("bad/bomb_of_the_largest_size.png", repair_checksums(replaced(good_png, 16, "\0\0\x40\0\0\0\x40\0"s)),
      "is a truncated PNG");
  bad("bad/bomb.jpg", replaced(good_jpeg, frame + 5, "\xff\xdc\xff\xdc"), "is too large");
  bad("bad/checksum.png", replaced(good_png, 60, "\x55"), "is a damaged PNG");
  bad("bad/header_checksum.png", replaced(good_png, 29, "\x55\x55"), "is a damaged PNG");
  bad("bad/frame.webp", replaced(lossy, 23, "\0\0\0"s), "is a damaged WebP");  // The start code of VP8.
  bad("bad/no_palette.png", encode_png(png(3, 8), grey), "is a damaged PNG");
  PngSpec transparent = png(4, 8);
  transparent.transparency = "\0\1"s;  // Forbidden beside an alpha channel.
  bad("bad/transparency.png", encode_png(transparent, smooth), "is a damaged PNG: tRNS");
}

std::vector<DirtyFile> make_dirty_files() {
  std::vector<DirtyFile> files;
  add_png(files);
  add_jpeg(files);
  add_webp(files);
  add_bad(files);
  const Image rgb = expect(3, smooth);
  const std::string jpeg_file = encode_jpeg(jpeg(3), smooth);
  files.push_back({"names/really_a_jpeg.png", jpeg_file, Fate::used, "JPEG RGB", rgb, kLossy});
  files.push_back({"names/no_ending", jpeg_file, Fate::used, "JPEG RGB", rgb, kLossy});
  files.push_back({"names/with spaces and 'quotes'.jpg", jpeg_file, Fate::used, "JPEG RGB", rgb, kLossy});
  files.push_back({"names/\xc3\xbc\xe7\x8c\xab\xf0\x9f\x90\x88.png", encode_png(png(6, 8), opaque), Fate::used,
                   "PNG RGB + alpha", expect(4, opaque), 0});
  files.push_back({"names/not_utf8_\xff\xfe.png", encode_png(png(2, 8), smooth), Fate::used, "PNG RGB", rgb, 0});
  files.push_back({"deep/a/b/c/d/e/f/g/h/image.png", encode_png(png(2, 8), smooth), Fate::used, "PNG RGB", rgb, 0});
  files.push_back({"README.md", "# Images\n", Fate::ignored, "a text file", {}, 0});
  files.push_back({"labels.csv", "", Fate::ignored, "an empty file", {}, 0});
  files.push_back({"movie.gif", "GIF89a\x01\0\x01\0"s, Fate::ignored, "a GIF image", {}, 0});
  return files;
}

}  // namespace

const std::vector<DirtyFile>& dirty_files() {
  static const std::vector<DirtyFile> files = make_dirty_files();
  return files;
}

void write_dirty_folder(const fs::path& folder) {
  for (const DirtyFile& file : dirty_files()) {
    fs::create_directories((folder / file.name).parent_path());
    write_file(folder / file.name, file.contents);
  }
  fs::create_directory(folder / "folder.png");
  write_file(folder / ".hidden.png", dirty_files().front().contents);
  fs::create_directory(folder / ".git");
  write_file(folder / ".git/image.png", dirty_files().front().contents);
  fs::create_symlink("png/rgb.png", folder / "link.png");
  fs::create_symlink("nowhere.png", folder / "link_to_nothing.png");
  fs::create_symlink("link_to_itself.jpg", folder / "link_to_itself.jpg");
  fs::create_directory_symlink("..", folder / "png/loop");
  fs::create_directory_symlink("../../..", folder / "deep/a/b/another_loop");
  if (::mkfifo((folder / "pipe.txt").c_str(), 0600) != 0) throw std::runtime_error("mkfifo");
}

}  // namespace difuse::test
