// The responder against a peer that sends whatever it likes: each check, each repetition, each
// drop.
#include <gtest/gtest.h>

#include "daemon/wire/aeth.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpState;
using device::WcStatus;
using wire::AckKind;
using wire::NakCode;
using wire::Opcode;

constexpr uint32_t kMtu = 1024;
constexpr uint32_t kPsn = 0xfffffe;  // b expects it first

// QP b, whose peer is played by the test. QP a exists but sends nothing.
struct Responding {
  static BedOptions Options() {
    BedOptions options;
    options.psn_a = kPsn;
    options.rd_atomic = 2;
    return options;
  }
  Responding() : bed(Options()) { bed.network.RunUntilQuiet(); }

  wire::PacketFields Packet(Opcode opcode, uint32_t psn_offset) {
    wire::PacketFields fields;
    fields.opcode = opcode;
    fields.psn = wire::Psn(kPsn + psn_offset);
    fields.dest_qpn = wire::Qpn(bed.b.qp->qpn());
    fields.ack_req = true;
    return fields;
  }
  wire::PacketFields Write(Opcode opcode, uint32_t psn_offset, uint64_t offset, uint32_t length) {
    wire::PacketFields fields = Packet(opcode, psn_offset);
    fields.reth = {bed.b.Address(offset), wire::Rkey(bed.b.mr->rkey()), length};
    return fields;
  }
  void Send(const wire::PacketFields& fields, size_t bytes = 0, uint8_t value = 0x5a) {
    const std::vector<uint8_t> payload(bytes, value);
    bed.network.Inject(from_a, fields, payload);
  }
  // What b has sent since the last call.
  std::vector<FakeNetwork::Sent> Answers() {
    bed.network.RunUntilQuiet();
    std::vector<FakeNetwork::Sent> answers;
    for (; seen_ < bed.network.sent().size(); ++seen_) {
      const auto& sent = bed.network.sent()[seen_];
      if (sent.from == bed.b.address) answers.push_back(sent);
    }
    return answers;
  }
  // One answer: a NAK with `code` for the PSN at `psn_offset`; and the QP is in error.
  void ExpectFatalNak(NakCode code, uint32_t psn_offset) {
    const auto answers = Answers();
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].fields.opcode, Opcode::kRcAck);
    EXPECT_EQ(answers[0].fields.aeth.syndrome, wire::NakSyndrome(code));
    EXPECT_EQ(answers[0].fields.psn, wire::Psn(kPsn + psn_offset));
    EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
  }
  void ExpectAck(const FakeNetwork::Sent& answer, uint32_t psn_offset, uint32_t msn) {
    EXPECT_EQ(answer.fields.opcode, Opcode::kRcAck);
    EXPECT_EQ(answer.fields.aeth.syndrome, 0x1f);
    EXPECT_EQ(answer.fields.psn, wire::Psn(kPsn + psn_offset));
    EXPECT_EQ(answer.fields.aeth.msn, wire::Msn(msn));
  }
  std::byte At(uint64_t offset) const { return bed.b.memory[offset]; }

  Bed bed;
  const Flow from_a{.local = bed.a.address, .remote = bed.b.address};

  size_t seen_ = 0;
};

class SoftResponder : public testing::Test, public Responding {};

TEST_F(SoftResponder, AcknowledgesWithPsnAndMsn) {
  Send(Write(Opcode::kRcWriteOnly, 0, 0, 10), 10);
  auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  ExpectAck(answers[0], 0, 1);
  Send(Write(Opcode::kRcWriteFirst, 1, 0, kMtu + 1), kMtu);
  Send(Packet(Opcode::kRcWriteLast, 2), 1);
  answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  ExpectAck(answers[0], 2, 2);
  EXPECT_EQ(answers[0].fields.dest_qpn, wire::Qpn(bed.a.qp->qpn()));
}

TEST_F(SoftResponder, OneAckSpeaksForAllOfATurn) {
  for (uint32_t i = 0; i < 10; ++i) Send(Write(Opcode::kRcWriteOnly, i, 0, 10), 10);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  ExpectAck(answers[0], 9, 10);
}

TEST_F(SoftResponder, PacketThatAsksForNoAckGetsNone) {
  auto packet = Write(Opcode::kRcWriteOnly, 0, 0, 10);
  packet.ack_req = false;
  Send(packet, 10);
  EXPECT_TRUE(Answers().empty());
  EXPECT_EQ(At(0), std::byte{0x5a});
}

// --- Opcode sequence ----------------------------------------------------------------------------

struct SequenceCase {
  const char* name;
  std::vector<Opcode> good;  // full packets, executed
  Opcode bad;
};

