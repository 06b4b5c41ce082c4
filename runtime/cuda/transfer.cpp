#include "runtime/cuda/transfer.h"

#include <algorithm>

namespace difuse::runtime {

void UploadRing::upload(int kind, cuda::DevicePointer to, std::span<const std::byte> bytes) {
  Kind& ring = kinds_[kind];
  if (ring.buffers.size() < kBuffers) ring.buffers.emplace_back(device_, bytes.size());
  Buffer& buffer = ring.buffers[ring.next];
  ring.next = (ring.next + 1) % kBuffers;
  buffer.copied.wait("waiting for an earlier step");
  std::ranges::copy(bytes, buffer.memory.bytes().begin());
  const CudaDriver& cuda = device_.use();
  cuda.require(cuda->cuMemcpyHtoDAsync_v2(to, buffer.memory.bytes().data(), bytes.size(), device_.stream()),
               "uploading an input");
  buffer.copied.record();
}

/// Gives its buffer back when it is destroyed, which must not be before the copy has ended.
class FetchPool::Running : public Fetch {
 public:
  Running(std::shared_ptr<FetchPool> pool, std::unique_ptr<Buffer> buffer, size_t bytes)
      : pool_(std::move(pool)), buffer_(std::move(buffer)), bytes_(bytes) {}
  ~Running() override {
    try {
      buffer_->copied.wait("");
      pool_->free_.push_back(std::move(buffer_));
    } catch (...) {  // Whoever asks for the bytes hears of it.
    }
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  std::span<const std::byte> bytes() override {
    buffer_->copied.wait("a step on the GPU");
    return buffer_->memory.bytes().first(bytes_);
  }

 private:
  std::shared_ptr<FetchPool> pool_;
  std::unique_ptr<Buffer> buffer_;
  size_t bytes_;
};

std::unique_ptr<Fetch> FetchPool::start(cuda::DevicePointer from, size_t bytes) {
  constexpr size_t kLeast = 64;
  const auto fits = [bytes](const auto& b) { return b->memory.bytes().size() >= bytes; };
  const auto found = std::ranges::find_if(free_, fits);
  std::unique_ptr<Buffer> buffer;
  if (found != free_.end()) {
    buffer = std::move(*found);
    free_.erase(found);
  } else {
    buffer = std::make_unique<Buffer>(*device_, std::max(bytes, kLeast));
  }
  const CudaDriver& cuda = device_->use();
  cuda.require(cuda->cuMemcpyDtoHAsync_v2(buffer->memory.bytes().data(), from, bytes, device_->stream()),
               "downloading an output");
  buffer->copied.record();
  return std::make_unique<Running>(shared_from_this(), std::move(buffer), bytes);
}

}  // namespace difuse::runtime
