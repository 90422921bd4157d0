// Errors of work requests, as an application hears of them: which one has which status, what becomes
// of the ones behind it, and what the peer sees. (rc_error_table_test has every combination.)
#include <gtest/gtest.h>

#include <vector>

#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr size_t kHalf = WiredEnd::kMemoryBytes / 2;
constexpr size_t kBytes = 5000;  // several packets at the usual path MTUs

class ErrorsTest : public WiredPairTest {
 protected:
  Sge Local(size_t length_bytes = kBytes) const {
    return {a_->AddressAt(0), static_cast<uint32_t>(length_bytes), a_->region.lkey()};
  }
  // From `sge` at a_ to the second half of b_'s memory, with its key.
  SendWr Wr(WrOpcode opcode, const Sge& sge) const {
    SendWr wr;
    wr.wr_id = 1;
    wr.opcode = opcode;
    wr.sges = {&sge, 1};
    wr.remote_addr = b_->AddressAt(kHalf);
    wr.rkey = b_->region.rkey();
    return wr;
  }
  // What a key that opens nothing is to the one who posts it. rxe tells it apart from memory that is
  // not the key's.
  static WcStatus OfABadKey() {
    return OnVerbs() ? WcStatus::kLocQpOpErr : WcStatus::kLocProtErr;
  }
  // Only on the way to RTS can the numbers of retries be said: a pair whose a_ has these.
  void MakePairWith(const RtsOptions& options) {
    ASSERT_NO_FATAL_FAILURE(MakePair());
    for (WiredEnd* end : {&*a_, &*b_}) ASSERT_OK(MoveTo(*end, QpState::kReset));
    for (WiredEnd* end : {&*a_, &*b_}) ASSERT_OK(ToInit(*end));
    ASSERT_OK(ToRtr(*a_, *b_));
    ASSERT_OK(ToRtr(*b_, *a_));
    ASSERT_OK(ToRts(*a_, options));
    ASSERT_OK(ToRts(*b_));
  }
  static QpState StateOf(const WiredEnd& end) { return end.qp.Query()->state; }
  void ExpectUntouched() {
    EXPECT_EQ(StateOf(*b_), QpState::kRts);
    Wc wc;
    EXPECT_EQ(b_->cq.Poll({&wc, 1}), 0u);
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, ErrorsTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

// ---- Of this side: nothing of it reaches the peer

TEST_P(ErrorsTest, AKeyThatDoesNotOpenTheMemoryIsALocalProtectionError) {
  for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kRdmaWrite}) {
    SCOPED_TRACE(static_cast<int>(opcode));
    ASSERT_NO_FATAL_FAILURE(MakePair());
    ASSERT_OK(b_->PostRecv(7, 0, kHalf));
    Sge sge = Local();
    sge.lkey ^= 0xff00;
    const SendWr wr = Wr(opcode, sge);
    ASSERT_OK(a_->qp.PostSend({&wr, 1}));
    ExpectWc(a_->cq, 1, OfABadKey());
    EXPECT_EQ(StateOf(*a_), QpState::kErr);
    ExpectUntouched();
  }
}

TEST_P(ErrorsTest, MemoryBeyondTheRegionIsALocalProtectionError) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  Sge sge = Local(16);
  sge.addr += WiredEnd::kMemoryBytes - 15;
  const SendWr wr = Wr(WrOpcode::kRdmaWrite, sge);
  ASSERT_OK(a_->qp.PostSend({&wr, 1}));
  ExpectWc(a_->cq, 1, WcStatus::kLocProtErr);
  ExpectUntouched();
}

// A read brings bytes here, and this region takes none.
TEST_P(ErrorsTest, AReadIntoMemoryWithoutTheRightToBeWrittenIsALocalProtectionError) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  ASSERT_OK_AND_ASSIGN(const MemoryRegion read_only,
                       a_->pd.Reg(a_->memory.data(), a_->memory.size(), kAccessRemoteRead));
  FillPattern({a_->memory.data(), kBytes}, 1);
  FillPattern({b_->memory.data() + kHalf, kBytes}, 2);
  ASSERT_OK(a_->qp.PostRead(1, a_->memory.data(), kBytes, &read_only, kSendSignaled,
                            b_->AddressAt(kHalf), b_->region.rkey()));
  ExpectWc(a_->cq, 1, WcStatus::kLocProtErr);
  EXPECT_EQ(PatternMismatch({a_->memory.data(), kBytes}, 1), std::nullopt);
}

TEST_P(ErrorsTest, AKeyThatIsNoWindowsCannotBeInvalidated) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  ASSERT_OK(a_->qp.PostLocalInv(1, 0x7fffff01, kSendSignaled));
  ExpectWc(a_->cq, 1, WcStatus::kLocQpOpErr);
  ExpectUntouched();
}

// ---- Of the peer's side

