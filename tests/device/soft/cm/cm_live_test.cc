// Addresses and devices that come, go and move while ids, listeners and connections use them.
#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"

namespace rdmad::soft {
namespace {

using absl::StatusCode;
using device::PortSpace;

class CmLive : public ::testing::Test {
 protected:
  void Establish() {
    ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
    ConnectTo(&client_, Address("10.0.0.2:7000"));
    ASSERT_TRUE(net_.Run());
    ASSERT_STREQ(client_->state_name(), "established") << client_.History();
  }
  // The address of `host` goes, or is the second device's now.
  static void Take(TestHost& host) {
    host.device.addresses.clear();
    host.manager->OnAddressChanged(host.ip);
  }
  static void Move(TestHost& host) {
    host.device.addresses.clear();
    host.second.addresses = {host.ip};
    host.manager->OnAddressChanged(host.ip);
  }
  // Whether a client of the other host gets through to it.
  bool Connects(TestHost& from, const SocketAddress& to) {
    TestId probe(&from);
    ConnectTo(&probe, to, Param(0x99));
    net_.RunFor(kSecond);
    return std::string(probe->state_name()) == "established";
  }

  TestNet net_;
  TestHost a_{&net_, "10.0.0.1"};
  TestHost b_{&net_, "10.0.0.2"};
  TestId server_{&b_};
  TestId client_{&a_};
};

TEST_F(CmLive, WildcardListenerCoversWhatComesLater) {
  b_.device.addresses.clear();
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  EXPECT_FALSE(Connects(a_, Address("10.0.0.2:7000")));
  b_.second.addresses = {b_.ip};
  EXPECT_TRUE(Connects(a_, Address("10.0.0.2:7000")));
  EXPECT_EQ((*server_.requests.at(0))->device(), &b_.second);
  EXPECT_FALSE(server_.Saw(CmEventType::kAddrChange)) << "it is bound to no address";
}

TEST_F(CmLive, WildcardListenerHearsNothingOfADeviceThatGoes) {
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  b_.manager->OnDeviceRemoved(&b_.device);
  net_.RunFor(kMs);
  EXPECT_EQ(server_.events.size(), 0u) << server_.History();
}

TEST_F(CmLive, IdsOfALostAddressAreTold) {
  TestId bound(&b_), other_space(&b_, PortSpace::kUdp), wildcard(&b_);
  ASSERT_TRUE(bound->BindAddr(Address("10.0.0.2:1")).ok());
  ASSERT_TRUE(other_space->BindAddr(Address("10.0.0.2:1")).ok());
  ASSERT_TRUE(wildcard->BindAddr(Address("0.0.0.0:2")).ok());
  Take(b_);
  net_.RunFor(kMs);
  EXPECT_EQ(bound.Count(CmEventType::kAddrChange), 1) << bound.History();
  EXPECT_EQ(other_space.Count(CmEventType::kAddrChange), 1);
  EXPECT_TRUE(wildcard.events.empty()) << wildcard.History();
  EXPECT_EQ(bound->device(), &b_.device) << "the address may come back";
}

TEST_F(CmLive, OtherAddressesOfTheDeviceAreNotMeant) {
  TestId bound(&b_);
  ASSERT_TRUE(bound->BindAddr(Address("10.0.0.2:1")).ok());
  b_.manager->OnAddressChanged(IpAddress::FromV4(10, 0, 0, 3));
  net_.RunFor(kMs);
  EXPECT_TRUE(bound.events.empty()) << bound.History();
}

TEST_F(CmLive, ConnectionOutlivesAnAddressThatComesBack) {
  Establish();
  Take(a_);
  net_.RunFor(kSecond);
  EXPECT_EQ(client_.Count(CmEventType::kAddrChange), 1) << client_.History();
  EXPECT_STREQ(client_->state_name(), "established");
  EXPECT_EQ(client_->device(), &a_.device) << "its QP is there";
  a_.device.addresses = {a_.ip};
  ASSERT_TRUE(client_->Disconnect().ok());
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(server_.requests.at(0)->Count(CmEventType::kDisconnected), 1);
}

TEST_F(CmLive, AddressThatGoesWithItsDeviceIsBoth) {
  TestId bound(&b_), too_late(&b_);
  ASSERT_TRUE(bound->BindAddr(Address("10.0.0.2:1")).ok());
  Take(b_);
  b_.manager->OnDeviceRemoved(&b_.device);
  b_.manager->OnAddressChanged(b_.ip);
  net_.RunFor(kMs);
  EXPECT_EQ(bound.History(), "addr_change:0 device_removal:0 ");
  EXPECT_EQ(too_late->BindAddr(Address("10.0.0.2:2")).code(), StatusCode::kNotFound);
}

TEST_F(CmLive, MovedAddressIsServedByItsNewDeviceAndConnectionsStay) {
  TestId listener(&b_);
  ListenOn(&listener, Address("10.0.0.2:7001"), AcceptIt);
  Establish();
  Move(b_);
  net_.RunFor(kMs);
  EXPECT_EQ(listener.Count(CmEventType::kAddrChange), 1) << listener.History();
  TestId& accepted = *server_.requests.at(0);
  EXPECT_EQ(accepted.Count(CmEventType::kAddrChange), 1) << accepted.History();
  EXPECT_EQ(accepted->device(), &b_.device);
  EXPECT_TRUE(Connects(a_, Address("10.0.0.2:7001")));
  EXPECT_EQ((*listener.requests.at(0))->device(), &b_.second);
}

TEST_F(CmLive, ResolvedRouteOverALostAddressDoesNotConnect) {
  client_.on_event = [](TestId& id, const SeenEvent& event) {
    if (event.type == CmEventType::kAddrResolved) (void)id->ResolveRoute(1);
  };
  ASSERT_TRUE(client_->ResolveAddr(SocketAddress(), Address("10.0.0.2:7000"), 1).ok());
  net_.RunFor(kMs);
  Move(a_);
  EXPECT_EQ(client_->Connect(Param(2)).code(), StatusCode::kNotFound)
      << "the QP is of a device that has no such address";
}

TEST_F(CmLive, ListenerOfARemovedDeviceServesItsAddressAgain) {
  TestId listener(&b_);
  ListenOn(&listener, Address("10.0.0.2:7001"), AcceptIt);
  b_.device.addresses.clear();
  b_.manager->OnDeviceRemoved(&b_.device);
  net_.RunFor(kMs);
  EXPECT_EQ(listener.Count(CmEventType::kDeviceRemoval), 1) << listener.History();
  EXPECT_EQ(listener->device(), nullptr);
  EXPECT_FALSE(Connects(a_, Address("10.0.0.2:7001")));
  b_.second.addresses = {b_.ip};
  EXPECT_TRUE(Connects(a_, Address("10.0.0.2:7001")));
}

TEST_F(CmLive, RemovedDeviceEndsEveryKindOfId) {
  Establish();
  TestId bound(&a_), resolving(&a_), udp(&a_, PortSpace::kUdp);
  ASSERT_TRUE(bound->BindAddr(Address("10.0.0.1:1")).ok());
  ConnectTo(&resolving, Address("10.0.0.2:7009"));
  ConnectTo(&udp, Address("10.0.0.2:7009"));
  a_.manager->Poll(net_.now);
  a_.device.addresses.clear();
  a_.manager->OnDeviceRemoved(&a_.device);
  ASSERT_TRUE(net_.Run());
  for (TestId* id : {&client_, &bound, &resolving, &udp}) {
    EXPECT_EQ(id->Count(CmEventType::kDeviceRemoval), 1) << id->History();
    EXPECT_EQ((*id)->device(), nullptr);
  }
  EXPECT_EQ(a_.manager->connection_count(), 0u);
  EXPECT_EQ(a_.manager->sidr_count(), 0u);
}

}  // namespace
}  // namespace rdmad::soft
