#include "runtime/webp_animation.h"

#include <gtest/gtest.h>
#include <webp/demux.h>

#include <memory>

#include "ir/error.h"
#include "runtime/mapped_file.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

Image picture(int channels, int shade) {
  Image image{5, 3, channels, {}};
  for (int i = 0; i < 15 * channels; ++i) image.pixels.push_back(static_cast<std::uint8_t>(shade + 7 * i));
  return image;
}

TEST(WebpAnimation, ReadsBackFrameByFrame) {
  const test::TempFolder folder;
  for (const int channels : {1, 3, 4}) {
    const std::vector<Image> frames = {picture(channels, 0), picture(channels, 90), picture(channels, 200)};
    write_webp_animation(folder / "a.webp", frames, 40, 500);
    const MappedFile file(folder / "a.webp");
    const WebPData data{reinterpret_cast<const std::uint8_t*>(file.bytes().data()), file.bytes().size()};
    const std::unique_ptr<WebPAnimDecoder, decltype(&WebPAnimDecoderDelete)> decoder(WebPAnimDecoderNew(&data, nullptr),
                                                                                     &WebPAnimDecoderDelete);
    ASSERT_TRUE(decoder);
    for (size_t i = 0; i < frames.size(); ++i) {
      std::uint8_t* rgba = nullptr;
      int end = 0;
      ASSERT_NE(WebPAnimDecoderGetNext(decoder.get(), &rgba, &end), 0);
      EXPECT_EQ(end, i < 2 ? 40 * (static_cast<int>(i) + 1) : 580);
      for (size_t pixel = 0; pixel < 15; ++pixel) {
        const auto own = [&](size_t c) { return frames[i].pixels[pixel * static_cast<size_t>(channels) + c]; };
        if (channels == 4 && own(3) == 0) continue;  // What nobody sees.
        for (size_t c = 0; c < 3; ++c) ASSERT_EQ(rgba[4 * pixel + c], own(channels == 1 ? 0 : c)) << i << " " << pixel;
      }
    }
    EXPECT_EQ(WebPAnimDecoderHasMoreFrames(decoder.get()), 0);
  }
}

TEST(WebpAnimation, RefusesWhatIsNoAnimation) {
  const test::TempFolder folder;
  const auto refusal = [&](const std::vector<Image>& frames) {
    return test::error_of([&] { write_webp_animation(folder / "a.webp", frames, 40, 40); });
  };
  EXPECT_CONTAINS(refusal({}), "no frames");
  EXPECT_CONTAINS(refusal({picture(1, 0), Image{3, 5, 1, std::vector<std::uint8_t>(15)}}), "not of one size");
  EXPECT_CONTAINS(refusal({Image{20000, 1, 1, std::vector<std::uint8_t>(20000)}}), "at most 16383");
  EXPECT_FALSE(std::filesystem::exists(folder / "a.webp"));
}

}  // namespace
}  // namespace difuse::runtime
