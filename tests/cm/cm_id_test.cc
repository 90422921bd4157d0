#include "daemon/cm/cm_id.h"

#include "gtest/gtest.h"
#include "tests/cm/cm_id_testing.h"

namespace rdmad::cm {
namespace {

using device::CmEventType;
using Log = std::vector<std::string>;

class CmIdTest : public ::testing::Test {
 protected:
  CmIdTest() { Make(7); }
  ~CmIdTest() override {
    id_.reset();
    session_.ids.clear();
  }

  void Make(uint64_t handle) {
    id_ = std::make_unique<CmId>(&manager_, &session_, channel_.get(), handle,
                                 device::PortSpace::kTcp);
    endpoint_ = manager_.last;
  }
  void BindQp() {
    id_->SetQp(&qp_, device::QpType::kRc, &engine_, Into(&bound_));
    ASSERT_TRUE(bound_.ok());
    manager_.log.clear();
  }
  static CmId::Done Into(absl::Status* status) {
    *status = absl::UnknownError("no answer yet");
    return [status](const absl::Status& result) {
      EXPECT_EQ(status->code(), absl::StatusCode::kUnknown) << "answered twice";
      *status = result;
    };
  }
  // Types of the events that the client has not read yet.
  std::vector<CmEventType> Types() {
    std::vector<CmEventType> types;
    for (const shm::CmEvent& event : channel_.ReadAll())
      types.push_back(static_cast<CmEventType>(event.type));
    return types;
  }
  using EventFollows = absl::StatusOr<bool>;
  EventFollows Disconnect() {
    EventFollows done = absl::UnknownError("no answer");
    id_->Disconnect([&done](const EventFollows& follows) { done = follows; });
    return done;
  }
  static device::ConnParam Depths(uint8_t responder_resources, uint8_t initiator_depth) {
    device::ConnParam param;
    param.responder_resources = responder_resources;
    param.initiator_depth = initiator_depth;
    return param;
  }

