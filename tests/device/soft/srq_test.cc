// Shared receive queues: who gets the receives, whose completion it is, the limit, and the end of a
// QP that used one (case 21).
#include <gtest/gtest.h>

#include "daemon/device/soft/soft_srq.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpResult;
using device::QpState;
using device::WcStatus;
using device::WrOpcode;

class SrqTest : public PathTest {
 protected:
  static BedOptions SrqOptions(uint32_t depth = 32) {
    BedOptions options = Options();
    options.srq_wr = depth;
    return options;
  }
  static void Send(Bed& bed, uint64_t wr_id) {
    const device::Sge sge = bed.a.Sge(0, 100);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(wr_id, WrOpcode::kSend, &sge)), PostResult::kOk);
  }
};
RDMAD_ON_BOTH_PATHS(SrqTest);

TEST_P(SrqTest, ReceivesGoToTheQpAndCompleteInItsName) {
  Bed bed(SrqOptions());
  bed.Fill(bed.a, 0, 100);
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 1000, 200), PostResult::kOk);
  Send(bed, 5);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  const device::Wc& wc = bed.b.receives.all[0];
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.byte_len, 100u);
  EXPECT_EQ(wc.qpn, bed.b.qp->qpn());
  EXPECT_EQ(wc.qp_cookie, bed.b.qp->qpn() * 100);
  EXPECT_TRUE(bed.Same(0, 1000, 100));
}

TEST_P(SrqTest, ReceiveSizesOfTheQpAreIgnored) {
  BedOptions options = SrqOptions();
  Bed bed(options);
  SoftQpInit init;
  init.qpn = 0x99;
  init.pd = &bed.b.pd;
  init.init.send_cq = &bed.b.send_cq;
  init.init.recv_cq = &bed.b.recv_cq;
  init.init.srq = bed.b.srq.get();
  init.cap = {16, kMaxQueueDepth * 4, 1, kMaxSge * 4, 64};
  init.source = [](uint32_t, SourceAddress*) { return true; };
  auto qp = SoftQp::Create(*bed.b.transport, init);
  ASSERT_TRUE(qp.ok()) << qp.status().ToString();
  EXPECT_EQ((*qp)->cap().max_recv_wr, 0u);
}

TEST_P(SrqTest, AnEmptyQueueIsReceiverNotReadyAndOnePostEndsTheWait) {
  BedOptions options = SrqOptions();
  options.min_rnr_timer = 0;  // 655.36 ms
  Bed bed(options);
  Send(bed, 5);
  bed.network.Pass(1'000'000);
  EXPECT_TRUE(bed.b.receives.all.empty());
  const TimeNs before = bed.network.now();
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 1000, 200), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
  if (GetParam() == Path::kLocal) {
    EXPECT_LT(bed.network.now() - before, 100'000);
  } else {
    EXPECT_EQ(bed.Counter(bed.b, "tx_rnr_nak"), 1u);
  }
}

