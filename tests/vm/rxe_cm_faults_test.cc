// Connections between our soft device and the kernel's when things go wrong: messages that are lost and doubled, answers that
// come late, both sides hanging up at the same time, a peer that cannot be reached; and what an application may ask for.
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rdmad/rdmad.h"
#include "tests/support/status_testing.h"
#include "tests/vm/bad_network.h"
#include "tests/vm/kernel_cm.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {
namespace {

// Later than a request or reply is repeated, which is after four seconds.
constexpr absl::Duration kLate = absl::Seconds(6);
// Sixteen of them.
constexpr absl::Duration kUnreachableWithin = absl::Seconds(120);
constexpr int kConnections = 4;
// A message that is lost costs four seconds, or the 17 s for which our MRA asks.
constexpr char kBadNetwork[] = "loss 5% duplicate 30%";

class RxeCmFaults : public RxeInterop {
 protected:
  static Address At(const std::string& address) {
    return Address::Parse(WithPort(address, std::atoi(kKernelPort))).value_or(Address{});
  }
  std::unique_ptr<CmId> NewId() {
    auto id = CmId::Create(client());
    EXPECT_OK(id);
    return id.ok() ? *std::move(id) : nullptr;
  }
  void Listen() {
    listener_ = NewId();
    ASSERT_OK(listener_->BindAddr(At(kIpv4.ours)));
    ASSERT_OK(listener_->Listen());
  }
  void KernelListens() {
    kernel_listener_ = MakeKernelId(kIpv4.kernel, true);
    ASSERT_NE(kernel_listener_, nullptr) << std::strerror(errno);
    ASSERT_EQ(rdma_listen(kernel_listener_.get(), kConnections), 0) << std::strerror(errno);
  }
  std::unique_ptr<CmId> Resolved() {
    auto id = NewId();
    EXPECT_OK(id->ResolveAddr({}, At(kIpv4.kernel), kPatience));
    EXPECT_OK(id->ResolveRoute(kPatience));
    EXPECT_OK(id->CreateQp(nullptr, {}));
    return id;
  }
  void ExpectEstablished(const Outcome& outcome) {
    EXPECT_EQ(outcome.error, 0) << std::strerror(outcome.error);
    EXPECT_EQ(outcome.event, RDMA_CM_EVENT_ESTABLISHED);
  }

