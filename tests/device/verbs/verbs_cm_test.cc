// The verbs connection manager on a kernel that has soft RoCE: both ends are endpoints of one
// manager.
#include <poll.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/device/verbs/verbs_cm_testing.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

using device::CmEvent;
using device::CmEventType;
using device::ConnParam;
using device::PortSpace;

// Of the wire.
constexpr int kInvalidServiceId = 8;
constexpr int kConsumerDefined = 28;

std::vector<uint8_t> Bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

// The message is padded with zeros up to its fixed size.
std::string Text(const std::vector<uint8_t>& bytes) {
  return std::string(bytes.begin(), std::find(bytes.begin(), bytes.end(), 0));
}

class VerbsCmFamilies : public VerbsCmTest, public ::testing::WithParamInterface<bool> {
 protected:
  IpAddress address() const { return GetParam() ? rxe_.v6 : rxe_.v4; }
};
INSTANTIATE_TEST_SUITE_P(, VerbsCmFamilies, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Ipv6" : "Ipv4"; });

TEST_P(VerbsCmFamilies, ConnectsTwoQpsThatThenTalk) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  RawQp near(rxe_.name);
  RawQp far(rxe_.name);
  const uint16_t port = ListenOn(listener, address());
  ASSERT_NE(port, 0);

  ConnParam param;
  param.private_data = Bytes("hello");
  param.responder_resources = 3;
  param.initiator_depth = 5;
  param.retry_count = 6;
  param.rnr_retry_count = 4;
  param.qpn = near.qpn();
  ASSERT_TRUE(Ask(connecting, listener, accepting, param));
  const CmEvent& request = listener.events.back();
  EXPECT_EQ(Text(request.param.private_data), "hello");
  EXPECT_EQ(request.param.qpn, near.qpn());
  // Seen from here: what the peer serves is what we may ask for.
  EXPECT_EQ(request.param.initiator_depth, 3);
  EXPECT_EQ(request.param.responder_resources, 5);
  EXPECT_EQ(request.param.retry_count, 6);
  EXPECT_EQ(request.param.rnr_retry_count, 4);
  EXPECT_EQ(request.path_mtu, device::Mtu::k4096);
  EXPECT_EQ(accepting.endpoint->local(), (SocketAddress{address(), port}));
  EXPECT_EQ(accepting.endpoint->peer().ip, address());
  EXPECT_EQ(accepting.endpoint->remote_qpn(), near.qpn());
  EXPECT_NE(accepting.endpoint->device(), nullptr);

  ASSERT_TRUE(far.Connect(*accepting.endpoint));
  far.PostRecv();
  ConnParam reply;
  reply.private_data = Bytes("welcome");
  reply.responder_resources = 5;
  reply.initiator_depth = 3;
  reply.qpn = far.qpn();
  ASSERT_OK(accepting.endpoint->Accept(reply));
  ASSERT_TRUE(Hear(connecting, CmEventType::kConnectResponse));
  const CmEvent& response = connecting.events.back();
  EXPECT_EQ(Text(response.param.private_data), "welcome");
  EXPECT_EQ(response.param.qpn, far.qpn());
  EXPECT_EQ(connecting.endpoint->remote_qpn(), far.qpn());
  EXPECT_EQ(response.path_mtu, device::Mtu::k4096);

  ASSERT_TRUE(near.Connect(*connecting.endpoint));
  ASSERT_OK(connecting.endpoint->Establish());
  ASSERT_TRUE(Hear(accepting, CmEventType::kEstablished));
  EXPECT_STREQ(connecting.endpoint->state_name(), "established");
  EXPECT_STREQ(accepting.endpoint->state_name(), "established");

  near.PostSend("over the wire");
  const std::optional<ibv_wc> received = far.NextCompletion();
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->status, IBV_WC_SUCCESS);
  EXPECT_EQ(far.buffer().substr(0, received->byte_len), "over the wire");
}