TEST_F(SoftResponder, OpcodeOutOfPlaceIsAnInvalidRequest) {
  const SequenceCase cases[] = {
      {"SEND middle first", {}, Opcode::kRcSendMiddle},
      {"SEND last first", {}, Opcode::kRcSendLast},
      {"WRITE middle first", {}, Opcode::kRcWriteMiddle},
      {"WRITE last first", {}, Opcode::kRcWriteLast},
      {"SEND in a SEND", {Opcode::kRcSendFirst}, Opcode::kRcSendFirst},
      {"SEND only in a SEND", {Opcode::kRcSendFirst}, Opcode::kRcSendOnly},
      {"WRITE middle in a SEND", {Opcode::kRcSendFirst}, Opcode::kRcWriteMiddle},
      {"SEND last in a WRITE", {Opcode::kRcWriteFirst}, Opcode::kRcSendLast},
      {"WRITE only in a WRITE",
       {Opcode::kRcWriteFirst, Opcode::kRcWriteMiddle},
       Opcode::kRcWriteOnly},
      {"READ in a SEND", {Opcode::kRcSendFirst}, Opcode::kRcReadRequest},
      {"atomic in a WRITE", {Opcode::kRcWriteFirst}, Opcode::kRcFetchAdd},
      {"SEND with invalidate", {}, Opcode::kRcSendOnlyInv},
  };
  for (const SequenceCase& c : cases) {
    SCOPED_TRACE(c.name);
    Responding r;
    ASSERT_EQ(r.bed.PostRecv(r.bed.b, 1, 0, 100'000), PostResult::kOk);
    uint32_t psn = 0;
    for (const Opcode opcode : c.good) {
      auto packet = r.Write(opcode, psn++, 0, 50 * kMtu);
      packet.ack_req = false;
      r.Send(packet, kMtu);
    }
    auto bad = r.Write(c.bad, psn, 0, 8);
    bad.atomic = {r.bed.b.Address(0), wire::Rkey(r.bed.b.mr->rkey()), 1, 0};
    r.Send(bad, wire::InfoOf(c.bad).has_payload() ? 8 : 0);
    r.ExpectFatalNak(NakCode::kInvalidRequest, psn);
    EXPECT_EQ(r.bed.b.events->Count(AsyncEventType::kQpReqErr), 1u);
    EXPECT_EQ(r.bed.b.receives.all.size(), 1u) << "failed or flushed, but never lost";
  }
}

// --- Lengths ------------------------------------------------------------------------------------

struct LengthCase {
  const char* name;
  Opcode opcode;
  uint32_t dma_length;
  size_t payload;
  bool after_first;  // a WRITE FIRST of 3 MTU, or a SEND FIRST, went before
};

TEST_F(SoftResponder, PayloadOfTheWrongLengthIsAnInvalidRequest) {
  const LengthCase cases[] = {
      {"first packet is not full", Opcode::kRcWriteFirst, 3 * kMtu, kMtu - 1, false},
      {"first packet is over full", Opcode::kRcWriteFirst, 3 * kMtu, kMtu + 1, false},
      {"first packet holds all", Opcode::kRcWriteFirst, kMtu, kMtu, false},
      {"only packet is longer than said", Opcode::kRcWriteOnly, 10, 11, false},
      {"only packet is shorter than said", Opcode::kRcWriteOnly, 10, 9, false},
      {"only packet is over full", Opcode::kRcWriteOnly, kMtu + 1, kMtu + 1, false},
      {"length over the maximum", Opcode::kRcWriteFirst, kMaxMessageBytes + 1, kMtu, false},
      {"middle packet is not full", Opcode::kRcWriteMiddle, 0, kMtu - 1, true},
      {"last packet ends early", Opcode::kRcWriteLast, 0, kMtu, true},
      {"last packet is empty", Opcode::kRcWriteLast, 0, 0, true},
      {"READ over the maximum", Opcode::kRcReadRequest, kMaxMessageBytes + 1, 0, false},
      {"SEND first is not full", Opcode::kRcSendFirst, 0, kMtu - 4, false},
      {"SEND only is over full", Opcode::kRcSendOnly, 0, kMtu + 1, false},
  };
  for (const LengthCase& c : cases) {
    SCOPED_TRACE(c.name);
    Responding r;
    ASSERT_EQ(r.bed.PostRecv(r.bed.b, 1, 0, 100'000), PostResult::kOk);
    uint32_t psn = 0;
    if (c.after_first) {
      auto first = r.Write(Opcode::kRcWriteFirst, psn++, 0, 3 * kMtu);
      first.ack_req = false;
      r.Send(first, kMtu);
    }
    r.Send(r.Write(c.opcode, psn, 0, c.dma_length), c.payload);
    r.ExpectFatalNak(NakCode::kInvalidRequest, psn);
  }
}

// --- Gaps and repetitions -----------------------------------------------------------------------

TEST_F(SoftResponder, GapIsNakedOnceAndTheMissingPacketIsTaken) {
  Send(Write(Opcode::kRcWriteOnly, 5, 0, 10), 10);
  auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].fields.aeth.syndrome, wire::NakSyndrome(NakCode::kPsnSequenceError));
  EXPECT_EQ(answers[0].fields.psn, wire::Psn(kPsn));
  for (int i = 0; i < 3; ++i) {
    Send(Write(Opcode::kRcWriteOnly, 5, 0, 10), 10);
    EXPECT_TRUE(Answers().empty());
  }
  EXPECT_EQ(At(0), std::byte{0}) << "nothing behind a gap is executed";
  Send(Write(Opcode::kRcWriteOnly, 0, 0, 10), 10);
  answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  ExpectAck(answers[0], 0, 1);
  Send(Write(Opcode::kRcWriteOnly, 7, 0, 10), 10);  // a new gap
  answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].fields.psn, wire::Psn(kPsn + 1));
}

