// What strangers can do to us from the wire, and what many connections leave behind: nothing beyond
// the limits.
#include "daemon/device/soft/cm/cm_request.h"
#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"

namespace rdmad::soft {
namespace {

using wire::CmAttribute;

CmOptions SmallLimits() {
  CmOptions options;
  options.max_connections = 200;
  options.max_pending_requests = 50;
  options.max_rejected = 20;
  options.max_timewait = 20;
  return options;
}

class CmLimits : public ::testing::Test {
 protected:
  // The test itself speaks for host A; what B answers is looked at and goes nowhere.
  CmLimits() {
    net_.pass = [](const SentMad&) { return false; };
  }
  // A REQ as host A would send it, number `n` of many.
  wire::CmReq Req(uint32_t n, uint16_t port = 7000) {
    CmFacts facts;
    facts.local_id = wire::CommId(n + 1);
    facts.local_qpn = wire::Qpn(n + 2);
    facts.flow.local = a_.ip;
    facts.flow.remote = b_.ip;
    facts.ack_timeout = 16;
    return MakeReq(facts, Param(n + 2), device::PortSpace::kTcp, {a_.ip, 1000}, {b_.ip, port},
                   CmOptions());
  }
  void Inject(const wire::CmMessage& message, uint64_t transaction_id = 7) {
    Flow flow;
    flow.local = a_.ip;
    flow.remote = b_.ip;
    net_.Inject(flow, transaction_id, message);
  }
  int Rejects(wire::RejReason reason) {
    int count = 0;
    for (const SentMad& sent : net_.sent) {
      const auto* rej = std::get_if<wire::CmRej>(&sent.message);
      count += rej != nullptr && rej->reason == reason ? 1 : 0;
    }
    return count;
  }

