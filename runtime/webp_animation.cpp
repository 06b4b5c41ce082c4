#include "runtime/webp_animation.h"

#include <fmt/format.h>
#include <webp/encode.h>
#include <webp/mux.h>

#include <memory>

#include "ir/error.h"
#include "runtime/atomic_file.h"

namespace difuse::runtime {
namespace {

/// A frame as WebP takes it: four channels.
class Picture {
 public:
  explicit Picture(const Image& image) {
    if (WebPPictureInit(&picture_) == 0) throw Error("libwebp has another version than it was built for");
    picture_.use_argb = 1;
    picture_.width = image.width;
    picture_.height = image.height;
    const auto channels = static_cast<size_t>(image.channels);
    std::vector<std::uint8_t> rgba;
    rgba.reserve(image.pixels.size() / channels * 4);
    for (size_t at = 0; at < image.pixels.size(); at += channels) {
      const size_t step = channels >= 3 ? 1 : 0;
      for (size_t c = 0; c < 3; ++c) rgba.push_back(image.pixels[at + c * step]);
      rgba.push_back(channels == 4 ? image.pixels[at + 3] : 255);
    }
    if (WebPPictureImportRGBA(&picture_, rgba.data(), image.width * 4) == 0) throw std::bad_alloc();
  }
  ~Picture() { WebPPictureFree(&picture_); }
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;

  WebPPicture* get() { return &picture_; }

 private:
  WebPPicture picture_;
};

/// What the encoder made.
class Encoded {
 public:
  Encoded() { WebPDataInit(&data_); }
  ~Encoded() { WebPDataClear(&data_); }
  Encoded(const Encoded&) = delete;
  Encoded& operator=(const Encoded&) = delete;

  WebPData* get() { return &data_; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(data_.bytes, data_.size)); }

 private:
  WebPData data_;
};

void check_frames(const std::filesystem::path& path, std::span<const Image> frames) {
  if (frames.empty()) throw Error(fmt::format("no frames for '{}'", path.string()));
  const Image& first = frames.front();
  for (const Image& frame : frames) {
    const bool whole = frame.width == first.width && frame.height == first.height && frame.width > 0 &&
                       frame.height > 0 && (frame.channels == 1 || frame.channels == 3 || frame.channels == 4) &&
                       frame.pixels.size() == static_cast<size_t>(frame.width) * static_cast<size_t>(frame.height) *
                                                  static_cast<size_t>(frame.channels);
    if (!whole) throw Error(fmt::format("the frames for '{}' are not of one size", path.string()));
  }
  if (first.width > kLargestWebp || first.height > kLargestWebp) {
    throw Error(fmt::format("'{}' would be {} x {} pixels, and a WebP has at most {} on a side", path.string(),
                            first.width, first.height, kLargestWebp),
                "show fewer images", ExitCode::wrong_usage);
  }
}

}  // namespace

void write_webp_animation(const std::filesystem::path& path, std::span<const Image> frames, int frame_ms, int last_ms) {
  check_frames(path, frames);
  WebPAnimEncoderOptions options;
  WebPConfig config;
  if (WebPAnimEncoderOptionsInit(&options) == 0 || WebPConfigInit(&config) == 0) {
    throw Error("libwebp has another version than it was built for");
  }
  config.lossless = 1;
  config.exact = 1;
  const std::unique_ptr<WebPAnimEncoder, decltype(&WebPAnimEncoderDelete)> encoder(
      WebPAnimEncoderNew(frames.front().width, frames.front().height, &options), &WebPAnimEncoderDelete);
  if (!encoder) throw std::bad_alloc();
  const auto require = [&](int done) {
    if (done != 0) return;
    throw Error(fmt::format("cannot encode '{}': {}", path.string(), WebPAnimEncoderGetError(encoder.get())));
  };
  int time = 0;
  for (const Image& frame : frames) {
    Picture picture(frame);
    require(WebPAnimEncoderAdd(encoder.get(), picture.get(), time, &config));
    time += frame_ms;
  }
  require(WebPAnimEncoderAdd(encoder.get(), nullptr, time - frame_ms + last_ms, nullptr));
  Encoded encoded;
  require(WebPAnimEncoderAssemble(encoder.get(), encoded.get()));
  AtomicFile file(path, encoded.bytes().size());
  file.write(encoded.bytes());
  file.commit();
}

}  // namespace difuse::runtime