TEST_P(ErrorsTest, AnOperationThatThePeersQpDoesNotServeIsAnInvalidRequest) {
  for (const WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead}) {
    SCOPED_TRACE(static_cast<int>(opcode));
    ASSERT_NO_FATAL_FAILURE(MakePair());
    QpAttr attr;
    attr.mask = kQpAttrAccessFlags;  // none
    ASSERT_OK(b_->qp.Modify(attr));
    const Sge sge = Local();
    const SendWr wr = Wr(opcode, sge);
    ASSERT_OK(a_->qp.PostSend({&wr, 1}));
    ExpectWc(a_->cq, 1, WcStatus::kRemInvReqErr);
    EXPECT_EQ(StateOf(*b_), QpState::kErr);
  }
}

TEST_P(ErrorsTest, AWriteBesideTheKeysRegionIsARemoteAccessError) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  FillPattern({b_->memory.data() + kHalf, kHalf}, 1);
  const Sge sge = Local();
  SendWr wr = Wr(WrOpcode::kRdmaWrite, sge);
  wr.remote_addr = b_->AddressAt(WiredEnd::kMemoryBytes - kBytes + 1);
  ASSERT_OK(a_->qp.PostSend({&wr, 1}));
  ExpectWc(a_->cq, 1, WcStatus::kRemAccessErr);
  EXPECT_EQ(PatternMismatch({b_->memory.data() + kHalf, kHalf}, 1), std::nullopt)
      << "not even the part that would fit";
}

// The peer has posted a receive that it must not write to: its fault, and it is told so.
TEST_P(ErrorsTest, AReceiveThatThePeerCannotUseIsARemoteOperationError) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  const Sge bad = {b_->AddressAt(0), kHalf, b_->region.lkey() ^ 0xff00};
  ASSERT_OK(b_->qp.PostRecvv(7, {&bad, 1}));
  ASSERT_OK(a_->qp.PostSend(1, a_->memory.data(), kBytes, &a_->region, kSendSignaled));
  ExpectWc(a_->cq, 1, WcStatus::kRemOpErr);
  // rxe does not say what is wrong with it.
  ExpectWc(b_->cq, 7, OnVerbs() ? WcStatus::kLocQpOpErr : WcStatus::kLocProtErr);
  EXPECT_EQ(StateOf(*b_), QpState::kErr);
}

// ---- What is before and behind an error

// What is under way when such a send is posted arrives, and is not said to be flushed.
TEST_P(ErrorsTest, ASendThatCannotBeExecutedFailsOnceThoseBeforeItAreDone) {
  const struct {
    WrOpcode opcode;
    uint32_t bytes;
    WcStatus status;
  } rows[] = {{WrOpcode::kRdmaWrite, 0x80000001, WcStatus::kLocLenErr},  // more than a message has
              {WrOpcode::kRdmaRead, 8, WcStatus::kLocQpOpErr}};          // none may be outstanding
  for (const auto& row : rows) {
    SCOPED_TRACE(static_cast<int>(row.opcode));
    if (OnVerbs() && row.opcode == WrOpcode::kRdmaRead) continue;  // rxe's to judge
    ASSERT_OK_AND_ASSIGN(a_, MakeEnd(active(), active_address()));
    ASSERT_OK_AND_ASSIGN(b_, MakeEnd(passive(), passive_address()));
    ASSERT_OK(ToInit(*a_));
    ASSERT_OK(ToInit(*b_));
    ASSERT_OK(ToRtr(*a_, *b_));
    ASSERT_OK(ToRtr(*b_, *a_));
    ASSERT_OK(ToRts(*a_, {.max_rd_atomic = 0}));
    ASSERT_OK(ToRts(*b_));
    FillPattern({a_->memory.data(), kBytes}, 1);
    const Sge good = Local();
    const Sge bad = Local(row.bytes);
    std::vector<SendWr> wrs;
    for (uint64_t id = 1; id <= 3; ++id) wrs.push_back(Wr(WrOpcode::kRdmaWrite, good));
    wrs.push_back(Wr(row.opcode, bad));
    wrs.push_back(Wr(WrOpcode::kRdmaWrite, good));
    for (size_t i = 0; i < wrs.size(); ++i) wrs[i].wr_id = i + 1;
    ASSERT_OK(a_->qp.PostSend(wrs));
    for (uint64_t id = 1; id <= 3; ++id) ExpectWc(a_->cq, id);
    ExpectWc(a_->cq, 4, row.status);
    ExpectWc(a_->cq, 5, WcStatus::kWrFlushErr);
    EXPECT_EQ(PatternMismatch({b_->memory.data() + kHalf, kBytes}, 1), std::nullopt);
    EXPECT_EQ(StateOf(*a_), QpState::kErr);
  }
}

