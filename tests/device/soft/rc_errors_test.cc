// What goes wrong with one WR, what each side hears of it, and what becomes of the rest.
#include <gtest/gtest.h>

#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpState;
using device::WcStatus;
using device::WrOpcode;

class RcErrors : public PathTest {
 protected:
  // Posts `wr` and then an innocent WRITE; expects `status` for the first and a flush for the
  // second.
  void ExpectFailure(Bed& bed, const device::SendWr& wr, WcStatus status) {
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
    const device::Sge sge = bed.a.Sge(0, 8);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(1000, WrOpcode::kRdmaWrite, &sge, 2048)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, 2));
    EXPECT_EQ(bed.a.sends.all[0].wr_id, wr.wr_id);
    EXPECT_EQ(bed.a.sends.all[0].status, status);
    EXPECT_EQ(bed.a.sends.all[1].wr_id, 1000u);
    EXPECT_EQ(bed.a.sends.all[1].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(bed.a.sends.all[1].wqe_count, 2u);
    bed.network.RunUntilQuiet();
    EXPECT_EQ(bed.a.qp->Query().state, QpState::kErr);
    EXPECT_EQ(bed.a.sends.all.size(), 2u);
  }
};
RDMAD_ON_BOTH_PATHS(RcErrors);

// --- Remote keys --------------------------------------------------------------------------------

struct RemoteCase {
  const char* name;
  uint32_t rkey_xor;
  uint64_t offset;  // of the remote range
  uint32_t bytes;
};
constexpr uint64_t kRegionBytes = 4 << 20;
constexpr RemoteCase kRemoteCases[] = {
    {"unknown index", 0xffff00, 0, 256},
    {"another generation", 0x1, 0, 256},
    {"one byte past the end", 0, kRegionBytes - 255, 256},
    {"wholly behind the end", 0, kRegionBytes + 1, 1},
    {"one byte before the start", 0, ~uint64_t{0}, 256},
    {"far away, so that sums wrap", 0, ~uint64_t{0} - Endpoint::kIova - 10, 256},
    {"several packets, last one bad", 0, kRegionBytes - 9999, 10'000},
};

TEST_P(RcErrors, BadRemoteRangeEndsBothSidesAndChangesNothing) {
  for (const WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead}) {
    for (const RemoteCase& c : kRemoteCases) {
      SCOPED_TRACE(testing::Message() << c.name << " opcode " << static_cast<int>(opcode));
      Bed bed(Options());
      bed.Fill(bed.a, 0, c.bytes);
      const std::vector<std::byte> before_a = bed.a.memory;
      const std::vector<std::byte> before_b = bed.b.memory;
      const device::Sge sge = bed.a.Sge(0, c.bytes);
      device::SendWr wr = bed.Wr(1, opcode, &sge, c.offset);
      wr.rkey ^= c.rkey_xor;
      ExpectFailure(bed, wr, WcStatus::kRemAccessErr);
      EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
      EXPECT_EQ(bed.b.events->Count(AsyncEventType::kQpAccessErr), 1u);
      EXPECT_TRUE(bed.a.memory == before_a);
      EXPECT_TRUE(bed.b.memory == before_b);
    }
  }
}

TEST_P(RcErrors, AtomicOnABadKeyOrUnaligned) {
  {
    Bed bed(Options());
    const device::Sge sge = bed.a.Sge(0, 8);
    device::SendWr wr = bed.Wr(1, WrOpcode::kFetchAdd, &sge, kRegionBytes);
    ExpectFailure(bed, wr, WcStatus::kRemAccessErr);
  }
  {
    Bed bed(Options());
    const device::Sge sge = bed.a.Sge(0, 8);
    device::SendWr wr = bed.Wr(1, WrOpcode::kFetchAdd, &sge, 4);
    ExpectFailure(bed, wr, WcStatus::kRemInvReqErr);
    EXPECT_EQ(bed.b.events->Count(AsyncEventType::kQpReqErr), 1u);
  }
}

