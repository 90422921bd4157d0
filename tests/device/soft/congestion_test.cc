// RoCEv2 congestion management: marks are answered by CNPs, CNPs slow a QP down, and nobody else's
// do.
#include <gtest/gtest.h>

#include "daemon/device/soft/cnp_sender.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::WcStatus;
using device::WrOpcode;
using wire::Opcode;

constexpr TimeNs kMillisecondNs = 1'000'000;

bool IsCnp(const FakeNetwork::Sent& sent) {
  return sent.fields.opcode == Opcode::kCnp;
}

// ---- The side that receives marked packets

class MarkedPackets : public testing::Test {
 protected:
  void Start(const BedOptions& options = {}) {
    bed_.emplace(options);
    flow_ = {.local = bed_->a.address, .remote = bed_->b.address, .ecn = kEcnCe};
    psn_ = options.psn_a;
  }
  // The next packet of a to b, marked by a router.
  void SendMarked(Opcode opcode = Opcode::kRcWriteOnly) {
    wire::PacketFields fields;
    fields.opcode = opcode;
    fields.psn = wire::Psn(psn_++);
    fields.dest_qpn = wire::Qpn(bed_->b.qp->qpn());
    fields.reth = {bed_->b.Address(0), wire::Rkey(bed_->b.mr->rkey()), 8};
    bed_->network.Inject(flow_, fields, std::vector<uint8_t>(8));
  }
  size_t Cnps() const { return bed_->network.CountSent(IsCnp); }

  std::optional<Bed> bed_;
  Flow flow_;
  uint32_t psn_ = 0;
};

TEST_F(MarkedPackets, AreAnsweredByOneCnpPerInterval) {
  Start();
  for (int i = 0; i < 10; ++i) SendMarked();
  bed_->network.Pass(kCnpIntervalNs / 2);
  EXPECT_EQ(Cnps(), 1u);
  bed_->network.Pass(kCnpIntervalNs);
  EXPECT_EQ(Cnps(), 1u) << "no marks, no CNPs";
  for (int i = 0; i < 10; ++i) SendMarked();
  bed_->network.Pass(kCnpIntervalNs / 2);
  EXPECT_EQ(Cnps(), 2u);
  EXPECT_EQ(bed_->Counter(bed_->b, "ecn_marked"), 20u);
  EXPECT_EQ(bed_->Counter(bed_->b, "cnp_sent"), 2u);
}

TEST_F(MarkedPackets, CnpIsAsTheSpecificationHasIt) {
  Start();
  SendMarked();
  bed_->network.Pass(kCnpIntervalNs);
  for (const auto& sent : bed_->network.sent()) {
    if (!IsCnp(sent)) continue;
    EXPECT_EQ(sent.from, bed_->b.address);
    EXPECT_EQ(sent.fields.dest_qpn.value(), bed_->a.qp->qpn());
    EXPECT_TRUE(sent.fields.becn);
    EXPECT_EQ(sent.payload_bytes, wire::kCnpReservedBytes);
    EXPECT_EQ(sent.ecn, kNotEct);
    return;
  }
  FAIL() << "no CNP";
}

TEST_F(MarkedPackets, AcknowledgementsAreNotAnswered) {
  Start();
  wire::PacketFields ack;
  ack.opcode = Opcode::kRcAck;
  ack.dest_qpn = wire::Qpn(bed_->b.qp->qpn());
  bed_->network.Inject(flow_, ack);
  bed_->network.Pass(kCnpIntervalNs);
  EXPECT_EQ(Cnps(), 0u);
  EXPECT_EQ(bed_->Counter(bed_->b, "ecn_marked"), 1u);
}

TEST_F(MarkedPackets, OfStrangersAreNotAnswered) {
  Start();
  flow_.local = IpAddress::FromV4(10, 0, 0, 99);
  bed_->network.Attach(flow_.local, bed_->a.transport);
  SendMarked();
  bed_->network.Pass(kCnpIntervalNs);
  EXPECT_EQ(Cnps(), 0u);
  EXPECT_EQ(bed_->Counter(bed_->b, "drop_wrong_address"), 1u);
}

