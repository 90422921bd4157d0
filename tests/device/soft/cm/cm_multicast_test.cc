// Groups of an id: joining, leaving, and what the join says.
#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"

namespace rdmad::soft {
namespace {

using absl::StatusCode;
using device::PortSpace;

SocketAddress Group(const std::string& text) {
  return {IpAddress::Parse(text).value(), 0};
}

class CmMulticast : public ::testing::Test {
 protected:
  CmMulticast() { EXPECT_TRUE(id_->BindAddr(Address("10.0.0.1:0")).ok()); }
  void Turn() { a_.manager->Poll(net_.now); }

  TestNet net_;
  TestHost a_{&net_, "10.0.0.1"};
  TestId id_{&a_, PortSpace::kUdp};
};

TEST_F(CmMulticast, JoinSaysHowTheGroupIsReached) {
  ASSERT_TRUE(id_->SetOption(0, std::vector<uint8_t>{0x28}).ok());
  ASSERT_TRUE(id_->JoinMulticast(Group("239.7.7.7"), 0, 42).ok());
  EXPECT_TRUE(id_.events.empty()) << "never from inside the call";
  Turn();
  ASSERT_EQ(id_.Count(CmEventType::kMulticastJoin), 1) << id_.History();
  const SeenEvent& event = id_.events[0];
  EXPECT_EQ(event.status, 0);
  EXPECT_EQ(event.param.qpn, 0xffffffu);
  EXPECT_EQ(event.param.qkey, 0x01234567u);
  EXPECT_EQ(event.av.dest, IpAddress::FromV4(239, 7, 7, 7));
  EXPECT_EQ(event.av.sgid_index, 1u);
  EXPECT_EQ(event.av.traffic_class, 0x28);
  EXPECT_EQ(event.av.hop_limit, 64);
  EXPECT_EQ(event.multicast_cookie, 42u);
}

TEST_F(CmMulticast, AnIpv6GroupIsItsOwnGid) {
  TestHost c(&net_, "fd77::1");
  TestId id(&c, PortSpace::kUdp);
  ASSERT_TRUE(id->BindAddr(Address("[fd77::1]:0")).ok());
  ASSERT_TRUE(id->JoinMulticast(Group("ff0e::77"), 0, 1).ok());
  c.manager->Poll(net_.now);
  EXPECT_EQ(id.events.at(0).av.dest, IpAddress::Parse("ff0e::77").value());
}

TEST_F(CmMulticast, SendOnlyMembersHearOfTheirJoinToo) {
  ASSERT_TRUE(id_->JoinMulticast(Group("239.7.7.7"), 1, 0).ok());
  Turn();
  EXPECT_EQ(id_.Count(CmEventType::kMulticastJoin), 1);
}

// As mckey does it.
TEST_F(CmMulticast, AGroupIsResolvedAndJoined) {
  TestId id(&a_, PortSpace::kUdp);
  ASSERT_TRUE(id->ResolveAddr(SocketAddress(), Address("239.7.7.7:5"), 2000).ok());
  Turn();
  ASSERT_EQ(id.Count(CmEventType::kAddrResolved), 1) << id.History();
  EXPECT_EQ(id->local().ip, a_.ip);
  ASSERT_TRUE(id->JoinMulticast(Address("239.7.7.7:5"), 0, 0).ok());
  ASSERT_TRUE(id->ResolveRoute(1).ok());
  Turn();
  EXPECT_EQ(id.Count(CmEventType::kMulticastJoin), 1);
  EXPECT_EQ(id->Connect(Param(2)).code(), StatusCode::kInvalidArgument) << "nobody would answer";
}

TEST_F(CmMulticast, WhoIsBoundResolvesAGroupWithoutARoute) {
  a_.has_route = false;
  ASSERT_TRUE(id_->ResolveAddr(SocketAddress(), Address("239.7.7.7:5"), 2000).ok());
  Turn();
  EXPECT_EQ(id_.Count(CmEventType::kAddrResolved), 1) << id_.History();
}

TEST_F(CmMulticast, WhatIsNoGroupIsRefused) {
  const struct {
    const char* group;
    uint32_t flags;
  } kCases[] = {
      {"10.0.0.2", 0},  {"0.0.0.0", 0},  {"223.255.255.255", 0},
      {"240.0.0.1", 0}, {"ff0e::77", 0},  // another family than the id's
      {"239.1.1.1", 2},                   // unknown flags
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(id_->JoinMulticast(Group(c.group), c.flags, 0).code(), StatusCode::kInvalidArgument)
        << c.group;
  }
  Turn();
  EXPECT_TRUE(id_.events.empty()) << id_.History();
}

TEST_F(CmMulticast, OnlyDatagramIdsOfADeviceMayJoin) {
  TestId tcp(&a_), unbound(&a_, PortSpace::kUdp), wildcard(&a_, PortSpace::kUdp),
      listening(&a_, PortSpace::kUdp);
  ASSERT_TRUE(tcp->BindAddr(Address("10.0.0.1:0")).ok());
  ASSERT_TRUE(wildcard->BindAddr(Address("0.0.0.0:0")).ok());
  ASSERT_TRUE(listening->BindAddr(Address("10.0.0.1:0")).ok());
  ASSERT_TRUE(listening->Listen(1).ok());
  for (TestId* id : {&tcp, &unbound, &wildcard, &listening}) {
    EXPECT_EQ((*id)->JoinMulticast(Group("239.7.7.7"), 0, 0).code(),
              StatusCode::kFailedPrecondition)
        << (*id)->state_name();
  }
}

TEST_F(CmMulticast, MembershipsAreCounted) {
  ASSERT_TRUE(id_->JoinMulticast(Group("239.7.7.7"), 0, 1).ok());
  EXPECT_EQ(id_->JoinMulticast(Group("239.7.7.7"), 0, 2).code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(id_->JoinMulticast(Group("239.7.7.8"), 0, 3).ok());
  EXPECT_EQ(id_->LeaveMulticast(Group("239.7.7.9")).code(), StatusCode::kNotFound);
  EXPECT_TRUE(id_->LeaveMulticast(Group("239.7.7.7")).ok());
  EXPECT_EQ(id_->LeaveMulticast(Group("239.7.7.7")).code(), StatusCode::kNotFound);
  EXPECT_TRUE(id_->JoinMulticast(Group("239.7.7.7"), 0, 4).ok());
  TestId other(&a_, PortSpace::kUdp);
  ASSERT_TRUE(other->BindAddr(Address("10.0.0.1:0")).ok());
  EXPECT_TRUE(other->JoinMulticast(Group("239.7.7.7"), 0, 5).ok()) << "each id has its own";
}

TEST_F(CmMulticast, WhoLeavesBeforeTheJoinIsReportedHearsNothingOfIt) {
  ASSERT_TRUE(id_->JoinMulticast(Group("239.7.7.7"), 0, 1).ok());
  ASSERT_TRUE(id_->LeaveMulticast(Group("239.7.7.7")).ok());
  ASSERT_TRUE(id_->JoinMulticast(Group("239.7.7.7"), 0, 2).ok());
  Turn();
  ASSERT_EQ(id_.events.size(), 1u) << id_.History();
  EXPECT_EQ(id_.events[0].multicast_cookie, 2u);
}

TEST_F(CmMulticast, LinkLocalGroupsTakeTheScopeOfTheIdOrItsDevice) {
  const IpAddress link_local = IpAddress::Parse("fe80::1").value().WithScope(7);
  TestHost c(&net_, "fd77::1");
  TestId id(&c, PortSpace::kUdp);
  ASSERT_TRUE(id->BindAddr(Address("[fd77::1]:0")).ok());
  EXPECT_EQ(id->JoinMulticast(Group("ff02::77"), 0, 0).code(), StatusCode::kInvalidArgument)
      << "of what interface?";
  c.device.addresses.push_back(link_local);
  ASSERT_TRUE(id->JoinMulticast(Group("ff02::77"), 0, 0).ok());
  c.manager->Poll(net_.now);
  EXPECT_EQ(id.events.at(0).av.dest, IpAddress::Parse("ff02::77").value().WithScope(7));
  EXPECT_TRUE(id->LeaveMulticast(Group("ff02::77")).ok()) << "as it was joined";
}

TEST_F(CmMulticast, ARemovedDeviceEndsAllMemberships) {
  ASSERT_TRUE(id_->JoinMulticast(Group("239.7.7.7"), 0, 1).ok());
  a_.manager->OnDeviceRemoved(&a_.device);
  Turn();
  EXPECT_EQ(id_.Count(CmEventType::kDeviceRemoval), 1);
  EXPECT_FALSE(id_.Saw(CmEventType::kMulticastJoin)) << id_.History();
  EXPECT_EQ(id_->LeaveMulticast(Group("239.7.7.7")).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace rdmad::soft
