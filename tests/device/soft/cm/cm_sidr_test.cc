// The UDP port space: who serves a port, asked with SIDR_REQ and answered with SIDR_REP, and what
// goes wrong on the way.
#include <cerrno>

#include "daemon/wire/cm/ip_cm.h"
#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"

namespace rdmad::soft {
namespace {

using absl::StatusCode;
using device::PortSpace;
using device::QpState;
using wire::CmAttribute;

class CmSidr : public ::testing::Test {
 protected:
  void Listen(std::function<void(TestId&)> on_request, int backlog = 16) {
    ListenOn(&server_, Address("0.0.0.0:7000"), std::move(on_request), backlog);
  }
  void Ask(const device::ConnParam& param = Param(0x11)) {
    ConnectTo(&client_, Address("10.0.0.2:7000"), param);
  }
  // Loses the first `count` messages of a kind.
  void Lose(CmAttribute attribute, int count) {
    net_.pass = [attribute, count](const SentMad& sent) mutable {
      return sent.header.attribute != attribute || count-- <= 0;
    };
  }
  // A question as host A would send it, number `n` of many.
  static wire::CmSidrReq Req(uint32_t n) {
    wire::CmSidrReq req;
    req.request_id = wire::CommId(n + 1);
    req.service_id = wire::IpServiceId(wire::PortSpace::kUdp, 7000);
    const wire::IpCmHeader header{.source_port = 1000,
                                  .source = IpAddress::FromV4(10, 0, 0, 1),
                                  .destination = IpAddress::FromV4(10, 0, 0, 2)};
    wire::BuildIpCmHeader(header, std::span(req.private_data).first<wire::kIpCmHeaderBytes>());
    return req;
  }
  void Inject(const wire::CmMessage& message, TestHost& from, TestHost& to) {
    Flow flow;
    flow.local = from.ip;
    flow.remote = to.ip;
    net_.Inject(flow, 7, message);
  }
  void ExpectNothingLeft() {
    EXPECT_TRUE(net_.Run());
    for (TestHost* host : {&a_, &b_}) {
      EXPECT_EQ(host->manager->sidr_count(), 0u);
      EXPECT_EQ(host->manager->pending_requests(), 0u);
      EXPECT_EQ(host->manager->connection_count(), 0u);
    }
  }
  TestId& request() { return *server_.requests.at(0); }

