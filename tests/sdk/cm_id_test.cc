// Ids of the UDP port space, multicast, and SRQs of ids.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <thread>

#include "client/sdk/event_channel.h"
#include "client/sdk/queue_pair.h"
#include "client/sdk/status_errno.h"
#include "rdmad/cm.h"
#include "tests/sdk/fake_daemon.h"

namespace rdmad::sdk {
namespace {

using testing::FakeDaemon;

shm::CmEvent EventOf(uint64_t id, CmEventType type) {
  shm::CmEvent event{};
  event.type = static_cast<uint32_t>(type);
  event.id_handle = id;
  event.device_index = 0;
  return event;
}

class CmIdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    session_ = daemon_.Attach();
    channel_ = std::make_unique<EventChannel>(*EventChannelState::Create(session_));
  }

  // An id that knows its device.
  std::unique_ptr<CmId> ResolvedId(PortSpace port_space) {
    std::unique_ptr<CmId> id = *MakeId(channel_->state(), port_space);
    daemon_.SendEvent(EventOf(id->handle(), CmEventType::kAddrResolved));
    EXPECT_TRUE(channel_->GetEvent().ok());
    return id;
  }
  std::unique_ptr<CmId> SyncId(PortSpace port_space) {
    std::unique_ptr<CmId> id = ResolvedId(port_space);
    EXPECT_TRUE(id->Migrate(nullptr).ok());
    return id;
  }
  // Sends the event once the call was made.
  std::thread Answer(const char* method, const shm::CmEvent& event) {
    return std::thread([this, method, event] {
      while (daemon_.calls(method) == 0) std::this_thread::yield();
      daemon_.SendEvent(event);
    });
  }

  FakeDaemon daemon_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<EventChannel> channel_;
};

TEST_F(CmIdTest, DatagramQpIsReadyAtOnce) {
  const std::unique_ptr<CmId> id = ResolvedId(PortSpace::kUdp);
  ASSERT_TRUE(id->CreateQp(nullptr, {.type = QpType::kUd, .send_cq = {}, .recv_cq = {}, .cap = {}}).ok());
  EXPECT_EQ(daemon_.LastRequest<v1::CreateQpRequest>("CreateQp").cm_id(), id->handle());
  const AddressHandle ah = *AddressHandle::Create(*id->pd(), {});
  EXPECT_TRUE(id->qp().PostUdSend(1, nullptr, 0, nullptr, 0, ah, 1).ok());
}

TEST_F(CmIdTest, TypeOfQpMustFitThePortSpace) {
  const std::unique_ptr<CmId> udp = ResolvedId(PortSpace::kUdp);
  const std::unique_ptr<CmId> tcp = ResolvedId(PortSpace::kTcp);
  EXPECT_EQ(StatusToErrno(udp->CreateQp(nullptr, {})), EINVAL);
  EXPECT_EQ(StatusToErrno(tcp->CreateQp(nullptr, {.type = QpType::kUd, .send_cq = {}, .recv_cq = {}, .cap = {}})),
            EINVAL);
  EXPECT_EQ(daemon_.calls("CreateQp"), 0);
}

TEST_F(CmIdTest, EstablishedTellsTheWayToThePeer) {
  const std::unique_ptr<CmId> id = ResolvedId(PortSpace::kUdp);
  shm::CmEvent raw = EventOf(id->handle(), CmEventType::kEstablished);
  raw.qpn = 0x1234;
  raw.qkey = kUdpQkey;
  for (uint8_t i = 0; i < 16; ++i) raw.ah_dest_gid[i] = i;
  raw.ah_sgid_index = 3;
  raw.ah_flow_label = 0xabcde;
  raw.ah_traffic_class = 7;
  raw.ah_hop_limit = 9;
  raw.ah_dlid = 0xc001;
  raw.ah_service_level = 2;
  raw.ah_src_path_bits = 1;
  daemon_.SendEvent(raw);
  const std::unique_ptr<CmEvent> event = *channel_->GetEvent();
  EXPECT_EQ(event->ud().qpn, 0x1234u);
  EXPECT_EQ(event->ud().qkey, kUdpQkey);
  AddressHandleAttr expected;
  for (uint8_t i = 0; i < 16; ++i) expected.dest_gid[i] = i;
  expected.sgid_index = 3;
  expected.flow_label = 0xabcde;
  expected.traffic_class = 7;
  expected.hop_limit = 9;
  expected.dlid = 0xc001;
  expected.service_level = 2;
  expected.src_path_bits = 1;
  EXPECT_EQ(event->ud().ah, expected);
}

