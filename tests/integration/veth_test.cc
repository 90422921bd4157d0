// Two daemons in two network namespaces over veth: the MTUs of real networks, and a network that
// loses, repeats and reorders (case 29). Every byte is checked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/counters.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/traffic.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kLargest = 8 << 20;

// Sends, writes and reads `sizes` from host 0 to host 1 over a connection to `address`.
class VethTest : public TwoHostsTest {
 protected:
  void ExpectAllArrives(const std::string& address, std::vector<uint32_t> sizes) {
    EndpointOptions options;
    options.max_recv_bytes = *std::max_element(sizes.begin(), sizes.end());
    options.recv_depth = 2;
    ASSERT_OK_AND_ASSIGN(Connection connection,
                         ConnectApps(client(0), client(1), address, options, options));
    const size_t pool_bytes = 2 * size_t{options.max_recv_bytes} + 8192;
    ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(0), pool_bytes));
    ASSERT_OK_AND_ASSIGN(Pool peer_pool, Pool::Create(client(1), pool_bytes));
    for (const uint32_t size : sizes) {
      SCOPED_TRACE(absl::StrCat("size ", size));
      ASSERT_OK_AND_ASSIGN(Buffer message, pool.Allocate(size));
      FillPattern(message.bytes(), size);
      ASSERT_OK(connection.active.Send(std::move(message)));
      ASSERT_OK_AND_ASSIGN(Buffer received, connection.passive.Receive(absl::Seconds(60)));
      EXPECT_EQ(received.size(), size);
      EXPECT_EQ(PatternMismatch(received.bytes(), size), std::nullopt);
      received.Release();
      ASSERT_OK(connection.active.Flush(absl::Seconds(60)));  // the message's memory is free again

      ASSERT_OK_AND_ASSIGN(Buffer shared, peer_pool.Allocate(size));
      ASSERT_OK_AND_ASSIGN(
          MemoryRegion region,
          connection.passive.Share(shared, kAccessRemoteWrite | kAccessRemoteRead));
      ASSERT_OK_AND_ASSIGN(Buffer local, pool.Allocate(size));
      FillPattern(local.bytes(), size + 1);
      ASSERT_OK(connection.active.Write(local, Endpoint::Describe(region)));
      EXPECT_EQ(PatternMismatch(shared.bytes(), size + 1), std::nullopt);
      FillPattern(shared.bytes(), size + 2);
      ASSERT_OK(connection.active.Read(local, Endpoint::Describe(region)));
      EXPECT_EQ(PatternMismatch(local.bytes(), size + 2), std::nullopt);
    }
  }
};

// ---- MTUs

struct MtuCase {
  int interface_bytes;
  uint32_t path_bytes;
};

class MtuTest : public VethTest, public ::testing::WithParamInterface<MtuCase> {};

TEST_P(MtuTest, AllSizesArriveOverIpv4AndIpv6) {
  if (!Start({.mtu_bytes = GetParam().interface_bytes})) return;
  const uint32_t mtu = GetParam().path_bytes;
  for (int family : {4, 6}) {
    SCOPED_TRACE(family);
    ExpectAllArrives(family == 4 ? TwoHosts::Ipv4(1) : TwoHosts::Ipv6(1),
                     {1, mtu - 1, mtu, mtu + 1, 2 * mtu, 1 << 20, kLargest});
  }
  // The path MTU is what the interface can carry.
  ASSERT_OK_AND_ASSIGN(const std::vector<DeviceInfo> devices, client(0).GetDevices());
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(MtuBytes(devices[0].active_mtu), mtu);
  ASSERT_OK_AND_ASSIGN(const Counters counters, Counters::Of(Daemon(0)));
  EXPECT_EQ(counters.Get("udp_tx_lost_too_big"), 0u);
}

INSTANTIATE_TEST_SUITE_P(Interfaces, MtuTest,
                         ::testing::Values(MtuCase{1500, 1024}, MtuCase{9000, 4096},
                                           MtuCase{1280, 1024}),
                         [](const auto& test) {
                           return absl::StrCat("Mtu", test.param.interface_bytes);
                         });

// ---- Loss

struct LossCase {
  const char* name;
  double loss;
  double duplicate;
  double reorder;
};
void PrintTo(const LossCase& loss, std::ostream* out) {
  *out << loss.name;
}

class LossTest : public VethTest, public ::testing::WithParamInterface<LossCase> {
 protected:
  void StartFaults() {
    const LossCase& faults = GetParam();
    constexpr uint64_t kSeed = 29;
    hosts().wire()->SetFaults({.loss = faults.loss,
                               .duplicate = faults.duplicate,
                               .reorder = faults.reorder,
                               .seed = kSeed});
    std::cout << "seed " << kSeed << "\n";
  }
};

