#include "tests/models/zip_writer.h"

#include <zlib.h>

#include <cstring>
#include <initializer_list>

namespace difuse::test {
namespace {

template <class Number>
void put(std::string& to, Number value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  to.append(bytes, sizeof value);
}

std::string deflated(const std::string& data) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, data.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string text(std::string_view value) {
  std::string result = "X";
  put(result, static_cast<uint32_t>(value.size()));
  return result.append(value);
}

}  // namespace

std::string zip_archive(const std::vector<ZipEntry>& entries, bool zip64) {
  std::string file, directory;
  for (const ZipEntry& entry : entries) {
    const std::string packed = entry.deflate ? deflated(entry.data) : entry.data;
    const auto crc =
        static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(entry.data.data()), entry.data.size()));
    const uint64_t size = entry.claimed_size > 0 ? entry.claimed_size : entry.data.size();
    const bool large = zip64 || size >= 0xffffffff;
    const auto method = static_cast<uint16_t>(entry.deflate ? 8 : 0);
    const auto name = static_cast<uint16_t>(entry.name.size());
    const auto offset = static_cast<uint32_t>(file.size());
    const auto fields = [&](std::string& to) {  // From the version to the sizes.
      put(to, uint16_t{45}), put(to, uint16_t{0}), put(to, method), put(to, uint32_t{0}), put(to, crc);
      put(to, large ? 0xffffffffu : static_cast<uint32_t>(packed.size()));
      put(to, large ? 0xffffffffu : static_cast<uint32_t>(size));
    };
    file += "PK\x03\x04";
    fields(file);
    put(file, name), put(file, uint16_t{0});
    file += entry.name + packed;
    directory += "PK\x01\x02";
    put(directory, uint16_t{45});
    fields(directory);
    put(directory, name), put(directory, static_cast<uint16_t>(large ? 20 : 0)), put(directory, uint16_t{0});
    put(directory, uint32_t{0}), put(directory, uint32_t{0}), put(directory, offset);
    directory += entry.name;
    if (large) {
      put(directory, uint16_t{1}), put(directory, uint16_t{16});
      put(directory, size), put(directory, uint64_t{packed.size()});
    }
  }
  const uint64_t at = file.size(), bytes = directory.size(), count = entries.size();
  file += directory;
  if (zip64) {
    const uint64_t end = file.size();
    file += "PK\x06\x06";
    put(file, uint64_t{44}), put(file, uint16_t{45}), put(file, uint16_t{45}), put(file, uint64_t{0});
    put(file, count), put(file, count), put(file, bytes), put(file, at);
    file += "PK\x06\x07";
    put(file, uint32_t{0}), put(file, end), put(file, uint32_t{1});
  }
  file += "PK\x05\x06";
  put(file, uint32_t{0});
  for (int i = 0; i < 2; ++i) put(file, static_cast<uint16_t>(zip64 ? 0xffff : count));
  put(file, static_cast<uint32_t>(zip64 ? 0xffffffff : bytes)),
      put(file, static_cast<uint32_t>(zip64 ? 0xffffffff : at));
  put(file, uint16_t{0});
  return file;
}

std::string tensor_pickle(std::string_view name) {
  using namespace std::string_literals;
  return "\x80\x02"
         "ccollections\nOrderedDict\nq\x00)Rq\x01"s +
         text(name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" + text("0") +
         text("cpu") + "K\x06tQK\x00K\x02K\x03\x86K\x03K\x01\x86\x89h\x00)RtRs."s;
}

std::string torch_file(std::string_view name, bool deflate) {
  std::string values;
  for (float value : {0.f, 1.f, 2.f, 3.f, 4.f, 5.f}) put(values, value);
  return zip_archive({{"archive/data.pkl", tensor_pickle(name), deflate, 0}, {"archive/data/0", values, deflate, 0}});
}

}  // namespace difuse::test
