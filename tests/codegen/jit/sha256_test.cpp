#include "codegen/jit/sha256.h"

#include <gtest/gtest.h>

namespace difuse::codegen {
namespace {

std::string hash(std::string_view text) { return Sha256().add(text).hex(); }

// The examples of FIPS 180-4 and NIST's CAVP vectors.
TEST(Sha256, GivesTheKnownAnswers) {
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheBytesArrive) {
  for (size_t size : {55, 56, 57, 63, 64, 65, 119, 120, 128, 200}) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + i * 7 % 26);
    for (size_t cut : {size_t{1}, size_t{31}, size - 1}) {
      Sha256 pieces;
      for (size_t i = 0; i < size; i += cut) pieces.add(std::string_view(text).substr(i, cut));
      EXPECT_EQ(pieces.hex(), hash(text)) << size << " in pieces of " << cut;
    }
  }
}

TEST(Sha256, FieldsDoNotRunTogether) {
  EXPECT_NE(Sha256().add_field("ab").add_field("c").hex(), Sha256().add_field("a").add_field("bc").hex());
  EXPECT_NE(Sha256().add_field("").add_field("a").hex(), Sha256().add_field("a").add_field("").hex());
}

}  // namespace
}  // namespace difuse::codegen
