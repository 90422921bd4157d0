// What the connection managers of our soft device and of the kernel tell each other beside the connection itself: private
// data both ways, and an application's rejection with its reason. The kernel's side is librdmacm, in the test's own process.
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

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
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {
namespace {

[[maybe_unused]] const RxeBed& kBed = RxeBed::Get();

constexpr char kPort[] = "7471";

struct EpDelete {
  void operator()(rdma_cm_id* id) const noexcept { rdma_destroy_ep(id); }
};
using KernelId = std::unique_ptr<rdma_cm_id, EpDelete>;

// Resolved or bound, synchronous, with a QP. Null with errno when that fails.
KernelId MakeKernelId(const char* address, bool passive) {
  rdma_addrinfo hints = {};
  hints.ai_port_space = RDMA_PS_TCP;
  if (passive) hints.ai_flags = RAI_PASSIVE;
  rdma_addrinfo* info = nullptr;
  if (rdma_getaddrinfo(address, kPort, &hints, &info) != 0) return nullptr;
  ibv_qp_init_attr init = {};
  init.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  rdma_cm_id* id = nullptr;
  const int failed = rdma_create_ep(&id, info, nullptr, &init);
  rdma_freeaddrinfo(info);
  return failed != 0 ? nullptr : KernelId(id);
}

// What an end of the kernel saw: the result of its call, and what the event brought.
struct Outcome {
  int error = 0;
  int event = -1;
  int status = 0;
  std::string data = {};
};

Outcome OutcomeOf(rdma_cm_id* id, int result) {
  Outcome outcome;
  if (result != 0) outcome.error = errno;
  if (id->event == nullptr) return outcome;
  outcome.event = id->event->event;
  outcome.status = id->event->status;
  const rdma_conn_param& param = id->event->param.conn;
  if (param.private_data != nullptr) {
    outcome.data.assign(static_cast<const char*>(param.private_data), param.private_data_len);
  }
  return outcome;
}

Outcome KernelConnects(const char* address, const std::string& data) {
  const KernelId id = MakeKernelId(address, false);
  if (id == nullptr) return {.error = errno};
  rdma_conn_param param = {};
  param.private_data = data.data();
  param.private_data_len = static_cast<uint8_t>(data.size());
  param.responder_resources = param.initiator_depth = 1;
  param.retry_count = param.rnr_retry_count = 7;
  return OutcomeOf(id.get(), rdma_connect(id.get(), &param));
}

// Takes one request, and accepts or rejects it with `data`.
Outcome KernelAnswers(rdma_cm_id* listener, bool accept, const std::string& data) {
  rdma_cm_id* request = nullptr;
  if (rdma_get_request(listener, &request) != 0) return {.error = errno};
  const KernelId id(request);
  Outcome outcome = OutcomeOf(request, 0);
  if (accept) {
    rdma_conn_param param = {};
    param.private_data = data.data();
    param.private_data_len = static_cast<uint8_t>(data.size());
    param.responder_resources = param.initiator_depth = 1;
    param.rnr_retry_count = 7;
    if (rdma_accept(request, &param) != 0) outcome.error = errno;
  } else if (rdma_reject(request, data.data(), static_cast<uint8_t>(data.size())) != 0) {
    outcome.error = errno;
  }
  return outcome;
}

std::string Text(const std::vector<uint8_t>& data) { return std::string(data.begin(), data.end()); }

std::vector<uint8_t> Bytes(const std::string& text) { return std::vector<uint8_t>(text.begin(), text.end()); }

bool StartsWith(const std::string& data, const std::string& expected) {
  return data.substr(0, expected.size()) == expected;
}

class RxeCm : public RxeInterop, public ::testing::WithParamInterface<Addresses> {
 protected:
  Address Parsed(const char* address) {
    return Address::Parse(WithPort(address, std::atoi(kPort))).value_or(Address{});
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
  auto kernel = std::async(std::launch::async, KernelConnects, GetParam().ours, "from the kernel");
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
  auto kernel = std::async(std::launch::async, KernelConnects, GetParam().ours, "may I");
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
  auto kernel = std::async(std::launch::async, KernelAnswers, listener.get(), true, "from the kernel");
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
  auto kernel = std::async(std::launch::async, KernelAnswers, listener.get(), false, "you may not");
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
