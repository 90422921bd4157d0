// Datagrams through real sockets: to one QP, and to groups, over IPv4 and IPv6, within a daemon,
// between daemons of one host and between hosts.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/device/soft/multicast_group.h"
#include "tests/device/soft/soft_host.h"
#include "tests/device/soft/test_net.h"
#include "tests/device/soft/ud_host.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using rdmad::testing::TestPort;
using testing::SoftHost;
using testing::TurnUntil;
using testing::UdEnd;

// Time for what should not come to come.
void Settle(std::initializer_list<SoftHost*> hosts) {
  const device::TimeNs end = testing::MonotonicNow() + 50'000'000;
  while (testing::MonotonicNow() < end) {
    for (SoftHost* host : hosts) host->Turn();
  }
}

struct Family {
  const char* name;
  uint32_t sgid_index;
  const char* right;
  const char* group;
};

// Two hosts with one device each, on a link of their own. The left one has two addresses per
// family.
class MulticastTest : public ::testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    network_.emplace();
    if (!network_->ok()) GTEST_SKIP() << "needs a network namespace, ip and veth";
    ASSERT_TRUE(rdmad::testing::Run(
        "ip addr add 192.0.2.1/24 dev left && ip addr add 192.0.2.11/24 dev left &&"
        "ip addr add fd00:4791::1/64 dev left nodad &&"
        "ip addr add fd00:4791::11/64 dev left nodad"));
    network_->Enter();
    ASSERT_TRUE(
        rdmad::testing::Run("ip addr add 192.0.2.2/24 dev right &&"
                            "ip addr add fd00:4791::2/64 dev right nodad"));
    right_.emplace(std::vector<std::string>{"192.0.2.2", "fd00:4791::2"}, TestPort());
    network_->Leave();
    left_.emplace(std::vector<std::string>{"192.0.2.1", "fd00:4791::1"}, TestPort());
    ASSERT_EQ(left_->device().Gids().size(), 2u);
    ASSERT_EQ(right_->device().Gids().size(), 2u);
  }
  // A membership is opened in the namespace of who opens it.
  absl::Status JoinOnTheRight(UdEnd& end, const std::string& group) {
    network_->Enter();
    const absl::Status status = end.Join(group);
    network_->Leave();
    return status;
  }

  std::optional<rdmad::testing::SecondNetwork> network_;
  std::optional<SoftHost> right_;
  std::optional<SoftHost> left_;
};

INSTANTIATE_TEST_SUITE_P(, MulticastTest,
                         ::testing::Values(Family{"Ipv4", 0, "192.0.2.2", "239.1.2.3"},
                                           Family{"Ipv6", 1, "fd00:4791::2", "ff0e::4791:1"},
                                           Family{"Ipv6LinkLocal", 1, "fd00:4791::2",
                                                  "ff02::4791:1"}),
                         [](const auto& param) { return param.param.name; });

TEST_P(MulticastTest, ADatagramCrossesTheLinkWithItsHeader) {
  UdEnd a(*left_);
  UdEnd b(*right_);
  ASSERT_EQ(a.Send(GetParam().right, b.qp->qpn(), "hello", GetParam().sgid_index), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&*left_, &*right_}, [&] { return b.receives.all.size() == 1; }));
  EXPECT_EQ(b.Text(0), "hello");
  EXPECT_EQ(b.receives.all[0].src_qpn, a.qp->qpn());
  EXPECT_EQ(right_->Counter("udp_rx_drop_icrc"), 0u);
  const uint8_t* const grh = b.GrhOf(0);
  const IpAddress source = left_->device().Gids()[GetParam().sgid_index].address;
  EXPECT_EQ(grh[source.is_v4() ? 20 : 0] >> 4, source.is_v4() ? 4 : 6);
  EXPECT_EQ(std::memcmp(grh + (source.is_v4() ? 20 + 12 : 8),
                        source.bytes().data() + (source.is_v4() ? 12 : 0), source.is_v4() ? 4 : 16),
            0);
}

