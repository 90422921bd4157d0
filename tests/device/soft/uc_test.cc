// UC queue pairs: what arrives, what is lost in silence, and what a failed send does to its QP.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "proto/shm/completion_queue.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpResult;
using device::QpState;
using device::WcOpcode;
using device::WcStatus;
using device::WrOpcode;
using wire::Opcode;

constexpr uint32_t kMtu = 1024;
constexpr uint32_t kSizes[] = {0, 1, kMtu, kMtu + 1, 10 * kMtu, 1 << 20};

BedOptions Uc(Path path) {
  BedOptions options;
  options.path = path;
  options.type = device::QpType::kUc;
  return options;
}

class UcQp : public PathTest {
 protected:
  static BedOptions Options() { return Uc(GetParam()); }
  static void PostWrite(Bed& bed, uint64_t wr_id, uint32_t bytes) {
    const device::Sge sge = bed.a.Sge(0, bytes);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(wr_id, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  }
  // A good SEND of `bytes` arrives in the receive that is posted, as completion `nth` of b.
  static void ExpectDelivery(Bed& bed, uint64_t recv_id, size_t nth, uint32_t bytes = 8) {
    bed.Fill(bed.a, 0, bytes, 99);
    const device::Sge sge = bed.a.Sge(0, bytes);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(1000, WrOpcode::kSend, &sge)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.b.receives, nth));
    EXPECT_EQ(bed.b.receives.all[nth - 1].wr_id, recv_id);
    EXPECT_EQ(bed.b.receives.all[nth - 1].status, WcStatus::kSuccess);
    EXPECT_EQ(bed.b.receives.all[nth - 1].byte_len, bytes);
    EXPECT_TRUE(bed.Same(0, 0, bytes));
  }
};
RDMAD_ON_BOTH_PATHS(UcQp);

TEST_P(UcQp, EveryOperationDeliversEverySize) {
  for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kSendWithImm, WrOpcode::kRdmaWrite,
                                WrOpcode::kRdmaWriteWithImm}) {
    for (const uint32_t size : kSizes) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(opcode) << " size " << size);
      const bool write = opcode == WrOpcode::kRdmaWrite || opcode == WrOpcode::kRdmaWriteWithImm;
      const bool imm = opcode == WrOpcode::kSendWithImm || opcode == WrOpcode::kRdmaWriteWithImm;
      Bed bed(Options());
      bed.Fill(bed.a, 0, size, size + 1);
      ASSERT_EQ(bed.PostRecv(bed.b, 5, 0, 1 << 20), PostResult::kOk);
      const device::Sge sge = bed.a.Sge(0, size);
      device::SendWr wr = bed.Wr(1, opcode, &sge);
      wr.imm_be = htonl(0x12345678);
      wr.flags |= shm::kWorkSolicited;
      ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
      ASSERT_TRUE(bed.Await(bed.a.sends, 1));
      bed.network.RunUntilQuiet();
      EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
      EXPECT_TRUE(bed.Same(0, 0, size));
      ASSERT_EQ(bed.b.receives.all.size(), write && !imm ? 0u : 1u);
      if (bed.b.receives.all.empty()) continue;
      const device::Wc& wc = bed.b.receives.all[0];
      EXPECT_EQ(wc.opcode, write ? WcOpcode::kRecvRdmaWithImm : WcOpcode::kRecv);
      EXPECT_EQ(wc.flags, shm::kCqeRecvQueue | (imm ? shm::kCqeWithImm : 0));
      EXPECT_EQ(wc.imm_be, imm ? htonl(0x12345678) : 0);
      EXPECT_EQ(wc.byte_len, size);
      EXPECT_TRUE(wc.solicited);
    }
  }
}

