// The rarer messages and orders of the connection protocol, with one end played by the test or by a
// network that it bends: every reason to reject, MRAs of a slow peer, what overtakes what.
#include <cerrno>

#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"

namespace rdmad::soft {
namespace {

using wire::CmAttribute;
using wire::CmMessageKind;
using wire::RejReason;

class CmProtocol : public ::testing::Test {
 protected:
  void Establish() {
    ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
    ConnectTo(&client_, Address("10.0.0.2:7000"));
    ASSERT_TRUE(net_.Run());
    ASSERT_STREQ(client_->state_name(), "established") << client_.History();
  }
  // What the test says in the name of one host to the other.
  void Say(TestHost& from, TestHost& to, const wire::CmMessage& message) {
    Flow flow;
    flow.local = from.ip;
    flow.remote = to.ip;
    net_.Inject(flow, 7, message);
  }
  // The client's REQ, to which the other host says nothing by itself.
  wire::CmReq UnansweredReq(TestId& client) {
    net_.pass = [](const SentMad& sent) {
      return sent.flow.local != IpAddress::FromV4(10, 0, 0, 1);
    };
    ConnectTo(&client, Address("10.0.0.2:7000"));
    net_.RunFor(kMs);
    return std::get<wire::CmReq>(net_.Last(CmAttribute::kReq)->message);
  }
  TestId& accepted() { return *server_.requests.at(0); }

