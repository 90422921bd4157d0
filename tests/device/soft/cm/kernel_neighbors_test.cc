// Needs two network namespaces with a veth between them.
#include "daemon/device/soft/cm/kernel_neighbors.h"

#include <chrono>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/two_hosts.h"

namespace rdmad::soft {
namespace {

IpAddress Ip(const std::string& text) {
  return IpAddress::Parse(text).value();
}

// Asks until the answer is no longer `while_it_is`, for at most five seconds.
NeighborState WaitWhile(Neighbors* neighbors, const IpAddress& peer, NeighborState while_it_is) {
  for (int i = 0; i < 500; ++i) {
    const NeighborState state = neighbors->Query(peer);
    if (state != while_it_is) return state;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return while_it_is;
}

class KernelNeighborsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto hosts = testing::TwoHosts::Create();
    if (!hosts.ok()) GTEST_SKIP() << hosts.status().ToString();
    hosts_ = *std::move(hosts);
  }
  // Runs `work` on host 0.
  void OnHost(const std::function<void(KernelNeighbors&)>& work) {
    hosts_->host(0).Call([&work] {
      KernelNeighbors neighbors;
      work(neighbors);
    });
  }

  std::unique_ptr<testing::TwoHosts> hosts_;
};

TEST_F(KernelNeighborsTest, OwnAddressesNeedNoNeighbor) {
  OnHost([](KernelNeighbors& neighbors) {
    for (const char* own : {"127.0.0.3", "::1", "10.77.0.1", "fd77::1"}) {
      EXPECT_EQ(neighbors.Query(Ip(own)), NeighborState::kReachable) << own;
    }
  });
}

TEST_F(KernelNeighborsTest, LivePeerIsFoundWhenItIsAskedFor) {
  OnHost([](KernelNeighbors& neighbors) {
    for (const auto& [own, peer] : {std::pair{"10.77.0.1", "10.77.0.2"}, {"fd77::1", "fd77::2"}}) {
      neighbors.Solicit(Ip(own), Ip(peer));
      EXPECT_EQ(WaitWhile(&neighbors, Ip(peer), NeighborState::kUnknown), NeighborState::kReachable)
          << peer;
    }
  });
}

TEST_F(KernelNeighborsTest, UnusedAddressIsUnknownAndThenFails) {
  OnHost([](KernelNeighbors& neighbors) {
    for (const auto& [own, peer] :
         {std::pair{"10.77.0.1", "10.77.0.99"}, {"fd77::1", "fd77::99"}}) {
      EXPECT_EQ(neighbors.Query(Ip(peer)), NeighborState::kUnknown) << peer;
      neighbors.Solicit(Ip(own), Ip(peer));
      EXPECT_EQ(neighbors.Query(Ip(peer)), NeighborState::kUnknown) << peer;
      EXPECT_EQ(WaitWhile(&neighbors, Ip(peer), NeighborState::kUnknown), NeighborState::kFailed)
          << peer;
    }
  });
}

TEST_F(KernelNeighborsTest, BehindAGatewayTheGatewayCounts) {
  ASSERT_TRUE(hosts_->host(0).Run("ip route add 192.0.2.0/24 via 10.77.0.2").ok());
  ASSERT_TRUE(hosts_->host(0).Run("ip route add 198.51.100.0/24 via 10.77.0.98").ok());
  OnHost([](KernelNeighbors& neighbors) {
    neighbors.Solicit(Ip("10.77.0.1"), Ip("192.0.2.5"));
    EXPECT_EQ(WaitWhile(&neighbors, Ip("192.0.2.5"), NeighborState::kUnknown),
              NeighborState::kReachable);
    neighbors.Solicit(Ip("10.77.0.1"), Ip("198.51.100.5"));
    EXPECT_EQ(WaitWhile(&neighbors, Ip("198.51.100.5"), NeighborState::kUnknown),
              NeighborState::kFailed);
  });
}

TEST_F(KernelNeighborsTest, InterfaceWithoutLinkLayerAddressesHasNoNeighbors) {
  if (!hosts_->host(0).Run("ip link set rd0 arp off").ok()) GTEST_SKIP() << "cannot switch ARP off";
  OnHost([](KernelNeighbors& neighbors) {
    EXPECT_EQ(neighbors.Query(Ip("10.77.0.77")), NeighborState::kReachable);
  });
}

}  // namespace
}  // namespace rdmad::soft
