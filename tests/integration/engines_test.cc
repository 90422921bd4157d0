// Daemons with several engines: where sessions go, what operators see of it, and that an address is
// still one daemon's alone. The conformance cases run on several engines, too (BUILD.bazel).
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/cm_pair.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/daemon_process.h"
#include "tests/support/net_namespace.h"
#include "tests/support/raw_client.h"
#include "tests/support/status_testing.h"
#include "tests/support/two_hosts.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kEngineMask = 15;  // of a QPN: the engine that it lives on
constexpr char kFour[] = "[engine]\ncount = 4\n";
constexpr size_t kBytes = 10'000;

class EnginesTest : public LoopbackTest {
 protected:
  void SetUp() override {
    if (OnVerbs()) GTEST_SKIP() << "QPNs of HCAs name no engine";
    ASSERT_OK(StartDaemon(0, {.log_level = "info", .more_config = kFour}));
  }
  // Attaches an application and makes an end on its engine.
  absl::StatusOr<WiredEnd> NewEnd(const WiredOptions& options = {}) {
    absl::StatusOr<Client> client = AttachTo(Daemon(0));
    if (!client.ok()) return client.status();
    return MakeEnd(*client, Ipv4(0), options);
  }
};

uint32_t EngineOf(const WiredEnd& end) {
  return end.qp.qpn() & kEngineMask;
}

TEST_F(EnginesTest, ASessionGoesWhereFewestAre) {
  std::vector<std::optional<WiredEnd>> ends;
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_OK_AND_ASSIGN(WiredEnd end, NewEnd());
    EXPECT_EQ(EngineOf(end), i % 4);
    ends.emplace_back(std::move(end));
  }
  // Two of the third engine's end: the next two applications go there.
  ends[2].reset();
  ends[6].reset();
  ASSERT_OK_AND_ASSIGN(const RawClient observer, RawClient::Attach(Daemon(0).run_dir()));
  ASSERT_TRUE(Eventually(absl::Seconds(5), [&] {
    v1::GetStatusReply status;
    return observer
               .Call(observer.admin(), &v1::AdminService::Stub::GetStatus, v1::GetStatusRequest(),
                     &status)
               .ok() &&
           status.sessions() == 7;
  }));
  // The observer may have come before they were gone, and be anywhere but there.
  ASSERT_OK_AND_ASSIGN(const WiredEnd next, NewEnd());
  EXPECT_EQ(EngineOf(next), 2u);
}

