// What the verbs device reads of the host: counters in sysfs and the kernel's uevents.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "daemon/device/verbs/hw_counters.h"
#include "daemon/device/verbs/uevent_monitor.h"
#include "tests/support/file.h"
#include "tests/support/temp_dir.h"

namespace rdmad::verbs {
namespace {

using testing::TempDir;
using testing::WriteFile;

TEST(HardwareCounters, ReadsBothFoldersAndNothingElse) {
  const TempDir temp;
  const std::string port = temp.path() + "/mlx5_0/ports/1";
  std::filesystem::create_directories(port + "/hw_counters");
  std::filesystem::create_directories(port + "/counters");
  ASSERT_TRUE(WriteFile(port + "/hw_counters/out_of_sequence", "7\n"));
  ASSERT_TRUE(WriteFile(port + "/hw_counters/lifespan", "10\n"));
  ASSERT_TRUE(WriteFile(port + "/hw_counters/Not-A-Name", "1\n"));
  ASSERT_TRUE(WriteFile(port + "/counters/port_xmit_data", "18446744073709551615\n"));
  ASSERT_TRUE(WriteFile(port + "/counters/broken", "N/A (no PMA)\n"));

  const auto counters = ReadHardwareCounters("mlx5_0", 1, temp.path());

  ASSERT_EQ(counters.size(), 2u);
  EXPECT_STREQ(counters[0].name, "hw_out_of_sequence");
  EXPECT_EQ(counters[0].value, 7u);
  EXPECT_STREQ(counters[1].name, "hw_port_xmit_data");
  EXPECT_EQ(counters[1].value, UINT64_MAX);
}

TEST(HardwareCounters, NoneOfADeviceThatIsGone) {
  const TempDir temp;
  EXPECT_TRUE(ReadHardwareCounters("rxe0", 1, temp.path()).empty());
}

TEST(Uevent, AboutRdmaByItsSubsystemAlone) {
  using namespace std::string_view_literals;
  EXPECT_TRUE(
      IsAboutRdma("add@/devices/virtual/infiniband/rxe0\0ACTION=add\0SUBSYSTEM=infiniband\0"sv));
  EXPECT_TRUE(IsAboutRdma("SUBSYSTEM=infiniband_verbs"sv));
  EXPECT_FALSE(IsAboutRdma("add@/infiniband\0SUBSYSTEM=net\0NAME=infiniband"sv));
  EXPECT_FALSE(IsAboutRdma("SUBSYSTEM=infiniband_other"sv));
  EXPECT_FALSE(IsAboutRdma(""sv));
}

}  // namespace
}  // namespace rdmad::verbs