TEST_P(MulticastTest, EveryMemberGetsOneCopyTheSenderToo) {
  UdEnd sender(*left_), beside(*left_), outsider(*left_);
  UdEnd far(*right_), far_too(*right_), stranger(*right_, 0x33333333);
  for (UdEnd* end : {&sender, &beside}) ASSERT_TRUE(end->Join(GetParam().group).ok());
  for (UdEnd* end : {&far, &far_too, &stranger}) {
    const absl::Status joined = JoinOnTheRight(*end, GetParam().group);
    ASSERT_TRUE(joined.ok()) << joined;
  }
  ASSERT_EQ(sender.SendToGroup(GetParam().group, "to all", GetParam().sgid_index), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&*left_, &*right_}, [&] {
    return !sender.receives.all.empty() && !beside.receives.all.empty() &&
           !far.receives.all.empty() && !far_too.receives.all.empty();
  }));
  Settle({&*left_, &*right_});
  for (UdEnd* end : {&sender, &beside, &far, &far_too}) {
    ASSERT_EQ(end->receives.all.size(), 1u);
    EXPECT_EQ(end->Text(0), "to all");
    EXPECT_EQ(end->receives.all[0].src_qpn, sender.qp->qpn());
  }
  EXPECT_TRUE(outsider.receives.all.empty());
  EXPECT_TRUE(stranger.receives.all.empty());
  EXPECT_EQ(right_->SharedCounter("drop_bad_qkey"), 1u);
  EXPECT_EQ(left_->Counter("udp_rx_drop_icrc") + right_->Counter("udp_rx_drop_icrc"), 0u);
}

// However many they are, nobody else waits long for them.
TEST_P(MulticastTest, ManyMembersGetTheirCopiesInSeveralTurns) {
  constexpr size_t kMembers = 2 * MulticastGroup::kDeliveriesPerTurn + 10;
  constexpr size_t kDatagrams = 3;
  UdEnd sender(*right_);
  std::vector<std::unique_ptr<UdEnd>> members;
  for (size_t i = 0; i < kMembers; ++i) {
    members.push_back(std::make_unique<UdEnd>(*left_));
    ASSERT_TRUE(members.back()->Join(GetParam().group).ok());
  }
  for (size_t i = 0; i < kDatagrams; ++i) {
    ASSERT_EQ(sender.SendToGroup(GetParam().group, "to many", GetParam().sgid_index),
              PostResult::kOk);
  }
  size_t most = 0;
  size_t before = 0;
  bool one_has_left = false;
  ASSERT_TRUE(TurnUntil({&*left_, &*right_}, [&] {
    size_t sum = 0;
    for (const auto& member : members) sum += member->receives.all.size();
    most = std::max(most, sum - before);
    before = sum;
    if (!one_has_left && sum > 0) {
      members.front()->Leave();  // the last in line: in the middle of the first datagram
      one_has_left = true;
    }
    return sum == (kMembers - 1) * kDatagrams;
  }));
  Settle({&*left_, &*right_});
  EXPECT_LE(most, MulticastGroup::kDeliveriesPerTurn);
  EXPECT_TRUE(members.front()->receives.all.empty());
  for (size_t i = 1; i < kMembers; ++i) {
    ASSERT_EQ(members[i]->receives.all.size(), kDatagrams);
    for (size_t n = 0; n < kDatagrams; ++n) {
      ASSERT_EQ(members[i]->Text(n), "to many");
    }
  }
}

TEST_P(MulticastTest, AGroupIsJoinedOnAnInterfaceThatHasChangedItsName) {
  UdEnd sender(*right_);
  UdEnd member(*left_);
  ASSERT_TRUE(rdmad::testing::Run("ip link set left name renamed"));
  ASSERT_TRUE(member.Join(GetParam().group).ok());
  ASSERT_EQ(sender.SendToGroup(GetParam().group, "to you", GetParam().sgid_index),
            PostResult::kOk);
  EXPECT_TRUE(TurnUntil({&*left_, &*right_}, [&] { return member.receives.all.size() == 1; }));
  ASSERT_TRUE(rdmad::testing::Run("ip link set renamed name left"));  // by which it is removed
}

