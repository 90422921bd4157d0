#include "client/sdk/event_pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <thread>

namespace rdmad::sdk {
namespace {

class EventPipeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pipe_ = std::make_unique<EventPipe>(UniqueFd(ends[0]));
    write_end_.Reset(ends[1]);
  }
  void Write(uint64_t value) { ASSERT_EQ(::write(write_end_.get(), &value, 8), 8); }

  std::unique_ptr<EventPipe> pipe_;
  UniqueFd write_end_;
  uint64_t record_ = 0;
};

TEST_F(EventPipeTest, ReadsRecordByRecord) {
  Write(1);
  Write(2);
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::Infinite()), PipeResult::kRecord);
  EXPECT_EQ(record_, 1u);
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::Infinite()), PipeResult::kRecord);
  EXPECT_EQ(record_, 2u);
}

TEST_F(EventPipeTest, TimesOut) {
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::After(absl::Milliseconds(5))), PipeResult::kTimeout);
}

TEST_F(EventPipeTest, NonBlockingFlagOfTheApplicationIsObeyedWheneverItIsSet) {
  ASSERT_EQ(::fcntl(pipe_->fd(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::Infinite()), PipeResult::kWouldBlock);
  ASSERT_EQ(::fcntl(pipe_->fd(), F_SETFL, 0), 0);
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::After(absl::Milliseconds(5))), PipeResult::kTimeout);
}

TEST_F(EventPipeTest, TryReadNeverBlocksOnABlockingDescriptor) {
  EXPECT_EQ(pipe_->TryRead(&record_, 8), PipeResult::kWouldBlock);
}

TEST_F(EventPipeTest, HangupEndsEveryWait) {
  std::thread closer([this] { write_end_.Reset(); });
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::Infinite()), PipeResult::kHangup);
  closer.join();
  EXPECT_EQ(pipe_->TryRead(&record_, 8), PipeResult::kHangup);
}

TEST_F(EventPipeTest, RecordsWrittenBeforeTheHangupComeFirst) {
  Write(7);
  write_end_.Reset();
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::Infinite()), PipeResult::kRecord);
  EXPECT_EQ(record_, 7u);
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::Infinite()), PipeResult::kHangup);
}

TEST_F(EventPipeTest, OfTwoReadersForOneRecordTheOtherWaitsOn) {
  PipeResult results[2];
  uint64_t records[2] = {};
  std::thread readers[2];
  for (int i = 0; i < 2; ++i) {
    readers[i] = std::thread([&, i] { results[i] = pipe_->Read(&records[i], 8, Deadline::Infinite()); });
  }
  Write(1);
  Write(2);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(results[0], PipeResult::kRecord);
  EXPECT_EQ(results[1], PipeResult::kRecord);
  EXPECT_EQ(records[0] + records[1], 3u);
}

// Case 6: real descriptors.
TEST_F(EventPipeTest, EdgeTriggeredEpollOnADuplicateWakesOncePerEvent) {
  const UniqueFd duplicate(::dup(pipe_->fd()));
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event want{.events = EPOLLIN | EPOLLET, .data = {.fd = duplicate.get()}};
  ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, duplicate.get(), &want), 0);
  epoll_event got;
  EXPECT_EQ(::epoll_wait(epoll.get(), &got, 1, 0), 0);
  Write(1);
  EXPECT_EQ(::epoll_wait(epoll.get(), &got, 1, 1000), 1);
  EXPECT_EQ(::epoll_wait(epoll.get(), &got, 1, 0), 0);
  EXPECT_EQ(pipe_->TryRead(&record_, 8), PipeResult::kRecord);
  Write(2);
  EXPECT_EQ(::epoll_wait(epoll.get(), &got, 1, 1000), 1);
}

TEST_F(EventPipeTest, InternalPipesReadWithoutAsking) {
  pipe_->SetInternal();
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::Immediate()), PipeResult::kWouldBlock);
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::After(absl::Milliseconds(5))), PipeResult::kTimeout);
  Write(3);
  EXPECT_EQ(pipe_->Read(&record_, 8, Deadline::Infinite()), PipeResult::kRecord);
}

}  // namespace
}  // namespace rdmad::sdk
