// What the requester puts on the wire, and what it makes of a peer that answers whatever it likes.
#include <gtest/gtest.h>

#include "daemon/device/soft/soft_mw.h"
#include "daemon/wire/aeth.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::QpState;
using device::WcStatus;
using device::WrOpcode;
using wire::NakCode;
using wire::Opcode;

constexpr uint32_t kMtu = 1024;
constexpr uint32_t kPsn = 0x000100;

// QP a, whose peer is played by the test: what b would answer is lost.
class SoftRequester : public testing::Test {
 protected:
  SoftRequester() : SoftRequester(BedOptions()) {}
  explicit SoftRequester(const BedOptions& options) : bed(options) {
    bed.network.drop_if = [this](const auto& sent) { return sent.from == bed.b.address; };
    bed.network.RunUntilQuiet();
  }
  void PostWrite(uint64_t wr_id, uint32_t bytes, uint8_t more_flags = 0) {
    const device::Sge sge = bed.a.Sge(0, bytes);
    device::SendWr wr = bed.Wr(wr_id, WrOpcode::kRdmaWrite, &sge);
    wr.flags |= more_flags;
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  }
  void PostRead(uint64_t wr_id, uint32_t bytes) {
    const device::Sge sge = bed.a.Sge(0, bytes);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(wr_id, WrOpcode::kRdmaRead, &sge)), PostResult::kOk);
  }
  void Answer(Opcode opcode, uint32_t psn_offset, uint8_t syndrome = 0x1f, size_t bytes = 0) {
    wire::PacketFields fields;
    fields.opcode = opcode;
    fields.dest_qpn = wire::Qpn(bed.a.qp->qpn());
    fields.psn = wire::Psn(kPsn + psn_offset);
    fields.aeth.syndrome = syndrome;
    const std::vector<uint8_t> payload(bytes, 0x5a);
    bed.network.Inject({.local = bed.b.address, .remote = bed.a.address}, fields, payload);
    bed.network.Pass(20'000);
  }
  // What a has sent since the last call.
  std::vector<FakeNetwork::Sent> Sent() {
    bed.network.Pass(20'000);
    std::vector<FakeNetwork::Sent> packets;
    for (; seen_ < bed.network.sent().size(); ++seen_) {
      if (bed.network.sent()[seen_].from == bed.a.address) {
        packets.push_back(bed.network.sent()[seen_]);
      }
    }
    return packets;
  }

  Bed bed;

 private:
  size_t seen_ = 0;
};

TEST_F(SoftRequester, SegmentsToTheMtuAndAsksForAnAckAtTheEnd) {
  PostWrite(1, 2 * kMtu + 5);
  const auto packets = Sent();
  ASSERT_EQ(packets.size(), 3u);
  EXPECT_EQ(packets[0].fields.opcode, Opcode::kRcWriteFirst);
  EXPECT_EQ(packets[0].fields.reth.va, Endpoint::kIova);
  EXPECT_EQ(packets[0].fields.reth.dma_length_bytes, 2 * kMtu + 5);
  EXPECT_EQ(packets[0].payload_bytes, kMtu);
  EXPECT_FALSE(packets[0].fields.ack_req);
  EXPECT_EQ(packets[1].fields.opcode, Opcode::kRcWriteMiddle);
  EXPECT_EQ(packets[2].fields.opcode, Opcode::kRcWriteLast);
  EXPECT_EQ(packets[2].payload_bytes, 5u);
  EXPECT_TRUE(packets[2].fields.ack_req);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(packets[i].fields.psn, wire::Psn(kPsn + i));
    EXPECT_EQ(packets[i].fields.dest_qpn, wire::Qpn(bed.b.qp->qpn()));
    EXPECT_EQ(packets[i].fields.pkey, wire::kDefaultPKey);
  }
}

TEST_F(SoftRequester, AnAckCompletesEverythingUpToItsPsn) {
  for (uint64_t i = 1; i <= 5; ++i) PostWrite(i, 8);
  (void)Sent();
  Answer(Opcode::kRcAck, 2);
  ASSERT_EQ(bed.a.sends.all.size(), 3u);
  Answer(Opcode::kRcAck, 1);   // old
  Answer(Opcode::kRcAck, 99);  // never sent
  EXPECT_EQ(bed.a.sends.all.size(), 3u);
  EXPECT_EQ(bed.Counter(bed.a, "duplicate_responses"), 2u);
  Answer(Opcode::kRcAck, 4);
  EXPECT_EQ(bed.a.sends.all.size(), 5u);
}

