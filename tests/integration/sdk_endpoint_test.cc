// Endpoint and Listener, the short way of the SDK, against a real daemon: what their headers
// promise beyond moving bytes (basic_test) and surviving the daemon (daemon_death_test).
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/testbed.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

class SdkEndpointTest : public LoopbackTest {
 protected:
  void SetUp() override {
    ASSERT_OK(StartDaemon(0, {.log_level = "info"}));
    ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(0), "app"));
    client_ = std::make_unique<Client>(client);
    ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(*client_, 4 << 20));
    pool_ = std::make_unique<Pool>(pool);
  }

  Connection Connect(const EndpointOptions& active = {}, const EndpointOptions& passive = {}) {
    absl::StatusOr<Connection> connection =
        ConnectApps(*client_, *client_, Ipv4(0), active, passive);
    EXPECT_OK(connection);
    return std::move(connection).value();
  }
  Buffer Text(const std::string& text) { return *pool_->AllocateCopy(text); }

  std::unique_ptr<Client> client_;
  std::unique_ptr<Pool> pool_;
};

TEST_F(SdkEndpointTest, BothEndsKnowEachOthersAddresses) {
  const Connection connection = Connect();
  EXPECT_EQ(connection.active.peer_addr(), connection.passive.local_addr());
  EXPECT_EQ(connection.active.local_addr(), connection.passive.peer_addr());
}

TEST_F(SdkEndpointTest, PrivateDataReachesTheOtherSide) {
  EndpointOptions active;
  active.param.private_data = {1, 2, 3};
  EndpointOptions passive;
  passive.param.private_data = {4, 5};
  const Connection connection = Connect(active, passive);
  ASSERT_GE(connection.passive.peer_private_data().size(), 3u);
  EXPECT_EQ(connection.passive.peer_private_data()[2], 3);
  ASSERT_GE(connection.active.peer_private_data().size(), 2u);
  EXPECT_EQ(connection.active.peer_private_data()[1], 5);
}

TEST_F(SdkEndpointTest, EmptyMessageArrives) {
  Connection connection = Connect();
  ASSERT_OK(connection.active.Send(Buffer()));
  ASSERT_OK_AND_ASSIGN(const Buffer buffer, connection.passive.Receive());
  EXPECT_EQ(buffer.size(), 0u);
  EXPECT_FALSE(buffer.has_imm());
}

TEST_F(SdkEndpointTest, ReceivedBufferCanBeSentBackAsItIs) {
  Connection connection = Connect();
  ASSERT_OK(connection.active.Send(Text(std::string(5000, 'x'))));
  ASSERT_OK_AND_ASSIGN(Buffer there, connection.passive.Receive());
  ASSERT_OK(connection.passive.Send(std::move(there)));
  ASSERT_OK_AND_ASSIGN(const Buffer back, connection.active.Receive());
  EXPECT_EQ(back.text(), std::string(5000, 'x'));
}

TEST_F(SdkEndpointTest, ReceiveEndsAtItsDeadlineAndTheConnectionLivesOn) {
  Connection connection = Connect();
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(connection.passive.Receive(absl::Milliseconds(20)).status()));
  ASSERT_OK(connection.active.SendCopy("late"));
  ASSERT_OK_AND_ASSIGN(const Buffer buffer, connection.passive.Receive());
  EXPECT_EQ(buffer.text(), "late");
}

TEST_F(SdkEndpointTest, CloseIsHeardAfterEverythingThatWasSent) {
  Connection connection = Connect();
  for (int i = 0; i < 20; ++i) ASSERT_OK(connection.active.Send(Text(std::to_string(i))));
  ASSERT_OK(connection.active.Close());
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK_AND_ASSIGN(const Buffer buffer, connection.passive.Receive());
    EXPECT_EQ(buffer.text(), std::to_string(i));
  }
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(IsClosed(connection.passive.Receive().status()));
  EXPECT_TRUE(IsClosed(connection.passive.SendCopy("too late")));
  EXPECT_TRUE(absl::IsFailedPrecondition(connection.active.SendCopy("closed")));
}

