// Thousands of connections on one daemon: a message costs what it costs beside one, and when an
// application with thousands of them is killed, its peer hears of each end and nothing is left.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/testbed.h"
#include "tests/support/child_process.h"
#include "tests/support/file.h"
#include "tests/support/raw_client.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"

namespace rdmad::testing {
namespace {

const int kConnections = Fewer(2000);
constexpr absl::Duration kSetUp = absl::Seconds(60);
constexpr absl::Duration kHearsWithin = absl::Seconds(2);
// What allocators keep; the connections take some 20 KiB each.
constexpr uint64_t kAllowedGrowthBytes = 8 << 20;
constexpr absl::Duration kTidiesWithin = absl::Seconds(20);
constexpr int kRuntimeSlack = 8;  // threads of gRPC come and go, each with a descriptor

class ManyConnectionsTest : public LoopbackTest {
 protected:
  // One end of all connections: tests/bench/peers/many_connections.
  class End {
   public:
    End(const DaemonProcess& daemon, const std::string& role, const std::string& address) {
      auto process = ChildProcess::Start(
          {Runfile("tests/bench/peers/many_connections"), "--run-dir", daemon.run_dir(), role,
           address, "--connections", absl::StrCat(kConnections), "--until", "killed"},
          {.output_file = folder_.path() + "/output"});
      EXPECT_OK(process);
      if (process.ok()) process_.emplace(*std::move(process));
    }

    [[nodiscard]] std::string Output() const { return ReadFile(folder_.path() + "/output"); }
    bool Says(const std::string& event, absl::Duration within) const {
      return Eventually(within, [&] { return Output().find(event) != std::string::npos; });
    }
    void Kill() { process_->Kill(); }

   private:
    const TempDir folder_;
    std::optional<ChildProcess> process_;
  };

  // All connections within one daemon.
  void Connect(const DaemonProcess& daemon, const std::string& address) {
    taker_ = std::make_unique<End>(daemon, "--listen", address);
    ASSERT_TRUE(taker_->Says("listening", absl::Seconds(10))) << taker_->Output();
    const std::string output = taker_->Output();
    int port = 0;
    ASSERT_TRUE(absl::SimpleAtoi(
        output.substr(output.rfind(' ') + 1, output.rfind('}') - output.rfind(' ') - 1), &port))
        << output;
    maker_ =
        std::make_unique<End>(daemon, "--connect", WithPort(address, static_cast<uint16_t>(port)));
    ASSERT_TRUE(maker_->Says("connected", kSetUp)) << maker_->Output();
  }

  std::unique_ptr<End> taker_;
  std::unique_ptr<End> maker_;
};

// How long a message there and back takes, over so few that the best of many rounds had the
// machine for itself.
absl::Duration RoundTrip(Connection& connection) {
  constexpr int kMessages = 10;
  const absl::Time start = absl::Now();
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_OK(connection.active.SendCopy("ping"));
    EXPECT_OK(connection.passive.Receive());
    EXPECT_OK(connection.passive.SendCopy("pong"));
    EXPECT_OK(connection.active.Receive());
  }
  return (absl::Now() - start) / kMessages;
}

TEST_F(ManyConnectionsTest, AMessageCostsNoMoreBesideThousandsOfIdleConnections) {
  EndpointOptions polled;
  polled.wait = WaitStyle::kPolled;
  std::vector<Connection> connections;
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(StartDaemon(i, {.log_level = "warn"}));
    ASSERT_OK_AND_ASSIGN(const Client client, AttachTo(Daemon(i)));
    ASSERT_OK_AND_ASSIGN(Connection connection,
                         ConnectApps(client, client, Ipv4(i), polled, polled));
    connections.push_back(std::move(connection));
  }
  Connect(Daemon(1), Ipv4(1));
  ASSERT_FALSE(HasFatalFailure());

  std::array<absl::Duration, 2> best = {absl::InfiniteDuration(), absl::InfiniteDuration()};
  // Anything done for each connection, be it a few ns, would make it many times as long.
  const auto as_good = [&] { return best[1] < 2 * best[0]; };
  constexpr int kAtLeast = 500;
  for (int round = 0; round < (as_good() ? 1 : 10) * kAtLeast && !HasFailure(); ++round) {
    for (size_t i = 0; i < 2; ++i) best[i] = std::min(best[i], RoundTrip(connections[i]));
  }
  RecordProperty("alone", absl::FormatDuration(best[0]));
  RecordProperty("crowded", absl::FormatDuration(best[1]));
  EXPECT_TRUE(as_good()) << best[1] << " beside " << best[0];
}

TEST_F(ManyConnectionsTest, AKilledApplicationWithThousandsOfConnectionsLeavesNothing) {
  ASSERT_OK(StartDaemon(0, {.log_level = "warn"}));
  ASSERT_OK_AND_ASSIGN(RawClient observer, RawClient::Attach(Daemon(0).run_dir(), "observer"));
  const auto counts = [&] { return CountObjects(observer).value_or("no answer"); };
  const std::string counts_before = counts();
  ASSERT_OK_AND_ASSIGN(const ProcessUse before, Daemon(0).Use());

  Connect(Daemon(0), Ipv4(0));
  ASSERT_FALSE(HasFatalFailure());
  maker_->Kill();
  EXPECT_TRUE(taker_->Says("\"disconnected\"", kHearsWithin)) << taker_->Output();
  EXPECT_TRUE(Eventually(kTidiesWithin, [&] {
    return counts().find(absl::StrCat("qps: ", kConnections, " ")) != std::string::npos;
  })) << counts();
  taker_->Kill();
  EXPECT_TRUE(Eventually(kTidiesWithin, [&] { return counts() == counts_before; }))
      << "before: " << counts_before << "\nafter:  " << counts();
  const uint64_t most_bytes = before.rss_bytes + kAllowedGrowthBytes;
  ProcessUse after;
  EXPECT_TRUE(Eventually(kTidiesWithin,
                         [&] {
                           after = Daemon(0).Use().value_or(ProcessUse{});
                           return (after.rss_bytes < most_bytes || !kMemoryGoesBack) &&
                                  after.descriptors <= before.descriptors + kRuntimeSlack;
                         }))
      << "RSS " << before.rss_bytes << ", then " << after.rss_bytes << " bytes; "
      << before.descriptors << ", then " << after.descriptors << " descriptors";
}

}  // namespace
}  // namespace rdmad::testing
