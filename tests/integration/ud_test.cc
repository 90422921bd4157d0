// Datagrams: address handles, QKeys, sizes, and the UDP port space of rdma_cm.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kQkey = 0x11223344;
constexpr size_t kRecvBytes = 8192;
constexpr size_t kSendAt = WiredEnd::kMemoryBytes / 2;

class UdTest : public PathTest {
 protected:
  void MakeEnds() {
    ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address(), {.type = QpType::kUd}));
    ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(passive(), passive_address(), {.type = QpType::kUd}));
    a_.emplace(std::move(a));
    b_.emplace(std::move(b));
    for (WiredEnd* end : {&*a_, &*b_}) ASSERT_OK(MakeReady(*end, kQkey));
    ASSERT_OK_AND_ASSIGN(to_b_, AddressHandle::Create(a_->pd, WayTo(*a_, *b_)));
  }
  // From the second half of the memory.
  static absl::Status Send(WiredEnd& from, const AddressHandle& ah, uint32_t qpn,
                           size_t length_bytes, uint32_t qkey = kQkey) {
    return from.qp.PostUdSend(1, from.memory.data() + kSendAt, length_bytes, &from.region,
                              kSendSignaled, ah, qpn, qkey);
  }
  static std::span<const std::byte> Grh(const WiredEnd& end) {
    return {end.memory.data(), kGrhBytes};
  }

  std::optional<WiredEnd> a_;
  std::optional<WiredEnd> b_;
  AddressHandle to_b_;
};

INSTANTIATE_TEST_SUITE_P(Paths, UdTest, ::testing::ValuesIn(kAllPaths), NameOfPath);

TEST_P(UdTest, DatagramIsAnsweredByWhatItsGrhSays) {
  ASSERT_NO_FATAL_FAILURE(MakeEnds());
  ASSERT_OK(b_->PostRecv(2, 0, kRecvBytes));
  ASSERT_OK(a_->PostRecv(3, 0, kRecvBytes));
  FillPattern({a_->memory.data() + kSendAt, 1000}, 1);
  ASSERT_OK(Send(*a_, to_b_, b_->qp.qpn(), 1000));
  ASSERT_OK_AND_ASSIGN(const Wc sent, WaitForWc(a_->cq));
  EXPECT_EQ(sent.status, WcStatus::kSuccess);
  EXPECT_EQ(sent.wr_id, 1u);
  ASSERT_OK_AND_ASSIGN(const Wc asked, WaitForWc(b_->cq));
  ASSERT_EQ(asked.status, WcStatus::kSuccess);
  EXPECT_EQ(asked.byte_len, kGrhBytes + 1000);
  EXPECT_EQ(asked.src_qpn, a_->qp.qpn());
  EXPECT_NE(asked.flags & kWcGrh, 0u);
  EXPECT_EQ(PatternMismatch({b_->memory.data() + kGrhBytes, 1000}, 1), std::nullopt);

  ASSERT_OK_AND_ASSIGN(const AddressHandle back,
                       AddressHandle::CreateFromWc(b_->pd, asked, Grh(*b_)));
  FillPattern({b_->memory.data() + kSendAt, 10}, 2);
  ASSERT_OK(Send(*b_, back, asked.src_qpn, 10));
  ASSERT_OK_AND_ASSIGN(const Wc answered, WaitForWc(a_->cq));
  EXPECT_EQ(answered.status, WcStatus::kSuccess);
  EXPECT_EQ(answered.wr_id, 3u);
  EXPECT_EQ(answered.src_qpn, b_->qp.qpn());
  EXPECT_EQ(PatternMismatch({a_->memory.data() + kGrhBytes, 10}, 2), std::nullopt);
}

// What the IP header said, in the place of a GRH: that of IPv6 as it is, that of IPv4 in its last bytes.
TEST_P(UdTest, TheGrhOfAReceiveSaysWhatTheAddressHandleSaid) {
  ASSERT_NO_FATAL_FAILURE(MakeEnds());
  AddressHandleAttr way = WayTo(*a_, *b_);
  way.flow_label = 0xabcde;
  way.traffic_class = 0x48;
  way.hop_limit = 33;
  ASSERT_OK_AND_ASSIGN(const AddressHandle ah, AddressHandle::Create(a_->pd, way));
  ASSERT_OK(b_->PostRecv(2, 0, kRecvBytes));
  ASSERT_OK(Send(*a_, ah, b_->qp.qpn(), 10));
  ASSERT_OK(WaitForWc(b_->cq));
  const auto grh = [&](size_t at) { return std::to_integer<uint32_t>(Grh(*b_)[at]); };
  // The two lowest bits of the class are ECN's, the network's own.
  const uint32_t traffic_class = GetParam().ipv6 ? (grh(0) & 0xf) << 4 | grh(1) >> 4 : grh(21);
  EXPECT_EQ(traffic_class & 0xfc, 0x48u);
  if (OnVerbs()) return;  // the kernel takes the hop limit from its routes, rxe no flow label
  EXPECT_EQ(GetParam().ipv6 ? grh(7) : grh(28), 33u);
  if (GetParam().ipv6) {
    EXPECT_EQ((grh(1) & 0xf) << 16 | grh(2) << 8 | grh(3), 0xabcdeu);
  }
}

