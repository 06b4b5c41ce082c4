#include "ir/device_spec.h"

#include <fmt/format.h>

#include <array>

namespace difuse::ir {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;

struct Card {
  const char* name;
  int architecture;
  int64_t processors;
  int64_t shared_memory_kib;
  int64_t l2_mib;
  double gigabytes_per_second;
  double teraflops;
};

// An architecture's first row stands for it.
constexpr std::array kCards = {
    Card{"a100", 80, 108, 163, 40, 2039, 312},      Card{"a100-40gb", 80, 108, 163, 40, 1555, 312},
    Card{"rtx3090", 86, 82, 99, 6, 936, 71},        Card{"a10", 86, 72, 99, 6, 600, 125},
    Card{"rtx4090", 89, 128, 99, 72, 1008, 165},    Card{"l40s", 89, 142, 99, 96, 864, 362},
    Card{"l4", 89, 58, 99, 48, 300, 121},           Card{"h100", 90, 132, 227, 50, 3350, 989},
    Card{"h100-pcie", 90, 114, 227, 50, 2000, 756}, Card{"h200", 90, 132, 227, 60, 4800, 989},
    Card{"b200", 100, 148, 227, 126, 8000, 2250},   Card{"rtx5090", 120, 170, 99, 96, 1792, 209},
};

std::array<DeviceSpec, kCards.size()> make_devices() {
  std::array<DeviceSpec, kCards.size()> devices;
  for (size_t i = 0; i < kCards.size(); ++i) {
    const Card& card = kCards[i];
    devices[i] = {.kind = DeviceSpec::Kind::cuda,
                  .name = card.name,
                  .architecture = card.architecture,
                  .processors = card.processors,
                  .shared_memory_bytes = card.shared_memory_kib * kKiB,
                  .l2_bytes = card.l2_mib * kMiB,
                  .bandwidth = card.gigabytes_per_second * 1e9,
                  .contraction_flops = card.teraflops * 1e12};
  }
  return devices;
}

}  // namespace

std::string architecture_name(const DeviceSpec& device) {
  return fmt::format("sm_{}{}", device.architecture, device.architecture >= 90 ? "a" : "");
}

std::span<const DeviceSpec> known_devices() {
  static const auto kDevices = make_devices();
  return kDevices;
}

const DeviceSpec* find_device_spec(std::string_view name) {
  for (const DeviceSpec& device : known_devices()) {
    if (name == device.name || name == architecture_name(device) || name == fmt::format("sm_{}", device.architecture)) {
      return &device;
    }
  }
  return nullptr;
}

}  // namespace difuse::ir