TEST_P(VerbsCmFamilies, AttributesNameThePeerAndOurOwnGid) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  ListenOn(listener, address());
  ASSERT_TRUE(Ask(connecting, listener, accepting, WithOwnQpn()));
  ASSERT_OK_AND_ASSIGN(const device::QpAttr attr,
                       accepting.endpoint->InitQpAttr(device::QpState::kRtr));
  EXPECT_TRUE(attr.av.is_global);
  EXPECT_EQ(attr.av.dest, address());
  EXPECT_EQ(attr.port, 1);
  ASSERT_OK_AND_ASSIGN(const device::QpAttr init,
                       accepting.endpoint->InitQpAttr(device::QpState::kInit));
  EXPECT_EQ(init.port, 1);
  EXPECT_NE(init.access_flags & device::kAccessRemoteWrite, 0u);
}

TEST_F(VerbsCmTest, AWildcardListenerTakesRequests) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  ListenOn(listener, IpAddress::AnyV4());
  EXPECT_EQ(listener.endpoint->device(), nullptr);
  ASSERT_TRUE(Establish(connecting, listener, accepting));
  EXPECT_EQ(accepting.endpoint->local().ip, rxe_.v4);
}

// The host's first device comes when the listener is there.
TEST_F(VerbsCmTest, AWildcardListenerOfBeforeTheFirstDeviceListensOnIt) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<verbs::VerbsConnectionManager> later,
                       verbs::VerbsConnectionManager::Create(finder_.get()));
  Party listener(*later, PortSpace::kTcp);
  ASSERT_OK(listener.endpoint->SetOption(RDMA_OPTION_ID_REUSEADDR, std::array<uint8_t, 4>{1}));
  const uint16_t port = ListenOn(listener, IpAddress::AnyV4());
  ASSERT_NE(port, 0);
  Party second(*later, PortSpace::kTcp);
  EXPECT_TRUE(absl::IsAlreadyExists(second.endpoint->BindAddr({IpAddress::AnyV4(), port})));

  ASSERT_OK(later->Open());

  EXPECT_EQ(listener.endpoint->local(), (SocketAddress{IpAddress::AnyV4(), port}));
  Party connecting(*manager_, PortSpace::kTcp);
  ASSERT_TRUE(ResolveTo(connecting, {rxe_.v4, port}));
  ASSERT_OK(connecting.endpoint->Connect(WithOwnQpn()));
  pollfd poller{later->poll_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&poller, 1, 10'000), 1);
  later->Poll(0);
  ASSERT_EQ(listener.events.size(), 1u);
  EXPECT_EQ(listener.events[0].type, CmEventType::kConnectRequest);
  listener.events.clear();
}

TEST_F(VerbsCmTest, RejectCarriesReasonAndPrivateData) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  ListenOn(listener, rxe_.v4);
  ASSERT_TRUE(Ask(connecting, listener, accepting));
  ASSERT_OK(accepting.endpoint->Reject(Bytes("full")));
  EXPECT_STREQ(accepting.endpoint->state_name(), "rejected");
  ASSERT_TRUE(Hear(connecting, CmEventType::kRejected));
  EXPECT_EQ(connecting.events.back().status, kConsumerDefined);
  EXPECT_EQ(Text(connecting.events.back().param.private_data), "full");
  EXPECT_STREQ(connecting.endpoint->state_name(), "closed");
  EXPECT_OK(connecting.endpoint->Disconnect());
}

TEST_F(VerbsCmTest, TheConnectingSideMayRejectTheResponse) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  ListenOn(listener, rxe_.v4);
  ASSERT_TRUE(Ask(connecting, listener, accepting));
  ASSERT_OK(accepting.endpoint->Accept(WithOwnQpn()));
  ASSERT_TRUE(Hear(connecting, CmEventType::kConnectResponse));
  ASSERT_OK(connecting.endpoint->Reject({}));
  ASSERT_TRUE(Hear(accepting, CmEventType::kRejected));
  EXPECT_EQ(accepting.events.back().status, kConsumerDefined);
}

