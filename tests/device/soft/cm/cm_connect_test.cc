// What two applications see of each other: connect, accept, reject, disconnect, and what goes wrong
// on the way.
#include <cerrno>

#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"

namespace rdmad::soft {
namespace {

using wire::CmAttribute;

class CmConnect : public ::testing::Test {
 protected:
  // After it client and accepted() stand.
  void Establish() {
    ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
    ConnectTo(&client_, Address("10.0.0.2:7000"));
    ASSERT_TRUE(net_.Run());
    ASSERT_STREQ(client_->state_name(), "established") << client_.History();
    ASSERT_STREQ(accepted()->state_name(), "established") << accepted().History();
  }
  // Loses the first `count` messages of a kind.
  void Lose(CmAttribute attribute, int count) {
    net_.pass = [attribute, count](const SentMad& sent) mutable {
      return sent.header.attribute != attribute || count-- <= 0;
    };
  }
  TestId& accepted() { return *server_.requests.at(0); }

  TestNet net_;
  TestHost a_{&net_, "10.0.0.1"};
  TestHost b_{&net_, "10.0.0.2"};
  TestId server_{&b_};
  TestId client_{&a_};
};

TEST_F(CmConnect, BothSidesGetEstablishedAndEachOthersQp) {
  Establish();
  EXPECT_EQ(client_.Count(CmEventType::kConnectResponse), 1);
  EXPECT_EQ(accepted().Count(CmEventType::kEstablished), 1);
  EXPECT_EQ(client_->remote_qpn(), 0x22u);
  EXPECT_EQ(accepted()->remote_qpn(), 0x11u);
  EXPECT_EQ(accepted()->peer(), client_->local());
  EXPECT_EQ(accepted()->local(), Address("10.0.0.2:7000"));
  EXPECT_EQ(client_->peer(), Address("10.0.0.2:7000"));
}

TEST_F(CmConnect, PrivateDataArrivesZeroFilledToTheWholeField) {
  ListenOn(&server_, Address("0.0.0.0:7000"), [](TestId& request) {
    (void)request->Accept(Param(0x22, {9, 8, 7}));
  });
  ConnectTo(&client_, Address("10.0.0.2:7000"), Param(0x11, {1, 2, 3, 4}));
  ASSERT_TRUE(net_.Run());
  std::vector<uint8_t> of_req(56, 0);
  std::copy_n(std::vector<uint8_t>{1, 2, 3, 4}.begin(), 4, of_req.begin());
  std::vector<uint8_t> of_rep(196, 0);
  std::copy_n(std::vector<uint8_t>{9, 8, 7}.begin(), 3, of_rep.begin());
  EXPECT_EQ(server_.events.at(0).param.private_data, of_req);
  EXPECT_EQ(client_.Find(CmEventType::kConnectResponse)->param.private_data, of_rep);
}

TEST_F(CmConnect, DepthsAreSeenFromTheReceiversSide) {
  ListenOn(&server_, Address("0.0.0.0:7000"),
           [](TestId& request) { (void)request->Accept(Param(0x22, {}, 3, 4)); });
  ConnectTo(&client_, Address("10.0.0.2:7000"), Param(0x11, {}, 1, 2));
  ASSERT_TRUE(net_.Run());
  const device::ConnParam& offered = server_.events.at(0).param;
  EXPECT_EQ(offered.responder_resources, 2);
  EXPECT_EQ(offered.initiator_depth, 1);
  const device::ConnParam& answered = client_.Find(CmEventType::kConnectResponse)->param;
  EXPECT_EQ(answered.responder_resources, 4);
  EXPECT_EQ(answered.initiator_depth, 3);
}

TEST_F(CmConnect, NobodyListensIsReason8) {
  ConnectTo(&client_, Address("10.0.0.2:7001"));
  ASSERT_TRUE(net_.Run());
  ASSERT_EQ(client_.Count(CmEventType::kRejected), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kRejected)->status, 8);
  EXPECT_EQ(b_.manager->connection_count(), 0u);
}

TEST_F(CmConnect, ConsumerRejectIsReason28WithItsData) {
  ListenOn(&server_, Address("0.0.0.0:7000"), [](TestId& request) {
    const std::vector<uint8_t> why{1, 2, 3, 4, 5, 6, 7, 8};
    EXPECT_TRUE(request->Reject(why).ok());
  });
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  ASSERT_TRUE(net_.Run());
  const SeenEvent* rejected = client_.Find(CmEventType::kRejected);
  ASSERT_NE(rejected, nullptr) << client_.History();
  EXPECT_EQ(rejected->status, 28);
  ASSERT_EQ(rejected->param.private_data.size(), 148u);
  EXPECT_EQ(rejected->param.private_data[7], 8);
  EXPECT_EQ(rejected->param.private_data[8], 0);
}

TEST_F(CmConnect, SilentHostIsUnreachableWithATimeout) {
  ConnectTo(&client_, Address("10.0.0.99:7000"));
  ASSERT_TRUE(net_.Run());
  ASSERT_EQ(client_.Count(CmEventType::kUnreachable), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kUnreachable)->status, -ETIMEDOUT);
  EXPECT_EQ(net_.Count(CmAttribute::kReq), 16) << "once, and 15 retries";
  EXPECT_LT(net_.now, 60 * kSecond);
}

