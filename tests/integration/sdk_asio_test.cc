// The Boost.Asio style of the SDK: many connections in one loop, every completion token, executors,
// and the ends of waits, connections and daemons.
#include <gtest/gtest.h>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rdmad/asio.h"
#include "tests/integration/testbed.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

using boost::asio::awaitable;
using boost::asio::co_spawn;
using boost::asio::detached;
using boost::asio::use_awaitable;

class SdkAsioTest : public LoopbackTest {
 protected:
  void SetUp() override {
    ASSERT_OK(StartDaemon(0, {.log_level = "info"}));
    ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(0), "app"));
    client_.emplace(client);
    ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(*client_, 4 << 20));
    pool_.emplace(pool);
    ASSERT_OK_AND_ASSIGN(Listener listener,
                         Listener::Listen(*client_, WithPort(Ipv4(0), 0), Small()));
    address_ = listener.local_addr();
    listener_.emplace(loop_.get_executor(), std::move(listener));
  }

  // Queues that fill up soon.
  static EndpointOptions Small() {
    EndpointOptions options;
    options.recv_depth = 4;
    options.send_depth = 4;
    options.max_recv_bytes = 4096;
    return options;
  }

  // Runs the loop until `done`. False if that takes too long.
  template <typename Condition>
  bool RunUntil(const Condition& done) {
    const absl::Time deadline = absl::Now() + Slow(absl::Seconds(30));
    // Not run_one: what is awaited may happen on another executor.
    while (!done()) {
      if (absl::Now() > deadline) return false;
      loop_.run_one_for(std::chrono::milliseconds(10));
    }
    return true;
  }
  template <typename Result>
  bool RunUntilReady(const std::future<Result>& future) {
    return RunUntil(
        [&] { return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  }

  // Two ends, by plain callbacks.
  struct Pair {
    std::optional<AsioEndpoint> active;
    std::optional<AsioEndpoint> passive;
  };
  void ConnectPair(Pair* pair) {
    listener_->async_accept([pair](absl::StatusOr<AsioEndpoint> endpoint) {
      ASSERT_OK(endpoint);
      pair->passive.emplace(std::move(endpoint).value());
    });
    async_connect(loop_.get_executor(), *client_, address_, Small(),
                  [pair](absl::StatusOr<AsioEndpoint> endpoint) {
                    ASSERT_OK(endpoint);
                    pair->active.emplace(std::move(endpoint).value());
                  });
    ASSERT_TRUE(RunUntil([&] { return pair->active.has_value() && pair->passive.has_value(); }));
  }

  // Echoes until the peer closes.
  awaitable<void> Echo(AsioEndpoint endpoint) {
    while (true) {
      absl::StatusOr<Buffer> message = co_await endpoint.async_receive(use_awaitable);
      if (!message.ok()) {
        EXPECT_TRUE(IsClosed(message.status())) << message.status();
        ++echoes_ended_;
        co_return;
      }
      EXPECT_OK(co_await endpoint.async_send(std::move(message).value(), use_awaitable));
    }
  }
  awaitable<void> Serve() {
    while (true) {
      absl::StatusOr<AsioEndpoint> endpoint = co_await listener_->async_accept(use_awaitable);
      if (!endpoint.ok()) co_return;
      co_spawn(loop_, Echo(std::move(endpoint).value()), detached);
    }
  }
  awaitable<void> Talk(int number, int count) {
    absl::StatusOr<AsioEndpoint> endpoint =
        co_await async_connect(loop_.get_executor(), *client_, address_, Small(), use_awaitable);
    EXPECT_OK(endpoint);
    for (int i = 0; endpoint.ok() && i < count; ++i) {
      const std::string text = absl::StrCat(number, "/", i, std::string(200, '.'));
      absl::StatusOr<Buffer> message = pool_->AllocateCopy(text);
      EXPECT_OK(message);
      if (!message.ok()) break;
      EXPECT_OK(co_await endpoint->async_send(std::move(message).value(), use_awaitable));
      absl::StatusOr<Buffer> answer = co_await endpoint->async_receive(use_awaitable);
      EXPECT_OK(answer);
      if (!answer.ok()) break;
      EXPECT_EQ(answer->text(), text);
      ++answers_;
    }
    ++talks_ended_;
  }

  boost::asio::io_context loop_;
  // Between two tasks the loop goes on.
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_ =
      boost::asio::make_work_guard(loop_);
  std::optional<Client> client_;
  std::optional<Pool> pool_;
  Address address_;
  std::optional<AsioListener> listener_;
  int answers_ = 0;
  int talks_ended_ = 0;
  int echoes_ended_ = 0;
};

TEST_F(SdkAsioTest, OneLoopServesManyConversations) {
  const int talks = Fewer(40);
  co_spawn(loop_, Serve(), detached);
  for (int i = 0; i < talks; ++i) co_spawn(loop_, Talk(i, 25), detached);
  // The end of each talk closes its connection, of which the other end hears.
  EXPECT_TRUE(RunUntil([&] { return talks_ended_ == talks && echoes_ended_ == talks; }))
      << "talks ended: " << talks_ended_ << " echoes ended: " << echoes_ended_ << " of " << talks;
  EXPECT_EQ(answers_, talks * 25);
}

// The reason why one connection ended may be found while that of another is looked for.
TEST_F(SdkAsioTest, ConnectionsThatEndTogetherDoNotHoldUpTheLoop) {
  Pair pairs[8];
  int ended = 0;
  for (Pair& pair : pairs) {
    ConnectPair(&pair);
    pair.passive->async_receive([&](absl::StatusOr<Buffer> buffer) {
      EXPECT_TRUE(IsClosed(buffer.status())) << buffer.status();
      ++ended;
    });
  }
  for (Pair& pair : pairs) pair.active->Close();
  const absl::Time start = absl::Now();
  EXPECT_TRUE(RunUntil([&] { return ended == 8; }));
  EXPECT_LT(absl::Now() - start, Slow(absl::Milliseconds(400)));
}

TEST_F(SdkAsioTest, FuturesWorkAsWell) {
  std::future<absl::StatusOr<AsioEndpoint>> accepted =
      listener_->async_accept(boost::asio::use_future);
  std::future<absl::StatusOr<AsioEndpoint>> connected =
      async_connect(loop_.get_executor(), *client_, address_, Small(), boost::asio::use_future);
  ASSERT_TRUE(RunUntilReady(accepted) && RunUntilReady(connected));
  ASSERT_OK_AND_ASSIGN(AsioEndpoint passive, accepted.get());
  ASSERT_OK_AND_ASSIGN(AsioEndpoint active, connected.get());
  std::future<absl::StatusOr<Buffer>> message = passive.async_receive(boost::asio::use_future);
  ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->AllocateCopy("by future"));
  std::future<absl::Status> sent = active.async_send(std::move(buffer), boost::asio::use_future);
  std::future<absl::Status> flushed = active.async_flush(boost::asio::use_future);
  ASSERT_TRUE(RunUntilReady(sent) && RunUntilReady(flushed) && RunUntilReady(message));
  EXPECT_OK(sent.get());
  EXPECT_OK(flushed.get());
  ASSERT_OK_AND_ASSIGN(buffer, message.get());
  EXPECT_EQ(buffer.text(), "by future");
}

