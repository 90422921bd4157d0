#include "client/sdk/queue_pair.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <thread>
#include <vector>

#include "client/sdk/status_errno.h"
#include "tests/sdk/fake_daemon.h"

namespace rdmad::sdk {
namespace {

using testing::FakeDaemon;

constexpr uint32_t kDepth = 4;

class QueuePairTest : public ::testing::Test {
 protected:
  void SetUp() override {
    session_ = daemon_.Attach();
    pd_ = *PdState::Alloc(session_, 0);
    channel_ = *CompletionChannelState::Create(session_);
    cq_ = *CompletionQueueState::Create(session_, 0, 16, channel_, nullptr);
    qp_ = MakeQp();
  }

  QueuePair MakeQp() {
    QpInit init;
    init.send_cq = CompletionQueue(cq_);
    init.recv_cq = CompletionQueue(cq_);
    init.cap = {.max_send_wr = kDepth, .max_recv_wr = kDepth, .max_send_sge = 4, .max_recv_sge = 2,
                .max_inline_bytes = 64};
    absl::StatusOr<QueuePair> qp = QueuePair::Create(ProtectionDomain(pd_), init);
    EXPECT_TRUE(qp.ok()) << qp.status();
    qp->state()->set_state(QpState::kRts);
    return *qp;
  }

  absl::Status PostOne(uint64_t wr_id, uint32_t flags = 0) { return qp_.PostSendv(wr_id, {}, flags); }

  std::vector<Wc> Poll() {
    std::array<Wc, 32> wcs;
    const size_t count = cq_->Poll(wcs);
    return {wcs.begin(), wcs.begin() + static_cast<ptrdiff_t>(count)};
  }

