// Silence: when a requester sends again, when it gives up, and what it sends meanwhile.
#include <gtest/gtest.h>

#include "daemon/device/soft/ack_timing.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::QpState;
using device::WcStatus;
using device::WrOpcode;

class RcTimeout : public PathTest {};
RDMAD_ON_BOTH_PATHS(RcTimeout);

// The ways in which there may be nobody to answer.
enum class Silence { kNoSuchQp, kPeerReset, kPeerInError, kPeerTalksToAnother, kPsnMismatch };

void Silence_(Bed& bed, Silence silence, const BedOptions& options) {
  switch (silence) {
    case Silence::kNoSuchQp:
      bed.b.qp->Deactivate(bed.network.now());
      bed.b.qp.reset();
      break;
    case Silence::kPeerReset:
      ASSERT_EQ(bed.MoveTo(bed.b, QpState::kReset), device::QpResult::kOk);
      break;
    case Silence::kPeerInError:
      ASSERT_EQ(bed.MoveTo(bed.b, QpState::kErr), device::QpResult::kOk);
      break;
    case Silence::kPeerTalksToAnother: {
      ASSERT_EQ(bed.MoveTo(bed.b, QpState::kReset), device::QpResult::kOk);
      bed.ToInit(bed.b);
      device::QpAttr attr = bed.RtrAttr(bed.a, options.psn_a);
      attr.av.dest = IpAddress::FromV4(10, 0, 0, 99);
      ASSERT_EQ(bed.b.qp->Modify(attr, bed.network.now()), device::QpResult::kOk);
      break;
    }
    case Silence::kPsnMismatch:
      // The peer is far ahead: what comes is old to it, and it acknowledges what we never sent.
      ASSERT_EQ(bed.MoveTo(bed.b, QpState::kReset), device::QpResult::kOk);
      bed.ToInit(bed.b);
      bed.ToRtr(bed.b, bed.a, (options.psn_a + 1000) & 0xffffff);
      break;
  }
}

TEST_P(RcTimeout, GivesUpAfterTimeoutTimesRetries) {
  for (const Silence silence : {Silence::kNoSuchQp, Silence::kPeerReset, Silence::kPeerInError,
                                Silence::kPeerTalksToAnother, Silence::kPsnMismatch}) {
    for (const uint8_t retries : {0, 3, 7}) {
      SCOPED_TRACE(testing::Message()
                   << "silence " << static_cast<int>(silence) << " retry_count " << int{retries});
      BedOptions options = Options();
      options.retry_count = retries;
      options.timeout = 14;  // 67 ms
      Bed bed(options);
      Silence_(bed, silence, options);
      const device::Sge sge = bed.a.Sge(0, 100);
      device::SendWr wr{};
      wr.wr_id = 1;
      wr.opcode = WrOpcode::kRdmaWrite;
      wr.flags = shm::kWorkSignaled;
      wr.sges = {&sge, 1};
      wr.remote_addr = Endpoint::kIova;
      const TimeNs start = bed.network.now();
      ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
      ASSERT_TRUE(bed.Await(bed.a.sends, 1));
      EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kRetryExcErr);
      EXPECT_EQ(bed.a.qp->Query().state, QpState::kErr);
      const TimeNs expected = (retries + 1) * AckTimeout(14, 0);
      const TimeNs waited = bed.network.now() - start;
      EXPECT_GE(waited, expected);
      EXPECT_LT(waited, expected + 5'000'000);
      const uint64_t probes = bed.Counter(bed.a, "tail_probes");
      EXPECT_EQ(bed.network.CountSent([](const auto& sent) {
        return sent.fields.opcode == wire::Opcode::kRcWriteOnly;
      }),
                retries + 1u + probes);
      EXPECT_LE(probes, 2u);
      EXPECT_EQ(bed.Counter(bed.a, "retry_exhausted"), 1u);
    }
  }
}

TEST_P(RcTimeout, PeerThatVanishesInAMessageIsNoticed) {
  BedOptions options = Options();
  options.config.initial_window_bytes = options.config.max_window_bytes = 32 * 1024;
  options.config.qp_budget_bytes = options.config.turn_budget_bytes = 16 * 1024;
  options.retry_count = 2;
  Bed bed(options);
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 1 << 20), PostResult::kOk);
  const device::Sge sge = bed.a.Sge(0, 1 << 20);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  for (int i = 0; i < 20; ++i) bed.network.Step();
  ASSERT_TRUE(bed.a.sends.all.empty());
  ASSERT_EQ(bed.MoveTo(bed.b, QpState::kErr), device::QpResult::kOk);
  ASSERT_EQ(bed.b.receives.all.size(), 1u) << "the receive in use is flushed";
  EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kWrFlushErr);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kRetryExcErr);
  EXPECT_EQ(bed.b.receives.all.size(), 1u);
}

