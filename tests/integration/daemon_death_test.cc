// Case 40: the daemon is killed under traffic. Applications hear of it within 2 s, everything
// outstanding is flushed, no call hangs, and when the daemon is back they go on without being
// restarted.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/testbed.h"
#include "tests/integration/traffic.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr absl::Duration kHearsWithin = absl::Seconds(2);

class DaemonDeathTest : public LoopbackTest {
 protected:
  void SetUp() override {
    ASSERT_OK(StartDaemon(0, {.log_level = "info"}));
    ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(0), "app"));
    client_ = std::make_unique<Client>(client);
  }
  Client& client() { return *client_; }

 private:
  std::unique_ptr<Client> client_;
};

TEST_F(DaemonDeathTest, TrafficOnBothSidesEndsWithinTwoSeconds) {
  ASSERT_OK(StartDaemon(1, {.log_level = "info"}));
  ASSERT_OK_AND_ASSIGN(Client remote_client, AttachTo(Daemon(1), "remote"));
  ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(), remote_client, Ipv4(1)));
  TrafficThread local(client(), connection.active, {.seed = 1});
  TrafficThread remote(remote_client, connection.passive, {.seed = 2});
  ASSERT_TRUE(Eventually(absl::Seconds(10), [&] { return local.counts().received > 100; }));

  Daemon(0).Kill();
  const absl::Time killed = absl::Now();

  const absl::Status status = local.Join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(local.ended_at() - killed, Slow(kHearsWithin));
  EXPECT_FALSE(client().IsAttached());
  // The other daemon lives, but nobody is left who could tell it: there it ends by retries.
  const absl::Status remote_status = remote.Join();
  EXPECT_FALSE(remote_status.ok());
  EXPECT_FALSE(absl::IsDataLoss(remote_status)) << remote_status;
}

TEST_F(DaemonDeathTest, EveryOutstandingWorkRequestIsFlushedOnce) {
  ASSERT_OK_AND_ASSIGN(CompletionQueue cq, CompletionQueue::Create(client(), 0, 64));
  ASSERT_OK_AND_ASSIGN(ProtectionDomain pd, ProtectionDomain::Alloc(client(), 0));
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(), 1 << 16));
  ASSERT_OK_AND_ASSIGN(Buffer buffer, pool.Allocate(4096));
  ASSERT_OK_AND_ASSIGN(MemoryRegion region, pd.RegMsgs(buffer.data(), buffer.size()));
  ASSERT_OK_AND_ASSIGN(auto id, CmId::Create(client()));
  ASSERT_OK_AND_ASSIGN(auto listening, CmId::Create(client()));
  ASSERT_OK_AND_ASSIGN(Address local, Address::Parse(WithPort(Ipv4(0), 0)));
  ASSERT_OK(listening->BindAddr(local));
  ASSERT_OK(id->BindAddr(local));
  QpInit init{.send_cq = cq, .recv_cq = cq, .cap = {.max_send_wr = 8, .max_recv_wr = 20}};
  ASSERT_OK(id->CreateQp(&pd, init));
  for (uint64_t wr_id = 0; wr_id < 20; ++wr_id) {
    ASSERT_OK(id->qp().PostRecv(wr_id, buffer.data(), 64, &region));
  }

  Daemon(0).Kill();

  std::multiset<uint64_t> flushed;
  EXPECT_TRUE(Eventually(kHearsWithin, [&] {
    Wc wcs[8];
    const size_t count = cq.Poll(wcs);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(wcs[i].status, WcStatus::kWrFlushErr);
      flushed.insert(wcs[i].wr_id);
    }
    return flushed.size() >= 20;
  }));
  Wc more[8];
  EXPECT_EQ(cq.Poll(more), 0u);
  for (uint64_t wr_id = 0; wr_id < 20; ++wr_id) EXPECT_EQ(flushed.count(wr_id), 1u) << wr_id;
}

TEST_F(DaemonDeathTest, TheAsyncDescriptorWakesAndTellsOneFatalEvent) {
  pollfd poll{client().async_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&poll, 1, 0), 0);

  Daemon(0).Kill();

  ASSERT_EQ(::poll(&poll, 1, 2000), 1);
  ASSERT_OK_AND_ASSIGN(const AsyncEvent event, client().GetAsyncEvent(absl::Seconds(2)));
  EXPECT_EQ(event.type, kAsyncDeviceFatal);
  EXPECT_TRUE(absl::IsUnavailable(client().GetAsyncEvent(absl::Seconds(2)).status()));
}

