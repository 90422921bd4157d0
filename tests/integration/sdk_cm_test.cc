// The librdmacm level of the SDK against a real daemon: synchronous ids, endpoints of
// rdma_create_ep, and a QP that the application moves by itself. (cm_cases_test has the
// asynchronous cases.)
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "client/sdk/status_errno.h"
#include "tests/integration/testbed.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

class SdkCmTest : public LoopbackTest {
 protected:
  void SetUp() override {
    ASSERT_OK(StartDaemon(0, {.log_level = "info"}));
    ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(0), "app"));
    client_ = std::make_unique<Client>(client);
    ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(*client_, 1 << 20));
    pool_ = std::make_unique<Pool>(pool);
    ASSERT_OK_AND_ASSIGN(buffer_, pool_->Allocate(4096));
    ASSERT_OK_AND_ASSIGN(server_buffer_, pool_->Allocate(4096));
  }

  Address LocalAddress(uint16_t port = 0) const { return *Address::Parse(WithPort(Ipv4(0), port)); }
  AddrInfo Passive() const {
    AddrInfo info;
    info.passive = true;
    info.src = LocalAddress();
    return info;
  }
  static AddrInfo Active(const Address& peer) {
    AddrInfo info;
    info.dst = peer;
    return info;
  }

  std::unique_ptr<Client> client_;
  std::unique_ptr<Pool> pool_;
  Buffer buffer_;
  Buffer server_buffer_;
};

// What rdma_server.c and rdma_client.c of the manual do.
TEST_F(SdkCmTest, SynchronousServerAndClientExchangeMessages) {
  QpInit init;
  init.cap = {.max_send_wr = 4,
              .max_recv_wr = 4,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_bytes = 16};
  ASSERT_OK_AND_ASSIGN(const auto listener, CmId::CreateEp(*client_, Passive(), nullptr, &init));
  ASSERT_OK(listener->Listen(0));
  ASSERT_NE(listener->src_port(), 0);

  std::thread server([&] {
    absl::StatusOr<std::unique_ptr<CmId>> id = listener->GetRequest(Slow(absl::Seconds(20)));
    ASSERT_OK(id);
    ASSERT_OK_AND_ASSIGN(const MemoryRegion mr,
                         (*id)->RegMsgs(server_buffer_.data(), server_buffer_.size()));
    ASSERT_OK((*id)->qp().PostRecv(1, server_buffer_.data(), 16, &mr));
    ASSERT_OK((*id)->Accept());
    ASSERT_OK_AND_ASSIGN(const Wc received, (*id)->GetRecvComp(Slow(absl::Seconds(20))));
    EXPECT_EQ(received.byte_len, 16u);
    ASSERT_OK(
        (*id)->qp().PostSend(2, server_buffer_.data(), 16, nullptr, kSendInline | kSendSignaled));
    ASSERT_OK_AND_ASSIGN(const Wc sent, (*id)->GetSendComp(Slow(absl::Seconds(20))));
    EXPECT_EQ(sent.status, WcStatus::kSuccess);
    EXPECT_EQ(sent.wr_id, 2u);
    EXPECT_OK((*id)->Disconnect());
    EXPECT_OK(CmId::DestroyEp(std::move(id).value()));
  });

  ASSERT_OK_AND_ASSIGN(auto id,
                       CmId::CreateEp(*client_, Active(listener->local_addr()), nullptr, &init));
  EXPECT_TRUE(id->qp());
  ASSERT_OK_AND_ASSIGN(const MemoryRegion mr, id->RegMsgs(buffer_.data(), buffer_.size()));
  ASSERT_OK(id->qp().PostRecv(3, buffer_.data() + 100, 16, &mr));
  ASSERT_OK(id->Connect());
  std::memcpy(buffer_.data(), "sixteen bytes...", 16);
  ASSERT_OK(id->qp().PostSend(4, buffer_.data(), 16, &mr, kSendSignaled));
  ASSERT_OK_AND_ASSIGN(const Wc sent, id->GetSendComp(Slow(absl::Seconds(20))));
  EXPECT_EQ(sent.wr_id, 4u);
  ASSERT_OK_AND_ASSIGN(const Wc received, id->GetRecvComp(Slow(absl::Seconds(20))));
  EXPECT_EQ(received.status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(buffer_.data() + 100, "sixteen bytes...", 16), 0);
  server.join();
  EXPECT_OK(CmId::DestroyEp(std::move(id)));
}

