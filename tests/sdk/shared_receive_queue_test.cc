#include "client/sdk/shared_receive_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "client/sdk/queue_pair.h"
#include "client/sdk/status_errno.h"
#include "tests/sdk/fake_daemon.h"

namespace rdmad::sdk {
namespace {

using testing::FakeDaemon;

constexpr uint32_t kDepth = 4;

TEST(SrqPlaces, EveryPlaceOnceAndNoneBeyond) {
  SrqPlaces places(3);
  std::vector<bool> seen(3);
  for (uint64_t i = 0; i < 3; ++i) {
    const uint32_t place = places.Take(i);
    ASSERT_LT(place, 3u);
    EXPECT_FALSE(seen[place]);
    seen[place] = true;
  }
  EXPECT_EQ(places.Take(99), SrqPlaces::kNone);
}

TEST(SrqPlaces, WhatNobodyHasCannotBeFreed) {
  SrqPlaces places(2);
  uint64_t wr_id = 0;
  EXPECT_FALSE(places.Free(0, &wr_id));
  EXPECT_FALSE(places.Free(2, &wr_id));
  EXPECT_FALSE(places.Free(UINT64_MAX, &wr_id));
  const uint32_t place = places.Take(7);
  EXPECT_TRUE(places.Free(place, &wr_id));
  EXPECT_EQ(wr_id, 7u);
  EXPECT_FALSE(places.Free(place, &wr_id));
}

TEST(SrqPlaces, OldestComesFirstWhateverWentBefore) {
  SrqPlaces places(4);
  std::array<uint32_t, 4> taken;
  for (uint64_t i = 0; i < 4; ++i) taken[i] = places.Take(i);
  uint64_t wr_id = 0;
  for (const uint32_t gone : {taken[2], taken[0], taken[3]}) ASSERT_TRUE(places.Free(gone, &wr_id));
  EXPECT_EQ(places.oldest(), taken[1]);
  const uint32_t later = places.Take(10);
  ASSERT_TRUE(places.Free(taken[1], &wr_id));
  EXPECT_EQ(places.oldest(), later);
  ASSERT_TRUE(places.Free(later, &wr_id));
  EXPECT_EQ(places.oldest(), SrqPlaces::kNone);
}

class SharedReceiveQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    session_ = daemon_.Attach();
    pd_ = *PdState::Alloc(session_, 0);
    cq_ = *CompletionQueueState::Create(session_, 0, 64, nullptr, nullptr);
    srq_ = *SharedReceiveQueue::Create(ProtectionDomain(pd_), {.max_wr = kDepth, .max_sge = 6, .limit = 0});
    first_ = MakeQp();
    second_ = MakeQp();
  }

  QueuePair MakeQp() {
    QpInit init;
    init.send_cq = init.recv_cq = CompletionQueue(cq_);
    init.srq = srq_;
    absl::StatusOr<QueuePair> qp = QueuePair::Create(ProtectionDomain(pd_), init);
    EXPECT_TRUE(qp.ok()) << qp.status();
    qp->state()->set_state(QpState::kRts);
    return *qp;
  }

  absl::Status Post(uint64_t wr_id) { return srq_.PostRecvv(wr_id, {}); }
  void PostAll() {
    for (uint64_t i = 0; i < kDepth; ++i) ASSERT_TRUE(Post(100 + i).ok());
  }
  // What a device does with a message for `qp`: takes the oldest receive. Returns its number in the ring.
  uint64_t Take() { return daemon_.TakeSrqReceive(srq_.handle()).wr_id; }
  void Complete(const QueuePair& qp, uint64_t place) {
    daemon_.Complete(qp.handle(), {.wr_id = place, .opcode = 128}, true);
  }

  std::vector<uint64_t> PollIds() {
    std::array<Wc, 32> wcs;
    std::vector<uint64_t> ids;
    const size_t count = cq_->Poll(wcs);
    for (size_t i = 0; i < count; ++i) ids.push_back(wcs[i].wr_id);
    return ids;
  }

  FakeDaemon daemon_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<PdState> pd_;
  std::shared_ptr<CompletionQueueState> cq_;
  SharedReceiveQueue srq_;
  QueuePair first_;
  QueuePair second_;
};

TEST_F(SharedReceiveQueueTest, QpsNameTheSrqAndHaveNoReceivesOfTheirOwn) {
  const auto request = daemon_.LastRequest<v1::CreateQpRequest>("CreateQp");
  EXPECT_EQ(request.srq(), srq_.handle());
  EXPECT_EQ(request.cap().max_recv_wr(), 0u);
  EXPECT_EQ(first_.srq(), srq_);
  EXPECT_EQ(StatusToErrno(first_.PostRecvv(1, {})), EINVAL);
}

