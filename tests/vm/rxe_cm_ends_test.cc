// How connections between our soft device and the kernel's end before they begin, and how they begin without a message that says
// so: requests that are taken back, of another type of QP, from a QP that has a connection; data that comes before "ready to use".
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "rdmad/rdmad.h"
#include "tests/support/status_testing.h"
#include "tests/vm/bad_network.h"
#include "tests/vm/kernel_cm.h"
#include "tests/vm/rxe_bed.h"
#include "tests/vm/sniffer.h"

namespace rdmad::testing {
namespace {

// Reasons of a REJ. Source: IBTA vol. 1, REJ, Rejection Reason.
constexpr int kTimeout = 4;
constexpr int kInvalidServiceType = 9;
constexpr int kStale = 10;

class RxeCmEnds : public RxeInterop {
 protected:
  // A connecting id of ours with events of its own.
  struct Asking {
    std::unique_ptr<EventChannel> channel;
    std::unique_ptr<CmId> id;
  };

  static Address At(const char* address) {
    return Address::Parse(WithPort(address, std::atoi(kKernelPort))).value_or(Address{});
  }
  // Skips the ends of earlier connections.
  static std::unique_ptr<CmEvent> Next(EventChannel& channel, CmEventType expected) {
    while (true) {
      auto event = channel.GetEvent(kPatience);
      EXPECT_OK(event);
      if (!event.ok()) return nullptr;
      if ((*event)->type() == CmEventType::kTimewaitExit && expected != CmEventType::kTimewaitExit) continue;
      EXPECT_EQ((*event)->type(), expected) << EventString((*event)->type()) << ", status " << (*event)->status();
      return *std::move(event);
    }
  }

  void Listen() {
    ASSERT_OK_AND_ASSIGN(channel_, EventChannel::Create(client()));
    ASSERT_OK_AND_ASSIGN(listener_, CmId::Create(client(), channel_.get()));
    ASSERT_OK(listener_->BindAddr(At(kIpv4.ours)));
    ASSERT_OK(listener_->Listen());
  }
  std::unique_ptr<CmId> Request() {
    const auto event = Next(*channel_, CmEventType::kConnectRequest);
    return event == nullptr ? nullptr : event->TakeId();
  }
  void KernelListens() {
    kernel_listener_ = MakeKernelId(kIpv4.kernel, true);
    ASSERT_NE(kernel_listener_, nullptr) << std::strerror(errno);
    ASSERT_EQ(rdma_listen(kernel_listener_.get(), 4), 0) << std::strerror(errno);
  }
  void Resolve(Asking* out) {
    ASSERT_OK_AND_ASSIGN(out->channel, EventChannel::Create(client()));
    ASSERT_OK_AND_ASSIGN(out->id, CmId::Create(client(), out->channel.get()));
    ASSERT_OK(out->id->ResolveAddr({}, At(kIpv4.kernel), kPatience));
    ASSERT_NE(Next(*out->channel, CmEventType::kAddrResolved), nullptr);
    ASSERT_OK(out->id->ResolveRoute(kPatience));
    ASSERT_NE(Next(*out->channel, CmEventType::kRouteResolved), nullptr);
  }
  // A QP that no id owns, in Init.
  void MakeQp(const CmId& id) {
    ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, id.pd());
    QpInit init;
    ASSERT_OK_AND_ASSIGN(init.send_cq, CompletionQueue::Create(client(), *id.device_index(), 8));
    init.recv_cq = init.send_cq;
    ASSERT_OK_AND_ASSIGN(qp_, QueuePair::Create(pd, init));
    MoveTo(id, QpState::kInit);
  }
  void MoveTo(const CmId& id, QpState state) {
    ASSERT_OK_AND_ASSIGN(const QpAttr attr, id.InitQpAttr(state));
    ASSERT_OK(qp_.Modify(attr));
  }

  std::unique_ptr<EventChannel> channel_;
  std::unique_ptr<CmId> listener_;
  KernelId kernel_listener_;
  QueuePair qp_;
};

TEST_F(RxeCmEnds, KernelTakesItsRequestBack) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  auto kernel = KernelAsyncId::Resolved(kIpv4.ours);
  ASSERT_NE(kernel, nullptr) << std::strerror(errno);
  ASSERT_TRUE(kernel->Connect(0x123)) << std::strerror(errno);
  const auto request = Request();
  ASSERT_NE(request, nullptr);
  kernel.reset();
  const auto rejected = Next(*channel_, CmEventType::kRejected);
  ASSERT_NE(rejected, nullptr);
  EXPECT_EQ(rejected->id(), request.get());
  EXPECT_EQ(rejected->status(), kTimeout);
}