  TestNet net_;
  TestHost a_{&net_, "10.0.0.1"};
  TestHost b_{&net_, "10.0.0.2"};
  TestId server_{&b_};
  TestId client_{&a_};
};

TEST_F(CmProtocol, EveryReasonReachesTheConnectingSideWithItsData) {
  for (uint16_t reason = 1; reason <= 33; ++reason) {
    SCOPED_TRACE(wire::RejReasonName(static_cast<RejReason>(reason)));
    TestId client(&a_);
    wire::CmRej rej;
    rej.remote_comm_id = UnansweredReq(client).local_comm_id;
    rej.reason = static_cast<RejReason>(reason);
    rej.private_data[147] = static_cast<uint8_t>(reason);
    Say(b_, a_, rej);
    net_.RunFor(kMs);
    if (rej.reason == RejReason::kStaleConnection) continue;  // asked again, see below
    ASSERT_EQ(client.Count(CmEventType::kRejected), 1) << client.History();
    const SeenEvent& event = *client.Find(CmEventType::kRejected);
    EXPECT_EQ(event.status, reason);
    ASSERT_EQ(event.param.private_data.size(), 148u);
    EXPECT_EQ(event.param.private_data[147], reason);
    EXPECT_STREQ(client->state_name(), "closed");
  }
}

// The peer still had a connection of this QP number, and has ended it by now.
TEST_F(CmProtocol, AReqThatIsRefusedAsStaleIsSentAgainUnderAnotherId) {
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  const wire::CmReq first = UnansweredReq(client_);
  wire::CmRej stale;
  stale.remote_comm_id = first.local_comm_id;
  stale.reason = RejReason::kStaleConnection;
  Say(b_, a_, stale);
  net_.RunFor(200 * kMs);
  EXPECT_EQ(net_.Count(CmAttribute::kReq), 1) << "not at once: the peer needs its time";
  EXPECT_TRUE(client_.events.empty() || !client_.Saw(CmEventType::kRejected));
  net_.pass = nullptr;
  net_.RunFor(200 * kMs);
  const auto again = std::get<wire::CmReq>(net_.Last(CmAttribute::kReq)->message);
  EXPECT_NE(again.local_comm_id, first.local_comm_id);
  EXPECT_EQ(again.local_qpn, first.local_qpn);
  EXPECT_EQ(again.starting_psn, first.starting_psn);
  EXPECT_STREQ(client_->state_name(), "established") << client_.History();
  EXPECT_FALSE(client_.Saw(CmEventType::kRejected));
}

TEST_F(CmProtocol, AReqThatIsRefusedAsStaleAgainAndAgainIsRejected) {
  UnansweredReq(client_);
  const TimeNs start = net_.now;
  for (int refusals = 1; refusals <= 5; ++refusals) {
    ASSERT_FALSE(client_.Saw(CmEventType::kRejected)) << refusals;
    wire::CmRej stale;
    stale.remote_comm_id =
        std::get<wire::CmReq>(net_.Last(CmAttribute::kReq)->message).local_comm_id;
    stale.reason = RejReason::kStaleConnection;
    stale.private_data[147] = 10;
    Say(b_, a_, stale);
    Say(b_, a_, stale);  // a copy means nothing
    const int asked = net_.Count(CmAttribute::kReq);
    while (net_.Count(CmAttribute::kReq) == asked && !client_.Saw(CmEventType::kRejected)) {
      net_.RunFor(kMs);
    }
  }
  ASSERT_EQ(client_.Count(CmEventType::kRejected), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kRejected)->status, 10);
  EXPECT_EQ(client_.Find(CmEventType::kRejected)->param.private_data.at(147), 10);
  EXPECT_LT(net_.now - start, 4 * kSecond);
}

TEST_F(CmProtocol, AnIdThatGoesWhileItWaitsToAskAgainSendsNothingMore) {
  const wire::CmReq first = UnansweredReq(client_);
  wire::CmRej stale;
  stale.remote_comm_id = first.local_comm_id;
  stale.reason = RejReason::kStaleConnection;
  Say(b_, a_, stale);
  net_.RunFor(kMs);
  client_.endpoint.reset();
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(net_.Count(CmAttribute::kReq), 1);
}

TEST_F(CmProtocol, EveryReasonReachesTheAcceptingSideWithItsData) {
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  for (uint16_t reason = 1; reason <= 33; ++reason) {
    SCOPED_TRACE(wire::RejReasonName(static_cast<RejReason>(reason)));
    TestId client(&a_);
    net_.pass = [](const SentMad& sent) { return sent.header.attribute == CmAttribute::kReq; };
    ConnectTo(&client, Address("10.0.0.2:7000"), Param(0x100u + reason));
    net_.RunFor(kMs);
    const auto rep = std::get<wire::CmRep>(net_.Last(CmAttribute::kRep)->message);
    wire::CmRej rej;
    rej.local_comm_id = rep.remote_comm_id;
    rej.remote_comm_id = rep.local_comm_id;
    rej.message = CmMessageKind::kRep;
    rej.reason = static_cast<RejReason>(reason);
    rej.private_data[0] = 0x5a;
    Say(a_, b_, rej);
    net_.RunFor(kMs);
    TestId& request = *server_.requests.back();
    ASSERT_EQ(request.Count(CmEventType::kRejected), 1) << request.History();
    EXPECT_EQ(request.Find(CmEventType::kRejected)->status, reason);
    EXPECT_EQ(request.Find(CmEventType::kRejected)->param.private_data.at(0), 0x5a);
  }
}

TEST_F(CmProtocol, RejectionByTheConnectingApplicationCarriesItsData) {
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  const auto connect = client_.on_event;
  client_.on_event = [&connect](TestId& id, const SeenEvent& event) {
    if (event.type != CmEventType::kConnectResponse) return connect(id, event);
    EXPECT_TRUE(id->Reject(std::vector<uint8_t>{4, 2}).ok());
  };
  ASSERT_TRUE(net_.Run());
  ASSERT_EQ(accepted().Count(CmEventType::kRejected), 1) << accepted().History();
  EXPECT_EQ(accepted().Find(CmEventType::kRejected)->status, 28);
  EXPECT_EQ(accepted().Find(CmEventType::kRejected)->param.private_data.at(1), 2);
}

// As the kernel's rdma_cm asks: 24 is 69 s.
TEST_F(CmProtocol, MraOfTheAcceptingSideStopsTheRepetitionsOfAReq) {
  const wire::CmReq req = UnansweredReq(client_);
  Say(b_, a_,
      wire::CmMra{.local_comm_id = wire::CommId(5),
                  .remote_comm_id = req.local_comm_id,
                  .message = CmMessageKind::kReq,
                  .service_timeout = 24});
  net_.RunFor(68 * kSecond);
  EXPECT_EQ(net_.Count(CmAttribute::kReq), 1);
  net_.RunFor(2 * kSecond);
  EXPECT_GT(net_.Count(CmAttribute::kReq), 1) << "but not for ever";
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(client_.Count(CmEventType::kUnreachable), 1) << client_.History();
}

TEST_F(CmProtocol, MraOfTheConnectingSideStopsTheRepetitionsOfARep) {
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  net_.pass = [](const SentMad& sent) { return sent.header.attribute == CmAttribute::kReq; };
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  net_.RunFor(kMs);
  net_.pass = [](const SentMad&) { return false; };
  const auto rep = std::get<wire::CmRep>(net_.Last(CmAttribute::kRep)->message);
  const wire::CmMra mra{.local_comm_id = rep.remote_comm_id,
                        .remote_comm_id = rep.local_comm_id,
                        .message = CmMessageKind::kRep,
                        .service_timeout = 22};
  Say(a_, b_, mra);
  net_.RunFor(17 * kSecond);
  EXPECT_EQ(net_.Count(CmAttribute::kRep), 1);
  EXPECT_STREQ(accepted()->state_name(), "rep_sent");
  net_.RunFor(2 * kSecond);
  EXPECT_GT(net_.Count(CmAttribute::kRep), 1);
}

TEST_F(CmProtocol, MraOfAnotherMessageChangesNothing) {
  const wire::CmReq req = UnansweredReq(client_);
  Say(b_, a_,
      wire::CmMra{.local_comm_id = wire::CommId(5),
                  .remote_comm_id = req.local_comm_id,
                  .message = CmMessageKind::kRep,
                  .service_timeout = 24});
  net_.RunFor(kSecond);
  EXPECT_GT(net_.Count(CmAttribute::kReq), 2);
}

TEST_F(CmProtocol, DisconnectThatNobodyAnswersSaysSo) {
  Establish();
  net_.pass = [](const SentMad&) { return false; };
  ASSERT_TRUE(client_->Disconnect().ok());
  ASSERT_TRUE(net_.Run());
  ASSERT_EQ(client_.Count(CmEventType::kDisconnected), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kDisconnected)->status, -ETIMEDOUT);
  EXPECT_EQ(client_.Count(CmEventType::kTimewaitExit), 1);
}