TEST_P(MulticastTest, ABatchToAGroupArrivesWhole) {
  UdEnd sender(*left_);
  UdEnd far(*right_);
  ASSERT_TRUE(JoinOnTheRight(far, GetParam().group).ok());
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(sender.SendToGroup(GetParam().group, "message", GetParam().sgid_index),
              PostResult::kOk);
  }
  ASSERT_TRUE(TurnUntil({&*left_, &*right_}, [&] { return far.receives.all.size() == 10; }));
  EXPECT_EQ(right_->Counter("udp_rx_drop_icrc"), 0u);
}

TEST_P(MulticastTest, WhoLeavesHearsNoMoreAndTheLastOneEndsTheHostsMembership) {
  const std::string group = GetParam().group;
  const auto is_member = [&] {
    return rdmad::testing::Run("ip maddr show dev left | grep -q " + group);
  };
  UdEnd first(*left_), second(*left_);
  EXPECT_FALSE(is_member());
  ASSERT_TRUE(first.Join(group).ok());
  ASSERT_TRUE(second.Join(group).ok());
  EXPECT_TRUE(is_member());
  first.Leave();
  EXPECT_TRUE(is_member());
  ASSERT_EQ(first.SendToGroup(group, "x", GetParam().sgid_index), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&*left_}, [&] { return second.receives.all.size() == 1; }));
  EXPECT_TRUE(first.receives.all.empty());
  second.Leave();
  EXPECT_FALSE(is_member());
  ASSERT_EQ(first.SendToGroup(group, "x", GetParam().sgid_index), PostResult::kOk);
  Settle({&*left_});
  EXPECT_EQ(second.receives.all.size(), 1u);
}

TEST_P(MulticastTest, TwoDaemonsOfOneHostBothHear) {
  SoftHost neighbour({"192.0.2.11", "fd00:4791::11"}, TestPort());
  UdEnd a(*left_), b(neighbour);
  ASSERT_TRUE(a.Join(GetParam().group).ok());
  ASSERT_TRUE(b.Join(GetParam().group).ok());
  ASSERT_EQ(a.SendToGroup(GetParam().group, "from a", GetParam().sgid_index), PostResult::kOk);
  ASSERT_EQ(b.SendToGroup(GetParam().group, "from b", GetParam().sgid_index), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&*left_, &neighbour},
                        [&] { return a.receives.all.size() >= 2 && b.receives.all.size() >= 2; }));
  Settle({&*left_, &neighbour});
  EXPECT_EQ(a.receives.all.size(), 2u);
  EXPECT_EQ(b.receives.all.size(), 2u);
}

// A membership on one interface, here loopback, is none on another.
TEST_P(MulticastTest, WhatComesInByAnotherInterfaceIsNotForTheGroup) {
  SoftHost lo({"127.0.0.1", "::1"}, TestPort());
  UdEnd other(lo), member(*left_);
  ASSERT_TRUE(member.Join(GetParam().group).ok());
  const absl::Status joined = other.Join(GetParam().group);
  ASSERT_TRUE(joined.ok()) << joined;
  ASSERT_EQ(member.SendToGroup(GetParam().group, "x", GetParam().sgid_index), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&*left_, &lo}, [&] { return member.receives.all.size() == 1; }));
  Settle({&*left_, &lo});
  EXPECT_TRUE(other.receives.all.empty());
}