TEST_F(VerbsCmTest, ConnectingWhereNobodyListensIsRejected) {
  Party connecting(*manager_, PortSpace::kTcp);
  ASSERT_TRUE(ResolveTo(connecting, {rxe_.v4, 4999}));
  EXPECT_EQ(connecting.endpoint->local().ip, rxe_.v4);
  EXPECT_EQ(connecting.endpoint->peer(), (SocketAddress{rxe_.v4, 4999}));
  ASSERT_OK(connecting.endpoint->Connect(WithOwnQpn()));
  ASSERT_TRUE(Hear(connecting, CmEventType::kRejected));
  EXPECT_EQ(connecting.events.back().status, kInvalidServiceId);
}

TEST_F(VerbsCmTest, DisconnectIsSeenByBothSides) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  ListenOn(listener, rxe_.v4);
  ASSERT_TRUE(Establish(connecting, listener, accepting));
  ASSERT_OK(connecting.endpoint->Disconnect());
  EXPECT_STREQ(connecting.endpoint->state_name(), "dreq_sent");
  ASSERT_TRUE(Hear(accepting, CmEventType::kDisconnected));
  // Without a call of the other side's application.
  ASSERT_TRUE(Pump([&] { return connecting.Find(CmEventType::kDisconnected) != nullptr; }));
  EXPECT_EQ(connecting.Find(CmEventType::kDisconnected)->status, 0);
  EXPECT_OK(accepting.endpoint->Disconnect());
  EXPECT_OK(connecting.endpoint->Disconnect());
}

TEST_F(VerbsCmTest, DisconnectBeforeTheRtuEndsTheConnectionToo) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  ListenOn(listener, rxe_.v4);
  ASSERT_TRUE(Ask(connecting, listener, accepting));
  ASSERT_OK(accepting.endpoint->Accept(WithOwnQpn()));
  ASSERT_OK(accepting.endpoint->Disconnect());
  ASSERT_TRUE(Hear(connecting, CmEventType::kConnectResponse));
  (void)connecting.endpoint->Establish();
  ASSERT_TRUE(Hear(connecting, CmEventType::kDisconnected));
  EXPECT_EQ(accepting.Find(CmEventType::kEstablished), nullptr);
}

TEST_F(VerbsCmTest, DataBeforeTheRtuEstablishes) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  ListenOn(listener, rxe_.v4);
  ASSERT_TRUE(Ask(connecting, listener, accepting));
  ASSERT_OK(accepting.endpoint->Accept(WithOwnQpn()));
  EXPECT_OK(accepting.endpoint->NotifyCommEstablished());
  EXPECT_OK(accepting.endpoint->NotifyCommEstablished());
  ASSERT_TRUE(Hear(accepting, CmEventType::kEstablished));
  EXPECT_OK(accepting.endpoint->NotifyCommEstablished());
}

TEST_F(VerbsCmTest, APortIsTakenOnce) {
  Party first(*manager_, PortSpace::kTcp);
  Party second(*manager_, PortSpace::kTcp);
  const uint16_t port = ListenOn(first, rxe_.v4);
  const absl::Status taken = second.endpoint->BindAddr({rxe_.v4, port});
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken.ToString();
  EXPECT_NE(taken.message().find(absl::StrCat(rxe_.v4.ToString(), ":", port)),
            absl::string_view::npos);
  first.endpoint.reset();
  EXPECT_OK(second.endpoint->BindAddr({rxe_.v4, port}));
}

TEST_F(VerbsCmTest, NobodyBindsAnAddressThatNoDeviceHas) {
  Party party(*manager_, PortSpace::kTcp);
  EXPECT_TRUE(absl::IsNotFound(party.endpoint->BindAddr({IpAddress::FromV4(203, 0, 113, 1), 0})));
  EXPECT_STREQ(party.endpoint->state_name(), "idle");
}

