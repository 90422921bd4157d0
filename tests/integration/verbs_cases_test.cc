// Verbs as people met them in practice: cases 15 (posting), 19 (lost wake-ups) and 30 (receiver not
// ready).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <iostream>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/counters.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kUnsignaled = 0;

// Between two daemons, or within one.
enum class Where : uint8_t { kTwoDaemons, kSameDaemon };
std::string NameOf(const ::testing::TestParamInfo<Where>& test) {
  return test.param == Where::kTwoDaemons ? "TwoDaemons" : "SameDaemon";
}

class VerbsCasesTest : public LoopbackTest, public ::testing::WithParamInterface<Where> {
 protected:
  void SetUp() override {
    passive_index_ = GetParam() == Where::kTwoDaemons ? 1 : 0;
    for (int i = 0; i <= passive_index_; ++i) ASSERT_OK(StartDaemon(i, {.log_level = "info"}));
    ASSERT_OK_AND_ASSIGN(Client active, AttachTo(Daemon(0), "active"));
    ASSERT_OK_AND_ASSIGN(Client passive, AttachTo(Daemon(passive_index_), "passive"));
    active_ = std::make_unique<Client>(active);
    passive_ = std::make_unique<Client>(passive);
  }

  absl::StatusOr<QpPair> Connect(const QpPairOptions& options = {}) {
    return ConnectQps(*active_, *passive_, Ipv4(passive_index_), options);
  }
  static void PostEmptyRecv(CmId& id, uint64_t wr_id) {
    ASSERT_OK(id.qp().PostRecv(wr_id, nullptr, 0, nullptr));
  }

  int passive_index_ = 0;
  std::unique_ptr<Client> active_;
  std::unique_ptr<Client> passive_;
};

INSTANTIATE_TEST_SUITE_P(Where, VerbsCasesTest,
                         ::testing::Values(Where::kTwoDaemons, Where::kSameDaemon), NameOf);

// ---- Case 15: posting errors

TEST_P(VerbsCasesTest, AChainStopsAtTheFirstBadWorkRequest) {
  ASSERT_OK_AND_ASSIGN(QpPair pair, Connect());
  for (uint64_t i = 0; i < 5; ++i) PostEmptyRecv(*pair.passive, i);
  const std::vector<Sge> too_many(pair.active.id->qp().cap().max_send_sge + 1);
  std::array<SendWr, 5> wrs;
  for (uint64_t i = 0; i < wrs.size(); ++i) wrs[i].wr_id = i;
  wrs[2].sges = too_many;
  size_t posted = 99;

  const absl::Status status = pair.active.id->qp().PostSend(wrs, &posted);

  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(posted, 2u);
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.active_cq));
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_EQ(wc.wr_id, i);
  }
  EXPECT_FALSE(WaitForWc(pair.active_cq, absl::Milliseconds(50)).ok());
}

TEST_P(VerbsCasesTest, AFullQueueSaysSoAndLosesNothing) {
  QpPairOptions options;
  options.active_cap.max_send_wr = 8;
  ASSERT_OK_AND_ASSIGN(QpPair pair, Connect(options));
  QueuePair qp = pair.active.id->qp();
  const uint32_t depth = qp.cap().max_send_wr;
  // The peer has no receives, so nothing completes; only the last is signaled.
  for (uint32_t i = 0; i < depth; ++i) {
    ASSERT_OK(qp.PostSend(i, nullptr, 0, nullptr, i + 1 == depth ? kSendSignaled : kUnsignaled));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(qp.PostSend(99, nullptr, 0, nullptr, kSendSignaled)));

  for (uint32_t i = 0; i < depth; ++i) PostEmptyRecv(*pair.passive, i);
  ASSERT_OK_AND_ASSIGN(const Wc sent, WaitForWc(pair.active_cq));
  EXPECT_EQ(sent.status, WcStatus::kSuccess);
  EXPECT_EQ(sent.wr_id, depth - 1);
  for (uint32_t i = 0; i < depth; ++i) {
    ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(pair.passive_cq));
    EXPECT_EQ(received.status, WcStatus::kSuccess);
    EXPECT_EQ(received.wr_id, i);
  }
  // The completion of the last one gave all places back.
  for (uint32_t i = 0; i < depth; ++i) PostEmptyRecv(*pair.passive, i);
  for (uint32_t i = 0; i < depth; ++i) ASSERT_OK(qp.PostSend(i, nullptr, 0, nullptr, 0));
}

