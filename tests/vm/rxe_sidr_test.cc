// Requests for a datagram QP (SIDR) between the connection managers of our soft device and of the kernel that are turned down, or
// answered with a QKey of the application's own. The answers as usual are rxe_datagram_test's.
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>

#include "rdmad/rdmad.h"
#include "tests/support/status_testing.h"
#include "tests/vm/kernel_cm.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {
namespace {

constexpr int kRejected = 2;  // Source: IBTA vol. 1, SIDR_REP, Status
constexpr uint32_t kOwnQkey = 0x1357;

class RxeSidr : public RxeInterop, public ::testing::WithParamInterface<Addresses> {
 protected:
  static Address At(const char* address) {
    return Address::Parse(WithPort(address, std::atoi(kKernelPort))).value_or(Address{});
  }
  void Listen() {
    ASSERT_OK_AND_ASSIGN(listener_, CmId::Create(client(), nullptr, PortSpace::kUdp));
    ASSERT_OK(listener_->BindAddr(At(GetParam().ours)));
    ASSERT_OK(listener_->Listen());
  }
  std::unique_ptr<CmId> listener_;
};

TEST_P(RxeSidr, WeTurnTheKernelDown) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  const auto kernel = KernelAsyncId::Resolved(GetParam().ours, RDMA_PS_UDP);
  ASSERT_NE(kernel, nullptr) << std::strerror(errno);
  ASSERT_TRUE(kernel->Connect(0)) << std::strerror(errno);
  ASSERT_OK_AND_ASSIGN(const auto request, listener_->GetRequest(kPatience));
  ASSERT_OK(request->Reject());
  const Outcome outcome = kernel->Next(kPatience);
  EXPECT_EQ(outcome.event, RDMA_CM_EVENT_UNREACHABLE);
  EXPECT_EQ(outcome.status, kRejected);
}

TEST_P(RxeSidr, WeTellTheKernelAQkeyOfOurOwn) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  const auto kernel = KernelAsyncId::Resolved(GetParam().ours, RDMA_PS_UDP);
  ASSERT_NE(kernel, nullptr) << std::strerror(errno);
  ASSERT_TRUE(kernel->Connect(0)) << std::strerror(errno);
  ASSERT_OK_AND_ASSIGN(const auto request, listener_->GetRequest(kPatience));
  QpInit init;
  init.type = QpType::kUd;
  ASSERT_OK(request->CreateQp(nullptr, init));
  ConnParam param;
  param.qkey = kOwnQkey;
  ASSERT_OK(request->Accept(param));
  const Outcome outcome = kernel->Next(kPatience);
  EXPECT_EQ(outcome.event, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(outcome.qpn, request->qp().qpn());
  EXPECT_EQ(outcome.qkey, kOwnQkey);
}

TEST_P(RxeSidr, TheKernelTurnsUsDown) {
  const KernelId listener = MakeKernelId(GetParam().kernel, true, RDMA_PS_UDP);
  ASSERT_NE(listener, nullptr) << std::strerror(errno);
  ASSERT_EQ(rdma_listen(listener.get(), 1), 0) << std::strerror(errno);
  auto kernel = std::async(std::launch::async, KernelServes, listener.get(), false, "no", absl::ZeroDuration());
  ASSERT_OK_AND_ASSIGN(const auto id, CmId::Create(client(), nullptr, PortSpace::kUdp));
  ASSERT_OK(id->ResolveAddr({}, At(GetParam().kernel), kPatience));
  ASSERT_OK(id->ResolveRoute(kPatience));
  const absl::Status status = id->Connect();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(kernel.get().error, 0);
  ASSERT_NE(id->event(), nullptr);
  EXPECT_EQ(id->event()->type(), CmEventType::kUnreachable);
  EXPECT_EQ(id->event()->status(), kRejected);
}

INSTANTIATE_TEST_SUITE_P(, RxeSidr, ::testing::Values(kIpv4, kIpv6), [](const auto& test) {
  return std::string(test.param.ours[0] == 'f' ? "Ipv6" : "Ipv4");
});

}  // namespace
}  // namespace rdmad::testing
