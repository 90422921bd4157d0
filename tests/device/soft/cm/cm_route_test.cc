// The way to a peer: what the kernel's route says of it, and what may change before it is used.
#include <cerrno>

#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"

namespace rdmad::soft {
namespace {

class CmRoute : public ::testing::Test {
 protected:
  // The client has its address; what follows is the test's.
  void ResolveAddr() {
    ASSERT_TRUE(client_->ResolveAddr(SocketAddress(), Address("10.0.0.2:7000"), 1000).ok());
    ASSERT_TRUE(net_.Run());
    ASSERT_EQ(client_.Count(CmEventType::kAddrResolved), 1) << client_.History();
  }
  void ResolveRoute() {
    ASSERT_TRUE(client_->ResolveRoute(1000).ok());
    ASSERT_TRUE(net_.Run());
  }
  void Establish() {
    ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
    ConnectTo(&client_, Address("10.0.0.2:7000"));
    ASSERT_TRUE(net_.Run());
    ASSERT_STREQ(client_->state_name(), "established") << client_.History();
  }
  static device::Mtu MtuOf(TestId& id) {
    return id->InitQpAttr(device::QpState::kRtr)->path_mtu;
  }

  TestNet net_;
  TestHost a_{&net_, "10.0.0.1"};
  TestHost b_{&net_, "10.0.0.2"};
  TestId server_{&b_};
  TestId client_{&a_};
};

TEST_F(CmRoute, ARouteThatCarriesLessThanTheInterfaceDecidesThePathMtu) {
  a_.route_mtu_bytes = 1400;
  Establish();
  EXPECT_EQ(client_.Find(CmEventType::kRouteResolved)->path_mtu, device::Mtu::k1024);
  EXPECT_EQ(MtuOf(client_), device::Mtu::k1024);
  EXPECT_EQ(MtuOf(*server_.requests.at(0)), device::Mtu::k1024);
}

TEST_F(CmRoute, TheWayBackMayCarryLess) {
  b_.route_mtu_bytes = 1000;
  Establish();
  EXPECT_EQ(client_.Find(CmEventType::kRouteResolved)->path_mtu, device::Mtu::k4096);
  EXPECT_EQ(MtuOf(client_), device::Mtu::k512);
  EXPECT_EQ(MtuOf(*server_.requests.at(0)), device::Mtu::k512);
}

TEST_F(CmRoute, ARouteThatCarriesMoreChangesNothing) {
  a_.route_mtu_bytes = b_.route_mtu_bytes = 65536;
  Establish();
  EXPECT_EQ(MtuOf(client_), device::Mtu::k4096);
}

TEST_F(CmRoute, ARouteThatHasGoneIsARouteErrorAndMayComeBack) {
  ASSERT_NO_FATAL_FAILURE(ResolveAddr());
  a_.has_route = false;
  ASSERT_NO_FATAL_FAILURE(ResolveRoute());
  ASSERT_EQ(client_.Count(CmEventType::kRouteError), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kRouteError)->status, -ENETUNREACH);
  EXPECT_FALSE(client_->Connect(Param(1)).ok());
  a_.has_route = true;
  ASSERT_NO_FATAL_FAILURE(ResolveRoute());
  EXPECT_EQ(client_.Count(CmEventType::kRouteResolved), 1) << client_.History();
}

TEST_F(CmRoute, AnAddressThatHasGoneIsARouteError) {
  ASSERT_NO_FATAL_FAILURE(ResolveAddr());
  a_.device.addresses.clear();
  ASSERT_NO_FATAL_FAILURE(ResolveRoute());
  ASSERT_EQ(client_.Count(CmEventType::kRouteError), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kRouteError)->status, -ENODEV);
}

TEST_F(CmRoute, AnAddressThatHasMovedToAnotherDeviceIsARouteError) {
  ASSERT_NO_FATAL_FAILURE(ResolveAddr());
  std::swap(a_.device.addresses, a_.second.addresses);
  ASSERT_NO_FATAL_FAILURE(ResolveRoute());
  EXPECT_EQ(client_.Count(CmEventType::kRouteError), 1) << client_.History();
}

}  // namespace
}  // namespace rdmad::soft
