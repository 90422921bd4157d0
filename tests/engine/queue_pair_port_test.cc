#include "daemon/engine/queue_pair_port.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/engine/engine_bed.h"

namespace rdmad::engine {
namespace {

using device::PostResult;
using device::QpState;
using device::WcStatus;

class QueuePairPortTest : public ::testing::Test {
 protected:
  // WRs stay with the device until a test asks it to move.
  void HoldSends() { bed_.path.max_sends_per_turn = 0; }
  void LetSendsGo() {
    bed_.path.max_sends_per_turn = UINT32_MAX;
    bed_.Settle();
  }
  void RingAndTurn(TestQp& qp) {
    qp.Ring();
    bed_.Turn();
  }
  SessionCounters Counters() { return session_.port->Counters(); }

  EngineBed bed_;
  TestSession session_{bed_};
  TestCq cq_{bed_, session_, 256};
};

TEST_F(QueuePairPortTest, ADoorbellBringsWrsToTheDeviceAndCompletionsBack) {
  TestQp qp(bed_, session_, cq_);
  ASSERT_EQ(qp.Recv(1), 0);
  ASSERT_EQ(qp.Send(2), 0);
  RingAndTurn(qp);
  EXPECT_EQ(WrIds(cq_.PollAll()), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(Counters().send_wrs, 1u);
  EXPECT_EQ(Counters().recv_wrs, 1u);
  EXPECT_EQ(Counters().doorbells, 1u);
}

TEST_F(QueuePairPortTest, BytesArriveInlineAndNot) {
  TestQp qp(bed_, session_, cq_);
  std::string text =
      "some payload that is longer than the sixty-four bytes of a first slot, so it goes on";
  for (const uint8_t flags : {uint8_t{0}, shm::kWorkInline}) {
    std::string buffer(text.size(), '.');
    const shm::WorkSge to{reinterpret_cast<uintptr_t>(buffer.data()),
                          static_cast<uint32_t>(buffer.size()), 0};
    const shm::WorkSge from{reinterpret_cast<uintptr_t>(text.data()),
                            static_cast<uint32_t>(text.size()), 0};
    ASSERT_EQ(qp.recvs.PostRecv(1, std::span(&to, 1)), 0);
    sdk::SendRequest request;
    request.flags = flags | shm::kWorkSignaled;
    request.sges = std::span(&from, 1);
    ASSERT_EQ(qp.sends.PostSend(request), 0);
    RingAndTurn(qp);
    EXPECT_EQ(cq_.PollAll().size(), 2u);
    EXPECT_EQ(buffer, text);
  }
  EXPECT_EQ(Counters().send_bytes, 2 * text.size());
  EXPECT_EQ(Counters().recv_bytes, 2 * text.size());
}

// As a device does it in the middle of a message.
TEST_F(QueuePairPortTest, ADeviceThatFindsNoReceiveGetsItBeforeTheDoorbell) {
  TestQp qp(bed_, session_, cq_);
  bed_.Settle();
  ASSERT_EQ(qp.Recv(1), 0);
  ASSERT_EQ(qp.Recv(2), 0);
  qp.recvs.Publish();
  ASSERT_NE(qp.qp->source, nullptr);
  qp.qp->source->PostReceives();
  ASSERT_EQ(qp.qp->recvs.size(), 2u);
  EXPECT_EQ(qp.qp->recvs[0].wr_id, 1u);
  qp.qp->source->PostReceives();
  qp.Ring();
  bed_.Settle();
  EXPECT_EQ(qp.qp->recvs.size(), 2u) << "each once";
  EXPECT_EQ(Counters().recv_wrs, 2u);
}

TEST_F(QueuePairPortTest, AReceiveThatIsWrongIsNotDealtWithInAMessage) {
  for (const bool malformed : {false, true}) {
    SCOPED_TRACE(malformed);
    TestQp qp(bed_, session_, cq_);
    bed_.Settle();
    qp.qp->modified_to.clear();
    if (!malformed) qp.qp->recv_results = {PostResult::kOk, PostResult::kTooManySges};
    for (uint64_t id : {1, 2, 3}) ASSERT_EQ(qp.Recv(id), 0);
    auto* const slots = reinterpret_cast<shm::WorkSlot*>(qp.recv_header + 1);
    if (malformed) slots[1].flags = shm::kWorkInline;
    qp.recvs.Publish();
    qp.qp->source->PostReceives();
    EXPECT_EQ(qp.qp->recvs.size(), 1u);
    EXPECT_TRUE(qp.qp->modified_to.empty());
    if (!malformed) qp.qp->recv_results = {PostResult::kTooManySges};
    bed_.Settle();
    EXPECT_EQ(qp.qp->state, QpState::kErr) << "in its turn, and without a doorbell";
    EXPECT_EQ(WrIds(cq_.PollAll()), (std::vector<uint64_t>{1, 2, 3}));
  }
}

TEST_F(QueuePairPortTest, WithoutADoorbellNothingIsRead) {
  TestQp qp(bed_, session_, cq_);
  bed_.Settle();  // the look that activation asks for
  ASSERT_EQ(qp.Send(1), 0);
  qp.sends.Publish();
  EXPECT_EQ(bed_.Turn(), 0);
  EXPECT_EQ(qp.qp->send_posts, 0u);
}

TEST_F(QueuePairPortTest, ADoorbellOfBeforeActivationIsNotLost) {
  TestQpOptions options;
  TestQp neighbour(bed_, session_, cq_, options);  // so that the engine looks at this word at all
  options.doorbell_index = 1;
  options.owner_token = 8;
  options.activate_port = false;
  TestQp qp(bed_, session_, cq_, options);
  ASSERT_EQ(qp.Recv(1), 0);
  ASSERT_EQ(qp.Send(2), 0);
  qp.Ring();
  bed_.Settle();  // nobody has this index: the bell is taken and leads nowhere
  EXPECT_TRUE(cq_.PollAll().empty());
  bed_.Activate(*qp.port);
  bed_.Settle();
  EXPECT_EQ(cq_.PollAll().size(), 2u);
}

TEST_F(QueuePairPortTest, ALongQueueIsTakenInTurns) {
  EngineOptions engine_options;
  engine_options.wrs_per_ring = 4;
  EngineBed bed(engine_options);
  TestSession session(bed);
  TestCq cq(bed, session, 256);
  TestQpOptions options;
  TestQp first(bed, session, cq, options);
  options.doorbell_index = 1;
  options.owner_token = 8;
  TestQp second(bed, session, cq, options);
  bed.Settle();
  bed.path.max_sends_per_turn = 0;
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(first.Send(i), 0);
    ASSERT_EQ(second.Send(i), 0);
  }
  first.Ring();
  second.Ring();
  const size_t expected[] = {4, 8, 10, 10};
  for (const size_t count : expected) {
    bed.Turn();
    EXPECT_EQ(first.qp->sends.size(), count);
    EXPECT_EQ(second.qp->sends.size(), count);
  }
}

TEST_F(QueuePairPortTest, TheTurnsBudgetIsSharedFairly) {
  EngineOptions engine_options;
  engine_options.wrs_per_ring = 4;
  engine_options.wrs_per_turn = 8;  // two of the three
  EngineBed bed(engine_options);
  TestSession session(bed);
  TestCq cq(bed, session, 256);
  std::vector<std::unique_ptr<TestQp>> qps;
  for (uint32_t i = 0; i < 3; ++i) {
    TestQpOptions options;
    options.doorbell_index = i;
    options.owner_token = i;
    qps.push_back(std::make_unique<TestQp>(bed, session, cq, options));
  }
  bed.Settle();
  bed.path.max_sends_per_turn = 0;
  for (auto& qp : qps) {
    for (uint64_t i = 0; i < 16; ++i) ASSERT_EQ(qp->Send(i), 0);
    qp->Ring();
  }
  for (int turn = 0; turn < 3; ++turn) bed.Turn();
  for (auto& qp : qps) EXPECT_EQ(qp->qp->sends.size(), 8u);
}

struct RefusalCase {
  const char* name;
  PostResult result;
  WcStatus status;
};

TEST_F(QueuePairPortTest, ARefusedSendFailsByNameInItsTurn) {
  const RefusalCase cases[] = {
      {"bad opcode", PostResult::kBadOpcode, WcStatus::kLocQpOpErr},
      {"too many SGEs", PostResult::kTooManySges, WcStatus::kLocQpOpErr},
      {"too long", PostResult::kTooLong, WcStatus::kLocLenErr},
  };
  for (const RefusalCase& c : cases) {
    SCOPED_TRACE(c.name);
    HoldSends();
    TestQp qp(bed_, session_, cq_);
    ASSERT_EQ(qp.Recv(101), 0);
    ASSERT_EQ(qp.Recv(102), 0);
    qp.qp->send_results = {PostResult::kOk, PostResult::kOk, c.result};
    for (uint64_t id = 1; id <= 5; ++id) ASSERT_EQ(qp.Send(id), 0);
    RingAndTurn(qp);
    EXPECT_TRUE(cq_.PollAll().empty());
    EXPECT_EQ(qp.qp->state, QpState::kRts) << "or the two before it would be flushed";
    LetSendsGo();
    std::vector<shm::Cqe> cqes = cq_.PollAll();
    std::erase_if(cqes, [](const shm::Cqe& cqe) { return (cqe.flags & shm::kCqeRecvQueue) != 0; });
    EXPECT_EQ(WrIds(cqes), (std::vector<uint64_t>{1, 2, 3, 4, 5}));
    EXPECT_EQ(Statuses(cqes),
              (std::vector<WcStatus>{WcStatus::kSuccess, WcStatus::kSuccess, c.status,
                                     WcStatus::kWrFlushErr, WcStatus::kWrFlushErr}));
    for (uint32_t i = 0; i < cqes.size(); ++i) EXPECT_EQ(cqes[i].wqe_count, i + 1);
    EXPECT_EQ(qp.qp->state, QpState::kErr);
  }
  EXPECT_TRUE(bed_.sink.async.empty()) << "the completion says it";
}

TEST_F(QueuePairPortTest, ASendInTheWrongStateIsFlushed) {
  TestQp qp(bed_, session_, cq_);
  ASSERT_EQ(bed_.Modify(*qp.qp, QpState::kInit), device::QpResult::kOk);
  ASSERT_EQ(qp.Send(1), 0);
  RingAndTurn(qp);
  EXPECT_EQ(Statuses(cq_.PollAll()), std::vector<WcStatus>{WcStatus::kWrFlushErr});
  EXPECT_EQ(qp.qp->state, QpState::kErr);
}

TEST_F(QueuePairPortTest, WhatCompletedBeforeTheRefusalStaysGood) {
  TestQp qp(bed_, session_, cq_);
  ASSERT_EQ(qp.Recv(100), 0);
  ASSERT_EQ(qp.Send(1), 0);
  RingAndTurn(qp);
  cq_.PollAll();
  qp.qp->send_results = {PostResult::kBadOpcode};
  ASSERT_EQ(qp.Send(2), 0);
  RingAndTurn(qp);
  const std::vector<shm::Cqe> cqes = cq_.PollAll();
  ASSERT_EQ(cqes.size(), 1u);
  EXPECT_EQ(Statuses(cqes)[0], WcStatus::kLocQpOpErr);
  EXPECT_EQ(cqes[0].wqe_count, 2u);
}

TEST_F(QueuePairPortTest, AMalformedSendFailsByNameEvenIfNotSignaled) {
  TestQp qp(bed_, session_, cq_);
  ASSERT_EQ(qp.Send(1), 0);
  qp.SendSlot(0).opcode = 99;
  qp.SendSlot(0).flags = 0;
  RingAndTurn(qp);
  const std::vector<shm::Cqe> cqes = cq_.PollAll();
  EXPECT_EQ(WrIds(cqes), std::vector<uint64_t>{1});
  EXPECT_EQ(Statuses(cqes), std::vector<WcStatus>{WcStatus::kLocQpOpErr});
  EXPECT_EQ(Counters().malformed_wrs, 1u);
}

TEST_F(QueuePairPortTest, MoreWrsThanTheDepthAreTheClientsFault) {
  HoldSends();
  TestQp qp(bed_, session_, cq_);
  for (uint64_t id = 0; id < 16; ++id) ASSERT_EQ(qp.Send(id), 0);
  EXPECT_EQ(qp.Send(16), ENOMEM) << "the library refuses";
  // A client that does not care.
  qp.Ring();
  qp.SendSlot(16) = qp.SendSlot(15);
  qp.send_header->tail.store(17);
  bed_.Turn();
  EXPECT_EQ(qp.qp->state, QpState::kErr);
  EXPECT_EQ(cq_.PollAll().size(), 16u) << "flushed";
  ASSERT_EQ(bed_.sink.async.size(), 1u);
  EXPECT_EQ(bed_.sink.async[0].type, device::AsyncEventType::kQpFatal);
  EXPECT_EQ(bed_.sink.async[0].owner_token, 7u);
  EXPECT_EQ(bed_.sink.async[0].qpn, qp.qp->qpn());
}

TEST_F(QueuePairPortTest, ACorruptRingCostsTheQpOnce) {
  for (const bool send_ring : {true, false}) {
    TestQp qp(bed_, session_, cq_);
    bed_.sink.async.clear();
    (send_ring ? qp.send_header : qp.recv_header)->tail.store(0x40000000);
    for (int i = 0; i < 3; ++i) {
      session_.ringer().Ring(0);
      bed_.Settle();
    }
    EXPECT_EQ(qp.qp->state, QpState::kErr);
    EXPECT_EQ(bed_.sink.async.size(), 1u);
    EXPECT_TRUE(bed_.sink.corrupt.empty()) << "the session lives";
  }
}

TEST_F(QueuePairPortTest, ARefusedReceiveMovesTheQpToErrorAndFlushes) {
  TestQp qp(bed_, session_, cq_);
  qp.qp->recv_results = {PostResult::kTooManySges};
  ASSERT_EQ(qp.Recv(3), 0);
  RingAndTurn(qp);
  const std::vector<shm::Cqe> cqes = cq_.PollAll();
  EXPECT_EQ(WrIds(cqes), std::vector<uint64_t>{3});
  EXPECT_EQ(Statuses(cqes), std::vector<WcStatus>{WcStatus::kWrFlushErr});
  EXPECT_EQ(bed_.sink.async.size(), 1u);
}

TEST_F(QueuePairPortTest, WrsOfAQpInErrorAreFlushed) {
  TestQp qp(bed_, session_, cq_);
  ASSERT_EQ(bed_.Modify(*qp.qp, QpState::kErr), device::QpResult::kOk);
  ASSERT_EQ(qp.Send(1), 0);
  ASSERT_EQ(qp.Recv(2), 0);
  RingAndTurn(qp);
  EXPECT_EQ(Statuses(cq_.PollAll()),
            (std::vector<WcStatus>{WcStatus::kWrFlushErr, WcStatus::kWrFlushErr}));
}

TEST_F(QueuePairPortTest, ResetForgetsWhatTheRingsHold) {
  TestQp qp(bed_, session_, cq_);
  bed_.Settle();
  ASSERT_EQ(qp.Recv(1), 0);
  ASSERT_EQ(qp.Send(2), 0);
  qp.sends.Publish();
  qp.recvs.Publish();
  ASSERT_EQ(bed_.Modify(*qp.qp, QpState::kReset), device::QpResult::kOk);
  qp.ringer.Ring(0);
  bed_.Settle();
  EXPECT_EQ(qp.qp->state, QpState::kReset) << "posting to it would have been an error";
  EXPECT_TRUE(cq_.PollAll().empty());
}

TEST_F(QueuePairPortTest, ABrokenQpWorksAgainAfterReset) {
  TestQp qp(bed_, session_, cq_);
  qp.send_header->tail.store(0x40000000);
  session_.ringer().Ring(0);
  bed_.Settle();
  ASSERT_EQ(bed_.Modify(*qp.qp, QpState::kReset), device::QpResult::kOk);
  qp.sends.Reset();
  qp.recvs.Reset();
  cq_.reader.Purge(0, [](const shm::Cqe&) {});  // no QP here has a cookie
  ASSERT_EQ(bed_.Modify(*qp.qp, QpState::kRts), device::QpResult::kOk);
  ASSERT_EQ(qp.Recv(1), 0);
  ASSERT_EQ(qp.Send(2), 0);
  RingAndTurn(qp);
  const std::vector<shm::Cqe> cqes = cq_.PollAll();
  EXPECT_EQ(Statuses(cqes), (std::vector<WcStatus>{WcStatus::kSuccess, WcStatus::kSuccess}));
  EXPECT_EQ(cqes[1].wqe_count, 1u) << "counts start again";
}

TEST_F(QueuePairPortTest, AfterResetARefusedSendStillFailsByName) {
  TestQp qp(bed_, session_, cq_);
  ASSERT_EQ(qp.Recv(1), 0);
  ASSERT_EQ(qp.Send(2), 0);
  RingAndTurn(qp);
  ASSERT_EQ(bed_.Modify(*qp.qp, QpState::kReset), device::QpResult::kOk);
  qp.sends.Reset();
  qp.recvs.Reset();
  cq_.PollAll();
  ASSERT_EQ(bed_.Modify(*qp.qp, QpState::kRts), device::QpResult::kOk);
  qp.qp->send_results = {PostResult::kBadOpcode};
  ASSERT_EQ(qp.Send(3), 0);
  RingAndTurn(qp);
  EXPECT_EQ(Statuses(cq_.PollAll()), std::vector<WcStatus>{WcStatus::kLocQpOpErr});
}

TEST_F(QueuePairPortTest, OverrunOfItsCqMovesEveryQpOfItToError) {
  TestCq small(bed_, session_, 2, nullptr, 77);
  TestQpOptions options;
  TestQp first(bed_, session_, small, options);
  options.doorbell_index = 1;
  options.owner_token = 8;
  TestQp second(bed_, session_, small, options);
  options.doorbell_index = 2;
  options.owner_token = 9;
  TestQp other(bed_, session_, cq_, options);
  for (uint64_t id = 0; id < 2; ++id) {
    ASSERT_EQ(first.Recv(id), 0);
    ASSERT_EQ(first.Send(id), 0);
  }
  RingAndTurn(first);
  bed_.Settle();
  EXPECT_EQ(first.qp->state, QpState::kErr);
  EXPECT_EQ(second.qp->state, QpState::kErr);
  EXPECT_EQ(other.qp->state, QpState::kRts);
  EXPECT_EQ(bed_.sink.overruns, std::vector<uint64_t>{77});
}

// CASES 15: the long run with one completion in 16 asked for.
TEST_F(QueuePairPortTest, AMillionSendsWithFewCompletionsNeverFillTheQueue) {
  TestQpOptions options;
  options.depth = 64;
  options.max_sge = 1;
  options.max_inline_bytes = 0;
  bed_.path.copy_bytes = false;
  TestQp qp(bed_, session_, cq_, options);
  uint64_t recvs = 0;
  for (uint64_t id = 1; id <= 1'000'000;) {
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(qp.Recv(recvs++), 0);
      ASSERT_EQ(qp.Send(id, id % 16 == 0 ? shm::kWorkSignaled : uint8_t{0}), 0) << id;
      ++id;
    }
    RingAndTurn(qp);
    for (const shm::Cqe& cqe : cq_.PollAll()) {
      ASSERT_EQ(cqe.status, 0);
      if ((cqe.flags & shm::kCqeRecvQueue) != 0) {
        qp.recvs.RetireOne();
      } else {
        qp.sends.RetireUpTo(cqe.wqe_count);
      }
    }
  }
  EXPECT_EQ(qp.sends.outstanding(), 0u);
}

TEST_F(QueuePairPortTest, UnsignaledPostsWithoutAnswerFillTheQueueAtItsDepth) {
  HoldSends();
  TestQpOptions options;
  options.depth = 5;
  TestQp qp(bed_, session_, cq_, options);
  for (uint64_t id = 0; id < 5; ++id) {
    ASSERT_EQ(qp.Send(id, 0), 0);
    RingAndTurn(qp);
  }
  EXPECT_EQ(qp.Send(5, 0), ENOMEM);
  ASSERT_EQ(bed_.Modify(*qp.qp, QpState::kErr), device::QpResult::kOk);
  EXPECT_EQ(cq_.PollAll().size(), 5u) << "nothing is lost: each is flushed";
}

}  // namespace
}  // namespace rdmad::engine