TEST_F(CmConnect, DestroyedRequestIsRejected) {
  ListenOn(&server_, Address("0.0.0.0:7000"), [](TestId& request) { request.endpoint.reset(); });
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  ASSERT_TRUE(net_.Run());
  ASSERT_EQ(client_.Count(CmEventType::kRejected), 1);
  EXPECT_EQ(client_.Find(CmEventType::kRejected)->status, 28);
}

TEST_F(CmConnect, RequestOfADestroyedListenerIsRejected) {
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  // The listener goes in the turn in which the REQ came, before its event is delivered.
  TestId killer(&b_);
  killer.on_event = [this](TestId&, const SeenEvent&) { server_.endpoint.reset(); };
  net_.pass = [&](const SentMad& sent) {
    if (sent.header.attribute != CmAttribute::kReq) return true;
    EXPECT_TRUE(killer->ResolveAddr(SocketAddress(), Address("10.0.0.1:1"), 1).ok());
    net_.Inject(sent.flow, sent.mad);
    return false;
  };
  net_.RunFor(10 * kMs);
  EXPECT_TRUE(server_.requests.empty());
  ASSERT_EQ(client_.Count(CmEventType::kRejected), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kRejected)->status, 28);
}

TEST_F(CmConnect, WithdrawnRequestIsReportedToTheAcceptingSide) {
  ListenOn(&server_, Address("0.0.0.0:7000"), [](TestId&) {});
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  net_.RunFor(10 * kMs);
  client_.endpoint.reset();
  net_.RunFor(10 * kMs);
  ASSERT_EQ(accepted().Count(CmEventType::kRejected), 1) << accepted().History();
  EXPECT_EQ(accepted()->Accept(Param(0x22)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(b_.manager->pending_requests(), 0u);
}

TEST_F(CmConnect, SlowAcceptIsHeldOpenByMra) {
  ListenOn(&server_, Address("0.0.0.0:7000"), [](TestId&) {});
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  net_.RunFor(100 * kSecond);
  EXPECT_GT(net_.Count(CmAttribute::kMra), 0);
  EXPECT_LT(net_.Count(CmAttribute::kReq), 10) << "the MRA slows the repetitions down";
  EXPECT_EQ(server_.Count(CmEventType::kConnectRequest), 1);
  AcceptIt(accepted());
  ASSERT_TRUE(net_.Run());
  EXPECT_TRUE(accepted().Saw(CmEventType::kEstablished)) << accepted().History();
}

TEST_F(CmConnect, UnansweredRequestOfAVanishedPeerTimesOut) {
  ListenOn(&server_, Address("0.0.0.0:7000"), [](TestId&) {});
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  net_.RunFor(10 * kMs);
  net_.pass = [](const SentMad&) { return false; };
  net_.RunFor(121 * kSecond);
  ASSERT_EQ(accepted().Count(CmEventType::kUnreachable), 1) << accepted().History();
  EXPECT_EQ(b_.manager->pending_requests(), 0u);
}

TEST_F(CmConnect, DisconnectReachesBothSidesOnceAndThenTimewaitEnds) {
  Establish();
  ASSERT_TRUE(client_->Disconnect().ok());
  net_.RunFor(10 * kMs);
  EXPECT_EQ(client_.Count(CmEventType::kDisconnected), 1);
  EXPECT_EQ(accepted().Count(CmEventType::kDisconnected), 1);
  EXPECT_FALSE(client_.Saw(CmEventType::kTimewaitExit));
  EXPECT_TRUE(accepted()->Disconnect().ok()) << "the other side's own call raises nothing more";
  ASSERT_TRUE(net_.Run());
  for (TestId* id : {&client_, &accepted()}) {
    EXPECT_EQ(id->Count(CmEventType::kDisconnected), 1) << id->History();
    EXPECT_EQ(id->Count(CmEventType::kTimewaitExit), 1) << id->History();
    EXPECT_TRUE((*id)->Disconnect().ok());
  }
  EXPECT_EQ(a_.manager->connection_count() + b_.manager->connection_count(), 0u);
}

TEST_F(CmConnect, CrossedDisconnectsEndBothSidesOnce) {
  Establish();
  ASSERT_TRUE(client_->Disconnect().ok());
  ASSERT_TRUE(accepted()->Disconnect().ok());
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(net_.Count(CmAttribute::kDreq), 2);
  EXPECT_EQ(net_.Count(CmAttribute::kDrep), 2) << "a peer may insist on its answer";
  EXPECT_EQ(client_.Count(CmEventType::kDisconnected), 1) << client_.History();
  EXPECT_EQ(accepted().Count(CmEventType::kDisconnected), 1) << accepted().History();
}

TEST_F(CmConnect, DestroyedIdDisconnectsItsPeer) {
  Establish();
  client_.endpoint.reset();
  net_.RunFor(kMs);
  EXPECT_EQ(accepted().Count(CmEventType::kDisconnected), 1);
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(a_.manager->connection_count(), 0u);
}

TEST_F(CmConnect, DisconnectOfADeadPeerEndsInSeconds) {
  Establish();
  net_.pass = [](const SentMad&) { return false; };
  ASSERT_TRUE(client_->Disconnect().ok());
  net_.RunFor(15 * kSecond);
  EXPECT_EQ(client_.Count(CmEventType::kDisconnected), 1) << client_.History();
}

TEST_F(CmConnect, LostReqIsSentAgainAfterATenthOfASecond) {
  Lose(CmAttribute::kReq, 1);
  const TimeNs begin = net_.now;
  Establish();
  EXPECT_GE(net_.now - begin, 100 * kMs);
  EXPECT_LT(net_.now - begin, 110 * kMs);
}

TEST_F(CmConnect, RepeatedReqIsAnsweredWithTheSameRep) {
  Lose(CmAttribute::kRep, 1);
  Establish();
  EXPECT_EQ(server_.Count(CmEventType::kConnectRequest), 1);
  EXPECT_EQ(accepted().Count(CmEventType::kEstablished), 1);
}

TEST_F(CmConnect, RepeatedReqAfterRejectGetsTheSameRej) {
  ListenOn(&server_, Address("0.0.0.0:7000"),
           [](TestId& request) { (void)request->Reject(std::vector<uint8_t>{7}); });
  Lose(CmAttribute::kRej, 1);
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(server_.Count(CmEventType::kConnectRequest), 1);
  ASSERT_EQ(client_.Count(CmEventType::kRejected), 1);
  EXPECT_EQ(client_.Find(CmEventType::kRejected)->param.private_data[0], 7);
}

TEST_F(CmConnect, LostRtuIsRepeatedForARepeatedRep) {
  Lose(CmAttribute::kRtu, 2);
  Establish();
  EXPECT_EQ(net_.Count(CmAttribute::kRtu), 3);
  EXPECT_EQ(client_.Count(CmEventType::kConnectResponse), 1);
}

TEST_F(CmConnect, FirstDataOfTheConnectionsQpStandsForALostRtu) {
  Lose(CmAttribute::kRtu, 1000);
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  net_.RunFor(10 * kMs);
  const auto data_comes = [this](uint32_t qpn, const std::string& peer, uint32_t peer_qpn) {
    ReceivedMad word;
    word.first_data_of = wire::Qpn(qpn);
    word.flow = {.local = b_.ip, .remote = IpAddress::Parse(peer).value()};
    word.src_qpn = wire::Qpn(peer_qpn);
    b_.inbox.push_back(word);
    net_.RunFor(kMs);
  };
  data_comes(0x22, "10.0.0.1", 0x12);
  data_comes(0x22, "10.0.0.3", 0x11);
  data_comes(0x23, "10.0.0.1", 0x11);
  EXPECT_FALSE(accepted().Saw(CmEventType::kEstablished)) << "other QPs, or connected to others";
  for (int i = 0; i < 2; ++i) {
    data_comes(0x22, "10.0.0.1", 0x11);
    EXPECT_EQ(accepted().Count(CmEventType::kEstablished), 1);
  }
  EXPECT_EQ(b_.manager->counters().established_by_data, 1u);
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(accepted().Count(CmEventType::kEstablished), 1);
}

TEST_F(CmConnect, NotifyOfTheApplicationStandsForALostRtu) {
  Lose(CmAttribute::kRtu, 1000);
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  net_.RunFor(10 * kMs);
  ASSERT_FALSE(accepted().Saw(CmEventType::kEstablished));
  EXPECT_TRUE(accepted()->NotifyCommEstablished().ok());
  EXPECT_TRUE(accepted()->NotifyCommEstablished().ok()) << "late ones are harmless";
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(accepted().Count(CmEventType::kEstablished), 1);
}

TEST_F(CmConnect, NoRtuAtAllEndsBothSides) {
  Lose(CmAttribute::kRtu, 1000);
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(accepted().Count(CmEventType::kUnreachable), 1) << accepted().History();
  EXPECT_EQ(client_.Count(CmEventType::kDisconnected), 1) << client_.History();
}

TEST_F(CmConnect, DisconnectAfterALostRtuIsNoticed) {
  Lose(CmAttribute::kRtu, 1000);
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  net_.RunFor(10 * kMs);
  ASSERT_TRUE(client_->Disconnect().ok());
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(accepted().Count(CmEventType::kDisconnected), 1) << accepted().History();
  EXPECT_EQ(client_.Count(CmEventType::kDisconnected), 1) << client_.History();
}

TEST_F(CmConnect, SlowEstablishIsHeldOpenByMra) {
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  const auto connect = client_.on_event;
  client_.on_event = [&connect](TestId& id, const SeenEvent& event) {
    if (event.type != CmEventType::kConnectResponse) connect(id, event);
  };
  net_.RunFor(60 * kSecond);
  EXPECT_GT(net_.Count(CmAttribute::kMra), 0);
  ASSERT_STREQ(accepted()->state_name(), "rep_sent");
  ASSERT_TRUE(client_->Establish().ok());
  ASSERT_TRUE(net_.Run());
  EXPECT_TRUE(accepted().Saw(CmEventType::kEstablished));
}

TEST_F(CmConnect, RejectOfARepReachesTheAcceptingSide) {
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  const auto connect = client_.on_event;
  client_.on_event = [&connect](TestId& id, const SeenEvent& event) {
    if (event.type == CmEventType::kConnectResponse) {
      EXPECT_TRUE(id->Reject({}).ok());
    } else {
      connect(id, event);
    }
  };
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(accepted().Count(CmEventType::kRejected), 1) << accepted().History();
}

TEST_F(CmConnect, AcceptedAndDestroyedBeforeTheRepArrivesIsRejected) {
  Lose(CmAttribute::kRep, 1000);
  ListenOn(&server_, Address("0.0.0.0:7000"), [](TestId& request) {
    AcceptIt(request);
    request.endpoint.reset();
  });
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  ASSERT_TRUE(net_.Run());
  ASSERT_EQ(client_.Count(CmEventType::kRejected), 1) << client_.History();
}

TEST_F(CmConnect, DuplicateDreqOfAForgottenConnectionIsAnswered) {
  Establish();
  ASSERT_TRUE(client_->Disconnect().ok());
  ASSERT_TRUE(net_.Run());
  ASSERT_EQ(b_.manager->connection_count(), 0u);
  const SentMad dreq = *net_.Last(CmAttribute::kDreq);
  const int answers = net_.Count(CmAttribute::kDrep);
  net_.Inject(dreq.flow, dreq.mad);
  ASSERT_TRUE(net_.Run());
  ASSERT_EQ(net_.Count(CmAttribute::kDrep), answers + 1);
  const auto& request = std::get<wire::CmDreq>(dreq.message);
  const auto& answer = std::get<wire::CmDrep>(net_.Last(CmAttribute::kDrep)->message);
  EXPECT_EQ(answer.local_comm_id, request.remote_comm_id);
  EXPECT_EQ(answer.remote_comm_id, request.local_comm_id);
}

TEST_F(CmConnect, EventsNeverComeFromInsideACall) {
  ASSERT_TRUE(client_->ResolveAddr(SocketAddress(), Address("10.0.0.2:1"), 100).ok());
  EXPECT_TRUE(client_.events.empty());
  a_.manager->Poll(net_.now);
  EXPECT_EQ(client_.Count(CmEventType::kAddrResolved), 1);
}

TEST_F(CmConnect, PeersInOneDaemonMeetWithoutTheNetwork) {
  TestId near_server(&a_);
  ListenOn(&near_server, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&client_, Address("10.0.0.1:7000"));
  ASSERT_TRUE(net_.Run());
  EXPECT_STREQ(client_->state_name(), "established") << client_.History();
  EXPECT_TRUE(net_.sent.empty());
  ASSERT_TRUE(client_->Disconnect().ok());
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(near_server.requests.at(0)->Count(CmEventType::kDisconnected), 1);
}

TEST_F(CmConnect, SmallerMtuOfTheAcceptingSideIsAgreedOn) {
  b_.device.mtu = device::Mtu::k1024;
  Establish();
  EXPECT_EQ(client_.Find(CmEventType::kConnectResponse)->path_mtu, device::Mtu::k1024);
  EXPECT_EQ(accepted()->InitQpAttr(device::QpState::kRtr)->path_mtu, device::Mtu::k1024);
  EXPECT_EQ(client_->InitQpAttr(device::QpState::kRtr)->path_mtu, device::Mtu::k1024);
  EXPECT_FALSE(client_.Saw(CmEventType::kRejected));
}

TEST_F(CmConnect, SmallerMtuOfTheConnectingSideIsTaken) {
  a_.device.mtu = device::Mtu::k512;
  Establish();
  EXPECT_EQ(accepted()->InitQpAttr(device::QpState::kRtr)->path_mtu, device::Mtu::k512);
}

TEST_F(CmConnect, PeerThatReusesItsQpEndsTheOldConnection) {
  Establish();
  // The client's host has lost its memory and comes back with the same QPN.
  TestHost* const old_a = net_.hosts.at(0);
  net_.hosts.at(0) = net_.hosts.at(1);
  net_.hosts.resize(1);
  TestHost reborn(&net_, "10.0.0.1");
  TestId again(&reborn);
  ConnectTo(&again, Address("10.0.0.2:7000"));
  net_.RunFor(kSecond / 2);
  EXPECT_STREQ(again->state_name(), "established") << again.History();
  EXPECT_EQ(accepted().Count(CmEventType::kDisconnected), 1) << accepted().History();
  EXPECT_EQ(b_.manager->counters().stale, 1u);
  net_.hosts.push_back(old_a);
}

TEST_F(CmConnect, RemovedDeviceIsReportedAndEndsItsConnections) {
  Establish();
  a_.manager->OnDeviceRemoved(&a_.device);
  net_.RunFor(kMs);
  EXPECT_EQ(client_.Count(CmEventType::kDeviceRemoval), 1);
  EXPECT_EQ(client_->device(), nullptr);
  EXPECT_EQ(a_.manager->connection_count(), 0u);
  EXPECT_TRUE(client_->Disconnect().ok());
  EXPECT_EQ(net_.Count(CmAttribute::kDreq), 0);
}

}  // namespace
}  // namespace rdmad::soft