// Two senders: `a` waits, and another QP of its takes each receive that is posted. What a has of
// retries is for whole waits, and none of these is one.
TEST(SoftSrq, AWaitThatAnotherSendersLuckMakesLongerCostsNoRetry) {
  BedOptions options;
  options.path = Path::kLocal;
  options.srq_wr = 16;
  options.rnr_retry = 3;
  options.min_rnr_timer = 0;  // 655.36 ms
  Bed bed(options);
  const auto make = [&bed](Endpoint& end, uint32_t qpn, SoftSrq* srq) {
    SoftQpInit init;
    init.qpn = qpn;
    init.pd = &end.pd;
    init.init.send_cq = &end.send_cq;
    init.init.recv_cq = &end.recv_cq;
    init.init.srq = srq;
    init.cap = {16, 16, 1, 1, 0};
    init.source = [address = end.address](uint32_t, SourceAddress* out) {
      out->address = address;
      return true;
    };
    auto qp = std::move(SoftQp::Create(*end.transport, init).value());
    qp->Activate(0);
    return qp;
  };
  const auto connect = [&bed](std::unique_ptr<SoftQp>& qp, Endpoint& end, Endpoint& peer,
                              uint32_t dest) {
    qp.swap(end.qp);
    bed.ToInit(end);
    device::QpAttr attr = bed.RtrAttr(peer, 7);
    attr.dest_qpn = dest;
    EXPECT_EQ(end.qp->Modify(attr, 0), QpResult::kOk);
    EXPECT_EQ(end.qp->Modify(bed.RtsAttr(7), 0), QpResult::kOk);
    qp.swap(end.qp);
  };
  std::unique_ptr<SoftQp> other = make(bed.a, 0x31, nullptr);
  std::unique_ptr<SoftQp> its_peer = make(bed.b, 0x32, bed.b.srq.get());
  connect(other, bed.a, bed.b, 0x32);
  connect(its_peer, bed.b, bed.a, 0x31);
  const device::Sge word = bed.a.Sge(0, 8);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &word)), PostResult::kOk);
  bed.network.Pass(1'000'000);

  // In one turn of the engine: the other has a message, and a receive is posted.
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_EQ(other->PostSend(bed.Wr(100 + i, WrOpcode::kSend, &word), bed.network.now()),
              PostResult::kOk);
    ASSERT_EQ(bed.PostRecv(bed.b, 10 + i, 0, 64), PostResult::kOk);
    bed.network.Pass(100'000);
  }
  ASSERT_EQ(bed.a.sends.all.size(), 8u);
  EXPECT_EQ(bed.a.sends.all.back().wr_id, 107u) << "they were to take them all";
  for (const device::Wc& wc : bed.a.sends.all) EXPECT_EQ(wc.status, WcStatus::kSuccess);

  // And whole waits count as ever: three, and then the end.
  const TimeNs before = bed.network.now();
  ASSERT_TRUE(bed.Await(bed.a.sends, 9));
  EXPECT_EQ(bed.a.sends.all.back().wr_id, 1u);
  EXPECT_EQ(bed.a.sends.all.back().status, WcStatus::kRnrRetryExcErr);
  EXPECT_GE(bed.network.now() - before, 3 * 655'000'000ll);
  other->Deactivate(0);
  its_peer->Deactivate(0);
}

TEST_P(SrqTest, TheLimitIsReportedOnceAndThenIsZero) {
  Bed bed(SrqOptions(20));
  for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(bed.PostRecv(bed.b, i, 0, 200), PostResult::kOk);
  ASSERT_EQ(bed.b.srq->SetLimit(10), QpResult::kOk);
  EXPECT_EQ(bed.b.srq->limit(), 10u);
  for (uint64_t i = 0; i < 10; ++i) Send(bed, i);
  ASSERT_TRUE(bed.Await(bed.b.receives, 10));
  EXPECT_EQ(bed.b.events->Count(AsyncEventType::kSrqLimitReached), 0u);  // 10 are not fewer than 10
  Send(bed, 10);
  ASSERT_TRUE(bed.Await(bed.b.receives, 11));
  ASSERT_EQ(bed.b.events->Count(AsyncEventType::kSrqLimitReached), 1u);
  EXPECT_EQ(bed.b.srq->limit(), 0u);
  const auto& events = bed.b.events->all;
  const auto event = std::find_if(events.begin(), events.end(), [](const auto& one) {
    return one.type == AsyncEventType::kSrqLimitReached;
  });
  EXPECT_EQ(event->owner_token, Bed::kSrqToken);
  for (uint64_t i = 0; i < 4; ++i) Send(bed, i);
  ASSERT_TRUE(bed.Await(bed.b.receives, 15));
  for (uint64_t i = 0; i < 15; ++i) ASSERT_EQ(bed.PostRecv(bed.b, i, 0, 200), PostResult::kOk);
  for (uint64_t i = 0; i < 15; ++i) Send(bed, i);
  ASSERT_TRUE(bed.Await(bed.b.receives, 30));
  EXPECT_EQ(bed.b.events->Count(AsyncEventType::kSrqLimitReached), 1u);
}