TEST_F(VerbsCmTest, ServesTheAddressesOfItsDevices) {
  EXPECT_TRUE(manager_->Serves(rxe_.v4));
  EXPECT_FALSE(manager_->Serves(IpAddress::FromV4(203, 0, 113, 1)));
}

TEST_F(VerbsCmTest, NoRouteIsAnAddressErrorAndTheIdMayTryAgain) {
  Party party(*manager_, PortSpace::kTcp);
  ASSERT_OK(party.endpoint->ResolveAddr({}, {IpAddress::FromV4(203, 0, 113, 1), 1}, 500));
  ASSERT_TRUE(Hear(party, CmEventType::kAddrError));
  EXPECT_LT(party.events.back().status, 0);
  EXPECT_STREQ(party.endpoint->state_name(), "bound");
  EXPECT_TRUE(ResolveTo(party, {rxe_.v4, 4999}));
}

TEST_F(VerbsCmTest, DestroyingARequestRejectsIt) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  ListenOn(listener, rxe_.v4);
  ASSERT_TRUE(Ask(connecting, listener, accepting));
  accepting.endpoint.reset();
  ASSERT_TRUE(Hear(connecting, CmEventType::kRejected));
  EXPECT_EQ(connecting.events.back().status, kConsumerDefined);
}

TEST_F(VerbsCmTest, DestroyingAListenerRejectsWhatWaits) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  const uint16_t port = ListenOn(listener, rxe_.v4);
  ASSERT_TRUE(ResolveTo(connecting, {rxe_.v4, port}));
  ASSERT_OK(connecting.endpoint->Connect(WithOwnQpn()));
  // Wait for the request in the kernel, and do not take it.
  pollfd poller{manager_->poll_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&poller, 1, 10'000), 1);
  listener.endpoint.reset();
  ASSERT_TRUE(Hear(connecting, CmEventType::kRejected));
  EXPECT_TRUE(listener.events.empty());
}

TEST_F(VerbsCmTest, DestroyingTheEndpointInItsEventIsAllowed) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  ListenOn(listener, rxe_.v4);
  const SocketAddress peer = listener.endpoint->local();
  listener.on_event = [&](CmEvent& event) {
    event.new_endpoint.reset();
    listener.endpoint.reset();
  };
  ASSERT_TRUE(ResolveTo(connecting, peer));
  connecting.on_event = [&](CmEvent&) { connecting.endpoint.reset(); };
  ASSERT_OK(connecting.endpoint->Connect(WithOwnQpn()));
  ASSERT_TRUE(Hear(connecting, CmEventType::kRejected));
}

TEST_F(VerbsCmTest, DestroyingAConnectionDisconnectsThePeer) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  ListenOn(listener, rxe_.v4);
  ASSERT_TRUE(Establish(connecting, listener, accepting));
  connecting.endpoint.reset();
  EXPECT_TRUE(Hear(accepting, CmEventType::kDisconnected));
}

TEST_F(VerbsCmTest, ARequestForADeviceThatIsNotServedIsRejected) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  const uint16_t port = ListenOn(listener, IpAddress::AnyV4());
  ASSERT_TRUE(ResolveTo(connecting, {rxe_.v4, port}));
  ASSERT_OK(connecting.endpoint->Connect(WithOwnQpn()));
  finder_->serves = false;
  ASSERT_TRUE(Hear(connecting, CmEventType::kRejected));
  EXPECT_TRUE(listener.events.empty());
}

