// Our soft device against the kernel's RDMA: rdmad serves the namespace "peer" (set-up two_hosts of guest.sh), rdma-core's
// own programs run over rxe in the first one, and both ends check every byte that SEND, RDMA READ and RDMA WRITE moved.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rdmad/rdmad.h"
#include "tests/support/child_process.h"
#include "tests/support/file.h"
#include "tests/support/status_testing.h"
#include "tests/vm/bad_network.h"
#include "tests/vm/rping.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {
namespace {

[[maybe_unused]] const RxeBed& kBed = RxeBed::Get();

struct Case {
  const char* name;
  Addresses addresses;
  size_t size_bytes;
  int rounds;
};

// One packet, exactly one path MTU and one byte more, and as much as rping can.
constexpr std::array kCases = {
    Case{"Small", kIpv4, 64, 20},     Case{"OneMtu", kIpv4, 4096, 5},
    Case{"MtuPlusOne", kIpv4, 4097, 5}, Case{"Large", kIpv4, 65000, 5},
    Case{"SmallIpv6", kIpv6, 64, 20}, Case{"LargeIpv6", kIpv6, 65000, 5},
};

class RxeRping : public RxeInterop, public ::testing::WithParamInterface<Case> {};

TEST_P(RxeRping, KernelPingsUs) {
  const Case& c = GetParam();
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(), WithPort(c.addresses.ours, 7174)));
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -c -V -v -a ", c.addresses.ours, " -C ",
                                                                    c.rounds, " -S ", c.size_bytes)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, listener.Accept(kPatience));
  ASSERT_OK_AND_ASSIGN(const int rounds, ServeRping(endpoint, pool(), c.size_bytes));
  EXPECT_EQ(rounds, c.rounds);
  ExpectGoodEnd(rping);
}

TEST_P(RxeRping, WePingTheKernel) {
  const Case& c = GetParam();
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -s -v -a ", c.addresses.kernel, " -C ",
                                                                    c.rounds, " -S ", c.size_bytes)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, Connect(WithPort(c.addresses.kernel, 7174)));
  EXPECT_OK(PingRping(endpoint, pool(), c.size_bytes, c.rounds));
  EXPECT_OK(endpoint.Close());
  ExpectGoodEnd(rping);
}

INSTANTIATE_TEST_SUITE_P(, RxeRping, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

// ucmatose(1): several connections at once; on each the server sends messages first, then the client as many.
constexpr int kConnections = 4;
constexpr int kMessages = 40;
constexpr size_t kMessageBytes = 3000;

struct UcmatoseCase {
  const char* name;
  Addresses addresses;
  const char* network;  // a BadNetwork, from when the connections stand until the last message has come; or null
};

class RxeUcmatose : public RxeInterop, public ::testing::WithParamInterface<UcmatoseCase> {
 protected:
  void TearDown() override {
    network_.reset();
    RxeInterop::TearDown();
  }
  static std::string Options() {
    return absl::StrCat(" -c ", kConnections, " -C ", kMessages, " -S ", kMessageBytes);
  }
  void BeginLosses() {
    if (GetParam().network != nullptr) network_.emplace(GetParam().network);
  }
  void EndLosses() {
    if (!network_.has_value()) return;
    EXPECT_GT(network_->lost(), 0);
    network_.reset();
  }
  void SendMessages(Endpoint& endpoint) {
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_OK_AND_ASSIGN(Buffer message, pool().Allocate(kMessageBytes));
      ASSERT_OK(endpoint.Send(std::move(message)));
    }
  }
  void ReceiveMessages(Endpoint& endpoint) {
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_OK_AND_ASSIGN(const Buffer message, endpoint.Receive(kPatience));
      ASSERT_EQ(message.size(), kMessageBytes);
    }
  }

 private:
  std::optional<BadNetwork> network_;
};

TEST_P(RxeUcmatose, KernelOpensSeveralConnectionsToUs) {
  const char* const ours = GetParam().addresses.ours;
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(), WithPort(ours, 7471)));
  ASSERT_OK_AND_ASSIGN(ChildProcess ucmatose, StartKernel(absl::StrCat("ucmatose -s ", ours, Options())));
  std::vector<Endpoint> endpoints;
  for (int i = 0; i < kConnections; ++i) {
    ASSERT_OK_AND_ASSIGN(Endpoint endpoint, listener.Accept(kPatience));
    endpoints.push_back(std::move(endpoint));
  }
  BeginLosses();
  for (Endpoint& endpoint : endpoints) ASSERT_NO_FATAL_FAILURE(SendMessages(endpoint));
  for (Endpoint& endpoint : endpoints) ASSERT_NO_FATAL_FAILURE(ReceiveMessages(endpoint));
  EndLosses();
  for (Endpoint& endpoint : endpoints) EXPECT_OK(endpoint.Close());
  ExpectGoodEnd(ucmatose);
}

TEST_P(RxeUcmatose, WeOpenSeveralConnectionsToTheKernel) {
  const char* const kernel = GetParam().addresses.kernel;
  ASSERT_OK_AND_ASSIGN(ChildProcess ucmatose, StartKernel(absl::StrCat("ucmatose -b ", kernel, Options())));
  std::vector<Endpoint> endpoints;
  for (int i = 0; i < kConnections; ++i) {
    ASSERT_OK_AND_ASSIGN(Endpoint endpoint, Connect(WithPort(kernel, 7471)));
    endpoints.push_back(std::move(endpoint));
  }
  BeginLosses();
  for (Endpoint& endpoint : endpoints) {
    ASSERT_NO_FATAL_FAILURE(ReceiveMessages(endpoint));
    ASSERT_NO_FATAL_FAILURE(SendMessages(endpoint));
    ASSERT_OK(endpoint.Flush(kPatience));
  }
  EndLosses();
  for (Endpoint& endpoint : endpoints) EXPECT_OK(endpoint.Close());
  ExpectGoodEnd(ucmatose);
}