// With a probe now and then, each after twice the time of the one before, up to 20 s.
TEST(RcTimeoutWire, CodeZeroWaitsForEver) {
  BedOptions options;
  options.timeout = 0;
  Bed bed(options);
  bed.network.drop_if = [](const auto&) { return true; };
  const device::Sge sge = bed.a.Sge(0, 100);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  bed.network.Pass(3'600'000'000'000);
  EXPECT_TRUE(bed.a.sends.all.empty());
  EXPECT_LT(bed.network.sent().size(), 200u);
  bed.network.drop_if = nullptr;
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
  EXPECT_EQ(bed.a.transport->NextDeadline(bed.network.now()), device::kNever);
}

TEST(RcTimeoutWire, AnswersRenewTheRetries) {
  BedOptions options;
  options.retry_count = 1;
  Bed bed(options);
  int seen = 0;
  bed.network.drop_if = [&seen](const auto& sent) {  // every first try of each packet
    return sent.fields.opcode == wire::Opcode::kRcWriteOnly && seen++ % 2 == 0;
  };
  const device::Sge sge = bed.a.Sge(0, 100);
  for (uint64_t i = 1; i <= 10; ++i) {
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, i));
    ASSERT_EQ(bed.a.sends.all.back().status, WcStatus::kSuccess) << i;
  }
}

// After a few round trips a lost last packet is repaired long before a timeout of 4 s.
TEST(RcTimeoutWire, LostTailIsProbedEarlyAndCostsNoRetry) {
  BedOptions options;
  options.timeout = 20;
  options.retry_count = 0;
  Bed bed(options);
  const device::Sge sge = bed.a.Sge(0, 100);
  for (uint64_t i = 1; i <= 5; ++i) {
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, i));
  }
  bool dropped = false;
  bed.network.drop_if = [&dropped](const auto&) { return !std::exchange(dropped, true); };
  const TimeNs start = bed.network.now();
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(6, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 6));
  EXPECT_EQ(bed.a.sends.all.back().status, WcStatus::kSuccess);
  EXPECT_LT(bed.network.now() - start, 10'000'000);
  EXPECT_EQ(bed.Counter(bed.a, "tail_probes"), 1u);
  EXPECT_EQ(bed.Counter(bed.a, "timeouts"), 0u);
}

// To a peer that died in the middle, few packets are sent: no storm.
TEST(RcTimeoutWire, SilenceIsNotAnsweredWithWindowsOfPackets) {
  BedOptions options;
  options.config.initial_window_bytes = options.config.max_window_bytes = 64 * 1024;
  Bed bed(options);
  const device::Sge sge = bed.a.Sge(0, 1 << 20);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  for (int i = 0; i < 30; ++i) bed.network.Step();
  ASSERT_TRUE(bed.a.sends.all.empty());
  bed.network.drop_if = [](const auto&) { return true; };
  const uint64_t before = bed.Counter(bed.a, "tx_packets");
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kRetryExcErr);
  // Seven retries and a few probes.
  EXPECT_LT(bed.Counter(bed.a, "tx_packets") - before, 64u + 7u + 8u);
  EXPECT_LE(bed.Counter(bed.a, "retransmitted_packets"), 7u + 8u);
}

TEST(RcTimeoutWire, IdleConnectionsHaveNoDeadline) {
  Bed bed;
  bed.network.RunUntilQuiet();
  const device::Sge sge = bed.a.Sge(0, 100);
  EXPECT_EQ(bed.a.transport->NextDeadline(bed.network.now()), device::kNever);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  bed.a.transport->DoWork(bed.network.now());
  EXPECT_EQ(bed.a.transport->NextDeadline(bed.network.now()), device::kNever);
  EXPECT_EQ(bed.b.transport->NextDeadline(bed.network.now()), device::kNever);
}

TEST(AckTiming, ShortCodesGrowLongOnesStay) {
  EXPECT_EQ(AckTimeout(0, 0), device::kNever);
  EXPECT_EQ(AckTimeout(1, 0), 2'000'000);
  EXPECT_EQ(AckTimeout(1, 1), 4'000'000);
  EXPECT_EQ(AckTimeout(1, 100), 64'000'000);
  EXPECT_EQ(AckTimeout(31, 0), TimeNs{4096} << 31);
  EXPECT_EQ(AckTimeout(31, 7), TimeNs{4096} << 31);
}

TEST(AckTiming, EstimatorFollowsTheRoundTrip) {
  RoundTripEstimator estimator;
  EXPECT_FALSE(estimator.known());
  for (int i = 0; i < 100; ++i) estimator.OnSample(100'000);
  ASSERT_TRUE(estimator.known());
  const TimeNs calm = estimator.ProbeDelay(0);
  EXPECT_GE(calm, 200'000);
  EXPECT_EQ(estimator.ProbeDelay(2), calm * 4);
  for (int i = 0; i < 100; ++i) estimator.OnSample(i % 2 == 0 ? 100'000 : 2'000'000);
  EXPECT_GT(estimator.ProbeDelay(0), calm + 1'000'000);
}

}  // namespace
}  // namespace rdmad::soft