TEST_F(SdkCmTest, SynchronousConnectTellsOfTheRejectionAndKeepsItsEvent) {
  ASSERT_OK_AND_ASSIGN(const auto listener, CmId::CreateEp(*client_, Passive()));
  ASSERT_OK(listener->Listen());
  std::thread server([&] {
    absl::StatusOr<std::unique_ptr<CmId>> id = listener->GetRequest(Slow(absl::Seconds(20)));
    ASSERT_OK(id);
    ASSERT_NE((*id)->event(), nullptr);
    EXPECT_EQ((*id)->event()->param().private_data[0], 7);
    const uint8_t reason[] = {1, 2, 3, 4, 5, 6, 7, 8};
    EXPECT_OK((*id)->Reject(reason));
  });
  QpInit init;
  ASSERT_OK_AND_ASSIGN(const auto id,
                       CmId::CreateEp(*client_, Active(listener->local_addr()), nullptr, &init));
  ConnParam param;
  param.private_data = {7};
  const absl::Status status = id->Connect(param);
  server.join();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(sdk::StatusToErrno(status), ECONNREFUSED);
  ASSERT_NE(id->event(), nullptr);
  EXPECT_EQ(id->event()->type(), CmEventType::kRejected);
  EXPECT_EQ(id->event()->status(), 28);
  ASSERT_GE(id->event()->param().private_data.size(), 8u);
  EXPECT_EQ(id->event()->param().private_data[7], 8);
}

// As with ibverbs: the QP is in ERR, so posts are taken and flushed, and disconnecting is no more
// than cleaning up.
TEST_F(SdkCmTest, ARejectedConnectionCanBePostedToAndDisconnected) {
  ASSERT_OK_AND_ASSIGN(const auto listener, CmId::CreateEp(*client_, Passive()));
  ASSERT_OK(listener->Listen());
  std::thread server([&] {
    absl::StatusOr<std::unique_ptr<CmId>> id = listener->GetRequest(Slow(absl::Seconds(20)));
    ASSERT_OK(id);
    EXPECT_OK((*id)->Reject());
    EXPECT_OK((*id)->Disconnect());
  });
  QpInit init;
  ASSERT_OK_AND_ASSIGN(const auto id,
                       CmId::CreateEp(*client_, Active(listener->local_addr()), nullptr, &init));
  EXPECT_TRUE(absl::IsAborted(id->Connect()));
  server.join();
  ASSERT_OK_AND_ASSIGN(const MemoryRegion mr, id->RegMsgs(buffer_.data(), buffer_.size()));
  ASSERT_OK(id->qp().PostSend(5, buffer_.data(), 16, &mr, kSendSignaled));
  ASSERT_OK_AND_ASSIGN(const Wc flushed, id->GetSendComp(Slow(absl::Seconds(20))));
  EXPECT_EQ(flushed.wr_id, 5u);
  EXPECT_EQ(flushed.status, WcStatus::kWrFlushErr);
  EXPECT_OK(id->Disconnect());
  EXPECT_OK(id->Disconnect());
}

TEST_F(SdkCmTest, WhatIsDisconnectedCanBeDisconnectedAgainByBothSides) {
  QpInit init;
  ASSERT_OK_AND_ASSIGN(const auto listener, CmId::CreateEp(*client_, Passive(), nullptr, &init));
  ASSERT_OK(listener->Listen());
  std::unique_ptr<CmId> accepted;
  std::thread server([&] {
    absl::StatusOr<std::unique_ptr<CmId>> id = listener->GetRequest(Slow(absl::Seconds(20)));
    ASSERT_OK(id);
    ASSERT_OK((*id)->Accept());
    accepted = std::move(id).value();
  });
  ASSERT_OK_AND_ASSIGN(const auto id,
                       CmId::CreateEp(*client_, Active(listener->local_addr()), nullptr, &init));
  EXPECT_OK(id->Connect());
  server.join();
  ASSERT_NE(accepted, nullptr);
  for (CmId* const end : {id.get(), accepted.get()}) {
    EXPECT_OK(end->Disconnect());
    ASSERT_NE(end->event(), nullptr) << "the one's own, or that of the peer, which was quicker";
    EXPECT_EQ(end->event()->type(), CmEventType::kDisconnected);
    EXPECT_OK(end->Disconnect());
  }
}

