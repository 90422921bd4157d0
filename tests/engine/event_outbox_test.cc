#include "daemon/engine/event_outbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

namespace rdmad::engine {
namespace {

using device::AsyncEvent;
using device::AsyncEventType;

std::vector<EngineEvent> PopAll(SpscRing<EngineEvent>& ring) {
  std::vector<EngineEvent> events;
  EngineEvent event;
  while (ring.Pop(event)) events.push_back(event);
  return events;
}

class EventOutboxTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (EventSource& source : sources_) outbox_.RemoveObject(source);
  }

  EventSource& AddQp(uint64_t token) {
    EventSource& source = sources_.emplace_back();
    source.token = token;
    source.qpn = static_cast<uint32_t>(token + 1000);
    outbox_.AddObject(source);
    return source;
  }

  EventOutbox outbox_;
  std::deque<EventSource> sources_;
  SpscRing<EngineEvent> ring_{16};
};

TEST_F(EventOutboxTest, AnEventOfADeviceCarriesTokenAndQpn) {
  AddQp(1);
  outbox_.OnAsyncEvent({AsyncEventType::kCommEst, 1, 1001});
  EXPECT_TRUE(outbox_.Flush(ring_, 4));
  const auto events = PopAll(ring_);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, EngineEvent::Kind::kQpAsync);
  EXPECT_EQ(events[0].async.type, AsyncEventType::kCommEst);
  EXPECT_EQ(events[0].async.owner_token, 1u);
  EXPECT_EQ(events[0].async.qpn, 1001u);
}

TEST_F(EventOutboxTest, TheSameEventTwiceIsOne) {
  AddQp(1);
  outbox_.OnAsyncEvent({AsyncEventType::kQpFatal, 1, 1001});
  outbox_.OnAsyncEvent({AsyncEventType::kQpFatal, 1, 1001});
  outbox_.OnAsyncEvent({AsyncEventType::kSqDrained, 1, 1001});
  EXPECT_TRUE(outbox_.Flush(ring_, 4));
  EXPECT_EQ(PopAll(ring_).size(), 2u);
  outbox_.OnAsyncEvent({AsyncEventType::kQpFatal, 1, 1001});
  EXPECT_TRUE(outbox_.Flush(ring_, 4));
  EXPECT_EQ(PopAll(ring_).size(), 1u) << "control has seen the first";
}

TEST_F(EventOutboxTest, TenThousandFailuresInOneTurnAllArrive) {
  for (uint64_t token = 0; token < 10000; ++token) AddQp(token);
  for (uint64_t token = 0; token < 10000; ++token) {
    outbox_.OnAsyncEvent({AsyncEventType::kQpFatal, token, 0});
    outbox_.OnAsyncEvent({AsyncEventType::kQpLastWqeReached, token, 0});
  }
  std::vector<int> seen(10000, 0);
  bool all = false;
  while (!all) {
    all = outbox_.Flush(ring_, 4);
    const auto events = PopAll(ring_);
    EXPECT_LE(events.size(), 12u) << "four slots are the answers'";
    for (const EngineEvent& event : events) ++seen[event.async.owner_token];
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 2), 10000);
  EXPECT_EQ(outbox_.dropped(), 0u);
}

TEST_F(EventOutboxTest, ARemovedQpIsSilent) {
  EventSource& source = AddQp(1);
  outbox_.ReportQp(source, AsyncEventType::kQpFatal);
  outbox_.RemoveObject(source);
  EXPECT_TRUE(outbox_.Flush(ring_, 4));
  EXPECT_TRUE(PopAll(ring_).empty());
  outbox_.AddObject(source);  // for TearDown
}

TEST_F(EventOutboxTest, SessionsAndCqsKeepTheirPlaceInTheOrder) {
  EventSource session;
  session.kind = EngineEvent::Kind::kSessionCorrupt;
  session.token = 5;
  session.what = "why";
  EventSource cq;
  cq.kind = EngineEvent::Kind::kCqOverrun;
  cq.token = 6;
  AddQp(1);
  outbox_.Report(session);
  outbox_.OnAsyncEvent({AsyncEventType::kQpFatal, 1, 0});
  outbox_.Report(cq);
  EXPECT_TRUE(outbox_.Flush(ring_, 4));
  const auto events = PopAll(ring_);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind, EngineEvent::Kind::kSessionCorrupt);
  EXPECT_STREQ(events[0].what, "why");
  EXPECT_EQ(events[1].kind, EngineEvent::Kind::kQpAsync);
  EXPECT_EQ(events[2].kind, EngineEvent::Kind::kCqOverrun);
  EXPECT_EQ(events[2].token, 6u);
}

TEST_F(EventOutboxTest, EventsOfUnknownQpsArriveAndTheirOverflowIsCounted) {
  for (uint64_t token = 0; token < 300; ++token) {
    outbox_.OnAsyncEvent({AsyncEventType::kQpFatal, token, 0});
    outbox_.OnAsyncEvent({AsyncEventType::kQpFatal, token, 0});
  }
  EXPECT_EQ(outbox_.dropped(), 2u * 44) << "256 have a place";
  size_t said = 0;
  bool all = false;
  while (!all) {
    all = outbox_.Flush(ring_, 4);
    for (const EngineEvent& event : PopAll(ring_)) EXPECT_EQ(event.async.owner_token, said++);
  }
  EXPECT_EQ(said, 256u);
}

TEST_F(EventOutboxTest, AnEventTypeThatVerbsLacksIsDropped) {
  AddQp(1);
  outbox_.OnAsyncEvent({static_cast<AsyncEventType>(32), 1, 0});
  EXPECT_TRUE(outbox_.empty());
  EXPECT_EQ(outbox_.dropped(), 1u);
}

}  // namespace
}  // namespace rdmad::engine