TEST_P(VerbsCasesTest, PostingNeedsTheRightState) {
  ASSERT_OK_AND_ASSIGN(CompletionQueue cq, CompletionQueue::Create(*active_, 0, 16));
  ASSERT_OK_AND_ASSIGN(ProtectionDomain pd, ProtectionDomain::Alloc(*active_, 0));
  ASSERT_OK_AND_ASSIGN(QueuePair qp,
                       QueuePair::Create(pd, {.send_cq = cq, .recv_cq = cq, .cap = {}}));
  // Reset: neither.
  EXPECT_FALSE(qp.PostRecv(1, nullptr, 0, nullptr).ok());
  EXPECT_FALSE(qp.PostSend(1, nullptr, 0, nullptr, kSendSignaled).ok());
  // Init: receives only.
  QpAttr attr;
  attr.mask = kQpAttrState | kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags;
  attr.state = QpState::kInit;
  ASSERT_OK(qp.Modify(attr));
  EXPECT_OK(qp.PostRecv(1, nullptr, 0, nullptr));
  EXPECT_FALSE(qp.PostSend(1, nullptr, 0, nullptr, kSendSignaled).ok());
  // Error: both, and both are flushed.
  attr.mask = kQpAttrState;
  attr.state = QpState::kErr;
  ASSERT_OK(qp.Modify(attr));
  EXPECT_OK(qp.PostRecv(2, nullptr, 0, nullptr));
  EXPECT_OK(qp.PostSend(3, nullptr, 0, nullptr, 0));
  std::vector<uint64_t> flushed;
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(cq));
    EXPECT_EQ(wc.status, WcStatus::kWrFlushErr);
    flushed.push_back(wc.wr_id);
  }
  std::sort(flushed.begin(), flushed.end());
  EXPECT_EQ(flushed, (std::vector<uint64_t>{1, 2, 3}));
}

TEST_P(VerbsCasesTest, MillionsOfSendsWithFewSignaledNeverFindTheQueueFull) {
  const int messages = Fewer(200'000);
  constexpr uint32_t kDepth = 64;
  constexpr uint32_t kSignalEvery = 16;
  QpPairOptions options;
  options.active_cap.max_send_wr = kDepth;
  options.passive_cap.max_recv_wr = 256;
  ASSERT_OK_AND_ASSIGN(QpPair pair, Connect(options));
  std::atomic<int> received{0};
  std::thread receiver([&] {
    uint64_t posted = 0;
    for (; posted < 256; ++posted) PostEmptyRecv(*pair.passive, posted);
    uint64_t next = 0;
    while (received < messages && !HasFailure()) {
      std::array<Wc, 32> wcs;
      const size_t count = pair.passive_cq.Poll(wcs);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(wcs[i].status, WcStatus::kSuccess);
        ASSERT_EQ(wcs[i].wr_id, next++);
        PostEmptyRecv(*pair.passive, posted++);
        ++received;
      }
      if (count == 0) std::this_thread::yield();
    }
  });
  int outstanding = 0;
  for (int i = 0; i < messages && !HasFailure(); ++i) {
    while (outstanding > static_cast<int>(kDepth - kSignalEvery)) {
      Wc wc;
      if (pair.active_cq.Poll({&wc, 1}) == 0) {
        std::this_thread::yield();
        continue;
      }
      EXPECT_EQ(wc.status, WcStatus::kSuccess);
      outstanding -= kSignalEvery;
    }
    const uint32_t flags = i % kSignalEvery == kSignalEvery - 1 ? kSendSignaled : kUnsignaled;
    EXPECT_OK(pair.active.id->qp().PostSend(static_cast<uint64_t>(i), nullptr, 0, nullptr, flags));
    ++outstanding;
  }
  receiver.join();
  EXPECT_EQ(received.load(), messages);
}

// ---- Case 19: lost wake-ups

