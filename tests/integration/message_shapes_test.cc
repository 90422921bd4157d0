// Messages of every shape: nothing at all, gathered and scattered, inline, as long as the device
// takes (case 24), and those that a type of QP does not have.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr size_t kHalf = WiredEnd::kMemoryBytes / 2;
constexpr uint32_t kQkey = 0x1234;

class MessageShapesTest : public WiredPairTest {
 protected:
  static WiredOptions WithSges(uint32_t count) {
    WiredOptions options;
    options.cap.max_send_sge = options.cap.max_recv_sge = count;
    return options;
  }
  // A and B exchange one message and are well.
  void ExpectConnected() {
    ASSERT_OK(b_->PostRecv(98, 0, 16));
    ASSERT_OK(a_->qp.PostSend(99, a_->memory.data(), 16, &a_->region, kSendSignaled));
    ExpectWc(a_->cq, 99);
    ExpectWc(b_->cq, 98);
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, MessageShapesTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

// ---- Nothing at all

TEST_P(MessageShapesTest, ZeroLengthOperationsNeedNoMemory) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  FillPattern({b_->memory.data(), kHalf}, 1);
  // Without SGEs, and with one of length 0 that names nothing.
  for (const bool with_sge : {false, true}) {
    const Sge nothing = {0, 0, 0};
    for (const WrOpcode opcode :
         {WrOpcode::kSend, WrOpcode::kSendWithImm, WrOpcode::kRdmaWrite,
          WrOpcode::kRdmaWriteWithImm, WrOpcode::kRdmaRead}) {
      SCOPED_TRACE(static_cast<int>(opcode));
      const bool receives = opcode != WrOpcode::kRdmaWrite && opcode != WrOpcode::kRdmaRead;
      if (receives) {
        ASSERT_OK(b_->qp.PostRecv(2, nullptr, 0, nullptr));
      }
      SendWr wr;
      wr.wr_id = 1;
      wr.opcode = opcode;
      if (with_sge) wr.sges = {&nothing, 1};
      wr.remote_addr = b_->AddressAt(0);
      wr.rkey = b_->region.rkey();
      ASSERT_OK(a_->qp.PostSend({&wr, 1}));
      ExpectWc(a_->cq, 1);
      if (!receives) continue;
      ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(b_->cq));
      EXPECT_EQ(wc.status, WcStatus::kSuccess);
      EXPECT_EQ(wc.byte_len, 0u);
    }
  }
  EXPECT_EQ(PatternMismatch({b_->memory.data(), kHalf}, 1), std::nullopt);
}

TEST_P(MessageShapesTest, ZeroLengthWritesAndReadsLookAtNoKey) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  ASSERT_OK(a_->qp.PostWrite(1, nullptr, 0, nullptr, kSendSignaled, 0, 0));
  ExpectWc(a_->cq, 1);
  ASSERT_OK(a_->qp.PostRead(2, nullptr, 0, nullptr, kSendSignaled, 0, 0));
  ExpectWc(a_->cq, 2);
}

TEST_P(MessageShapesTest, UcCarriesNothingToo) {
  ASSERT_NO_FATAL_FAILURE(MakePair({.type = QpType::kUc}));
  ASSERT_OK(b_->qp.PostRecv(2, nullptr, 0, nullptr));
  ASSERT_OK(AwaitPosted(b_->qp));
  ASSERT_OK(a_->qp.PostSend(1, nullptr, 0, nullptr, kSendSignaled));
  ExpectWc(a_->cq, 1);
  ExpectWc(b_->cq, 2);
}

// ---- Scatter and gather