TEST(MulticastLoopback, DaemonsOnLoopbackAddressesHearEachOther) {
  SoftHost one({"127.0.0.2"}, TestPort());
  SoftHost two({"127.0.0.3"}, TestPort());
  UdEnd a(one), b(two);
  ASSERT_TRUE(a.Join("239.1.2.4").ok());
  ASSERT_TRUE(b.Join("239.1.2.4").ok());
  ASSERT_EQ(a.SendToGroup("239.1.2.4", "hello"), PostResult::kOk);
  ASSERT_TRUE(
      TurnUntil({&one, &two}, [&] { return !a.receives.all.empty() && !b.receives.all.empty(); }));
  Settle({&one, &two});
  EXPECT_EQ(a.receives.all.size(), 1u);
  EXPECT_EQ(b.receives.all.size(), 1u);
}

TEST(MulticastLoopback, AQpThatIsAttachedTwiceGetsOneCopyUntilBothAreGone) {
  SoftHost host({"127.0.0.2"}, TestPort());
  UdEnd a(host);
  ASSERT_TRUE(a.Join("239.1.2.5").ok());
  ASSERT_TRUE(a.Join("239.1.2.5").ok());
  for (size_t i = 1; i <= 2; ++i) {
    ASSERT_EQ(a.SendToGroup("239.1.2.5", "x"), PostResult::kOk);
    ASSERT_TRUE(TurnUntil({&host}, [&] { return a.receives.all.size() >= i; }));
    Settle({&host});
    EXPECT_EQ(a.receives.all.size(), i);
    a.Leave();
  }
}

TEST(MulticastLoopback, RefusesWhatIsNoGroupAndNoDatagramQp) {
  SoftHost host({"127.0.0.2"}, TestPort());
  UdEnd a(host);
  EXPECT_TRUE(absl::IsInvalidArgument(a.Join("127.0.0.3")));
  testing::RcEnd rc(host, 64);
  EXPECT_TRUE(absl::IsInvalidArgument(
      host.device().AttachMulticast(*rc.qp, *IpAddress::Parse("239.1.2.3")).status()));
}

TEST(UdLoopback, DatagramsToAnotherDaemonAndWithinOne) {
  SoftHost one({"127.0.0.2"}, TestPort());
  SoftHost two({"127.0.0.3"}, TestPort());
  UdEnd a(one), near(one), far(two);
  ASSERT_EQ(a.Send("127.0.0.3", far.qp->qpn(), "far"), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&one, &two}, [&] { return far.receives.all.size() == 1; }));
  ASSERT_EQ(a.Send("127.0.0.2", near.qp->qpn(), "near"), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&one, &two}, [&] { return near.receives.all.size() == 1; }));
  EXPECT_EQ(far.Text(0), "far");
  EXPECT_EQ(near.Text(0), "near");
  EXPECT_EQ(one.Counter("udp_tx_packets"), 1u);
  EXPECT_EQ(one.SharedCounter("local_messages"), 1u);
}

TEST_P(MulticastTest, MembersOnEveryEngineGetOneCopyEach) {
  left_.reset();
  left_.emplace(std::vector<std::string>{"192.0.2.1", "fd00:4791::1"}, TestPort(),
                testing::SoftHostOptions{.engines = 2});
  UdEnd a(*left_, testing::kUdQkey, 0);
  UdEnd b(*left_, testing::kUdQkey, 1);
  UdEnd c(*left_, testing::kUdQkey, 1);
  for (UdEnd* end : {&a, &b, &c}) ASSERT_TRUE(end->Join(GetParam().group).ok());
  ASSERT_EQ(b.SendToGroup(GetParam().group, "all", GetParam().sgid_index), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&*left_}, [&] {
    return !a.receives.all.empty() && !b.receives.all.empty() && !c.receives.all.empty();
  }));
  Settle({&*left_});
  for (UdEnd* end : {&a, &b, &c}) EXPECT_EQ(end->receives.all.size(), 1u);
  // Nobody is left on the first engine; the second's still hear.
  a.Leave();
  ASSERT_EQ(b.SendToGroup(GetParam().group, "some", GetParam().sgid_index), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&*left_}, [&] { return c.receives.all.size() == 2; }));
  EXPECT_EQ(a.receives.all.size(), 1u);
}

}  // namespace
}  // namespace rdmad::soft