TEST_P(SrqTest, AMessageThatFindsAnArmedQueueEmptyReportsTheLimit) {
  Bed bed(SrqOptions(20));
  ASSERT_EQ(bed.b.srq->SetLimit(10), QpResult::kOk);
  EXPECT_EQ(bed.b.events->Count(AsyncEventType::kSrqLimitReached), 0u);
  Send(bed, 1);
  bed.network.Pass(100'000);
  EXPECT_EQ(bed.b.events->Count(AsyncEventType::kSrqLimitReached), 1u);
}

TEST_P(SrqTest, AQpInErrorLeavesTheReceivesToTheOthersAndSaysThatItTookItsLast) {
  Bed bed(SrqOptions());
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 1000, 200), PostResult::kOk);
  ASSERT_EQ(bed.PostRecv(bed.b, 2, 2000, 200), PostResult::kOk);
  ASSERT_EQ(bed.MoveTo(bed.b, QpState::kErr), QpResult::kOk);
  ASSERT_EQ(bed.MoveTo(bed.b, QpState::kErr), QpResult::kOk);
  EXPECT_TRUE(bed.b.receives.all.empty());
  EXPECT_EQ(bed.b.events->Count(AsyncEventType::kQpLastWqeReached), 1u);
  ReceiveWqe wqe;
  ASSERT_TRUE(bed.b.srq->Take(&wqe));
  EXPECT_EQ(wqe.wr_id, 1u);
}

TEST_P(SrqTest, AReceiveThatAMessageUsesIsFlushedWithItsQp) {
  BedOptions options = SrqOptions();
  options.config.qp_budget_bytes = 4096;
  options.config.turn_budget_bytes = 4096;
  Bed bed(options);
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 1 << 20), PostResult::kOk);
  const device::Sge sge = bed.a.Sge(0, 1 << 20);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  bed.network.Pass(30'000);
  ASSERT_EQ(bed.MoveTo(bed.b, QpState::kErr), QpResult::kOk);
  ASSERT_EQ(bed.b.receives.all.size(), 1u);
  EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(bed.b.receives.all[0].wr_id, 1u);
}

TEST_P(SrqTest, AUcQpTakesItsReceivesThereAndDropsWhatFindsNone) {
  BedOptions options = SrqOptions();
  options.type = device::QpType::kUc;
  Bed bed(options);
  bed.Fill(bed.a, 0, 100);
  Send(bed, 1);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  bed.network.Pass(100'000);
  EXPECT_TRUE(bed.b.receives.all.empty());
  ASSERT_EQ(bed.PostRecv(bed.b, 7, 1000, 200), PostResult::kOk);
  Send(bed, 2);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kSuccess);
  EXPECT_EQ(bed.b.receives.all[0].wr_id, 7u);
  EXPECT_EQ(bed.b.receives.all[0].qpn, bed.b.qp->qpn());
  EXPECT_TRUE(bed.Same(0, 1000, 100));
}

TEST(SoftSrq, KeysAreThoseOfItsOwnPd) {
  BedOptions options;
  options.srq_wr = 8;
  Bed bed(options);
  SoftPd other;
  auto srq = SoftSrq::Create(bed.b.events, other, {.max_wr = 4, .max_sge = 1});
  ASSERT_TRUE(srq.ok());
  EXPECT_EQ((*srq)->pd_id(), other.id());
  EXPECT_NE((*srq)->pd_id(), bed.b.srq->pd_id());
}

TEST(SoftSrq, TakesWhatWasGrantedAndNoMore) {
  SoftPd pd;
  EventLog events;
  auto srq = SoftSrq::Create(&events, pd, {.max_wr = 2, .max_sge = 1});
  ASSERT_TRUE(srq.ok());
  const device::Sge sges[2] = {{1, 2, 3}, {4, 5, 6}};
  EXPECT_EQ((*srq)->PostRecv({1, sges}), PostResult::kTooManySges);
  EXPECT_EQ((*srq)->PostRecv({1, {sges, 1}}), PostResult::kOk);
  EXPECT_EQ((*srq)->PostRecv({2, {}}), PostResult::kOk);
  EXPECT_EQ((*srq)->PostRecv({3, {}}), PostResult::kQueueFull);
  EXPECT_EQ((*srq)->SetLimit(3), QpResult::kBadValue);
  EXPECT_EQ((*srq)->SetLimit(2), QpResult::kOk);
}

TEST(SoftSrq, RefusesSizesOverTheLimits) {
  SoftPd pd;
  EventLog events;
  const auto status = [&](uint32_t max_wr, uint32_t max_sge) {
    return SoftSrq::Create(&events, pd, {.max_wr = max_wr, .max_sge = max_sge}).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(status(0, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(status(kMaxQueueDepth + 1, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(status(1, kMaxSge + 1)));
  EXPECT_TRUE(status(kMaxQueueDepth, kMaxSge).ok());
}

}  // namespace
}  // namespace rdmad::soft
