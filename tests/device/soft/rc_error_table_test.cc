// Every kind of error that a WR of an RC QP can end with, as one table, on both paths: the status
// at the requester, what becomes of the responder and of the receive in use, the event that it
// raises, and the order in which the rest is flushed.
#include <gtest/gtest.h>

#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpState;
using device::WcStatus;
using device::WrOpcode;

constexpr uint64_t kRegionBytes = 1 << 20;

// What stands in the way besides the WR itself.
enum class Obstacle { kNone, kNoRemoteRights, kShortReceive, kBadReceive, kNoReceive, kNoPeer };

struct Row {
  const char* name;
  WrOpcode opcode;
  uint32_t bytes;
  Obstacle obstacle;
  void (*spoil)(device::SendWr& wr, device::Sge& sge);
  WcStatus status;  // at the requester
  bool peer_fails;
  WcStatus receive;  // of the receive in use; kSuccess: none is
  bool raises = false;
  AsyncEventType event = AsyncEventType::kCqErr;
};

void Nothing(device::SendWr&, device::Sge&) {}
void BadLkey(device::SendWr&, device::Sge& sge) {
  sge.lkey ^= 0xff00;
}
void BadRkey(device::SendWr& wr, device::Sge&) {
  wr.rkey ^= 0xff00;
}
void BothBad(device::SendWr& wr, device::Sge& sge) {
  BadLkey(wr, sge);
  BadRkey(wr, sge);
}
void PastTheEnd(device::SendWr& wr, device::Sge&) {
  wr.remote_addr += kRegionBytes;
}
void Unaligned(device::SendWr& wr, device::Sge&) {
  wr.remote_addr += 4;
}
void NoSuchKey(device::SendWr& wr, device::Sge&) {
  wr.imm_be = wr.rkey = 0x7fffff01;
}

using enum device::WrOpcode;
using enum device::WcStatus;
constexpr auto kNone = Obstacle::kNone;
constexpr auto kAccessErr = AsyncEventType::kQpAccessErr;
constexpr auto kReqErr = AsyncEventType::kQpReqErr;
const Row kRows[] = {
    // Of this side.
    {"SEND, bad lkey", kSend, 8, kNone, BadLkey, kLocProtErr, false, kSuccess},
    {"WRITE, bad lkey", kRdmaWrite, 3000, kNone, BadLkey, kLocProtErr, false, kSuccess},
    {"WRITE, bad lkey and rkey", kRdmaWrite, 8, kNone, BothBad, kLocProtErr, false, kSuccess},
    {"READ, bad lkey", kRdmaRead, 3000, kNone, BadLkey, kLocProtErr, false, kSuccess},
    {"READ, bad lkey and rkey", kRdmaRead, 8, kNone, BothBad, kLocProtErr, false, kSuccess},
    {"atomic, bad lkey", kFetchAdd, 8, kNone, BadLkey, kLocProtErr, false, kSuccess},
    {"atomic, seven bytes", kCompareSwap, 7, kNone, Nothing, kLocLenErr, false, kSuccess},
    {"SEND, too long", kSend, kMaxMessageBytes + 1, kNone, Nothing, kLocLenErr, false, kSuccess},
    {"READ, too long", kRdmaRead, kMaxMessageBytes + 1, kNone, Nothing, kLocLenErr, false,
     kSuccess},
    {"bind, no such window", kBindMw, 0, kNone, NoSuchKey, kMwBindErr, false, kSuccess},
    {"invalidation, no such window", kLocalInv, 0, kNone, NoSuchKey, kLocQpOpErr, false, kSuccess},
    // Remote access.
    {"WRITE, bad rkey", kRdmaWrite, 8, kNone, BadRkey, kRemAccessErr, true, kSuccess, true,
     kAccessErr},
    {"WRITE of many packets, bad rkey", kRdmaWrite, 9000, kNone, BadRkey, kRemAccessErr, true,
     kSuccess, true, kAccessErr},
    {"WRITE with immediate, bad rkey", kRdmaWriteWithImm, 8, kNone, BadRkey, kRemAccessErr, true,
     kRemAccessErr, true, kAccessErr},
    {"WRITE with immediate of many packets, bad rkey", kRdmaWriteWithImm, 9000, kNone, BadRkey,
     kRemAccessErr, true, kSuccess, true, kAccessErr},
    {"WRITE past the end", kRdmaWrite, 8, kNone, PastTheEnd, kRemAccessErr, true, kSuccess, true,
     kAccessErr},
    {"READ, bad rkey", kRdmaRead, 9000, kNone, BadRkey, kRemAccessErr, true, kSuccess, true,
     kAccessErr},
    {"atomic, bad rkey", kCompareSwap, 8, kNone, BadRkey, kRemAccessErr, true, kSuccess, true,
     kAccessErr},
    // Invalid requests.
    {"WRITE without the right", kRdmaWrite, 8, Obstacle::kNoRemoteRights, Nothing, kRemInvReqErr,
     true, kSuccess, true, kReqErr},
    {"READ without the right", kRdmaRead, 8, Obstacle::kNoRemoteRights, Nothing, kRemInvReqErr,
     true, kSuccess, true, kReqErr},
    {"atomic without the right", kFetchAdd, 8, Obstacle::kNoRemoteRights, Nothing, kRemInvReqErr,
     true, kSuccess, true, kReqErr},
    {"atomic, not aligned", kFetchAdd, 8, kNone, Unaligned, kRemInvReqErr, true, kSuccess, true,
     kReqErr},
    {"SEND with invalidate, no such key", kSendWithInv, 8, kNone, NoSuchKey, kRemInvReqErr, true,
     kRemInvReqErr, true, kReqErr},
    {"SEND, receive too short", kSend, 65, Obstacle::kShortReceive, Nothing, kRemInvReqErr, true,
     kLocLenErr},
    {"SEND of many packets, receive too short", kSend, 9000, Obstacle::kShortReceive, Nothing,
     kRemInvReqErr, true, kLocLenErr},
    // Remote operation.
    {"SEND, bad receive", kSend, 8, Obstacle::kBadReceive, Nothing, kRemOpErr, true, kLocProtErr},
    // Nobody there.
    {"SEND, no receive", kSend, 8, Obstacle::kNoReceive, Nothing, kRnrRetryExcErr, false, kSuccess},
    {"WRITE with immediate, no receive", kRdmaWriteWithImm, 8, Obstacle::kNoReceive, Nothing,
     kRnrRetryExcErr, false, kSuccess},
    {"WRITE, no peer", kRdmaWrite, 8, Obstacle::kNoPeer, Nothing, kRetryExcErr, false, kSuccess},
};