TEST_F(SdkEndpointTest, CloseInOneThreadEndsReceiveInAnother) {
  Connection connection = Connect();
  std::thread receiver([&] { EXPECT_FALSE(connection.active.Receive().ok()); });
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_OK(connection.active.Close());
  receiver.join();
}

TEST_F(SdkEndpointTest, CloseOfAPeerThatTakesNothingEndsAtItsDeadline) {
  EndpointOptions few;
  few.recv_depth = 1;
  Connection connection = Connect({}, few);
  for (int i = 0; i < 8; ++i) ASSERT_OK(connection.active.Send(Text("x")));
  const absl::Time start = absl::Now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(connection.active.Close(absl::Milliseconds(100))));
  EXPECT_LT(absl::Now() - start, Slow(absl::Seconds(3)));
}

TEST_F(SdkEndpointTest, CloseSaysThatThePeerWentWithoutTakingEverything) {
  EndpointOptions few;
  few.recv_depth = 1;
  {
    Connection connection = Connect({}, few);
    for (int i = 0; i < 8; ++i) ASSERT_OK(connection.active.Send(Text("x")));
    EXPECT_OK(connection.passive.Close());
    EXPECT_TRUE(IsClosed(connection.active.Close()));
  }
  // The same if the end was noticed before.
  Connection connection = Connect({}, few);
  for (int i = 0; i < 8; ++i) ASSERT_OK(connection.active.Send(Text("x")));
  EXPECT_OK(connection.passive.Close());
  EXPECT_TRUE(IsClosed(connection.active.Receive().status()));
  EXPECT_TRUE(IsClosed(connection.active.Close()));
}

TEST_F(SdkEndpointTest, CloseAfterThePeerIsFineIfNothingWasLeft) {
  Connection connection = Connect();
  ASSERT_OK(connection.active.SendCopy("taken"));
  ASSERT_OK(connection.passive.Receive().status());
  ASSERT_OK(connection.active.Flush());
  EXPECT_OK(connection.passive.Close());
  EXPECT_TRUE(IsClosed(connection.active.Receive().status()));
  EXPECT_OK(connection.active.Close());
}

TEST_F(SdkEndpointTest, SlowReceiverMakesTheSenderWaitAndLosesNothing) {
  EndpointOptions few;
  few.recv_depth = 2;
  few.send_depth = 2;
  Connection connection = Connect(few, few);
  std::thread sender([&] {
    for (int i = 0; i < 200; ++i) ASSERT_OK(connection.active.Send(Text(std::to_string(i))));
  });
  for (int i = 0; i < 200; ++i) {
    if (i % 20 == 0) absl::SleepFor(absl::Milliseconds(5));
    ASSERT_OK_AND_ASSIGN(const Buffer buffer, connection.passive.Receive());
    EXPECT_EQ(buffer.text(), std::to_string(i));
  }
  sender.join();
}

// A receiver that does not read holds a bounded number of messages.
TEST_F(SdkEndpointTest, UnreadMessagesAreBounded) {
  EndpointOptions few;
  few.recv_depth = 4;
  Connection connection = Connect({}, few);
  int sent = 0;
  while (sent < 100) {
    Buffer buffer = Text("x");
    ASSERT_OK_AND_ASSIGN(const bool queued, connection.active.TrySend(buffer));
    if (!queued) break;
    ++sent;
    // The receiver makes progress with its own sends only.
    ASSERT_OK(connection.passive.SendCopy("y"));
    ASSERT_OK(connection.active.Receive());
    ASSERT_OK(connection.passive.Flush());
  }
  EXPECT_GE(sent, 4);
  EXPECT_LT(sent, 100);
  for (int i = 0; i < sent; ++i) ASSERT_OK(connection.passive.Receive());
}