TEST_P(RcErrors, RegionWithoutTheRight) {
  struct Case {
    WrOpcode opcode;
    uint32_t access;
  };
  for (const Case& c :
       {Case{WrOpcode::kRdmaWrite, device::kAccessRemoteRead},
        Case{WrOpcode::kRdmaRead, device::kAccessLocalWrite},
        Case{WrOpcode::kFetchAdd, device::kAccessLocalWrite | device::kAccessRemoteWrite}}) {
    SCOPED_TRACE(static_cast<int>(c.opcode));
    Bed bed(Options());
    auto mr = SoftMr::Create(*bed.b.transport, bed.b.pd,
                             {bed.b.memory.data(), 4096, Endpoint::kIova, c.access});
    ASSERT_TRUE(mr.ok());
    (*mr)->Activate(0);
    const device::Sge sge = bed.a.Sge(0, 8);
    device::SendWr wr = bed.Wr(1, c.opcode, &sge, 0);
    wr.rkey = (*mr)->rkey();
    ExpectFailure(bed, wr, WcStatus::kRemAccessErr);
    (*mr)->Deactivate(0);
  }
}

TEST_P(RcErrors, RegionOfAnotherPdIsNoRegion) {
  Bed bed(Options());
  SoftPd other;
  auto mr = SoftMr::Create(
      *bed.b.transport, other,
      {bed.b.memory.data(), 4096, Endpoint::kIova,
       device::kAccessLocalWrite | device::kAccessRemoteWrite | device::kAccessRemoteRead});
  ASSERT_TRUE(mr.ok());
  (*mr)->Activate(0);
  const device::Sge sge = bed.a.Sge(0, 8);
  device::SendWr wr = bed.Wr(1, WrOpcode::kRdmaWrite, &sge, 0);
  wr.rkey = (*mr)->rkey();
  ExpectFailure(bed, wr, WcStatus::kRemAccessErr);
  (*mr)->Deactivate(0);
}

TEST_P(RcErrors, QpWithoutTheRightRefusesTheOperation) {
  for (const WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead, WrOpcode::kFetchAdd}) {
    SCOPED_TRACE(static_cast<int>(opcode));
    BedOptions options = Options();
    options.access = device::kAccessLocalWrite;
    Bed bed(options);
    const device::Sge sge = bed.a.Sge(0, 8);
    ExpectFailure(bed, bed.Wr(1, opcode, &sge), WcStatus::kRemInvReqErr);
    EXPECT_EQ(bed.b.events->Count(AsyncEventType::kQpReqErr), 1u);
  }
}

TEST_P(RcErrors, ZeroLengthOperationsNeedNoKey) {
  Bed bed(Options());
  for (const WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead}) {
    device::SendWr wr = bed.Wr(1, opcode, nullptr, kRegionBytes * 2);
    wr.rkey = 0xdead;
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  }
  ASSERT_TRUE(bed.Await(bed.a.sends, 2));
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
  EXPECT_EQ(bed.a.sends.all[1].status, WcStatus::kSuccess);
}

TEST_P(RcErrors, RevokedRegionStopsAMessageInTheMiddle) {
  for (const WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead}) {
    SCOPED_TRACE(static_cast<int>(opcode));
    BedOptions options = Options();
    options.config.initial_window_bytes = options.config.max_window_bytes = 32 * 1024;
    options.config.qp_budget_bytes = options.config.turn_budget_bytes = 16 * 1024;
    Bed bed(options);
    bed.Fill(bed.a, 0, 1 << 20, 1);
    bed.Fill(bed.b, 0, 1 << 20, 2);
    const device::Sge sge = bed.a.Sge(0, 1 << 20);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, opcode, &sge)), PostResult::kOk);
    for (int i = 0; i < 20; ++i) bed.network.Step();
    ASSERT_TRUE(bed.a.sends.all.empty()) << "too late to revoke";
    bed.b.mr->Deactivate(bed.network.now());
    const std::vector<std::byte> before = bed.b.memory;
    ASSERT_TRUE(bed.Await(bed.a.sends, 1));
    EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kRemAccessErr);
    bed.network.RunUntilQuiet();
    EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
    EXPECT_EQ(bed.b.events->Count(AsyncEventType::kQpAccessErr), 1u);
    EXPECT_TRUE(bed.b.memory == before) << "written after the revocation";
    bed.b.mr->Activate(bed.network.now());  // for the bed to take out again
  }
}

