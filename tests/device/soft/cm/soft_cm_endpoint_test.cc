// An id before it has a connection: binding, resolving, listening, options, and calls at the wrong
// time.
#include <poll.h>

#include <cerrno>

#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"

namespace rdmad::soft {
namespace {

using absl::StatusCode;
using device::PortSpace;
using device::QpState;

class SoftCmEndpointTest : public ::testing::Test {
 protected:
  void Turn() { a_.manager->Poll(net_.now); }
  // What the address error says, 0 if the address was resolved.
  int ResolveError(const SocketAddress& local, const SocketAddress& peer) {
    TestId id(&a_);
    EXPECT_TRUE(id->ResolveAddr(local, peer, 100).ok());
    Turn();
    const SeenEvent* error = id.Find(CmEventType::kAddrError);
    EXPECT_EQ(id.events.size(), 1u);
    return error == nullptr ? 0 : error->status;
  }

  TestNet net_;
  TestHost a_{&net_, "10.0.0.1"};
  TestId id_{&a_};
};

TEST_F(SoftCmEndpointTest, BindToPortZeroGivesAPort) {
  ASSERT_TRUE(id_->BindAddr(Address("0.0.0.0:0")).ok());
  EXPECT_NE(id_->local().port, 0);
  EXPECT_EQ(id_->device(), nullptr) << "the wildcard is on every device";
}

TEST_F(SoftCmEndpointTest, BindToAnAddressFindsItsDevice) {
  ASSERT_TRUE(id_->BindAddr(Address("10.0.0.1:7000")).ok());
  EXPECT_EQ(id_->device(), &a_.device);
}

TEST_F(SoftCmEndpointTest, BindErrors) {
  EXPECT_EQ(id_->BindAddr(Address("10.0.0.9:7000")).code(), StatusCode::kNotFound);
  EXPECT_EQ(id_->BindAddr({IpAddress::Parse("fe80::1").value(), 7000}).code(),
            StatusCode::kInvalidArgument)
      << "link-local without scope";
  TestId other(&a_);
  ASSERT_TRUE(other->BindAddr(Address("0.0.0.0:7000")).ok());
  EXPECT_EQ(id_->BindAddr(Address("10.0.0.1:7000")).code(), StatusCode::kAlreadyExists);
  EXPECT_STREQ(id_->state_name(), "idle") << "a failed bind leaves no trace";
  other.endpoint.reset();
  EXPECT_TRUE(id_->BindAddr(Address("10.0.0.1:7000")).ok()) << "free at once";
  EXPECT_EQ(id_->BindAddr(Address("10.0.0.1:7001")).code(), StatusCode::kFailedPrecondition);
}

TEST_F(SoftCmEndpointTest, ReuseAddrLetsTwoIdsBindOnePort) {
  const int on = 1;
  const std::span<const uint8_t> value(reinterpret_cast<const uint8_t*>(&on), sizeof(on));
  TestId other(&a_);
  ASSERT_TRUE(id_->SetOption(1, value).ok());
  ASSERT_TRUE(other->SetOption(1, value).ok());
  ASSERT_TRUE(id_->BindAddr(Address("10.0.0.1:7000")).ok());
  EXPECT_TRUE(other->BindAddr(Address("10.0.0.1:7000")).ok());
}

TEST_F(SoftCmEndpointTest, OptionValuesAreChecked) {
  const std::vector<uint8_t> byte{32}, four{1, 0, 0, 0}, none;
  EXPECT_TRUE(id_->SetOption(0, byte).ok());
  EXPECT_EQ(id_->SetOption(0, four).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(id_->SetOption(1, byte).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(id_->SetOption(2, four).ok());
  EXPECT_EQ(id_->SetOption(3, byte).code(), StatusCode::kInvalidArgument) << "at most 31";
  EXPECT_EQ(id_->SetOption(3, none).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(id_->SetOption(3, std::vector<uint8_t>{14}).ok());
  EXPECT_EQ(id_->SetOption(4, byte).code(), StatusCode::kUnimplemented);
  TestId udp(&a_, PortSpace::kUdp);
  EXPECT_EQ(udp->SetOption(3, std::vector<uint8_t>{14}).code(), StatusCode::kInvalidArgument)
      << "datagrams have no ACK timeout";
}

// As rdma_cm has it: REUSEADDR may be switched on late but not off, AFONLY changes until the id
// listens or resolves, TOS and ACK timeout always.
TEST_F(SoftCmEndpointTest, OptionsAreTooLateWhereTheyAreInTheKernel) {
  const std::vector<uint8_t> byte{8}, on{1, 0, 0, 0}, off{0, 0, 0, 0};
  const auto code = [](TestId& id, uint32_t option, const std::vector<uint8_t>& value) {
    return id->SetOption(option, value).code();
  };
  ASSERT_TRUE(id_->BindAddr(Address("0.0.0.0:7000")).ok());
  EXPECT_EQ(code(id_, 1, on), StatusCode::kOk);
  EXPECT_EQ(code(id_, 1, off), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(id_, 2, on), StatusCode::kOk);
  ASSERT_TRUE(id_->Listen(1).ok());
  EXPECT_EQ(code(id_, 1, on), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(id_, 2, on), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(id_, 0, byte), StatusCode::kOk);
  EXPECT_EQ(code(id_, 3, byte), StatusCode::kOk);
  TestId resolving(&a_);
  ASSERT_TRUE(resolving->ResolveAddr(SocketAddress(), Address("10.0.0.2:7"), 1).ok());
  EXPECT_EQ(code(resolving, 1, on), StatusCode::kOk);
  EXPECT_EQ(code(resolving, 2, on), StatusCode::kFailedPrecondition);
}

TEST_F(SoftCmEndpointTest, LateReuseAddrCounts) {
  const std::vector<uint8_t> on{1, 0, 0, 0};
  TestId other(&a_);
  ASSERT_TRUE(other->SetOption(1, on).ok());
  ASSERT_TRUE(id_->BindAddr(Address("10.0.0.1:7000")).ok());
  EXPECT_EQ(other->BindAddr(Address("10.0.0.1:7000")).code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(id_->SetOption(1, on).ok());
  EXPECT_TRUE(other->BindAddr(Address("10.0.0.1:7000")).ok());
}

TEST_F(SoftCmEndpointTest, LateAfOnlyCounts) {
  TestId other(&a_);
  ASSERT_TRUE(id_->BindAddr(Address("[::]:7000")).ok());
  EXPECT_EQ(other->BindAddr(Address("0.0.0.0:7000")).code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(id_->SetOption(2, std::vector<uint8_t>{1, 0, 0, 0}).ok());
  EXPECT_TRUE(other->BindAddr(Address("0.0.0.0:7000")).ok());
}

// What is on the wire is for the peer's QP, as with the kernel's rdma_cm.
TEST_F(SoftCmEndpointTest, TheAckTimeoutThatIsSetIsExactlyTheOwnQps) {
  const struct {
    uint8_t set, in_req, accepting_set, accepting;
  } kCases[] = {{12, 13, 31, 31}, {13, 14, 0, 0}, {15, 15, 7, 7}, {0, 16, 20, 20}, {31, 22, 1, 1}};
  uint16_t port = 7000;
  CmOptions slow;
  slow.target_ack_delay = 16;
  TestHost b(&net_, "10.0.0.2", slow);
  for (const auto& c : kCases) {
    SCOPED_TRACE(static_cast<int>(c.set));
    TestId client(&a_), server(&b);
    ASSERT_TRUE(client->SetOption(3, std::vector<uint8_t>{c.set}).ok());
    ListenOn(&server, {IpAddress::AnyV4(), ++port}, [&c](TestId& request) {
      ASSERT_TRUE(request->SetOption(3, std::vector<uint8_t>{c.accepting_set}).ok());
      AcceptIt(request);
    });
    ConnectTo(&client, {b.ip, port});
    net_.RunFor(kSecond);
    const auto& req = std::get<wire::CmReq>(net_.Last(wire::CmAttribute::kReq)->message);
    EXPECT_EQ(req.primary.local_ack_timeout, c.in_req);
    EXPECT_EQ(client->InitQpAttr(QpState::kRts)->timeout, c.set) << "the peer's delay is not added";
    EXPECT_EQ((*server.requests.at(0))->InitQpAttr(QpState::kRts)->timeout, c.accepting);
  }
}

TEST_F(SoftCmEndpointTest, OptionsShowOnTheWireAndInTheQp) {
  ASSERT_TRUE(id_->SetOption(0, std::vector<uint8_t>{0x28}).ok());
  ASSERT_TRUE(id_->SetOption(3, std::vector<uint8_t>{14}).ok());
  TestHost b(&net_, "10.0.0.2");
  TestId server(&b);
  ListenOn(&server, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&id_, Address("10.0.0.2:7000"));
  ASSERT_TRUE(net_.Run());
  const auto& req = std::get<wire::CmReq>(net_.Last(wire::CmAttribute::kReq)->message);
  EXPECT_EQ(req.primary.traffic_class, 0x28);
  EXPECT_EQ(req.primary.local_ack_timeout, 14);
  EXPECT_EQ(id_->InitQpAttr(QpState::kRts)->timeout, 14);
  EXPECT_EQ((*server.requests[0])->InitQpAttr(QpState::kRts)->timeout, 14) << "as the REQ says";
  EXPECT_EQ((*server.requests[0])->InitQpAttr(QpState::kRtr)->av.traffic_class, 0x28);
}

TEST_F(SoftCmEndpointTest, ResolveTakesTheRoutesAddressAndDevice) {
  ASSERT_TRUE(id_->ResolveAddr(SocketAddress(), Address("10.0.0.2:7"), 100).ok());
  EXPECT_STREQ(id_->state_name(), "addr_query");
  Turn();
  EXPECT_EQ(id_.Count(CmEventType::kAddrResolved), 1);
  EXPECT_EQ(id_->local().ip, a_.ip);
  EXPECT_NE(id_->local().port, 0);
  EXPECT_EQ(id_->device(), &a_.device);
}

TEST_F(SoftCmEndpointTest, ResolveErrorsCarryANegativeErrno) {
  EXPECT_EQ(ResolveError(SocketAddress(), Address("10.0.0.2:7")), 0);
  EXPECT_EQ(ResolveError(SocketAddress(), Address("127.0.0.5:7")), -ENODEV)
      << "no device on loopback";
  EXPECT_EQ(ResolveError(SocketAddress(), Address("239.1.1.1:7")), -EINVAL);
  a_.has_route = false;
  EXPECT_EQ(ResolveError(SocketAddress(), Address("10.0.0.2:7")), -ENETUNREACH);
}

TEST_F(SoftCmEndpointTest, ResolveRefusesAtOnceWhatCannotWork) {
  EXPECT_EQ(id_->ResolveAddr(SocketAddress(), {IpAddress::Parse("fe80::2").value(), 7}, 1).code(),
            StatusCode::kInvalidArgument)
      << "link-local without scope";
  EXPECT_EQ(id_->ResolveAddr(Address("10.0.0.9:0"), Address("10.0.0.2:7"), 1).code(),
            StatusCode::kNotFound);
  EXPECT_EQ(id_->ResolveAddr(Address("10.0.0.1:0"), Address("[fd77::2]:7"), 1).code(),
            StatusCode::kInvalidArgument)
      << "two families";
}

TEST_F(SoftCmEndpointTest, ResolveMayBeTriedAgainAfterAnError) {
  a_.has_route = false;
  ASSERT_TRUE(id_->ResolveAddr(SocketAddress(), Address("10.0.0.2:7"), 1).ok());
  Turn();
  a_.has_route = true;
  ASSERT_TRUE(id_->ResolveAddr(SocketAddress(), Address("10.0.0.2:7"), 1).ok());
  Turn();
  EXPECT_EQ(id_.Count(CmEventType::kAddrResolved), 1) << id_.History();
}

TEST_F(SoftCmEndpointTest, PeerOnLoopbackIsReachedFromAnyLoopbackDevice) {
  // The kernel's route says 127.0.0.1, the daemon has 127.0.0.2 only.
  TestHost near(&net_, "127.0.0.2");
  TestId id(&near);
  ASSERT_TRUE(id->ResolveAddr(SocketAddress(), Address("127.0.0.3:7"), 100).ok());
  near.manager->Poll(net_.now);
  EXPECT_EQ(id.Count(CmEventType::kAddrResolved), 1) << id.History();
  EXPECT_EQ(id->local().ip, near.ip);
}

// Hosts that answer ARP after a while, or never.
struct TestNeighbors : Neighbors {
  NeighborState Query(const IpAddress&) override {
    ++queries;
    return state;
  }
  void Solicit(const IpAddress& local, const IpAddress&) override {
    ++solicits;
    from = local;
  }
  NeighborState state = NeighborState::kUnknown;
  int queries = 0;
  int solicits = 0;
  IpAddress from;
};

class ResolveWithNeighbors : public ::testing::Test {
 protected:
  static CmOptions Options(Neighbors* neighbors) {
    CmOptions options;
    options.neighbors = neighbors;
    return options;
  }
  void Resolve() {
    ASSERT_TRUE(id_->ResolveAddr(SocketAddress(), Address("10.0.0.2:7"), 2000).ok());
  }

  TestNet net_;
  TestNeighbors neighbors_;
  TestHost a_{&net_, "10.0.0.1", Options(&neighbors_)};
  TestId id_{&a_};
};

TEST_F(ResolveWithNeighbors, KnownNeighborResolvesAtOnceAndUnasked) {
  neighbors_.state = NeighborState::kReachable;
  Resolve();
  net_.RunFor(0);
  EXPECT_EQ(id_.Count(CmEventType::kAddrResolved), 1);
  EXPECT_EQ(neighbors_.solicits, 0);
}

TEST_F(ResolveWithNeighbors, NeighborThatAnswersResolvesSoonAfter) {
  Resolve();
  net_.RunFor(20 * kMs);
  EXPECT_TRUE(id_.events.empty());
  EXPECT_EQ(neighbors_.solicits, 1);
  EXPECT_EQ(neighbors_.from, a_.ip);
  neighbors_.state = NeighborState::kReachable;
  net_.RunFor(20 * kMs);
  EXPECT_EQ(id_.Count(CmEventType::kAddrResolved), 1);
  EXPECT_EQ(id_->local().ip, a_.ip);
}

TEST_F(ResolveWithNeighbors, SilentNeighborIsOneErrorAtTheTimeout) {
  Resolve();
  net_.RunFor(1999 * kMs);
  EXPECT_TRUE(id_.events.empty());
  EXPECT_LT(neighbors_.queries, 30) << "looks less and less often";
  net_.RunFor(2 * kMs);
  ASSERT_EQ(id_.events.size(), 1u);
  EXPECT_EQ(id_.Find(CmEventType::kAddrError)->status, -ETIMEDOUT);
  EXPECT_TRUE(net_.Run());
  EXPECT_EQ(id_.events.size(), 1u);
  EXPECT_EQ(id_->local().ip, IpAddress::AnyV4()) << "as it was bound";
}

TEST_F(ResolveWithNeighbors, NeighborThatTheKernelGaveUpIsAnErrorAtOnce) {
  Resolve();
  neighbors_.state = NeighborState::kFailed;
  net_.RunFor(20 * kMs);
  ASSERT_EQ(id_.Count(CmEventType::kAddrError), 1);
  EXPECT_EQ(id_.Find(CmEventType::kAddrError)->status, -EHOSTUNREACH);
}

TEST_F(ResolveWithNeighbors, IdMayGoWhileItsQueryRuns) {
  Resolve();
  id_.endpoint.reset();
  EXPECT_TRUE(net_.Run());
}

TEST_F(ResolveWithNeighbors, DeviceThatGoesDuringTheQueryIsAnError) {
  Resolve();
  a_.has_device = false;
  neighbors_.state = NeighborState::kReachable;
  ASSERT_TRUE(net_.Run());
  ASSERT_EQ(id_.events.size(), 1u);
  EXPECT_EQ(id_.Find(CmEventType::kAddrError)->status, -ENODEV);
}

TEST_F(ResolveWithNeighbors, PeerInThisDaemonNeedsNoNeighbor) {
  ASSERT_TRUE(id_->ResolveAddr(SocketAddress(), Address("10.0.0.1:7"), 2000).ok());
  net_.RunFor(0);
  EXPECT_EQ(id_.Count(CmEventType::kAddrResolved), 1);
  EXPECT_EQ(neighbors_.queries, 0);
}

TEST_F(SoftCmEndpointTest, CallsInTheWrongStateAreRefused) {
  EXPECT_EQ(id_->ResolveRoute(1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(id_->Connect(Param(2)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(id_->Establish().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(id_->Accept(Param(2)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(id_->Reject({}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(id_->Disconnect().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(id_->NotifyCommEstablished().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(id_->InitQpAttr(QpState::kInit).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(id_->Listen(1).ok());
  EXPECT_EQ(id_->Listen(1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(id_->ResolveAddr(SocketAddress(), Address("10.0.0.2:7"), 1).code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(SoftCmEndpointTest, TooMuchPrivateDataIsRefused) {
  TestHost b(&net_, "10.0.0.2");
  TestId server(&b);
  ListenOn(&server, Address("0.0.0.0:7000"), [](TestId& request) {
    EXPECT_EQ(request->Accept(Param(2, std::vector<uint8_t>(197))).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(request->Reject(std::vector<uint8_t>(149)).code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(request->Accept(Param(2, std::vector<uint8_t>(196))).ok());
  });
  ConnectTo(&id_, Address("10.0.0.2:7000"), Param(3, std::vector<uint8_t>(56)));
  ASSERT_TRUE(net_.Run());
  EXPECT_STREQ(id_->state_name(), "established");

  TestId greedy(&a_);
  greedy.on_event = [](TestId& id, const SeenEvent& event) {
    if (event.type == CmEventType::kAddrResolved) (void)id->ResolveRoute(1);
  };
  ASSERT_TRUE(greedy->ResolveAddr(SocketAddress(), Address("10.0.0.2:7000"), 1).ok());
  ASSERT_TRUE(net_.Run());
  EXPECT_EQ(greedy->Connect(Param(4, std::vector<uint8_t>(57))).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(SoftCmEndpointTest, InitAttributesBeforeTheConnectionGiveThePeerNoRights) {
  ASSERT_TRUE(id_->BindAddr(Address("10.0.0.1:0")).ok());
  const auto attr = id_->InitQpAttr(QpState::kInit);
  ASSERT_TRUE(attr.ok());
  EXPECT_EQ(attr->access_flags, 0u);
  EXPECT_EQ(id_->InitQpAttr(QpState::kRtr).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(SoftCmEndpointTest, BothSidesAttributesFitTogether) {
  TestHost b(&net_, "10.0.0.2");
  TestId server(&b);
  ListenOn(&server, Address("0.0.0.0:7000"), AcceptIt);
  ConnectTo(&id_, Address("10.0.0.2:7000"), Param(0x11, {}, 1, 2));
  ASSERT_TRUE(net_.Run());
  TestId& peer = *server.requests.at(0);
  const auto our_rtr = id_->InitQpAttr(QpState::kRtr).value(),
             our_rts = id_->InitQpAttr(QpState::kRts).value();
  const auto peer_rtr = peer->InitQpAttr(QpState::kRtr).value(),
             peer_rts = peer->InitQpAttr(QpState::kRts).value();
  EXPECT_EQ(our_rtr.rq_psn, peer_rts.sq_psn);
  EXPECT_EQ(peer_rtr.rq_psn, our_rts.sq_psn);
  EXPECT_EQ(our_rtr.dest_qpn, 0x22u);
  EXPECT_EQ(peer_rtr.dest_qpn, 0x11u);
  EXPECT_EQ(our_rtr.av.dest, b.ip);
  EXPECT_EQ(our_rtr.av.sgid_index, 1u) << "where the address stands in the GID table";
  EXPECT_EQ(peer_rtr.av.dest, a_.ip);
}

TEST_F(SoftCmEndpointTest, PollFdIsReadableWhileThereIsWork) {
  const auto readable = [this] {
    pollfd wait{a_.manager->poll_fd(), POLLIN, 0};
    return ::poll(&wait, 1, 0) == 1;
  };
  EXPECT_FALSE(readable());
  ASSERT_TRUE(id_->ResolveAddr(SocketAddress(), Address("10.0.0.2:7"), 1).ok());
  EXPECT_TRUE(readable());
  EXPECT_TRUE(readable()) << "level-triggered";
  Turn();
  EXPECT_FALSE(readable());
}

TEST_F(SoftCmEndpointTest, PollDoesABoundedAmountAndSaysThatMoreIsLeft) {
  CmOptions options;
  options.poll_budget = 2;
  TestHost small(&net_, "10.0.0.7", options);
  std::vector<std::unique_ptr<TestId>> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(std::make_unique<TestId>(&small));
    ASSERT_TRUE((*ids.back())->ResolveAddr(SocketAddress(), Address("10.0.0.2:7"), 1).ok());
  }
  const auto resolved = [&ids] {
    int count = 0;
    for (const auto& id : ids) count += id->Count(CmEventType::kAddrResolved);
    return count;
  };
  for (const int expected : {2, 4, 5}) {
    EXPECT_TRUE(small.HasWork());
    small.manager->Poll(net_.now);
    EXPECT_EQ(resolved(), expected);
  }
  EXPECT_FALSE(small.HasWork());
}

}  // namespace
}  // namespace rdmad::soft