TEST_F(SdkEndpointTest, ReceiverAndSenderThreadsOfOneEndpointShareItsWaits) {
  EndpointOptions small;
  small.send_depth = 4;
  small.recv_depth = 4;
  Connection connection = Connect(small, small);
  const int kCount = Fewer(5000);
  const auto send = [&](Endpoint& endpoint) {
    for (int i = 0; i < kCount; ++i) ASSERT_OK(endpoint.SendCopy(std::to_string(i)));
    ASSERT_OK(endpoint.Flush());
  };
  const auto receive = [&](Endpoint& endpoint) {
    for (int i = 0; i < kCount; ++i) {
      ASSERT_OK_AND_ASSIGN(const Buffer buffer, endpoint.Receive(Slow(absl::Seconds(20))));
      ASSERT_EQ(buffer.text(), std::to_string(i));
    }
  };
  std::thread threads[] = {std::thread([&] { send(connection.active); }),
                           std::thread([&] { receive(connection.active); }),
                           std::thread([&] { send(connection.passive); }),
                           std::thread([&] { receive(connection.passive); })};
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SdkEndpointTest, PolledEndpointsTalkWithoutADescriptor) {
  EndpointOptions polled;
  polled.wait = WaitStyle::kPolled;
  Connection connection = Connect(polled, polled);
  EXPECT_EQ(connection.active.fd(), -1);
  std::thread echo([&] {
    for (int i = 0; i < Fewer(1000); ++i) {
      absl::StatusOr<Buffer> buffer = connection.passive.Receive();
      ASSERT_OK(buffer);
      ASSERT_OK(connection.passive.Send(*std::move(buffer)));
    }
  });
  for (int i = 0; i < Fewer(1000); ++i) {
    ASSERT_OK(connection.active.SendCopy(std::to_string(i)));
    ASSERT_OK_AND_ASSIGN(const Buffer buffer, connection.active.Receive());
    ASSERT_EQ(buffer.text(), std::to_string(i));
  }
  echo.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(connection.active.Receive(absl::Milliseconds(5)).status()));
}

TEST_F(SdkEndpointTest, TryCallsAndArmDriveAPollLoop) {
  Connection connection = Connect();
  ASSERT_OK_AND_ASSIGN(std::optional<Buffer> nothing, connection.passive.TryReceive());
  EXPECT_FALSE(nothing.has_value());
  ASSERT_TRUE(connection.passive.Arm());
  pollfd poll_fd{connection.passive.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&poll_fd, 1, 0), 0);
  ASSERT_OK(connection.active.SendCopy("wake"));
  ASSERT_EQ(::poll(&poll_fd, 1, 5000), 1);
  ASSERT_OK_AND_ASSIGN(std::optional<Buffer> message, connection.passive.TryReceive());
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->text(), "wake");
  EXPECT_TRUE(connection.passive.Arm());
  EXPECT_EQ(::poll(&poll_fd, 1, 0), 0);  // what woke us is gone
}

// TryDone empties the queue that TryStartWrite found full: nothing is under way any more, so nothing
// would wake a loop that slept now with more to write.
TEST_F(SdkEndpointTest, ArmSaysSoWhenThereIsRoomThatWasNotThereBefore) {
  Connection connection = Connect();
  ASSERT_OK_AND_ASSIGN(const Buffer target, pool_->Allocate(64));
  ASSERT_OK_AND_ASSIGN(const MemoryRegion region,
                       connection.passive.Share(target, kAccessRemoteWrite));
  ASSERT_OK_AND_ASSIGN(const Buffer piece, pool_->Allocate(64));
  ASSERT_TRUE(connection.active.Arm(false, true));
  std::optional<uint64_t> last;
  for (int i = 0; i < 1000; ++i) {  // or fewer, if it is full before
    ASSERT_OK_AND_ASSIGN(const std::optional<uint64_t> next,
                         connection.active.TryStartWrite(piece, Endpoint::Describe(region)));
    if (!next.has_value()) break;
    last = next;
  }
  ASSERT_TRUE(Eventually(absl::Seconds(5),
                         [&] { return connection.active.TryDone(last.value_or(0)).value_or(false); }));
  EXPECT_FALSE(connection.active.Arm(false, true));
  EXPECT_TRUE(connection.active.Arm(false, true));
}