TEST_F(CmIdTest, SynchronousDatagramConnectEndsWithEstablishedThoughTheIdHasNoQp) {
  const std::unique_ptr<CmId> id = SyncId(PortSpace::kUdp);
  shm::CmEvent raw = EventOf(id->handle(), CmEventType::kEstablished);
  raw.qpn = 5;
  std::thread peer = Answer("Connect", raw);
  const absl::Status status = id->Connect();
  peer.join();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(id->event()->ud().qpn, 5u);
}

TEST_F(CmIdTest, SynchronousDatagramAcceptWaitsForNothing) {
  const std::unique_ptr<CmId> id = SyncId(PortSpace::kUdp);
  EXPECT_TRUE(id->Accept().ok());
}

// ---- what a connection is of

TEST_F(CmIdTest, RequestsSayWhichTypeOfQpAsksAndAnswersLeaveItOpen) {
  const std::unique_ptr<CmId> listener = ResolvedId(PortSpace::kTcp);
  for (const QpType type : {QpType::kRc, QpType::kUc}) {
    shm::CmEvent raw = EventOf(9000 + static_cast<uint64_t>(type), CmEventType::kConnectRequest);
    raw.listen_handle = listener->handle();
    raw.qp_type = static_cast<uint8_t>(type);
    daemon_.SendEvent(raw);
    const std::unique_ptr<CmEvent> event = *channel_->GetEvent();
    EXPECT_EQ(event->param().qp_type, type);
    ConnParam param;
    param.qpn = 5;
    ASSERT_TRUE(event->id()->Accept(param).ok());
    EXPECT_EQ(daemon_.LastRequest<v1::AcceptRequest>("Accept").param().qp_type(), 0u);
  }
}

// ---- the end of a connection

TEST_F(CmIdTest, SynchronousDisconnectWaitsForItsEvent) {
  const std::unique_ptr<CmId> id = SyncId(PortSpace::kTcp);
  daemon_.SendEvent(EventOf(id->handle(), CmEventType::kTimewaitExit));  // of an earlier one
  std::thread peer = Answer("Disconnect", EventOf(id->handle(), CmEventType::kDisconnected));
  EXPECT_TRUE(id->Disconnect().ok());
  peer.join();
  ASSERT_NE(id->event(), nullptr);
  EXPECT_EQ(id->event()->type(), CmEventType::kDisconnected);
}

TEST_F(CmIdTest, SynchronousDisconnectOfWhatIsOverWaitsForNothing) {
  const std::unique_ptr<CmId> id = SyncId(PortSpace::kTcp);
  daemon_.SetConnectionsOver();
  EXPECT_TRUE(id->Disconnect().ok());
  EXPECT_EQ(id->event(), nullptr);
  daemon_.SendEvent(EventOf(id->handle(), CmEventType::kDisconnected));
  daemon_.SendEvent(EventOf(id->handle(), CmEventType::kTimewaitExit));
  EXPECT_TRUE(id->Disconnect().ok());
  ASSERT_NE(id->event(), nullptr) << "the peer's, which was quicker";
  EXPECT_EQ(id->event()->type(), CmEventType::kDisconnected);
  EXPECT_TRUE(id->Disconnect().ok()) << "with what is left, the end of TIMEWAIT";
}

TEST_F(CmIdTest, PostsAreTakenOnceTheConnectionHasFailed) {
  for (const CmEventType type : {CmEventType::kRejected, CmEventType::kConnectError}) {
    const std::unique_ptr<CmId> id = ResolvedId(PortSpace::kTcp);
    ASSERT_TRUE(id->CreateQp(nullptr, {}).ok());
    EXPECT_EQ(StatusToErrno(id->qp().PostSend(1, nullptr, 0, nullptr, 0)), EINVAL) << "in INIT";
    shm::CmEvent failed = EventOf(id->handle(), type);
    failed.status = -EINVAL;
    daemon_.SendEvent(failed);
    ASSERT_TRUE(channel_->GetEvent().ok());
    EXPECT_TRUE(id->qp().PostSend(1, nullptr, 0, nullptr, 0).ok()) << EventString(type);
    EXPECT_EQ(daemon_.PublishedSends(id->qp().handle()), 1u);
  }
}