TEST_F(SharedReceiveQueueTest, CompletionsCarryTheApplicationsNumberInAnyOrder) {
  PostAll();
  const std::array<uint64_t, 3> places = {Take(), Take(), Take()};
  Complete(second_, places[1]);
  Complete(first_, places[2]);
  Complete(first_, places[0]);
  EXPECT_EQ(PollIds(), (std::vector<uint64_t>{101, 102, 100}));
}

TEST_F(SharedReceiveQueueTest, SameNumberTwiceIsTwoReceives) {
  ASSERT_TRUE(Post(5).ok());
  ASSERT_TRUE(Post(5).ok());
  Complete(first_, Take());
  Complete(second_, Take());
  EXPECT_EQ(PollIds(), (std::vector<uint64_t>{5, 5}));
}

TEST_F(SharedReceiveQueueTest, FullUntilACompletionWasPolledNotUntilTheRingWasRead) {
  PostAll();
  EXPECT_EQ(StatusToErrno(Post(9)), ENOMEM);
  const uint64_t place = Take();
  EXPECT_EQ(StatusToErrno(Post(9)), ENOMEM);
  Complete(first_, place);
  EXPECT_EQ(StatusToErrno(Post(9)), ENOMEM);
  EXPECT_EQ(PollIds().size(), 1u);
  EXPECT_TRUE(Post(9).ok());
}

// One receive stays with a slow QP while others come and go many times over.
TEST_F(SharedReceiveQueueTest, LongLivedReceiveIsNotOvertakenByTheOthers) {
  ASSERT_TRUE(Post(7777).ok());
  const uint64_t slow = Take();
  for (uint64_t i = 0; i < 10 * kDepth; ++i) {
    ASSERT_TRUE(Post(i).ok());
    Complete(second_, Take());
    ASSERT_EQ(PollIds(), std::vector<uint64_t>{i});
  }
  Complete(first_, slow);
  EXPECT_EQ(PollIds(), std::vector<uint64_t>{7777});
}

TEST_F(SharedReceiveQueueTest, ChainStopsAtTheBadOneAndTakesThoseBefore) {
  const std::array<Sge, 7> too_many{};
  std::array<RecvWr, 3> wrs;
  wrs[2].sges = too_many;
  size_t posted = 99;
  EXPECT_EQ(StatusToErrno(srq_.PostRecv(wrs, &posted)), EINVAL);
  EXPECT_EQ(posted, 2u);
  EXPECT_EQ(daemon_.PublishedSrqReceives(srq_.handle()), 2u);
  EXPECT_TRUE(daemon_.DoorbellRung(srq_.handle()));
  // The bad one holds no place.
  for (uint32_t i = 2; i < kDepth; ++i) EXPECT_TRUE(Post(1).ok());
}

// It comes to an engine with its first QP, which may be another one than was said at its creation.
TEST_F(SharedReceiveQueueTest, RingsWhereTheQpsReplySaysAlsoForWhatWasPostedBefore) {
  constexpr uint32_t kElsewhere = 200;
  ASSERT_TRUE(Post(1).ok());
  daemon_.srq_doorbell = kElsewhere;
  EXPECT_FALSE(daemon_.DoorbellRung(kElsewhere));
  const QueuePair moved = MakeQp();
  EXPECT_TRUE(daemon_.DoorbellRung(kElsewhere));
}

TEST_F(SharedReceiveQueueTest, DestroyedQpGivesTheUnpolledPlacesBack) {
  PostAll();
  const std::array<uint64_t, 3> places = {Take(), Take(), Take()};
  Complete(first_, places[0]);
  Complete(second_, places[1]);
  Complete(first_, places[2]);
  ASSERT_TRUE(first_.Destroy().ok());
  EXPECT_EQ(PollIds(), std::vector<uint64_t>{101});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Post(1).ok());
  EXPECT_EQ(StatusToErrno(Post(1)), ENOMEM);
}

TEST_F(SharedReceiveQueueTest, ResetQpGivesTheUnpolledPlacesBackAndLeavesTheSrqAlone) {
  PostAll();
  Complete(first_, Take());
  Complete(second_, Take());
  QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = QpState::kReset;
  ASSERT_TRUE(first_.Modify(attr).ok());
  EXPECT_EQ(PollIds(), std::vector<uint64_t>{101});
  EXPECT_EQ(daemon_.PublishedSrqReceives(srq_.handle()), kDepth - 2);
  EXPECT_TRUE(Post(1).ok());
  EXPECT_TRUE(Post(1).ok());
  EXPECT_EQ(StatusToErrno(Post(1)), ENOMEM);
}

