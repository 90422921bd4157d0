// Multicast groups: members in several applications and daemons, joined by rdma_cm or by hand.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr size_t kBytes = 500;
constexpr size_t kRecvBytes = 4096;
constexpr uint64_t kCookie = 0xfeedface01234567;

// An id of the UDP port space with a QP, which has joined a group.
struct Member {
  std::unique_ptr<EventChannel> channel;
  std::unique_ptr<CmId> id;
  Buffer memory;
  MemoryRegion region;
  UdParam group;  // as the event of the join told

  void PostRecv() {
    ASSERT_OK(id->qp().PostRecv(1, memory.data(), kRecvBytes, &region));
    ASSERT_OK(AwaitPosted(id->qp()));
  }
};

Address Group(bool ipv6 = false, int number = 1) {
  const std::string text = ipv6 ? "[ff15::4791:" + std::to_string(number) + "]:0"
                                : "239.47.91." + std::to_string(number);
  return *Address::Parse(text);
}

// Bound to `address` and equipped, in no group.
void Make(const Client& client, const std::string& address, Member* member) {
  ASSERT_OK_AND_ASSIGN(member->channel, EventChannel::Create(client));
  ASSERT_OK_AND_ASSIGN(member->id, CmId::Create(client, member->channel.get(), PortSpace::kUdp));
  ASSERT_OK_AND_ASSIGN(const Address local, Address::Parse(WithPort(address, 0)));
  ASSERT_OK(member->id->BindAddr(local));
  QpInit init;
  init.type = QpType::kUd;
  ASSERT_OK(member->id->CreateQp(nullptr, init));
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client, 2 * kRecvBytes));
  ASSERT_OK_AND_ASSIGN(member->memory, pool.Allocate(2 * kRecvBytes));
  ASSERT_OK_AND_ASSIGN(member->region, member->id->RegMsgs(member->memory.data(), 2 * kRecvBytes));
}

void Join(Member* member, MulticastJoin join = MulticastJoin::kFullMember,
          const Address& group = Group()) {
  ASSERT_OK(member->id->JoinMulticast(group, kCookie, join));
  ASSERT_OK_AND_ASSIGN(auto event, ExpectEvent(*member->channel, CmEventType::kMulticastJoin));
  EXPECT_EQ(event->multicast_cookie(), kCookie);
  EXPECT_EQ(event->status(), 0);
  member->group = event->ud();
  EXPECT_EQ(member->group.qpn, kMulticastQpn);
}

void Send(Member& from, uint64_t seed) {
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, from.id->pd());
  ASSERT_OK_AND_ASSIGN(const AddressHandle ah, AddressHandle::Create(pd, from.group.ah));
  std::byte* bytes = from.memory.data() + kRecvBytes;
  FillPattern({bytes, kBytes}, seed);
  ASSERT_OK(from.id->qp().PostUdSend(2, bytes, kBytes, &from.region, kSendSignaled, ah,
                                     from.group.qpn, from.group.qkey));
  ASSERT_OK_AND_ASSIGN(const Wc sent, from.id->GetSendComp(Slow(absl::Seconds(5))));
  EXPECT_EQ(sent.status, WcStatus::kSuccess);
}

void ExpectReceived(Member& member, uint64_t seed, uint32_t from_qpn) {
  ASSERT_OK_AND_ASSIGN(const Wc wc, member.id->GetRecvComp(Slow(absl::Seconds(5))));
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.byte_len, kGrhBytes + kBytes);
  EXPECT_EQ(wc.src_qpn, from_qpn);
  EXPECT_EQ(PatternMismatch({member.memory.data() + kGrhBytes, kBytes}, seed), std::nullopt);
}

void ExpectNothing(Member& member) {
  EXPECT_FALSE(member.id->GetRecvComp(absl::Milliseconds(50)).ok());
}

// A place where members live.
struct Home {
  const Client& client;
  std::string address;
};

