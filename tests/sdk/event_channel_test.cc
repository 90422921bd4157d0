#include "client/sdk/event_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "client/sdk/status_errno.h"
#include "rdmad/cm.h"
#include "tests/sdk/fake_daemon.h"

namespace rdmad::sdk {
namespace {

using testing::FakeDaemon;

constexpr uint32_t kAddrResolvedNumber = 0;
constexpr uint32_t kRejectedNumber = 8;
constexpr uint32_t kEstablishedNumber = 9;
constexpr uint32_t kDisconnectedNumber = 10;

class EventChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    session_ = daemon_.Attach();
    channel_ = MakeChannel();
  }

  std::unique_ptr<EventChannel> MakeChannel() {
    return std::make_unique<EventChannel>(*EventChannelState::Create(session_));
  }
  std::unique_ptr<CmId> MakeId() { return *sdk::MakeId(channel_->state(), PortSpace::kTcp); }

  static bool Readable(const EventChannel& channel) {
    pollfd poll_fd{channel.fd(), POLLIN, 0};
    return ::poll(&poll_fd, 1, 0) == 1;
  }
  static bool IsEmpty(EventChannel& channel) {
    return channel.GetEvent(absl::ZeroDuration()).status().code() == absl::StatusCode::kDeadlineExceeded;
  }

  FakeDaemon daemon_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<EventChannel> channel_;
};

TEST_F(EventChannelTest, EventNamesItsIdAndWhatHappened) {
  const std::unique_ptr<CmId> id = MakeId();
  daemon_.SendEvent(id->handle(), kRejectedNumber, 28);
  const absl::StatusOr<std::unique_ptr<CmEvent>> event = channel_->GetEvent();
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ((*event)->type(), CmEventType::kRejected);
  EXPECT_EQ((*event)->status(), 28);
  EXPECT_EQ((*event)->id(), id.get());
  EXPECT_EQ((*event)->ToStatus().code(), absl::StatusCode::kAborted);
  EXPECT_NE((*event)->ToStatus().message().find("the application refused"), absl::string_view::npos);
}