// The peer has gone back, and what it sent first was lost again: without a word it would wait.
TEST_F(SoftResponder, GapIsNakedAgainWhenWhatFollowsComesASecondTime) {
  for (uint32_t psn : {1, 2, 3}) Send(Write(Opcode::kRcWriteOnly, psn, 0, 10), 10);
  ASSERT_EQ(Answers().size(), 1u);
  for (uint32_t psn : {1, 2, 3}) Send(Write(Opcode::kRcWriteOnly, psn, 0, 10), 10);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].fields.aeth.syndrome, wire::NakSyndrome(NakCode::kPsnSequenceError));
  EXPECT_EQ(answers[0].fields.psn, wire::Psn(kPsn));
}

TEST_F(SoftResponder, RepeatedWriteIsAcknowledgedAndNotExecuted) {
  Send(Write(Opcode::kRcWriteOnly, 0, 0, 10), 10, 0x11);
  Send(Write(Opcode::kRcWriteOnly, 1, 100, 10), 10, 0x22);
  (void)Answers();
  bed.b.memory[0] = std::byte{0x77};  // the application has moved on
  Send(Write(Opcode::kRcWriteOnly, 0, 0, 10), 10, 0x11);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  ExpectAck(answers[0], 1, 2);
  EXPECT_EQ(At(0), std::byte{0x77});
  EXPECT_EQ(bed.Counter(bed.b, "duplicate_requests"), 1u);
}

TEST_F(SoftResponder, RepeatedSendTakesNoReceive) {
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 100), PostResult::kOk);
  ASSERT_EQ(bed.PostRecv(bed.b, 2, 0, 100), PostResult::kOk);
  Send(Packet(Opcode::kRcSendOnly, 0), 10);
  Send(Packet(Opcode::kRcSendOnly, 0), 10);
  (void)Answers();
  EXPECT_EQ(bed.b.receives.all.size(), 1u);
}

TEST_F(SoftResponder, RepeatedReadIsExecutedAgainFromWhereItIsAskedFor) {
  bed.Fill(bed.b, 0, 5 * kMtu);
  Send(Write(Opcode::kRcReadRequest, 0, 0, 5 * kMtu));
  auto answers = Answers();
  ASSERT_EQ(answers.size(), 5u);
  EXPECT_EQ(answers[0].fields.opcode, Opcode::kRcReadResponseFirst);
  EXPECT_EQ(answers[2].fields.opcode, Opcode::kRcReadResponseMiddle);
  EXPECT_EQ(answers[4].fields.opcode, Opcode::kRcReadResponseLast);
  Send(Write(Opcode::kRcReadRequest, 3, 3 * kMtu, 2 * kMtu));
  answers = Answers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].fields.opcode, Opcode::kRcReadResponseFirst);
  EXPECT_EQ(answers[0].fields.psn, wire::Psn(kPsn + 3));
  EXPECT_EQ(answers[1].fields.psn, wire::Psn(kPsn + 4));
  // The live sequence has not moved.
  Send(Write(Opcode::kRcWriteOnly, 5, 0, 1), 1);
  answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  ExpectAck(answers[0], 5, 2);
}