TEST_F(SdkAsioTest, ReceivesThatWaitAreServedInOrder) {
  Pair pair;
  ConnectPair(&pair);
  std::string order;
  for (int i = 0; i < 3; ++i) {
    pair.passive->async_receive([&order, i](absl::StatusOr<Buffer> buffer) {
      ASSERT_OK(buffer);
      absl::StrAppend(&order, i, std::string(buffer->text()), " ");
    });
  }
  for (const char* text : {"a", "b", "c"}) {
    ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->AllocateCopy(text));
    pair.active->async_send(std::move(buffer), [](absl::Status status) { EXPECT_OK(status); });
  }
  EXPECT_TRUE(RunUntil([&] { return order.size() == 9; }));
  EXPECT_EQ(order, "0a 1b 2c ");
}

TEST_F(SdkAsioTest, SendsBeyondTheQueueWaitForRoom) {
  Pair pair;
  ConnectPair(&pair);
  constexpr int kCount = 50;  // the queues hold 4
  int sent = 0;
  for (int i = 0; i < kCount; ++i) {
    ASSERT_OK_AND_ASSIGN(Buffer buffer,
                         pool_->AllocateCopy(std::string(1000, static_cast<char>('0' + i))));
    pair.active->async_send(std::move(buffer), [&](absl::Status status) {
      EXPECT_OK(status);
      ++sent;
    });
  }
  int received = 0;
  for (int i = 0; i < kCount; ++i) {
    pair.passive->async_receive([&, i](absl::StatusOr<Buffer> buffer) {
      ASSERT_OK(buffer);
      EXPECT_EQ(buffer->text(), std::string(1000, static_cast<char>('0' + i)));
      ++received;
    });
  }
  EXPECT_TRUE(RunUntil([&] { return sent == kCount && received == kCount; }));
}

