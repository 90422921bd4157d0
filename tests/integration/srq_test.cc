// Shared receive queues, as applications see them.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <vector>

#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr size_t kSlotBytes = 2048;
constexpr uint32_t kDepth = 16;

// Several wired pairs whose passive QPs share an SRQ and a CQ.
class SrqTest : public PathTest {
 protected:
  void MakePairs(int count) {
    ASSERT_OK_AND_ASSIGN(WiredEnd host, MakeEnd(passive(), passive_address()));
    host_.emplace(std::move(host));
    ASSERT_OK_AND_ASSIGN(srq_,
                         SharedReceiveQueue::Create(host_->pd, {.max_wr = kDepth, .max_sge = 1}));
    MakeMorePairs(count);
  }
  void MakeMorePairs(int count) {
    WiredOptions shared;
    shared.pd = &host_->pd;
    shared.cq = &host_->cq;
    shared.srq = &srq_;
    for (int i = 0; i < count; ++i) {
      ASSERT_OK_AND_ASSIGN(WiredEnd from, MakeEnd(active(), active_address()));
      ASSERT_OK_AND_ASSIGN(WiredEnd to, MakeEnd(passive(), passive_address(), shared));
      ASSERT_OK(Wire(from, to));
      from_.push_back(std::move(from));
      to_.push_back(std::move(to));
    }
  }

  // Receive `slot` goes to the slot's place in the memory of host_.
  absl::Status Post(uint64_t slot) {
    return srq_.PostRecv(slot, host_->memory.data() + slot * kSlotBytes, kSlotBytes,
                         &host_->region);
  }
  // One message from `index`, and its completion there.
  void Send(int index, uint64_t seed) {
    WiredEnd& from = from_[static_cast<size_t>(index)];
    FillPattern({from.memory.data(), kSlotBytes}, seed);
    ASSERT_OK(from.qp.PostSend(1, from.memory.data(), kSlotBytes, &from.region, kSendSignaled));
    ASSERT_OK_AND_ASSIGN(const Wc sent, WaitForWc(from.cq));
    ASSERT_EQ(sent.status, WcStatus::kSuccess) << WcStatusString(sent.status);
  }
  std::optional<size_t> Mismatch(uint64_t slot, uint64_t seed) {
    return PatternMismatch({host_->memory.data() + slot * kSlotBytes, kSlotBytes}, seed);
  }

  std::optional<WiredEnd> host_;
  SharedReceiveQueue srq_;
  std::vector<WiredEnd> from_;
  std::vector<WiredEnd> to_;
};

INSTANTIATE_TEST_SUITE_P(Paths, SrqTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

TEST_P(SrqTest, MessagesOfAllQpsTakeTheOldestReceive) {
  ASSERT_NO_FATAL_FAILURE(MakePairs(3));
  for (uint64_t slot = 0; slot < kDepth; ++slot) ASSERT_OK(Post(slot));
  for (uint64_t i = 0; i < kDepth; ++i) {
    const int sender = static_cast<int>(i % 3);
    ASSERT_NO_FATAL_FAILURE(Send(sender, i + 1));
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(host_->cq));
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_EQ(wc.opcode, WcOpcode::kRecv);
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.qpn, to_[static_cast<size_t>(sender)].qp.qpn());
    EXPECT_EQ(wc.byte_len, kSlotBytes);
    EXPECT_EQ(Mismatch(i, i + 1), std::nullopt);
  }
}

TEST_P(SrqTest, DepthIsThatOfVerbsManyTimesOver) {
  ASSERT_NO_FATAL_FAILURE(MakePairs(2));
  const uint32_t depth = srq_.max_wr();
  ASSERT_GE(depth, kDepth);
  for (uint64_t i = 0; i < depth; ++i) ASSERT_OK(Post(i % kDepth));
  EXPECT_TRUE(absl::IsResourceExhausted(Post(0)));
  for (int round = 0; round < Fewer(10 * static_cast<int>(kDepth)); ++round) {
    ASSERT_NO_FATAL_FAILURE(Send(round % 2, 1));
    EXPECT_TRUE(absl::IsResourceExhausted(Post(0)));  // until it was polled
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(host_->cq));
    ASSERT_EQ(wc.status, WcStatus::kSuccess);
    ASSERT_OK(Post(wc.wr_id));
  }
}

TEST_P(SrqTest, SenderWaitsUntilTheSrqHasAReceive) {
  ASSERT_NO_FATAL_FAILURE(MakePairs(1));
  ASSERT_OK(from_[0].qp.PostSend(1, nullptr, 0, nullptr, kSendSignaled));
  EXPECT_FALSE(WaitForWc(from_[0].cq, absl::Milliseconds(100)).ok());
  ASSERT_OK(Post(3));
  ASSERT_OK_AND_ASSIGN(const Wc sent, WaitForWc(from_[0].cq));
  EXPECT_EQ(sent.status, WcStatus::kSuccess);
  ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(host_->cq));
  EXPECT_EQ(received.wr_id, 3u);
}