// Pieces of uneven lengths, some of them empty, so that none ends where a packet does.
TEST_P(MessageShapesTest, PiecesAreGatheredAndScatteredByteForByte) {
  constexpr std::array<uint32_t, 6> kFrom = {1, 3000, 0, 4097, 7, 8896};
  constexpr std::array<uint32_t, 4> kTo = {5000, 3, 10'000, 998};
  constexpr uint32_t kBytes = 16'001;
  ASSERT_NO_FATAL_FAILURE(MakePair(WithSges(6)));
  std::vector<std::byte> message(kBytes);
  FillPattern(message, 1);
  const auto pieces = [](WiredEnd& end, std::span<const uint32_t> lengths) {
    std::vector<Sge> sges;
    size_t at = 11;
    for (const uint32_t length : lengths) {
      sges.push_back({end.AddressAt(at), length, end.region.lkey()});
      at += length + 5;
    }
    return sges;
  };
  const auto each = [](std::span<const Sge> sges, auto&& visit) {
    size_t at = 0;
    for (const Sge& sge : sges) {
      visit(reinterpret_cast<std::byte*>(sge.addr), at, sge.length_bytes);
      at += sge.length_bytes;
    }
  };
  const std::vector<Sge> from = pieces(*a_, kFrom);
  const std::vector<Sge> to = pieces(*b_, kTo);
  each(from, [&](std::byte* piece, size_t at, size_t bytes) {
    std::memcpy(piece, message.data() + at, bytes);
  });
  std::fill(b_->memory.data(), b_->memory.data() + kHalf, std::byte{0xee});

  ASSERT_OK(b_->qp.PostRecvv(2, to));
  ASSERT_OK(a_->qp.PostSendv(1, from, kSendSignaled));
  ExpectWc(a_->cq, 1);
  ExpectWc(b_->cq, 2);
  each(to, [&](const std::byte* piece, size_t at, size_t bytes) {
    EXPECT_EQ(std::memcmp(piece, message.data() + at, bytes), 0) << at;
    EXPECT_EQ(piece[bytes], std::byte{0xee}) << "behind a piece";
  });

  // A write gathers, a read scatters.
  ASSERT_OK(a_->qp.PostWritev(3, from, kSendSignaled, b_->AddressAt(kHalf), b_->region.rkey()));
  ExpectWc(a_->cq, 3);
  EXPECT_EQ(std::memcmp(b_->memory.data() + kHalf, message.data(), kBytes), 0);
  each(from, [](std::byte* piece, size_t, size_t bytes) { std::memset(piece, 0, bytes); });
  ASSERT_OK(a_->qp.PostReadv(4, from, kSendSignaled, b_->AddressAt(kHalf), b_->region.rkey()));
  ExpectWc(a_->cq, 4);
  each(from, [&](const std::byte* piece, size_t at, size_t bytes) {
    EXPECT_EQ(std::memcmp(piece, message.data() + at, bytes), 0) << at;
  });
}

TEST_P(MessageShapesTest, MorePiecesThanTheQueueTakesAreRefused) {
  ASSERT_NO_FATAL_FAILURE(MakePair(WithSges(2)));
  const std::vector<Sge> sges(a_->qp.cap().max_send_sge + 1,
                              {a_->AddressAt(0), 1, a_->region.lkey()});
  EXPECT_TRUE(absl::IsInvalidArgument(a_->qp.PostSendv(1, sges, kSendSignaled)));
  const std::vector<Sge> in(b_->qp.cap().max_recv_sge + 1,
                            {b_->AddressAt(0), 1, b_->region.lkey()});
  EXPECT_TRUE(absl::IsInvalidArgument(b_->qp.PostRecvv(1, in)));
  ExpectConnected();
}

// ---- Inline

TEST_P(MessageShapesTest, InlineDataIsTakenWhenItIsPosted) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  const uint32_t limit = a_->qp.cap().max_inline_bytes;
  ASSERT_GE(limit, 64u);
  // Memory of no region, which is somebody else's right after the post.
  std::vector<std::byte> mine(limit);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{limit}}) {
    SCOPED_TRACE(bytes);
    for (const bool write : {false, true}) {
      const std::span<std::byte> message(mine.data(), bytes);
      FillPattern(message, bytes + 1);
      std::memset(b_->memory.data(), 0, limit);
      if (write) {
        ASSERT_OK(a_->qp.PostWrite(1, mine.data(), bytes, nullptr, kSendSignaled | kSendInline,
                                   b_->AddressAt(0), b_->region.rkey()));
      } else {
        ASSERT_OK(b_->PostRecv(2, 0, kHalf));
        ASSERT_OK(
            a_->qp.PostSend(1, mine.data(), bytes, nullptr, kSendSignaled | kSendInline));
      }
      std::fill(mine.begin(), mine.end(), std::byte{0xff});
      ExpectWc(a_->cq, 1);
      if (!write) ExpectWc(b_->cq, 2);
      EXPECT_EQ(PatternMismatch({b_->memory.data(), bytes}, bytes + 1), std::nullopt);
    }
  }
}

TEST_P(MessageShapesTest, MoreInlineDataThanTheQueueTakesIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakePair());
  const std::vector<std::byte> mine(a_->qp.cap().max_inline_bytes + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(
      a_->qp.PostSend(1, mine.data(), mine.size(), nullptr, kSendSignaled | kSendInline)));
  ExpectConnected();
}

// ---- What a type of QP does not have

