// Copies between the host's memory and the GPU's that neither side waits for.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "runtime/cuda/owners.h"
#include "runtime/executor.h"

namespace difuse::runtime {

/// Uploads that come again and again: each kind (an input of a step) has a few pinned buffers that it fills by turns,
/// so that the host waits only when it is that many steps ahead of the GPU.
class UploadRing {
 public:
  static constexpr size_t kBuffers = 3;

  explicit UploadRing(const CudaDevice& device) : device_(device) {}
  /// All calls of one kind have as many bytes.
  void upload(int kind, cuda::DevicePointer to, std::span<const std::byte> bytes);

 private:
  struct Buffer {
    Buffer(const CudaDevice& device, size_t bytes) : memory(device, bytes), copied(device) {}
    PinnedMemory memory;
    Event copied;
  };
  struct Kind {
    std::deque<Buffer> buffers;
    size_t next = 0;
  };

  const CudaDevice& device_;
  std::map<int, Kind> kinds_;
};

/// Downloads that are collected later. Buffers are used again.
class FetchPool : public std::enable_shared_from_this<FetchPool> {
 public:
  explicit FetchPool(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)) {}
  /// Puts the copy on the stream.
  std::unique_ptr<Fetch> start(cuda::DevicePointer from, size_t bytes);

 private:
  struct Buffer {
    Buffer(const CudaDevice& device, size_t bytes) : memory(device, bytes), copied(device) {}
    PinnedMemory memory;
    Event copied;
  };
  class Running;

  std::shared_ptr<const CudaDevice> device_;
  std::vector<std::unique_ptr<Buffer>> free_;
};

}  // namespace difuse::runtime