TEST(RcErrorsMr, KeyOfARegionThatWasReplacedFails) {
  Bed bed;
  const uint32_t old_key = bed.b.mr->rkey();
  bed.b.mr->Deactivate(0);
  bed.b.mr.reset();
  // The index comes back only after many others have been used and released.
  for (int i = 0; i < 2000; ++i) {
    auto mr = SoftMr::Create(*bed.b.transport, bed.b.pd,
                             {bed.b.memory.data(), bed.b.memory.size(), Endpoint::kIova,
                              device::kAccessLocalWrite | device::kAccessRemoteWrite});
    ASSERT_TRUE(mr.ok());
    ASSERT_NE((*mr)->rkey(), old_key);
    bed.b.mr = std::move(*mr);
    if (bed.b.mr->rkey() >> 8 == old_key >> 8) break;
  }
  ASSERT_EQ(bed.b.mr->rkey() >> 8, old_key >> 8);
  bed.b.mr->Activate(0);
  const device::Sge sge = bed.a.Sge(0, 8);
  device::SendWr wr = bed.Wr(1, WrOpcode::kRdmaWrite, &sge);
  wr.rkey = old_key;
  ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kRemAccessErr);
}

// --- Local keys ---------------------------------------------------------------------------------

TEST_P(RcErrors, BadLocalKeyFailsLocallyAfterTheWrsBefore) {
  for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead}) {
    SCOPED_TRACE(static_cast<int>(opcode));
    Bed bed(Options());
    ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 8192), PostResult::kOk);
    const device::Sge good = bed.a.Sge(0, 3000);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &good)), PostResult::kOk);
    device::Sge bad = bed.a.Sge(0, 3000);
    bad.lkey ^= 0xff00;
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(2, opcode, &bad)), PostResult::kOk);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(3, WrOpcode::kRdmaWrite, &good)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, 3));
    EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
    EXPECT_EQ(bed.a.sends.all[1].status, WcStatus::kLocProtErr);
    EXPECT_EQ(bed.a.sends.all[2].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(bed.a.qp->Query().state, QpState::kErr);
    EXPECT_NE(bed.b.qp->Query().state, QpState::kErr) << "the peer has done nothing wrong";
  }
}

TEST_P(RcErrors, ReadIntoMemoryWithoutLocalWrite) {
  Bed bed(Options());
  auto mr =
      SoftMr::Create(*bed.a.transport, bed.a.pd, {bed.a.memory.data(), 4096, Endpoint::kIova, 0});
  ASSERT_TRUE(mr.ok());
  (*mr)->Activate(0);
  const device::Sge sge{Endpoint::kIova, 8, (*mr)->lkey()};
  ExpectFailure(bed, bed.Wr(1, WrOpcode::kRdmaRead, &sge), WcStatus::kLocProtErr);
  (*mr)->Deactivate(0);
}

TEST_P(RcErrors, ReadOnlyMemoryIsAGoodSource) {
  Bed bed(Options());
  bed.Fill(bed.a, 0, 4096);
  auto mr =
      SoftMr::Create(*bed.a.transport, bed.a.pd, {bed.a.memory.data(), 4096, Endpoint::kIova, 0});
  ASSERT_TRUE(mr.ok());
  (*mr)->Activate(0);
  const device::Sge sge{Endpoint::kIova, 4096, (*mr)->lkey()};
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
  EXPECT_TRUE(bed.Same(0, 0, 4096));
  (*mr)->Deactivate(0);
}

// --- What the caller knows to be wrong ----------------------------------------------------------

