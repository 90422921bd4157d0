// What the connection managers of our soft device and of the kernel tell each other beside the connection itself: private
// data both ways, and an application's rejection with its reason. The kernel's side is librdmacm, in the test's own process.
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rdmad/rdmad.h"
#include "tests/support/status_testing.h"
#include "tests/vm/kernel_cm.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {
namespace {

[[maybe_unused]] const RxeBed& kBed = RxeBed::Get();

std::string Text(const std::vector<uint8_t>& data) { return std::string(data.begin(), data.end()); }

std::vector<uint8_t> Bytes(const std::string& text) { return std::vector<uint8_t>(text.begin(), text.end()); }

bool StartsWith(const std::string& data, const std::string& expected) {
  return data.substr(0, expected.size()) == expected;
}

class RxeCm : public RxeInterop, public ::testing::WithParamInterface<Addresses> {
 protected:
  Address Parsed(const char* address) {
    return Address::Parse(WithPort(address, std::atoi(kKernelPort))).value_or(Address{});
  }
  // Ours, listening or resolved; with a QP.
  std::unique_ptr<CmId> Listener() {
    auto id = CmId::Create(client());
    EXPECT_OK(id);
    if (!id.ok()) return nullptr;
    EXPECT_OK((*id)->BindAddr(Parsed(GetParam().ours)));
    EXPECT_OK((*id)->Listen());
    return *std::move(id);
  }
  std::unique_ptr<CmId> Resolved() {
    auto id = CmId::Create(client());
    EXPECT_OK(id);
    if (!id.ok()) return nullptr;
    EXPECT_OK((*id)->ResolveAddr({}, Parsed(GetParam().kernel), kPatience));
    EXPECT_OK((*id)->ResolveRoute(kPatience));
    EXPECT_OK((*id)->CreateQp(nullptr, {}));
    return *std::move(id);
  }
};

TEST_P(RxeCm, PrivateDataArrivesBothWaysWhenTheKernelConnects) {
  const auto listener = Listener();
  ASSERT_NE(listener, nullptr);
  auto kernel = std::async(std::launch::async, [] { return KernelConnects(GetParam().ours, "from the kernel"); });
  ASSERT_OK_AND_ASSIGN(const auto request, listener->GetRequest(kPatience));
  ASSERT_NE(request->event(), nullptr);
  EXPECT_TRUE(StartsWith(Text(request->event()->param().private_data), "from the kernel"));
  ASSERT_OK(request->CreateQp(nullptr, {}));
  ConnParam param;
  param.private_data = Bytes("from us");
  EXPECT_OK(request->Accept(param));
  const Outcome outcome = kernel.get();
  EXPECT_EQ(outcome.error, 0) << std::strerror(outcome.error);
  EXPECT_EQ(outcome.event, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_TRUE(StartsWith(outcome.data, "from us")) << outcome.data;
}

TEST_P(RxeCm, OurRejectionReachesTheKernelWithItsData) {
  const auto listener = Listener();
  ASSERT_NE(listener, nullptr);
  auto kernel = std::async(std::launch::async, [] { return KernelConnects(GetParam().ours, "may I"); });
  ASSERT_OK_AND_ASSIGN(const auto request, listener->GetRequest(kPatience));
  EXPECT_OK(request->Reject(Bytes("you may not")));
  const Outcome outcome = kernel.get();
  EXPECT_EQ(outcome.error, ECONNREFUSED) << std::strerror(outcome.error);
  EXPECT_EQ(outcome.event, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(outcome.status, 28);  // consumer defined
  EXPECT_TRUE(StartsWith(outcome.data, "you may not")) << outcome.data;
}

TEST_P(RxeCm, PrivateDataArrivesBothWaysWhenWeConnect) {
  const KernelId listener = MakeKernelId(GetParam().kernel, true);
  ASSERT_NE(listener, nullptr) << std::strerror(errno);
  ASSERT_EQ(rdma_listen(listener.get(), 1), 0) << std::strerror(errno);
  auto kernel = std::async(std::launch::async, KernelServes, listener.get(), true, "from the kernel", absl::ZeroDuration());
  const auto id = Resolved();
  ASSERT_NE(id, nullptr);
  ConnParam param;
  param.private_data = Bytes("from us");
  EXPECT_OK(id->Connect(param));
  const Outcome outcome = kernel.get();
  EXPECT_EQ(outcome.error, 0) << std::strerror(outcome.error);
  EXPECT_TRUE(StartsWith(outcome.data, "from us")) << outcome.data;
  ASSERT_NE(id->event(), nullptr);
  EXPECT_EQ(id->event()->type(), CmEventType::kEstablished);
  EXPECT_TRUE(StartsWith(Text(id->event()->param().private_data), "from the kernel"));
}

TEST_P(RxeCm, TheKernelsRejectionReachesUsWithItsData) {
  const KernelId listener = MakeKernelId(GetParam().kernel, true);
  ASSERT_NE(listener, nullptr) << std::strerror(errno);
  ASSERT_EQ(rdma_listen(listener.get(), 1), 0) << std::strerror(errno);
  auto kernel = std::async(std::launch::async, KernelServes, listener.get(), false, "you may not", absl::ZeroDuration());
  const auto id = Resolved();
  ASSERT_NE(id, nullptr);
  const absl::Status status = id->Connect();
  EXPECT_TRUE(absl::IsAborted(status)) << status.ToString();
  EXPECT_EQ(kernel.get().error, 0);
  ASSERT_NE(id->event(), nullptr);
  EXPECT_EQ(id->event()->type(), CmEventType::kRejected);
  EXPECT_EQ(id->event()->status(), 28);
  EXPECT_TRUE(StartsWith(Text(id->event()->param().private_data), "you may not"));
}

INSTANTIATE_TEST_SUITE_P(, RxeCm, ::testing::Values(kIpv4, kIpv6), [](const auto& test) {
  return std::string(test.param.ours[0] == 'f' ? "Ipv6" : "Ipv4");
});

}  // namespace
}  // namespace rdmad::testing