TEST_P(UcQp, OneSideSendsAndNothingComesBack) {
  Bed bed(Options());
  PostWrite(bed, 1, 3 * kMtu);
  bed.network.RunUntilQuiet();
  if (GetParam() == Path::kLocal) {
    EXPECT_TRUE(bed.network.sent().empty());
    return;
  }
  ASSERT_EQ(bed.network.sent().size(), 3u);
  const Opcode expected[] = {Opcode::kUcWriteFirst, Opcode::kUcWriteMiddle, Opcode::kUcWriteLast};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(bed.network.sent()[i].fields.opcode, expected[i]);
    EXPECT_FALSE(bed.network.sent()[i].fields.ack_req);
    EXPECT_EQ(bed.network.sent()[i].fields.psn, wire::Psn(0x100 + static_cast<uint32_t>(i)));
  }
  EXPECT_EQ(bed.a.transport->NextDeadline(bed.network.now()), device::kNever) << "no timer";
}

TEST_P(UcQp, ManyMessagesKeepTheirOrderInBothDirections) {
  Bed bed(Options());
  for (uint64_t i = 0; i < 50; ++i) {
    const device::Sge sge = bed.a.Sge(0, 3000);
    const device::Sge back = bed.b.Sge(0, 100);
    ASSERT_EQ(bed.PostRecv(bed.b, i, 10'000, 3000), PostResult::kOk);
    ASSERT_EQ(bed.PostRecv(bed.a, i, 10'000, 3000), PostResult::kOk);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, WrOpcode::kSend, &sge)), PostResult::kOk);
    ASSERT_EQ(bed.Post(bed.b, bed.Wr(i, WrOpcode::kSend, &back)), PostResult::kOk);
  }
  ASSERT_TRUE(bed.Await(bed.b.receives, 50));
  ASSERT_TRUE(bed.Await(bed.a.receives, 50));
  for (uint64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(bed.b.receives.all[i].wr_id, i);
    EXPECT_EQ(bed.a.sends.all[i].wr_id, i);
    EXPECT_EQ(bed.a.sends.all[i].wqe_count, i + 1);
  }
}

TEST(UcWire, AMessageThatLosesAPacketIsGoneAndItsReceiveServesTheNext) {
  for (const uint32_t lost : {0u, 1u, 2u}) {
    for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kRdmaWriteWithImm}) {
      SCOPED_TRACE(testing::Message() << "packet " << lost << " of " << static_cast<int>(opcode));
      Bed bed(Uc(Path::kWire));
      bed.network.drop_if = [lost](const auto& sent) {
        return sent.fields.psn == wire::Psn(0x100 + lost);
      };
      ASSERT_EQ(bed.PostRecv(bed.b, 5, 0, 1 << 20), PostResult::kOk);
      const device::Sge sge = bed.a.Sge(0, 3 * kMtu);
      for (uint64_t i = 1; i <= 2; ++i) {
        device::SendWr wr = bed.Wr(i, opcode, &sge);
        wr.imm_be = htonl(static_cast<uint32_t>(i));
        ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
      }
      bed.network.RunUntilQuiet();
      ASSERT_EQ(bed.a.sends.all.size(), 2u);
      EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess) << "nobody told it";
      ASSERT_EQ(bed.b.receives.all.size(), 1u);
      EXPECT_EQ(bed.b.receives.all[0].wr_id, 5u);
      EXPECT_EQ(bed.b.receives.all[0].byte_len, 3 * kMtu);
      EXPECT_EQ(bed.b.receives.all[0].imm_be, opcode == WrOpcode::kSend ? 0u : htonl(2));
      EXPECT_EQ(bed.b.qp->Query().state, QpState::kRts);
      EXPECT_TRUE(bed.b.events->all.empty());
    }
  }
}

TEST(UcWire, PacketsOutOfPlaceAreDroppedInSilence) {
  const std::vector<std::pair<Opcode, uint32_t>> cases[] = {
      {{Opcode::kUcSendMiddle, 0}},
      {{Opcode::kUcSendLast, 7}},
      {{Opcode::kUcSendFirst, 3}, {Opcode::kUcWriteLast, 4}},
      {{Opcode::kUcSendFirst, 3}, {Opcode::kUcSendLast, 5}},
      {{Opcode::kUcSendFirst, 3}, {Opcode::kUcSendLast, 3}},
      {{Opcode::kRcSendOnly, 0}},
      {{Opcode::kUdSendOnly, 0}},
  };
  for (const auto& packets : cases) {
    SCOPED_TRACE(wire::OpcodeName(packets.back().first));
    Bed bed(Uc(Path::kWire));
    ASSERT_EQ(bed.PostRecv(bed.b, 5, 0, 1 << 20), PostResult::kOk);
    const std::vector<uint8_t> payload(kMtu, 0x5a);
    for (const auto& [opcode, psn] : packets) {
      wire::PacketFields fields;
      fields.opcode = opcode;
      fields.psn = wire::Psn(psn);
      fields.dest_qpn = wire::Qpn(bed.b.qp->qpn());
      bed.network.Inject({.local = bed.a.address, .remote = bed.b.address}, fields, payload);
    }
    bed.network.RunUntilQuiet();
    EXPECT_TRUE(bed.b.receives.all.empty());
    EXPECT_TRUE(bed.network.sent().empty()) << "UC does not answer";
    EXPECT_EQ(bed.b.qp->Query().state, QpState::kRts);
  }
}

TEST(UcWire, AMessageThatBeginsTakesThePlaceOfOneThatDidNotEnd) {
  Bed bed(Uc(Path::kWire));
  ASSERT_EQ(bed.PostRecv(bed.b, 5, 0, 1 << 20), PostResult::kOk);
  const std::vector<uint8_t> payload(kMtu, 0x5a);
  wire::PacketFields fields;
  fields.dest_qpn = wire::Qpn(bed.b.qp->qpn());
  for (const Opcode opcode : {Opcode::kUcSendFirst, Opcode::kUcSendFirst, Opcode::kUcSendLast}) {
    fields.opcode = opcode;
    bed.network.Inject({.local = bed.a.address, .remote = bed.b.address}, fields, payload);
    ++fields.psn;
  }
  bed.network.RunUntilQuiet();
  ASSERT_EQ(bed.b.receives.all.size(), 1u);
  EXPECT_EQ(bed.b.receives.all[0].byte_len, 2 * kMtu);
  EXPECT_EQ(bed.Counter(bed.b, "drop_incomplete"), 1u);
}

// --- Errors of the message: nobody but a counter hears of them ----------------------------------

struct DroppedCase {
  const char* name;
  WrOpcode opcode;
  uint32_t bytes;
  uint32_t access;  // of the QPs
  uint32_t rkey_xor;
};
constexpr uint32_t kAllRights = device::kAccessAll & ~device::kAccessMwBind;
constexpr DroppedCase kDropped[] = {
    {"unknown key", WrOpcode::kRdmaWrite, 100, kAllRights, 0xff00},
    {"unknown key, many packets", WrOpcode::kRdmaWrite, 10'000, kAllRights, 0xff00},
    {"unknown key with immediate", WrOpcode::kRdmaWriteWithImm, 100, kAllRights, 0xff00},
    {"range too long", WrOpcode::kRdmaWrite, (4 << 20) - 10, kAllRights, 0},
    {"no right to write", WrOpcode::kRdmaWrite, 100, device::kAccessLocalWrite, 0},
    {"receive too short", WrOpcode::kSend, 65, kAllRights, 0},
    {"receive too short, many packets", WrOpcode::kSend, 10'000, kAllRights, 0},
};

TEST_P(UcQp, WhatTheReceiverRefusesIsDroppedAndTheReceiveServesTheNext) {
  for (const DroppedCase& c : kDropped) {
    SCOPED_TRACE(c.name);
    BedOptions options = Options();
    options.access = c.access;
    options.memory_bytes = 4 << 20;
    Bed bed(options);
    ASSERT_EQ(bed.PostRecv(bed.b, 5, 0, 64), PostResult::kOk);
    const std::vector<std::byte> before = bed.b.memory;
    const device::Sge sge = bed.a.Sge(0, c.bytes);
    device::SendWr wr = bed.Wr(1, c.opcode, &sge, c.bytes > 1 << 20 ? 11 : 0);
    wr.rkey ^= c.rkey_xor;
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
    bed.network.RunUntilQuiet();
    ASSERT_EQ(bed.a.sends.all.size(), 1u);
    EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
    EXPECT_TRUE(bed.b.receives.all.empty());
    EXPECT_TRUE(bed.b.memory == before);
    EXPECT_EQ(bed.b.events->Count(AsyncEventType::kQpAccessErr), 0u);
    EXPECT_EQ(bed.b.events->Count(AsyncEventType::kQpReqErr), 0u);
    EXPECT_EQ(bed.b.qp->Query().state, QpState::kRts);
    EXPECT_EQ(bed.Counter(bed.b, "drop_refused"), 1u);
    ExpectDelivery(bed, 5, 1);
  }
}

TEST_P(UcQp, WithoutAReceiveTheMessageIsGone) {
  Bed bed(Options());
  const device::Sge sge = bed.a.Sge(0, 3000);
  for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kRdmaWriteWithImm}) {
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, opcode, &sge)), PostResult::kOk);
  }
  bed.network.RunUntilQuiet();
  EXPECT_EQ(bed.a.sends.all.size(), 2u);
  ASSERT_EQ(bed.PostRecv(bed.b, 5, 0, 64), PostResult::kOk);
  bed.network.RunUntilQuiet();
  EXPECT_TRUE(bed.b.receives.all.empty());
  ExpectDelivery(bed, 5, 1);
}