// A receiver that arms, polls until nothing is left and sleeps, while messages come at random gaps:
// some find it polling, some arming, some asleep.
TEST_P(VerbsCasesTest, NoWakeUpIsLostBetweenPollingAndArming) {
  const int messages = Fewer(60'000);
  constexpr uint32_t kAckBatch = 100;
  ASSERT_OK_AND_ASSIGN(CompletionChannel channel, CompletionChannel::Create(*passive_));
  QpPairOptions options;
  options.passive_channel = &channel;
  options.passive_cap.max_recv_wr = 64;
  // Two queue pairs with two CQs share the channel.
  std::vector<QpPair> pairs;
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(QpPair pair, Connect(options));
    for (uint64_t wr = 0; wr < 64; ++wr) PostEmptyRecv(*pair.passive, wr);
    pair.passive_cq.RequestNotify();
    pairs.push_back(std::move(pair));
  }
  std::thread sender([&] {
    std::mt19937_64 random(19);
    for (int i = 0; i < messages && !HasFailure(); ++i) {
      QpPair& pair = pairs[random() % 2];
      EXPECT_OK(pair.active.id->qp().PostSend(1, nullptr, 0, nullptr, kSendSignaled));
      EXPECT_OK(WaitForWc(pair.active_cq));
      // Around the time that the receiver takes to go to sleep.
      const absl::Time until = absl::Now() + absl::Nanoseconds(random() % 30'000);
      while (random() % 2 == 0 && absl::Now() < until) {
      }
    }
  });
  int received = 0;
  uint32_t unacknowledged[2] = {0, 0};
  while (received < messages) {
    absl::StatusOr<CompletionQueue> told = channel.GetEvent(Slow(absl::Seconds(1)));
    EXPECT_OK(told) << "after " << received << " messages";
    if (!told.ok()) break;
    const int index = *told == pairs[0].passive_cq ? 0 : 1;
    if (++unacknowledged[index] == kAckBatch) {
      told->AckEvents(kAckBatch);
      unacknowledged[index] = 0;
    }
    told->RequestNotify();
    std::array<Wc, 16> wcs;
    for (size_t count = told->Poll(wcs); count > 0; count = told->Poll(wcs)) {
      for (size_t i = 0; i < count; ++i) PostEmptyRecv(*pairs[index].passive, 1);
      received += static_cast<int>(count);
    }
  }
  sender.join();
  EXPECT_EQ(received, messages);
  for (int i = 0; i < 2; ++i) pairs[i].passive_cq.AckEvents(unacknowledged[i]);
}

TEST_P(VerbsCasesTest, OnlySolicitedMessagesAndErrorsWakeASolicitedWait) {
  ASSERT_OK_AND_ASSIGN(CompletionChannel channel, CompletionChannel::Create(*passive_));
  QpPairOptions options;
  options.passive_channel = &channel;
  ASSERT_OK_AND_ASSIGN(QpPair pair, Connect(options));
  for (uint64_t wr = 0; wr < 4; ++wr) PostEmptyRecv(*pair.passive, wr);
  const auto send = [&](uint32_t flags) {
    EXPECT_OK(pair.active.id->qp().PostSend(1, nullptr, 0, nullptr, kSendSignaled | flags));
    EXPECT_OK(WaitForWc(pair.active_cq));
    EXPECT_OK(WaitForWc(pair.passive_cq));
  };
  pair.passive_cq.RequestNotify(true);
  // A verbs completion does not say that it was solicited, so any message wakes.
  if (!OnVerbs()) {
    send(0);
    EXPECT_FALSE(channel.GetEvent(absl::Milliseconds(100)).ok());
  }
  send(kSendSolicited);
  ASSERT_OK_AND_ASSIGN(CompletionQueue told, channel.GetEvent(Slow(absl::Seconds(1))));
  told.AckEvents();

  pair.passive_cq.RequestNotify(true);
  ASSERT_OK(pair.active.id->Disconnect());  // flushes the receives that are left
  ASSERT_OK_AND_ASSIGN(told, channel.GetEvent(Slow(absl::Seconds(2))));
  told.AckEvents();
  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.passive_cq));
  EXPECT_EQ(wc.status, WcStatus::kWrFlushErr);
}

TEST_P(VerbsCasesTest, DestroyingACqWaitsForTheLastAcknowledgement) {
  ASSERT_OK_AND_ASSIGN(CompletionChannel channel, CompletionChannel::Create(*passive_));
  QpPairOptions options;
  options.passive_channel = &channel;
  ASSERT_OK_AND_ASSIGN(QpPair pair, Connect(options));
  PostEmptyRecv(*pair.passive, 1);
  pair.passive_cq.RequestNotify();
  ASSERT_OK(pair.active.id->qp().PostSend(1, nullptr, 0, nullptr, kSendSignaled));
  ASSERT_OK_AND_ASSIGN(CompletionQueue told, channel.GetEvent(Slow(absl::Seconds(2))));
  EXPECT_TRUE(absl::IsFailedPrecondition(told.Destroy()));  // a QP uses it
  pair.passive->DestroyQp();

  std::atomic<bool> destroyed{false};
  CompletionQueue to_destroy = pair.passive_cq;
  std::thread destroyer([&] {
    EXPECT_OK(to_destroy.Destroy());
    destroyed = true;
  });
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_FALSE(destroyed);
  told.AckEvents();
  EXPECT_TRUE(Eventually(absl::Seconds(1), [&] { return destroyed.load(); }));
  destroyer.join();
}