TEST_P(RcErrors, WhatIsUnderWayIsDoneBeforeASendWithAVerdictFails) {
  Bed bed(Options());
  bed.Fill(bed.a, 0, 12'000);
  const device::Sge sge = bed.a.Sge(0, 4000);
  for (uint64_t id = 1; id <= 3; ++id) {
    device::SendWr wr = bed.Wr(id, WrOpcode::kRdmaWrite, &sge, 4000 * (id - 1));
    if (id == 3) wr.flags = 0;
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  }
  device::SendWr bad{};
  bad.wr_id = 4;
  bad.verdict = WcStatus::kLocQpOpErr;
  ASSERT_EQ(bed.Post(bed.a, bad), PostResult::kOk);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(5, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 4));
  const std::pair<uint64_t, WcStatus> expected[] = {{1, WcStatus::kSuccess},
                                                    {2, WcStatus::kSuccess},
                                                    {4, WcStatus::kLocQpOpErr},
                                                    {5, WcStatus::kWrFlushErr}};
  for (size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(bed.a.sends.all[i].wr_id, expected[i].first);
    EXPECT_EQ(bed.a.sends.all[i].status, expected[i].second);
    EXPECT_EQ(bed.a.sends.all[i].wqe_count, expected[i].first);
  }
  EXPECT_EQ(bed.a.qp->Query().state, QpState::kErr);
  ASSERT_EQ(bed.Post(bed.a, bad), PostResult::kOk);
  EXPECT_EQ(bed.a.sends.all.back().status, WcStatus::kWrFlushErr) << "as any other, in error";
}

// --- Lengths ------------------------------------------------------------------------------------

// A region of 4 GiB that is one page, mapped again and again: nothing of it is read or written.
TEST_P(RcErrors, MessageOverTheMaximumFailsBeforeAnyTraffic) {
  struct Case {
    const char* name;
    std::vector<uint32_t> sizes;
  };
  for (const Case& c : {Case{"one piece", {kMaxMessageBytes + 1}},
                        Case{"three pieces", {kMaxMessageBytes / 2, kMaxMessageBytes / 2, 1}},
                        Case{"sum wraps 32 bits", {0xffffffff, 0xffffffff, 2}}}) {
    for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead}) {
      SCOPED_TRACE(testing::Message() << c.name << " opcode " << static_cast<int>(opcode));
      Bed bed(Options());
      std::vector<device::Sge> sges;
      for (const uint32_t size : c.sizes) sges.push_back(bed.a.Sge(0, size));
      device::SendWr wr = bed.Wr(1, opcode, nullptr);
      wr.sges = sges;
      ExpectFailure(bed, wr, WcStatus::kLocLenErr);
      EXPECT_TRUE(bed.network.sent().empty());
    }
  }
}

TEST_P(RcErrors, ReceiveThatIsTooShort) {
  for (const uint32_t bytes : {17u, 1024u, 5000u}) {
    SCOPED_TRACE(bytes);
    Bed bed(Options());
    ASSERT_EQ(bed.PostRecv(bed.b, 7, 0, 16), PostResult::kOk);
    ASSERT_EQ(bed.PostRecv(bed.b, 8, 0, 16), PostResult::kOk);
    const device::Sge sge = bed.a.Sge(0, bytes);
    ExpectFailure(bed, bed.Wr(1, WrOpcode::kSend, &sge), WcStatus::kRemInvReqErr);
    ASSERT_EQ(bed.b.receives.all.size(), 2u);
    EXPECT_EQ(bed.b.receives.all[0].wr_id, 7u);
    EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kLocLenErr);
    EXPECT_EQ(bed.b.receives.all[1].wr_id, 8u);
    EXPECT_EQ(bed.b.receives.all[1].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
  }
}

TEST_P(RcErrors, ReceiveWithABadKey) {
  Bed bed(Options());
  device::Sge bad = bed.b.Sge(0, 4096);
  bad.lkey ^= 1;
  ASSERT_EQ(bed.b.qp->PostRecv({.wr_id = 7, .sges = {&bad, 1}}, 0), PostResult::kOk);
  const device::Sge sge = bed.a.Sge(0, 100);
  ExpectFailure(bed, bed.Wr(1, WrOpcode::kSend, &sge), WcStatus::kRemOpErr);
  ASSERT_EQ(bed.b.receives.all.size(), 1u);
  EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kLocProtErr);
}

TEST_P(RcErrors, AtomicsNeedEightLocalBytes) {
  Bed bed(Options());
  const device::Sge sge = bed.a.Sge(0, 4);
  ExpectFailure(bed, bed.Wr(1, WrOpcode::kFetchAdd, &sge), WcStatus::kLocLenErr);
}