TEST_P(UcQp, AReceiveWithABadKeyEndsTheReceiverAlone) {
  Bed bed(Options());
  device::Sge bad = bed.b.Sge(0, 4096);
  bad.lkey ^= 1;
  ASSERT_EQ(bed.b.qp->PostRecv({.wr_id = 7, .sges = {&bad, 1}}, 0), PostResult::kOk);
  ASSERT_EQ(bed.PostRecv(bed.b, 8, 0, 64), PostResult::kOk);
  const device::Sge sge = bed.a.Sge(0, 100);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  bed.network.RunUntilQuiet();
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
  EXPECT_EQ(bed.a.qp->Query().state, QpState::kRts);
  EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
  ASSERT_EQ(bed.b.receives.all.size(), 2u);
  EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kLocProtErr);
  EXPECT_EQ(bed.b.receives.all[1].status, WcStatus::kWrFlushErr);
}

// It was everybody's, and cannot be put back.
TEST_P(UcQp, AReceiveOfAnSrqThatIsTooShortEndsTheReceiver) {
  for (const uint32_t bytes : {65u, 10'000u}) {
    SCOPED_TRACE(bytes);
    BedOptions options = Options();
    options.srq_wr = 4;
    Bed bed(options);
    ASSERT_EQ(bed.PostRecv(bed.b, 7, 0, 64), PostResult::kOk);
    ASSERT_EQ(bed.PostRecv(bed.b, 8, 0, 64), PostResult::kOk);
    const std::vector<std::byte> before = bed.b.memory;
    const device::Sge sge = bed.a.Sge(0, bytes);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
    bed.network.RunUntilQuiet();
    EXPECT_EQ(bed.a.sends.all.at(0).status, WcStatus::kSuccess);
    EXPECT_EQ(bed.a.qp->Query().state, QpState::kRts);
    EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
    ASSERT_EQ(bed.b.receives.all.size(), 1u) << "the other is still the SRQ's";
    EXPECT_EQ(bed.b.receives.all[0].wr_id, 7u);
    EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kLocLenErr);
    EXPECT_TRUE(bed.b.memory == before);
  }
}