TEST_F(VerbsCmTest, CallsInTheWrongStateAreRefusedAndChangeNothing) {
  Party party(*manager_, PortSpace::kTcp);
  device::CmEndpoint& endpoint = *party.endpoint;
  const auto refused = [](const absl::Status& status) {
    return absl::IsFailedPrecondition(status);
  };
  EXPECT_PRED1(refused, endpoint.ResolveRoute(100));
  EXPECT_PRED1(refused, endpoint.Connect({}));
  EXPECT_PRED1(refused, endpoint.Establish());
  EXPECT_PRED1(refused, endpoint.Accept(WithOwnQpn()));
  EXPECT_PRED1(refused, endpoint.Reject({}));
  EXPECT_PRED1(refused, endpoint.Disconnect());
  EXPECT_PRED1(refused, endpoint.NotifyCommEstablished());
  EXPECT_PRED1(refused, endpoint.InitQpAttr(device::QpState::kRtr).status());
  EXPECT_STREQ(endpoint.state_name(), "idle");
  ASSERT_OK(endpoint.BindAddr({rxe_.v4, 0}));
  EXPECT_PRED1(refused, endpoint.BindAddr({rxe_.v4, 0}));
}

TEST_F(VerbsCmTest, TooMuchPrivateDataIsRefused) {
  Party party(*manager_, PortSpace::kTcp);
  ASSERT_TRUE(ResolveTo(party, {rxe_.v4, 4999}));
  EXPECT_TRUE(
      absl::IsInvalidArgument(party.endpoint->Connect({.private_data = std::vector<uint8_t>(57)})));
  EXPECT_OK(party.endpoint->Connect({.private_data = std::vector<uint8_t>(56)}));
}

TEST_F(VerbsCmTest, OptionsAreCheckedAndSet) {
  Party party(*manager_, PortSpace::kTcp);
  EXPECT_OK(party.endpoint->SetOption(RDMA_OPTION_ID_TOS, std::array<uint8_t, 1>{0x20}));
  EXPECT_OK(party.endpoint->SetOption(RDMA_OPTION_ID_ACK_TIMEOUT, std::array<uint8_t, 1>{18}));
  EXPECT_OK(party.endpoint->SetOption(RDMA_OPTION_ID_REUSEADDR, std::array<uint8_t, 4>{1}));
  EXPECT_TRUE(absl::IsInvalidArgument(
      party.endpoint->SetOption(RDMA_OPTION_ID_ACK_TIMEOUT, std::array<uint8_t, 1>{32})));
  EXPECT_TRUE(absl::IsInvalidArgument(
      party.endpoint->SetOption(RDMA_OPTION_ID_TOS, std::array<uint8_t, 4>{1})));
  EXPECT_TRUE(absl::IsUnimplemented(party.endpoint->SetOption(77, std::array<uint8_t, 1>{1})));
}