TEST_P(MessageShapesTest, OperationsThatATypeOfQpLacksAreRefusedWhenPosted) {
  const struct {
    QpType type;
    std::vector<WrOpcode> lacks;
  } rows[] = {
      {QpType::kUc,
       {WrOpcode::kSendWithInv, WrOpcode::kRdmaRead, WrOpcode::kCompareSwap, WrOpcode::kFetchAdd}},
      {QpType::kUd,
       {WrOpcode::kSendWithInv, WrOpcode::kRdmaWrite, WrOpcode::kRdmaWriteWithImm,
        WrOpcode::kRdmaRead, WrOpcode::kCompareSwap, WrOpcode::kFetchAdd, WrOpcode::kLocalInv,
        WrOpcode::kBindMw}}};
  for (const auto& row : rows) {
    ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address(), {.type = row.type}));
    ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(passive(), passive_address(), {.type = row.type}));
    if (row.type == QpType::kUd) {
      for (WiredEnd* end : {&a, &b}) ASSERT_OK(MakeReady(*end, kQkey));
    } else {
      ASSERT_OK(Wire(a, b));
    }
    ASSERT_OK_AND_ASSIGN(const AddressHandle ah, AddressHandle::Create(a.pd, WayTo(a, b)));
    const Sge sge = {a.AddressAt(0), 8, a.region.lkey()};
    for (const WrOpcode opcode : row.lacks) {
      SCOPED_TRACE(static_cast<int>(opcode));
      SendWr wr;
      wr.opcode = opcode;
      wr.sges = {&sge, 1};
      wr.remote_addr = b.AddressAt(0);
      wr.rkey = b.region.rkey();
      wr.ah = &ah;
      wr.remote_qpn = b.qp.qpn();
      EXPECT_TRUE(absl::IsInvalidArgument(a.qp.PostSend({&wr, 1})));
    }
    // And the QP is none the worse for it.
    ASSERT_OK(b.PostRecv(1, 0, kHalf));
    SendWr good;
    good.wr_id = 2;
    good.sges = {&sge, 1};
    good.ah = row.type == QpType::kUd ? &ah : nullptr;
    good.remote_qpn = b.qp.qpn();
    good.remote_qkey = kQkey;
    ASSERT_OK(a.qp.PostSend({&good, 1}));
    ExpectWc(a.cq, 2);
    ExpectWc(b.cq, 1);
  }
}

TEST_P(MessageShapesTest, ADatagramWithoutAHandleIsRefusedWhenPosted) {
  ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address(), {.type = QpType::kUd}));
  ASSERT_OK(MakeReady(a, kQkey));
  EXPECT_TRUE(absl::IsInvalidArgument(a.qp.PostSend(1, nullptr, 0, nullptr, kSendSignaled)));
}

// One packet is all that a datagram has. That it does not fit is this side's affair.
TEST_P(MessageShapesTest, ADatagramOverThePathMtuIsALocalLengthErrorAndStopsOnlySends) {
  if (OnVerbs()) GTEST_SKIP() << "rxe sends nothing and reports success";
  ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address(), {.type = QpType::kUd}));
  ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(passive(), passive_address(), {.type = QpType::kUd}));
  for (WiredEnd* end : {&a, &b}) ASSERT_OK(MakeReady(*end, kQkey));
  ASSERT_OK_AND_ASSIGN(const AddressHandle to_b, AddressHandle::Create(a.pd, WayTo(a, b)));
  ASSERT_OK_AND_ASSIGN(const AddressHandle to_a, AddressHandle::Create(b.pd, WayTo(b, a)));
  const size_t mtu = MtuBytes(std::min(a.device.active_mtu, b.device.active_mtu));
  ASSERT_OK(b.PostRecv(1, 0, kHalf));
  const auto send = [](WiredEnd& from, uint64_t wr_id, const AddressHandle& ah, const WiredEnd& to,
                       size_t bytes) {
    return from.qp.PostUdSend(wr_id, from.memory.data() + kHalf, bytes, &from.region, kSendSignaled,
                              ah, to.qp.qpn(), kQkey);
  };
  ASSERT_OK(send(a, 2, to_b, b, mtu + 1));
  ASSERT_OK(send(a, 3, to_b, b, 8));
  ExpectWc(a.cq, 2, WcStatus::kLocLenErr);
  ExpectWc(a.cq, 3, WcStatus::kWrFlushErr);
  EXPECT_EQ(a.qp.Query()->state, QpState::kSqe);
  ASSERT_OK(a.PostRecv(4, 0, kHalf));
  ASSERT_OK(send(b, 5, to_a, a, mtu));
  ExpectWc(a.cq, 4);
  ASSERT_OK(MoveTo(a, QpState::kRts));
  ASSERT_OK(send(a, 6, to_b, b, mtu));
  ExpectWc(a.cq, 6);
  ExpectWc(b.cq, 5);
  ExpectWc(b.cq, 1);
}