TEST_F(SharedReceiveQueueTest, InUseCannotBeDestroyed) {
  EXPECT_EQ(StatusToErrno(srq_.Destroy()), EBUSY);
  ASSERT_TRUE(first_.Destroy().ok());
  ASSERT_TRUE(second_.Destroy().ok());
  EXPECT_TRUE(srq_.Destroy().ok());
  EXPECT_TRUE(srq_.Destroy().ok());
  EXPECT_EQ(daemon_.calls("DestroySrq"), 1);
  EXPECT_EQ(Post(1).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SharedReceiveQueueTest, LastHandleAndQpTakeItAlong) {
  srq_ = SharedReceiveQueue();
  first_ = QueuePair();
  EXPECT_EQ(daemon_.calls("DestroySrq"), 0);
  second_ = QueuePair();
  EXPECT_EQ(daemon_.calls("DestroySrq"), 1);
}

TEST_F(SharedReceiveQueueTest, LimitIsSetAndAskedFor) {
  ASSERT_TRUE(srq_.Modify(3).ok());
  const absl::StatusOr<SrqAttr> attr = srq_.Query();
  ASSERT_TRUE(attr.ok());
  EXPECT_EQ(attr->limit, 3u);
  EXPECT_EQ(attr->max_wr, kDepth);
  EXPECT_EQ(attr->max_sge, 6u);
}

// ---- the daemon dies ----

TEST_F(SharedReceiveQueueTest, OutstandingReceivesAreFlushedOldestFirstEachOnce) {
  PostAll();
  const std::array<uint64_t, 2> places = {Take(), Take()};
  Complete(second_, places[1]);
  daemon_.Die();
  session_->MarkDead();
  EXPECT_EQ(PollIds(), std::vector<uint64_t>{101});  // what came before the end
  std::array<Wc, 2> wcs;
  ASSERT_EQ(cq_->Poll(wcs), 2u);
  EXPECT_EQ(wcs[0].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(wcs[0].wr_id, 100u);
  EXPECT_EQ(wcs[0].qpn, first_.qpn());
  EXPECT_EQ(wcs[1].wr_id, 102u);
  EXPECT_EQ(PollIds(), std::vector<uint64_t>{103});
  EXPECT_TRUE(PollIds().empty());
}

TEST_F(SharedReceiveQueueTest, SeveralCqsFlushEachReceiveOnce) {
  const std::shared_ptr<CompletionQueueState> other_cq =
      *CompletionQueueState::Create(session_, 0, 64, nullptr, nullptr);
  QpInit init;
  init.send_cq = init.recv_cq = CompletionQueue(other_cq);
  init.srq = srq_;
  absl::StatusOr<QueuePair> third = QueuePair::Create(ProtectionDomain(pd_), init);
  ASSERT_TRUE(third.ok()) << third.status();
  ASSERT_TRUE(Post(100).ok());
  ASSERT_TRUE(Post(101).ok());
  Complete(*third, Take());  // which nobody polls before the end
  daemon_.Die();
  session_->MarkDead();
  EXPECT_EQ(PollIds(), (std::vector<uint64_t>{100, 101}));
  std::array<Wc, 4> wcs;
  EXPECT_EQ(other_cq->Poll(wcs), 0u);
}

TEST_F(SharedReceiveQueueTest, DeadSessionIsUnavailableAndEndsQuickly) {
  PostAll();
  daemon_.Die();
  session_->MarkDead();
  EXPECT_EQ(Post(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(srq_.Query().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(first_.Destroy().ok());
  EXPECT_TRUE(second_.Destroy().ok());
  EXPECT_TRUE(srq_.Destroy().ok());
}

// Several threads post, one polls, and QPs come and go: for the thread sanitizer above all.
TEST_F(SharedReceiveQueueTest, PostersAndPollerRunBesideEachOther) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> polled{0};
  std::thread poller([&] {
    while (!stop) polled += PollIds().size();
  });
  std::thread engine([&] {
    for (int i = 0; i < 300;) {
      if (daemon_.PublishedSrqReceives(srq_.handle()) == 0) {
        std::this_thread::yield();
        continue;
      }
      Complete(i % 2 == 0 ? first_ : second_, Take());
      ++i;
    }
  });
  std::array<std::thread, 2> posters;
  for (std::thread& poster : posters) {
    poster = std::thread([&] {
      for (int i = 0; i < 150; ++i) {
        while (!Post(1).ok()) std::this_thread::yield();
      }
    });
  }
  for (int i = 0; i < 20; ++i) MakeQp();
  for (std::thread& poster : posters) poster.join();
  engine.join();
  while (polled < 300) std::this_thread::yield();
  stop = true;
  poller.join();
  PostAll();
}

}  // namespace
}  // namespace rdmad::sdk