TEST_F(MarkedPackets, AreAnsweredOnUcToo) {
  BedOptions options;
  options.type = device::QpType::kUc;
  Start(options);
  SendMarked(Opcode::kUcWriteOnly);
  bed_->network.Pass(kCnpIntervalNs);
  EXPECT_EQ(Cnps(), 1u);
}

TEST_F(MarkedPackets, AreOnlyCountedWithEcnOff) {
  BedOptions options;
  options.config.ecn = false;
  Start(options);
  SendMarked();
  bed_->network.Pass(kCnpIntervalNs);
  EXPECT_EQ(Cnps(), 0u);
  EXPECT_EQ(bed_->Counter(bed_->b, "ecn_marked"), 1u);
}

// ---- The side that sends

// A long WRITE with a full window of 50 packets under way; the round trip is 2 ms.
class Notified : public testing::Test {
 protected:
  static constexpr uint32_t kWindow = 50;

  static BedOptions Options() {
    BedOptions options;
    options.faults.delay = kMillisecondNs;
    options.config.initial_window_bytes = options.config.max_window_bytes =
        kWindow * (1024 + kPacketOverheadBytes);
    return options;
  }
  explicit Notified(const BedOptions& options = Options()) : bed_(options) {}
  void Write() {
    const device::Sge sge = bed_.a.Sge(0, 1 << 20);
    ASSERT_EQ(bed_.Post(bed_.a, bed_.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
    bed_.network.Pass(kMillisecondNs / 10);
  }
  void SendCnp(const IpAddress& from, uint32_t qpn) {
    wire::PacketFields cnp;
    cnp.opcode = Opcode::kCnp;
    cnp.becn = true;
    cnp.dest_qpn = wire::Qpn(qpn);
    bed_.network.Inject({.local = from, .remote = bed_.a.address}, cnp,
                        std::vector<uint8_t>(wire::kCnpReservedBytes));
    bed_.network.Pass(kMillisecondNs + kMillisecondNs / 10);
  }
  // How many a has sent when as many have been answered as were under way.
  uint64_t SentInTheNextRound() {
    const uint64_t before = bed_.Counter(bed_.a, "tx_packets");
    bed_.network.Pass(2 * kMillisecondNs);
    return bed_.Counter(bed_.a, "tx_packets") - before;
  }
  uint64_t Counter(const char* name) { return bed_.Counter(bed_.a, name); }

  Bed bed_;
};

TEST_F(Notified, SlowsDownOncePerRoundTrip) {
  Write();
  EXPECT_EQ(Counter("tx_packets"), kWindow);
  SendCnp(bed_.b.address, bed_.a.qp->qpn());
  EXPECT_EQ(Counter("cnp_handled"), 1u);
  bed_.network.Inject(
      {.local = bed_.b.address, .remote = bed_.a.address},
      [&] {
        wire::PacketFields cnp;
        cnp.opcode = Opcode::kCnp;
        cnp.dest_qpn = wire::Qpn(bed_.a.qp->qpn());
        return cnp;
      }(),
      std::vector<uint8_t>(wire::kCnpReservedBytes));
  const uint64_t sent = SentInTheNextRound();
  EXPECT_NEAR(static_cast<double>(sent), kWindow * 0.7, 3);
  EXPECT_EQ(Counter("cnp_handled") + Counter("cnp_ignored"), 2u);
}

TEST_F(Notified, RecoversAndLosesNothing) {
  Write();
  SendCnp(bed_.b.address, bed_.a.qp->qpn());
  ASSERT_TRUE(bed_.Await(bed_.a.sends, 1));
  EXPECT_EQ(bed_.a.sends.all[0].status, WcStatus::kSuccess);
  EXPECT_EQ(Counter("retransmitted_packets"), 0u);
  EXPECT_EQ(Counter("tail_probes"), 0u)
      << "a window that has shrunk waited for an answer that nobody owed";
}

TEST_F(Notified, ByBecnInAnAcknowledgement) {
  Write();
  wire::PacketFields ack;
  ack.opcode = Opcode::kRcAck;
  ack.becn = true;
  ack.psn = wire::Psn(0x000100);
  ack.aeth.syndrome = wire::AckSyndrome();
  ack.dest_qpn = wire::Qpn(bed_.a.qp->qpn());
  bed_.network.Inject({.local = bed_.b.address, .remote = bed_.a.address}, ack);
  bed_.network.Pass(kMillisecondNs + kMillisecondNs / 10);
  EXPECT_EQ(Counter("cnp_handled"), 1u);
}

TEST_F(Notified, ByStrangersOrForNobodyChangesNothing) {
  Write();
  SendCnp(IpAddress::FromV4(10, 0, 0, 99), bed_.a.qp->qpn());
  EXPECT_EQ(Counter("drop_wrong_address"), 1u);
  SendCnp(bed_.b.address, 0x7777);
  EXPECT_EQ(Counter("drop_unknown_qp"), 1u);
  EXPECT_EQ(Counter("cnp_handled"), 0u);
}

TEST_F(Notified, WithNothingUnderWayChangesNothing) {
  SendCnp(bed_.b.address, bed_.a.qp->qpn());
  EXPECT_EQ(Counter("cnp_ignored"), 1u);
  EXPECT_EQ(Counter("cnp_handled"), 0u);
}

class NotifiedWithEcnOff : public Notified {
 protected:
  static BedOptions OffOptions() {
    BedOptions options = Options();
    options.config.ecn = false;
    return options;
  }
  NotifiedWithEcnOff() : Notified(OffOptions()) {}
};

TEST_F(NotifiedWithEcnOff, CountsAndSendsUnmarkablePackets) {
  Write();
  SendCnp(bed_.b.address, bed_.a.qp->qpn());
  EXPECT_EQ(Counter("cnp_ignored"), 1u);
  EXPECT_EQ(Counter("cnp_handled"), 0u);
  EXPECT_EQ(bed_.network.CountSent([](const auto& sent) { return sent.ecn != kNotEct; }), 0u);
}

// ---- Both

TEST(Congestion, OnlyReliablePacketsMayBeMarked) {
  for (const device::QpType type : {device::QpType::kRc, device::QpType::kUc}) {
    BedOptions options;
    options.type = type;
    Bed bed(options);
    const device::Sge sge = bed.a.Sge(0, 4096);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, 1));
    const uint8_t expected = type == device::QpType::kRc ? kEct0 : kNotEct;
    for (const auto& sent : bed.network.sent()) EXPECT_EQ(sent.ecn, expected);
  }
}

// Marks slow the sender down, of WRITEs and of READs, before anything is lost.
TEST(Congestion, MarksShrinkTheWindowWithoutLoss) {
  for (const WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead}) {
    const auto run = [opcode](double mark) {
      BedOptions options;
      options.faults.mark = mark;
      options.faults.delay = 100'000;
      Bed bed(options);
      bed.Fill(opcode == WrOpcode::kRdmaRead ? bed.b : bed.a, 0, 4 << 20, 1);
      const device::Sge sge = bed.a.Sge(0, 4 << 20);
      EXPECT_EQ(bed.Post(bed.a, bed.Wr(1, opcode, &sge)), PostResult::kOk);
      const TimeNs start = bed.network.now();
      EXPECT_TRUE(bed.Await(bed.a.sends, 1));
      EXPECT_TRUE(bed.Same(0, 0, 4 << 20));
      EXPECT_EQ(bed.Counter(bed.a, "retransmitted_packets"), 0u);
      EXPECT_EQ(bed.Counter(bed.a, "tail_probes"), 0u);
      return bed.network.now() - start;
    };
    EXPECT_GT(run(0.05), 2 * run(0));
  }
}

}  // namespace
}  // namespace rdmad::soft