INSTANTIATE_TEST_SUITE_P(, RxeUcmatose,
                         ::testing::Values(UcmatoseCase{"Ipv4", kIpv4, nullptr},
                                           UcmatoseCase{"Ipv6Loss", kIpv6, "loss 5%"}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(RxeInterop, KernelRejectsWhereNobodyListens) {
  const absl::StatusOr<Endpoint> endpoint = Endpoint::Connect(client(), WithPort(kIpv4.kernel, 7999));
  EXPECT_TRUE(absl::IsAborted(endpoint.status())) << endpoint.status().ToString();
}

TEST_F(RxeInterop, WeRejectTheKernelWhereNobodyListens) {
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -c -a ", kIpv4.ours, " -C 1")));
  const std::optional<ExitStatus> ended = rping.Wait(kPatience);
  ASSERT_TRUE(ended.has_value());
  EXPECT_FALSE(ended->ok());
  // RDMA_CM_EVENT_REJECTED with the reason "invalid service id".
  EXPECT_NE(ReadFile(output_file()).find("RDMA_CM_EVENT_REJECTED, error 8"), std::string::npos);
}

TEST_F(RxeInterop, AKilledKernelProgramClosesOurEnd) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(), WithPort(kIpv4.ours, 7174)));
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -c -a ", kIpv4.ours)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, listener.Accept(kPatience));
  ASSERT_OK(endpoint.Receive(kPatience));
  rping.Kill();
  const absl::StatusOr<Buffer> end = endpoint.Receive(kPatience);
  EXPECT_TRUE(IsClosed(end.status())) << end.status().ToString();
}

TEST_F(RxeInterop, AKilledKernelServerClosesOurEnd) {
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -s -a ", kIpv4.kernel)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, Connect(WithPort(kIpv4.kernel, 7174)));
  rping.Kill();
  const absl::StatusOr<Buffer> end = endpoint.Receive(kPatience);
  EXPECT_TRUE(IsClosed(end.status())) << end.status().ToString();
}

TEST_F(RxeInterop, TheKernelRefusesAWrongKey) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(), WithPort(kIpv4.ours, 7174)));
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -c -a ", kIpv4.ours)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, listener.Accept(kPatience));
  ASSERT_OK_AND_ASSIGN(RemoteBuffer source, ReceiveRpingBuffer(endpoint));
  source.rkey ^= 0xff00;
  ASSERT_OK_AND_ASSIGN(Buffer local, pool().Allocate(64));
  const absl::Status status = endpoint.Read(local, source);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status.ToString();
}

TEST_F(RxeInterop, WeRefuseTheKernelAWrongKey) {
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -s -a ", kIpv4.kernel)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, Connect(WithPort(kIpv4.kernel, 7174)));
  ASSERT_OK_AND_ASSIGN(Buffer source, pool().Allocate(64));
  ASSERT_OK_AND_ASSIGN(const MemoryRegion region, endpoint.Share(source, kAccessRemoteWrite));
  // The server reads, and the region is not to be read.
  ASSERT_OK(SendRpingBuffer(endpoint, Endpoint::Describe(region)));
  const std::optional<ExitStatus> ended = rping.Wait(kPatience);
  ASSERT_TRUE(ended.has_value());
  EXPECT_FALSE(ended->ok());
  // IBV_WC_REM_ACCESS_ERR.
  EXPECT_NE(ReadFile(output_file()).find("failed status 10"), std::string::npos);
}

// Every packet of either direction is lost with this probability once the connection stands.
constexpr char kLoss[] = "2%";

class RxeLoss : public RxeInterop {
 protected:
  void LosePackets() { network_.emplace(absl::StrCat("loss ", kLoss)); }
  void TearDown() override {
    if (RxeBed::Get().stands()) {
      ASSERT_TRUE(network_.has_value());
      EXPECT_GT(network_->lost(), 0);
      network_.reset();
    }
    RxeInterop::TearDown();
  }

 private:
  std::optional<BadNetwork> network_;
};

TEST_F(RxeLoss, KernelPingsUs) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(), WithPort(kIpv4.ours, 7174)));
  ASSERT_OK_AND_ASSIGN(ChildProcess rping,
                       StartKernel(absl::StrCat("rping -c -V -a ", kIpv4.ours, " -C 20 -S 20000")));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, listener.Accept(kPatience));
  LosePackets();
  ASSERT_OK_AND_ASSIGN(const int rounds, ServeRping(endpoint, pool(), 20000));
  EXPECT_EQ(rounds, 20);
  ExpectGoodEnd(rping);
}

TEST_F(RxeLoss, WePingTheKernel) {
  ASSERT_OK_AND_ASSIGN(ChildProcess rping,
                       StartKernel(absl::StrCat("rping -s -a ", kIpv4.kernel, " -S 20000")));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, Connect(WithPort(kIpv4.kernel, 7174)));
  LosePackets();
  EXPECT_OK(PingRping(endpoint, pool(), 20000, 20));
  EXPECT_OK(endpoint.Close());
  ExpectGoodEnd(rping);
}

}  // namespace
}  // namespace rdmad::testing