// A send's buffer goes back to the pool when the peer has it, whether or not anybody looks at the
// endpoint.
TEST_F(SdkEndpointTest, FinishedSendsGiveTheirMemoryBackWhenItIsNeeded) {
  Connection connection = Connect();
  ASSERT_OK_AND_ASSIGN(Pool small, Pool::Create(*client_, 4 * 4096));
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    absl::StatusOr<Buffer> buffer;
    // The peer has what was sent before; that the sender knows is a matter of a moment.
    ASSERT_TRUE(Eventually(absl::Seconds(5), [&] {
      buffer = small.Allocate(4096);
      return buffer.ok();
    })) << buffer.status();
    ASSERT_OK(connection.active.Send(std::move(buffer).value()));
    ASSERT_OK(connection.passive.Receive());
  }
  // What is under way is not given back: without room here, the error still names the pool.
  EXPECT_TRUE(absl::IsResourceExhausted(small.Allocate(5 * 4096).status()));
}

// The peer's first messages may be more than the receives, before the application looks after an
// endpoint that it has accepted. By the timer that rdma_cm leaves alone, the peer would then wait
// for 655 ms.
TEST_F(SdkEndpointTest, AFloodRightAfterTheConnectWaitsForReceivesButBriefly) {
  ASSERT_OK(StartDaemon(1, {.log_level = "info"}));
  ASSERT_OK_AND_ASSIGN(const Client peer, AttachTo(Daemon(1), "peer"));
  EndpointOptions passive;
  passive.recv_depth = 2;
  ASSERT_OK_AND_ASSIGN(Listener listener,
                       Listener::Listen(*client_, WithPort(Ipv4(0), 0), passive));
  std::thread flood([&] {
    absl::StatusOr<Endpoint> active = Endpoint::Connect(peer, listener.local_addr());
    ASSERT_OK(active);
    for (int i = 0; i < 20; ++i) ASSERT_OK(active->SendCopy("early"));
    ASSERT_OK(active->Flush(Slow(absl::Seconds(20))));
  });
  pollfd request{listener.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&request, 1, 10'000 * kSlowness), 1);
  // Most often, only the request is there so far.
  absl::StatusOr<std::optional<Endpoint>> endpoint = listener.TryAccept();
  // The application is busy meanwhile.
  absl::SleepFor(absl::Milliseconds(100));
  const absl::Time start = absl::Now();
  if (endpoint.ok() && !endpoint->has_value()) endpoint = listener.Accept(Slow(absl::Seconds(10)));
  EXPECT_OK(endpoint);
  for (int i = 0; i < 20 && endpoint.ok(); ++i) {
    EXPECT_OK((*endpoint)->Receive(Slow(absl::Seconds(5))));
  }
  EXPECT_LT(absl::Now() - start, Slow(absl::Milliseconds(300)));
  flood.join();
}

TEST_F(SdkEndpointTest, OwnSendsDoNotWakeWhoWaitsForAMessage) {
  Connection connection = Connect();
  ASSERT_TRUE(connection.active.Arm());
  ASSERT_OK(connection.active.SendCopy("x"));
  ASSERT_OK(connection.passive.Receive());
  pollfd poll_fd{connection.active.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&poll_fd, 1, 50), 0);
  ASSERT_OK(connection.active.Flush());
}

TEST_F(SdkEndpointTest, OneSidedOperationsFinishInOrderAndAreNumbered) {
  Connection connection = Connect();
  ASSERT_OK_AND_ASSIGN(const Buffer target, pool_->Allocate(1 << 16));
  ASSERT_OK_AND_ASSIGN(const MemoryRegion region,
                       connection.passive.Share(target, kAccessRemoteRead | kAccessRemoteWrite));
  const RemoteBuffer remote = Endpoint::Describe(region);
  std::vector<Buffer> pieces;
  uint64_t last = 0;
  for (int i = 0; i < 16; ++i) {
    pieces.push_back(Text(std::string(4096, static_cast<char>('a' + i))));
    ASSERT_OK_AND_ASSIGN(
        const uint64_t operation,
        connection.active.StartWrite(pieces.back(), remote, static_cast<uint64_t>(i) * 4096));
    EXPECT_GT(operation, last);
    last = operation;
  }
  ASSERT_OK(connection.active.Wait(last));
  for (int i = 0; i < 16; ++i)
    EXPECT_EQ(target.text()[static_cast<size_t>(i) * 4096 + 4095], 'a' + i);
}

