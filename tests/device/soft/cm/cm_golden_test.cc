// Our messages beside those of the kernel's rxe: what it sends is understood, and what we send
// differs from what it sent in the same situation only where it must.
#include <algorithm>
#include <set>

#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"
#include "tests/support/rxe_captures.h"

namespace rdmad::soft {
namespace {

using wire::CmAttribute;

// A range of bytes of a MAD that may differ, and why.
struct Allowed {
  size_t begin, end;
};
constexpr size_t kData = wire::kMadHeaderBytes;
constexpr Allowed kTransactionId{8, 16};
constexpr Allowed kLocalCommId{kData, kData + 4};
constexpr Allowed kRemoteCommId{kData + 4, kData + 8};
constexpr Allowed kReqPsn{kData + 44, kData + 47};        // random
constexpr Allowed kReqFlowLabel{kData + 88, kData + 91};  // rxe's hash of the QPN; ours is 0
constexpr Allowed kRepPsn{kData + 20, kData + 23};
constexpr Allowed kRepAckDelay{kData + 26, kData + 27};  // ours is shorter
constexpr Allowed kRepGuid{kData + 28, kData + 36};

// The MADs of a capture, in order.
std::vector<SentMad> MadsOf(const std::string& file) {
  constexpr size_t kBthAndDeth = 20;
  std::vector<SentMad> mads;
  for (const testing::RxePacket& packet : testing::RxePacketsOf(file)) {
    const auto payload = packet.udp.payload;
    const bool to_qp1 = payload[5] == 0 && payload[6] == 0 && payload[7] == 1;
    if (!to_qp1 || payload.size() < kBthAndDeth + kMadBytes) continue;
    SentMad mad{};
    mad.flow.local = packet.udp.source;
    mad.flow.remote = packet.udp.destination;
    std::copy_n(payload.begin() + kBthAndDeth, kMadBytes, mad.mad.begin());
    EXPECT_EQ(wire::ParseCmMessage(mad.mad, &mad.header, &mad.message), wire::MadDropReason::kNone);
    mads.push_back(mad);
  }
  return mads;
}

SentMad OneOf(const std::string& file, CmAttribute attribute) {
  for (const SentMad& mad : MadsOf(file)) {
    if (mad.header.attribute == attribute) return mad;
  }
  ADD_FAILURE() << file << " has no " << wire::CmAttributeName(attribute);
  return {};
}

void ExpectSameBut(const Mad& ours, const Mad& theirs, const std::vector<Allowed>& allowed) {
  for (size_t i = 0; i < kMadBytes; ++i) {
    const bool may_differ = std::any_of(allowed.begin(), allowed.end(), [i](const Allowed& range) {
      return i >= range.begin && i < range.end;
    });
    if (!may_differ) {
      EXPECT_EQ(ours[i], theirs[i]) << "byte " << i << " of the MAD";
    }
  }
}

// As rping's REQ was made.
device::ConnParam RpingParam(uint32_t qpn) {
  device::ConnParam param = Param(qpn, {}, 1, 1);
  param.retry_count = 7;
  param.rnr_retry_count = 7;
  return param;
}

CmOptions LikeTheKernel() {
  CmOptions options;
  options.local_ack_timeout = 19;
  return options;
}

// Our host in the role of one end of a capture; the other end is played by the test.
class CmGolden : public ::testing::Test {
 protected:
  // Sends one of rxe's messages to us, its second id replaced by the one that we have given.
  template <typename Message>
  void Replay(SentMad mad, wire::CommId our_id) {
    auto message = std::get<Message>(mad.message);
    message.remote_comm_id = our_id;
    net_.Inject(mad.flow, mad.header.transaction_id, message);
    net_.RunFor(kMs);
  }
  void ReplayReq(const SentMad& req) {
    net_.Inject(req.flow, req.mad);
    net_.RunFor(kMs);
  }