TEST_F(SoftRequester, SequenceNakAcknowledgesWhatWasBeforeAndRepeatsTheRest) {
  PostWrite(1, 8);
  PostWrite(2, 3 * kMtu);
  ASSERT_EQ(Sent().size(), 4u);
  Answer(Opcode::kRcAck, 2, wire::NakSyndrome(NakCode::kPsnSequenceError));
  EXPECT_EQ(bed.a.sends.all.size(), 1u);
  const auto again = Sent();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].fields.psn, wire::Psn(kPsn + 2));
  EXPECT_EQ(again[0].fields.opcode, Opcode::kRcWriteMiddle);
  EXPECT_EQ(again[1].fields.psn, wire::Psn(kPsn + 3));
}

TEST_F(SoftRequester, FatalNaksHaveTheirStatus) {
  const std::pair<NakCode, WcStatus> cases[] = {
      {NakCode::kInvalidRequest, WcStatus::kRemInvReqErr},
      {NakCode::kRemoteAccessError, WcStatus::kRemAccessErr},
      {NakCode::kRemoteOperationalError, WcStatus::kRemOpErr}};
  for (const auto& [code, status] : cases) {
    SCOPED_TRACE(wire::NakCodeName(code));
    Bed other;
    other.network.drop_if = [&](const auto& sent) { return sent.from == other.b.address; };
    const device::Sge sge = other.a.Sge(0, 8);
    for (uint64_t i = 1; i <= 3; ++i) {
      ASSERT_EQ(other.Post(other.a, other.Wr(i, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
    }
    other.network.Pass(20'000);
    wire::PacketFields nak;
    nak.opcode = Opcode::kRcAck;
    nak.dest_qpn = wire::Qpn(other.a.qp->qpn());
    nak.psn = wire::Psn(kPsn + 1);
    nak.aeth.syndrome = wire::NakSyndrome(code);
    other.network.Inject({.local = other.b.address, .remote = other.a.address}, nak);
    ASSERT_TRUE(other.Await(other.a.sends, 3));
    EXPECT_EQ(other.a.sends.all[0].status, WcStatus::kSuccess);
    EXPECT_EQ(other.a.sends.all[1].status, status);
    EXPECT_EQ(other.a.sends.all[2].status, WcStatus::kWrFlushErr);
  }
}

TEST_F(SoftRequester, UnknownNakCodesChangeNothing) {
  PostWrite(1, 8);
  (void)Sent();
  Answer(Opcode::kRcAck, 0, 0x60 | 17);
  Answer(Opcode::kRcAck, 0, 0x40);  // reserved kind
  EXPECT_TRUE(bed.a.sends.all.empty());
  EXPECT_EQ(bed.a.qp->Query().state, QpState::kRts);
  EXPECT_EQ(bed.Counter(bed.a, "drop_bad_response"), 2u);
}

TEST_F(SoftRequester, AckPastAReadAsksForTheReadAgain) {
  PostRead(1, 2 * kMtu);
  PostWrite(2, 8);
  ASSERT_EQ(Sent().size(), 2u);
  Answer(Opcode::kRcReadResponseFirst, 0, 0x1f, kMtu);
  Answer(Opcode::kRcAck, 2);
  EXPECT_TRUE(bed.a.sends.all.empty());
  const auto again = Sent();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].fields.opcode, Opcode::kRcReadRequest);
  EXPECT_EQ(again[0].fields.psn, wire::Psn(kPsn + 1));
  EXPECT_EQ(again[0].fields.reth.va, Endpoint::kIova + kMtu);
  EXPECT_EQ(again[0].fields.reth.dma_length_bytes, kMtu);
  EXPECT_EQ(again[1].fields.psn, wire::Psn(kPsn + 2));
  Answer(Opcode::kRcAck, 2);  // said again: no new round
  EXPECT_TRUE(Sent().empty());
}

TEST_F(SoftRequester, ReadResponseOfTheWrongLengthIsABadResponse) {
  PostRead(1, 2 * kMtu);
  PostWrite(2, 8);
  (void)Sent();
  Answer(Opcode::kRcReadResponseFirst, 0, 0x1f, kMtu - 4);
  ASSERT_EQ(bed.a.sends.all.size(), 2u);
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kBadRespErr);
  EXPECT_EQ(bed.a.sends.all[1].status, WcStatus::kWrFlushErr);
}

TEST_F(SoftRequester, ReadResponseToAWriteAnswersNothing) {
  PostWrite(1, 8);
  (void)Sent();
  Answer(Opcode::kRcReadResponseOnly, 0, 0x1f, 8);
  Answer(Opcode::kRcAtomicAck, 0);
  EXPECT_TRUE(bed.a.sends.all.empty());
  EXPECT_EQ(bed.Counter(bed.a, "drop_bad_response"), 2u);
}

TEST_F(SoftRequester, AReadAcknowledgesTheWritesBeforeIt) {
  PostWrite(1, 8);
  PostRead(2, 8);
  (void)Sent();
  Answer(Opcode::kRcReadResponseOnly, 1, 0x1f, 8);
  ASSERT_EQ(bed.a.sends.all.size(), 2u);
  EXPECT_EQ(bed.a.sends.all[0].wr_id, 1u);
  EXPECT_EQ(bed.a.sends.all[1].wr_id, 2u);
}

TEST_F(SoftRequester, KeepsToTheAgreedNumberOfReads) {
  for (uint64_t i = 1; i <= 6; ++i) PostRead(i, 8);
  EXPECT_EQ(Sent().size(), 4u);
  Answer(Opcode::kRcReadResponseOnly, 0, 0x1f, 8);
  EXPECT_EQ(Sent().size(), 1u);
  Answer(Opcode::kRcReadResponseOnly, 1, 0x1f, 8);
  EXPECT_EQ(Sent().size(), 1u);
}

TEST_F(SoftRequester, FenceWaitsForTheReadsBefore) {
  PostRead(1, 8);
  PostWrite(2, 8, shm::kWorkFence);
  EXPECT_EQ(Sent().size(), 1u);
  Answer(Opcode::kRcReadResponseOnly, 0, 0x1f, 8);
  const auto packets = Sent();
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].fields.opcode, Opcode::kRcWriteOnly);
}

