// Ids of the UDP port space: their QP follows no connection.
#include "daemon/cm/cm_id.h"
#include "gtest/gtest.h"
#include "tests/cm/cm_id_testing.h"

namespace rdmad::cm {
namespace {

using device::CmEventType;
using Log = std::vector<std::string>;

class CmIdDatagram : public ::testing::Test {
 protected:
  CmIdDatagram() {
    id_ = std::make_unique<CmId>(&manager_, &session_, channel_.get(), 7, device::PortSpace::kUdp);
    endpoint_ = manager_.last;
  }
  ~CmIdDatagram() override {
    id_.reset();
    session_.ids.clear();
  }
  void BindQp() {
    absl::Status bound = absl::UnknownError("no answer yet");
    id_->SetQp(&qp_, device::QpType::kUd, &engine_,
               [&bound](const absl::Status& status) { bound = status; });
    ASSERT_TRUE(bound.ok()) << bound;
    manager_.log.clear();
  }

  FakeManager manager_;
  FakeEngine engine_;
  FakeQp qp_{&manager_};
  FakeSession session_;
  TestChannel channel_{&session_};
  std::unique_ptr<CmId> id_;
  FakeEndpoint* endpoint_;
};

TEST_F(CmIdDatagram, BindingAUdQpMakesItReadyToSend) {
  endpoint_->attributes_known = false;  // the id need not be bound to an address
  BindQp();
  ASSERT_EQ(qp_.moves.size(), 3u);
  EXPECT_EQ(qp_.moves[0].state, device::QpState::kInit);
  EXPECT_EQ(qp_.moves[0].mask, 0x71u) << "state, P_Key, port, Q_Key";
  EXPECT_EQ(qp_.moves[0].qkey, 0x01234567u);
  EXPECT_EQ(qp_.moves[1].state, device::QpState::kRtr);
  EXPECT_EQ(qp_.moves[1].mask, 0x1u);
  EXPECT_EQ(qp_.moves[2].state, device::QpState::kRts);
  EXPECT_EQ(qp_.moves[2].mask, 0x10001u) << "state, SQ PSN";
}

TEST_F(CmIdDatagram, QpThatRefusesIsToldToWhoBinds) {
  qp_.refuses = device::QpState::kRtr;
  absl::Status bound;
  id_->SetQp(&qp_, device::QpType::kUd, &engine_,
             [&bound](const absl::Status& status) { bound = status; });
  EXPECT_EQ(bound.code(), absl::StatusCode::kInternal);
}

TEST_F(CmIdDatagram, AConnectedQpOnItGoesToInitOnly) {
  id_->SetQp(&qp_, device::QpType::kUc, &engine_, [](const absl::Status&) {});
  ASSERT_EQ(qp_.moves.size(), 1u);
  EXPECT_EQ(qp_.moves[0].state, device::QpState::kInit);
}

TEST_F(CmIdDatagram, ConnectSendsItsQpnAndHasNoDepths) {
  BindQp();
  device::ConnParam param;
  param.responder_resources = 200;  // over what the device has
  param.initiator_depth = 200;
  EXPECT_TRUE(id_->Connect(param).ok());
  EXPECT_EQ(endpoint_->param.qpn, 0x11u);
}

TEST_F(CmIdDatagram, EstablishedSaysHowThePeerIsReached) {
  BindQp();
  device::CmEvent event;
  event.type = CmEventType::kEstablished;
  event.param.qpn = 0x33;
  event.param.qkey = 0x44;
  event.av.dest = IpAddress::FromV4(10, 0, 0, 9);
  event.av.sgid_index = 2;
  endpoint_->sink->OnCmEvent(std::move(event));
  shm::CmEvent record;
  ASSERT_TRUE(channel_.Read(&record));
  EXPECT_EQ(record.type, 9u);
  EXPECT_EQ(record.qpn, 0x33u);
  EXPECT_EQ(record.qkey, 0x44u);
  EXPECT_EQ(record.ah_dest_gid[15], 9);
  EXPECT_EQ(record.ah_sgid_index, 2u);
  EXPECT_TRUE(manager_.log.empty()) << "the QP stays where it is";
}

TEST_F(CmIdDatagram, AcceptAnswersAtOnce) {
  BindQp();
  absl::Status accepted = absl::UnknownError("no answer yet");
  id_->Accept({}, [&accepted](const absl::Status& status) { accepted = status; });
  EXPECT_TRUE(accepted.ok());
  EXPECT_EQ(manager_.log, Log{"accept"});
  EXPECT_EQ(endpoint_->param.qpn, 0x11u);
}

TEST_F(CmIdDatagram, TheQpHasTheQkeyBeforeThePeerHearsOfIt) {
  BindQp();
  absl::Status accepted = absl::UnknownError("no answer yet");
  device::ConnParam param;
  param.qkey = 0x55;
  id_->Accept(param, [&accepted](const absl::Status& status) { accepted = status; });
  EXPECT_TRUE(accepted.ok());
  EXPECT_EQ(manager_.log, (Log{"modify", "accept"}));
  EXPECT_EQ(qp_.moves.back().mask, uint32_t{device::kQpAttrQkey});
  EXPECT_EQ(qp_.moves.back().qkey, 0x55u);
  EXPECT_EQ(endpoint_->param.qpn, 0x11u);
  EXPECT_EQ(endpoint_->param.qkey, 0x55u);
}

TEST_F(CmIdDatagram, NothingMovesTheQpAgain) {
  BindQp();
  endpoint_->Say(CmEventType::kRejected, 8);
  endpoint_->Say(CmEventType::kUnreachable, -110);
  id_->Disconnect([](const absl::StatusOr<bool>&) {});
  id_.reset();
  EXPECT_EQ(manager_.log, (Log{"disconnect", "destroy"}));
  EXPECT_EQ(qp_.moves.size(), 3u);
}

TEST_F(CmIdDatagram, AnswerToAnAttachAfterTheEndFindsNobody) {
  BindQp();
  const SocketAddress group{IpAddress::FromV4(239, 0, 0, 1), 0};
  ASSERT_TRUE(id_->JoinMulticast(group, 0, 77).ok());
  device::CmEvent event;
  event.type = CmEventType::kMulticastJoin;
  event.multicast_cookie = 1;  // the id's first join
  event.av.dest = group.ip;
  endpoint_->sink->OnCmEvent(std::move(event));
  ASSERT_EQ(session_.attached.size(), 1u);
  id_.reset();
  session_.attach_done(absl::OkStatus());
  shm::CmEvent record;
  EXPECT_FALSE(channel_.Read(&record));
}

TEST_F(CmIdDatagram, LostGroupIsDetached) {
  BindQp();
  const SocketAddress group{IpAddress::FromV4(239, 0, 0, 1), 0};
  ASSERT_TRUE(id_->JoinMulticast(group, 0, 77).ok());
  device::CmEvent joined;
  joined.type = CmEventType::kMulticastJoin;
  joined.multicast_cookie = 1;
  joined.av.dest = group.ip;
  endpoint_->sink->OnCmEvent(std::move(joined));
  session_.attach_done(absl::OkStatus());
  device::CmEvent lost;
  lost.type = CmEventType::kMulticastError;
  lost.status = -19;
  lost.multicast_cookie = 1;
  endpoint_->sink->OnCmEvent(std::move(lost));
  EXPECT_EQ(session_.detached.size(), 1u);
  const std::vector<shm::CmEvent> records = channel_.ReadAll();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].status, -19);
  EXPECT_EQ(records[1].multicast_cookie, 77u);
}

}  // namespace
}  // namespace rdmad::cm