TEST_P(LossTest, AllSizesArriveWhole) {
  for (int mtu_bytes : {1500, 9000}) {
    if (!Start({.mtu_bytes = mtu_bytes, .wire = true})) return;
    StartFaults();
    for (int family : {4, 6}) {
      SCOPED_TRACE(absl::StrCat("IPv", family, " MTU ", mtu_bytes));
      ExpectAllArrives(family == 4 ? TwoHosts::Ipv4(1) : TwoHosts::Ipv6(1),
                       {1, 1023, 1024, 1025, 4097, 1 << 20});
    }
  }
}

TEST_P(LossTest, MixedTrafficBothWaysGoesOnUnharmed) {
  if (!Start({.wire = true})) return;
  ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(0), client(1), TwoHosts::Ipv4(1)));
  StartFaults();
  TrafficThread one(client(0), connection.active, {.seed = 1});
  TrafficThread two(client(1), connection.passive, {.seed = 2});
  absl::SleepFor(absl::Seconds(3));
  EXPECT_FALSE(one.ended());
  EXPECT_FALSE(two.ended());
  EXPECT_GT(one.counts().received, 50u);
  EXPECT_GT(two.counts().received, 50u);
  EXPECT_GT(one.counts().written, 10u);
  hosts().wire()->SetFaults({});
  EXPECT_OK(one.Stop());
  EXPECT_OK(two.Stop());
  std::cout << "received " << one.counts().received << " and " << two.counts().received << "\n";
}

// Go-back-N must not answer loss by a storm: a bound on what is sent in all.
TEST_P(LossTest, FewPacketsAreSentAgain) {
  if (!Start({.mtu_bytes = 1500, .wire = true})) return;
  constexpr uint32_t kBytes = 64 << 20;
  constexpr uint64_t kNeeded = kBytes / 1024;
  ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(0), client(1), TwoHosts::Ipv4(1)));
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(0), kBytes + 4096));
  ASSERT_OK_AND_ASSIGN(Pool peer_pool, Pool::Create(client(1), kBytes + 4096));
  ASSERT_OK_AND_ASSIGN(Buffer shared, peer_pool.Allocate(kBytes));
  ASSERT_OK_AND_ASSIGN(MemoryRegion region, connection.passive.Share(shared, kAccessRemoteWrite));
  ASSERT_OK_AND_ASSIGN(Buffer local, pool.Allocate(kBytes));
  FillPattern(local.bytes(), 1);
  StartFaults();
  ASSERT_OK_AND_ASSIGN(const Counters before, Counters::Of(Daemon(0)));
  const absl::Time start = absl::Now();

  ASSERT_OK(connection.active.Write(local, Endpoint::Describe(region)));

  const absl::Duration took = absl::Now() - start;
  EXPECT_EQ(PatternMismatch(shared.bytes(), 1), std::nullopt);
  ASSERT_OK_AND_ASSIGN(const Counters after, Counters::Of(Daemon(0)));
  const uint64_t sent = after.Get("udp_tx_packets") - before.Get("udp_tx_packets");
  std::cout << GetParam().name << ": " << sent << " packets for " << kNeeded << ", in "
            << absl::FormatDuration(took) << "\n";
  EXPECT_LT(sent, 3 * kNeeded);
}

INSTANTIATE_TEST_SUITE_P(
    Networks, LossTest,
    ::testing::Values(LossCase{"Loss1PercentReorderDuplicate", 0.01, 0.01, 0.01},
                      LossCase{"Loss5Percent", 0.05, 0, 0}, LossCase{"Reorder5Percent", 0, 0, 0.05},
                      LossCase{"Duplicate20Percent", 0, 0.2, 0}),
    ::testing::PrintToStringParamName());

// Case 29 as it is asked for: every size by every operation, again and again, 3 s long; with
// RDMAD_SOAK_SECONDS=150 ten minutes for all networks, and messages of 64 MiB.
class SoakTest : public LossTest {};

