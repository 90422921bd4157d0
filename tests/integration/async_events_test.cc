// Asynchronous events of QPs and CQs, each with a cause that an application can meet. (srq_test has
// those of SRQs, live_network_test those of devices.)
#include <gtest/gtest.h>

#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr size_t kHalf = WiredEnd::kMemoryBytes / 2;

class AsyncEventsTest : public WiredPairTest {
 protected:
  // The next event that the passive application gets is this one, of its QP.
  void ExpectOfB(uint32_t type) {
    ASSERT_OK_AND_ASSIGN(const AsyncEvent event,
                         Client(passive()).GetAsyncEvent(absl::Seconds(10)));
    EXPECT_EQ(event.type, type) << AsyncEventString(event.type);
    EXPECT_EQ(event.handle, b_->qp.handle());
  }
  static void ExpectNothing(Client client) {
    const absl::StatusOr<AsyncEvent> event = client.GetAsyncEvent(absl::Milliseconds(50));
    EXPECT_TRUE(absl::IsDeadlineExceeded(event.status()))
        << (event.ok() ? AsyncEventString(event->type) : event.status().ToString());
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, AsyncEventsTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

// No completion of the peer's tells of it, so an event does.
TEST_P(AsyncEventsTest, AWriteByAWrongKeyIsAnAccessErrorOfTheQpThatItCameTo) {
  if (OnVerbs()) GTEST_SKIP() << "rxe has no such event";
  ASSERT_NO_FATAL_FAILURE(MakePair());
  ASSERT_OK(a_->qp.PostWrite(1, a_->memory.data(), 8, &a_->region, kSendSignaled,
                             b_->AddressAt(kHalf), b_->region.rkey() ^ 0xff00));
  ExpectWc(a_->cq, 1, WcStatus::kRemAccessErr);
  ExpectOfB(kAsyncQpAccessErr);
  EXPECT_EQ(b_->qp.Query()->state, QpState::kErr);
  ExpectNothing(active());  // the completion says it
}

TEST_P(AsyncEventsTest, AnOperationThatTheQpDoesNotServeIsARequestErrorThere) {
  if (OnVerbs()) GTEST_SKIP() << "rxe has no such event";
  ASSERT_NO_FATAL_FAILURE(MakePair());
  QpAttr attr;
  attr.mask = kQpAttrAccessFlags;
  ASSERT_OK(b_->qp.Modify(attr));
  ASSERT_OK(a_->qp.PostRead(1, a_->memory.data(), 8, &a_->region, kSendSignaled,
                            b_->AddressAt(kHalf), b_->region.rkey()));
  ExpectWc(a_->cq, 1, WcStatus::kRemInvReqErr);
  ExpectOfB(kAsyncQpReqErr);
  ExpectNothing(active());
}

// Data for a QP in RTR: its peer is ready, whatever has or has not been told otherwise.
TEST_P(AsyncEventsTest, DataThatComesBeforeRtsEstablishesTheCommunication) {
  if (OnVerbs()) GTEST_SKIP() << "rxe has no such event";
  ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address()));
  ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(passive(), passive_address()));
  a_.emplace(std::move(a));
  b_.emplace(std::move(b));
  for (WiredEnd* end : {&*a_, &*b_}) ASSERT_OK(ToInit(*end));
  ASSERT_OK(ToRtr(*a_, *b_));
  ASSERT_OK(ToRtr(*b_, *a_));
  ASSERT_OK(ToRts(*a_));
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_OK(b_->PostRecv(id, 0, kHalf));
    FillPattern({a_->memory.data(), 3000}, id);
    ASSERT_OK(a_->qp.PostSend(id, a_->memory.data(), 3000, &a_->region, kSendSignaled));
    ExpectWc(a_->cq, id);
    ExpectWc(b_->cq, id);
    EXPECT_EQ(PatternMismatch({b_->memory.data(), 3000}, id), std::nullopt);
  }
  ExpectOfB(kAsyncCommEst);
  ExpectNothing(passive());  // once
  ASSERT_OK(ToRts(*b_));
  ASSERT_OK(a_->PostRecv(4, 0, kHalf));
  ASSERT_OK(b_->qp.PostSend(5, b_->memory.data(), 10, &b_->region, kSendSignaled));
  ExpectWc(b_->cq, 5);
  ExpectWc(a_->cq, 4);
}