TEST_F(EventChannelTest, NothingPending) {
  EXPECT_EQ(channel_->GetEvent(absl::Milliseconds(5)).status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(::fcntl(channel_->fd(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(StatusToErrno(channel_->GetEvent().status()), EAGAIN);
}

// Case 1.
TEST_F(EventChannelTest, DestroyingAnIdWaitsForTheAcknowledgement) {
  std::unique_ptr<CmId> id = MakeId();
  daemon_.SendEvent(id->handle(), kRejectedNumber, 8);
  std::unique_ptr<CmEvent> event = *channel_->GetEvent();
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    id = nullptr;
    destroyed = true;
  });
  while (daemon_.calls("DestroyId") == 0) std::this_thread::yield();
  EXPECT_FALSE(destroyed);
  event = nullptr;
  destroyer.join();
  EXPECT_TRUE(destroyed);
}

// Case 2.
TEST_F(EventChannelTest, EventsNobodyFetchedVanishWithTheirId) {
  std::unique_ptr<CmId> gone = MakeId();
  const std::unique_ptr<CmId> stays = MakeId();
  daemon_.SendEvent(gone->handle(), kEstablishedNumber);
  daemon_.SendEvent(stays->handle(), kAddrResolvedNumber);
  daemon_.SendEvent(gone->handle(), kDisconnectedNumber);
  gone = nullptr;
  absl::StatusOr<std::unique_ptr<CmEvent>> event = channel_->GetEvent();
  ASSERT_TRUE(event.ok());
  EXPECT_EQ((*event)->id(), stays.get());
  EXPECT_FALSE(Readable(*channel_));
  EXPECT_TRUE(IsEmpty(*channel_));
}

// The descriptor never promises an event that GetEvent does not have: a poll loop would block.
TEST_F(EventChannelTest, DescriptorIsNotReadableForEventsOfGoneIds) {
  std::unique_ptr<CmId> id = MakeId();
  for (int i = 0; i < 20; ++i) daemon_.SendEvent(id->handle(), kEstablishedNumber);
  EXPECT_TRUE(Readable(*channel_));
  id = nullptr;
  EXPECT_FALSE(Readable(*channel_));
}

TEST_F(EventChannelTest, StaleEventsBehindALiveOneGoWhenItIsFetched) {
  const std::unique_ptr<CmId> stays = MakeId();
  std::unique_ptr<CmId> gone = MakeId();
  daemon_.SendEvent(stays->handle(), kAddrResolvedNumber);
  daemon_.SendEvent(gone->handle(), kEstablishedNumber);
  gone = nullptr;
  EXPECT_TRUE(Readable(*channel_));
  EXPECT_TRUE(channel_->GetEvent().ok());
  EXPECT_FALSE(Readable(*channel_));
}

TEST_F(EventChannelTest, ConnectRequestBringsANewIdThatBelongsToTheEvent) {
  const std::unique_ptr<CmId> listener = MakeId();
  int context = 0;
  listener->set_context(&context);
  const uint64_t new_handle = daemon_.SendConnectRequest(listener->handle());
  std::unique_ptr<CmEvent> event = *channel_->GetEvent();
  EXPECT_EQ(event->type(), CmEventType::kConnectRequest);
  EXPECT_EQ(event->listen_id(), listener.get());
  ASSERT_NE(event->id(), nullptr);
  EXPECT_EQ(event->id()->handle(), new_handle);
  EXPECT_EQ(event->id()->context(), &context);
  EXPECT_EQ(event->id()->peer_addr().ToString(), "127.0.0.3:50000");
  EXPECT_EQ(event->id()->device_index(), 0u);
  EXPECT_EQ(event->param().private_data, (std::vector<uint8_t>{'a', 'b', 'c'}));
  event = nullptr;  // not taken: rejected
  EXPECT_FALSE(daemon_.HasId(new_handle));
}

TEST_F(EventChannelTest, TakenIdOutlivesTheEventAndGetsItsOwn) {
  const std::unique_ptr<CmId> listener = MakeId();
  const uint64_t new_handle = daemon_.SendConnectRequest(listener->handle());
  std::unique_ptr<CmEvent> event = *channel_->GetEvent();
  const std::unique_ptr<CmId> id = event->TakeId();
  event = nullptr;
  daemon_.SendEvent(new_handle, kEstablishedNumber);
  event = *channel_->GetEvent();
  EXPECT_EQ(event->id(), id.get());
  event = nullptr;  // before its id, which would wait for it
}

TEST_F(EventChannelTest, UnreadConnectRequestOfAGoneListenerIsRejected) {
  std::unique_ptr<CmId> listener = MakeId();
  const std::unique_ptr<CmId> other = MakeId();
  daemon_.SendEvent(other->handle(), kAddrResolvedNumber);
  const uint64_t new_handle = daemon_.SendConnectRequest(listener->handle());
  listener = nullptr;
  EXPECT_TRUE(channel_->GetEvent().ok());
  EXPECT_TRUE(IsEmpty(*channel_));
  EXPECT_FALSE(daemon_.HasId(new_handle));
}

TEST_F(EventChannelTest, RequestThatMovedAwayWithItsListenerIsNotRejected) {
  const std::unique_ptr<CmId> other = MakeId();
  std::unique_ptr<CmId> listener = MakeId();
  daemon_.SendEvent(other->handle(), kAddrResolvedNumber);
  const uint64_t new_handle = daemon_.SendConnectRequest(listener->handle());
  const std::unique_ptr<EventChannel> target = MakeChannel();
  ASSERT_TRUE(listener->Migrate(target.get()).ok());
  EXPECT_TRUE(channel_->GetEvent().ok());
  EXPECT_TRUE(IsEmpty(*channel_));  // the request's record was dropped here
  EXPECT_TRUE(daemon_.HasId(new_handle));
  EXPECT_EQ((*target->GetEvent())->id()->handle(), new_handle);
}

TEST_F(EventChannelTest, MigrationTakesUnreadEventsAlong) {
  const std::unique_ptr<CmId> id = MakeId();
  const std::unique_ptr<CmId> other = MakeId();
  daemon_.SendEvent(other->handle(), kAddrResolvedNumber);
  daemon_.SendEvent(id->handle(), kEstablishedNumber);
  daemon_.SendEvent(id->handle(), kDisconnectedNumber);
  const std::unique_ptr<EventChannel> target = MakeChannel();
  ASSERT_TRUE(id->Migrate(target.get()).ok());
  daemon_.SendEvent(id->handle(), 15);
  const CmEventType expected[] = {CmEventType::kEstablished, CmEventType::kDisconnected, CmEventType::kTimewaitExit};
  for (const CmEventType type : expected) {
    const absl::StatusOr<std::unique_ptr<CmEvent>> event = target->GetEvent(absl::Seconds(5));
    ASSERT_TRUE(event.ok()) << event.status();
    EXPECT_EQ((*event)->type(), type);
    EXPECT_EQ((*event)->id(), id.get());
  }
  absl::StatusOr<std::unique_ptr<CmEvent>> event = channel_->GetEvent(absl::Seconds(5));
  ASSERT_TRUE(event.ok());
  EXPECT_EQ((*event)->id(), other.get());
  EXPECT_TRUE(IsEmpty(*channel_));
}

TEST_F(EventChannelTest, MigrationThereAndBackReportsNothingTwice) {
  const std::unique_ptr<CmId> id = MakeId();
  const std::unique_ptr<CmId> other = MakeId();
  daemon_.SendEvent(other->handle(), kAddrResolvedNumber);
  daemon_.SendEvent(id->handle(), kEstablishedNumber);  // stays behind `other`'s in the pipe
  const std::unique_ptr<EventChannel> away = MakeChannel();
  ASSERT_TRUE(id->Migrate(away.get()).ok());
  ASSERT_TRUE(id->Migrate(channel_.get()).ok());
  EXPECT_EQ((*channel_->GetEvent())->type(), CmEventType::kEstablished);
  EXPECT_EQ((*channel_->GetEvent())->type(), CmEventType::kAddrResolved);
  EXPECT_TRUE(IsEmpty(*channel_));
  EXPECT_TRUE(IsEmpty(*away));
}

TEST_F(EventChannelTest, MigrationWaitsForTheAcknowledgementOfOldEvents) {
  const std::unique_ptr<CmId> id = MakeId();
  daemon_.SendEvent(id->handle(), kEstablishedNumber);
  std::unique_ptr<CmEvent> event = *channel_->GetEvent();
  const std::unique_ptr<EventChannel> target = MakeChannel();
  std::atomic<bool> migrated{false};
  std::thread migrator([&] {
    EXPECT_TRUE(id->Migrate(target.get()).ok());
    migrated = true;
  });
  while (daemon_.calls("MigrateId") == 0) std::this_thread::yield();
  EXPECT_FALSE(migrated);
  event = nullptr;
  migrator.join();
}

TEST_F(EventChannelTest, DeadDaemonRemovesTheDeviceOnceForEachIdThenIsUnavailable) {
  const std::unique_ptr<CmId> a = MakeId();
  const std::unique_ptr<CmId> b = MakeId();
  daemon_.SendEvent(a->handle(), kEstablishedNumber);
  std::thread killer([this] { daemon_.Die(); });
  EXPECT_EQ((*channel_->GetEvent())->type(), CmEventType::kEstablished);
  killer.join();
  std::vector<CmId*> removed;
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<std::unique_ptr<CmEvent>> event = channel_->GetEvent();
    ASSERT_TRUE(event.ok());
    EXPECT_EQ((*event)->type(), CmEventType::kDeviceRemoval);
    removed.push_back((*event)->id());
  }
  EXPECT_NE(removed[0], removed[1]);
  EXPECT_EQ(channel_->GetEvent().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Readable(*channel_));  // so that poll loops look
}

TEST_F(EventChannelTest, SynchronousCallReturnsWhatItsEventSays) {
  FakeDaemon daemon;
  const std::shared_ptr<Session> session = daemon.Attach();
  const std::shared_ptr<EventChannelState> channel = *EventChannelState::Create(session);
  const std::unique_ptr<CmId> id = *sdk::MakeId(channel, PortSpace::kTcp);
  ASSERT_TRUE(id->Migrate(nullptr).ok());
  ASSERT_TRUE(id->is_sync());
  daemon.SendEvent(id->handle(), 1, -ETIMEDOUT);  // waits in the pipe for the call
  const absl::Status status = id->ResolveAddr(Address(), *Address::Parse("192.0.2.1:1"), absl::Seconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find("peer=192.0.2.1:1"), absl::string_view::npos) << status;
  ASSERT_NE(id->event(), nullptr);
  EXPECT_EQ(id->event()->type(), CmEventType::kAddrError);
}

TEST_F(EventChannelTest, FailedDestroyStillFreesTheId) {
  std::unique_ptr<CmId> id = MakeId();
  daemon_.FailNext("DestroyId", absl::InternalError("no"));
  EXPECT_FALSE(id->DestroyId().ok());
  id = nullptr;
  EXPECT_TRUE(IsEmpty(*channel_));
}

// Case 2, at speed: one thread fetches events, the other makes ids and destroys them at any moment.
TEST_F(EventChannelTest, FetchingAndDestroyingRace) {
  std::atomic<bool> stop{false};
  std::thread fetcher([&] {
    while (!stop) channel_->GetEvent(absl::Milliseconds(1)).IgnoreError();
  });
  for (int round = 0; round < 2000; ++round) {
    std::unique_ptr<CmId> id = MakeId();
    for (int i = 0; i < round % 4; ++i) daemon_.SendEvent(id->handle(), kAddrResolvedNumber);
    if (round % 7 == 0) std::this_thread::yield();
    id = nullptr;
  }
  stop = true;
  fetcher.join();
}

}  // namespace
}  // namespace rdmad::sdk