TEST_P(SrqTest, LimitIsReportedOnceAndThenDisarmed) {
  ASSERT_NO_FATAL_FAILURE(MakePairs(2));
  for (uint64_t slot = 0; slot < 8; ++slot) ASSERT_OK(Post(slot));
  ASSERT_OK(srq_.Modify(6));
  EXPECT_EQ(srq_.Query()->limit, 6u);
  EXPECT_FALSE(NextEvent(passive(), kAsyncSrqLimitReached, absl::Milliseconds(50)).ok());

  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(Send(i % 2, 1));  // 5 are left

  ASSERT_OK_AND_ASSIGN(const AsyncEvent event, NextEvent(passive(), kAsyncSrqLimitReached));
  EXPECT_EQ(event.handle, srq_.handle());
  ASSERT_OK_AND_ASSIGN(const SrqAttr attr, srq_.Query());
  EXPECT_EQ(attr.limit, 0u);
  EXPECT_EQ(attr.max_wr, srq_.max_wr());
  ASSERT_NO_FATAL_FAILURE(Send(0, 1));
  EXPECT_FALSE(NextEvent(passive(), kAsyncSrqLimitReached, absl::Milliseconds(50)).ok());
}

TEST_P(SrqTest, LimitOverTheDepthIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakePairs(1));
  EXPECT_TRUE(absl::IsInvalidArgument(srq_.Modify(srq_.max_wr() + 1)));
}

TEST_P(SrqTest, QpInErrorLeavesTheReceivesToTheOthers) {
  ASSERT_NO_FATAL_FAILURE(MakePairs(2));
  for (uint64_t slot = 0; slot < 4; ++slot) ASSERT_OK(Post(slot));
  ASSERT_OK(MoveTo(to_[0], QpState::kErr));
  if (!OnVerbs()) {  // rxe of Linux 6.1 does not tell
    ASSERT_OK_AND_ASSIGN(const AsyncEvent event, NextEvent(passive(), kAsyncQpLastWqe));
    EXPECT_EQ(event.handle, to_[0].qp.handle());
  }
  EXPECT_FALSE(WaitForWc(host_->cq, absl::Milliseconds(50)).ok());
  ASSERT_OK(to_[0].qp.Destroy());
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_NO_FATAL_FAILURE(Send(1, i));
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(host_->cq));
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_EQ(wc.wr_id, i);
  }
}

TEST_P(SrqTest, InUseItCannotBeDestroyed) {
  ASSERT_NO_FATAL_FAILURE(MakePairs(1));
  EXPECT_TRUE(absl::IsFailedPrecondition(srq_.Destroy()));
  ASSERT_OK(to_[0].qp.Destroy());
  EXPECT_OK(srq_.Destroy());
}

// rdma_create_srq, on ids that a listener gives.
TEST_P(SrqTest, ConnectedIdsShareAnSrq) {
  ASSERT_OK_AND_ASSIGN(ListeningId listener, ListenOn(passive(), passive_address()));
  std::vector<ActiveId> actives;
  std::vector<std::unique_ptr<CmId>> passives;
  std::optional<WiredEnd> memory;
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(ActiveId one, Resolve(active(), listener.address));
    ASSERT_OK(one.id->CreateQp(nullptr, {}));
    ASSERT_OK(one.id->Connect());
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*listener.channel, CmEventType::kConnectRequest));
    std::unique_ptr<CmId> id = request->TakeId();
    if (i == 0) {
      ASSERT_OK(id->CreateSrq(nullptr, {.max_wr = 8, .max_sge = 1}));
      srq_ = id->srq();
    }
    QpInit init;
    if (i != 0) init.srq = srq_;
    ASSERT_OK(id->CreateQp(nullptr, init));
    EXPECT_EQ(id->qp().srq(), srq_);
    ASSERT_OK(id->Accept());
    ASSERT_OK(ExpectEvent(*one.channel, CmEventType::kEstablished).status());
    ASSERT_OK(ExpectEvent(*listener.channel, CmEventType::kEstablished).status());
    actives.push_back(std::move(one));
    passives.push_back(std::move(id));
  }
  for (uint64_t i = 0; i < 4; ++i) ASSERT_OK(srq_.PostRecv(i, nullptr, 0, nullptr));
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_OK(actives[i % 2].id->qp().PostSend(9, nullptr, 0, nullptr, kSendSignaled));
    EXPECT_EQ(actives[i % 2].id->GetSendComp(Slow(absl::Seconds(5)))->status, WcStatus::kSuccess);
    ASSERT_OK_AND_ASSIGN(const Wc wc, passives[i % 2]->GetRecvComp(Slow(absl::Seconds(5))));
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_EQ(wc.wr_id, i);
  }
}

TEST_P(SrqTest, DaemonsDeathFlushesTheReceivesEachOnce) {
  ASSERT_NO_FATAL_FAILURE(MakePairs(2));
  for (uint64_t slot = 0; slot < 6; ++slot) ASSERT_OK(Post(slot));
  ASSERT_NO_FATAL_FAILURE(Send(0, 1));
  ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(host_->cq));
  EXPECT_EQ(received.wr_id, 0u);
  Daemon(GetParam().two_daemons ? 1 : 0).Kill();
  for (uint64_t slot = 1; slot < 6; ++slot) {
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(host_->cq));
    EXPECT_EQ(wc.status, WcStatus::kWrFlushErr);
    EXPECT_EQ(wc.wr_id, slot);
  }
  EXPECT_TRUE(absl::IsUnavailable(Post(0)));
  EXPECT_FALSE(WaitForWc(host_->cq, absl::Milliseconds(50)).ok());
}

}  // namespace
}  // namespace rdmad::testing
