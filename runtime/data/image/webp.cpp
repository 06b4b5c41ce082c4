#include <fmt/format.h>
#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <memory>
#include <new>

#include "runtime/data/image/formats.h"

namespace difuse::runtime {

namespace {

struct DemuxDeleter {
  void operator()(WebPDemuxer* demux) const { WebPDemuxDelete(demux); }
};

/// The first frame; a still image is its only one.
struct Frame {
  Frame() = default;
  ~Frame() { WebPDemuxReleaseIterator(&it); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  WebPIterator it{};
};

struct Chunk {
  Chunk() = default;
  ~Chunk() { WebPDemuxReleaseChunkIterator(&it); }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  WebPChunkIterator it{};
};

Fault fault_of(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OK:
      return std::nullopt;
    case VP8_STATUS_OUT_OF_MEMORY:
      throw std::bad_alloc();
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return "is a truncated WebP";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "is an unsupported WebP: it uses a feature that the decoder lacks";
    default:
      return "is a damaged WebP";
  }
}

}  // namespace

Fault decode_webp(std::span<const std::byte> file, const DecodeLimits& limits, Stored& stored) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(file.data());
  // The RIFF size counts what follows it; an odd one is padded.
  std::uint64_t claimed = 0;
  for (int i = 3; i >= 0; --i) claimed = claimed << 8 | bytes[4 + i];
  if (claimed + 8 > file.size()) return "is a truncated WebP";
  WebPBitstreamFeatures features;
  if (Fault fault = fault_of(WebPGetFeatures(bytes, file.size(), &features))) return fault;
  if (Fault fault = check_size(features.width, features.height, limits)) return fault;

  const WebPData data{bytes, file.size()};
  const std::unique_ptr<WebPDemuxer, DemuxDeleter> demux(WebPDemux(&data));
  Frame frame;
  if (!demux || WebPDemuxGetFrame(demux.get(), 1, &frame.it) == 0) return "is a damaged WebP: it holds no whole frame";
  const WebPIterator& it = frame.it;
  const int width = features.width, height = features.height;
  const bool covers = it.x_offset == 0 && it.y_offset == 0 && it.width == width && it.height == height;
  if (it.x_offset < 0 || it.y_offset < 0 || it.width < 1 || it.height < 1 || it.x_offset > width - it.width ||
      it.y_offset > height - it.height) {
    return "is a damaged WebP: its frame lies outside its canvas";
  }

  const bool alpha = features.has_alpha != 0 || it.has_alpha != 0 || !covers;
  stored.kind.colour = alpha ? Colour::rgba : Colour::rgb;
  stored.kind.animated = WebPDemuxGetI(demux.get(), WEBP_FF_FRAME_COUNT) > 1;
  Image& image = stored.image;
  image = {width, height, alpha ? 4 : 3, {}};
  const std::size_t stride = static_cast<std::size_t>(width) * image.channels;
  image.pixels.assign(stride * height, 0);

  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) return "cannot be decoded: libwebp has another version than its headers";
  const std::size_t begin = it.y_offset * stride + static_cast<std::size_t>(it.x_offset) * image.channels;
  config.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = image.pixels.data() + begin;
  config.output.u.RGBA.stride = static_cast<int>(stride);
  config.output.u.RGBA.size = image.pixels.size() - begin;
  const VP8StatusCode status = WebPDecode(it.fragment.bytes, it.fragment.size, &config);
  WebPFreeDecBuffer(&config.output);
  if (Fault fault = fault_of(status)) return fault;

  Chunk exif;
  if (WebPDemuxGetChunk(demux.get(), "EXIF", 1, &exif.it) != 0) {
    stored.orientation = exif_orientation(std::as_bytes(std::span(exif.it.chunk.bytes, exif.it.chunk.size)));
  }
  return std::nullopt;
}

}  // namespace difuse::runtime