TEST_F(VerbsCmTest, TheTrafficClassOfTheOptionReachesTheQp) {
  Party listener(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  ListenOn(listener, rxe_.v4);
  ASSERT_OK(connecting.endpoint->SetOption(RDMA_OPTION_ID_TOS, std::array<uint8_t, 1>{0x20}));
  ASSERT_TRUE(Ask(connecting, listener, accepting));
  ASSERT_OK(accepting.endpoint->Accept(WithOwnQpn()));
  ASSERT_TRUE(Hear(connecting, CmEventType::kConnectResponse));
  ASSERT_OK_AND_ASSIGN(const device::QpAttr attr,
                       connecting.endpoint->InitQpAttr(device::QpState::kRtr));
  EXPECT_EQ(attr.av.traffic_class, 0x20);
}

TEST_F(VerbsCmTest, DatagramPortSpaceFindsThePeersQp) {
  Party listener(*manager_, PortSpace::kUdp);
  Party connecting(*manager_, PortSpace::kUdp);
  Party accepting;
  ListenOn(listener, rxe_.v4);
  ASSERT_TRUE(Ask(connecting, listener, accepting, WithOwnQpn("who")));
  EXPECT_EQ(Text(listener.events.back().param.private_data), "who");
  ASSERT_OK_AND_ASSIGN(const device::QpAttr init,
                       accepting.endpoint->InitQpAttr(device::QpState::kInit));
  EXPECT_NE(init.mask & device::kQpAttrQkey, 0u);
  ASSERT_OK_AND_ASSIGN(const device::QpAttr rts,
                       accepting.endpoint->InitQpAttr(device::QpState::kRts));
  EXPECT_EQ(rts.mask, static_cast<uint32_t>(device::kQpAttrState | device::kQpAttrSqPsn));
  ASSERT_OK(accepting.endpoint->Accept({.private_data = Bytes("me"), .qpn = 0x123}));
  ASSERT_TRUE(Hear(connecting, CmEventType::kEstablished));
  EXPECT_EQ(connecting.events.back().param.qpn, 0x123u);
  EXPECT_EQ(connecting.events.back().param.qkey, init.qkey);
  EXPECT_EQ(connecting.events.back().av.dest, rxe_.v4);
  EXPECT_EQ(Text(connecting.events.back().param.private_data), "me");
  EXPECT_EQ(connecting.endpoint->remote_qpn(), 0x123u);
}

class VerbsCmMulticast : public VerbsCmFamilies {
 protected:
  SocketAddress group() const {
    if (!GetParam()) return {IpAddress::FromV4(239, 77, 0, 1), 0};
    return {IpAddress::FromV6({0xff, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77, 1}), 0};
  }
};
INSTANTIATE_TEST_SUITE_P(, VerbsCmMulticast, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Ipv6" : "Ipv4"; });

TEST_P(VerbsCmMulticast, JoiningTellsHowTheGroupIsReached) {
  constexpr uint64_t kCookie = 0xfeedf00d12345678;
  Party party(*manager_, PortSpace::kUdp);
  ASSERT_OK(party.endpoint->BindAddr({address(), 0}));
  ASSERT_OK(party.endpoint->JoinMulticast(group(), 0, kCookie));
  EXPECT_TRUE(absl::IsAlreadyExists(party.endpoint->JoinMulticast(group(), 0, 2)));
  ASSERT_TRUE(Hear(party, CmEventType::kMulticastJoin));
  const CmEvent& joined = party.events.back();
  EXPECT_EQ(joined.status, 0);
  EXPECT_EQ(joined.multicast_cookie, kCookie);
  EXPECT_EQ(joined.av.dest, group().ip);
  EXPECT_TRUE(joined.av.is_global);
  EXPECT_EQ(joined.param.qpn, 0xffffffu);
  EXPECT_EQ(joined.param.qkey, 0x01234567u);
  ASSERT_OK(party.endpoint->LeaveMulticast(group()));
  EXPECT_TRUE(absl::IsNotFound(party.endpoint->LeaveMulticast(group())));
  // And again; what is not left goes with the endpoint.
  ASSERT_OK(party.endpoint->JoinMulticast(group(), 0, kCookie));
  ASSERT_TRUE(Pump([&] { return party.events.size() == 2; }));
}

TEST_P(VerbsCmMulticast, WhatIsLeftBeforeItsAnswerIsNotHeardOf) {
  Party party(*manager_, PortSpace::kUdp);
  ASSERT_OK(party.endpoint->BindAddr({address(), 0}));
  ASSERT_OK(party.endpoint->JoinMulticast(group(), 0, 1));
  ASSERT_OK(party.endpoint->LeaveMulticast(group()));
  ASSERT_OK(party.endpoint->JoinMulticast(group(), 0, 2));
  ASSERT_TRUE(Hear(party, CmEventType::kMulticastJoin));
  ASSERT_EQ(party.events.size(), 1u);
  EXPECT_EQ(party.events[0].multicast_cookie, 2u);
}

TEST_F(VerbsCmTest, OnlyADatagramIdOnADeviceJoinsAGroup) {
  const SocketAddress group{IpAddress::FromV4(239, 77, 0, 1), 0};
  Party connected(*manager_, PortSpace::kTcp);
  ASSERT_OK(connected.endpoint->BindAddr({rxe_.v4, 0}));
  EXPECT_TRUE(absl::IsFailedPrecondition(connected.endpoint->JoinMulticast(group, 0, 1)));
  Party unbound(*manager_, PortSpace::kUdp);
  EXPECT_TRUE(absl::IsFailedPrecondition(unbound.endpoint->JoinMulticast(group, 0, 1)));
  ASSERT_OK(unbound.endpoint->BindAddr({rxe_.v4, 0}));
  EXPECT_TRUE(absl::IsInvalidArgument(unbound.endpoint->JoinMulticast({rxe_.v4, 0}, 0, 1)));
}

// Takes the device away and brings it back.
class VerbsCmRemoval : public VerbsCmTest {
 protected:
  // The kernel does not return before every id on the device has been let go, so events are served
  // meanwhile.
  ::testing::AssertionResult Remove() {
    const std::string command = absl::StrCat("rdma link delete ", rxe_.name, " 2>&1; echo gone");
    std::FILE* const child = ::popen(command.c_str(), "r");
    std::array<pollfd, 2> pollers = {pollfd{::fileno(child), POLLIN, 0},
                                     pollfd{manager_->poll_fd(), POLLIN, 0}};
    while (::poll(pollers.data(), pollers.size(), 10'000) > 0 && pollers[0].revents == 0)
      manager_->Poll(0);
    if (pollers[0].revents == 0) {
      return ::testing::AssertionFailure() << "the kernel waits for something after ten seconds";
    }
    std::array<char, 256> said{};
    std::fgets(said.data(), said.size(), child);
    ::pclose(child);
    if (std::string(said.data()) == "gone\n") return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << said.data();
  }
  void BringBack() {
    const std::string command =
        absl::StrCat("rdma link add ", rxe_.name, " type rxe netdev ", rxe_.netdev);
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
};

TEST_F(VerbsCmRemoval, EveryIdHearsOfItOnceAndTheDeviceCanComeBack) {
  Party listener(*manager_, PortSpace::kTcp);
  Party wildcard(*manager_, PortSpace::kTcp);
  Party connecting(*manager_, PortSpace::kTcp);
  Party accepting;
  Party asking(*manager_, PortSpace::kTcp);
  Party pending;
  ListenOn(listener, rxe_.v4);
  ListenOn(wildcard, IpAddress::AnyV4());
  ASSERT_TRUE(Establish(connecting, listener, accepting));
  ASSERT_TRUE(Ask(asking, listener, pending));
  const SocketAddress local = connecting.endpoint->local();
  const SocketAddress peer = connecting.endpoint->peer();

  ASSERT_TRUE(Remove());
  finder_->serves = false;
  for (Party* party : {&listener, &connecting, &accepting, &asking, &pending}) {
    ASSERT_TRUE(Hear(*party, CmEventType::kDeviceRemoval));
    EXPECT_EQ(party->endpoint->device(), nullptr);
    EXPECT_TRUE(absl::IsUnavailable(party->endpoint->Disconnect()));
  }
  EXPECT_EQ(connecting.endpoint->local(), local);
  EXPECT_EQ(connecting.endpoint->peer(), peer);
  EXPECT_TRUE(
      absl::IsUnavailable(connecting.endpoint->InitQpAttr(device::QpState::kInit).status()));
  const size_t heard = connecting.events.size();

  BringBack();
  finder_->serves = true;
  Party again(*manager_, PortSpace::kTcp);
  Party accepted;
  ASSERT_TRUE(Ask(again, wildcard, accepted));
  EXPECT_EQ(connecting.events.size(), heard);
}

TEST_F(VerbsCmRemoval, TheKernelDoesNotWaitForADeviceThatNoIdUsesAnyMore) {
  Party(*manager_, PortSpace::kTcp).endpoint->BindAddr({rxe_.v4, 0}).IgnoreError();
  ASSERT_TRUE(Remove());
  BringBack();
  Party again(*manager_, PortSpace::kTcp);
  EXPECT_OK(again.endpoint->BindAddr({rxe_.v4, 0}));
}

}  // namespace
}  // namespace rdmad::testing
