// QPs that the application wires by itself: every operation of RC and UC, fences, atomics, and the
// states of ibv_modify_qp(3).
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "tests/integration/cm_pair.h"
#include "tests/integration/counters.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr size_t kHalf = WiredEnd::kMemoryBytes / 2;
constexpr size_t kBytes = 10'000;  // several packets at any path MTU

class OperationsTest : public WiredPairTest {
 protected:
  static uint64_t WordAt(const WiredEnd& end, size_t offset) {
    uint64_t word;
    std::memcpy(&word, end.memory.data() + offset, sizeof(word));
    return word;
  }
  static void SetWord(WiredEnd& end, size_t offset, uint64_t word) {
    std::memcpy(end.memory.data() + offset, &word, sizeof(word));
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, OperationsTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

// ---- RC

TEST_P(OperationsTest, RcWiredByHandSendsWritesAndReads) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  FillPattern({a_->memory.data(), kBytes}, 1);
  ASSERT_OK(b_->PostRecv(1, 0, kHalf));
  ASSERT_OK(a_->qp.PostSend(2, a_->memory.data(), kBytes, &a_->region, kSendSignaled));
  ExpectWc(a_->cq, 2);
  ExpectWc(b_->cq, 1);
  EXPECT_EQ(PatternMismatch({b_->memory.data(), kBytes}, 1), std::nullopt);

  FillPattern({a_->memory.data(), kBytes}, 2);
  ASSERT_OK(a_->qp.PostWrite(3, a_->memory.data(), kBytes, &a_->region, kSendSignaled,
                             b_->AddressAt(kHalf), b_->region.rkey()));
  ExpectWc(a_->cq, 3);
  EXPECT_EQ(PatternMismatch({b_->memory.data() + kHalf, kBytes}, 2), std::nullopt);

  ASSERT_OK(a_->qp.PostRead(4, a_->memory.data() + kHalf, kBytes, &a_->region, kSendSignaled,
                            b_->AddressAt(0), b_->region.rkey()));
  ExpectWc(a_->cq, 4);
  EXPECT_EQ(PatternMismatch({a_->memory.data() + kHalf, kBytes}, 1), std::nullopt);
}

// A counter that others read, a lock: what arrives is undefined, that it arrives is not.
TEST_P(OperationsTest, MemoryThatIsWrittenToMeanwhileIsReadAndSent) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  const std::jthread writer([words = b_->memory.data()](const std::stop_token& stop) {
    constexpr size_t kLine = 64;
    for (uint64_t value = 0; !stop.stop_requested(); ++value) {
      for (size_t at = 0; at < kHalf; at += kLine) {
        std::atomic_ref(*reinterpret_cast<uint64_t*>(words + at))
            .store(value, std::memory_order_relaxed);
      }
    }
  });
  for (int round = 0; round < Fewer(200); ++round) {
    ASSERT_OK(a_->qp.PostRead(1, a_->memory.data(), kHalf, &a_->region, kSendSignaled,
                              b_->AddressAt(0), b_->region.rkey()));
    ASSERT_NO_FATAL_FAILURE(ExpectWc(a_->cq, 1));
    ASSERT_OK(b_->qp.PostWrite(2, b_->memory.data(), kHalf, &b_->region, kSendSignaled,
                               a_->AddressAt(kHalf), a_->region.rkey()));
    ASSERT_NO_FATAL_FAILURE(ExpectWc(b_->cq, 2));
  }
  if (OnVerbs()) return;
  ASSERT_OK_AND_ASSIGN(const Counters counters, Counters::Of(Daemon(0)));
  EXPECT_EQ(counters.Get("udp_rx_drop_icrc"), 0u);
}

TEST_P(OperationsTest, ImmediateDataArrivesWithSendsAndWrites) {
  for (const QpType type : {QpType::kRc, QpType::kUc}) {
    ASSERT_NO_FATAL_FAILURE(MakePair({.type = type}));
    for (const WrOpcode opcode : {WrOpcode::kSendWithImm, WrOpcode::kRdmaWriteWithImm}) {
      SCOPED_TRACE(static_cast<int>(type) * 100 + static_cast<int>(opcode));
      const bool is_send = opcode == WrOpcode::kSendWithImm;
      ASSERT_OK(b_->PostRecv(1, 0, kHalf));
      FillPattern({a_->memory.data(), kBytes}, 9);
      const Sge sge = {a_->AddressAt(0), kBytes, a_->region.lkey()};
      SendWr wr;
      wr.opcode = opcode;
      wr.sges = {&sge, 1};
      wr.imm_be = htonl(0x12345678);
      wr.remote_addr = b_->AddressAt(kHalf);
      wr.rkey = b_->region.rkey();
      ASSERT_OK(a_->qp.PostSend({&wr, 1}));
      ExpectWc(a_->cq, 0);
      ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(b_->cq));
      EXPECT_EQ(wc.opcode, is_send ? WcOpcode::kRecv : WcOpcode::kRecvRdmaWithImm);
      EXPECT_NE(wc.flags & kWcWithImm, 0u);
      EXPECT_EQ(ntohl(wc.imm_be), 0x12345678u);
      EXPECT_EQ(wc.byte_len, kBytes);
      EXPECT_EQ(PatternMismatch({b_->memory.data() + (is_send ? 0 : kHalf), kBytes}, 9),
                std::nullopt);
    }
  }
}