TEST_F(SdkAsioTest, OneSidedOperationsComplete) {
  Pair pair;
  ConnectPair(&pair);
  ASSERT_OK_AND_ASSIGN(const Buffer target, pool_->Allocate(4096));
  ASSERT_OK_AND_ASSIGN(
      const MemoryRegion region,
      pair.passive->endpoint().Share(target, kAccessRemoteRead | kAccessRemoteWrite));
  const RemoteBuffer remote = Endpoint::Describe(region);
  std::vector<Buffer> pieces;
  int written = 0;
  // More than the queue holds.
  for (uint64_t i = 0; i < 16; ++i) {
    ASSERT_OK_AND_ASSIGN(Buffer piece,
                         pool_->AllocateCopy(std::string(256, static_cast<char>('a' + i))));
    pieces.push_back(std::move(piece));
  }
  for (uint64_t i = 0; i < pieces.size(); ++i) {
    pair.active->async_write(pieces[i], remote, i * 256, [&](absl::Status status) {
      EXPECT_OK(status);
      ++written;
    });
  }
  ASSERT_TRUE(RunUntil([&] { return written == 16; }));
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(target.text().substr(i * 256, 256), pieces[i].text());
  ASSERT_OK_AND_ASSIGN(const Buffer copy, pool_->Allocate(4096));
  bool read = false;
  pair.active->async_read(copy, remote, 0, [&](absl::Status status) {
    EXPECT_OK(status);
    read = true;
  });
  ASSERT_TRUE(RunUntil([&] { return read; }));
  EXPECT_EQ(copy.text(), target.text());
}

TEST_F(SdkAsioTest, AFailedOperationSaysWhyAndSoDoThoseThatFollow) {
  Pair pair;
  ConnectPair(&pair);
  ASSERT_OK_AND_ASSIGN(const Buffer local, pool_->Allocate(64));
  RemoteBuffer nowhere;
  nowhere.length_bytes = 64;
  nowhere.rkey = 0xdead;
  absl::Status write;
  absl::Status receive;
  pair.active->async_write(local, nowhere, 0, [&](absl::Status status) { write = status; });
  pair.active->async_receive([&](absl::StatusOr<Buffer> buffer) { receive = buffer.status(); });
  ASSERT_TRUE(RunUntil([&] { return !write.ok() && !receive.ok(); }));
  EXPECT_TRUE(absl::IsPermissionDenied(write)) << write;
  EXPECT_EQ(receive, write);
}

TEST_F(SdkAsioTest, HandlersRunOnTheirOwnExecutorAndNeverBeforeTheCallReturns) {
  boost::asio::io_context other;
  Pair pair;
  ConnectPair(&pair);
  EXPECT_EQ(pair.active->get_executor(), boost::asio::any_io_executor(loop_.get_executor()));
  bool sent = false;
  ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->AllocateCopy("x"));
  pair.active->async_send(
      std::move(buffer), boost::asio::bind_executor(other.get_executor(), [&](absl::Status status) {
        EXPECT_OK(status);
        EXPECT_TRUE(other.get_executor().running_in_this_thread());
        sent = true;
      }));
  EXPECT_FALSE(sent);
  // The message travels by the endpoint's loop; the handler waits for its own.
  bool received = false;
  pair.passive->async_receive([&](absl::StatusOr<Buffer> message) {
    EXPECT_OK(message);
    received = true;
  });
  EXPECT_FALSE(received);
  ASSERT_TRUE(RunUntil([&] { return received; }));
  EXPECT_FALSE(sent);
  other.run_for(std::chrono::seconds(10 * kSlowness));  // ends when the handler has run
  EXPECT_TRUE(sent);
}

TEST_F(SdkAsioTest, AWaitingHandlerKeepsItsExecutorAtWork) {
  boost::asio::io_context other;
  Pair pair;
  ConnectPair(&pair);
  bool received = false;
  pair.passive->async_receive(boost::asio::bind_executor(
      other.get_executor(), [&](const absl::StatusOr<Buffer>&) { received = true; }));
  EXPECT_EQ(other.poll(), 0u);
  EXPECT_FALSE(other.stopped());
  pair.active.reset();
  ASSERT_TRUE(RunUntil([&] { return other.poll() != 0; }));
  EXPECT_TRUE(received);
  EXPECT_TRUE(other.stopped());
}