TEST_F(DaemonDeathTest, EveryIdHearsOfTheRemovalOnce) {
  ASSERT_OK_AND_ASSIGN(auto channel, EventChannel::Create(client()));
  ASSERT_OK_AND_ASSIGN(auto one, CmId::Create(client(), channel.get()));
  ASSERT_OK_AND_ASSIGN(auto two, CmId::Create(client(), channel.get()));
  // On another thread somebody waits already.
  std::set<CmId*> told;
  std::thread waiter([&] {
    for (int i = 0; i < 2; ++i) {
      absl::StatusOr<std::unique_ptr<CmEvent>> event = channel->GetEvent(absl::Seconds(5));
      ASSERT_OK(event);
      EXPECT_EQ((*event)->type(), CmEventType::kDeviceRemoval);
      told.insert((*event)->id());
    }
    EXPECT_TRUE(absl::IsUnavailable(channel->GetEvent(absl::Seconds(2)).status()));
  });

  Daemon(0).Kill();

  waiter.join();
  EXPECT_EQ(told, (std::set<CmId*>{one.get(), two.get()}));
  // Neither of these asks a daemon that is not there.
  EXPECT_OK(one->DestroyId());
  EXPECT_OK(two->DestroyId());
}

TEST_F(DaemonDeathTest, NoCallHangsWhileThereIsNoDaemon) {
  AttachOptions options;
  options.run_dir = Daemon(0).run_dir();
  options.deadline = absl::Milliseconds(300);
  ASSERT_OK_AND_ASSIGN(Client impatient, Client::Attach(options));
  Daemon(0).Kill();

  const absl::Time start = absl::Now();
  EXPECT_TRUE(absl::IsUnavailable(Pool::Create(impatient, 4096).status()));
  EXPECT_TRUE(absl::IsUnavailable(CmId::Create(impatient).status()));
  EXPECT_TRUE(absl::IsUnavailable(Client::Attach(options).status()));
  EXPECT_LT(absl::Now() - start, Slow(absl::Seconds(2)));
}

TEST_F(DaemonDeathTest, ApplicationsGoOnWhenTheDaemonIsBack) {
  ASSERT_OK_AND_ASSIGN(Client server, AttachTo(Daemon(0), "server"));
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(server, WithPort(Ipv4(0), 7471)));
  for (int life = 0; life < 3; ++life) {
    SCOPED_TRACE(life);
    std::thread serving([&] {
      absl::StatusOr<Endpoint> endpoint = listener.Accept(Slow(absl::Seconds(20)));
      ASSERT_OK(endpoint);
      ASSERT_OK_AND_ASSIGN(Buffer received, endpoint->Receive(absl::Seconds(10)));
      EXPECT_EQ(received.text(), "hello");
      EXPECT_OK(endpoint->SendCopy("hello yourself"));
      EXPECT_FALSE(endpoint->Receive(absl::Seconds(20)).ok());
    });
    absl::StatusOr<Endpoint> endpoint = absl::UnavailableError("not tried");
    // The listener comes back by itself; how soon is its own affair.
    EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
      endpoint = Endpoint::Connect(client(), WithPort(Ipv4(0), 7471));
      return endpoint.ok();
    })) << endpoint.status();
    if (endpoint.ok()) {
      EXPECT_OK(endpoint->SendCopy("hello"));
      absl::StatusOr<Buffer> answer = endpoint->Receive(absl::Seconds(10));
      EXPECT_OK(answer);
      EXPECT_EQ(answer.ok() ? answer->text() : "", "hello yourself");
    }
    Daemon(0).Kill();
    serving.join();
    ASSERT_OK(Daemon(0).Start());
  }
}

TEST_F(DaemonDeathTest, SigtermEndsInOrderAndTellsEverybody) {
  ASSERT_OK(StartDaemon(1, {.log_level = "info"}));
  ASSERT_OK_AND_ASSIGN(Client remote_client, AttachTo(Daemon(1), "remote"));
  ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client(), remote_client, Ipv4(1)));

  ASSERT_OK(Daemon(0).Terminate());

  EXPECT_FALSE(connection.active.Receive(kHearsWithin).ok());
  // The peer is told over the wire, before any retry runs out.
  const absl::Time start = absl::Now();
  const absl::StatusOr<Buffer> end = connection.passive.Receive(Slow(absl::Seconds(10)));
  EXPECT_TRUE(IsClosed(end.status())) << end.status();
  EXPECT_LT(absl::Now() - start, Slow(kHearsWithin));
}

}  // namespace
}  // namespace rdmad::testing