TEST_P(OperationsTest, AtomicsChangeTheWordAndTellWhatItWas) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  SetWord(*b_, 0, 100);
  const auto compare_swap = [&](uint64_t compare, uint64_t swap) {
    EXPECT_OK(a_->qp.PostCompareSwap(1, a_->memory.data(), &a_->region, kSendSignaled,
                                     b_->AddressAt(0), b_->region.rkey(), compare, swap));
    ExpectWc(a_->cq, 1);
    return WordAt(*a_, 0);
  };
  EXPECT_EQ(compare_swap(100, 7), 100u);
  EXPECT_EQ(WordAt(*b_, 0), 7u);
  EXPECT_EQ(compare_swap(100, 8), 7u);  // not equal: nothing happens
  EXPECT_EQ(WordAt(*b_, 0), 7u);
  ASSERT_OK(a_->qp.PostFetchAdd(2, a_->memory.data(), &a_->region, kSendSignaled, b_->AddressAt(0),
                                b_->region.rkey(), UINT64_MAX));
  ExpectWc(a_->cq, 2);
  EXPECT_EQ(WordAt(*a_, 0), 7u);
  EXPECT_EQ(WordAt(*b_, 0), 6u);  // modulo 2^64
}

TEST_P(OperationsTest, AtomicsOfSeveralQpsAreEachDoneOnce) {
  constexpr int kPeers = 3;
  const int rounds = Fewer(200);
  ASSERT_NO_FATAL_FAILURE(MakePair());
  SetWord(*b_, 0, 0);
  std::vector<WiredEnd> from;
  std::vector<WiredEnd> to;
  WiredOptions shared;
  shared.pd = &b_->pd;  // so that the key of b_'s memory is good for all
  for (int i = 0; i < kPeers; ++i) {
    ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address()));
    ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(passive(), passive_address(), shared));
    ASSERT_OK(Wire(a, b));
    from.push_back(std::move(a));
    to.push_back(std::move(b));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kPeers; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds; ++round) {
        ASSERT_OK(from[i].qp.PostFetchAdd(1, from[i].memory.data(), &from[i].region, kSendSignaled,
                                          b_->AddressAt(0), b_->region.rkey(), 1));
        ExpectWc(from[i].cq, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(WordAt(*b_, 0), static_cast<uint64_t>(kPeers * rounds));
}

TEST_P(OperationsTest, MisalignedAtomicIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  ASSERT_OK(a_->qp.PostFetchAdd(1, a_->memory.data(), &a_->region, kSendSignaled, b_->AddressAt(4),
                                b_->region.rkey(), 1));
  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(a_->cq));
  // librxe does not even post it.
  EXPECT_TRUE(wc.status == WcStatus::kRemInvReqErr || wc.status == WcStatus::kRemAccessErr ||
              (OnVerbs() && wc.status == WcStatus::kLocQpOpErr))
      << WcStatusString(wc.status);
}

// The fenced send carries what the read before it brings.
TEST_P(OperationsTest, FencedSendWaitsForTheReadsBeforeIt) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  for (int round = 0; round < Fewer(20); ++round) {
    const uint64_t seed = static_cast<uint64_t>(round) + 10;
    FillPattern({b_->memory.data(), kBytes}, seed);
    ASSERT_OK(b_->PostRecv(1, kHalf, kHalf));
    const Sge sge = {a_->AddressAt(0), kBytes, a_->region.lkey()};
    std::array<SendWr, 2> wrs;
    wrs[0].wr_id = 2;
    wrs[0].opcode = WrOpcode::kRdmaRead;
    wrs[0].sges = {&sge, 1};
    wrs[0].remote_addr = b_->AddressAt(0);
    wrs[0].rkey = b_->region.rkey();
    wrs[1].wr_id = 3;
    wrs[1].flags = kSendSignaled | kSendFence;
    wrs[1].sges = {&sge, 1};
    ASSERT_OK(a_->qp.PostSend(wrs));
    ExpectWc(a_->cq, 2);
    ExpectWc(a_->cq, 3);
    ExpectWc(b_->cq, 1);
    ASSERT_EQ(PatternMismatch({b_->memory.data() + kHalf, kBytes}, seed), std::nullopt) << round;
  }
}

// ---- UC