TEST_F(RxeCmEnds, WeTakeOurRequestBack) {
  ASSERT_NO_FATAL_FAILURE(KernelListens());
  Asking ours;
  ASSERT_NO_FATAL_FAILURE(Resolve(&ours));
  ASSERT_OK(ours.id->CreateQp(nullptr, {}));
  ASSERT_OK(ours.id->Connect());
  rdma_cm_id* request = nullptr;
  ASSERT_EQ(rdma_get_request(kernel_listener_.get(), &request), 0) << std::strerror(errno);
  const KernelId kernel(request);
  Sniffer wire;
  ASSERT_OK(ours.id->DestroyId());
  EXPECT_TRUE(wire.WaitFor([](const SeenPacket& p) { return !p.from_kernel && p.RejReason() == kTimeout; }, kPatience)
                  .has_value());
  // It says so when asked, not before.
  EXPECT_NE(KernelAnswers(request, true, "late").error, 0);
}

TEST_F(RxeCmEnds, WeAnswerTheKernelByAQpOfAnotherType) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  auto kernel = std::async(std::launch::async, [] { return KernelConnects(kIpv4.ours, "hello"); });
  const auto request = Request();
  ASSERT_NE(request, nullptr);
  QpInit uc;
  uc.type = QpType::kUc;
  ASSERT_OK(request->CreateQp(nullptr, uc));
  EXPECT_TRUE(absl::IsInvalidArgument(request->Accept()));
  const Outcome outcome = kernel.get();
  EXPECT_EQ(outcome.event, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(outcome.status, kInvalidServiceType);
}

TEST_F(RxeCmEnds, WeAskTheKernelForAnotherTypeOfQp) {
  ASSERT_NO_FATAL_FAILURE(KernelListens());
  Asking ours;
  ASSERT_NO_FATAL_FAILURE(Resolve(&ours));
  QpInit uc;
  uc.type = QpType::kUc;
  ASSERT_OK(ours.id->CreateQp(nullptr, uc));
  ASSERT_OK(ours.id->Connect());
  const auto rejected = Next(*ours.channel, CmEventType::kRejected);
  ASSERT_NE(rejected, nullptr);
  // The kernel's rdma_cm has RC only, and says no as an application would.
  EXPECT_EQ(rejected->status(), 28);
}

// The kernel ends the connection that the QP had, and takes the second request, which we send again.
TEST_F(RxeCmEnds, TheKernelFindsOurSecondRequestStaleUntilTheFirstIsGone) {
  ASSERT_NO_FATAL_FAILURE(KernelListens());
  Asking first, second;
  ASSERT_NO_FATAL_FAILURE(Resolve(&first));
  ASSERT_NO_FATAL_FAILURE(Resolve(&second));
  ASSERT_NO_FATAL_FAILURE(MakeQp(*first.id));
  ConnParam param;
  param.qpn = qp_.qpn();
  const auto serve = [this] { return KernelServes(kernel_listener_.get(), true, "hello", absl::ZeroDuration()); };
  rdma_cm_id* served = nullptr;
  auto kernel = std::async(std::launch::async, [&] {
    if (rdma_get_request(kernel_listener_.get(), &served) != 0) return Outcome{.error = errno};
    return KernelAnswers(served, true, "hello");
  });
  ASSERT_OK(first.id->Connect(param));
  ASSERT_NE(Next(*first.channel, CmEventType::kConnectResponse), nullptr);
  ASSERT_OK(first.id->Establish());
  EXPECT_EQ(kernel.get().error, 0);
  const KernelId kept(served);

  Sniffer wire;
  auto again = std::async(std::launch::async, serve);
  ASSERT_OK(second.id->Connect(param));
  EXPECT_TRUE(wire.WaitFor([](const SeenPacket& p) { return p.from_kernel && p.RejReason() == kStale; }, kPatience)
                  .has_value());
  EXPECT_NE(Next(*first.channel, CmEventType::kDisconnected), nullptr);
  EXPECT_NE(Next(*second.channel, CmEventType::kConnectResponse), nullptr);
  EXPECT_OK(second.id->Establish());
  EXPECT_EQ(again.get().error, 0);
}

// We take the second, and end the first.
TEST_F(RxeCmEnds, TheKernelsSecondRequestFromAQpEndsItsFirstConnection) {
  constexpr uint32_t kQpn = 0x4321;
  ASSERT_NO_FATAL_FAILURE(Listen());
  std::unique_ptr<KernelAsyncId> kernel[2];
  std::unique_ptr<CmId> ours[2];
  for (int i = 0; i < 2; ++i) {
    kernel[i] = KernelAsyncId::Resolved(kIpv4.ours);
    ASSERT_NE(kernel[i], nullptr) << std::strerror(errno);
    ASSERT_TRUE(kernel[i]->Connect(kQpn)) << std::strerror(errno);
    if (i == 1) {
      const auto gone = Next(*channel_, CmEventType::kDisconnected);
      ASSERT_NE(gone, nullptr);
      EXPECT_EQ(gone->id(), ours[0].get());
    }
    ours[i] = Request();
    ASSERT_NE(ours[i], nullptr);
    ASSERT_OK(ours[i]->CreateQp(nullptr, {}));
    ASSERT_OK(ours[i]->Accept());
    ASSERT_EQ(kernel[i]->Next(kPatience).event, RDMA_CM_EVENT_CONNECT_RESPONSE);
    ASSERT_EQ(rdma_establish(kernel[i]->id()), 0) << std::strerror(errno);
    ASSERT_NE(Next(*channel_, CmEventType::kEstablished), nullptr);
  }
}

