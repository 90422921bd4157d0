// Case 13: it does not stop working after a thousand connections. 5,000 connections, 20 at a time,
// each with a message to and fro; nothing grows, nothing slows down, no number comes back early.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/testbed.h"
#include "tests/support/raw_client.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr int kParallel = 20;
const int kCycles = Fewer(5000) / kParallel * kParallel;
constexpr uint64_t kAllowedGrowthBytes = 4 << 20;  // of allocators, not per connection
// Against the thousands of connections, what libraries may hold more or less of at a given moment.
constexpr int kRuntimeSlack = 8;
constexpr absl::Duration kTimewait = absl::Seconds(1);  // at least; see CmOptions::timewait_ns

// Serves every connection of a listener: one message back, then until the peer closes.
class EchoServer {
 public:
  explicit EchoServer(Listener listener) : listener_(std::move(listener)) {
    threads_.emplace_back([this] { Accept(); });
    for (int i = 0; i < kParallel; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~EchoServer() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  uint16_t port() const { return listener_.local_addr().port; }

 private:
  void Accept() {
    while (!stop_) {
      absl::StatusOr<Endpoint> endpoint = listener_.Accept(absl::Milliseconds(100));
      if (absl::IsDeadlineExceeded(endpoint.status())) continue;
      ASSERT_OK(endpoint);
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(endpoint).value());
      changed_.notify_one();
    }
  }

  void Work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      Endpoint endpoint = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      absl::StatusOr<Buffer> request = endpoint.Receive(Slow(absl::Seconds(10)));
      EXPECT_OK(request);
      if (!request.ok()) continue;
      EXPECT_OK(endpoint.SendCopy(request->text()));
      const absl::StatusOr<Buffer> end = endpoint.Receive(Slow(absl::Seconds(10)));
      EXPECT_TRUE(IsClosed(end.status())) << end.status();
    }
  }

  Listener listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Endpoint> waiting_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// The QP numbers that were given back within the last kTimewait.
class QpnLog {
 public:
  void Used(uint32_t qpn) {
    const std::lock_guard lock(mutex_);
    while (!freed_.empty() && freed_.front().at < absl::Now() - kTimewait) freed_.pop_front();
    for (const Freed& freed : freed_) EXPECT_NE(freed.qpn, qpn) << "is back too early";
  }
  void GivenBack(uint32_t qpn) {
    const std::lock_guard lock(mutex_);
    freed_.push_back({qpn, absl::Now()});
  }

 private:
  struct Freed {
    uint32_t qpn;
    absl::Time at;
  };
  std::mutex mutex_;
  std::deque<Freed> freed_;
};

// Without the size of the ring arenas: it depends on where among them the listener's few queues
// came to lie.
std::string WithoutArenas(std::string counts) {
  const size_t at = counts.find("arena_bytes: ");
  if (at != std::string::npos) counts.erase(at, counts.find(' ', at + 13) - at);
  return counts;
}