TEST_P(UdTest, SizesFromNothingToThePathMtu) {
  ASSERT_NO_FATAL_FAILURE(MakeEnds());
  const size_t mtu = MtuBytes(std::min(a_->device.active_mtu, b_->device.active_mtu));
  for (const size_t length : {size_t{0}, size_t{1}, size_t{3}, mtu - 1, mtu}) {
    SCOPED_TRACE(length);
    ASSERT_OK(b_->PostRecv(2, 0, kRecvBytes));
    FillPattern({a_->memory.data() + kSendAt, length}, length);
    ASSERT_OK(Send(*a_, to_b_, b_->qp.qpn(), length));
    ASSERT_OK_AND_ASSIGN(const Wc sent, WaitForWc(a_->cq));
    EXPECT_EQ(sent.status, WcStatus::kSuccess);
    ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(b_->cq));
    EXPECT_EQ(received.status, WcStatus::kSuccess);
    EXPECT_EQ(received.byte_len, kGrhBytes + length);
    EXPECT_EQ(PatternMismatch({b_->memory.data() + kGrhBytes, length}, length), std::nullopt);
  }
}

TEST_P(UdTest, ImmediateDataComesAlong) {
  ASSERT_NO_FATAL_FAILURE(MakeEnds());
  ASSERT_OK(b_->PostRecv(2, 0, kRecvBytes));
  SendWr wr;
  wr.opcode = WrOpcode::kSendWithImm;
  wr.imm_be = htonl(0xcafe);
  wr.ah = &to_b_;
  wr.remote_qpn = b_->qp.qpn();
  wr.remote_qkey = kQkey;
  ASSERT_OK(a_->qp.PostSend({&wr, 1}));
  ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(b_->cq));
  EXPECT_NE(received.flags & kWcWithImm, 0u);
  EXPECT_EQ(ntohl(received.imm_be), 0xcafeu);
}

TEST_P(UdTest, DatagramWithAnotherQkeyIsDroppedAndTheNextArrives) {
  ASSERT_NO_FATAL_FAILURE(MakeEnds());
  ASSERT_OK(b_->PostRecv(2, 0, kRecvBytes));
  ASSERT_OK(Send(*a_, to_b_, b_->qp.qpn(), 8, kQkey + 1));
  ASSERT_OK_AND_ASSIGN(const Wc lost, WaitForWc(a_->cq));
  EXPECT_EQ(lost.status, WcStatus::kSuccess);
  EXPECT_FALSE(WaitForWc(b_->cq, absl::Milliseconds(50)).ok());
  ASSERT_OK(Send(*a_, to_b_, b_->qp.qpn(), 8));
  ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(b_->cq));
  EXPECT_EQ(received.status, WcStatus::kSuccess);
}

TEST_P(UdTest, DatagramWithoutReceiveIsLostAndTheNextArrives) {
  ASSERT_NO_FATAL_FAILURE(MakeEnds());
  ASSERT_OK(Send(*a_, to_b_, b_->qp.qpn(), 8));
  ASSERT_OK_AND_ASSIGN(const Wc lost, WaitForWc(a_->cq));
  EXPECT_EQ(lost.status, WcStatus::kSuccess);
  EXPECT_FALSE(WaitForWc(b_->cq, absl::Milliseconds(50)).ok());
  ASSERT_OK(b_->PostRecv(2, 0, kRecvBytes));
  ASSERT_OK(Send(*a_, to_b_, b_->qp.qpn(), 8));
  ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(b_->cq));
  EXPECT_EQ(received.wr_id, 2u);
}

TEST_P(UdTest, HandleForAnAddressThatTheDeviceLacksIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakeEnds());
  AddressHandleAttr attr = WayTo(*a_, *b_);
  attr.sgid_index = 9999;
  EXPECT_TRUE(absl::IsInvalidArgument(AddressHandle::Create(a_->pd, attr).status()));
}

// ---- rdma_cm

class UdCmTest : public PathTest {
 protected:
  struct End {
    std::unique_ptr<EventChannel> channel;
    std::unique_ptr<CmId> id;
    Buffer memory;
    MemoryRegion region;
  };