  FakeManager manager_;
  FakeEngine engine_;
  FakeQp qp_{&manager_};
  FakeSession session_;
  TestChannel channel_{&session_};
  TestChannel other_channel_{&session_};
  std::unique_ptr<CmId> id_;
  FakeEndpoint* endpoint_;
  absl::Status bound_;
};

TEST_F(CmIdTest, EventNamesTheIdItsDeviceAndItsAddresses) {
  endpoint_->Say(CmEventType::kAddrError, -19);
  shm::CmEvent event;
  ASSERT_TRUE(channel_.Read(&event));
  EXPECT_EQ(event.type, 1u);
  EXPECT_EQ(event.status, -19);
  EXPECT_EQ(event.id_handle, 7u);
  EXPECT_EQ(event.listen_handle, 0u);
  EXPECT_EQ(event.device_index, 3u);
  EXPECT_EQ(event.local.port, 1000);
  EXPECT_EQ(event.peer.port, 2000);
  EXPECT_EQ(id_->events_reported(), 1u);
}

TEST_F(CmIdTest, BindingAQpMovesItToInitWithoutRights) {
  BindQp();
  ASSERT_EQ(qp_.moves.size(), 1u);
  EXPECT_EQ(qp_.moves[0].mask, 0x39u);
  EXPECT_EQ(qp_.moves[0].access_flags, 0u);
  absl::Status second;
  id_->SetQp(&qp_, device::QpType::kRc, &engine_, Into(&second));
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CmIdTest, WithAQpTheClientSeesEstablishedOnceTheQpIsReady) {
  BindQp();
  ASSERT_TRUE(id_->Connect({}).ok());
  EXPECT_EQ(endpoint_->param.qpn, 0x11u) << "the QP's number, whatever the client said";
  engine_.holds = true;
  endpoint_->Say(CmEventType::kConnectResponse);
  EXPECT_TRUE(Types().empty());
  engine_.Run();
  EXPECT_EQ(manager_.log, (Log{"connect", "init", "rtr", "rts", "establish"}));
  shm::CmEvent event;
  ASSERT_TRUE(channel_.Read(&event));
  EXPECT_EQ(static_cast<CmEventType>(event.type), CmEventType::kEstablished);
  EXPECT_EQ(event.private_data_bytes, 3);
  EXPECT_EQ(event.qpn, 0x22u);
}

TEST_F(CmIdTest, WithoutAQpTheClientSeesConnectResponseAndEstablishesItself) {
  device::ConnParam param;
  param.qpn = 0x99;
  ASSERT_TRUE(id_->Connect(param).ok());
  EXPECT_EQ(endpoint_->param.qpn, 0x99u);
  endpoint_->Say(CmEventType::kConnectResponse);
  EXPECT_EQ(Types(), std::vector{CmEventType::kConnectResponse});
  EXPECT_TRUE(id_->Establish().ok());
  EXPECT_EQ(manager_.log, (Log{"connect", "establish"}));
}

// A peer may find no receive before the application could set the timer by itself.
TEST_F(CmIdTest, TheConnectionsRnrTimerGoesWithTheQpToRtr) {
  BindQp();
  device::ConnParam param;
  param.min_rnr_timer = 11;
  ASSERT_TRUE(id_->Connect(param).ok());
  endpoint_->Say(CmEventType::kConnectResponse);
  ASSERT_EQ(qp_.moves.size(), 4u);  // INIT for receives, then INIT, RTR and RTS
  EXPECT_EQ(qp_.moves[2].state, device::QpState::kRtr);
  EXPECT_EQ(qp_.moves[2].min_rnr_timer, 11);
}

TEST_F(CmIdTest, QpThatRefusesIsAConnectErrorAndThePeerIsRejected) {
  BindQp();
  qp_.refuses = device::QpState::kRtr;
  endpoint_->Say(CmEventType::kConnectResponse);
  EXPECT_EQ(Types(), std::vector{CmEventType::kConnectError});
  EXPECT_EQ(manager_.log, (Log{"init", "err", "reject"}));
}

TEST_F(CmIdTest, WhatStandsBehindARefusedMoveIsOfNoConsequence) {
  BindQp();
  qp_.refuses = device::QpState::kRtr;
  engine_.holds = true;
  endpoint_->Say(CmEventType::kConnectResponse);
  engine_.Run();
  EXPECT_EQ(Types(), std::vector{CmEventType::kConnectError});
  EXPECT_EQ(qp_.moves.back().state, device::QpState::kErr);
}

TEST_F(CmIdTest, RejectionWhileTheQpMovesIsTheOnlyOutcome) {
  BindQp();
  engine_.holds = true;
  endpoint_->Say(CmEventType::kConnectResponse);
  endpoint_->Say(CmEventType::kRejected, 28);
  engine_.Run();
  EXPECT_EQ(Types(), std::vector{CmEventType::kRejected});
  EXPECT_EQ(manager_.log, (Log{"init", "rtr", "rts", "err"})) << "no RTU was sent";
}

TEST_F(CmIdTest, EstablishThatComesTooLateReportsNothing) {
  BindQp();
  endpoint_->results["establish"] = absl::FailedPreconditionError("closed");
  endpoint_->Say(CmEventType::kConnectResponse);
  EXPECT_TRUE(Types().empty()) << "the event that says why is on its way";
}

TEST_F(CmIdTest, AcceptMovesTheQpFirstAndWithTheAcceptedDepths) {
  BindQp();
  absl::Status accepted;
  engine_.holds = true;
  id_->Accept(Depths(5, 6), Into(&accepted));
  EXPECT_EQ(accepted.code(), absl::StatusCode::kUnknown);
  engine_.Run();
  EXPECT_TRUE(accepted.ok());
  EXPECT_EQ(manager_.log, (Log{"init", "rtr", "rts", "accept"}));
  EXPECT_EQ(qp_.moves[2].max_dest_rd_atomic, 5);
  EXPECT_EQ(qp_.moves[3].max_rd_atomic, 6);
  EXPECT_EQ(endpoint_->param.qpn, 0x11u);
}

TEST_F(CmIdTest, AcceptWithoutAQpGoesStraightThrough) {
  absl::Status accepted;
  id_->Accept(Depths(1, 1), Into(&accepted));
  EXPECT_TRUE(accepted.ok());
  EXPECT_EQ(manager_.log, Log{"accept"});
}

TEST_F(CmIdTest, AcceptThatTheEndpointRefusesLeavesTheQpInError) {
  BindQp();
  endpoint_->results["accept"] = absl::FailedPreconditionError("withdrawn");
  absl::Status accepted;
  id_->Accept(Depths(1, 1), Into(&accepted));
  EXPECT_EQ(accepted.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(manager_.log.back(), "err");
}

TEST_F(CmIdTest, AcceptBeforeThereIsARequestFailsWithoutTouchingTheQp) {
  BindQp();
  endpoint_->attributes_known = false;
  absl::Status accepted;
  id_->Accept(Depths(1, 1), Into(&accepted));
  EXPECT_EQ(accepted.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(manager_.log.empty());
}

TEST_F(CmIdTest, DepthsFollowTheDevice) {
  ASSERT_TRUE(id_->Connect(Depths(0xff, 0xff)).ok());
  EXPECT_EQ(endpoint_->param.responder_resources, 16) << "RDMA_MAX_RESP_RES";
  EXPECT_EQ(endpoint_->param.initiator_depth, 16) << "RDMA_MAX_INIT_DEPTH";
  EXPECT_TRUE(id_->Connect(Depths(16, 16)).ok());
  EXPECT_EQ(id_->Connect(Depths(17, 0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(id_->Connect(Depths(0, 17)).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CmIdTest, DisconnectMovesTheQpToErrorFirst) {
  BindQp();
  EXPECT_TRUE(Disconnect().ok());
  EXPECT_EQ(manager_.log, (Log{"err", "disconnect"}));
}

// Who waits for the event of a connection that is over would wait for ever.
TEST_F(CmIdTest, DisconnectSaysWhetherAnEventFollows) {
  BindQp();
  ASSERT_TRUE(id_->Connect({}).ok());
  endpoint_->Say(CmEventType::kConnectResponse);
  EXPECT_EQ(Disconnect(), EventFollows(true));
  EXPECT_EQ(Disconnect(), EventFollows(true)) << "the first one has not been answered";
  endpoint_->Say(CmEventType::kDisconnected);
  EXPECT_EQ(Disconnect(), EventFollows(false));
  endpoint_->Say(CmEventType::kTimewaitExit);
  EXPECT_EQ(Disconnect(), EventFollows(false));
}

TEST_F(CmIdTest, NoEventFollowsADisconnectOfWhatNeverCameAbout) {
  for (const CmEventType type : {CmEventType::kRejected, CmEventType::kUnreachable,
                                 CmEventType::kConnectError, CmEventType::kDeviceRemoval}) {
    absl::Status accepted;
    id_->Accept(Depths(1, 1), Into(&accepted));
    EXPECT_TRUE(accepted.ok());
    EXPECT_EQ(Disconnect(), EventFollows(true));
    endpoint_->Say(type);
    EXPECT_EQ(Disconnect(), EventFollows(false)) << static_cast<int>(type);
  }
  endpoint_->results["accept"] = absl::InvalidArgumentError("another type of QP");
  absl::Status accepted;
  id_->Accept(Depths(1, 1), Into(&accepted));
  EXPECT_EQ(Disconnect(), EventFollows(false));
  EXPECT_TRUE(id_->Reject({}).ok());
  EXPECT_EQ(Disconnect(), EventFollows(false));
}

TEST_F(CmIdTest, AConnectionOfAQpThatIsNotTheIdsIsOneToo) {
  ASSERT_TRUE(id_->Connect({}).ok());
  endpoint_->Say(CmEventType::kConnectResponse);
  EXPECT_TRUE(id_->Establish().ok());
  EXPECT_EQ(Disconnect(), EventFollows(true));
}

TEST_F(CmIdTest, PeersDisconnectDuringOursAnswersBoth) {
  BindQp();
  engine_.holds = true;
  absl::StatusOr<bool> done;
  id_->Disconnect([&done](const absl::StatusOr<bool>& follows) { done = follows; });
  endpoint_->Say(CmEventType::kDisconnected);
  engine_.Run();
  EXPECT_EQ(done, EventFollows(false));
  EXPECT_EQ(Types(), std::vector{CmEventType::kDisconnected});
}

TEST_F(CmIdTest, TheEndOfAConnectionMovesTheQpToError) {
  for (const CmEventType type :
       {CmEventType::kDisconnected, CmEventType::kRejected, CmEventType::kConnectError}) {
    qp_.moves.clear();
    BindQp();
    endpoint_->Say(type);
    EXPECT_EQ(manager_.log, Log{"err"});
    id_->ClearQp();
  }
}

TEST_F(CmIdTest, ClearedQpIsLeftAlone) {
  BindQp();
  id_->ClearQp();
  endpoint_->Say(CmEventType::kDisconnected);
  EXPECT_TRUE(manager_.log.empty());
}

TEST_F(CmIdTest, DestroyedIdAnswersWhatIsOutstandingAndLateAnswersFindNobody) {
  BindQp();
  engine_.holds = true;
  absl::Status accepted;
  id_->Accept(Depths(1, 1), Into(&accepted));
  id_.reset();
  EXPECT_EQ(accepted.code(), absl::StatusCode::kCancelled);
  engine_.Run();
  EXPECT_EQ(manager_.alive, 0);
  EXPECT_EQ(channel_->user_count(), 0u);
}

TEST_F(CmIdTest, IdMayBeDestroyedFromItsOwnAnswer) {
  BindQp();
  id_->Accept(Depths(1, 1), [this](const absl::Status&) { id_.reset(); });
  EXPECT_EQ(id_, nullptr);
  EXPECT_EQ(manager_.alive, 0);
}

TEST_F(CmIdTest, RequestMakesANewIdOnTheListenersChannel) {
  FakeEndpoint* const request = endpoint_->SayRequest();
  shm::CmEvent event;
  ASSERT_TRUE(channel_.Read(&event));
  EXPECT_EQ(static_cast<CmEventType>(event.type), CmEventType::kConnectRequest);
  EXPECT_EQ(event.id_handle, 100u);
  EXPECT_EQ(event.listen_handle, 7u);
  EXPECT_EQ(id_->events_reported(), 1u) << "counts for the listener";
  EXPECT_EQ(session_.ids.at(100)->events_reported(), 0u);
  request->Say(CmEventType::kEstablished);
  ASSERT_TRUE(channel_.Read(&event));
  EXPECT_EQ(event.id_handle, 100u);
  EXPECT_EQ(session_.ids.at(100)->events_reported(), 1u);
}

TEST_F(CmIdTest, RequestOfADeviceThatSaysNothingIsOfAnRcQp) {
  endpoint_->SayRequest();
  shm::CmEvent event;
  ASSERT_TRUE(channel_.Read(&event));
  EXPECT_EQ(event.qp_type, static_cast<uint8_t>(device::QpType::kRc));
}

TEST_F(CmIdTest, RequestOverQuotaIsDestroyedSilently) {
  session_.over_quota = true;
  endpoint_->SayRequest();
  EXPECT_EQ(manager_.alive, 1) << "the request's endpoint is gone, which rejects it";
  EXPECT_TRUE(Types().empty());
}

TEST_F(CmIdTest, RequestsBeyondTheBacklogAreRejectedUntilOneIsAnswered) {
  ASSERT_TRUE(id_->Listen(2).ok());
  FakeEndpoint* const first = endpoint_->SayRequest();
  endpoint_->SayRequest();
  endpoint_->SayRequest();
  EXPECT_EQ(session_.ids.size(), 2u);
  absl::Status accepted;
  session_.ids.at(100)->Accept({}, Into(&accepted));
  endpoint_->SayRequest();
  EXPECT_EQ(session_.ids.size(), 3u) << "an accepted one does not count";
  first->Say(CmEventType::kDisconnected);
  endpoint_->SayRequest();
  EXPECT_EQ(session_.ids.size(), 3u) << "nor does it make room twice";
  session_.ids.erase(101);
  endpoint_->SayRequest();
  EXPECT_EQ(session_.ids.size(), 3u) << "one that is destroyed makes room";
}

TEST_F(CmIdTest, APlaceInTheBacklogThatADeviceHasAskedForCountsOnce) {
  ASSERT_TRUE(id_->Listen(1).ok());
  std::shared_ptr<const void> place = id_->TakeBacklogPlace();
  ASSERT_NE(place, nullptr);
  EXPECT_EQ(id_->TakeBacklogPlace(), nullptr) << "taken before the request is heard of";
  endpoint_->SayRequest(16, std::move(place));
  ASSERT_EQ(session_.ids.size(), 1u) << "it has its place";
  EXPECT_EQ(id_->TakeBacklogPlace(), nullptr);
  EXPECT_TRUE(session_.ids.at(100)->Reject({}).ok());
  EXPECT_NE(id_->TakeBacklogPlace(), nullptr) << "free, since nobody keeps this one";
  EXPECT_NE(id_->TakeBacklogPlace(), nullptr);
}

TEST_F(CmIdTest, RequestIsPendingUntilItIsAnsweredOrOver) {
  endpoint_->SayRequest();
  FakeEndpoint* const over = endpoint_->SayRequest();
  endpoint_->SayRequest();
  endpoint_->SayRequest();
  EXPECT_EQ(session_.pending_requests(), 4u);
  absl::Status accepted;
  session_.ids.at(100)->Accept({}, Into(&accepted));
  EXPECT_EQ(session_.pending_requests(), 3u);
  over->Say(CmEventType::kDisconnected);
  EXPECT_EQ(session_.pending_requests(), 2u);
  EXPECT_TRUE(session_.ids.at(102)->Reject({}).ok());
  EXPECT_EQ(session_.pending_requests(), 1u);
  session_.ids.erase(103);
  EXPECT_EQ(session_.pending_requests(), 0u);
}

TEST_F(CmIdTest, AcceptingSideStaysWithinWhatThePeerAnswers) {
  FakeEndpoint* const request = endpoint_->SayRequest(/*initiator_depth=*/1);
  absl::Status accepted;
  session_.ids.at(100)->Accept(Depths(0xff, 0xff), Into(&accepted));
  ASSERT_TRUE(accepted.ok()) << accepted;
  EXPECT_EQ(request->param.initiator_depth, 1);
  EXPECT_EQ(request->param.responder_resources, 16);
}

TEST_F(CmIdTest, MigrationNamesTheRequestsThatWentAlong) {
  endpoint_->SayRequest();
  channel_.Fill();
  endpoint_->SayRequest();
  EXPECT_EQ(id_->Migrate(other_channel_.get()).requests, std::vector<uint64_t>{101});
}

TEST_F(CmIdTest, RequestsThatTheClientNeverSawGoWithTheListener) {
  channel_.Fill();
  endpoint_->SayRequest();
  ASSERT_EQ(session_.ids.size(), 1u);
  id_.reset();
  EXPECT_TRUE(session_.ids.empty());
  EXPECT_EQ(channel_->queued(), 0u);
}

TEST_F(CmIdTest, RequestsThatTheClientSawStayWhenTheListenerGoes) {
  endpoint_->SayRequest();
  id_.reset();
  EXPECT_EQ(session_.ids.size(), 1u);
}

TEST_F(CmIdTest, NoEventAfterTheIdIsGone) {
  channel_.Fill();
  endpoint_->Say(CmEventType::kAddrResolved);
  EXPECT_EQ(id_->events_reported(), 0u) << "it never left the daemon";
  id_.reset();
  channel_.Drain();
  channel_->OnWritable();
  EXPECT_TRUE(Types().empty());
}

TEST_F(CmIdTest, MigrationSaysHowManyEventsWentToTheOldChannel) {
  endpoint_->Say(CmEventType::kAddrResolved);
  channel_.Fill();
  endpoint_->Say(CmEventType::kRouteResolved);
  const CmId::Migration migration = id_->Migrate(other_channel_.get());
  EXPECT_EQ(migration.events_reported, 1u);
  EXPECT_EQ(migration.generation, 1u);
  EXPECT_EQ(channel_->user_count(), 0u);
  shm::CmEvent event;
  ASSERT_TRUE(other_channel_.Read(&event)) << "the waiting event went along";
  EXPECT_EQ(static_cast<CmEventType>(event.type), CmEventType::kRouteResolved);
  EXPECT_EQ(event.generation, 1u);
  EXPECT_EQ(id_->events_reported(), 2u);
}

TEST_F(CmIdTest, CommEstablishedOfTheQpReachesTheEndpoint) {
  id_->OnQpAsyncEvent(device::AsyncEventType::kQpFatal);
  EXPECT_TRUE(manager_.log.empty());
  id_->OnQpAsyncEvent(device::AsyncEventType::kCommEst);
  EXPECT_EQ(manager_.log, Log{"notify"});
}

TEST_F(CmIdTest, NotifyKnowsOnlyCommEstablished) {
  EXPECT_TRUE(id_->Notify(4).ok());
  EXPECT_EQ(id_->Notify(1).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CmIdTest, OptionsOfOtherLevelsAreNotKnown) {
  EXPECT_TRUE(id_->SetOption(0, 0, {}).ok());
  EXPECT_EQ(id_->SetOption(1, 0, {}).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace rdmad::cm