TEST_F(SdkCmTest, GetRequestEndsAtItsDeadline) {
  ASSERT_OK_AND_ASSIGN(const auto listener, CmId::CreateEp(*client_, Passive()));
  ASSERT_OK(listener->Listen());
  EXPECT_TRUE(absl::IsDeadlineExceeded(listener->GetRequest(absl::Milliseconds(20)).status()));
}

TEST_F(SdkCmTest, SynchronousIdBecomesAsynchronousAndBack) {
  ASSERT_OK_AND_ASSIGN(const auto id, CmId::Create(*client_));
  EXPECT_TRUE(id->is_sync());
  ASSERT_OK_AND_ASSIGN(const auto channel, EventChannel::Create(*client_));
  ASSERT_OK(id->Migrate(channel.get()));
  EXPECT_FALSE(id->is_sync());
  ASSERT_OK(id->ResolveAddr(Address(), LocalAddress(1), absl::Seconds(2)));
  {
    ASSERT_OK_AND_ASSIGN(const auto event, channel->GetEvent(Slow(absl::Seconds(5))));
    EXPECT_EQ(event->type(), CmEventType::kAddrResolved);
    EXPECT_EQ(event->id(), id.get());
  }
  ASSERT_OK(id->Migrate(nullptr));
  EXPECT_OK(id->ResolveRoute(absl::Seconds(2)));
  // On verbs, the way from a device to its own address leads over the other one.
  EXPECT_EQ(id->device_index(), OnVerbs() ? 1u : 0u);
  EXPECT_EQ(id->dst_port(), 1);
}

// A request that nobody has read goes with its listener, and so do the events of its connection.
TEST_F(SdkCmTest, AListenerThatMigratesTakesItsUnreadRequestsAlong) {
  ASSERT_OK_AND_ASSIGN(auto old_channel, EventChannel::Create(*client_));
  ASSERT_OK_AND_ASSIGN(const auto listener, CmId::Create(*client_, old_channel.get()));
  ASSERT_OK(listener->BindAddr(LocalAddress()));
  ASSERT_OK(listener->Listen(4));
  QpInit init;
  ASSERT_OK_AND_ASSIGN(const auto id,
                       CmId::CreateEp(*client_, Active(listener->local_addr()), nullptr, &init));
  std::thread connecting([&] { EXPECT_OK(id->Connect()); });
  pollfd readable{old_channel->fd(), POLLIN, 0};
  EXPECT_EQ(poll(&readable, 1, absl::ToInt64Milliseconds(Slow(absl::Seconds(20)))), 1);

  ASSERT_OK_AND_ASSIGN(const auto channel, EventChannel::Create(*client_));
  ASSERT_OK(listener->Migrate(channel.get()));
  old_channel.reset();
  ASSERT_OK_AND_ASSIGN(const auto request, channel->GetEvent(Slow(absl::Seconds(20))));
  ASSERT_EQ(request->type(), CmEventType::kConnectRequest);
  EXPECT_EQ(request->listen_id(), listener.get());
  const std::unique_ptr<CmId> accepted = request->TakeId();
  ASSERT_OK(accepted->CreateQp(nullptr, QpInit()));
  ASSERT_OK(accepted->Accept());
  connecting.join();
  ASSERT_OK_AND_ASSIGN(const auto established, channel->GetEvent(Slow(absl::Seconds(20))));
  EXPECT_EQ(established->type(), CmEventType::kEstablished);
  EXPECT_EQ(established->id(), accepted.get());
}