// An application that moves its QP by itself has seen data of the peer's.
TEST_F(RxeCmEnds, WeAreNotifiedBeforeTheKernelSaysThatItIsReady) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  const auto kernel = KernelAsyncId::Resolved(kIpv4.ours);
  ASSERT_NE(kernel, nullptr) << std::strerror(errno);
  ASSERT_TRUE(kernel->Connect(0x777)) << std::strerror(errno);
  const auto request = Request();
  ASSERT_NE(request, nullptr);
  ASSERT_NO_FATAL_FAILURE(MakeQp(*request));
  ASSERT_NO_FATAL_FAILURE(MoveTo(*request, QpState::kRtr));
  ConnParam param;
  param.qpn = qp_.qpn();
  ASSERT_OK(request->Accept(param));
  ASSERT_EQ(kernel->Next(kPatience).event, RDMA_CM_EVENT_CONNECT_RESPONSE);
  ASSERT_OK(request->Notify(kAsyncCommEst));
  ASSERT_NE(Next(*channel_, CmEventType::kEstablished), nullptr);
  // It says it at last, which is no news.
  ASSERT_EQ(rdma_establish(kernel->id()), 0) << std::strerror(errno);
  ASSERT_EQ(rdma_disconnect(kernel->id()), 0) << std::strerror(errno);
  EXPECT_NE(Next(*channel_, CmEventType::kDisconnected), nullptr);
}

TEST_F(RxeCmEnds, TheKernelIsNotifiedBeforeWeSayThatWeAreReady) {
  ASSERT_NO_FATAL_FAILURE(KernelListens());
  Asking ours;
  ASSERT_NO_FATAL_FAILURE(Resolve(&ours));
  ASSERT_NO_FATAL_FAILURE(MakeQp(*ours.id));
  ConnParam param;
  param.qpn = qp_.qpn();
  ASSERT_OK(ours.id->Connect(param));
  rdma_cm_id* request = nullptr;
  ASSERT_EQ(rdma_get_request(kernel_listener_.get(), &request), 0) << std::strerror(errno);
  const KernelId kernel(request);
  auto accepts = std::async(std::launch::async, [&] { return KernelAnswers(request, true, "hello"); });
  // It has accepted when this is here; then it waits.
  ASSERT_NE(Next(*ours.channel, CmEventType::kConnectResponse), nullptr);
  ASSERT_EQ(rdma_notify(request, IBV_EVENT_COMM_EST), 0) << std::strerror(errno);
  EXPECT_EQ(accepts.get().error, 0);
  EXPECT_OK(ours.id->Establish());
  EXPECT_OK(ours.id->Disconnect());
}

TEST_F(RxeCmEnds, BothHangUpAtTheSameTimeWhereWeConnected) {
  ASSERT_NO_FATAL_FAILURE(KernelListens());
  Asking ours;
  ASSERT_NO_FATAL_FAILURE(Resolve(&ours));
  ASSERT_OK(ours.id->CreateQp(nullptr, {}));
  rdma_cm_id* request = nullptr;
  auto kernel = std::async(std::launch::async, [&] {
    if (rdma_get_request(kernel_listener_.get(), &request) != 0) return Outcome{.error = errno};
    return KernelAnswers(request, true, "hello");
  });
  ASSERT_OK(ours.id->Connect());
  ASSERT_NE(Next(*ours.channel, CmEventType::kEstablished), nullptr);
  ASSERT_EQ(kernel.get().error, 0);
  const KernelId owner(request);
  // Either message is on its way when the other side sends its own.
  const BadNetwork network("delay 300ms");
  auto hangs_up = std::async(std::launch::async, [&] { return rdma_disconnect(request); });
  const absl::Time start = absl::Now();
  EXPECT_OK(ours.id->Disconnect());
  EXPECT_NE(Next(*ours.channel, CmEventType::kDisconnected), nullptr);
  EXPECT_EQ(hangs_up.get(), 0);
  EXPECT_LT(absl::Now() - start, absl::Seconds(20)) << "one of them was not understood";
}

}  // namespace
}  // namespace rdmad::testing
