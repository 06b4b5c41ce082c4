// Zip archives and pickles for tests, well-formed or not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace difuse::test {

struct ZipEntry {
  std::string name, data;
  bool deflate = false;
  uint64_t claimed_size = 0;  ///< What the directory says, when it is not the truth; 0: the truth.
};

std::string zip_archive(const std::vector<ZipEntry>& entries, bool zip64 = false);

/// The state_dict() of one f32 tensor [2, 3] called `name` in storage "0", as torch.save writes it (protocol 2).
std::string tensor_pickle(std::string_view name);
/// A PyTorch file of that tensor with the values 0 to 5.
std::string torch_file(std::string_view name, bool deflate = false);

}  // namespace difuse::test