TEST_F(CmProtocol, AnsweredDisconnectHasStatusZero) {
  Establish();
  ASSERT_TRUE(client_->Disconnect().ok());
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(client_.Find(CmEventType::kDisconnected)->status, 0);
  EXPECT_EQ(accepted().Find(CmEventType::kDisconnected)->status, 0);
}

TEST_F(CmProtocol, TimewaitIsAsLongAsTheAckTimeoutAndAtLeastASecond) {
  const struct {
    uint8_t code;
    int64_t at_least_ns, at_most_ns;
  } kCases[] = {
      {14, kSecond, 1'010 * kMs},      // 67 ms
      {19, 2'140 * kMs, 2'160 * kMs},  // 2.147 s
      {21, 8'580 * kMs, 8'600 * kMs},
  };
  uint16_t port = 7000;
  for (const auto& c : kCases) {
    SCOPED_TRACE(static_cast<int>(c.code));
    TestId server(&b_), client(&a_);
    ASSERT_TRUE(client->SetOption(3, std::vector<uint8_t>{c.code}).ok());
    ListenOn(&server, {IpAddress::AnyV4(), ++port}, AcceptIt);
    ConnectTo(&client, {b_.ip, port});
    ASSERT_TRUE(net_.Run());
    ASSERT_TRUE(client->Disconnect().ok());
    const TimeNs begin = net_.now;
    ASSERT_TRUE(net_.Run());
    EXPECT_EQ(client.Count(CmEventType::kTimewaitExit), 1) << client.History();
    EXPECT_EQ(server.requests.at(0)->Count(CmEventType::kTimewaitExit), 1);
    EXPECT_GE(net_.now - begin, c.at_least_ns);
    EXPECT_LE(net_.now - begin, c.at_most_ns);
  }
}

TEST_F(CmProtocol, DreqThatOvertakesTheRtuEndsTheConnectionOnce) {
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  SentMad rtu;
  net_.pass = [&rtu](const SentMad& sent) {
    if (sent.header.attribute == CmAttribute::kRtu) rtu = sent;
    return sent.header.attribute != CmAttribute::kRtu;
  };
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  net_.RunFor(kMs);
  ASSERT_TRUE(client_->Disconnect().ok());
  net_.RunFor(kMs);
  net_.Inject(rtu.flow, rtu.mad);
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(accepted().Count(CmEventType::kDisconnected), 1) << accepted().History();
  EXPECT_FALSE(accepted().Saw(CmEventType::kEstablished)) << "that would be news from yesterday";
  EXPECT_EQ(client_.Count(CmEventType::kDisconnected), 1) << client_.History();
}

TEST_F(CmProtocol, RepThatComesAfterTheClientGaveUpIsRejected) {
  ListenOn(&server_, Address("0.0.0.0:7000"), AcceptIt);
  SentMad rep;
  net_.pass = [&rep](const SentMad& sent) {
    if (sent.header.attribute != CmAttribute::kRep) return true;
    rep = sent;
    return false;
  };
  ConnectTo(&client_, Address("10.0.0.2:7000"));
  net_.RunFor(kMs);
  client_.endpoint.reset();
  net_.RunFor(0);  // its farewell is still under way
  net_.Inject(rep.flow, rep.mad);
  net_.RunFor(kMs);
  const auto rej = std::get<wire::CmRej>(net_.Last(CmAttribute::kRej)->message);
  EXPECT_EQ(rej.reason, RejReason::kInvalidCommId);
  EXPECT_EQ(accepted().Count(CmEventType::kRejected), 1) << accepted().History();
}

TEST_F(CmProtocol, LinkLocalPeersMeetOnTheirInterface) {
  TestHost c(&net_, "fe80::1%3"), d(&net_, "fe80::2%3");
  TestId here(&d), there(&d), client(&c), without_scope(&c);
  d.second.addresses = {IpAddress::Parse("fe80::2%4").value()};
  // The same address on two interfaces.
  ListenOn(&there, Address("[fe80::2%4]:7000"), AcceptIt);
  ListenOn(&here, Address("[fe80::2%3]:7000"), AcceptIt);
  ConnectTo(&client, Address("[fe80::2%3]:7000"));
  ASSERT_TRUE(net_.Run());
  EXPECT_STREQ(client->state_name(), "established") << client.History();
  ASSERT_EQ(here.requests.size(), 1u);
  EXPECT_EQ((*here.requests[0])->peer().ip, c.ip);
  EXPECT_EQ((*here.requests[0])->InitQpAttr(device::QpState::kRtr)->av.dest, c.ip);
  EXPECT_TRUE(there.requests.empty());
  EXPECT_EQ(
      without_scope->ResolveAddr(SocketAddress(), {IpAddress::Parse("fe80::2").value(), 7000}, 1)
          .code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rdmad::soft