TEST_F(SdkEndpointTest, RangeBeyondTheRemoteBufferIsRefusedBeforeItIsSent) {
  Connection connection = Connect();
  ASSERT_OK_AND_ASSIGN(const Buffer target, pool_->Allocate(100));
  ASSERT_OK_AND_ASSIGN(const MemoryRegion region,
                       connection.passive.Share(target, kAccessRemoteWrite));
  const Buffer piece = Text(std::string(51, 'x'));
  const RemoteBuffer remote = Endpoint::Describe(region);
  EXPECT_TRUE(absl::IsInvalidArgument(connection.active.Write(piece, remote, 50)));
  EXPECT_TRUE(absl::IsInvalidArgument(connection.active.Write(piece, remote, UINT64_MAX)));
  EXPECT_OK(connection.active.Write(piece, remote, 49));
}

TEST_F(SdkEndpointTest, MessageLongerThanTheReceiveEndsTheConnectionWithTheReason) {
  EndpointOptions small;
  small.max_recv_bytes = 100;
  Connection connection = Connect({}, small);
  ASSERT_OK(connection.active.Send(Text(std::string(101, 'x'))));
  const absl::Status sender = connection.active.Flush();
  EXPECT_FALSE(sender.ok());
  const absl::Status receiver = connection.passive.Receive().status();
  EXPECT_TRUE(absl::IsInvalidArgument(receiver)) << receiver;
  EXPECT_NE(receiver.message().find("max_recv_bytes=100"), absl::string_view::npos) << receiver;
}

TEST_F(SdkEndpointTest, NobodyListens) {
  const absl::Status status = Endpoint::Connect(*client_, WithPort(Ipv4(0), 1)).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_NE(status.message().find("nobody listens"), absl::string_view::npos) << status;
}

TEST_F(SdkEndpointTest, ConnectChecksWhatItIsGiven) {
  EXPECT_TRUE(absl::IsInvalidArgument(Endpoint::Connect(*client_, "no-port").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Endpoint::Connect(*client_, "[::1").status()));
  EXPECT_TRUE(absl::IsNotFound(Endpoint::Connect(*client_, "no.such.host.invalid:80").status()));
  EndpointOptions zero;
  zero.recv_depth = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(
      Endpoint::Connect(*client_, WithPort(Ipv4(0), 1), zero).status()));
}

// Two applications, so that each has as many: beyond any limit of a thousand on the way.
TEST_F(SdkEndpointTest, AnApplicationHasMoreThanAThousandConnections) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const int count = Fewer(1100);
  const rlim_t need = static_cast<rlim_t>(count) * 2 + 200;  // for those of both, in this process
  if (files.rlim_max < need) GTEST_SKIP() << "may have " << files.rlim_max << " descriptors only";
  files.rlim_cur = std::max(files.rlim_cur, need);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  ASSERT_OK_AND_ASSIGN(const Client server, AttachTo(Daemon(0), "server"));
  EndpointOptions options;
  options.send_depth = options.recv_depth = 2;
  options.max_recv_bytes = 64;
  options.connect_timeout = Slow(absl::Seconds(20));
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(server, WithPort(Ipv4(0), 0), options));
  std::vector<Endpoint> passive;
  std::thread accept([&] {
    while (passive.size() < static_cast<size_t>(count)) {
      absl::StatusOr<Endpoint> endpoint = listener.Accept(Slow(absl::Seconds(20)));
      ASSERT_OK(endpoint);
      passive.push_back(std::move(endpoint).value());
    }
  });
  std::vector<Endpoint> active;
  for (int i = 0; i < count; ++i) {
    absl::StatusOr<Endpoint> endpoint = Endpoint::Connect(*client_, listener.local_addr(), options);
    EXPECT_OK(endpoint) << "connection " << i;
    if (!endpoint.ok()) break;
    active.push_back(std::move(endpoint).value());
  }
  accept.join();
  ASSERT_EQ(active.size(), passive.size());
  for (size_t i = 0; i < active.size(); ++i) ASSERT_OK(active[i].SendCopy(std::to_string(i)));
  for (size_t i = 0; i < passive.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(const Buffer buffer, passive[i].Receive(Slow(absl::Seconds(5))));
    ASSERT_EQ(buffer.text(), std::to_string(i));
  }
  // All hear of the end.
  active.clear();
  for (Endpoint& endpoint : passive)
    ASSERT_TRUE(IsClosed(endpoint.Receive(Slow(absl::Seconds(5))).status()));
}