TEST_P(UcQp, APeerThatIsNotThereIsNoError) {
  Bed bed(Options());
  ASSERT_EQ(bed.MoveTo(bed.b, QpState::kReset), QpResult::kOk);
  PostWrite(bed, 1, 5000);
  bed.network.RunUntilQuiet();
  ASSERT_EQ(bed.a.sends.all.size(), 1u);
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
}

// --- Errors of the sender: kSqe -----------------------------------------------------------------

TEST_P(UcQp, AFailedSendStopsTheSendQueueAndOnlyThat) {
  struct Case {
    const char* name;
    uint32_t bytes;
    uint32_t lkey_xor;
    WcStatus status;
  };
  for (const Case& c : {Case{"bad key", 8, 0xff00, WcStatus::kLocProtErr},
                        Case{"bad key, many packets", 5000, 0xff00, WcStatus::kLocProtErr},
                        Case{"too long", kMaxMessageBytes + 1, 0, WcStatus::kLocLenErr}}) {
    SCOPED_TRACE(c.name);
    Bed bed(Options());
    ASSERT_EQ(bed.PostRecv(bed.a, 50, 1000, 64), PostResult::kOk);
    ASSERT_EQ(bed.PostRecv(bed.b, 60, 0, 64), PostResult::kOk);
    PostWrite(bed, 1, 8);
    device::Sge bad = bed.a.Sge(0, c.bytes);
    bad.lkey ^= c.lkey_xor;
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(2, WrOpcode::kRdmaWrite, &bad)), PostResult::kOk);
    PostWrite(bed, 3, 8);
    PostWrite(bed, 4, 8);
    bed.network.RunUntilQuiet();
    EXPECT_EQ(bed.a.qp->Query().state, QpState::kSqe);
    PostWrite(bed, 5, 8);
    const WcStatus expected[] = {WcStatus::kSuccess, c.status, WcStatus::kWrFlushErr,
                                 WcStatus::kWrFlushErr, WcStatus::kWrFlushErr};
    ASSERT_EQ(bed.a.sends.all.size(), 5u);
    for (uint64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(bed.a.sends.all[i].wr_id, i + 1);
      EXPECT_EQ(bed.a.sends.all[i].status, expected[i]);
      EXPECT_EQ(bed.a.sends.all[i].wqe_count, i + 1);
    }
    // Receiving goes on.
    const device::Sge sge = bed.b.Sge(0, 8);
    ASSERT_EQ(bed.Post(bed.b, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.receives, 1));
    EXPECT_EQ(bed.a.receives.all[0].status, WcStatus::kSuccess);
    // And so does sending, when the application says so.
    ASSERT_EQ(bed.MoveTo(bed.a, QpState::kRts), QpResult::kOk);
    ExpectDelivery(bed, 60, 1);
    EXPECT_EQ(bed.a.sends.all.back().wqe_count, 6u);
  }
}