TEST_F(SdkCmTest, CallsInTheWrongStateSaySo) {
  ASSERT_OK_AND_ASSIGN(const auto id, CmId::Create(*client_));
  EXPECT_TRUE(absl::IsFailedPrecondition(id->CreateQp(nullptr, QpInit())));
  EXPECT_TRUE(absl::IsFailedPrecondition(id->Connect()));
  EXPECT_TRUE(absl::IsFailedPrecondition(id->GetSendComp().status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(id->RegMsgs(buffer_.data(), 10).status()));
  ASSERT_OK(id->BindAddr(LocalAddress()));
  ASSERT_OK(id->CreateQp(nullptr, QpInit()));
  EXPECT_TRUE(absl::IsFailedPrecondition(id->CreateQp(nullptr, QpInit())));
  EXPECT_TRUE(absl::IsFailedPrecondition(id->qp().PostSendv(1, {}, 0)));
  id->DestroyQp();
  EXPECT_FALSE(id->qp());
  EXPECT_OK(id->CreateQp(nullptr, QpInit()));
}

TEST_F(SdkCmTest, ADatagramQpGoesWithTheUdpPortSpaceOnly) {
  ASSERT_OK_AND_ASSIGN(const auto id, CmId::Create(*client_));
  ASSERT_OK(id->BindAddr(LocalAddress()));
  QpInit datagram;
  datagram.type = QpType::kUd;
  const absl::Status status = id->CreateQp(nullptr, datagram);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(sdk::StatusToErrno(status), EINVAL);
}

// rdma_init_qp_attr, RTR and RTS by hand, rdma_establish: a QP that is not the id's.
TEST_F(SdkCmTest, ApplicationMovesItsQpByItself) {
  ASSERT_OK_AND_ASSIGN(const auto listener, CmId::CreateEp(*client_, Passive(), nullptr, nullptr));
  ASSERT_OK(listener->Listen());
  std::unique_ptr<CmId> accepted;
  std::thread server([&] {
    absl::StatusOr<std::unique_ptr<CmId>> id = listener->GetRequest(Slow(absl::Seconds(20)));
    ASSERT_OK(id);
    ASSERT_OK((*id)->CreateQp(nullptr, QpInit()));
    ASSERT_OK_AND_ASSIGN(const MemoryRegion mr,
                         (*id)->RegMsgs(server_buffer_.data(), server_buffer_.size()));
    ASSERT_OK((*id)->qp().PostRecv(1, server_buffer_.data(), 100, &mr));
    EXPECT_OK((*id)->Accept());
    EXPECT_OK((*id)->GetRecvComp(Slow(absl::Seconds(20))));
    accepted = std::move(id).value();
  });
  ASSERT_OK_AND_ASSIGN(const auto id, CmId::Create(*client_));
  ASSERT_OK(id->ResolveAddr(Address(), listener->local_addr(), absl::Seconds(2)));
  ASSERT_OK(id->ResolveRoute(absl::Seconds(2)));
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, id->pd());
  ASSERT_OK_AND_ASSIGN(CompletionQueue cq,
                       CompletionQueue::Create(*client_, *id->device_index(), 8));
  QpInit init;
  init.send_cq = init.recv_cq = cq;
  ASSERT_OK_AND_ASSIGN(QueuePair qp, QueuePair::Create(pd, init));
  const auto move_to = [&](QpState state) {
    ASSERT_OK_AND_ASSIGN(const QpAttr attr, id->InitQpAttr(state));
    ASSERT_OK(qp.Modify(attr));
  };
  move_to(QpState::kInit);
  ConnParam param;
  param.qpn = qp.qpn();
  ASSERT_OK(id->Connect(param));  // ends with CONNECT_RESPONSE
  EXPECT_EQ(id->event()->type(), CmEventType::kConnectResponse);
  move_to(QpState::kRtr);
  move_to(QpState::kRts);
  ASSERT_OK(id->Establish());
  ASSERT_OK_AND_ASSIGN(const MemoryRegion mr, pd.RegMsgs(buffer_.data(), 100));
  ASSERT_OK(qp.PostSend(1, buffer_.data(), 100, &mr, kSendSignaled));
  Wc wc{};
  ASSERT_OK(cq.Wait({&wc, 1}, Slow(absl::Seconds(20)), WaitStyle::kPolled));
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  ASSERT_OK_AND_ASSIGN(const QpAttr attr, qp.Query());
  EXPECT_EQ(attr.state, QpState::kRts);
  server.join();
}

