// Promise 3: kill -9 of an application leaks nothing, its peer hears of it within 2 s, and the next
// connection is accepted at once.
//
// One end is this process, the other is traffic_app, which is killed at a random moment. Both run
// traffic, so the moment falls anywhere: into attaching, connecting, a write, a read.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/application.h"
#include "tests/integration/testbed.h"
#include "tests/integration/traffic.h"
#include "tests/integration/wired.h"
#include "tests/support/raw_client.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

// With either end as the victim, and each of the paths.
const int kRounds = Fewer(40);
constexpr int kMaxDelayMs = 60;
constexpr absl::Duration kHearsWithin = absl::Seconds(2);
constexpr uint64_t kSeed = 20261130;

// One end is an application of daemon 0; the other is of the same daemon, or of daemon 1.
class KillTest : public LoopbackTest, public ::testing::WithParamInterface<Path> {
 protected:
  void SetUp() override {
    for (int i = 0; i <= VictimsDaemon(); ++i) {
      ASSERT_OK(StartDaemon(i, {.log_level = "info"}));
      ASSERT_OK_AND_ASSIGN(RawClient observer, RawClient::Attach(Daemon(i).run_dir(), "observer"));
      observers_.push_back(std::make_unique<RawClient>(std::move(observer)));
    }
    ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(0), "survivor"));
    client_ = std::make_unique<Client>(client);
  }

  static int VictimsDaemon() { return GetParam().two_daemons ? 1 : 0; }
  std::string Counts() {
    std::string counts;
    for (const auto& observer : observers_) {
      const absl::StatusOr<std::string> text = CountObjects(*observer);
      counts += text.ok() ? *text : text.status().ToString();
      counts += "\n";
    }
    return counts;
  }

  absl::Duration RandomDelay() { return absl::Microseconds(random_() % (kMaxDelayMs * 1000)); }

  // Runs traffic over `endpoint` until it fails, and says when that was.
  struct Ended {
    absl::Status status;
    absl::Time at;
  };
  Ended RunUntilItFails(Endpoint endpoint) {
    const std::atomic<bool> stop{false};
    absl::Status status = RunTraffic(*client_, endpoint, {.seed = random_()}, stop, &counts_);
    return {std::move(status), absl::Now()};
  }

  std::vector<std::unique_ptr<RawClient>> observers_;
  std::unique_ptr<Client> client_;
  std::mt19937_64 random_{kSeed};
  TrafficCounts counts_;
};

INSTANTIATE_TEST_SUITE_P(Paths, KillTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

TEST_P(KillTest, TheServerHearsOfAKilledClientAndServesTheNextAtOnce) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(*client_, WithPort(Ipv4(0), 0)));
  std::optional<std::string> baseline;
  int connected = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    ASSERT_OK_AND_ASSIGN(
        Application victim,
        Application::Connect(Daemon(VictimsDaemon()), Ipv4(0), listener.local_addr().port,
                             static_cast<uint64_t>(round), /*hoards=*/true));
    absl::Time killed_at;
    std::optional<Ended> ended;
    // Every other victim gets as far as traffic; the others die on their way.
    const bool wait_for_traffic = round % 2 == 0;
    std::atomic<bool> accepted{false};
    std::atomic<bool> killed{false};
    std::thread server([&] {
      absl::StatusOr<Endpoint> endpoint = absl::UnavailableError("not tried");
      // A victim that was killed early never comes.
      do {
        endpoint = listener.Accept(Slow(absl::Milliseconds(100)));
      } while (!endpoint.ok() && !killed);
      if (!endpoint.ok()) return;
      accepted = true;
      ended = RunUntilItFails(std::move(endpoint).value());
    });
    if (wait_for_traffic) {
      // The first one gets to send something, however slow it is.
      EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
        return accepted && (round != 0 || counts_.received.load() > 0);
      })) << victim.Output();
    }
    absl::SleepFor(RandomDelay());
    victim.Kill();
    killed_at = absl::Now();
    killed = true;
    server.join();
    EXPECT_EQ(victim.Output().find("traffic_app: "), std::string::npos) << victim.Output();
    if (ended) {
      ++connected;
      EXPECT_FALSE(absl::IsDataLoss(ended->status)) << ended->status;
      EXPECT_LT(ended->at - killed_at, Slow(kHearsWithin)) << ended->status;
    } else {
      EXPECT_FALSE(wait_for_traffic);
    }
    if (!baseline && ended) {
      // What is made once on first use exists now. Let the last of it settle.
      Eventually(kHearsWithin, [&] { return Counts().find("qps: ") == std::string::npos; });
      baseline = Counts();
    }
    if (baseline) {
      EXPECT_TRUE(Eventually(kHearsWithin, [&] { return Counts() == *baseline; }))
          << "before:\n"
          << *baseline << "after:\n"
          << Counts();
    }
  }
  EXPECT_GE(connected, kRounds / 2);
  EXPECT_GT(counts_.received.load(), 0u);
}

TEST_P(KillTest, TheClientHearsOfAKilledServerAndConnectsToTheNextAtOnce) {
  const std::string address = Ipv4(VictimsDaemon());
  std::optional<std::string> baseline;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    ASSERT_OK_AND_ASSIGN(Application victim, Application::Listen(Daemon(VictimsDaemon()), address,
                                                                 static_cast<uint64_t>(round)));
    const absl::Time start = absl::Now();
    absl::StatusOr<Endpoint> endpoint =
        Endpoint::Connect(*client_, WithPort(address, victim.port()));
    ASSERT_OK(endpoint);
    EXPECT_LT(absl::Now() - start, Slow(absl::Seconds(1)));
    std::optional<Ended> ended;
    std::thread traffic([&] { ended = RunUntilItFails(std::move(endpoint).value()); });
    absl::SleepFor(RandomDelay());
    victim.Kill();
    const absl::Time killed_at = absl::Now();
    traffic.join();
    EXPECT_FALSE(absl::IsDataLoss(ended->status)) << ended->status;
    EXPECT_LT(ended->at - killed_at, Slow(kHearsWithin)) << ended->status;
    if (!baseline) {
      Eventually(kHearsWithin, [&] { return Counts().find("qps: ") == std::string::npos; });
      baseline = Counts();
    }
    EXPECT_TRUE(Eventually(kHearsWithin, [&] { return Counts() == *baseline; }))
        << "before:\n"
        << *baseline << "after:\n"
        << Counts();
  }
}

}  // namespace
}  // namespace rdmad::testing