// ---- Case 24: the longest message, and one byte more

class LongestMessageTest : public MessageShapesTest {
 protected:
  static constexpr uint32_t kPieces = 16;

  // A sixteenth of the longest message at a_, which sixteen SGEs name; all of it at b_.
  void SetUp() override {
    MessageShapesTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) return;
    ASSERT_NO_FATAL_FAILURE(MakePair(WithSges(kPieces)));
    longest_ = a_->device.max_msg_bytes;
    piece_ = longest_ / kPieces;
    ASSERT_OK_AND_ASSIGN(Pool here, Pool::Create(active(), piece_));
    ASSERT_OK_AND_ASSIGN(from_, here.Allocate(piece_));
    ASSERT_OK_AND_ASSIGN(from_region_, a_->pd.RegMsgs(from_.data(), piece_));
    FillPattern(from_.bytes(), 1);
    pieces_.assign(kPieces, {reinterpret_cast<uintptr_t>(from_.data()),
                             static_cast<uint32_t>(piece_), from_region_.lkey()});
  }
  void MakeTarget() {
    ASSERT_OK_AND_ASSIGN(Pool there, Pool::Create(passive(), longest_));
    ASSERT_OK_AND_ASSIGN(to_, there.Allocate(longest_));
    ASSERT_OK_AND_ASSIGN(to_region_, b_->pd.Reg(to_.data(), longest_,
                                                kAccessLocalWrite | kAccessRemoteWrite |
                                                    kAccessRemoteRead));
  }

  uint64_t longest_ = 0;
  size_t piece_ = 0;
  Buffer from_;
  Buffer to_;
  MemoryRegion from_region_;
  MemoryRegion to_region_;
  std::vector<Sge> pieces_;
};

INSTANTIATE_TEST_SUITE_P(Paths, LongestMessageTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

TEST_P(LongestMessageTest, ArrivesWholeByWriteAndComesBackByRead) {
  ASSERT_NO_FATAL_FAILURE(MakeTarget());
  ASSERT_OK(a_->qp.PostWritev(1, pieces_, kSendSignaled,
                              reinterpret_cast<uintptr_t>(to_.data()), to_region_.rkey()));
  ASSERT_OK_AND_ASSIGN(const Wc written, WaitForWc(a_->cq, absl::Seconds(60)));
  ASSERT_EQ(written.status, WcStatus::kSuccess) << WcStatusString(written.status);
  for (uint32_t i = 0; i < kPieces; ++i) {
    ASSERT_EQ(std::memcmp(to_.data() + i * piece_, from_.data(), piece_), 0) << i;
  }
  // The last piece of the read is what stays.
  FillPattern({to_.data() + (kPieces - 1) * piece_, piece_}, 2);
  ASSERT_OK(a_->qp.PostReadv(2, pieces_, kSendSignaled, reinterpret_cast<uintptr_t>(to_.data()),
                             to_region_.rkey()));
  ASSERT_OK_AND_ASSIGN(const Wc read, WaitForWc(a_->cq, absl::Seconds(60)));
  ASSERT_EQ(read.status, WcStatus::kSuccess) << WcStatusString(read.status);
  EXPECT_EQ(read.byte_len, longest_);
  EXPECT_EQ(PatternMismatch(from_.bytes(), 2), std::nullopt);
}

TEST_P(LongestMessageTest, OneByteMoreIsRefusedHereWhateverItsPieces) {
  Sge whole = pieces_[0];
  whole.length_bytes = static_cast<uint32_t>(longest_ + 1);
  std::vector<Sge> three(3, whole);
  for (Sge& sge : three) sge.length_bytes = static_cast<uint32_t>(longest_ / 3 + 1);
  const std::vector<Sge> one = {whole};
  for (const std::vector<Sge>& sges : {one, three}) {
    for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead}) {
      SCOPED_TRACE(sges.size() * 10 + static_cast<size_t>(opcode));
      SendWr wr;
      wr.wr_id = 1;
      wr.opcode = opcode;
      wr.sges = sges;
      wr.remote_addr = b_->AddressAt(0);
      wr.rkey = b_->region.rkey();
      ASSERT_OK(a_->qp.PostSend({&wr, 1}));
      ExpectWc(a_->cq, 1, WcStatus::kLocLenErr);
      // Nothing went out: the peer is as it was, and not in error.
      EXPECT_EQ(b_->qp.Query()->state, QpState::kRts);
      ASSERT_NO_FATAL_FAILURE(MakePair(WithSges(kPieces)));
    }
  }
}

}  // namespace
}  // namespace rdmad::testing