TEST_F(SoftResponder, RepeatedReadOfARevokedRegionGetsNothing) {
  Send(Write(Opcode::kRcReadRequest, 0, 0, 100));
  ASSERT_EQ(Answers().size(), 1u);
  bed.b.mr->Deactivate(0);
  Send(Write(Opcode::kRcReadRequest, 0, 0, 100));
  EXPECT_TRUE(Answers().empty());
  bed.b.mr->Activate(0);
}

// The peer had every byte and said so, and the owner took the memory away; then a copy of the READ
// from the network is still being answered.
TEST_F(SoftResponder, AMemoryThatGoesWhileACopyOfAReadIsAnsweredIsNobodysFault) {
  constexpr uint32_t kBytes = 1 << 20;
  Send(Write(Opcode::kRcReadRequest, 0, 0, kBytes));
  ASSERT_EQ(Answers().size(), kBytes / kMtu);
  const uint64_t before = bed.Counter(bed.b, "tx_packets");
  Send(Write(Opcode::kRcReadRequest, 0, 0, kBytes));
  ASSERT_TRUE(bed.network.RunUntil([&] { return bed.Counter(bed.b, "tx_packets") > before; }));
  bed.b.mr->Deactivate(bed.network.now());
  EXPECT_LT(Answers().size(), kBytes / kMtu) << "nothing was taken away in the middle";
  EXPECT_EQ(bed.b.qp->Query().state, QpState::kRts);
  EXPECT_EQ(bed.b.events->Count(device::AsyncEventType::kQpAccessErr), 0u);
  bed.b.mr->Activate(bed.network.now());
  Send(Write(Opcode::kRcWriteOnly, kBytes / kMtu, 0, 1), 1);
  EXPECT_EQ(Answers().size(), 1u) << "what comes next is answered as ever";
}

TEST_F(SoftResponder, RepeatedReadMayNotAskForMoreThanTheFirst) {
  Send(Write(Opcode::kRcReadRequest, 0, 0, kMtu));
  ASSERT_EQ(Answers().size(), 1u);
  Send(Write(Opcode::kRcReadRequest, 0, 0, 10 * kMtu));
  EXPECT_TRUE(Answers().empty());
}

// However often a peer repeats what it asked for, no more than the agreed two wait to be answered.
TEST_F(SoftResponder, RepeatedReadsKeepToTheAgreedNumber) {
  const auto read = [this](uint32_t psn) {
    wire::PacketFields fields = Packet(Opcode::kRcReadRequest, psn);
    fields.reth = {bed.b.Address(0), wire::Rkey(bed.b.mr->rkey()), 8};
    Send(fields);
  };
  for (uint32_t psn = 0; psn < 4; ++psn) {
    read(psn);
    ASSERT_EQ(Answers().size(), 1u);
  }
  bed.network.take_at_most = 0;
  for (uint32_t psn = 0; psn < 4; ++psn) read(psn);
  bed.network.Pass(100'000);
  bed.network.take_at_most = SIZE_MAX;
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].fields.psn, wire::Psn(kPsn + 2));
  EXPECT_EQ(answers[1].fields.psn, wire::Psn(kPsn + 3));
}

TEST_F(SoftResponder, RepeatedAtomicIsAnsweredFromTheRecord) {
  wire::PacketFields add = Packet(Opcode::kRcFetchAdd, 0);
  add.atomic = {bed.b.Address(0), wire::Rkey(bed.b.mr->rkey()), 5, 0};
  for (int i = 0; i < 3; ++i) {
    Send(add);
    const auto answers = Answers();
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].fields.opcode, Opcode::kRcAtomicAck);
    EXPECT_EQ(answers[0].fields.atomic_original, 0u);
  }
  uint64_t word;
  std::memcpy(&word, bed.b.memory.data(), 8);
  EXPECT_EQ(word, 5u);
}

// An ACK beyond a READ would tell the requester that the READ's responses were lost.
TEST_F(SoftResponder, RepeatedSendBeforeAReadIsAcknowledgedAlone) {
  Send(Write(Opcode::kRcWriteOnly, 0, 0, 1), 1);
  Send(Write(Opcode::kRcReadRequest, 1, 0, 100));
  Send(Write(Opcode::kRcWriteOnly, 2, 0, 1), 1);
  (void)Answers();
  Send(Write(Opcode::kRcWriteOnly, 0, 0, 1), 1);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].fields.psn, wire::Psn(kPsn));
}

TEST_F(SoftResponder, AnswersToReadsComeBeforeTheAckOfWhatFollows) {
  Send(Write(Opcode::kRcReadRequest, 0, 0, 3 * kMtu));
  Send(Write(Opcode::kRcWriteOnly, 3, 0, 1), 1);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[2].fields.opcode, Opcode::kRcReadResponseLast);
  ExpectAck(answers[3], 3, 2);
}