TEST_P(AsyncEventsTest, TheSendQueueIsDrainedWhenWhatHadBegunIsDone) {
  QpAttr drain;
  drain.mask = kQpAttrState | kQpAttrEnSqdAsyncNotify;
  drain.state = QpState::kSqd;
  drain.en_sqd_async_notify = true;
  for (const QpType type : {QpType::kRc, QpType::kUc}) {
    SCOPED_TRACE(static_cast<int>(type));
    ASSERT_NO_FATAL_FAILURE(MakePair({.type = type}));
    // rxe says so although a message waits for a receive; that goes on when the QP does.
    if (type == QpType::kRc && !OnVerbs()) {
      ASSERT_OK(b_->qp.PostSend(1, b_->memory.data(), 100, &b_->region, kSendSignaled));
      // It has begun, and waits for a receive.
      EXPECT_FALSE(WaitForWc(b_->cq, absl::Milliseconds(20)).ok());
      ASSERT_OK(b_->qp.Modify(drain));
      EXPECT_TRUE(b_->qp.Query()->sq_draining);
      ExpectNothing(passive());
      ASSERT_OK(a_->PostRecv(2, 0, kHalf));
      ExpectWc(a_->cq, 2);
      ExpectWc(b_->cq, 1);
    } else {
      ASSERT_OK(b_->qp.Modify(drain));
    }
    ExpectOfB(kAsyncSqDrained);
    EXPECT_EQ(b_->qp.Query()->state, QpState::kSqd);
    EXPECT_FALSE(b_->qp.Query()->sq_draining);
    // Sends wait, receives do not.
    ASSERT_OK(a_->PostRecv(3, 0, kHalf));
    ASSERT_OK(b_->qp.PostSend(4, b_->memory.data(), 100, &b_->region, kSendSignaled));
    ASSERT_OK(b_->PostRecv(5, 0, kHalf));
    ASSERT_OK(a_->qp.PostSend(6, a_->memory.data(), 100, &a_->region, kSendSignaled));
    ExpectWc(a_->cq, 6);
    ExpectWc(b_->cq, 5);
    EXPECT_FALSE(WaitForWc(b_->cq, absl::Milliseconds(20)).ok());
    ASSERT_OK(MoveTo(*b_, QpState::kRts));
    ExpectWc(b_->cq, 4);
    ExpectWc(a_->cq, 3);
    ExpectNothing(passive());
  }
}

// Whatever a device takes for begun: nothing gets lost, and nothing waits for a further post.
TEST_P(AsyncEventsTest, WhatWaitedWhileTheSendQueueWasStoppedGoesWhenItGoesOn) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  ASSERT_OK(b_->qp.PostSend(1, b_->memory.data(), 100, &b_->region, kSendSignaled));
  EXPECT_FALSE(WaitForWc(b_->cq, absl::Milliseconds(20)).ok());
  ASSERT_OK(MoveTo(*b_, QpState::kSqd));
  ASSERT_OK(b_->qp.PostSend(2, b_->memory.data(), 100, &b_->region, kSendSignaled));
  for (const uint64_t id : {3, 4}) ASSERT_OK(a_->PostRecv(id, 0, kHalf));
  ASSERT_OK(MoveTo(*b_, QpState::kRts));
  for (const uint64_t id : {1, 2}) ExpectWc(b_->cq, id);
  for (const uint64_t id : {3, 4}) ExpectWc(a_->cq, id);
}

TEST_P(AsyncEventsTest, ACqThatRunsOverSaysSoAndItsQpsAreInError) {
  ASSERT_OK_AND_ASSIGN(WiredEnd place, MakeEnd(passive(), passive_address()));
  ASSERT_OK_AND_ASSIGN(CompletionQueue small,
                       CompletionQueue::Create(passive(), place.device.index, 2));
  ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address()));
  ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(passive(), passive_address(), {.cq = &small}));
  a_.emplace(std::move(a));
  b_.emplace(std::move(b));
  ASSERT_OK(Wire(*a_, *b_));
  // One more than there is room for, and nobody polls.
  for (uint64_t id = 1; id <= small.depth() + 1; ++id) ASSERT_OK(b_->PostRecv(id, 0, 64));
  for (uint64_t id = 1; id <= small.depth() + 1; ++id) {
    ASSERT_OK(a_->qp.PostSend(id, nullptr, 0, nullptr, kSendSignaled));
  }

  ASSERT_OK_AND_ASSIGN(const AsyncEvent event, NextEvent(passive(), kAsyncCqErr));

  EXPECT_EQ(event.handle, small.handle());
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return b_->qp.Query()->state == QpState::kErr; }));
  // What it had room for is there.
  for (uint64_t id = 1; id <= small.depth(); ++id) ExpectWc(small, id);
  // Nothing can be had of it any more.
  EXPECT_TRUE(
      absl::IsFailedPrecondition(MakeEnd(passive(), passive_address(), {.cq = &small}).status()));
  // And the peer is not the worse for it: its next message finds nobody, for that QP is in error.
  ASSERT_OK(a_->qp.PostSend(9, nullptr, 0, nullptr, kSendSignaled));
}

}  // namespace
}  // namespace rdmad::testing