TEST_F(CmIdTest, PostsAreTakenAfterADisconnect) {
  const std::unique_ptr<CmId> id = ResolvedId(PortSpace::kTcp);
  ASSERT_TRUE(id->CreateQp(nullptr, {}).ok());
  daemon_.SendEvent(EventOf(id->handle(), CmEventType::kUnreachable));
  ASSERT_TRUE(channel_->GetEvent().ok());
  EXPECT_FALSE(id->qp().PostSend(1, nullptr, 0, nullptr, 0).ok()) << "that moves no QP";
  daemon_.SetConnectionsOver();
  ASSERT_TRUE(id->Disconnect().ok());
  EXPECT_TRUE(id->qp().PostSend(1, nullptr, 0, nullptr, 0).ok());
}

// ---- multicast

TEST_F(CmIdTest, JoinSaysWhatAndItsEventBringsTheCookieBack) {
  const std::unique_ptr<CmId> id = ResolvedId(PortSpace::kUdp);
  const Address group = *Address::Parse("239.1.2.3");
  ASSERT_TRUE(id->JoinMulticast(group, 0x1122334455667788, MulticastJoin::kSendOnly).ok());
  const auto request = daemon_.LastRequest<v1::JoinMulticastRequest>("JoinMulticast");
  EXPECT_EQ(request.id(), id->handle());
  EXPECT_EQ(FromProto(request.group()), group);
  EXPECT_EQ(request.join_flags(), 1u);
  shm::CmEvent raw = EventOf(id->handle(), CmEventType::kMulticastJoin);
  raw.multicast_cookie = request.cookie();
  raw.qpn = kMulticastQpn;
  daemon_.SendEvent(raw);
  const std::unique_ptr<CmEvent> event = *channel_->GetEvent();
  EXPECT_EQ(event->multicast_cookie(), 0x1122334455667788u);
  EXPECT_EQ(event->ud().qpn, kMulticastQpn);
  ASSERT_TRUE(id->LeaveMulticast(group).ok());
  EXPECT_EQ(FromProto(daemon_.LastRequest<v1::LeaveMulticastRequest>("LeaveMulticast").group()), group);
}

TEST_F(CmIdTest, SynchronousJoinReturnsItsEventsOutcome) {
  const std::unique_ptr<CmId> id = SyncId(PortSpace::kUdp);
  const Address group = *Address::Parse("239.1.2.3");
  std::thread joiner = Answer("JoinMulticast", EventOf(id->handle(), CmEventType::kMulticastJoin));
  EXPECT_TRUE(id->JoinMulticast(group).ok());
  joiner.join();
  EXPECT_EQ(id->event()->type(), CmEventType::kMulticastJoin);

  shm::CmEvent failed = EventOf(id->handle(), CmEventType::kMulticastError);
  failed.status = -ENODEV;
  daemon_.SendEvent(failed);
  EXPECT_EQ(StatusToErrno(id->JoinMulticast(group)), ENODEV);
}

// ---- SRQs of ids

TEST_F(CmIdTest, QpTakesTheIdsSrqAndItsCqHoldsAllOfIt) {
  const std::unique_ptr<CmId> id = ResolvedId(PortSpace::kTcp);
  ASSERT_TRUE(id->CreateSrq(nullptr, {.max_wr = 100, .max_sge = 2}).ok());
  EXPECT_EQ(id->CreateSrq(nullptr, {}).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(id->CreateQp(nullptr, {}).ok());
  EXPECT_EQ(id->qp().srq(), id->srq());
  EXPECT_EQ(daemon_.LastRequest<v1::CreateQpRequest>("CreateQp").srq(), id->srq().handle());
  EXPECT_GE(id->qp().recv_cq().depth(), 100u);
  ASSERT_TRUE(id->Connect().ok());
  EXPECT_TRUE(daemon_.LastRequest<v1::ConnectRequest>("Connect").param().srq());
}

TEST_F(CmIdTest, SrqOutlivesTheIdAsLongAsAnyoneUsesIt) {
  std::unique_ptr<CmId> id = ResolvedId(PortSpace::kTcp);
  ASSERT_TRUE(id->CreateSrq(nullptr, {}).ok());
  SharedReceiveQueue srq = id->srq();
  id->DestroySrq();
  EXPECT_FALSE(id->srq());
  id = nullptr;
  EXPECT_EQ(daemon_.calls("DestroySrq"), 0);
  srq = SharedReceiveQueue();
  EXPECT_EQ(daemon_.calls("DestroySrq"), 1);
}

TEST_F(CmIdTest, SrqNeedsADevice) {
  const std::unique_ptr<CmId> id = *MakeId(channel_->state(), PortSpace::kTcp);
  EXPECT_EQ(id->CreateSrq(nullptr, {}).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace rdmad::sdk