  static absl::StatusOr<End> MakeUdpId(const Client& client) {
    End end;
    absl::StatusOr<std::unique_ptr<EventChannel>> channel = EventChannel::Create(client);
    if (!channel.ok()) return channel.status();
    end.channel = std::move(channel).value();
    absl::StatusOr<std::unique_ptr<CmId>> id =
        CmId::Create(client, end.channel.get(), PortSpace::kUdp);
    if (!id.ok()) return id.status();
    end.id = std::move(id).value();
    return end;
  }
  // A QP and memory for an id that knows its device.
  static void Equip(const Client& client, End& end) {
    ASSERT_OK(end.id->CreateQp(nullptr, UdInit()));
    ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client, 2 * kRecvBytes));
    ASSERT_OK_AND_ASSIGN(end.memory, pool.Allocate(2 * kRecvBytes));
    ASSERT_OK_AND_ASSIGN(end.region, end.id->RegMsgs(end.memory.data(), 2 * kRecvBytes));
  }
  static QpInit UdInit() {
    QpInit init;
    init.type = QpType::kUd;
    return init;
  }
  void Listen() {
    ASSERT_OK_AND_ASSIGN(listener_, MakeUdpId(passive()));
    ASSERT_OK_AND_ASSIGN(const Address local, Address::Parse(WithPort(passive_address(), 0)));
    ASSERT_OK(listener_.id->BindAddr(local));
    ASSERT_OK(listener_.id->Listen());
  }
  void ResolvePeer() {
    ASSERT_OK_AND_ASSIGN(active_, MakeUdpId(active()));
    ASSERT_OK(active_.id->ResolveAddr(Address(), listener_.id->local_addr(), absl::Seconds(2)));
    ASSERT_OK(ExpectEvent(*active_.channel, CmEventType::kAddrResolved).status());
    ASSERT_OK(active_.id->ResolveRoute(absl::Seconds(2)));
    ASSERT_OK(ExpectEvent(*active_.channel, CmEventType::kRouteResolved).status());
    ASSERT_NO_FATAL_FAILURE(Equip(active(), active_));
  }

  End listener_;
  End active_;
};

INSTANTIATE_TEST_SUITE_P(Paths, UdCmTest, ::testing::ValuesIn(kAllPaths), NameOfPath);

TEST_P(UdCmTest, ListenersQpIsFoundAndAnswers) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  ASSERT_NO_FATAL_FAILURE(ResolvePeer());
  ConnParam hello;
  hello.private_data = {'h', 'i'};
  ASSERT_OK(active_.id->Connect(hello));
  ASSERT_OK_AND_ASSIGN(auto request, ExpectEvent(*listener_.channel, CmEventType::kConnectRequest));
  ASSERT_GE(request->param().private_data.size(), 2u);
  EXPECT_EQ(request->param().private_data[0], 'h');
  End served;
  served.id = request->TakeId();
  request.reset();
  ASSERT_NO_FATAL_FAILURE(Equip(passive(), served));
  ASSERT_OK(served.id->qp().PostRecv(1, served.memory.data(), kRecvBytes, &served.region));
  ASSERT_OK(AwaitPosted(served.id->qp()));
  ASSERT_OK(served.id->Accept());

  ASSERT_OK_AND_ASSIGN(auto established, ExpectEvent(*active_.channel, CmEventType::kEstablished));
  const UdParam peer = established->ud();
  EXPECT_EQ(peer.qpn, served.id->qp().qpn());
  EXPECT_EQ(peer.qkey, kUdpQkey);
  established.reset();
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, active_.id->pd());
  ASSERT_OK_AND_ASSIGN(const AddressHandle ah, AddressHandle::Create(pd, peer.ah));
  FillPattern({active_.memory.data(), 100}, 1);
  ASSERT_OK(active_.id->qp().PostUdSend(2, active_.memory.data(), 100, &active_.region,
                                        kSendSignaled, ah, peer.qpn, peer.qkey));
  ASSERT_OK_AND_ASSIGN(const Wc wc, served.id->GetRecvComp(Slow(absl::Seconds(5))));
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.src_qpn, active_.id->qp().qpn());
  EXPECT_EQ(PatternMismatch({served.memory.data() + kGrhBytes, 100}, 1), std::nullopt);
}