TEST_P(ErrorsTest, WhatIsBehindAnErrorIsFlushedInOrder) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  for (uint64_t id = 20; id < 24; ++id) ASSERT_OK(b_->PostRecv(id, 0, 64));
  for (uint64_t id = 30; id < 34; ++id) ASSERT_OK(a_->PostRecv(id, 0, 64));
  // Two that succeed, one that fails at the peer, three behind it; only the first and these ask for
  // a completion.
  const Sge sge = Local(64);
  std::vector<SendWr> wrs(6, Wr(WrOpcode::kSend, sge));
  for (size_t i = 0; i < wrs.size(); ++i) {
    wrs[i].wr_id = 10 + i;
    wrs[i].flags = (i == 0 || i > 3) ? uint32_t{kSendSignaled} : 0;
  }
  wrs[2].opcode = WrOpcode::kRdmaWrite;
  wrs[2].rkey ^= 0xff00;
  ASSERT_OK(a_->qp.PostSend(wrs));

  ExpectWc(a_->cq, 10);
  ExpectWc(a_->cq, 12, WcStatus::kRemAccessErr);
  std::vector<uint64_t> sends;
  std::vector<uint64_t> receives;
  for (int i = 0; i < 7; ++i) {
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(a_->cq));
    EXPECT_EQ(wc.status, WcStatus::kWrFlushErr);
    (wc.wr_id < 20 ? sends : receives).push_back(wc.wr_id);
  }
  // Flushed, whether they asked for a completion or not.
  EXPECT_EQ(sends, (std::vector<uint64_t>{13, 14, 15}));
  EXPECT_EQ(receives, (std::vector<uint64_t>{30, 31, 32, 33}));
  for (uint64_t id = 20; id < 22; ++id) ExpectWc(b_->cq, id);
  for (uint64_t id = 22; id < 24; ++id) ExpectWc(b_->cq, id, WcStatus::kWrFlushErr);
  // What comes later meets the same fate.
  ASSERT_OK(a_->qp.PostSend(40, nullptr, 0, nullptr, 0));
  ExpectWc(a_->cq, 40, WcStatus::kWrFlushErr);
  ASSERT_OK(b_->PostRecv(41, 0, 64));
  ExpectWc(b_->cq, 41, WcStatus::kWrFlushErr);
}

TEST_P(ErrorsTest, WithoutReceivesTheRetriesRunOut) {
  ASSERT_NO_FATAL_FAILURE(MakePairWith({.rnr_retry = 2}));
  for (const uint64_t id : {1, 2}) {
    ASSERT_OK(a_->qp.PostSend(id, a_->memory.data(), kBytes, &a_->region, kSendSignaled));
  }
  ExpectWc(a_->cq, 1, WcStatus::kRnrRetryExcErr);
  ExpectWc(a_->cq, 2, WcStatus::kWrFlushErr);
  ExpectUntouched();
}

// Nobody answers: the peer's QP is gone.
TEST_P(ErrorsTest, WithoutAPeerTheRetriesRunOut) {
  ASSERT_NO_FATAL_FAILURE(MakePairWith({.retry_count = 3}));
  ASSERT_OK(MoveTo(*b_, QpState::kReset));
  for (const uint64_t id : {1, 2}) {
    ASSERT_OK(a_->qp.PostSend(id, a_->memory.data(), kBytes, &a_->region, kSendSignaled));
  }
  ExpectWc(a_->cq, 1, WcStatus::kRetryExcErr);
  ExpectWc(a_->cq, 2, WcStatus::kWrFlushErr);
}

// ---- Send queue error: UC and UD

TEST_P(ErrorsTest, AUcSendErrorStopsTheSendQueueOnly) {
  if (OnVerbs()) GTEST_SKIP() << "rxe has no state SQE";
  ASSERT_NO_FATAL_FAILURE(MakePair({.type = QpType::kUc}));
  Sge sge = Local();
  sge.lkey ^= 0xff00;
  const SendWr wr = Wr(WrOpcode::kSend, sge);
  ASSERT_OK(a_->qp.PostSend({&wr, 1}));
  ASSERT_OK(a_->qp.PostSend(2, nullptr, 0, nullptr, kSendSignaled));
  ExpectWc(a_->cq, 1, WcStatus::kLocProtErr);
  ExpectWc(a_->cq, 2, WcStatus::kWrFlushErr);
  EXPECT_EQ(StateOf(*a_), QpState::kSqe);
  // Receives go on.
  ASSERT_OK(a_->PostRecv(3, 0, kHalf));
  ASSERT_OK(b_->qp.PostSend(4, b_->memory.data(), kBytes, &b_->region, kSendSignaled));
  ExpectWc(a_->cq, 3);
  // And the application may go on with sends.
  ASSERT_OK(MoveTo(*a_, QpState::kRts));
  ASSERT_OK(b_->PostRecv(5, 0, kHalf));
  ASSERT_OK(a_->qp.PostSend(6, a_->memory.data(), kBytes, &a_->region, kSendSignaled));
  ExpectWc(a_->cq, 6);
  ExpectWc(b_->cq, 4);
  ExpectWc(b_->cq, 5);
}

TEST_P(ErrorsTest, AnRcErrorIsNoSendQueueError) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  Sge sge = Local();
  sge.lkey ^= 0xff00;
  const SendWr wr = Wr(WrOpcode::kSend, sge);
  ASSERT_OK(a_->qp.PostSend({&wr, 1}));
  ExpectWc(a_->cq, 1, OfABadKey());
  EXPECT_EQ(StateOf(*a_), QpState::kErr);
  EXPECT_TRUE(absl::IsInvalidArgument(MoveTo(*a_, QpState::kRts)));
}

}  // namespace
}  // namespace rdmad::testing