TEST_F(SdkAsioTest, ConnectingToNobodyFailsWithTheReason) {
  Address nobody = address_;
  nobody.port = 1;
  std::optional<absl::Status> status;
  async_connect(loop_.get_executor(), *client_, nobody, Small(),
                [&](absl::StatusOr<AsioEndpoint> endpoint) { status = endpoint.status(); });
  ASSERT_TRUE(RunUntil([&] { return status.has_value(); }));
  EXPECT_TRUE(absl::IsAborted(*status)) << *status;
}

TEST_F(SdkAsioTest, ConnectingGivesUpInTime) {
  // Accepted by nobody, so that the request goes unanswered: the listener's loop does not run for
  // it.
  EndpointOptions options = Small();
  options.connect_timeout = absl::Milliseconds(200);
  std::optional<absl::Status> status;
  async_connect(loop_.get_executor(), *client_, address_, options,
                [&](absl::StatusOr<AsioEndpoint> endpoint) { status = endpoint.status(); });
  ASSERT_TRUE(RunUntil([&] { return status.has_value(); }));
  EXPECT_TRUE(absl::IsDeadlineExceeded(*status)) << *status;
}

TEST_F(SdkAsioTest, ClosingCancelsHereAndEndsTheStreamThere) {
  Pair pair;
  ConnectPair(&pair);
  std::optional<absl::Status> here;
  std::optional<absl::Status> there;
  pair.active->async_receive([&](absl::StatusOr<Buffer> buffer) { here = buffer.status(); });
  pair.passive->async_receive([&](absl::StatusOr<Buffer> buffer) { there = buffer.status(); });
  pair.active->Close();
  ASSERT_TRUE(RunUntil([&] { return here.has_value() && there.has_value(); }));
  EXPECT_TRUE(absl::IsCancelled(*here)) << *here;
  EXPECT_TRUE(IsClosed(*there)) << *there;
}

TEST_F(SdkAsioTest, ClosingTheListenerCancelsAccepts) {
  std::optional<absl::Status> accept;
  listener_->async_accept(
      [&](absl::StatusOr<AsioEndpoint> endpoint) { accept = endpoint.status(); });
  listener_->Close();
  ASSERT_TRUE(RunUntil([&] { return accept.has_value(); }));
  EXPECT_TRUE(absl::IsCancelled(*accept)) << *accept;
}

TEST_F(SdkAsioTest, AnEndpointMayGoWhileItsOperationsWait) {
  std::optional<absl::Status> status;
  {
    Pair pair;
    ConnectPair(&pair);
    pair.active->async_receive([&](absl::StatusOr<Buffer> buffer) { status = buffer.status(); });
  }
  ASSERT_TRUE(RunUntil([&] { return status.has_value(); }));
  EXPECT_TRUE(absl::IsCancelled(*status)) << *status;
}

TEST_F(SdkAsioTest, DeathOfTheDaemonEndsEveryWait) {
  Pair pair;
  ConnectPair(&pair);
  std::vector<absl::Status> ended;
  for (AsioEndpoint* endpoint : {&*pair.active, &*pair.passive}) {
    endpoint->async_receive(
        [&](absl::StatusOr<Buffer> buffer) { ended.push_back(buffer.status()); });
  }
  Daemon(0).Kill();
  ASSERT_TRUE(RunUntil([&] { return ended.size() == 2; }));
  for (const absl::Status& status : ended) EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  // And what is started afterwards.
  std::optional<absl::Status> flush;
  pair.active->async_receive([&](absl::StatusOr<Buffer> buffer) { flush = buffer.status(); });
  ASSERT_TRUE(RunUntil([&] { return flush.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*flush)) << *flush;
}

TEST_F(SdkAsioTest, AcceptOutlivesTheDaemon) {
  std::optional<AsioEndpoint> passive;
  listener_->async_accept([&](absl::StatusOr<AsioEndpoint> endpoint) {
    ASSERT_OK(endpoint);
    passive.emplace(std::move(endpoint).value());
  });
  loop_.poll();
  Daemon(0).Kill();
  ASSERT_OK(Daemon(0).Start());
  // The listener has heard of it and listens again, before anybody may connect.
  loop_.run_one();
  std::optional<AsioEndpoint> active;
  async_connect(loop_.get_executor(), *client_, address_, Small(),
                [&](absl::StatusOr<AsioEndpoint> endpoint) {
                  ASSERT_OK(endpoint);
                  active.emplace(std::move(endpoint).value());
                });
  EXPECT_TRUE(RunUntil([&] { return active.has_value() && passive.has_value(); }));
}

}  // namespace
}  // namespace rdmad::testing