TEST_P(OperationsTest, UcSendsAndWrites) {
  ASSERT_NO_FATAL_FAILURE(MakePair({.type = QpType::kUc}));
  FillPattern({a_->memory.data(), kBytes}, 1);
  ASSERT_OK(b_->PostRecv(1, 0, kHalf));
  ASSERT_OK(a_->qp.PostSend(2, a_->memory.data(), kBytes, &a_->region, kSendSignaled));
  ExpectWc(a_->cq, 2);
  ExpectWc(b_->cq, 1);
  EXPECT_EQ(PatternMismatch({b_->memory.data(), kBytes}, 1), std::nullopt);

  // Nobody is told of a write; what is sent behind it comes behind it.
  ASSERT_OK(b_->PostRecv(3, 0, 0));
  ASSERT_OK(a_->qp.PostWrite(4, a_->memory.data(), kBytes, &a_->region, kSendSignaled,
                             b_->AddressAt(kHalf), b_->region.rkey()));
  ASSERT_OK(a_->qp.PostSend(5, nullptr, 0, nullptr, kSendSignaled));
  for (const uint64_t id : {4, 5}) ExpectWc(a_->cq, id);
  ExpectWc(b_->cq, 3);
  EXPECT_EQ(PatternMismatch({b_->memory.data() + kHalf, kBytes}, 1), std::nullopt);
}

// Nobody waits and nobody is told: what finds no receive is lost, and the QPs go on.
TEST_P(OperationsTest, UcMessageWithoutReceiveIsLostAndTheNextArrives) {
  ASSERT_NO_FATAL_FAILURE(MakePair({.type = QpType::kUc}));
  ASSERT_OK(a_->qp.PostSend(1, a_->memory.data(), 8, &a_->region, kSendSignaled));
  ExpectWc(a_->cq, 1);
  EXPECT_FALSE(WaitForWc(b_->cq, absl::Milliseconds(100)).ok());
  ASSERT_OK(b_->PostRecv(2, 0, kHalf));
  FillPattern({a_->memory.data(), 8}, 3);
  ASSERT_OK(a_->qp.PostSend(3, a_->memory.data(), 8, &a_->region, kSendSignaled));
  ExpectWc(a_->cq, 3);
  ExpectWc(b_->cq, 2);
  EXPECT_EQ(PatternMismatch({b_->memory.data(), 8}, 3), std::nullopt);
}

// ---- States

TEST_P(OperationsTest, QueryTellsTheStateAndItsAttributes) {
  ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address()));
  ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(passive(), passive_address()));
  const auto state = [&] { return a.qp.Query()->state; };
  EXPECT_EQ(state(), QpState::kReset);
  ASSERT_OK(ToInit(a));
  EXPECT_EQ(state(), QpState::kInit);
  ASSERT_OK(ToRtr(a, b));
  EXPECT_EQ(state(), QpState::kRtr);
  ASSERT_OK(ToRts(a));
  ASSERT_OK_AND_ASSIGN(const QpAttr attr, a.qp.Query());
  EXPECT_EQ(attr.state, QpState::kRts);
  EXPECT_EQ(attr.dest_qpn, b.qp.qpn());
  EXPECT_EQ(attr.ah.dest_gid, b.gid.raw);
  EXPECT_EQ(attr.retry_count, 7);
  EXPECT_EQ(attr.min_rnr_timer, 10);
}

TEST_P(OperationsTest, IllegalMovesAreRefusedAndChangeNothing) {
  ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address()));
  ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(passive(), passive_address()));
  EXPECT_TRUE(absl::IsInvalidArgument(ToRtr(a, b)));  // from Reset
  ASSERT_OK(ToInit(a));
  EXPECT_TRUE(absl::IsInvalidArgument(ToRts(a)));
  QpAttr attr;
  attr.mask = kQpAttrState;  // without what RTR needs
  attr.state = QpState::kRtr;
  EXPECT_TRUE(absl::IsInvalidArgument(a.qp.Modify(attr)));
  EXPECT_EQ(a.qp.Query()->state, QpState::kInit);
}

TEST_P(OperationsTest, QpThatWasResetCanBeWiredAgain) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  ASSERT_OK(b_->PostRecv(1, 0, 8));
  ASSERT_OK(MoveTo(*b_, QpState::kErr));
  ExpectWc(b_->cq, 1, WcStatus::kWrFlushErr);
  for (WiredEnd* end : {&*a_, &*b_}) ASSERT_OK(MoveTo(*end, QpState::kReset));
  ASSERT_OK(Wire(*a_, *b_));
  ASSERT_OK(b_->PostRecv(2, 0, kHalf));
  ASSERT_OK(a_->qp.PostSend(3, a_->memory.data(), kBytes, &a_->region, kSendSignaled));
  ExpectWc(a_->cq, 3);
  ExpectWc(b_->cq, 2);
}

}  // namespace
}  // namespace rdmad::testing