// --- Posting ------------------------------------------------------------------------------------

TEST_P(RcErrors, PostsThatAreRefusedQueueNothing) {
  Bed bed(Options());
  std::vector<device::Sge> sges(kMaxSge + 1, bed.a.Sge(0, 1));
  device::SendWr wr = bed.Wr(1, WrOpcode::kSend, nullptr);
  wr.sges = sges;
  EXPECT_EQ(bed.Post(bed.a, wr), PostResult::kTooManySges);
  EXPECT_EQ(bed.b.qp->PostRecv({.wr_id = 1, .sges = sges}, 0), PostResult::kTooManySges);

  const std::string data(kMaxInlineBytes + 1, 'x');
  wr.sges = {};
  wr.flags |= shm::kWorkInline;
  wr.inline_data.pieces[0] = std::as_bytes(std::span(data));
  EXPECT_EQ(bed.Post(bed.a, wr), PostResult::kTooLong);
  wr.opcode = WrOpcode::kRdmaRead;
  wr.inline_data.pieces[0] = {};
  EXPECT_EQ(bed.Post(bed.a, wr), PostResult::kBadOpcode);
  EXPECT_EQ(bed.Post(bed.a, bed.Wr(1, static_cast<WrOpcode>(200), nullptr)),
            PostResult::kBadOpcode);
  bed.network.RunUntilQuiet();
  EXPECT_TRUE(bed.a.sends.all.empty());
  EXPECT_EQ(bed.a.qp->Query().state, QpState::kRts);
}

TEST_P(RcErrors, ReadsNeedAnAgreedNumberOfThem) {
  BedOptions options = Options();
  options.rd_atomic = 0;
  Bed bed(options);
  const device::Sge sge = bed.a.Sge(0, 8);
  EXPECT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaRead, &sge)), PostResult::kBadOpcode);
}

TEST_P(RcErrors, FullQueueRefusesAndLosesNothing) {
  BedOptions options = Options();
  options.queue_depth = 5;  // no power of two
  options.rnr_retry = 7;
  Bed bed(options);
  const device::Sge sge = bed.a.Sge(0, 8);
  for (uint64_t i = 1; i <= 5; ++i) {
    device::SendWr wr = bed.Wr(i, WrOpcode::kSend, &sge);
    if (i < 5) wr.flags = 0;
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  }
  EXPECT_EQ(bed.Post(bed.a, bed.Wr(6, WrOpcode::kSend, &sge)), PostResult::kQueueFull);
  for (uint64_t i = 1; i <= 5; ++i) ASSERT_EQ(bed.PostRecv(bed.b, i, 0, 8), PostResult::kOk);
  EXPECT_EQ(bed.PostRecv(bed.b, 6, 0, 8), PostResult::kQueueFull);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_EQ(bed.a.sends.all[0].wqe_count, 5u);
  EXPECT_EQ(bed.b.receives.all.size(), 5u);
}

TEST_P(RcErrors, AMillionSendsOnAQueueOf64) {
  Bed bed(Options());
  bed.network.keep_record = false;
  constexpr uint32_t kTotal = 1'000'000;
  uint32_t posted = 0;
  uint32_t received = 0;
  ASSERT_TRUE(bed.network.RunUntil(
      [&] {
        while (received < kTotal && bed.b.qp->PostRecv({.wr_id = received, .sges = {}},
                                                       bed.network.now()) == PostResult::kOk) {
          ++received;
        }
        device::SendWr wr = bed.Wr(posted, WrOpcode::kSend, nullptr);
        while (posted < kTotal) {
          wr.wr_id = posted;
          wr.flags = posted % 16 == 15 ? shm::kWorkSignaled : 0;
          if (bed.Post(bed.a, wr) != PostResult::kOk) break;
          ++posted;
        }
        const bool done = !bed.a.sends.all.empty() && bed.a.sends.all.back().wqe_count == kTotal;
        return done;
      },
      device::kNever / 2));
  EXPECT_EQ(bed.b.receives.all.size(), kTotal);
  EXPECT_EQ(bed.a.sends.all.size(), kTotal / 16);
}

}  // namespace
}  // namespace rdmad::soft