// A sender at the first home, two members at each: everyone gets the message once.
void SendToAll(const std::array<Home, 2>& homes, const Address& group) {
  Member sender;
  ASSERT_NO_FATAL_FAILURE(Make(homes[0].client, homes[0].address, &sender));
  ASSERT_NO_FATAL_FAILURE(Join(&sender, MulticastJoin::kSendOnly, group));
  std::array<Member, 4> members;
  for (size_t i = 0; i < members.size(); ++i) {
    ASSERT_NO_FATAL_FAILURE(Make(homes[i % 2].client, homes[i % 2].address, &members[i]));
    ASSERT_NO_FATAL_FAILURE(Join(&members[i], MulticastJoin::kFullMember, group));
    for (int wr = 0; wr < 2; ++wr) ASSERT_NO_FATAL_FAILURE(members[i].PostRecv());
  }
  ASSERT_NO_FATAL_FAILURE(Send(sender, 7));
  for (Member& member : members) {
    ASSERT_NO_FATAL_FAILURE(ExpectReceived(member, 7, sender.id->qp().qpn()));
  }
  for (Member& member : members) ExpectNothing(member);
}

// IPv4 only: the kernel has no IPv6 multicast on the loopback interface.
class MulticastTest : public PathTest {
 protected:
  void SetUp() override {
    PathTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) return;
    ASSERT_OK_AND_ASSIGN(const std::vector<DeviceInfo> devices, active().GetDevices());
    for (const DeviceInfo& device : devices) {
      if (device.max_mcast_groups == 0) GTEST_SKIP() << device.name << " has no multicast";
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, MulticastTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

TEST_P(MulticastTest, EveryMemberGetsOneCopyWhereverItIs) {
  SendToAll({Home{active(), active_address()}, Home{passive(), passive_address()}}, Group());
}

TEST_P(MulticastTest, WhoSendsOnlyHearsNothing) {
  Member sender;
  Member listener;
  ASSERT_NO_FATAL_FAILURE(Make(active(), active_address(), &sender));
  ASSERT_NO_FATAL_FAILURE(Make(passive(), passive_address(), &listener));
  ASSERT_NO_FATAL_FAILURE(Join(&sender, MulticastJoin::kSendOnly));
  ASSERT_NO_FATAL_FAILURE(Join(&listener));
  ASSERT_NO_FATAL_FAILURE(sender.PostRecv());
  ASSERT_NO_FATAL_FAILURE(listener.PostRecv());
  ASSERT_NO_FATAL_FAILURE(Send(listener, 3));
  ExpectNothing(sender);
}

TEST_P(MulticastTest, WhoLeftHearsNoMoreAndTheOthersDo) {
  Member sender;
  Member stays;
  Member leaves;
  ASSERT_NO_FATAL_FAILURE(Make(active(), active_address(), &sender));
  ASSERT_NO_FATAL_FAILURE(Join(&sender, MulticastJoin::kSendOnly));
  for (Member* member : {&stays, &leaves}) {
    ASSERT_NO_FATAL_FAILURE(Make(passive(), passive_address(), member));
    ASSERT_NO_FATAL_FAILURE(Join(member));
    ASSERT_NO_FATAL_FAILURE(member->PostRecv());
  }
  ASSERT_OK(leaves.id->LeaveMulticast(Group()));
  ASSERT_NO_FATAL_FAILURE(Send(sender, 4));
  ASSERT_NO_FATAL_FAILURE(ExpectReceived(stays, 4, sender.id->qp().qpn()));
  ExpectNothing(leaves);
}

TEST_P(MulticastTest, GroupsAreApart) {
  Member sender;
  Member other;
  ASSERT_NO_FATAL_FAILURE(Make(active(), active_address(), &sender));
  ASSERT_NO_FATAL_FAILURE(Make(passive(), passive_address(), &other));
  ASSERT_NO_FATAL_FAILURE(Join(&sender, MulticastJoin::kSendOnly, Group(false, 1)));
  ASSERT_NO_FATAL_FAILURE(Join(&other, MulticastJoin::kFullMember, Group(false, 2)));
  ASSERT_NO_FATAL_FAILURE(other.PostRecv());
  ASSERT_NO_FATAL_FAILURE(Send(sender, 5));
  ExpectNothing(other);
}

TEST_P(MulticastTest, JoiningTwiceAndLeavingWithoutAreErrors) {
  Member member;
  ASSERT_NO_FATAL_FAILURE(Make(active(), active_address(), &member));
  EXPECT_FALSE(member.id->LeaveMulticast(Group()).ok());
  ASSERT_NO_FATAL_FAILURE(Join(&member));
  EXPECT_FALSE(member.id->JoinMulticast(Group()).ok());
  ASSERT_OK(member.id->LeaveMulticast(Group()));
  EXPECT_FALSE(member.id->LeaveMulticast(Group()).ok());
  ASSERT_NO_FATAL_FAILURE(Join(&member));
}

TEST_P(MulticastTest, AddressOfNoGroupIsRefused) {
  Member member;
  ASSERT_NO_FATAL_FAILURE(Make(active(), active_address(), &member));
  EXPECT_TRUE(absl::IsInvalidArgument(member.id->JoinMulticast(member.id->local_addr())));
}

TEST_P(MulticastTest, SynchronousIdJoinsInOneCall) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<CmId> id, CmId::Create(active(), nullptr, PortSpace::kUdp));
  ASSERT_OK_AND_ASSIGN(const Address local, Address::Parse(WithPort(active_address(), 0)));
  ASSERT_OK(id->BindAddr(local));
  ASSERT_OK(id->JoinMulticast(Group(), 5));
  ASSERT_NE(id->event(), nullptr);
  EXPECT_EQ(id->event()->multicast_cookie(), 5u);
  EXPECT_OK(id->LeaveMulticast(Group()));
}