TEST_P(UcQp, FromSqeTheQpGoesToErrorAndResetToo) {
  for (const QpState next : {QpState::kErr, QpState::kReset}) {
    Bed bed(Options());
    device::Sge bad = bed.a.Sge(0, 8);
    bad.lkey ^= 0xff00;
    ASSERT_EQ(bed.PostRecv(bed.a, 50, 1000, 64), PostResult::kOk);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(2, WrOpcode::kSend, &bad)), PostResult::kOk);
    bed.network.RunUntilQuiet();
    ASSERT_EQ(bed.a.qp->Query().state, QpState::kSqe);
    EXPECT_EQ(bed.MoveTo(bed.a, QpState::kSqd), QpResult::kIllegalTransition);
    ASSERT_EQ(bed.MoveTo(bed.a, next), QpResult::kOk);
    EXPECT_EQ(bed.a.receives.all.size(), next == QpState::kErr ? 1u : 0u);
  }
}

TEST_P(UcQp, NobodyPutsAQpIntoSqe) {
  Bed bed(Options());
  EXPECT_EQ(bed.MoveTo(bed.a, QpState::kSqe), QpResult::kIllegalTransition);
}

TEST_P(UcQp, OperationsOfRcAloneAreRefused) {
  Bed bed(Options());
  const device::Sge sge = bed.a.Sge(0, 8);
  for (const WrOpcode opcode :
       {WrOpcode::kRdmaRead, WrOpcode::kFetchAdd, WrOpcode::kCompareSwap, WrOpcode::kSendWithInv}) {
    EXPECT_EQ(bed.Post(bed.a, bed.Wr(1, opcode, &sge)), PostResult::kBadOpcode);
  }
}