class RcErrorTable : public PathTest {
 protected:
  static BedOptions OptionsFor(const Row& row) {
    BedOptions options = Options();
    options.memory_bytes = kRegionBytes;
    options.timeout = 8;
    options.retry_count = 2;
    options.rnr_retry = 2;
    if (row.obstacle == Obstacle::kNoRemoteRights) options.access = device::kAccessLocalWrite;
    return options;
  }
  // Two receives at b, of which the first is the one that matters.
  static void PostReceives(Bed& bed, const Row& row) {
    if (row.obstacle == Obstacle::kNoReceive) return;
    device::Sge sge = bed.b.Sge(0, row.obstacle == Obstacle::kShortReceive ? 64 : 16 * 1024);
    if (row.obstacle == Obstacle::kBadReceive) sge.lkey ^= 0xff00;
    for (const uint64_t id : {70, 71}) {
      ASSERT_EQ(bed.b.qp->PostRecv({.wr_id = id, .sges = {&sge, 1}}, 0), PostResult::kOk);
    }
  }
  static size_t EventsOf(const Endpoint& endpoint) {
    return static_cast<size_t>(
        std::count_if(endpoint.events->all.begin(), endpoint.events->all.end(),
                      [&](const auto& event) { return event.qpn == endpoint.qp->qpn(); }));
  }
};
RDMAD_ON_BOTH_PATHS(RcErrorTable);

TEST_P(RcErrorTable, EachErrorHasItsStatusItsVictimAndItsEvent) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    Bed bed(OptionsFor(row));
    PostReceives(bed, row);
    for (const uint64_t id : {80, 81}) {
      ASSERT_EQ(bed.PostRecv(bed.a, id, 0, 64), PostResult::kOk);
    }
    if (row.obstacle == Obstacle::kNoPeer) {
      ASSERT_EQ(bed.MoveTo(bed.b, QpState::kReset), device::QpResult::kOk);
    }
    device::Sge sge = bed.a.Sge(0, row.bytes);
    device::SendWr wr = bed.Wr(1, row.opcode, &sge);
    row.spoil(wr, sge);
    const device::Sge good = bed.a.Sge(0, 8);
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
    for (const uint64_t id : {2, 3}) {
      device::SendWr next = bed.Wr(id, kSend, &good);
      next.flags = 0;  // errors are reported whether asked for or not
      ASSERT_EQ(bed.Post(bed.a, next), PostResult::kOk);
    }
    bed.network.RunUntilQuiet();

    ASSERT_EQ(bed.a.sends.all.size(), 3u);
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(bed.a.sends.all[i].wr_id, i + 1);
      EXPECT_EQ(bed.a.sends.all[i].status, i == 0 ? row.status : kWrFlushErr);
      EXPECT_EQ(bed.a.sends.all[i].wqe_count, i + 1);
    }
    EXPECT_EQ(bed.a.qp->Query().state, QpState::kErr);
    ASSERT_EQ(bed.a.receives.all.size(), 2u);
    EXPECT_EQ(bed.a.receives.all[0].wr_id, 80u);
    EXPECT_EQ(bed.a.receives.all[1].status, kWrFlushErr);
    EXPECT_EQ(EventsOf(bed.a), 0u) << "the completion says it";

    const QpState untouched = row.obstacle == Obstacle::kNoPeer ? QpState::kReset : QpState::kRts;
    EXPECT_EQ(bed.b.qp->Query().state, row.peer_fails ? QpState::kErr : untouched);
    EXPECT_EQ(EventsOf(bed.b), row.raises ? 1u : 0u);
    EXPECT_EQ(bed.b.events->Count(row.event), row.raises ? 1u : 0u);
    if (!row.peer_fails) {
      EXPECT_TRUE(bed.b.receives.all.empty());
      continue;
    }
    ASSERT_EQ(bed.b.receives.all.size(), 2u);
    for (uint64_t i = 0; i < 2; ++i) EXPECT_EQ(bed.b.receives.all[i].wr_id, 70 + i);
    EXPECT_EQ(bed.b.receives.all[0].status, row.receive == kSuccess ? kWrFlushErr : row.receive);
    EXPECT_EQ(bed.b.receives.all[1].status, kWrFlushErr);
  }
}

