// On a host without RDMA.
#include <gtest/gtest.h>
#include <unistd.h>

#include "daemon/device/verbs/verbs_connection_manager.h"
#include "tests/support/status_testing.h"

namespace rdmad::verbs {
namespace {

class NoDevices final : public DeviceFinder {
 public:
  device::Device* FindPort(std::string_view, uint8_t) const override { return nullptr; }
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

TEST(VerbsConnectionManager, AWildcardCanBeListenedOnBeforeThereIsADevice) {
  const NoDevices finder;
  ASSERT_OK_AND_ASSIGN(const auto manager, VerbsConnectionManager::Create(&finder));
  const auto first = manager->CreateEndpoint(device::PortSpace::kTcp, nullptr);
  ASSERT_OK(first->BindAddr({IpAddress::AnyV6(), 0}));
  const uint16_t port = first->local().port;
  EXPECT_NE(port, 0);
  EXPECT_OK(first->Listen(4));
  EXPECT_STREQ(first->state_name(), "listening");
  EXPECT_TRUE(absl::IsFailedPrecondition(first->Listen(4)));
  const auto second = manager->CreateEndpoint(device::PortSpace::kTcp, nullptr);
  EXPECT_TRUE(absl::IsAlreadyExists(second->BindAddr({IpAddress::AnyV4(), port})));
  const auto datagram = manager->CreateEndpoint(device::PortSpace::kUdp, nullptr);
  EXPECT_OK(datagram->BindAddr({IpAddress::AnyV4(), port}));
  EXPECT_TRUE(absl::IsUnavailable(datagram->Connect({})));
}

// As the kernel has it once it can be asked.
TEST(VerbsConnectionManager, OptionsOfBeforeThereIsADeviceDecideWhoSharesAPort) {
  const NoDevices finder;
  ASSERT_OK_AND_ASSIGN(const auto manager, VerbsConnectionManager::Create(&finder));
  const auto make = [&](uint32_t option) {
    auto endpoint = manager->CreateEndpoint(device::PortSpace::kTcp, nullptr);
    const uint8_t on[] = {1, 0, 0, 0};
    EXPECT_OK(endpoint->SetOption(option, on));
    return endpoint;
  };
  const auto six = make(RDMA_OPTION_ID_AFONLY);
  ASSERT_OK(six->BindAddr({IpAddress::AnyV6(), 0}));
  ASSERT_OK(six->Listen(4));
  const uint16_t port = six->local().port;
  const auto four = make(RDMA_OPTION_ID_REUSEADDR);
  EXPECT_OK(four->BindAddr({IpAddress::AnyV4(), port})) << "the other one is of IPv6 only";
  const auto sharing = make(RDMA_OPTION_ID_REUSEADDR);
  EXPECT_OK(sharing->BindAddr({IpAddress::AnyV4(), port}));
  EXPECT_TRUE(absl::IsAlreadyExists(four->Listen(4))) << "who listens is alone";
  const auto alone = make(RDMA_OPTION_ID_AFONLY);
  EXPECT_TRUE(absl::IsAlreadyExists(alone->BindAddr({IpAddress::AnyV4(), port})));
}

}  // namespace
}  // namespace rdmad::verbs