TEST_P(SoakTest, EverySizeArrivesAsLongAsItLasts) {
  const char* const seconds = ::getenv("RDMAD_SOAK_SECONDS");
  const bool soaks = seconds != nullptr;
  const absl::Duration length = absl::Seconds(soaks ? std::atoi(seconds) : 3);
  const uint32_t largest = soaks ? 64 << 20 : 1 << 20;
  if (!Start({.wire = true})) return;
  StartFaults();
  ASSERT_OK_AND_ASSIGN(const Counters before, Counters::Of(Daemon(0)));
  const absl::Time start = absl::Now();
  uint64_t bytes = 0;
  int rounds = 0;
  absl::Duration longest;
  do {
    const absl::Time began = absl::Now();
    std::vector<uint32_t> sizes = {1, 1023, 1024, 1025, 1 << 20};
    if (soaks) sizes.push_back(largest);
    ExpectAllArrives(rounds % 2 == 0 ? TwoHosts::Ipv4(1) : TwoHosts::Ipv6(1), sizes);
    if (HasFailure()) return;
    for (const uint32_t size : sizes) bytes += 3ull * size;
    longest = std::max(longest, absl::Now() - began);
    ++rounds;
  } while (absl::Now() - start < length);
  ASSERT_OK_AND_ASSIGN(const Counters after, Counters::Of(Daemon(0)));
  // Sends and writes go out from here; a read is a request, and an answer from there.
  const uint64_t needed = 2 * bytes / 3 / 1024;
  const uint64_t sent = after.Get("udp_tx_packets") - before.Get("udp_tx_packets");
  std::cout << GetParam().name << ": " << rounds << " rounds, " << bytes / 1e6 << " MB in "
            << absl::FormatDuration(absl::Now() - start) << ", longest round "
            << absl::FormatDuration(longest) << ", " << sent << " packets for " << needed << "\n";
  if (GetParam().loss <= 0.01) {
    EXPECT_LT(sent, 3 * needed);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Networks, SoakTest,
    ::testing::Values(LossCase{"NoLoss", 0, 0, 0}, LossCase{"Loss1Percent", 0.01, 0, 0},
                      LossCase{"Loss1PercentReorderDuplicate", 0.01, 0.01, 0.01},
                      LossCase{"Loss5PercentReorderDuplicate", 0.05, 0.01, 0.01}),
    ::testing::PrintToStringParamName());

class OutageTest : public VethTest {};

TEST_F(OutageTest, AShortOutageIsSurvived) {
  if (!Start({.wire = true})) return;
  ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(0), client(1), TwoHosts::Ipv6(1)));
  hosts().wire()->SetFaults({.loss = 1});
  ASSERT_OK(connection.active.SendCopy("through the outage"));
  absl::SleepFor(absl::Milliseconds(500));
  hosts().wire()->SetFaults({});
  ASSERT_OK_AND_ASSIGN(Buffer received, connection.passive.Receive(Slow(absl::Seconds(5))));
  EXPECT_EQ(received.text(), "through the outage");
}

// The QP's own ACK timeout and retry count tell how long a silent peer is waited for.
TEST_F(OutageTest, WithoutANetworkTheRetriesRunOutNearTheConfiguredTime) {
  if (!Start({.wire = true})) return;
  QpPairOptions options;
  options.active_param.retry_count = 3;
  options.passive_param.retry_count = 3;
  ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), TwoHosts::Ipv4(1), options));
  ASSERT_OK_AND_ASSIGN(const QpAttr now, pair.active.id->qp().Query());
  const absl::Duration timeout = absl::Nanoseconds(4096) * (int64_t{1} << now.timeout);
  hosts().wire()->SetFaults({.loss = 1});
  const absl::Time start = absl::Now();
  ASSERT_OK(pair.active.id->qp().PostSend(1, nullptr, 0, nullptr, kSendSignaled));

  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.active_cq, absl::Seconds(30)));

  const absl::Duration took = absl::Now() - start;
  EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
  EXPECT_GE(took, 3 * timeout);
  EXPECT_LT(took, Slow(4 * (3 + 1) * timeout));  // IBTA allows up to four times the timeout
  std::cout << "timeout " << absl::FormatDuration(timeout) << ", gave up after "
            << absl::FormatDuration(took) << "\n";
}

TEST_F(OutageTest, NetemLosesAndReordersAsTheWireDoes) {
  if (!Start({.mtu_bytes = 1500})) return;
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = Netem(hosts().host(i), TwoHosts::kInterface,
                                      "delay 200us 100us loss 1% duplicate 1% reorder 5%");
    if (absl::IsUnimplemented(status)) GTEST_SKIP() << status.message();
    ASSERT_OK(status);
  }
  ExpectAllArrives(TwoHosts::Ipv4(1), {1, 1025, 1 << 20});
  ExpectAllArrives(TwoHosts::Ipv6(1), {1, 1025, 1 << 20});
}

}  // namespace
}  // namespace rdmad::testing