// --- The depth that was agreed ------------------------------------------------------------------

TEST_P(RcErrorTable, AReadThatIsQueuedWhenItsDepthIsTakenBackFails) {
  BedOptions options = Options();
  Bed bed(options);
  ASSERT_EQ(bed.MoveTo(bed.a, QpState::kSqd), device::QpResult::kOk);
  const device::Sge sge = bed.a.Sge(0, 8);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, kRdmaRead, &sge)), PostResult::kOk);
  device::QpAttr attr;
  attr.mask = device::kQpAttrMaxQpRdAtomic;
  ASSERT_EQ(bed.a.qp->Modify(attr, 0), device::QpResult::kOk);
  ASSERT_EQ(bed.MoveTo(bed.a, QpState::kRts), device::QpResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_EQ(bed.a.sends.all[0].status, kLocQpOpErr);
}

TEST(RcDepth, NoMoreReadsAreUnderWayThanWereAgreed) {
  for (const uint8_t depth : {1, 2, 16}) {
    SCOPED_TRACE(static_cast<int>(depth));
    BedOptions options;
    options.rd_atomic = depth;
    Bed bed(options);
    uint32_t under_way = 0;
    uint32_t most = 0;
    // Counted as they are sent; an answer is complete with its last packet.
    size_t seen = 0;
    const device::Sge sge = bed.a.Sge(0, 2000);
    for (uint64_t i = 0; i < 40; ++i) {
      const device::Sge word = bed.a.Sge(0, 8);
      const bool atomic = i % 3 == 0;
      ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, atomic ? kFetchAdd : kRdmaRead, atomic ? &word : &sge)),
                PostResult::kOk);
    }
    ASSERT_TRUE(bed.Await(bed.a.sends, 40));
    for (; seen < bed.network.sent().size(); ++seen) {
      switch (wire::InfoOf(bed.network.sent()[seen].fields.opcode).operation) {
        case wire::Operation::kReadRequest:
        case wire::Operation::kAtomicRequest:
          most = std::max(most, ++under_way);
          break;
        case wire::Operation::kAtomicAck:
          --under_way;
          break;
        case wire::Operation::kReadResponse:
          if (wire::InfoOf(bed.network.sent()[seen].fields.opcode).ends_message()) --under_way;
          break;
        default:
          break;
      }
    }
    EXPECT_EQ(most, depth);
    for (const auto& wc : bed.a.sends.all) EXPECT_EQ(wc.status, kSuccess);
  }
}

TEST(RcDepth, APeerThatExceedsItGetsAnInvalidRequest) {
  BedOptions options;
  options.connect = false;
  Bed bed(options);
  // a may have four under way, b takes two.
  bed.ToRts(bed.a, bed.b, 5, 9);
  bed.ToInit(bed.b);
  device::QpAttr attr = bed.RtrAttr(bed.a, 5);
  attr.max_dest_rd_atomic = 2;
  ASSERT_EQ(bed.b.qp->Modify(attr, 0), device::QpResult::kOk);
  const device::Sge sge = bed.a.Sge(0, 10'000);
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, kRdmaRead, &sge)), PostResult::kOk);
  }
  ASSERT_TRUE(bed.Await(bed.a.sends, 3));
  bed.network.RunUntilQuiet();
  EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
  EXPECT_EQ(bed.b.events->Count(kReqErr), 1u);
  EXPECT_EQ(bed.a.sends.all[2].status == kSuccess, false);
}

TEST(RcDepth, APeerThatTakesNoneGetsNone) {
  for (const WrOpcode opcode : {kRdmaRead, kFetchAdd}) {
    BedOptions options;
    options.connect = false;
    Bed bed(options);
    bed.ToRts(bed.a, bed.b, 5, 9);
    bed.ToInit(bed.b);
    device::QpAttr attr = bed.RtrAttr(bed.a, 5);
    attr.max_dest_rd_atomic = 0;
    ASSERT_EQ(bed.b.qp->Modify(attr, 0), device::QpResult::kOk);
    const device::Sge sge = bed.a.Sge(0, 8);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, opcode, &sge)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, 1));
    EXPECT_EQ(bed.a.sends.all[0].status, kRemInvReqErr);
  }
}

}  // namespace
}  // namespace rdmad::soft