// With the right to bind.
class RequesterKeys : public SoftRequester {
 protected:
  RequesterKeys() : SoftRequester(Options()) {
    mw = std::move(SoftMw::Create(*bed.a.transport, bed.a.pd).value());
    mw->Activate(0);
  }
  ~RequesterKeys() override { mw->Deactivate(0); }
  static BedOptions Options() {
    BedOptions options;
    options.region_access = device::kAccessAll;
    return options;
  }
  bool IsBound() const {
    return bed.a.transport->mrs().MayInvalidate(Key(), bed.a.qp->context().key_scope);
  }
  uint32_t Key() const { return mw->rkey() ^ 1; }

  std::unique_ptr<SoftMw> mw;
};

TEST_F(RequesterKeys, BindsAndInvalidationsWaitForTheAnswersToWhatIsBeforeThem) {
  PostWrite(1, 8);
  EXPECT_EQ(Sent().size(), 1u);
  device::SendWr bind = bed.Wr(2, WrOpcode::kBindMw, nullptr);
  bind.rkey = Key();
  bind.bind_lkey = bed.a.mr->lkey();
  bind.compare_add = 4096;
  bind.swap = device::kAccessRemoteRead;
  ASSERT_EQ(bed.Post(bed.a, bind), PostResult::kOk);
  EXPECT_EQ(Sent().size(), 0u);
  EXPECT_FALSE(IsBound());
  EXPECT_TRUE(bed.a.sends.all.empty());
  PostWrite(3, 8);
  device::SendWr invalidation = bed.Wr(4, WrOpcode::kLocalInv, nullptr);
  invalidation.imm_be = Key();
  ASSERT_EQ(bed.Post(bed.a, invalidation), PostResult::kOk);
  Answer(Opcode::kRcAck, 0);
  EXPECT_EQ(Sent().size(), 1u);
  EXPECT_TRUE(IsBound());
  EXPECT_EQ(bed.a.sends.all.size(), 2u);
  PostWrite(5, 8);
  EXPECT_EQ(Sent().size(), 0u);
  EXPECT_TRUE(IsBound()) << "the invalidation is not its turn yet";
  Answer(Opcode::kRcAck, 1);
  EXPECT_FALSE(IsBound());
  EXPECT_EQ(bed.a.sends.all.size(), 4u);
}