// ibv_attach_mcast: the QP is the application's own, with the group's QKey.
TEST_P(MulticastTest, QpAttachedByHandHearsUntilItIsDetached) {
  Member sender;
  ASSERT_NO_FATAL_FAILURE(Make(active(), active_address(), &sender));
  ASSERT_NO_FATAL_FAILURE(Join(&sender, MulticastJoin::kSendOnly));
  ASSERT_OK_AND_ASSIGN(WiredEnd end, MakeEnd(passive(), passive_address(), {.type = QpType::kUd}));
  ASSERT_OK(MakeReady(end, sender.group.qkey));
  ASSERT_OK(end.qp.AttachMulticast(sender.group.ah.dest_gid));
  for (uint64_t i = 0; i < 2; ++i) ASSERT_OK(end.PostRecv(i, 0, kRecvBytes));
  ASSERT_NO_FATAL_FAILURE(Send(sender, 6));
  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(end.cq));
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(PatternMismatch({end.memory.data() + kGrhBytes, kBytes}, 6), std::nullopt);
  ASSERT_OK(end.qp.DetachMulticast(sender.group.ah.dest_gid));
  ASSERT_NO_FATAL_FAILURE(Send(sender, 6));
  EXPECT_FALSE(WaitForWc(end.cq, absl::Milliseconds(50)).ok());
}

// On a network: a switch may need IGMP and MLD, and the hosts have two families.
class MulticastHostsTest : public TwoHostsTest {};

TEST_F(MulticastHostsTest, EveryMemberOfEitherHostGetsOneCopy) {
  if (!Start({})) return;
  for (const bool ipv6 : {false, true}) {
    SCOPED_TRACE(ipv6 ? "IPv6" : "IPv4");
    const auto address = [&](int host) {
      return ipv6 ? TwoHosts::Ipv6(host) : TwoHosts::Ipv4(host);
    };
    ASSERT_NO_FATAL_FAILURE(
        SendToAll({Home{client(0), address(0)}, Home{client(1), address(1)}}, Group(ipv6)));
  }
}

}  // namespace
}  // namespace rdmad::testing
