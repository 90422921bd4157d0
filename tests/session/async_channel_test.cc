#include "daemon/session/async_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/session/pipe.h"

namespace rdmad::session {
namespace {

// Keeps the one watch that the channel asks for.
class FakeHost final : public SessionHost {
 public:
  std::unique_ptr<FdWatch> WatchWritable(int, std::function<void()> ready) override {
    on_writable = std::move(ready);
    struct Watch final : FdWatch {
      explicit Watch(FakeHost* owner) : host(owner) {}
      ~Watch() override { host->on_writable = nullptr; }
      FakeHost* host;
    };
    return std::make_unique<Watch>(this);
  }
  void RunSlowly(std::function<void()>, std::function<void()>) override {}
  void EndSession(Session&, const std::string&) override {}

  std::function<void()> on_writable;
};

struct Fixture {
  explicit Fixture(size_t queue_limit) : pipe(MakePipe().value()) {
    fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK);
    fcntl(pipe.read_end.get(), F_SETPIPE_SZ, 4096);
    channel = std::make_unique<AsyncChannel>(
        std::move(pipe.write_end), &host, [this] { ++overflows; }, queue_limit);
  }

  // The handles of all records that are in the pipe.
  std::vector<uint64_t> Read() {
    std::vector<uint64_t> handles;
    shm::AsyncEvent event;
    while (read(pipe.read_end.get(), &event, sizeof(event)) == sizeof(event))
      handles.push_back(event.handle);
    return handles;
  }
  void Send(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) channel->Send({1, 0, next++});
  }

  FakeHost host;
  Pipe pipe;
  std::unique_ptr<AsyncChannel> channel;
  uint64_t next = 0;
  int overflows = 0;
};

constexpr size_t kPipeRecords = 4096 / sizeof(shm::AsyncEvent);

TEST(AsyncChannel, RecordsArriveWholeAndInOrder) {
  Fixture test(10);
  test.Send(3);
  EXPECT_EQ(test.Read(), (std::vector<uint64_t>{0, 1, 2}));
}

TEST(AsyncChannel, WhatDoesNotFitWaitsForTheReader) {
  Fixture test(100);
  test.Send(kPipeRecords + 5);
  EXPECT_EQ(test.channel->queued(), 5u);
  ASSERT_TRUE(test.host.on_writable);
  EXPECT_EQ(test.Read().size(), kPipeRecords);
  std::exchange(test.host.on_writable, nullptr)();
  EXPECT_EQ(test.channel->queued(), 0u);
  EXPECT_EQ(test.Read(), (std::vector<uint64_t>{kPipeRecords, kPipeRecords + 1, kPipeRecords + 2,
                                                kPipeRecords + 3, kPipeRecords + 4}));
}

TEST(AsyncChannel, NewRecordsDoNotOvertakeWaitingOnes) {
  Fixture test(100);
  test.Send(kPipeRecords + 1);
  test.Read();
  test.Send(1);  // there is room in the pipe, but another one waits
  EXPECT_EQ(test.channel->queued(), 2u);
}

TEST(AsyncChannel, OverflowIsToldOnceAndTheRestIsDropped) {
  Fixture test(10);
  test.Send(kPipeRecords + 10);
  EXPECT_EQ(test.overflows, 0);
  test.Send(3);
  EXPECT_EQ(test.overflows, 1);
  EXPECT_EQ(test.channel->queued(), 0u);
}

TEST(AsyncChannel, AnEventThatWaitsAlreadyMovesToTheEnd) {
  Fixture test(3);
  test.Send(kPipeRecords);
  for (int flap = 0; flap < 1000; ++flap) {
    test.channel->Send({9, 0, 77});
    test.channel->Send({10, 0, 77});
  }
  test.channel->Send({9, 0, 77});
  EXPECT_EQ(test.overflows, 0);
  EXPECT_EQ(test.channel->queued(), 2u);
  test.Read();
  std::exchange(test.host.on_writable, nullptr)();
  shm::AsyncEvent last{};
  while (read(test.pipe.read_end.get(), &last, sizeof(last)) == sizeof(last)) {
  }
  EXPECT_EQ(last.type, 9u) << "the last word is the truth";
}

TEST(AsyncChannel, WhatWaitsOfAnObjectGoesWithIt) {
  Fixture test(3);
  test.Send(kPipeRecords);
  for (uint64_t handle = 1000; handle < 2000; ++handle) {  // QPs that fail and are destroyed
    test.channel->Send({1, 0, handle});
    test.channel->Send({16, 0, handle});
    test.channel->Drop(handle);
  }
  EXPECT_EQ(test.overflows, 0);
  EXPECT_FALSE(test.host.on_writable) << "nothing is left to be written";
  test.channel->Send({1, 0, 5000});
  test.channel->Send({1, 0, 5001});
  test.channel->Drop(5000);
  test.Read();
  std::exchange(test.host.on_writable, nullptr)();
  EXPECT_EQ(test.Read(), std::vector<uint64_t>{5001});
}

TEST(AsyncChannel, ClosedReaderIsNoError) {
  signal(SIGPIPE, SIG_IGN);
  Fixture test(10);
  test.pipe.read_end.Reset();
  test.Send(1000);
  EXPECT_EQ(test.overflows, 0);
  EXPECT_EQ(test.channel->queued(), 0u);
}

}  // namespace
}  // namespace rdmad::session