  TestNet net_;
};

TEST_F(CmGolden, ReqOfRxeBecomesAConnectRequest) {
  TestHost b(&net_, "10.77.0.2");
  TestId server(&b);
  ListenOn(&server, Address("0.0.0.0:7174"), [](TestId&) {});
  ReplayReq(OneOf("rping-1", CmAttribute::kReq));
  ASSERT_EQ(server.Count(CmEventType::kConnectRequest), 1);
  const SeenEvent& event = server.events[0];
  EXPECT_EQ(event.param.qpn, 0x11u);
  EXPECT_EQ(event.param.responder_resources, 1);
  EXPECT_EQ(event.param.initiator_depth, 1);
  EXPECT_EQ(event.param.retry_count, 7);
  EXPECT_EQ(event.param.rnr_retry_count, 7);
  EXPECT_EQ(event.path_mtu, device::Mtu::k4096);
  TestId& request = *server.requests[0];
  EXPECT_EQ(request->peer(), Address("10.77.0.1:39167"));
  EXPECT_EQ(request->local(), Address("10.77.0.2:7174"));
}

TEST_F(CmGolden, EveryConnectingProgramOfRxeIsHeard) {
  const struct {
    const char* file;
    const char* host;
    const char* listen;
  } kCases[] = {
      {"rping-1", "10.77.0.2", "0.0.0.0:7174"},
      {"rping-1-ipv6", "fd77::2", "[::]:7174"},
      {"ucmatose-1", "10.77.0.2", "10.77.0.2:7471"},
      {"cmtime-1", "10.77.0.2", "[::]:7471"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.file);
    TestNet net;
    TestHost host(&net, c.host);
    TestId server(&host);
    ListenOn(&server, Address(c.listen), AcceptIt);
    const SentMad req = OneOf(c.file, CmAttribute::kReq);
    net.Inject(req.flow, req.mad);
    net.RunFor(kMs);
    EXPECT_EQ(server.Count(CmEventType::kConnectRequest), 1);
    EXPECT_EQ(net.Count(CmAttribute::kRep), 1);
  }
}

TEST_F(CmGolden, OurReqIsRxes) {
  const struct {
    const char* file;
    const char* local;
    const char* peer;
    uint32_t qpn;
  } kCases[] = {
      {"rping-1", "10.77.0.1:39167", "10.77.0.2:7174", 0x11},
      {"rping-1-ipv6", "[fd77::1]:47963", "[fd77::2]:7174", 0x12},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.file);
    TestNet net;
    TestHost a(&net, Address(c.local).ip.ToString(), LikeTheKernel());
    TestId client(&a);
    ASSERT_TRUE(client->BindAddr(Address(c.local)).ok());
    ConnectTo(&client, Address(c.peer), RpingParam(c.qpn));
    net.RunFor(kMs);
    const SentMad* ours = net.Last(CmAttribute::kReq);
    ASSERT_NE(ours, nullptr) << client.History();
    ExpectSameBut(ours->mad, OneOf(c.file, CmAttribute::kReq).mad,
                  {kTransactionId, kLocalCommId, kReqPsn, kReqFlowLabel});
  }
}

TEST_F(CmGolden, OurRepIsRxes) {
  TestHost b(&net_, "10.77.0.2");
  TestId server(&b);
  ListenOn(&server, Address("0.0.0.0:7174"),
           [](TestId& request) { EXPECT_TRUE(request->Accept(RpingParam(0x11)).ok()); });
  ReplayReq(OneOf("rping-1", CmAttribute::kReq));
  ASSERT_EQ(net_.Count(CmAttribute::kRep), 1);
  ExpectSameBut(net_.Last(CmAttribute::kRep)->mad, OneOf("rping-1", CmAttribute::kRep).mad,
                {kLocalCommId, kRepPsn, kRepAckDelay, kRepGuid});
}

TEST_F(CmGolden, OurRefusalIsRxesToTheLastByte) {
  TestHost b(&net_, "10.77.0.2");
  ReplayReq(OneOf("reject-no-listener", CmAttribute::kReq));
  ASSERT_EQ(net_.Count(CmAttribute::kRej), 1);
  ExpectSameBut(net_.Last(CmAttribute::kRej)->mad,
                OneOf("reject-no-listener", CmAttribute::kRej).mad, {});
}

TEST_F(CmGolden, RxesWholeDialogueAsTheAcceptingSide) {
  TestHost b(&net_, "10.77.0.2");
  TestId server(&b);
  ListenOn(&server, Address("0.0.0.0:7174"),
           [](TestId& request) { EXPECT_TRUE(request->Accept(RpingParam(0x11)).ok()); });
  ReplayReq(OneOf("rping-1", CmAttribute::kReq));
  const auto our_id = std::get<wire::CmRep>(net_.Last(CmAttribute::kRep)->message).local_comm_id;
  Replay<wire::CmRtu>(OneOf("rping-1", CmAttribute::kRtu), our_id);
  TestId& request = *server.requests.at(0);
  EXPECT_EQ(request.Count(CmEventType::kEstablished), 1) << request.History();
  Replay<wire::CmDreq>(OneOf("rping-1", CmAttribute::kDreq), our_id);
  EXPECT_EQ(request.Count(CmEventType::kDisconnected), 1) << request.History();
  ExpectSameBut(net_.Last(CmAttribute::kDrep)->mad, OneOf("rping-1", CmAttribute::kDrep).mad,
                {kLocalCommId});
}

TEST_F(CmGolden, RxesWholeDialogueAsTheConnectingSide) {
  TestHost a(&net_, "10.77.0.1", LikeTheKernel());
  TestId client(&a);
  ConnectTo(&client, Address("10.77.0.2:7174"), RpingParam(0x11));
  net_.RunFor(kMs);
  const auto our_id = std::get<wire::CmReq>(net_.Last(CmAttribute::kReq)->message).local_comm_id;
  Replay<wire::CmRep>(OneOf("rping-1", CmAttribute::kRep), our_id);
  ASSERT_EQ(client.Count(CmEventType::kConnectResponse), 1) << client.History();
  EXPECT_EQ(client->InitQpAttr(device::QpState::kRts)->timeout, 19) << "what rdma_cm computes";
  ExpectSameBut(net_.Last(CmAttribute::kRtu)->mad, OneOf("rping-1", CmAttribute::kRtu).mad,
                {kTransactionId, kLocalCommId});

  ASSERT_TRUE(client->Disconnect().ok());
  net_.RunFor(kMs);
  ExpectSameBut(net_.Last(CmAttribute::kDreq)->mad, OneOf("rping-1", CmAttribute::kDreq).mad,
                {kTransactionId, kLocalCommId});
  Replay<wire::CmDrep>(OneOf("rping-1", CmAttribute::kDrep), our_id);
  EXPECT_EQ(client.Count(CmEventType::kDisconnected), 1) << client.History();
}

// ---- udaddy: the UDP port space ----

constexpr Allowed kSidrRequestId{kData, kData + 4};

TEST_F(CmGolden, SidrReqOfRxeIsAConnectRequestAndOurRepIsRxesToTheLastByte) {
  TestHost b(&net_, "10.77.0.2");
  TestId server(&b, device::PortSpace::kUdp);
  ListenOn(&server, Address("0.0.0.0:7174"),
           [](TestId& request) { EXPECT_TRUE(request->Accept(Param(0x14)).ok()); });
  ReplayReq(OneOf("udaddy-1", CmAttribute::kSidrReq));
  ASSERT_EQ(server.Count(CmEventType::kConnectRequest), 1);
  EXPECT_EQ((*server.requests[0])->peer(), Address("10.77.0.1:46738"));
  ASSERT_EQ(net_.Count(CmAttribute::kSidrRep), 1);
  ExpectSameBut(net_.Last(CmAttribute::kSidrRep)->mad, OneOf("udaddy-1", CmAttribute::kSidrRep).mad,
                {});
}

TEST_F(CmGolden, OurSidrReqIsRxesAndItsRepIsUnderstood) {
  TestHost a(&net_, "10.77.0.1");
  TestId client(&a, device::PortSpace::kUdp);
  ASSERT_TRUE(client->BindAddr(Address("10.77.0.1:46738")).ok());
  ConnectTo(&client, Address("10.77.0.2:7174"));
  net_.RunFor(kMs);
  const SentMad* ours = net_.Last(CmAttribute::kSidrReq);
  ASSERT_NE(ours, nullptr) << client.History();
  ExpectSameBut(ours->mad, OneOf("udaddy-1", CmAttribute::kSidrReq).mad,
                {kTransactionId, kSidrRequestId});

  SentMad theirs = OneOf("udaddy-1", CmAttribute::kSidrRep);
  auto rep = std::get<wire::CmSidrRep>(theirs.message);
  rep.request_id = std::get<wire::CmSidrReq>(ours->message).request_id;
  net_.Inject(theirs.flow, theirs.header.transaction_id, rep);
  net_.RunFor(kMs);
  const SeenEvent* event = client.Find(CmEventType::kEstablished);
  ASSERT_NE(event, nullptr) << client.History();
  EXPECT_EQ(event->param.qpn, 0x14u);
  EXPECT_EQ(event->param.qkey, 0x01234567u);
}

TEST_F(CmGolden, SidrReqOfRxeWithoutListenerIsAnsweredUnsupported) {
  TestHost b(&net_, "10.77.0.2");
  TestId tcp(&b);
  ListenOn(&tcp, Address("0.0.0.0:7174"), AcceptIt);
  ReplayReq(OneOf("udaddy-1", CmAttribute::kSidrReq));
  ASSERT_EQ(net_.Count(CmAttribute::kSidrRep), 1);
  EXPECT_EQ(std::get<wire::CmSidrRep>(net_.Last(CmAttribute::kSidrRep)->message).status,
            wire::SidrStatus::kUnsupportedServiceId);
  EXPECT_TRUE(tcp.requests.empty()) << "another port space";
}

}  // namespace
}  // namespace rdmad::soft