class ChurnTest : public LoopbackTest {
 protected:
  // `cycles` in all, on kParallel threads.
  void Run(const Client& client, const std::string& peer, int cycles) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kParallel; ++i) {
      threads.emplace_back([&, i] {
        for (int cycle = i; cycle < cycles && !HasFailure(); cycle += kParallel) {
          Cycle(client, peer);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void Cycle(const Client& client, const std::string& peer) {
    ASSERT_OK_AND_ASSIGN(Endpoint endpoint, Endpoint::Connect(client, peer));
    const uint32_t qpn = endpoint.qp().qpn();
    qpns_.Used(qpn);
    ASSERT_OK(endpoint.SendCopy("one message"));
    ASSERT_OK_AND_ASSIGN(Buffer answer, endpoint.Receive(Slow(absl::Seconds(10))));
    EXPECT_EQ(answer.text(), "one message");
    answer.Release();
    EXPECT_OK(endpoint.Close());
    qpns_.GivenBack(qpn);
  }

  // Runs everything between the application on daemon 0 and the one on daemon `server_index`.
  void Churn(int server_index);

  QpnLog qpns_;
};

void ChurnTest::Churn(int server_index) {
  const int daemon_count = server_index + 1;
  for (int i = 0; i < daemon_count; ++i) ASSERT_OK(StartDaemon(i, {.log_level = "warn"}));
  ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(0), "client"));
  ASSERT_OK_AND_ASSIGN(Client server_client, AttachTo(Daemon(server_index), "server"));
  std::vector<RawClient> observers;
  for (int i = 0; i < daemon_count; ++i) {
    ASSERT_OK_AND_ASSIGN(RawClient observer, RawClient::Attach(Daemon(i).run_dir()));
    observers.push_back(std::move(observer));
  }
  ASSERT_OK_AND_ASSIGN(Listener listener,
                       Listener::Listen(server_client, WithPort(Ipv4(server_index), 0)));
  EchoServer server(std::move(listener));
  const std::string peer = WithPort(Ipv4(server_index), server.port());

  // What is made once is made now: allocators, caches, what the kernel keeps.
  const int warm_up = kCycles / 10;
  Run(client, peer, warm_up);
  // Teardown goes on after the last call: settled is what holds nothing of a connection, and the
  // same for a while.
  const auto settled = [&] {
    std::string before;
    int same = 0;
    return Eventually(absl::Seconds(10), [&] {
      std::string now;
      for (const RawClient& observer : observers) now += CountObjects(observer).value_or("qps: ");
      const bool busy =
          now.find("qps: ") != std::string::npos || now.find("pools: ") != std::string::npos;
      same = !busy && now == before ? same + 1 : 0;
      before = now;
      absl::SleepFor(absl::Milliseconds(50));
      return same >= 5;
    });
  };
  ASSERT_TRUE(settled());
  std::vector<std::string> counts;
  std::vector<ProcessUse> uses;
  for (int i = 0; i < daemon_count; ++i) {
    ASSERT_OK_AND_ASSIGN(const std::string text, CountObjects(observers[i]));
    counts.push_back(text);
    ASSERT_OK_AND_ASSIGN(const ProcessUse use, Daemon(i).Use());
    uses.push_back(use);
  }
  ASSERT_OK_AND_ASSIGN(const ProcessUse own_use, ProcessUse::Of(::getpid()));

  const int tenth = kCycles / 10;
  std::vector<absl::Duration> times;
  for (int i = 0; i < 9; ++i) {
    const absl::Time start = absl::Now();
    Run(client, peer, tenth);
    times.push_back(absl::Now() - start);
    ASSERT_FALSE(HasFailure());
  }

  ASSERT_TRUE(settled());
  for (int i = 0; i < daemon_count; ++i) {
    EXPECT_TRUE(Eventually(absl::Seconds(5),
                           [&] {
                             return WithoutArenas(CountObjects(observers[i]).value_or("")) ==
                                    WithoutArenas(counts[i]);
                           }))
        << "before: " << counts[i] << "\nafter:  " << CountObjects(observers[i]).value_or("");
    ASSERT_OK_AND_ASSIGN(const ProcessUse use, Daemon(i).Use());
    // No growth: gRPC keeps a thread or two, each with a descriptor, that come and go.
    EXPECT_LE(use.descriptors, uses[i].descriptors + kRuntimeSlack);
    EXPECT_LE(use.threads, uses[i].threads + kRuntimeSlack);
    if (kMemoryGoesBack) {
      EXPECT_LT(use.rss_bytes, uses[i].rss_bytes + kAllowedGrowthBytes);
    }
    std::cout << "daemon " << i << ": RSS " << uses[i].rss_bytes / 1024 << " KiB, then "
              << use.rss_bytes / 1024 << " KiB\n";
  }
  ASSERT_OK_AND_ASSIGN(const ProcessUse own_use_after, ProcessUse::Of(::getpid()));
  EXPECT_LE(own_use_after.descriptors, own_use.descriptors + kRuntimeSlack);
  if (kMemoryGoesBack) {
    EXPECT_LT(own_use_after.rss_bytes, own_use.rss_bytes + 2 * kAllowedGrowthBytes);
  }
  std::cout << "applications: RSS " << own_use.rss_bytes / 1024 << " KiB, then "
            << own_use_after.rss_bytes / 1024 << " KiB\n"
            << tenth << " connections: first " << absl::FormatDuration(times.front()) << ", last "
            << absl::FormatDuration(times.back()) << "\n";
  // On a busy machine each measurement may be slow once.
  const absl::Duration last = std::min({times[6], times[7], times[8]});
  const absl::Duration first = std::max({times[0], times[1], times[2]});
  EXPECT_LT(last, 2 * first);
}

TEST_F(ChurnTest, ThousandsOfConnectionsBetweenTwoDaemonsLeaveNothingBehind) {
  Churn(1);
}

TEST_F(ChurnTest, ThousandsOfConnectionsWithinOneDaemonLeaveNothingBehind) {
  Churn(0);
}

}  // namespace
}  // namespace rdmad::testing