TEST_F(SoftResponder, NakComesBehindTheReadsThatWereAskedForBefore) {
  Send(Write(Opcode::kRcReadRequest, 0, 0, 3 * kMtu));
  auto bad = Write(Opcode::kRcWriteOnly, 3, 0, 1);
  bad.reth.rkey = wire::Rkey(0x1234);
  Send(bad, 1);
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[2].fields.opcode, Opcode::kRcReadResponseLast);
  EXPECT_EQ(answers[3].fields.aeth.syndrome, wire::NakSyndrome(NakCode::kRemoteAccessError));
  EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
}

TEST_F(SoftResponder, MoreReadsInFlightThanAgreedIsAnInvalidRequest) {
  bed.network.take_at_most = 0;  // nothing of the answers gets out
  for (uint32_t i = 0; i < 3; ++i) Send(Write(Opcode::kRcReadRequest, i, 0, 8));
  bed.network.Pass(1'000'000);
  bed.network.take_at_most = SIZE_MAX;
  const auto answers = Answers();
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[1].fields.opcode, Opcode::kRcReadResponseOnly);
  EXPECT_EQ(answers[2].fields.aeth.syndrome, wire::NakSyndrome(NakCode::kInvalidRequest));
}

TEST_F(SoftResponder, PacketsBehindAnRnrNakAreDroppedInSilence) {
  Send(Packet(Opcode::kRcSendOnly, 0), 10);
  Send(Packet(Opcode::kRcSendOnly, 1), 10);
  auto answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].fields.aeth.syndrome, wire::RnrNakSyndrome(1));
  EXPECT_EQ(answers[0].fields.psn, wire::Psn(kPsn));
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 100), PostResult::kOk);
  Send(Packet(Opcode::kRcSendOnly, 1), 10);
  EXPECT_TRUE(Answers().empty());
  Send(Packet(Opcode::kRcSendOnly, 0), 10);
  answers = Answers();
  ASSERT_EQ(answers.size(), 1u);
  ExpectAck(answers[0], 0, 1);
}

TEST_F(SoftResponder, AfterAFatalNakNothingIsExecuted) {
  auto bad = Write(Opcode::kRcWriteOnly, 0, 0, 1);
  bad.reth.rkey = wire::Rkey(0x1234);
  Send(bad, 1);
  Send(Write(Opcode::kRcWriteOnly, 0, 0, 1), 1);
  Send(Write(Opcode::kRcWriteOnly, 1, 0, 1), 1);
  ExpectFatalNak(NakCode::kRemoteAccessError, 0);
  EXPECT_EQ(At(0), std::byte{0});
}

// --- Drops --------------------------------------------------------------------------------------

TEST_F(SoftResponder, PacketsForOthersAreDroppedAndCounted) {
  auto good = Write(Opcode::kRcWriteOnly, 0, 0, 1);
  auto packet = good;
  packet.dest_qpn = wire::Qpn(0x7777);
  Send(packet, 1);
  packet = good;
  packet.opcode = Opcode::kUcWriteOnly;
  Send(packet, 1);
  packet = good;
  packet.pkey = wire::PKey(0x8001);
  Send(packet, 1);
  bed.network.Inject({.local = IpAddress::FromV4(10, 9, 9, 9), .remote = bed.b.address}, good);
  EXPECT_TRUE(Answers().empty());
  EXPECT_EQ(bed.Counter(bed.b, "drop_unknown_qp"), 1u);
  EXPECT_EQ(bed.Counter(bed.b, "drop_wrong_transport"), 1u);
  EXPECT_EQ(bed.Counter(bed.b, "drop_bad_pkey"), 1u);
  EXPECT_EQ(bed.Counter(bed.b, "drop_wrong_address"), 1u);
  EXPECT_EQ(At(0), std::byte{0});
  packet = good;
  packet.pkey = wire::PKey(0x7fff);  // a limited member may talk to a full one
  packet.mig_req = true;             // as NICs set it
  Send(packet, 1);
  EXPECT_EQ(Answers().size(), 1u);
  ASSERT_EQ(bed.MoveTo(bed.b, QpState::kErr), device::QpResult::kOk);
  Send(Write(Opcode::kRcWriteOnly, 1, 0, 1), 1);
  EXPECT_TRUE(Answers().empty());
  EXPECT_EQ(bed.Counter(bed.b, "drop_bad_state"), 1u);
}

}  // namespace
}  // namespace rdmad::soft
