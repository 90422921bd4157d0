#include "daemon/cm/event_channel.h"

#include <fcntl.h>

#include <csignal>

#include "gtest/gtest.h"
#include "tests/cm/cm_id_testing.h"

namespace rdmad::cm {
namespace {

shm::CmEvent Event(uint64_t id, uint32_t number, uint64_t listener = 0) {
  shm::CmEvent event{};
  event.id_handle = id;
  event.listen_handle = listener;
  event.qpn = number;
  return event;
}

std::vector<uint32_t> Numbers(const std::vector<shm::CmEvent>& events) {
  std::vector<uint32_t> numbers;
  for (const shm::CmEvent& event : events) numbers.push_back(event.qpn);
  return numbers;
}

struct CountingUser : EventChannelUser {
  void OnEventWritten() noexcept override { ++written; }
  int written = 0;
};

class EventChannelTest : public ::testing::Test {
 protected:
  FakeSession session_;
  TestChannel channel_{&session_, 4};
};

TEST_F(EventChannelTest, WritesWholeRecordsInOrder) {
  for (uint32_t i = 0; i < 10; ++i) channel_->Send(Event(1, i));
  EXPECT_EQ(Numbers(channel_.ReadAll()), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_FALSE(channel_->wants_write());
}

TEST_F(EventChannelTest, WriteEndIsNonBlocking) {
  EXPECT_NE(::fcntl(channel_->fd(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(EventChannelTest, FullPipeQueuesAndAsksToBeWatchedOnce) {
  channel_.Fill();
  for (uint32_t i = 0; i < 3; ++i) channel_->Send(Event(1, i));
  EXPECT_TRUE(channel_->wants_write());
  EXPECT_EQ(session_.blocked, 1);
  channel_->OnWritable();
  EXPECT_EQ(channel_->queued(), 3u) << "still full";
  channel_.Drain();
  channel_->Send(Event(1, 3));
  EXPECT_EQ(channel_->queued(), 4u) << "a new one does not overtake those that wait";
  channel_->OnWritable();
  EXPECT_FALSE(channel_->wants_write());
  EXPECT_EQ(Numbers(channel_.ReadAll()), (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST_F(EventChannelTest, OverflowIsSaidOnceAndEndsTheChannel) {
  channel_.Fill();
  for (uint32_t i = 0; i < 10; ++i) channel_->Send(Event(1, i));
  EXPECT_EQ(session_.overflowed, 1);
  EXPECT_EQ(channel_->queued(), 0u);
  channel_.Drain();
  channel_->Send(Event(1, 11));
  EXPECT_TRUE(channel_.ReadAll().empty());
}

TEST_F(EventChannelTest, EachIdMakesRoomForItsEvents) {
  CountingUser user;
  channel_->AddUser(7, &user);
  channel_.Fill();
  for (uint32_t i = 0; i < 4 + EventChannel::kQueueLimitPerUser; ++i) channel_->Send(Event(7, i));
  EXPECT_EQ(session_.overflowed, 0);
  channel_->Send(Event(7, 99));
  EXPECT_EQ(session_.overflowed, 1);
  channel_->RemoveUser(7);
}

TEST_F(EventChannelTest, ClosedReaderBreaksTheChannelQuietly) {
  std::signal(SIGPIPE, SIG_IGN);  // as main does
  channel_.CloseReader();
  channel_->Send(Event(1, 0));
  EXPECT_TRUE(channel_->broken());
  EXPECT_FALSE(channel_->wants_write());
  EXPECT_EQ(session_.blocked + session_.overflowed, 0);
}

TEST_F(EventChannelTest, ReaderThatClosesWhileEventsWaitEndsTheQueue) {
  std::signal(SIGPIPE, SIG_IGN);
  channel_.Fill();
  channel_->Send(Event(1, 0));
  channel_->Send(Event(1, 1));
  channel_.CloseReader();
  channel_->OnWritable();
  EXPECT_TRUE(channel_->broken());
  EXPECT_FALSE(channel_->wants_write());
}

TEST_F(EventChannelTest, CountsForTheIdWhatWasWrittenNotWhatWaits) {
  CountingUser user;
  channel_->AddUser(1, &user);
  channel_->Send(Event(1, 0));
  channel_->Send(Event(2, 1));
  EXPECT_EQ(user.written, 1);
  channel_.Fill();
  channel_->Send(Event(1, 2));
  EXPECT_EQ(user.written, 1);
  channel_.Drain();
  channel_->OnWritable();
  EXPECT_EQ(user.written, 2);
  channel_->RemoveUser(1);
}

TEST_F(EventChannelTest, ConnectRequestCountsForTheListener) {
  CountingUser listener;
  channel_->AddUser(1, &listener);
  channel_->Send(Event(5, 0, /*listener=*/1));
  EXPECT_EQ(listener.written, 1);
  channel_->RemoveUser(1);
}

TEST_F(EventChannelTest, TakesWaitingEventsOfOneIdOut) {
  channel_.Fill();
  channel_->Send(Event(1, 0));
  channel_->Send(Event(2, 1));
  channel_->Send(Event(7, 2, /*listener=*/1));
  channel_->Send(Event(3, 3, /*listener=*/2));
  EXPECT_EQ(Numbers(channel_->TakeQueued(1)), (std::vector<uint32_t>{0, 2}));
  channel_.Drain();
  channel_->OnWritable();
  EXPECT_EQ(Numbers(channel_.ReadAll()), (std::vector<uint32_t>{1, 3}));
}

}  // namespace
}  // namespace rdmad::cm