TEST_F(SdkEndpointTest, LocalhostByName) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(*client_, WithPort(Ipv4(0), 0)));
  auto accepting =
      std::async(std::launch::async, [&] { return listener.Accept(Slow(absl::Seconds(10))); });
  EXPECT_OK(Endpoint::Connect(*client_, WithPort(Ipv4(0), listener.local_addr().port)));
  EXPECT_OK(accepting.get());
}

TEST_F(SdkEndpointTest, PeerThatGivesUpHalfWayHoldsUpNobody) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(*client_, WithPort(Ipv4(0), 0)));
  {
    // Its request is in the listener's channel when it goes away.
    absl::StatusOr<Connector> quitter = Connector::Start(*client_, listener.local_addr());
    ASSERT_OK(quitter);
    for (int i = 0; i < 20; ++i) {
      ASSERT_OK(quitter->Try());
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
  auto accepting =
      std::async(std::launch::async, [&] { return listener.Accept(Slow(absl::Seconds(10))); });
  ASSERT_OK_AND_ASSIGN(Endpoint active, Endpoint::Connect(*client_, listener.local_addr()));
  absl::StatusOr<Endpoint> passive = accepting.get();
  ASSERT_OK(passive);
  ASSERT_OK(active.SendCopy("hello"));
  EXPECT_OK(passive->Receive(Slow(absl::Seconds(5))));
}

TEST_F(SdkEndpointTest, AcceptEndsAtItsDeadline) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(*client_, WithPort(Ipv4(0), 0)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(listener.Accept(absl::Milliseconds(20)).status()));
}

TEST_F(SdkEndpointTest, PoolOfALostDaemonIsMadeAnewAndOldBuffersStayReadable) {
  Buffer old_buffer = Text("still here");
  Daemon(0).Kill();
  ASSERT_OK(Daemon(0).Start());
  absl::StatusOr<Buffer> fresh = absl::UnavailableError("");
  ASSERT_TRUE(Eventually(absl::Seconds(5), [&] {
    fresh = pool_->Allocate(64);
    return fresh.ok() && fresh->mapping() != old_buffer.mapping();
  }));
  EXPECT_EQ(old_buffer.text(), "still here");
  Connection connection = Connect();
  EXPECT_OK(connection.active.Send(std::move(fresh).value()));
  old_buffer = Buffer();
}

TEST_F(SdkEndpointTest, BufferOfAnotherSessionIsRefusedWithTheReason) {
  ASSERT_OK_AND_ASSIGN(const Client other, AttachTo(Daemon(0), "other"));
  ASSERT_OK_AND_ASSIGN(Pool other_pool, Pool::Create(other, 1 << 16));
  Connection connection = Connect();
  const absl::Status status = connection.active.Send(*other_pool.Allocate(1000));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_OK(connection.active.Send(Text("own")));
}

TEST_F(SdkEndpointTest, PoolGivesBackWhatWasReleased) {
  const size_t before = pool_->free_bytes();
  {
    std::vector<Buffer> buffers;
    while (true) {
      absl::StatusOr<Buffer> buffer = pool_->Allocate(10000);
      if (!buffer.ok()) {
        EXPECT_TRUE(absl::IsResourceExhausted(buffer.status()));
        break;
      }
      buffers.push_back(std::move(buffer).value());
    }
    EXPECT_GT(buffers.size(), 400u);
  }
  EXPECT_EQ(pool_->free_bytes(), before);
}

TEST_F(SdkEndpointTest, MemoryOutsideOfAPoolIsRefusedWithAHint) {
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, ProtectionDomain::Alloc(*client_, 0));
  char on_stack[64];
  const absl::Status status = pd.RegMsgs(on_stack, sizeof(on_stack)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.message().find("Pool"), absl::string_view::npos) << status;
  EXPECT_TRUE(
      absl::IsInvalidArgument(pd.RegRead(pool_->memory().data() + (4 << 20) - 10, 11).status()));
  EXPECT_OK(pd.RegRead(pool_->memory().data() + (4 << 20) - 10, 10));
}

}  // namespace
}  // namespace rdmad::testing
