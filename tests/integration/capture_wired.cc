#include "tests/integration/capture_wired.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "absl/time/clock.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kMtu = 1024;
constexpr uint32_t kSizes[] = {0, 1, 2, 3, 4, 5, kMtu - 1, kMtu, kMtu + 1, 3 * kMtu + 2};
// A request is repeated after four seconds.
constexpr absl::Duration kLate = absl::Seconds(5);

void Post(WiredEnd& end, SendWr wr, uint32_t size) {
  const Sge sge = {end.AddressAt(0), size, end.region.lkey()};
  if (size > 0) wr.sges = {&sge, 1};
  wr.imm_be = wr.imm_be == 0 ? 0x01020304 : wr.imm_be;
  ASSERT_OK(end.qp.PostSend({&wr, 1}));
  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(end.cq));
  EXPECT_EQ(wc.status, WcStatus::kSuccess) << WcStatusString(wc.status);
}

void ExpectReceived(WiredEnd& end) {
  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(end.cq));
  EXPECT_EQ(wc.status, WcStatus::kSuccess) << WcStatusString(wc.status);
}

SendWr OnPeer(const WiredEnd& peer, WrOpcode opcode) {
  SendWr wr;
  wr.opcode = opcode;
  wr.remote_addr = peer.AddressAt(0);
  wr.rkey = peer.region.rkey();
  return wr;
}

void RunReliable(WiredEnd& a, WiredEnd& b) {
  for (const WrOpcode opcode : {WrOpcode::kCompareSwap, WrOpcode::kFetchAdd}) {
    Post(a, OnPeer(b, opcode), 8);
  }
  ASSERT_OK_AND_ASSIGN(MemoryWindow window, MemoryWindow::Alloc(b.pd));
  ASSERT_OK_AND_ASSIGN(const MemoryRegion region,
                       b.pd.Reg(b.memory.data(), b.memory.size(),
                                kAccessLocalWrite | kAccessRemoteWrite | kAccessMwBind));
  for (const uint32_t size : kSizes) {
    ASSERT_OK(
        b.qp.PostBind(1, &window, region, b.memory.data(), 64, kAccessRemoteWrite, kSendSignaled));
    ExpectReceived(b);
    ASSERT_OK(b.PostRecv(2, 0, 4 * kMtu));
    SendWr wr = OnPeer(b, WrOpcode::kSendWithInv);
    wr.imm_be = window.rkey();
    Post(a, wr, size);
    ExpectReceived(b);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

void RunUnreliable(WiredEnd& a, WiredEnd& b) {
  for (const uint32_t size : kSizes) {
    for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kSendWithImm, WrOpcode::kRdmaWrite,
                                  WrOpcode::kRdmaWriteWithImm}) {
      const bool takes_receive = opcode != WrOpcode::kRdmaWrite;
      if (takes_receive) {
        ASSERT_OK(b.PostRecv(2, 0, 4 * kMtu));
        ASSERT_OK(AwaitPosted(b.qp));
      }
      Post(a, OnPeer(b, opcode), size);
      if (takes_receive) ExpectReceived(b);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace

void RunWiredOperations(const Client& from, const Client& to, const std::string& here,
                        const std::string& there) {
  for (const QpType type : {QpType::kRc, QpType::kUc}) {
    WiredOptions options;
    options.type = type;
    ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(from, here, options));
    ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(to, there, options));
    ASSERT_OK(Wire(a, b));
    if (type == QpType::kRc) {
      RunReliable(a, b);
    } else {
      RunUnreliable(a, b);
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
}

void RunDatagramIds(const Client& from, const Client& to, const std::string& there) {
  ASSERT_OK_AND_ASSIGN(const auto listener, CmId::Create(to, nullptr, PortSpace::kUdp));
  ASSERT_OK_AND_ASSIGN(const Address local, Address::Parse(WithPort(there, 0)));
  ASSERT_OK(listener->BindAddr(local));
  ASSERT_OK(listener->Listen());
  QpInit init;
  init.type = QpType::kUd;
  for (const bool accept : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const auto channel, EventChannel::Create(from));
    ASSERT_OK_AND_ASSIGN(const auto id, CmId::Create(from, channel.get(), PortSpace::kUdp));
    ASSERT_OK(id->ResolveAddr(Address(), listener->local_addr(), absl::Seconds(5)));
    ASSERT_OK(ExpectEvent(*channel, CmEventType::kAddrResolved));
    ASSERT_OK(id->ResolveRoute(absl::Seconds(5)));
    ASSERT_OK(ExpectEvent(*channel, CmEventType::kRouteResolved));
    ASSERT_OK(id->CreateQp(nullptr, init));
    ASSERT_OK(id->Connect());
    ASSERT_OK_AND_ASSIGN(const auto request, listener->GetRequest(absl::Seconds(10)));
    if (accept) {
      ASSERT_OK(request->CreateQp(nullptr, init));
      ASSERT_OK(request->Accept());
    } else {
      ASSERT_OK(request->Reject());
    }
    ASSERT_OK(
        ExpectEvent(*channel, accept ? CmEventType::kEstablished : CmEventType::kUnreachable));
  }
}

void RunLateAnswer(const Client& from, const Client& to, const std::string& there) {
  ASSERT_OK_AND_ASSIGN(const ListeningId listener, ListenOn(to, there));
  ASSERT_OK_AND_ASSIGN(const ActiveId active, Resolve(from, listener.address));
  ASSERT_OK(active.id->CreateQp(nullptr, {}));
  ASSERT_OK(active.id->Connect());
  ASSERT_OK_AND_ASSIGN(auto event, ExpectEvent(*listener.channel, CmEventType::kConnectRequest));
  const auto passive = event->TakeId();
  event.reset();
  absl::SleepFor(kLate);
  ASSERT_OK(passive->CreateQp(nullptr, {}));
  ASSERT_OK(passive->Accept());
  ASSERT_OK(ExpectEvent(*active.channel, CmEventType::kEstablished));
}

}  // namespace rdmad::testing