  TestNet net_;
  TestHost a_{&net_, "10.0.0.1"};
  TestHost b_{&net_, "10.0.0.2"};
  TestId server_{&b_, PortSpace::kUdp};
  TestId client_{&a_, PortSpace::kUdp};
};

TEST_F(CmSidr, AcceptedClientLearnsHowToReachTheQp) {
  Listen(AcceptIt);
  ASSERT_TRUE(client_->SetOption(0, std::vector<uint8_t>{0x28}).ok());
  Ask();
  ExpectNothingLeft();
  ASSERT_EQ(client_.Count(CmEventType::kEstablished), 1) << client_.History();
  const SeenEvent& event = *client_.Find(CmEventType::kEstablished);
  EXPECT_EQ(event.status, 0);
  EXPECT_EQ(event.param.qpn, 0x22u);
  EXPECT_EQ(event.param.qkey, 0x01234567u);
  EXPECT_EQ(event.av.dest, b_.ip);
  EXPECT_EQ(event.av.sgid_index, 1u);
  EXPECT_EQ(event.av.traffic_class, 0x28);
  EXPECT_EQ(event.av.hop_limit, 64);
  EXPECT_EQ(client_->remote_qpn(), 0x22u);
  EXPECT_STREQ(client_->state_name(), "established");
}

TEST_F(CmSidr, RequestNamesNoQpButTheWayBack) {
  Listen(AcceptIt);
  Ask();
  ASSERT_TRUE(net_.Run());
  const SeenEvent& event = *server_.Find(CmEventType::kConnectRequest);
  EXPECT_EQ(event.param.qpn, 0u);
  EXPECT_EQ(event.av.dest, a_.ip);
  EXPECT_EQ(event.av.sgid_index, 1u);
  EXPECT_EQ(request()->peer(), client_->local());
  EXPECT_EQ(request()->local(), Address("10.0.0.2:7000"));
  EXPECT_EQ(request()->device(), &b_.device);
  EXPECT_EQ(request()->remote_qpn(), 0u);
}

TEST_F(CmSidr, AcceptIsTheEndOfItForTheServer) {
  Listen(AcceptIt);
  Ask();
  ASSERT_TRUE(net_.Run());
  EXPECT_STREQ(request()->state_name(), "established");
  EXPECT_TRUE(request().events.empty()) << request().History();
  EXPECT_EQ(request()->Accept(Param(0x22)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(request()->Reject({}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(request()->Disconnect().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->Disconnect().code(), StatusCode::kFailedPrecondition);
}

TEST_F(CmSidr, PrivateDataArrivesZeroFilledToTheWholeField) {
  Listen([](TestId& request) { EXPECT_TRUE(request->Accept(Param(0x22, {9, 8})).ok()); });
  Ask(Param(0x11, {1, 2, 3}));
  ASSERT_TRUE(net_.Run());
  std::vector<uint8_t> of_req{1, 2, 3}, of_rep{9, 8};
  of_req.resize(180);
  of_rep.resize(136);
  EXPECT_EQ(server_.Find(CmEventType::kConnectRequest)->param.private_data, of_req);
  EXPECT_EQ(client_.Find(CmEventType::kEstablished)->param.private_data, of_rep);
}

TEST_F(CmSidr, TooMuchPrivateDataIsRefusedAndMayBeTriedAgain) {
  Listen([](TestId& request) {
    EXPECT_EQ(request->Accept(Param(2, std::vector<uint8_t>(137))).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(request->Reject(std::vector<uint8_t>(137)).code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(request->Accept(Param(2, std::vector<uint8_t>(136))).ok());
  });
  client_.on_event = [](TestId& id, const SeenEvent& event) {
    if (event.type == CmEventType::kAddrResolved) {
      EXPECT_TRUE(id->ResolveRoute(1).ok());
    } else if (event.type == CmEventType::kRouteResolved) {
      EXPECT_EQ(id->Connect(Param(3, std::vector<uint8_t>(181))).code(),
                StatusCode::kInvalidArgument);
      EXPECT_TRUE(id->Connect(Param(3, std::vector<uint8_t>(180))).ok());
    }
  };
  ASSERT_TRUE(client_->ResolveAddr(SocketAddress(), Address("10.0.0.2:7000"), 100).ok());
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(client_.Count(CmEventType::kEstablished), 1) << client_.History();
}

TEST_F(CmSidr, AQkeyOfTheServersOwnReachesTheClient) {
  Listen([](TestId& request) {
    device::ConnParam param = Param(0x22);
    param.qkey = 0x777;
    EXPECT_TRUE(request->Accept(param).ok());
  });
  Ask();
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(client_.Find(CmEventType::kEstablished)->param.qkey, 0x777u);
  EXPECT_EQ(request()->InitQpAttr(QpState::kInit)->qkey, 0x777u);
}

// What rdma_cm says of a refusal: UNREACHABLE, with the status of the message.
TEST_F(CmSidr, RejectedIsUnreachableWithStatus2AndItsData) {
  Listen([](TestId& request) {
    EXPECT_TRUE(request->Reject(std::vector<uint8_t>{5, 6}).ok());
    EXPECT_STREQ(request->state_name(), "closed");
  });
  Ask();
  ExpectNothingLeft();
  ASSERT_EQ(client_.Count(CmEventType::kUnreachable), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kUnreachable)->status, 2);
  EXPECT_EQ(client_.Find(CmEventType::kUnreachable)->param.private_data.at(1), 6);
  EXPECT_STREQ(client_->state_name(), "closed");
}

TEST_F(CmSidr, NobodyListensIsUnreachableWithStatus1) {
  TestId tcp(&b_);
  ListenOn(&tcp, Address("0.0.0.0:7000"), AcceptIt);
  Ask();
  ExpectNothingLeft();
  ASSERT_EQ(client_.Count(CmEventType::kUnreachable), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kUnreachable)->status, 1);
  EXPECT_TRUE(tcp.requests.empty()) << "TCP's port 7000 is another one";
}

TEST_F(CmSidr, SilentHostIsUnreachableWithATimeout) {
  ConnectTo(&client_, Address("10.0.0.99:7000"));
  ExpectNothingLeft();
  ASSERT_EQ(client_.Count(CmEventType::kUnreachable), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kUnreachable)->status, -ETIMEDOUT);
  EXPECT_EQ(net_.Count(CmAttribute::kSidrReq), 16) << "once, and 15 retries";
}

TEST_F(CmSidr, LostQuestionIsAskedAgain) {
  Listen(AcceptIt);
  Lose(CmAttribute::kSidrReq, 2);
  Ask();
  // Not soon: a kernel that has answered meanwhile would take it for another one.
  net_.RunFor(kSecond * 9 / 10);
  EXPECT_EQ(net_.Count(CmAttribute::kSidrReq), 1);
  net_.RunFor(3 * kSecond);
  EXPECT_EQ(client_.Count(CmEventType::kEstablished), 1) << client_.History();
  EXPECT_EQ(server_.requests.size(), 1u);
}

TEST_F(CmSidr, LostAnswerIsGivenAgainWithoutAskingTheServer) {
  Listen(AcceptIt);
  Lose(CmAttribute::kSidrRep, 3);
  Ask();
  net_.RunFor(8 * kSecond);
  EXPECT_EQ(client_.Count(CmEventType::kEstablished), 1) << client_.History();
  EXPECT_EQ(server_.requests.size(), 1u);
  EXPECT_EQ(net_.Count(CmAttribute::kSidrRep), 4);
  ExpectNothingLeft();
}

TEST_F(CmSidr, AnsweredEndpointMayGoBeforeTheLostAnswerIsRepeated) {
  Listen([](TestId& request) {
    AcceptIt(request);
    request.endpoint.reset();
  });
  Lose(CmAttribute::kSidrRep, 1);
  Ask();
  ExpectNothingLeft();
  EXPECT_EQ(client_.Count(CmEventType::kEstablished), 1) << client_.History();
}

TEST_F(CmSidr, DestroyedRequestIsRejected) {
  Listen([](TestId& request) { request.endpoint.reset(); });
  Ask();
  ExpectNothingLeft();
  ASSERT_EQ(client_.Count(CmEventType::kUnreachable), 1) << client_.History();
  EXPECT_EQ(client_.Find(CmEventType::kUnreachable)->status, 2);
}

TEST_F(CmSidr, ClientMayGoWhileItAsks) {
  Listen([](TestId&) {});
  Ask();
  net_.RunFor(kMs / 10);
  client_.endpoint.reset();
  net_.RunFor(kSecond);
  AcceptIt(request());
  ExpectNothingLeft();
  EXPECT_TRUE(request().events.empty()) << request().History();
}

TEST_F(CmSidr, SlowServerStillAnswers) {
  Listen([](TestId&) {});
  Ask();
  net_.RunFor(20 * kSecond);
  ASSERT_EQ(server_.requests.size(), 1u) << "repetitions are no new requests";
  AcceptIt(request());
  net_.RunFor(kSecond);
  EXPECT_EQ(client_.Count(CmEventType::kEstablished), 1) << client_.History();
  ExpectNothingLeft();
}

TEST_F(CmSidr, RequestThatNobodyAnswersIsGivenUpOnBothSides) {
  Listen([](TestId&) {});
  Ask();
  ExpectNothingLeft();
  EXPECT_EQ(client_.Find(CmEventType::kUnreachable)->status, -ETIMEDOUT);
  ASSERT_EQ(request().Count(CmEventType::kUnreachable), 1) << request().History();
  EXPECT_EQ(request()->Accept(Param(2)).code(), StatusCode::kFailedPrecondition);
}

TEST_F(CmSidr, DuplicatedAnswersAreOneEvent) {
  Listen(AcceptIt);
  net_.faults.duplicate = 1;
  Ask();
  ExpectNothingLeft();
  EXPECT_EQ(client_.Count(CmEventType::kEstablished), 1) << client_.History();
  EXPECT_EQ(server_.requests.size(), 1u);
}

TEST_F(CmSidr, AnswersThatAreNotForUsChangeNothing) {
  Listen([](TestId&) {});
  Ask();
  net_.RunFor(kMs);
  const auto req = std::get<wire::CmSidrReq>(net_.Last(CmAttribute::kSidrReq)->message);
  wire::CmSidrRep rep;
  rep.qpn = wire::Qpn(0x66);
  rep.request_id = wire::CommId(req.request_id.value() + 1);
  Inject(rep, b_, a_);
  TestHost stranger(&net_, "10.0.0.66");
  rep.request_id = req.request_id;
  Inject(rep, stranger, a_);
  net_.RunFor(kMs);
  EXPECT_FALSE(client_.Saw(CmEventType::kEstablished)) << client_.History();
  EXPECT_EQ(a_.manager->counters().mads_unmatched, 2u);
}

TEST_F(CmSidr, QuestionsThatCannotBeServedAreRefusedWithTheRightStatus) {
  Listen(AcceptIt);
  const struct {
    wire::SidrStatus status;
    std::function<void(wire::CmSidrReq*)> spoil;
  } kCases[] = {
      {wire::SidrStatus::kUnsupportedServiceId, [](wire::CmSidrReq* req) { req->service_id ^= 1; }},
      {wire::SidrStatus::kUnsupportedServiceId,
       [](wire::CmSidrReq* req) {
         req->service_id = wire::IpServiceId(wire::PortSpace::kTcp, 7000);
       }},
      {wire::SidrStatus::kUnsupportedServiceId,
       [](wire::CmSidrReq* req) { req->service_id ^= uint64_t{1} << 60; }},
      {wire::SidrStatus::kUnsupportedVersion,
       [](wire::CmSidrReq* req) { req->private_data[0] = 0x10; }},
      {wire::SidrStatus::kUnsupportedVersion,
       [](wire::CmSidrReq* req) { req->private_data[1] = 0x50; }},
      {wire::SidrStatus::kRejected, [](wire::CmSidrReq* req) { req->private_data[19] ^= 1; }},
      {wire::SidrStatus::kRejected, [](wire::CmSidrReq* req) { req->private_data[35] ^= 1; }},
  };
  uint32_t n = 0;
  for (const auto& c : kCases) {
    SCOPED_TRACE(n);
    wire::CmSidrReq req = Req(++n);
    c.spoil(&req);
    net_.sent.clear();
    Inject(req, a_, b_);
    net_.RunFor(kMs);
    ASSERT_EQ(net_.Count(CmAttribute::kSidrRep), 1);
    const auto rep = std::get<wire::CmSidrRep>(net_.Last(CmAttribute::kSidrRep)->message);
    EXPECT_EQ(rep.status, c.status) << wire::SidrStatusName(rep.status);
    EXPECT_EQ(rep.request_id, req.request_id);
  }
  EXPECT_TRUE(server_.requests.empty());
  EXPECT_EQ(b_.manager->sidr_count(), 0u);
}

// Nobody could accept or reject it there.
TEST_F(CmSidr, AReqOfAConnectionFindsNoService) {
  int requests = 0;
  Listen([&requests](TestId&) { ++requests; });
  wire::CmReq req;
  req.local_comm_id = wire::CommId(5);
  req.local_qpn = wire::Qpn(0x77);
  req.service_id = wire::IpServiceId(wire::PortSpace::kUdp, 7000);
  req.primary.local_gid = a_.ip.gid();
  req.primary.remote_gid = b_.ip.gid();
  const wire::IpCmHeader header{.source_port = 1000, .source = a_.ip, .destination = b_.ip};
  wire::BuildIpCmHeader(header, std::span(req.private_data).first<wire::kIpCmHeaderBytes>());
  Inject(req, a_, b_);
  net_.RunFor(kMs);
  EXPECT_EQ(requests, 0);
  const SentMad* const answer = net_.Last(CmAttribute::kRej);
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(std::get<wire::CmRej>(answer->message).reason, wire::RejReason::kInvalidServiceId);
  ExpectNothingLeft();
}

TEST_F(CmSidr, FloodFillsTheBacklogAndNoMore) {
  Listen([](TestId&) {}, 8);
  for (uint32_t n = 0; n < 5'000; ++n) Inject(Req(n), a_, b_);
  net_.RunFor(kMs);
  EXPECT_EQ(server_.requests.size(), 8u);
  EXPECT_EQ(b_.manager->sidr_count(), 8u);
  EXPECT_EQ(b_.manager->counters().requests_over_backlog, 4'992u);
  EXPECT_EQ(net_.Count(CmAttribute::kSidrRep), 0) << "they may ask again";
  server_.requests.clear();
  Inject(Req(6'000), a_, b_);
  net_.RunFor(kMs);
  EXPECT_EQ(server_.requests.size(), 1u) << "there is room again";
}

TEST(CmSidrLimits, RememberedAnswersAreBounded) {
  TestNet net;
  CmOptions options;
  options.max_rejected = 20;
  TestHost a(&net, "10.0.0.1"), b(&net, "10.0.0.2", options);
  TestId server(&b, PortSpace::kUdp);
  ListenOn(&server, Address("0.0.0.0:7000"), AcceptIt);
  for (int i = 0; i < 100; ++i) {
    TestId client(&a, PortSpace::kUdp);
    ConnectTo(&client, Address("10.0.0.2:7000"));
    net.RunFor(kMs);
    ASSERT_EQ(client.Count(CmEventType::kEstablished), 1);
  }
  EXPECT_LE(b.manager->sidr_count(), 21u);
  EXPECT_TRUE(net.Run());
  EXPECT_EQ(b.manager->sidr_count(), 0u);
}

TEST_F(CmSidr, PeersInOneDaemonMeetWithoutTheNetwork) {
  TestId near(&a_, PortSpace::kUdp);
  ListenOn(&near, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&client_, Address("10.0.0.1:7000"));
  ExpectNothingLeft();
  EXPECT_EQ(client_.Count(CmEventType::kEstablished), 1) << client_.History();
  EXPECT_TRUE(net_.sent.empty());
}

TEST_F(CmSidr, WorksOverIpv6) {
  TestHost c(&net_, "fd77::1"), d(&net_, "fd77::2");
  TestId server(&d, PortSpace::kUdp), client(&c, PortSpace::kUdp);
  ListenOn(&server, Address("[::]:7000"), AcceptIt);
  ConnectTo(&client, Address("[fd77::2]:7000"));
  ASSERT_TRUE(net_.Run());
  ASSERT_EQ(client.Count(CmEventType::kEstablished), 1) << client.History();
  EXPECT_EQ(client.Find(CmEventType::kEstablished)->av.dest, d.ip);
}

TEST_F(CmSidr, QpAttributesAreRdmaCms) {
  EXPECT_EQ(client_->InitQpAttr(QpState::kInit).status().code(), StatusCode::kFailedPrecondition)
      << "no device yet";
  ASSERT_TRUE(client_->BindAddr(Address("10.0.0.1:0")).ok());
  const auto init = client_->InitQpAttr(QpState::kInit).value();
  EXPECT_EQ(init.mask, device::kQpAttrState | device::kQpAttrPkeyIndex | device::kQpAttrPort |
                           device::kQpAttrQkey);
  EXPECT_EQ(init.qkey, 0x01234567u);
  EXPECT_EQ(init.port, 1);
  EXPECT_EQ(client_->InitQpAttr(QpState::kRtr)->mask, uint32_t{device::kQpAttrState});
  const auto rts = client_->InitQpAttr(QpState::kRts).value();
  EXPECT_EQ(rts.mask, device::kQpAttrState | device::kQpAttrSqPsn);
  EXPECT_EQ(rts.sq_psn, 0u);
  EXPECT_EQ(client_->InitQpAttr(QpState::kSqd).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(CmSidr, RemovedDeviceEndsQuestionsOnBothSides) {
  Listen([](TestId&) {});
  Ask();
  net_.RunFor(kMs);
  ASSERT_EQ(server_.requests.size(), 1u);
  a_.manager->OnDeviceRemoved(&a_.device);
  b_.manager->OnDeviceRemoved(&b_.device);
  ExpectNothingLeft();
  EXPECT_EQ(client_.Count(CmEventType::kDeviceRemoval), 1) << client_.History();
  EXPECT_EQ(request().Count(CmEventType::kDeviceRemoval), 1) << request().History();
  EXPECT_EQ(request()->Accept(Param(2)).code(), StatusCode::kFailedPrecondition);
  EXPECT_STREQ(client_->state_name(), "closed");
}

}  // namespace
}  // namespace rdmad::soft
