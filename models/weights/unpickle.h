// A pickle as data. A pickle is a program for a small machine, and its REDUCE may call any Python function; this reader
// knows the few things that a file of tensors is made of, refuses the rest, and never calls anything.
//
// Source: Python's Lib/pickletools.py, which documents each opcode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/safetensors.h"

namespace difuse::models {

/// What the persistent id of a tensor's storage says.
struct PickledStorage {
  runtime::TensorDType dtype = runtime::TensorDType::f32;
  std::string key;  ///< The file's name below data/ in the archive.
  int64_t elements = 0;
};

/// A view of a storage, in elements. Nothing of it is checked against the storage's bytes.
struct PickledTensor {
  PickledStorage storage;
  int64_t offset = 0;
  std::vector<int64_t> shape, strides;
};

struct PickledValue {
  enum class Kind : uint8_t { none, boolean, integer, real, text, sequence, dictionary, global, storage, tensor };
  Kind kind = Kind::none;
  int64_t integer = 0;  ///< boolean and integer.
  double real = 0;
  std::string text;                                            ///< text and global ("module.name").
  std::vector<PickledValue*> items;                            ///< sequence: a tuple, list or set.
  std::vector<std::pair<PickledValue*, PickledValue*>> pairs;  ///< dictionary, in the order of the file.
  PickledStorage storage;
  PickledTensor tensor;
};

/// The values of one pickle, owned together: a pickle may refer to a value from several places, or from within itself.
class Pickle {
 public:
  /// `path` is for messages. Errors: a global that is not one of collections.OrderedDict, torch._utils.
  /// _rebuild_tensor_v2, torch._utils._rebuild_parameter, torch.Size and torch's storages, because the pickle wants to
  /// run code; an opcode that such files do not have; a pickle that is cut off or uses its stack wrongly.
  Pickle(const std::filesystem::path& path, std::span<const std::byte> bytes);

  const PickledValue& root() const { return *root_; }

 private:
  friend class PickleMachine;
  std::deque<PickledValue> values_;
  const PickledValue* root_ = nullptr;
};

}  // namespace difuse::models