TEST_F(EnginesTest, QpsOfTwoEnginesOfOneDaemonMoveEverythingBetweenThem) {
  ASSERT_OK_AND_ASSIGN(WiredEnd a, NewEnd());
  ASSERT_OK_AND_ASSIGN(WiredEnd b, NewEnd());
  ASSERT_NE(EngineOf(a), EngineOf(b));
  ASSERT_OK(Wire(a, b));
  for (size_t i = 0; i < kBytes; ++i) a.memory.data()[i] = static_cast<std::byte>(i * 7);
  ASSERT_OK(b.PostRecv(1, 20'000, kBytes));
  ASSERT_OK(a.qp.PostSend(2, a.memory.data(), kBytes, &a.region, kSendSignaled));
  ASSERT_OK(a.qp.PostWrite(3, a.memory.data(), kBytes, &a.region, kSendSignaled, b.AddressAt(0),
                           b.region.rkey()));
  ASSERT_OK(a.qp.PostRead(4, a.memory.data() + 20'000, kBytes, &a.region, kSendSignaled,
                          b.AddressAt(0), b.region.rkey()));
  ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(b.cq));
  EXPECT_EQ(received.status, WcStatus::kSuccess);
  for (uint64_t wr_id : {2, 3, 4}) {
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(a.cq));
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_EQ(wc.wr_id, wr_id);
  }
  const std::byte* const sent = a.memory.data();
  EXPECT_TRUE(std::equal(sent, sent + kBytes, b.memory.data() + 20'000));
  EXPECT_TRUE(std::equal(sent, sent + kBytes, b.memory.data()));
  EXPECT_TRUE(std::equal(sent, sent + kBytes, a.memory.data() + 20'000));
}

TEST_F(EnginesTest, OperatorsSeeEveryEngineAndItsWork) {
  std::vector<WiredEnd> ends;
  for (int i = 0; i < 4; ++i) {
    ASSERT_OK_AND_ASSIGN(WiredEnd end, NewEnd());
    ASSERT_OK(ToInit(end));
    for (int wr = 0; wr <= i; ++wr) ASSERT_OK(end.PostRecv(1, 0, 100));
    ASSERT_OK(AwaitPosted(end.qp));
    ends.push_back(std::move(end));
  }
  ASSERT_OK_AND_ASSIGN(const RawClient observer, RawClient::Attach(Daemon(0).run_dir()));
  v1::GetStatusReply status;
  ASSERT_OK(observer.Call(observer.admin(), &v1::AdminService::Stub::GetStatus,
                          v1::GetStatusRequest(), &status));
  ASSERT_EQ(status.engines_size(), 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(status.engines(i).index(), static_cast<uint32_t>(i));
    EXPECT_EQ(status.engines(i).work_requests(), static_cast<uint64_t>(i + 1));
  }
}

TEST_F(EnginesTest, IdleEnginesSleep) {
  ASSERT_OK_AND_ASSIGN(WiredEnd a, NewEnd());
  ASSERT_OK_AND_ASSIGN(WiredEnd b, NewEnd());
  ASSERT_OK(Wire(a, b));
  ASSERT_OK(b.PostRecv(1, 0, 100));
  ASSERT_OK(a.qp.PostSend(2, a.memory.data(), 100, &a.region, kSendSignaled));
  ASSERT_OK(WaitForWc(b.cq).status());
  ASSERT_OK(WaitForWc(a.cq).status());
  ASSERT_OK_AND_ASSIGN(const RawClient observer, RawClient::Attach(Daemon(0).run_dir()));
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
    v1::GetStatusReply status;
    if (!observer
             .Call(observer.admin(), &v1::AdminService::Stub::GetStatus, v1::GetStatusRequest(),
                   &status)
             .ok()) {
      return false;
    }
    for (const v1::EngineStatus& engine : status.engines()) {
      if (engine.state() != "sleeping") return false;
    }
    return true;
  }));
}

// Whichever of the two has several engines, and however many.
TEST_F(EnginesTest, ASecondDaemonDoesNotGetTheAddress) {
  for (const std::string& engines : {std::string(), std::string("[engine]\ncount = 2\n"),
                                     std::string(kFour)}) {
    DaemonProcess second({.addresses = {Ipv4(0)}, .log_level = "info", .more_config = engines});
    ASSERT_OK(second.Start());
    EXPECT_NE(second.Log().find("something else (another rdmad?) has UDP port 4791"),
              std::string::npos)
        << engines;
    ASSERT_OK_AND_ASSIGN(const Client client, AttachTo(second));
    ASSERT_OK_AND_ASSIGN(const std::vector<DeviceInfo> devices, client.GetDevices());
    EXPECT_TRUE(devices.empty());
  }
  // The first one has noticed nothing.
  ASSERT_OK_AND_ASSIGN(WiredEnd a, NewEnd());
  ASSERT_OK_AND_ASSIGN(WiredEnd b, NewEnd());
  ASSERT_OK(Wire(a, b));
  ASSERT_OK(b.PostRecv(1, 0, 100));
  ASSERT_OK(a.qp.PostSend(2, a.memory.data(), 100, &a.region, kSendSignaled));
  EXPECT_OK(WaitForWc(b.cq).status());
}

// An interface that goes flushes the QPs of all engines, and an address that comes is there for all.
class EnginesLiveTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { (void)EnterPrivateNetwork(); }
};

TEST_F(EnginesLiveTest, TheNetworkIsFollowedOnEveryEngine) {
  if (!EnterPrivateNetwork().ok()) GTEST_SKIP() << EnterPrivateNetwork().message();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TwoHosts> hosts, TwoHosts::Create());
  DaemonProcess daemon({.interfaces = {TwoHosts::kInterface},
                        .network = &hosts->host(0),
                        .log_level = "info",
                        .more_config = kFour});
  ASSERT_OK(daemon.Start());
  std::vector<WiredEnd> ends;
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_OK_AND_ASSIGN(const Client client, AttachTo(daemon));
    ASSERT_OK_AND_ASSIGN(WiredEnd end, MakeEnd(client, TwoHosts::Ipv4(0)));
    ASSERT_EQ(EngineOf(end), i);
    ASSERT_OK(ToInit(end));
    ASSERT_OK(end.PostRecv(i, 0, 100));
    ends.push_back(std::move(end));
  }
  ASSERT_OK(hosts->host(0).Run({"ip", "addr", "add", "10.78.0.1/24", "dev", TwoHosts::kInterface}));
  ASSERT_OK_AND_ASSIGN(const Client client, AttachTo(daemon));
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return MakeEnd(client, "10.78.0.1").ok(); }));
  ASSERT_OK(hosts->host(0).Run({"ip", "link", "del", TwoHosts::kInterface}));
  for (WiredEnd& end : ends) {
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(end.cq));
    EXPECT_EQ(wc.status, WcStatus::kWrFlushErr) << EngineOf(end);
  }
}

}  // namespace
}  // namespace rdmad::testing
