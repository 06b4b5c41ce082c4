#include "ir/device_spec.h"

#include <gtest/gtest.h>

#include <set>

namespace difuse::ir {
namespace {

TEST(DeviceSpec, FindsCardsByNameAndByArchitecture) {
  ASSERT_NE(find_device_spec("h100"), nullptr);
  const DeviceSpec& h100 = *find_device_spec("h100");
  EXPECT_EQ(h100.kind, DeviceSpec::Kind::cuda);
  EXPECT_EQ(h100.architecture, 90);
  EXPECT_EQ(h100.processors, 132);
  EXPECT_EQ(h100.shared_memory_bytes, 232448);

  EXPECT_EQ(find_device_spec("sm_90a"), &h100);
  EXPECT_EQ(find_device_spec("sm_90"), &h100);
  EXPECT_EQ(find_device_spec("sm_80"), find_device_spec("a100"));
  EXPECT_EQ(find_device_spec("sm_80a"), nullptr);
  EXPECT_EQ(find_device_spec("h1000"), nullptr);
  EXPECT_EQ(find_device_spec(""), nullptr);
}

TEST(DeviceSpec, NamesTheInstructionSetThatNvrtcKnows) {
  EXPECT_EQ(architecture_name(*find_device_spec("a100")), "sm_80");
  EXPECT_EQ(architecture_name(*find_device_spec("rtx4090")), "sm_89");
  EXPECT_EQ(architecture_name(*find_device_spec("h200")), "sm_90a");
  EXPECT_EQ(architecture_name(*find_device_spec("b200")), "sm_100a");
}

TEST(DeviceSpec, EveryRowIsWholeAndNamedOnce) {
  std::set<std::string> names;
  for (const DeviceSpec& device : known_devices()) {
    EXPECT_TRUE(names.insert(device.name).second) << device.name;
    EXPECT_GE(device.architecture, 80) << device.name;
    EXPECT_GT(device.processors, 50) << device.name;
    EXPECT_GE(device.shared_memory_bytes, 99 * 1024) << device.name;
    // Roofline ridges of cards that exist lie between about 70 and 500 operations a byte.
    const double ridge = device.contraction_flops / device.bandwidth;
    EXPECT_GT(ridge, 70) << device.name;
    EXPECT_LT(ridge, 500) << device.name;
  }
}

}  // namespace
}  // namespace difuse::ir