  FakeDaemon daemon_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<PdState> pd_;
  std::shared_ptr<CompletionChannelState> channel_;
  std::shared_ptr<CompletionQueueState> cq_;
  QueuePair qp_;
};

// Case 15.
TEST_F(QueuePairTest, FullQueueIsResourceExhaustedAndLosesNothing) {
  for (uint64_t i = 0; i < kDepth; ++i) ASSERT_TRUE(PostOne(i).ok());
  const absl::Status full = PostOne(99);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_EQ(StatusToErrno(full), ENOMEM);
  EXPECT_EQ(daemon_.PublishedSends(qp_.handle()), kDepth);
}

// Case 15.
TEST_F(QueuePairTest, ChainStopsAtTheBadOneAndTakesThoseBefore) {
  const std::array<Sge, 5> too_many{};
  std::array<SendWr, 4> wrs;
  wrs[2].sges = too_many;
  size_t posted = 99;
  const absl::Status status = qp_.PostSend(wrs, &posted);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StatusToErrno(status), EINVAL);
  EXPECT_EQ(posted, 2u);
  EXPECT_EQ(daemon_.PublishedSends(qp_.handle()), 2u);
}

// Case 15.
TEST_F(QueuePairTest, OneSignaledInSixteenNeverFillsALongerQueue) {
  uint32_t done = 0;
  for (int round = 0; round < 10000; ++round) {
    for (uint32_t i = 0; i < kDepth; ++i) ASSERT_TRUE(PostOne(i, i + 1 == kDepth ? kSendSignaled : 0u).ok());
    done += kDepth;
    daemon_.Complete(qp_.handle(), {.wr_id = kDepth - 1, .wqe_count = done}, false);
    ASSERT_EQ(Poll().size(), 1u);
  }
}

TEST_F(QueuePairTest, PostingBeforeTheQpIsConnectedIsRefused) {
  qp_.state()->set_state(QpState::kInit);
  EXPECT_EQ(PostOne(1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(qp_.PostRecvv(1, {}).ok());
  qp_.state()->set_state(QpState::kReset);
  EXPECT_EQ(qp_.PostRecvv(1, {}).code(), absl::StatusCode::kFailedPrecondition);
  qp_.state()->set_state(QpState::kErr);
  EXPECT_TRUE(PostOne(1).ok());  // to be flushed
}

TEST_F(QueuePairTest, InlineLimitIsHeldExactly) {
  std::array<std::byte, 65> bytes{};
  EXPECT_TRUE(qp_.PostSend(1, bytes.data(), 64, nullptr, kSendInline).ok());
  EXPECT_EQ(qp_.PostSend(1, bytes.data(), 65, nullptr, kSendInline).code(), absl::StatusCode::kInvalidArgument);
}

// Case 24.
TEST_F(QueuePairTest, LengthsBeyond32BitsAreRefusedNotCut) {
  const size_t four_gib = size_t{1} << 32;
  EXPECT_EQ(qp_.PostSend(1, nullptr, four_gib, nullptr, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(qp_.PostRecv(1, nullptr, four_gib + 1, nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(qp_.PostWrite(1, nullptr, four_gib, nullptr, 0, 0, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(daemon_.PublishedSends(qp_.handle()), 0u);
}

TEST_F(QueuePairTest, DoorbellOncePerChainAndAWakeOnlyIfTheEngineSleeps) {
  std::array<SendWr, 3> wrs;
  ASSERT_TRUE(qp_.PostSend(wrs).ok());
  EXPECT_TRUE(daemon_.DoorbellRung(qp_.handle()));
  EXPECT_EQ(daemon_.TakeWakes(), 0);
  daemon_.SetEngineSleeping(true);
  ASSERT_TRUE(PostOne(1).ok());
  EXPECT_EQ(daemon_.TakeWakes(), 1);
}

TEST_F(QueuePairTest, CompletionsCarryWhatTheEngineWrote) {
  ASSERT_TRUE(qp_.PostRecvv(7, {}).ok());
  daemon_.Complete(qp_.handle(), {.wr_id = 7, .opcode = 128, .flags = shm::kCqeWithImm, .byte_len = 11, .imm_be = 42},
                   true);
  const std::vector<Wc> wcs = Poll();
  ASSERT_EQ(wcs.size(), 1u);
  EXPECT_EQ(wcs[0].wr_id, 7u);
  EXPECT_EQ(wcs[0].status, WcStatus::kSuccess);
  EXPECT_EQ(wcs[0].opcode, WcOpcode::kRecv);
  EXPECT_EQ(wcs[0].flags, kWcWithImm);
  EXPECT_EQ(wcs[0].byte_len, 11u);
  EXPECT_EQ(wcs[0].imm_be, 42u);
  EXPECT_EQ(wcs[0].qpn, qp_.qpn());
}

TEST_F(QueuePairTest, CompletionsOfADestroyedQpAreSkipped) {
  QueuePair other = MakeQp();
  ASSERT_TRUE(other.PostRecvv(1, {}).ok());
  ASSERT_TRUE(qp_.PostRecvv(2, {}).ok());
  daemon_.Complete(other.handle(), {.wr_id = 1}, true);
  daemon_.Complete(qp_.handle(), {.wr_id = 2}, true);
  ASSERT_TRUE(other.Destroy().ok());
  const std::vector<Wc> wcs = Poll();
  ASSERT_EQ(wcs.size(), 1u);
  EXPECT_EQ(wcs[0].wr_id, 2u);
}

// One Wc at a time: 0 means that there is nothing, whatever is left of others.
TEST_F(QueuePairTest, CompletionsOfADestroyedQpTakeNoPlaceInTheCq) {
  QueuePair other = MakeQp();
  for (int i = 0; i < 3; ++i) daemon_.Complete(other.handle(), {.wr_id = 1}, true);
  ASSERT_TRUE(qp_.PostRecvv(2, {}).ok());
  daemon_.Complete(qp_.handle(), {.wr_id = 2}, true);
  ASSERT_TRUE(other.Destroy().ok());
  std::array<Wc, 1> one;
  ASSERT_EQ(cq_->Poll(one), 1u);
  EXPECT_EQ(one[0].wr_id, 2u);
}

TEST_F(QueuePairTest, CqInUseCannotBeDestroyed) {
  EXPECT_EQ(cq_->Destroy().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(qp_.Destroy().ok());
  EXPECT_TRUE(cq_->Destroy().ok());
  EXPECT_EQ(daemon_.calls("DestroyCq"), 1);
}

TEST_F(QueuePairTest, ResetForgetsWhatWasOutstanding) {
  for (uint64_t i = 0; i < kDepth; ++i) ASSERT_TRUE(PostOne(i).ok());
  daemon_.Complete(qp_.handle(), {.wr_id = 0, .wqe_count = 1}, false);
  QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = QpState::kReset;
  ASSERT_TRUE(qp_.Modify(attr).ok());
  EXPECT_TRUE(Poll().empty());
  qp_.state()->set_state(QpState::kRts);
  for (uint64_t i = 0; i < kDepth; ++i) EXPECT_TRUE(PostOne(i).ok());
}

// ---- the daemon dies ----

// A daemon that ends in order hangs up, then flushes.
TEST_F(QueuePairTest, WhatTheDaemonWritesAfterItsHangUpIsNotHandedOutAgain) {
  ASSERT_TRUE(PostOne(1).ok());
  ASSERT_TRUE(qp_.PostRecvv(2, {}).ok());
  daemon_.Die();
  session_->MarkDead();
  EXPECT_EQ(Poll().size(), 2u);
  daemon_.Complete(qp_.handle(), {.wr_id = 1, .status = 5, .wqe_count = 1}, false);
  daemon_.Complete(qp_.handle(), {.wr_id = 2, .status = 5}, true);
  EXPECT_TRUE(Poll().empty());
}

TEST_F(QueuePairTest, OutstandingWorkIsFlushedInOrderEachOnce) {
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(PostOne(i).ok());
  for (uint64_t i = 10; i < 12; ++i) ASSERT_TRUE(qp_.PostRecvv(i, {}).ok());
  // The first send was done, but nobody has polled that yet.
  daemon_.Complete(qp_.handle(), {.wr_id = 0, .wqe_count = 1}, false);
  daemon_.Die();
  session_->MarkDead();
  std::vector<Wc> wcs = Poll();
  ASSERT_EQ(wcs.size(), 1u);
  EXPECT_EQ(wcs[0].status, WcStatus::kSuccess);
  wcs = Poll();
  ASSERT_EQ(wcs.size(), 4u);
  const uint64_t expected[] = {1, 2, 10, 11};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(wcs[i].wr_id, expected[i]);
    EXPECT_EQ(wcs[i].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(wcs[i].qpn, qp_.qpn());
  }
  EXPECT_TRUE(Poll().empty());
}

TEST_F(QueuePairTest, FlushFillsSmallArraysPieceByPiece) {
  for (uint64_t i = 0; i < kDepth; ++i) ASSERT_TRUE(PostOne(i).ok());
  daemon_.Die();
  session_->MarkDead();
  for (uint64_t i = 0; i < kDepth; ++i) {
    Wc wc;
    ASSERT_EQ(cq_->Poll({&wc, 1}), 1u);
    EXPECT_EQ(wc.wr_id, i);
  }
}

TEST_F(QueuePairTest, PollingAloneFindsOutThatTheDaemonIsGone) {
  ASSERT_TRUE(PostOne(5).ok());
  daemon_.Die();
  const Deadline deadline = Deadline::After(absl::Seconds(10));
  std::vector<Wc> wcs;
  while (wcs.empty() && !deadline.Passed()) wcs = Poll();
  ASSERT_EQ(wcs.size(), 1u);
  EXPECT_EQ(wcs[0].status, WcStatus::kWrFlushErr);
}

TEST_F(QueuePairTest, PostingToADeadSessionIsUnavailable) {
  daemon_.Die();
  session_->MarkDead();
  EXPECT_EQ(PostOne(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(qp_.PostRecvv(1, {}).code(), absl::StatusCode::kUnavailable);
}

TEST_F(QueuePairTest, RingingADeadDaemonDoesNotKillTheApplication) {
  daemon_.SetEngineSleeping(true);
  daemon_.Die();  // and nobody has noticed yet
  EXPECT_TRUE(PostOne(1).ok());
}

TEST_F(QueuePairTest, WaiterOnTheChannelGetsItsCqThenUnavailable) {
  ASSERT_TRUE(PostOne(1).ok());
  cq_->Arm(false);
  std::thread killer([this] { daemon_.Die(); });
  absl::StatusOr<std::shared_ptr<CompletionQueueState>> event = channel_->GetEvent(Deadline::Infinite());
  killer.join();
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(*event, cq_);
  cq_->AckEvents(1);
  EXPECT_EQ(Poll().size(), 1u);
  cq_->Arm(false);
  cq_->Disarm();
  EXPECT_EQ(channel_->GetEvent(Deadline::Infinite()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(QueuePairTest, DestroyingObjectsOfADeadSessionIsQuick) {
  daemon_.Die();
  session_->MarkDead();
  EXPECT_TRUE(qp_.Destroy().ok());
  EXPECT_TRUE(cq_->Destroy().ok());
}

// ---- completion events ----

TEST_F(QueuePairTest, ArmedCqRaisesOneEvent) {
  ASSERT_TRUE(qp_.PostRecvv(1, {}).ok());
  ASSERT_TRUE(qp_.PostRecvv(2, {}).ok());
  cq_->Arm(false);
  daemon_.Complete(qp_.handle(), {.wr_id = 1}, true);
  daemon_.Complete(qp_.handle(), {.wr_id = 2}, true);
  EXPECT_TRUE(channel_->GetEvent(Deadline::Infinite()).ok());
  cq_->AckEvents(1);
  EXPECT_EQ(channel_->GetEvent(Deadline::Immediate()).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Poll().size(), 2u);
}

TEST_F(QueuePairTest, NonBlockingChannelSaysTryAgain) {
  ASSERT_EQ(::fcntl(channel_->pipe().fd(), F_SETFL, O_NONBLOCK), 0);
  const absl::Status status = channel_->GetEvent(Deadline::Infinite()).status();
  EXPECT_EQ(StatusToErrno(status), EAGAIN) << status;
}

// Case 19.
TEST_F(QueuePairTest, DestroyingACqWaitsForTheLastAcknowledgement) {
  ASSERT_TRUE(qp_.PostRecvv(1, {}).ok());
  cq_->Arm(false);
  daemon_.Complete(qp_.handle(), {.wr_id = 1}, true);
  ASSERT_TRUE(channel_->GetEvent(Deadline::Infinite()).ok());
  ASSERT_TRUE(qp_.Destroy().ok());
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    EXPECT_TRUE(cq_->Destroy().ok());
    destroyed = true;
  });
  while (daemon_.calls("DestroyCq") == 0) std::this_thread::yield();
  EXPECT_FALSE(destroyed);
  cq_->AckEvents(1);
  destroyer.join();
  EXPECT_TRUE(destroyed);
}

TEST_F(QueuePairTest, EventsOfADestroyedCqAreSkipped) {
  std::shared_ptr<CompletionQueueState> other =
      *CompletionQueueState::Create(session_, 0, 16, channel_, nullptr);
  QpInit init;
  init.send_cq = init.recv_cq = CompletionQueue(other);
  QueuePair other_qp = *QueuePair::Create(ProtectionDomain(pd_), init);
  other_qp.state()->set_state(QpState::kRts);
  ASSERT_TRUE(other_qp.PostRecvv(1, {}).ok());
  other->Arm(false);
  daemon_.Complete(other_qp.handle(), {.wr_id = 1}, true);
  ASSERT_TRUE(other_qp.Destroy().ok());
  ASSERT_TRUE(other->Destroy().ok());
  EXPECT_EQ(channel_->GetEvent(Deadline::Immediate()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(QueuePairTest, WaitReturnsWhatArrives) {
  ASSERT_TRUE(qp_.PostRecvv(1, {}).ok());
  std::thread engine([this] { daemon_.Complete(qp_.handle(), {.wr_id = 1}, true); });
  Wc wc;
  const absl::StatusOr<size_t> count = cq_->Wait({&wc, 1}, Deadline::Infinite(), WaitStyle::kBlocking);
  engine.join();
  ASSERT_TRUE(count.ok());
  EXPECT_EQ(wc.wr_id, 1u);
}

TEST_F(QueuePairTest, WaitEndsAtItsDeadline) {
  Wc wc;
  for (const WaitStyle style : {WaitStyle::kBlocking, WaitStyle::kPolled}) {
    EXPECT_EQ(cq_->Wait({&wc, 1}, Deadline::After(absl::Milliseconds(5)), style).status().code(),
              absl::StatusCode::kDeadlineExceeded);
  }
}

// Several threads post and one polls, while QPs come and go: for the thread sanitizer above all.
TEST_F(QueuePairTest, PostersAndPollerRunBesideEachOther) {
  std::atomic<bool> stop{false};
  std::thread poller([&] {
    std::array<Wc, 8> wcs;
    while (!stop) cq_->Poll(wcs);
  });
  std::thread posters[2];
  for (std::thread& poster : posters) {
    poster = std::thread([&] {
      for (int i = 0; i < 2000; ++i) PostOne(1).IgnoreError();
    });
  }
  for (int i = 0; i < 100; ++i) MakeQp();
  for (std::thread& poster : posters) poster.join();
  stop = true;
  poller.join();
  EXPECT_EQ(daemon_.PublishedSends(qp_.handle()), kDepth);
}

}  // namespace
}  // namespace rdmad::sdk