// ---- Case 30: receiver not ready

struct RnrTimer {
  uint8_t code;
  absl::Duration delay;
};
// Source: IBTA vol. 1, RNR NAK timer field.
const RnrTimer kRnrTimers[] = {{0, absl::Microseconds(655'360)},
                               {1, absl::Microseconds(10)},
                               {12, absl::Microseconds(640)},
                               {31, absl::Microseconds(491'520)}};

TEST_P(VerbsCasesTest, RnrRetriesAreSpacedByTheReceiversTimerAndThenRunOut) {
  for (const RnrTimer& timer : kRnrTimers) {
    for (const uint8_t retries : {0, 3}) {
      SCOPED_TRACE(std::to_string(timer.code) + " retries " + std::to_string(retries));
      QpPairOptions options;
      options.active_param.rnr_retry_count = retries;
      options.passive_param.rnr_retry_count = retries;
      options.active_param.retry_count = 1;  // RNR waits do not use these up
      ASSERT_OK_AND_ASSIGN(QpPair pair, Connect(options));
      QpAttr attr;
      attr.mask = kQpAttrMinRnrTimer;
      attr.min_rnr_timer = timer.code;
      ASSERT_OK(pair.passive->qp().Modify(attr));
      const absl::Time start = absl::Now();
      ASSERT_OK(pair.active.id->qp().PostSend(1, nullptr, 0, nullptr, kSendSignaled));

      ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.active_cq));

      const absl::Duration took = absl::Now() - start;
      EXPECT_EQ(wc.status, WcStatus::kRnrRetryExcErr);
      EXPECT_GE(took, retries * timer.delay);
      EXPECT_LT(took, Slow(2 * retries * timer.delay + absl::Milliseconds(300)));
    }
  }
}

TEST_P(VerbsCasesTest, SevenRnrRetriesMeanForEver) {
  QpPairOptions options;
  options.active_param.rnr_retry_count = 7;
  options.passive_param.rnr_retry_count = 7;
  ASSERT_OK_AND_ASSIGN(QpPair pair, Connect(options));
  QpAttr attr;
  attr.mask = kQpAttrMinRnrTimer;
  attr.min_rnr_timer = 12;
  ASSERT_OK(pair.passive->qp().Modify(attr));
  ASSERT_OK(pair.active.id->qp().PostSend(1, nullptr, 0, nullptr, kSendSignaled));
  // Nothing is to happen, however slow the machine: WaitForWc would take ten times as long in a guest.
  absl::SleepFor(absl::Seconds(2));
  EXPECT_FALSE(WaitForWc(pair.active_cq, absl::Milliseconds(20)).ok());

  PostEmptyRecv(*pair.passive, 2);

  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.active_cq, absl::Seconds(2)));
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
}

// ---- Lengths

TEST_P(VerbsCasesTest, AMessageTooLongForItsReceiveEndsBothSidesWithTheRightError) {
  ASSERT_OK_AND_ASSIGN(QpPair pair, Connect());
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(*active_, 8192));
  ASSERT_OK_AND_ASSIGN(Pool peer_pool, Pool::Create(*passive_, 8192));
  ASSERT_OK_AND_ASSIGN(Buffer from, pool.Allocate(1025));
  ASSERT_OK_AND_ASSIGN(Buffer to, peer_pool.Allocate(1024));
  FillPattern(to.bytes(), 3);
  ASSERT_OK_AND_ASSIGN(MemoryRegion from_region, pair.active.id->RegMsgs(from.data(), 1025));
  ASSERT_OK_AND_ASSIGN(MemoryRegion to_region, pair.passive->RegMsgs(to.data(), 1024));
  ASSERT_OK(pair.passive->qp().PostRecv(1, to.data(), 1024, &to_region));
  ASSERT_OK(pair.active.id->qp().PostSend(2, from.data(), 1025, &from_region, kSendSignaled));

  ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(pair.passive_cq));
  // rxe takes it for a fault of the receive's own.
  EXPECT_EQ(received.status, OnVerbs() ? WcStatus::kLocQpOpErr : WcStatus::kLocLenErr);
  ASSERT_OK_AND_ASSIGN(const Wc sent, WaitForWc(pair.active_cq));
  EXPECT_EQ(sent.status, OnVerbs() ? WcStatus::kRemOpErr : WcStatus::kRemInvReqErr);
}

}  // namespace
}  // namespace rdmad::testing