TEST_F(SoftRequester, RevokedLocalRegionStopsAMessageInTheMiddle) {
  BedOptions options;
  options.config.initial_window_bytes = options.config.max_window_bytes = 16 * 1024;
  Bed other(options);
  other.network.drop_if = [&](const auto& sent) { return sent.from == other.b.address; };
  const device::Sge sge = other.a.Sge(0, 1 << 20);
  ASSERT_EQ(other.Post(other.a, other.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  other.network.Pass(20'000);
  other.a.mr->Deactivate(0);
  wire::PacketFields ack;
  ack.opcode = Opcode::kRcAck;
  ack.dest_qpn = wire::Qpn(other.a.qp->qpn());
  ack.psn = wire::Psn(kPsn + 3);
  ack.aeth.syndrome = 0x1f;
  other.network.Inject({.local = other.b.address, .remote = other.a.address}, ack);
  ASSERT_TRUE(other.Await(other.a.sends, 1));
  EXPECT_EQ(other.a.sends.all[0].status, WcStatus::kLocProtErr);
  other.a.mr->Activate(0);
}

TEST_F(SoftRequester, LongReadsGoOutInPiecesThatTheWindowHolds) {
  BedOptions options;
  options.config.initial_window_bytes = options.config.max_window_bytes = 64 * 1024;
  Bed other(options);
  other.Fill(other.b, 0, 1 << 20);
  const device::Sge sge = other.a.Sge(0, 1 << 20);
  ASSERT_EQ(other.Post(other.a, other.Wr(1, WrOpcode::kRdmaRead, &sge)), PostResult::kOk);
  ASSERT_TRUE(other.Await(other.a.sends, 1));
  EXPECT_TRUE(other.Same(0, 0, 1 << 20));
  uint64_t next_va = Endpoint::kIova;
  for (const auto& sent : other.network.sent()) {
    if (sent.fields.opcode != Opcode::kRcReadRequest) continue;
    EXPECT_EQ(sent.fields.reth.va, next_va);
    EXPECT_LE(sent.fields.reth.dma_length_bytes, 64u * 1024);
    const uint64_t left = Endpoint::kIova + (1 << 20) - next_va;
    EXPECT_GE(sent.fields.reth.dma_length_bytes, std::min<uint64_t>(8 * 1024, left)) << "crumbs";
    next_va += sent.fields.reth.dma_length_bytes;
  }
  EXPECT_EQ(next_va, Endpoint::kIova + (1 << 20));
}

// A responder other than ours may know only the requests that it has seen: a repeated READ lies
// within a first one. And it goes on to the end of that, since the responder may not have seen it:
// what it has then seen is the same.
TEST_F(SoftRequester, RepeatedReadsGoOnToTheEndOfAFirstOne) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    BedOptions options;
    options.faults = {.loss = 0.03, .seed = seed};
    Bed other(options);
    const device::Sge sge = other.a.Sge(0, 1 << 20);
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_EQ(other.Post(other.a, other.Wr(i, WrOpcode::kRdmaRead, &sge)), PostResult::kOk);
    }
    ASSERT_TRUE(other.Await(other.a.sends, 3));
    std::vector<std::pair<uint32_t, uint32_t>> first;  // [psn, end)
    uint32_t highest = kPsn;
    for (const auto& sent : other.network.sent()) {
      if (sent.fields.opcode != Opcode::kRcReadRequest) continue;
      const uint32_t psn = sent.fields.psn.value();
      const uint32_t end = psn + (sent.fields.reth.dma_length_bytes + kMtu - 1) / kMtu;
      if (psn >= highest) {
        first.emplace_back(psn, end);
        highest = end;
        continue;
      }
      const bool within = std::any_of(first.begin(), first.end(), [&](const auto& range) {
        return psn >= range.first && end == range.second;
      });
      EXPECT_TRUE(within) << psn << ".." << end;
    }
  }
}

}  // namespace
}  // namespace rdmad::soft
