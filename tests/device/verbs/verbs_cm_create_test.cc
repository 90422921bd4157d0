// On a host without RDMA.
#include <gtest/gtest.h>
#include <unistd.h>

#include "daemon/device/verbs/verbs_connection_manager.h"
#include "tests/support/status_testing.h"

namespace rdmad::verbs {
namespace {

class NoDevices final : public DeviceFinder {
 public:
  device::Device* FindByName(std::string_view) const override { return nullptr; }
  device::Device* FindByAddress(const IpAddress&) const override { return nullptr; }
};

TEST(VerbsConnectionManager, SaysWhatToDoWhereTheKernelHasNoRdmaCm) {
  if (::access("/dev/infiniband/rdma_cm", F_OK) == 0) GTEST_SKIP() << "this kernel has rdma_cm";
  const NoDevices finder;
  ASSERT_OK_AND_ASSIGN(const auto manager, VerbsConnectionManager::Create(&finder));
  const absl::Status status = manager->Open();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status.ToString();
  EXPECT_NE(status.message().find("modprobe rdma_ucm"), absl::string_view::npos)
      << status.ToString();
}

TEST(VerbsConnectionManager, SaysThatThereIsNoDeviceWhereTheKernelHasNone) {
  if (::access("/dev/infiniband/rdma_cm", F_OK) != 0) GTEST_SKIP() << "this kernel has no rdma_cm";
  if (::access("/dev/infiniband/uverbs0", F_OK) == 0) GTEST_SKIP() << "this kernel has a device";
  const NoDevices finder;
  ASSERT_OK_AND_ASSIGN(const auto manager, VerbsConnectionManager::Create(&finder));
  const absl::Status status = manager->Open();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status.ToString();
  EXPECT_NE(status.message().find("no RDMA device"), absl::string_view::npos) << status.ToString();
}

TEST(VerbsConnectionManager, EndpointsFromBeforeThereIsADeviceSaySo) {
  const NoDevices finder;
  ASSERT_OK_AND_ASSIGN(const auto manager, VerbsConnectionManager::Create(&finder));
  const auto endpoint = manager->CreateEndpoint(device::PortSpace::kTcp, nullptr);
  const absl::Status status = endpoint->BindAddr({IpAddress::FromV4(127, 0, 0, 1), 0});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status.ToString();
  EXPECT_NE(status.message().find("no RDMA device"), absl::string_view::npos) << status.ToString();
  manager->Poll(0);
}

}  // namespace
}  // namespace rdmad::verbs
