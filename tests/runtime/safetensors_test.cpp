#include "runtime/safetensors.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <tuple>

#include "tests/support/file_size_limit.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using namespace difuse::test;
using namespace std::string_literals;

std::string with_length(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

/// The Error of opening a file with these bytes.
std::string error_for(const std::string& contents) {
  const TempFolder folder;
  write_file(folder / "x.safetensors", contents);
  std::string error = error_of([&] { SafetensorsReader reader(folder / "x.safetensors"); });
  if (!error.empty()) {
    EXPECT_CONTAINS(error, "x.safetensors");
  }
  return error;
}

/// The Error of a file with one header entry and `bytes` bytes of data.
std::string error_for_header(const std::string& header, std::size_t bytes) {
  return error_for(with_length(header, std::string(bytes, 'd')));
}

// Two floats (1.5, -2), one bf16 pair (1, 3) and three bytes, written by hand.
const std::string kHeader =
    R"({"__metadata__":{"config":"{\"a\":1}"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
    R"("h":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},"s":{"dtype":"U8","shape":[3],"data_offsets":[12,15]}})";
const std::string kData = "\x00\x00\xc0\x3f\x00\x00\x00\xc0\x80\x3f\x40\x40\x01\x02\x03"s;

TEST(SafetensorsReader, ReadsBytesWrittenByHand) {
  const TempFolder folder;
  write_file(folder / "a.safetensors", with_length(kHeader, kData));
  const SafetensorsReader reader(folder / "a.safetensors");
  EXPECT_EQ(reader.metadata(), (TensorMetadata{{"config", R"({"a":1})"}}));
  ASSERT_EQ(reader.tensors().size(), 3u);
  EXPECT_EQ(reader.tensors()[0].name, "w");
  EXPECT_EQ(reader.tensors()[1].name, "h");
  EXPECT_EQ(reader.tensors()[2].name, "s");
  EXPECT_EQ(reader.find("h")->dtype, TensorDType::bf16);
  EXPECT_EQ(reader.find("w")->shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_TRUE(reader.find("w")->matches({ir::DType::f32, {2, 1}}));
  EXPECT_FALSE(reader.find("w")->matches({ir::DType::f32, {1, 2}}));
  EXPECT_FALSE(reader.find("w")->matches({ir::DType::i32, {2, 1}}));
  EXPECT_EQ(reader.find("other"), nullptr);
  EXPECT_CONTAINS(error_of([&] { reader.bytes("other"); }), "has no tensor 'other'");
  std::array<float, 2> w{};
  ASSERT_EQ(reader.bytes("w").size(), sizeof(w));
  std::memcpy(w.data(), reader.bytes("w").data(), sizeof(w));
  EXPECT_EQ(w, (std::array<float, 2>{1.5f, -2.0f}));
  EXPECT_EQ(reader.bytes("s").back(), std::byte{3});
}

TEST(SafetensorsReader, AcceptsScalarsEmptyTensorsAnyOrderAndPaddedHeaders) {
  const TempFolder folder;
  write_file(folder / "a", with_length(R"({"b":{"dtype":"I64","shape":[],"data_offsets":[1,9]},)"
                                       R"("n":{"dtype":"F64","shape":[3,0],"data_offsets":[1,1]},)"
                                       R"("a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}   )",
                                       "123456789"));
  const SafetensorsReader reader(folder / "a");
  ASSERT_EQ(reader.tensors().size(), 3u);
  EXPECT_EQ(reader.tensors()[0].name, "a");
  EXPECT_EQ(reader.find("n")->bytes, 0u);
  EXPECT_EQ(std::memcmp(reader.bytes("b").data(), "23456789", 8), 0);
  write_file(folder / "none", with_length("{}", ""));
  EXPECT_TRUE(SafetensorsReader(folder / "none").tensors().empty());
}

TEST(SafetensorsReader, EveryTruncationIsAnError) {
  const std::string file = with_length(kHeader, kData);
  EXPECT_EQ(error_for(file), "");
  EXPECT_CONTAINS(error_for(""), "is empty");
  for (std::size_t size = 1; size < file.size(); ++size) {
    const std::string error = error_for(file.substr(0, size));
    EXPECT_CONTAINS(error, "is truncated") << "at " << size;
    EXPECT_CONTAINS(error, std::to_string(size) + " found") << "at " << size;
  }
  EXPECT_CONTAINS(error_for(file.substr(0, file.size() - 2)), std::to_string(file.size()) + " bytes expected");
  EXPECT_CONTAINS(error_for(file + "!"), "last 1 bytes belong to no tensor");
}

TEST(SafetensorsReader, EveryFlippedHeaderBitIsReadOrRefusedButNeverCrashes) {
  const TempFolder folder;
  const std::string file = with_length(kHeader, kData);
  int refused = 0;
  for (std::size_t i = 0; i < 8 + kHeader.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string broken = file;
      broken[i] = static_cast<char>(broken[i] ^ (1 << bit));
      write_file(folder / "x", broken);
      // A flip inside a name or a text gives another valid file; nothing but an Error may be thrown.
      refused += !error_of([&] { SafetensorsReader reader(folder / "x"); }).empty();
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(SafetensorsReader, NamesWhatTheFileIs) {
  const TempFolder folder;
  EXPECT_CONTAINS(error_of([&] { SafetensorsReader reader(folder / "none"); }), "none' does not exist");
  EXPECT_CONTAINS(error_of([&] { SafetensorsReader reader(folder.path()); }), "is a folder");
  EXPECT_CONTAINS(error_of([&] { SafetensorsReader reader("/dev/zero"); }), "is a device");
  const std::string filler(200, ' ');
  EXPECT_CONTAINS(error_for("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"), "Git-LFS pointer");
  EXPECT_CONTAINS(error_for("<!DOCTYPE html>\n<html>" + filler), "HTML page");
  EXPECT_CONTAINS(error_for("\n<html lang=en>" + filler), "HTML page");
  EXPECT_CONTAINS(error_for("PK\x03\x04\x00\x00\x08\x08"s + filler), "zip archive, most likely a PyTorch .pt");
  EXPECT_CONTAINS(error_for("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9"s + filler), "Python pickle");
  EXPECT_CONTAINS(error_for("\x80\x04."s), "Python pickle");
  EXPECT_CONTAINS(error_for(std::string(200, '\x7f')), "announce a header of 9187201950435737471 bytes");
  EXPECT_CONTAINS(error_for(std::string(200, '\0')), "header is not a JSON object");
  EXPECT_CONTAINS(error_for_header("[1, 2]", 0), "header is not a JSON object");
}

TEST(SafetensorsReader, RefusesBrokenHeaders) {
  EXPECT_CONTAINS(error_for_header(R"({"a": )", 0), "header is not JSON (error at its byte");
  EXPECT_CONTAINS(error_for_header(R"({"a": 1e999})", 0), "number out of range");
  EXPECT_CONTAINS(error_for_header(R"({"a": 1})", 0), "tensor 'a' is not described by an object");
  EXPECT_CONTAINS(error_for_header(R"({"a": {"b": {"c": {}}}})", 0), "nested too deeply");
  EXPECT_CONTAINS(error_for_header("{\"a\":" + std::string(100'000, '['), 0), "nested too deeply");
  EXPECT_CONTAINS(error_for_header(R"({"__metadata__": []})", 0), "'__metadata__' is not an object");
  EXPECT_CONTAINS(error_for_header(R"({"__metadata__": {"k": 1}})", 0), "metadata 'k' is not a string");
  EXPECT_CONTAINS(error_for_header(R"({"__metadata__": {"k": "1", "k": "2"}})", 0), "name 'k' comes twice");
}

TEST(SafetensorsReader, RefusesBrokenTensors) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return error_for_header(
        R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", 8);
  };
  const std::string f32 = R"("F32")";
  EXPECT_EQ(one(f32, "[2]", "[0,8]"), "");
  EXPECT_CONTAINS(one(R"("F31")", "[2]", "[0,8]"), "unknown dtype 'F31'");
  EXPECT_CONTAINS(one("1", "[2]", "[0,8]"), "'dtype' that is not a string");
  EXPECT_CONTAINS(one(f32, "[-2]", "[0,8]"), "'shape' that is not a list of sizes");
  EXPECT_CONTAINS(one(f32, "[2.0]", "[0,8]"), "'shape' that is not a list of sizes");
  EXPECT_CONTAINS(one(f32, "2", "[0,8]"), "'shape' that is not a list of sizes");
  EXPECT_CONTAINS(one(f32, "[18446744073709551615]", "[0,8]"), "'shape' that is not a list of sizes");
  EXPECT_CONTAINS(one(f32, "[4294967296,4294967296]", "[0,8]"), "impossible shape");
  EXPECT_CONTAINS(one(f32, "[3]", "[0,8]"), "spans 8 bytes, but F32 [3] takes 12");
  EXPECT_CONTAINS(one(f32, "[2]", "[0]"), "not two byte positions");
  EXPECT_CONTAINS(one(f32, "[2]", "[-1,7]"), "not two byte positions");
  EXPECT_CONTAINS(one(f32, "[2]", "[8,0]"), "ends (byte 0) before it begins (byte 8)");
  EXPECT_CONTAINS(one(f32, "[2]", "[8,16]"), "8 bytes before tensor 'a' belong to no tensor");
  EXPECT_CONTAINS(one(f32, "[1]", "[0,4]"), "last 4 bytes belong to no tensor");
  EXPECT_CONTAINS(one(f32, "[4]", "[0,16]"), "is truncated");
  EXPECT_CONTAINS(error_for_header(R"({"a":{"dtype":"U8","shape":[8]}})", 8), "has no 'data_offsets'");
  const std::string u8 = R"({"dtype":"U8","shape":[6],"data_offsets":)";
  EXPECT_CONTAINS(error_for_header(R"({"a":)" + u8 + R"([0,6]},"b":)" + u8 + "[2,8]}}", 8),
                  "overlaps the tensor before");
  EXPECT_CONTAINS(error_for_header(R"({"a":)" + u8 + R"([0,6]},"a":)" + u8 + "[6,12]}}", 12), "name 'a' comes twice");
}

TEST(WriteSafetensors, WritesTheBytesOfTheFormat) {
  const TempFolder folder;
  const std::array<float, 2> w = {1.5f, -2.0f};
  const std::array<std::uint8_t, 3> s = {1, 2, 3};
  const std::array<TensorEntry, 2> entries = {
      TensorEntry{"w", TensorDType::f32, {2, 1}, std::as_bytes(std::span(w))},
      TensorEntry{"a", TensorDType::u8, {3}, std::as_bytes(std::span(s))},
  };
  write_safetensors(folder / "x", {{"k", "v"}}, entries);
  std::string header = R"({"__metadata__":{"k":"v"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                       R"("a":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  while (header.size() % 8 != 0) header += ' ';
  EXPECT_EQ(read_file(folder / "x"), with_length(header, "\x00\x00\xc0\x3f\x00\x00\x00\xc0\x01\x02\x03"s));
  EXPECT_EQ(SafetensorsReader(folder / "x").tensors()[1].name, "a");

  write_safetensors(folder / "scalar", {},
                    std::array{TensorEntry{"s", TensorDType::f32, {}, std::as_bytes(std::span(w)).first(4)}});
  EXPECT_TRUE(SafetensorsReader(folder / "scalar").find("s")->shape.empty());
}

TEST(WriteSafetensors, AReaderKeepsTheFileItOpened) {
  const TempFolder folder;
  const auto write = [&](std::uint8_t value) {
    write_safetensors(folder / "x", {},
                      std::array{TensorEntry{"v", TensorDType::u8, {1}, std::as_bytes(std::span(&value, 1))}});
  };
  write(1);
  const SafetensorsReader old(folder / "x");
  write(2);
  EXPECT_EQ(old.bytes("v")[0], std::byte{1});
  EXPECT_EQ(SafetensorsReader(folder / "x").bytes("v")[0], std::byte{2});
}

TEST(WriteSafetensors, RefusesWhatItCouldNotRead) {
  const TempFolder folder;
  const std::array<std::byte, 4> bytes{};
  const TensorEntry good{"w", TensorDType::f32, {1}, bytes};
  const auto error = [&](std::vector<TensorEntry> entries) {
    return error_of([&] { write_safetensors(folder / "x", {}, entries); });
  };
  EXPECT_CONTAINS(error({good, good}), "'w' to");
  EXPECT_CONTAINS(error({good, good}), "comes twice");
  EXPECT_CONTAINS(error({{"w", TensorDType::f32, {2}, bytes}}), "4 bytes, which contradicts F32 [2]");
  EXPECT_CONTAINS(error({{"__metadata__", TensorDType::f32, {1}, bytes}}), "reserved");
  EXPECT_CONTAINS(error({{"\xff", TensorDType::f32, {1}, bytes}}), "not UTF-8");
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(WriteSafetensors, FullDiskKeepsTheOldFile) {
  const TempFolder folder;
  write_file(folder / "x", "old");
  const std::vector<std::byte> bytes(10'000);
  std::string error;
  {
    const FileSizeLimit limit(4096);
    error = error_of([&] {
      write_safetensors(folder / "x", {}, std::array{TensorEntry{"w", TensorDType::u8, {10'000}, bytes}});
    });
  }
  EXPECT_CONTAINS(error, "x': the file would be larger");
  EXPECT_CONTAINS(error, "unchanged");
  EXPECT_EQ(read_file(folder / "x"), "old");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(TensorDType, NamesAndSizesAreTheFormatsOwn) {
  using enum TensorDType;
  const std::vector<std::tuple<TensorDType, const char*, std::size_t>> rows = {
      {boolean, "BOOL", 1}, {u8, "U8", 1},   {i8, "I8", 1},   {f8_e5m2, "F8_E5M2", 1}, {f8_e4m3, "F8_E4M3", 1},
      {u16, "U16", 2},      {i16, "I16", 2}, {f16, "F16", 2}, {bf16, "BF16", 2},       {u32, "U32", 4},
      {i32, "I32", 4},      {f32, "F32", 4}, {u64, "U64", 8}, {i64, "I64", 8},         {f64, "F64", 8}};
  for (const auto& [dtype, name, bytes] : rows) {
    EXPECT_EQ(tensor_dtype_name(dtype), name);
    EXPECT_EQ(tensor_dtype_bytes(dtype), bytes);
  }
  EXPECT_EQ(to_ir_dtype(bf16), ir::DType::bf16);
  EXPECT_EQ(to_tensor_dtype(ir::DType::u32), u32);
  EXPECT_EQ(to_ir_dtype(i64), std::nullopt);
}

}  // namespace
}  // namespace difuse::runtime