  std::unique_ptr<CmId> listener_;
  KernelId kernel_listener_;
};

TEST_F(RxeCmFaults, KernelWaitsForOurLateAnswer) {
  Listen();
  ASSERT_FALSE(HasFatalFailure());
  auto kernel = std::async(std::launch::async, [] { return KernelConnects(kIpv4.ours, "hello"); });
  ASSERT_OK_AND_ASSIGN(const auto request, listener_->GetRequest(kPatience));
  absl::SleepFor(kLate);
  ASSERT_OK(request->CreateQp(nullptr, {}));
  EXPECT_OK(request->Accept());
  ExpectEstablished(kernel.get());
}

TEST_F(RxeCmFaults, WeWaitForTheKernelsLateAnswer) {
  KernelListens();
  ASSERT_FALSE(HasFatalFailure());
  auto kernel = std::async(std::launch::async, KernelServes, kernel_listener_.get(), true, "hello", kLate);
  const auto id = Resolved();
  EXPECT_OK(id->Connect());
  EXPECT_EQ(kernel.get().error, 0);
}

TEST_F(RxeCmFaults, KernelConnectsWhereMessagesAreLostAndDoubled) {
  Listen();
  ASSERT_FALSE(HasFatalFailure());
  std::vector<KernelId> ids;
  for (int i = 0; i < kConnections; ++i) {
    ids.push_back(MakeKernelId(kIpv4.ours, false));
    ASSERT_NE(ids.back(), nullptr) << std::strerror(errno);
  }
  const BadNetwork network(kBadNetwork);
  std::vector<std::future<Outcome>> kernel;
  for (const KernelId& id : ids) {
    kernel.push_back(std::async(std::launch::async, [&id] { return KernelConnects(id.get(), "hello"); }));
  }
  std::vector<std::future<absl::Status>> ours;
  for (int i = 0; i < kConnections; ++i) {
    auto request = listener_->GetRequest(kPatience);
    ASSERT_OK(request);
    ours.push_back(std::async(std::launch::async, [id = *std::move(request)] {
      if (absl::Status status = id->CreateQp(nullptr, {}); !status.ok()) return status;
      return id->Accept();
    }));
  }
  for (auto& outcome : kernel) ExpectEstablished(outcome.get());
  for (auto& status : ours) EXPECT_OK(status.get());
}

TEST_F(RxeCmFaults, WeConnectWhereMessagesAreLostAndDoubled) {
  KernelListens();
  ASSERT_FALSE(HasFatalFailure());
  std::vector<std::unique_ptr<CmId>> ids;
  for (int i = 0; i < kConnections; ++i) ids.push_back(Resolved());
  const BadNetwork network(kBadNetwork);
  std::vector<std::future<absl::Status>> ours;
  for (const auto& id : ids) ours.push_back(std::async(std::launch::async, [&id] { return id->Connect(); }));
  std::vector<std::future<Outcome>> kernel;
  for (int i = 0; i < kConnections; ++i) {
    rdma_cm_id* request = nullptr;
    ASSERT_EQ(rdma_get_request(kernel_listener_.get(), &request), 0) << std::strerror(errno);
    kernel.push_back(std::async(std::launch::async, [request] {
      const KernelId id(request);
      return KernelAnswers(request, true, "hello");
    }));
  }
  for (auto& status : ours) EXPECT_OK(status.get());
  for (auto& outcome : kernel) EXPECT_EQ(outcome.get().error, 0);
}

TEST_F(RxeCmFaults, BothHangUpAtTheSameTime) {
  Listen();
  ASSERT_FALSE(HasFatalFailure());
  const KernelId kernel = MakeKernelId(kIpv4.ours, false);
  ASSERT_NE(kernel, nullptr) << std::strerror(errno);
  auto connected = std::async(std::launch::async, [&] { return KernelConnects(kernel.get(), "hello"); });
  ASSERT_OK_AND_ASSIGN(const auto request, listener_->GetRequest(kPatience));
  ASSERT_OK(request->CreateQp(nullptr, {}));
  ASSERT_OK(request->Accept());
  ExpectEstablished(connected.get());
  // Either message is on its way when the other side sends its own.
  const BadNetwork network("delay 300ms");
  auto hangs_up = std::async(std::launch::async, [&] { return rdma_disconnect(kernel.get()); });
  const absl::Time start = absl::Now();
  EXPECT_OK(request->Disconnect());
  EXPECT_EQ(hangs_up.get(), 0);
  EXPECT_LT(absl::Now() - start, absl::Seconds(20)) << "one of them was not understood";
}

// They take their time, so both at once.
TEST_F(RxeCmFaults, NeitherReachesTheOther) {
  const auto ours = Resolved();
  const KernelId kernel = MakeKernelId(kIpv4.ours, false);
  ASSERT_NE(kernel, nullptr) << std::strerror(errno);
  const BadNetwork network("loss 100%");
  auto connects = std::async(std::launch::async, [&] { return KernelConnects(kernel.get(), "hello"); });
  const absl::Time start = absl::Now();
  const absl::Status status = ours->Connect();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status.ToString();
  ASSERT_NE(ours->event(), nullptr);
  EXPECT_EQ(ours->event()->type(), CmEventType::kUnreachable);
  EXPECT_EQ(ours->event()->status(), -ETIMEDOUT);
  EXPECT_LT(absl::Now() - start, kUnreachableWithin);
  const Outcome outcome = connects.get();
  EXPECT_EQ(outcome.event, RDMA_CM_EVENT_UNREACHABLE);
  EXPECT_EQ(outcome.status, -ETIMEDOUT);
}

TEST_F(RxeCmFaults, AnIdForOneFamilyLeavesTheOtherToTheKernelsRefusal) {
  listener_ = NewId();
  const int yes = 1;
  ASSERT_OK(listener_->SetOption(0, 2, std::as_bytes(std::span(&yes, 1))));  // AFONLY
  ASSERT_OK(listener_->BindAddr(At("::")));
  ASSERT_OK(listener_->Listen());
  const Outcome refused = KernelConnects(kIpv4.ours, "hello");
  EXPECT_EQ(refused.event, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(refused.status, 8);  // nobody listens
  auto kernel = std::async(std::launch::async, [] { return KernelConnects(kIpv6.ours, "hello"); });
  ASSERT_OK_AND_ASSIGN(const auto request, listener_->GetRequest(kPatience));
  ASSERT_OK(request->CreateQp(nullptr, {}));
  EXPECT_OK(request->Accept());
  ExpectEstablished(kernel.get());
}

TEST_F(RxeCmFaults, TheKernelTakesWhatWeAreToldOfServiceAndTimeout) {
  KernelListens();
  ASSERT_FALSE(HasFatalFailure());
  auto kernel = std::async(std::launch::async, KernelServes, kernel_listener_.get(), true, "hello",
                           absl::ZeroDuration());
  auto id = NewId();
  const uint8_t tos = 0x40;
  const uint8_t ack_timeout = 15;
  ASSERT_OK(id->SetOption(0, 0, std::as_bytes(std::span(&tos, 1))));
  ASSERT_OK(id->SetOption(0, 3, std::as_bytes(std::span(&ack_timeout, 1))));
  ASSERT_OK(id->ResolveAddr({}, At(kIpv4.kernel), kPatience));
  ASSERT_OK(id->ResolveRoute(kPatience));
  ASSERT_OK(id->CreateQp(nullptr, {}));
  EXPECT_OK(id->Connect());
  EXPECT_EQ(kernel.get().error, 0);
  ASSERT_OK_AND_ASSIGN(const QpAttr attr, id->qp().Query());
  EXPECT_EQ(attr.ah.traffic_class, tos);
  EXPECT_EQ(attr.timeout, ack_timeout) << "the kernel's delay is not added to what was asked for";
}

TEST_F(RxeCmFaults, WeEstablishAQueuePairThatWeMoveByOurselves) {
  KernelListens();
  ASSERT_FALSE(HasFatalFailure());
  auto kernel = std::async(std::launch::async, KernelServes, kernel_listener_.get(), true, "hello",
                           absl::ZeroDuration());
  auto id = NewId();
  ASSERT_OK(id->ResolveAddr({}, At(kIpv4.kernel), kPatience));
  ASSERT_OK(id->ResolveRoute(kPatience));
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, id->pd());
  QpInit init;
  ASSERT_OK_AND_ASSIGN(init.send_cq, CompletionQueue::Create(client(), *id->device_index(), 8));
  init.recv_cq = init.send_cq;
  ASSERT_OK_AND_ASSIGN(QueuePair qp, QueuePair::Create(pd, init));
  const auto move_to = [&](QpState state) {
    ASSERT_OK_AND_ASSIGN(const QpAttr attr, id->InitQpAttr(state));
    ASSERT_OK(qp.Modify(attr));
  };
  move_to(QpState::kInit);
  ConnParam param;
  param.qpn = qp.qpn();
  ASSERT_OK(id->Connect(param));
  EXPECT_EQ(id->event()->type(), CmEventType::kConnectResponse);
  move_to(QpState::kRtr);
  move_to(QpState::kRts);
  EXPECT_OK(id->Establish());
  EXPECT_EQ(kernel.get().error, 0);  // rdma_accept waits for that
}

}  // namespace
}  // namespace rdmad::testing