  TestNet net_;
  TestHost a_{&net_, "10.0.0.1"};
  TestHost b_{&net_, "10.0.0.2", SmallLimits()};
};

TEST_F(CmLimits, FloodFillsTheBacklogAndNoMore) {
  TestId server(&b_);
  ListenOn(
      &server, Address("0.0.0.0:7000"), [](TestId&) {}, 8);
  for (uint32_t n = 0; n < 10'000; ++n) Inject(Req(n));
  net_.RunFor(kMs);
  EXPECT_EQ(server.requests.size(), 8u);
  EXPECT_EQ(b_.manager->connection_count(), 8u);
  EXPECT_EQ(b_.manager->counters().requests_over_backlog, 9'992u);
}

TEST_F(CmLimits, FloodOverManyListenersMeetsTheCommonLimit) {
  std::vector<std::unique_ptr<TestId>> servers;
  for (uint16_t i = 0; i < 10; ++i) {
    servers.push_back(std::make_unique<TestId>(&b_));
    ListenOn(
        servers.back().get(), {IpAddress::AnyV4(), static_cast<uint16_t>(7000 + i)}, [](TestId&) {},
        100);
  }
  for (uint32_t n = 0; n < 1'000; ++n) Inject(Req(n, static_cast<uint16_t>(7000 + n % 10)));
  net_.RunFor(kMs);
  EXPECT_EQ(b_.manager->pending_requests(), 50u);
  EXPECT_EQ(b_.manager->counters().requests_over_limit, 950u);
}

TEST_F(CmLimits, UnansweredRequestsMakeRoomAgain) {
  TestId server(&b_);
  ListenOn(
      &server, Address("0.0.0.0:7000"), [](TestId&) {}, 8);
  for (uint32_t n = 0; n < 8; ++n) Inject(Req(n));
  net_.RunFor(121 * kSecond);
  EXPECT_EQ(b_.manager->pending_requests(), 0u);
  EXPECT_EQ(server.requests[0]->Count(CmEventType::kUnreachable), 1);
  Inject(Req(100));
  net_.RunFor(kMs);
  EXPECT_EQ(server.requests.size(), 9u);
}

TEST_F(CmLimits, FloodWithoutListenerLeavesNothing) {
  for (uint32_t n = 0; n < 10'000; ++n) Inject(Req(n));
  net_.RunFor(kMs);
  EXPECT_EQ(b_.manager->connection_count(), 0u);
  EXPECT_EQ(Rejects(wire::RejReason::kInvalidServiceId), 10'000);
}

TEST_F(CmLimits, RememberedRejectionsAreBounded) {
  TestId server(&b_);
  ListenOn(&server, Address("0.0.0.0:7000"), [](TestId& request) { (void)request->Reject({}); });
  for (uint32_t n = 0; n < 1'000; ++n) {
    Inject(Req(n));
    net_.RunFor(kMs);
  }
  EXPECT_EQ(server.requests.size(), 1'000u);
  EXPECT_LE(b_.manager->connection_count(), 20u);
}

TEST_F(CmLimits, RejectionIsRememberedAsLongAsTheReqComesAgain) {
  TestId server(&b_);
  ListenOn(&server, Address("0.0.0.0:7000"), [](TestId& request) { (void)request->Reject({}); });
  for (int i = 0; i < 5; ++i) {
    Inject(Req(1));
    net_.RunFor(30 * kSecond);
  }
  EXPECT_EQ(server.requests.size(), 1u);
  EXPECT_EQ(Rejects(wire::RejReason::kConsumerDefined), 5);
  net_.RunFor(10 * kSecond);
  EXPECT_EQ(b_.manager->connection_count(), 0u);
}

TEST_F(CmLimits, ConnectionsAreBounded) {
  TestId server(&b_);
  ListenOn(&server, Address("0.0.0.0:7000"), AcceptIt, 100);
  for (uint32_t n = 0; n < 1'000; ++n) {
    Inject(Req(n));
    net_.RunFor(kMs / 100);
  }
  EXPECT_EQ(b_.manager->connection_count(), 200u);
  TestId client(&b_);
  ConnectTo(&client, Address("10.0.0.1:1"));
  client.on_event = [](TestId& id, const SeenEvent& event) {
    if (event.type == CmEventType::kAddrResolved) (void)id->ResolveRoute(1);
  };
  net_.RunFor(kMs);
  EXPECT_EQ(client->Connect(Param(0x11)).code(), absl::StatusCode::kResourceExhausted);
}

// Each of them would wait for a minute, by the ACK timeout that its session has chosen.
TEST_F(CmLimits, ConnectionsThatAreOverMakeRoomForEachOther) {
  constexpr uint32_t kAckTimeoutOption = 3;
  constexpr uint8_t kLongest = 31;
  net_.pass = nullptr;
  TestId server(&b_);
  uint32_t server_qpn = 2;
  ListenOn(
      &server, Address("0.0.0.0:7000"),
      [&server_qpn](TestId& request) { (void)request->Accept(Param(server_qpn++)); }, 100);
  const auto connect = [&](TestId& client, uint32_t qpn) {
    ASSERT_TRUE(client->SetOption(kAckTimeoutOption, {&kLongest, 1}).ok());
    ConnectTo(&client, Address("10.0.0.2:7000"), Param(qpn));
    net_.RunFor(kMs);
    ASSERT_STREQ(client->state_name(), "established") << client.History();
  };
  for (uint32_t n = 0; n < 500; ++n) {
    TestId client(&a_);
    connect(client, n + 2);
    ASSERT_TRUE(client->Disconnect().ok());
    net_.RunFor(kMs);
    ASSERT_EQ(server.requests.back()->Count(CmEventType::kDisconnected), 1);
    server.requests.clear();
  }
  EXPECT_EQ(a_.manager->connection_count(), 500u) << "they wait, where there is room";
  EXPECT_EQ(b_.manager->connection_count(), 20u);
  TestId mine(&a_);
  connect(mine, 1000);
  EXPECT_EQ(b_.manager->connection_count(), 21u);
}

TEST_F(CmLimits, ReqsThatCannotBeServedAreRefusedForTheRightReason) {
  TestId server(&b_);
  ListenOn(&server, Address("0.0.0.0:7000"), AcceptIt);
  const struct {
    wire::RejReason reason;
    std::function<void(wire::CmReq*)> spoil;
  } kCases[] = {
      {wire::RejReason::kInvalidServiceId, [](wire::CmReq* req) { req->service_id ^= 1; }},
      {wire::RejReason::kInvalidServiceId,
       [](wire::CmReq* req) { req->service_id ^= uint64_t{1} << 60; }},
      {wire::RejReason::kInvalidTransport,
       [](wire::CmReq* req) { req->transport = wire::CmTransport::kRd; }},
      {wire::RejReason::kUnsupported, [](wire::CmReq* req) { req->private_data[0] = 0x10; }},
      {wire::RejReason::kUnsupported, [](wire::CmReq* req) { req->private_data[1] = 0x50; }},
      {wire::RejReason::kInvalidGid, [](wire::CmReq* req) { req->primary.local_gid[15] ^= 1; }},
      {wire::RejReason::kInvalidGid, [](wire::CmReq* req) { req->primary.remote_gid[15] ^= 1; }},
      {wire::RejReason::kInvalidGid, [](wire::CmReq* req) { req->private_data[19] ^= 1; }},
      {wire::RejReason::kInvalidMtu, [](wire::CmReq* req) { req->path_mtu = 0; }},
      {wire::RejReason::kInvalidMtu, [](wire::CmReq* req) { req->path_mtu = 15; }},
  };
  uint32_t n = 0;
  for (const auto& c : kCases) {
    wire::CmReq req = Req(++n);
    c.spoil(&req);
    net_.sent.clear();
    Inject(req);
    net_.RunFor(kMs);
    EXPECT_EQ(Rejects(c.reason), 1) << wire::RejReasonName(c.reason) << " case " << n;
  }
  EXPECT_TRUE(server.requests.empty());
  EXPECT_EQ(b_.manager->connection_count(), 0u);
}

TEST_F(CmLimits, SameIdWithAnotherQpIsADuplicateId) {
  TestId server(&b_);
  ListenOn(&server, Address("0.0.0.0:7000"), AcceptIt);
  wire::CmReq req = Req(1);
  Inject(req);
  req.local_qpn = wire::Qpn(77);
  Inject(req);
  net_.RunFor(kMs);
  EXPECT_EQ(server.requests.size(), 1u);
  EXPECT_EQ(Rejects(wire::RejReason::kDuplicateLocalCommId), 1);
}

TEST_F(CmLimits, MessagesWithForeignIdsChangeNothing) {
  TestId server(&b_);
  ListenOn(&server, Address("0.0.0.0:7000"), AcceptIt);
  Inject(Req(1));
  net_.RunFor(kMs);
  const auto rep = std::get<wire::CmRep>(net_.Last(CmAttribute::kRep)->message);
  const wire::CommId ours = rep.local_comm_id, theirs = rep.remote_comm_id, other(0x5555);
  Inject(wire::CmRtu{.local_comm_id = other, .remote_comm_id = ours});
  Inject(wire::CmRtu{.local_comm_id = theirs, .remote_comm_id = other});
  Inject(wire::CmDreq{.local_comm_id = other, .remote_comm_id = ours, .remote_qpn = rep.local_qpn});
  Inject(wire::CmDreq{.local_comm_id = theirs, .remote_comm_id = ours, .remote_qpn = wire::Qpn(9)});
  Inject(wire::CmDrep{.local_comm_id = theirs, .remote_comm_id = ours});
  Inject(wire::CmRep{.local_comm_id = theirs, .remote_comm_id = ours});
  Inject(wire::CmMra{.local_comm_id = theirs, .remote_comm_id = ours});
  // The right ids from another host.
  Flow stranger;
  stranger.local = IpAddress::FromV4(10, 0, 0, 66);
  stranger.remote = b_.ip;
  net_.Inject(stranger, 7, wire::CmRtu{.local_comm_id = theirs, .remote_comm_id = ours});
  net_.RunFor(kMs);
  EXPECT_STREQ((*server.requests[0])->state_name(), "rep_sent");
  EXPECT_TRUE(server.requests[0]->events.empty()) << server.requests[0]->History();
}

TEST_F(CmLimits, GarbageIsCountedAndDropped) {
  Mad mad{};
  for (int i = 0; i < 1'000; ++i) {
    for (uint8_t& byte : mad) byte = static_cast<uint8_t>(net_.Random());
    Flow flow;
    flow.local = a_.ip;
    flow.remote = b_.ip;
    net_.Inject(flow, mad);
  }
  net_.RunFor(kMs);
  EXPECT_EQ(b_.manager->counters().mads_malformed, 1'000u);
  EXPECT_TRUE(net_.sent.empty());
}

// Well-formed headers, random bodies: no state but what a listener asked for, no crash, no
// unbounded answer.
TEST_F(CmLimits, RandomMessagesStayWithinTheLimits) {
  TestId server(&b_);
  ListenOn(&server, Address("0.0.0.0:7000"), AcceptIt);
  net_.keep_sent = false;
  for (int i = 0; i < 20'000; ++i) {
    Mad mad;
    for (uint8_t& byte : mad) byte = static_cast<uint8_t>(net_.Random());
    wire::MadHeader header;
    header.attribute = static_cast<CmAttribute>(0x10 + net_.Random() % 9);
    wire::BuildMadHeader(header, mad);
    Flow flow;
    flow.local = a_.ip;
    flow.remote = b_.ip;
    net_.Inject(flow, mad);
    if (i % 100 == 0) net_.RunFor(kMs);
  }
  net_.RunFor(kMs);
  EXPECT_EQ(b_.manager->connection_count(), 0u);
}

TEST(CmCycles, FiveThousandConnectionsLeaveTheTablesEmpty) {
  TestNet net;
  net.keep_sent = false;
  TestHost a(&net, "10.0.0.1"), b(&net, "10.0.0.2");
  TestId server(&b);
  uint32_t server_qpn = 2;
  ListenOn(
      &server, Address("0.0.0.0:7000"),
      [&server_qpn](TestId& request) { (void)request->Accept(Param(server_qpn++)); }, 64);
  constexpr int kParallel = 20;
  for (int round = 0; round < 5'000 / kParallel; ++round) {
    std::vector<std::unique_ptr<TestId>> clients;
    for (int i = 0; i < kParallel; ++i) {
      clients.push_back(std::make_unique<TestId>(&a));
      ConnectTo(clients.back().get(), Address("10.0.0.2:7000"),
                Param(static_cast<uint32_t>(2 + round * kParallel + i)));
    }
    net.RunFor(kMs);
    for (auto& client : clients) {
      ASSERT_STREQ((*client)->state_name(), "established") << client->History();
      ASSERT_TRUE((*client)->Disconnect().ok());
    }
    net.RunFor(kMs);
    for (auto& client : clients) ASSERT_EQ(client->Count(CmEventType::kDisconnected), 1);
    ASSERT_EQ(server.requests.size(), static_cast<size_t>(kParallel));
    server.requests.clear();
  }
  ASSERT_TRUE(net.Run());
  EXPECT_EQ(a.manager->connection_count(), 0u);
  EXPECT_EQ(b.manager->connection_count(), 0u);
  EXPECT_EQ(a.manager->bound_ports(), 0u);
  EXPECT_EQ(b.manager->bound_ports(), 1u) << "the listener's";
  EXPECT_EQ(a.manager->endpoint_count(), 0u);
  EXPECT_EQ(b.manager->endpoint_count(), 1u);
  EXPECT_EQ(b.manager->counters().stale, 0u);
}

}  // namespace
}  // namespace rdmad::soft
