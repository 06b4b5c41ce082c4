// Owners of what lives on a GPU or belongs to it. Each must not outlive its device. Their calls throw Error; their
// destructors do not.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/cuda/device.h"

namespace difuse::runtime {

/// Memory of the GPU.
class DeviceMemory {
 public:
  /// `what` names it in errors: "the arena". 0 bytes are no memory, at address 0.
  DeviceMemory(const CudaDevice& device, size_t bytes, std::string_view what);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  cuda::DevicePointer address() const { return address_; }
  size_t size() const { return size_; }
  /// On the stream.
  void zero();

 private:
  const CudaDevice& device_;
  cuda::DevicePointer address_ = 0;
  size_t size_;
};

/// Host memory that the GPU copies from and to on its own.
class PinnedMemory {
 public:
  PinnedMemory(const CudaDevice& device, size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), size_}; }

 private:
  const CudaDevice& device_;
  void* memory_ = nullptr;
  size_t size_;
};

/// A mark on the stream. Waiting for one that was never recorded returns at once.
class Event {
 public:
  explicit Event(const CudaDevice& device, bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record();
  /// In a capture: the replay records it, and it can be asked afterwards.
  void record_in_capture();
  void wait(std::string_view what) const;
  /// Both timed, recorded and over.
  double seconds_since(const Event& start) const;

 private:
  const CudaDevice& device_;
  cuda::Event event_ = nullptr;
};

/// A captured step, ready to be replayed.
class CudaGraph {
 public:
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  ~CudaGraph();

  void launch(std::string_view what);
  size_t nodes() const { return nodes_; }

 private:
  friend class Capture;
  CudaGraph(const CudaDevice& device, cuda::Graph graph);

  const CudaDevice& device_;
  cuda::GraphExec exec_ = nullptr;
  size_t nodes_ = 0;
};

/// While it lives, what this thread puts on the stream is recorded and not run. One that is not finished leaves
/// nothing.
class Capture {
 public:
  explicit Capture(const CudaDevice& device);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// Ends the capture. Call once.
  std::unique_ptr<CudaGraph> finish();

 private:
  const CudaDevice& device_;
  bool active_ = false;
};

}  // namespace difuse::runtime