// The QP that answers has the QKey that its application has told the peer.
TEST_P(UdCmTest, TheAcceptingApplicationMayChooseTheQkey) {
  constexpr uint32_t kOwnQkey = 0x4711;
  ASSERT_NO_FATAL_FAILURE(Listen());
  ASSERT_NO_FATAL_FAILURE(ResolvePeer());
  ASSERT_OK(active_.id->Connect());
  ASSERT_OK_AND_ASSIGN(auto request, ExpectEvent(*listener_.channel, CmEventType::kConnectRequest));
  End served;
  served.id = request->TakeId();
  request.reset();
  ASSERT_NO_FATAL_FAILURE(Equip(passive(), served));
  ASSERT_OK(served.id->qp().PostRecv(1, served.memory.data(), kRecvBytes, &served.region));
  ASSERT_OK(AwaitPosted(served.id->qp()));
  ConnParam answer;
  answer.qkey = kOwnQkey;
  const absl::Status accepted = served.id->Accept(answer);
  if (OnVerbs()) {
    EXPECT_TRUE(absl::IsUnimplemented(accepted)) << "rdma_cm tells a QKey of its own: " << accepted;
    return;
  }
  ASSERT_OK(accepted);
  ASSERT_OK_AND_ASSIGN(auto established, ExpectEvent(*active_.channel, CmEventType::kEstablished));
  const UdParam peer = established->ud();
  EXPECT_EQ(peer.qkey, kOwnQkey);
  EXPECT_EQ(served.id->qp().Query()->qkey, kOwnQkey);
  established.reset();
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, active_.id->pd());
  ASSERT_OK_AND_ASSIGN(const AddressHandle ah, AddressHandle::Create(pd, peer.ah));
  ASSERT_OK(active_.id->qp().PostUdSend(2, active_.memory.data(), 100, &active_.region,
                                        kSendSignaled, ah, peer.qpn, peer.qkey));
  ASSERT_OK_AND_ASSIGN(const Wc wc, served.id->GetRecvComp(Slow(absl::Seconds(5))));
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
}

TEST_P(UdCmTest, RefusedPeerHearsSo) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  ASSERT_NO_FATAL_FAILURE(ResolvePeer());
  ASSERT_OK(active_.id->Connect());
  ASSERT_OK_AND_ASSIGN(auto request, ExpectEvent(*listener_.channel, CmEventType::kConnectRequest));
  const std::vector<uint8_t> why = {'f', 'u', 'l', 'l'};
  ASSERT_OK(request->id()->Reject(why));
  request.reset();
  // As the kernel's rdma_cm says it.
  ASSERT_OK_AND_ASSIGN(auto refused, ExpectEvent(*active_.channel, CmEventType::kUnreachable));
  EXPECT_FALSE(refused->ToStatus().ok());
  EXPECT_EQ(refused->status(), 2);  // "rejected" of IBTA vol. 1, SIDR_REP
  const std::vector<uint8_t>& data = refused->param().private_data;
  ASSERT_GE(data.size(), why.size());
  EXPECT_TRUE(std::equal(why.begin(), why.end(), data.begin()));
}

TEST_P(UdCmTest, WhereNobodyListensThePeerHearsSo) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  ASSERT_NO_FATAL_FAILURE(ResolvePeer());
  ASSERT_OK(listener_.id->DestroyId());
  ASSERT_OK(active_.id->Connect());
  ASSERT_OK_AND_ASSIGN(auto nobody, ExpectEvent(*active_.channel, CmEventType::kUnreachable));
  EXPECT_EQ(nobody->status(), 1);  // "service id not supported"
}

TEST_P(UdCmTest, PortSpacesOfTcpAndUdpAreApart) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<CmId> tcp, CmId::Create(passive()));
  EXPECT_OK(tcp->BindAddr(listener_.id->local_addr()));
}

// rdma_create_ep, everything synchronous.
TEST_P(UdCmTest, EndpointsByNameAreReadyWhenTheyConnect) {
  AddrInfoHints hints;
  hints.port_space = PortSpace::kUdp;
  hints.numeric_host = true;
  hints.passive = true;
  const QpInit init;  // the type is the address's
  ASSERT_OK_AND_ASSIGN(const auto local, GetAddrInfo(passive_address(), "0", hints));
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<CmId> listener,
                       CmId::CreateEp(passive(), local[0], nullptr, &init));
  ASSERT_OK(listener->Listen());
  std::thread server([&] {
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<CmId> served,
                         listener->GetRequest(Slow(absl::Seconds(10))));
    ASSERT_OK(served->Accept());
    ASSERT_EQ(served->qp().type(), QpType::kUd);
    listener_.id = std::move(served);
  });
  hints.passive = false;
  absl::StatusOr<std::vector<AddrInfo>> peer =
      GetAddrInfo(passive_address(), std::to_string(listener->src_port()), hints);
  EXPECT_OK(peer);
  absl::StatusOr<std::unique_ptr<CmId>> id =
      CmId::CreateEp(active(), peer->front(), nullptr, &init);
  const absl::Status connected = id.ok() ? (*id)->Connect() : id.status();
  server.join();
  EXPECT_OK(connected);
  ASSERT_TRUE(id.ok() && listener_.id != nullptr);
  EXPECT_EQ((*id)->event()->ud().qpn, listener_.id->qp().qpn());
}

}  // namespace
}  // namespace rdmad::testing