TEST_F(SdkCmTest, AddrInfoForBothSides) {
  AddrInfoHints hints;
  hints.passive = true;
  ASSERT_OK_AND_ASSIGN(const auto any, GetAddrInfo("", "7471", hints));
  EXPECT_TRUE(any[0].src.IsAny());
  EXPECT_EQ(any[0].src.port, 7471);
  hints = {};
  hints.numeric_host = true;
  ASSERT_OK_AND_ASSIGN(const auto peer, GetAddrInfo("192.0.2.1", "80", hints));
  EXPECT_EQ(peer[0].dst.ToString(), "192.0.2.1:80");
  EXPECT_TRUE(absl::IsNotFound(GetAddrInfo("not numeric", "80", hints).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(GetAddrInfo("", "").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(GetAddrInfo("192.0.2.1", "65536").status()));
}

// What programs decide by: ibv_query_device, ibv_query_port, ibv_query_gid_ex and ibv_query_pkey.
TEST_F(SdkCmTest, DevicesTellWhatTheyAreAndWhatTheyHaveNot) {
  ASSERT_OK_AND_ASSIGN(const auto devices, client_->GetDevices());
  ASSERT_FALSE(devices.empty());
  const DeviceInfo& device = devices[0];
  EXPECT_NE(device.sys_image_guid, 0u);
  EXPECT_NE(device.vendor_id, 0u);
  EXPECT_NE(device.page_size_cap & 4096, 0u);
  EXPECT_GT(device.max_sge_rd, 0u);
  EXPECT_LE(device.max_sge_rd, device.max_sge);
  EXPECT_GT(device.max_qp_init_rd_atom, 0u);
  EXPECT_GE(device.max_res_rd_atom, device.max_qp_rd_atom);
  EXPECT_GE(device.max_total_mcast_qps, device.max_mcast_qps);
  EXPECT_GT(device.local_ca_ack_delay, 0u);

  const uint32_t has = device.device_cap_flags;
  EXPECT_NE(has & kDeviceRnrNak, 0u);
  EXPECT_NE(has & kDevicePortActiveEvent, 0u);
  EXPECT_NE(has & kDeviceMemMgtExtensions, 0u) << "operations_test sends with invalidate";
  EXPECT_EQ((has & (kDeviceMemWindowType2A | kDeviceMemWindowType2B)) != 0, device.max_mw != 0);
  constexpr uint32_t kSrqResize = 1 << 13, kMemWindowType1 = 1 << 17, kXrc = 1 << 20;
  EXPECT_EQ(has & (kSrqResize | kMemWindowType1 | kXrc), 0u);

  EXPECT_EQ(device.port_state, 4u);
  EXPECT_EQ(device.port.phys_state, 5u);
  EXPECT_EQ(device.link_layer, 2u);
  EXPECT_NE(device.port.active_width, 0u);
  EXPECT_NE(device.port.active_speed, 0u);
  EXPECT_GE(device.port.gid_table_length, device.gids.size());
  ASSERT_FALSE(device.port.pkeys.empty());
  EXPECT_EQ(device.port.pkeys[0], 0xffff);
  EXPECT_EQ(device.lid, 0u);
  for (const Gid& gid : device.gids) {
    EXPECT_EQ(gid.type, 2u) << gid.text;
    EXPECT_NE(gid.interface_index, 0u) << gid.text;
  }
}

TEST_F(SdkCmTest, DevicesTellTheirLimitsAndKeepThem) {
  ASSERT_OK_AND_ASSIGN(const auto devices, client_->GetDevices());
  ASSERT_FALSE(devices.empty());
  const DeviceInfo& device = devices[0];
  EXPECT_EQ(device.kind, OnVerbs() ? "verbs" : "soft");
  EXPECT_NE(device.node_guid, 0u);
  EXPECT_NE(device.atomic_capability, 0u) << "operations_test uses atomics";
  EXPECT_TRUE(std::any_of(device.gids.begin(), device.gids.end(),
                          [](const auto& gid) { return gid.text == Ipv4(0); }));
  EXPECT_TRUE(
      absl::IsInvalidArgument(CompletionQueue::Create(*client_, 0, device.max_cqe + 1).status()));
  EXPECT_TRUE(absl::IsNotFound(ProtectionDomain::Alloc(*client_, 77).status()));
  ASSERT_OK_AND_ASSIGN(const auto id, CmId::Create(*client_));
  ASSERT_OK(id->BindAddr(LocalAddress()));
  QpInit init;
  init.cap.max_send_wr = device.max_qp_wr + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(id->CreateQp(nullptr, init)));
  // Its CQ is as deep, which with rxe may be less.
  init.cap.max_send_wr = std::min(device.max_qp_wr, device.max_cqe);
  EXPECT_OK(id->CreateQp(nullptr, init));
}

}  // namespace
}  // namespace rdmad::testing
