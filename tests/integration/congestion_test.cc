// A link between two hosts that is slower than they are: with a switch that marks packets its queue
// stays short and nothing is lost; with one that does not, losses slow the sender down instead.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/counters.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/support/bottleneck.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kBytes = 8 << 20;
constexpr uint64_t kBytesPerS = 20'000'000;
constexpr uint64_t kLimitBytes = 400'000;
constexpr uint64_t kMarkBytes = 40'000;

class CongestionTest : public TwoHostsTest, public ::testing::WithParamInterface<int> {
 protected:
  static std::string Peer() { return GetParam() == 4 ? TwoHosts::Ipv4(1) : TwoHosts::Ipv6(1); }

  // Writes kBytes through the bottleneck; `took` is how long that was.
  void Write(const BottleneckOptions& bottleneck, absl::Duration* took) {
    ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(0), client(1), Peer()));
    ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(0), kBytes + 4096));
    ASSERT_OK_AND_ASSIGN(Pool peer_pool, Pool::Create(client(1), kBytes + 4096));
    ASSERT_OK_AND_ASSIGN(Buffer shared, peer_pool.Allocate(kBytes));
    ASSERT_OK_AND_ASSIGN(MemoryRegion region, connection.passive.Share(shared, kAccessRemoteWrite));
    ASSERT_OK_AND_ASSIGN(Buffer local, pool.Allocate(kBytes));
    FillPattern(local.bytes(), 1);
    hosts().wire()->SetHook([this](WireDirection direction, std::span<uint8_t> ip) {
      if (direction == WireDirection::kBToA && IsCnp(ip)) ++cnps_;
      return WireVerdict::kPass;
    });
    hosts().wire()->SetBottleneck(bottleneck);
    const absl::Time start = absl::Now();
    ASSERT_OK(connection.active.Write(local, Endpoint::Describe(region)));
    *took = absl::Now() - start;
    EXPECT_EQ(PatternMismatch(shared.bytes(), 1), std::nullopt);
    const BottleneckCounts counts = hosts().wire()->bottleneck_counts();
    std::cout << "passed " << counts.passed << " marked " << counts.marked << " dropped "
              << counts.dropped << ", queue up to " << counts.longest_bytes << " bytes, "
              << kBytes / absl::ToDoubleSeconds(*took) / 1e6 << " MB/s of " << kBytesPerS / 1e6
              << ", " << cnps_.load() << " CNPs\n";
    hosts().wire()->SetHook(nullptr);
  }

  std::atomic<uint64_t> cnps_{0};  // that the receiver has sent

 private:
  static bool IsCnp(std::span<const uint8_t> ip) {
    constexpr uint8_t kCnpOpcode = 0x81;
    const size_t bth = (ip[0] >> 4 == 4 ? 20 : 40) + 8;
    return ip.size() > bth && ip[bth] == kCnpOpcode;
  }
};

TEST_P(CongestionTest, MarksKeepTheQueueShortAndTheLinkBusy) {
  if (!Start({.wire = true})) return;
  absl::Duration took;
  Write({.bytes_per_s = kBytesPerS, .limit_bytes = kLimitBytes, .mark_bytes = kMarkBytes}, &took);
  if (HasFatalFailure()) return;
  const BottleneckCounts counts = hosts().wire()->bottleneck_counts();
  EXPECT_GT(counts.marked, 0u);
  EXPECT_EQ(counts.dropped, 0u);
  EXPECT_LT(took, Slow(4 * absl::Seconds(double{kBytes} / kBytesPerS)));
  EXPECT_GT(cnps_.load(), 0u);
  EXPECT_LE(cnps_.load(), counts.marked);
  ASSERT_OK_AND_ASSIGN(const Counters receiver, Counters::Of(Daemon(1)));
  EXPECT_GT(receiver.Get("udp_rx_ecn_ce"), 0u);
}

TEST_P(CongestionTest, WithoutMarksLossesSlowTheSenderDown) {
  if (!Start({.wire = true})) return;
  absl::Duration took;
  Write({.bytes_per_s = kBytesPerS, .limit_bytes = kMarkBytes}, &took);
  if (HasFatalFailure()) return;
  EXPECT_GT(hosts().wire()->bottleneck_counts().dropped, 0u);
  EXPECT_LT(took, Slow(8 * absl::Seconds(double{kBytes} / kBytesPerS)));
  EXPECT_EQ(cnps_.load(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Family, CongestionTest, ::testing::Values(4, 6),
                         [](const auto& test) { return absl::StrCat("Ipv", test.param); });

}  // namespace
}  // namespace rdmad::testing