TEST_P(UcQp, AMessageUnderWayIsSentWholeBeforeTheQueueIsDrained) {
  BedOptions options = Options();
  options.config.qp_budget_bytes = options.config.turn_budget_bytes = 16 * 1024;
  Bed bed(options);
  bed.Fill(bed.a, 0, 200'000);
  PostWrite(bed, 1, 200'000);
  PostWrite(bed, 2, 8);
  bed.a.transport->DoWork(bed.network.now());
  ASSERT_TRUE(bed.a.sends.all.empty());
  ASSERT_EQ(bed.Drain(bed.a), QpResult::kOk);
  bed.network.RunUntilQuiet();
  ASSERT_EQ(bed.a.sends.all.size(), 1u);
  EXPECT_EQ(bed.a.events->Count(AsyncEventType::kSqDrained), 1u);
  EXPECT_TRUE(bed.Same(0, 0, 200'000));
  ASSERT_EQ(bed.MoveTo(bed.a, QpState::kRts), QpResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 2));
}

TEST(UcWire, ABlockedPathDelaysAndLosesNothing) {
  Bed bed(Uc(Path::kWire));
  bed.network.take_at_most = 3;
  bed.Fill(bed.a, 0, 100'000);
  ASSERT_EQ(bed.PostRecv(bed.b, 5, 0, 1 << 20), PostResult::kOk);
  const device::Sge sge = bed.a.Sge(0, 100'000);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_TRUE(bed.Same(0, 0, 100'000));
  EXPECT_EQ(bed.a.sends.all.size(), 1u);
}

// A local message may meet packets of the one before that are still on their way; then it goes over
// the network, too.
TEST(UcLocal, AnAddressThatComesBackInAMessageHarmsNoMessage) {
  BedOptions options = Uc(Path::kLocal);
  options.config.qp_budget_bytes = options.config.turn_budget_bytes = 16 * 1024;
  Bed bed(options);
  bed.a.transport->RemoveLocalAddress(bed.b.address);
  ASSERT_EQ(bed.PostRecv(bed.b, 5, 0, 1 << 20), PostResult::kOk);
  ASSERT_EQ(bed.PostRecv(bed.b, 6, 0, 1 << 20), PostResult::kOk);
  bed.Fill(bed.a, 0, 100'000);
  const device::Sge sge = bed.a.Sge(0, 100'000);
  for (uint64_t i = 1; i <= 2; ++i) {
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, WrOpcode::kSend, &sge)), PostResult::kOk);
  }
  bed.a.transport->DoWork(bed.network.now());
  bed.a.transport->AddLocalAddress(bed.b.address);
  bed.network.RunUntilQuiet();
  ASSERT_EQ(bed.a.sends.all.size(), 2u);
  EXPECT_GE(bed.b.receives.all.size(), 1u);
  EXPECT_EQ(bed.b.receives.all.back().byte_len, 100'000u);
  EXPECT_TRUE(bed.Same(0, 0, 100'000));
}

}  // namespace
}  // namespace rdmad::soft
