// However the network fails: once it works again, a connection goes on within a time that follows
// from how long it was away, whatever its timeout, and before any round trip has been measured,
// too.
#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/device/soft/ack_timing.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::WcStatus;
using device::WrOpcode;

constexpr TimeNs kSecond = 1'000'000'000;
constexpr uint32_t kBytes = 10'000;
// Round trips of the fake network, turns, and the slack of a probe.
constexpr TimeNs kGrace = 3 * kMillisecond;

BedOptions LongTimeout() {
  BedOptions options;
  options.timeout = 20;  // 4.3 s, far beyond all that is expected here
  return options;
}

void PostOne(Bed& bed, WrOpcode opcode, uint64_t wr_id) {
  const bool atomic = opcode == WrOpcode::kFetchAdd;
  ASSERT_EQ(bed.PostRecv(bed.b, wr_id, 1 << 20, kBytes), PostResult::kOk);
  const device::Sge sge = bed.a.Sge(0, atomic ? 8 : kBytes);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(wr_id, opcode, &sge)), PostResult::kOk);
}

class RcLiveness : public testing::TestWithParam<WrOpcode> {};

TEST_P(RcLiveness, AnOutageOfAFreshConnectionLastsAtMostTwiceAsLong) {
  for (const TimeNs outage :
       {kMillisecond, 19 * kMillisecond, 50 * kMillisecond, 200 * kMillisecond, kSecond}) {
    SCOPED_TRACE(outage);
    Bed bed(LongTimeout());
    const TimeNs healed = bed.network.now() + outage;
    bed.network.drop_if = [healed](const auto& sent) { return sent.time < healed; };
    PostOne(bed, GetParam(), 1);
    ASSERT_TRUE(bed.Await(bed.a.sends, 1));
    EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
    EXPECT_LE(bed.network.now() - healed, outage + RoundTripEstimator::kFirstGuess + kGrace);
    EXPECT_EQ(bed.Counter(bed.a, "timeouts"), 0u);
    EXPECT_LE(bed.Counter(bed.a, "tail_probes"), 8u) << "no storm meanwhile";
  }
}

TEST_P(RcLiveness, AnOutageInTheMiddleLastsAtMostTwiceAsLong) {
  for (const TimeNs outage : {kMillisecond, 10 * kMillisecond, 100 * kMillisecond, kSecond}) {
    SCOPED_TRACE(outage);
    Bed bed(LongTimeout());
    for (uint64_t i = 0; i < 10; ++i) {
      PostOne(bed, GetParam(), i);
      ASSERT_TRUE(bed.Await(bed.a.sends, i + 1));
    }
    const TimeNs healed = bed.network.now() + outage;
    bed.network.drop_if = [healed](const auto& sent) { return sent.time < healed; };
    PostOne(bed, GetParam(), 10);
    ASSERT_TRUE(bed.Await(bed.a.sends, 11));
    EXPECT_EQ(bed.a.sends.all.back().status, WcStatus::kSuccess);
    EXPECT_LE(bed.network.now() - healed, outage + kGrace);
    EXPECT_LE(bed.Counter(bed.a, "tail_probes"), 12u);
  }
}

// The first few packets of one side, or of both.
TEST_P(RcLiveness, WhicheverFirstPacketsAreLostItGoesOn) {
  for (int lost = 1; lost <= 3; ++lost) {
    for (const int sides : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << lost << " packets of sides " << sides);
      Bed bed(LongTimeout());
      int of_a = (sides & 1) != 0 ? lost : 0;
      int of_b = (sides & 2) != 0 ? lost : 0;
      bed.network.drop_if = [&](const auto& sent) {
        return (sent.from == bed.a.address ? of_a : of_b)-- > 0;
      };
      const TimeNs start = bed.network.now();
      PostOne(bed, GetParam(), 1);
      ASSERT_TRUE(bed.Await(bed.a.sends, 1));
      EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
      // Each waits for one probe at most: 20, 40, 80 ms, and so on.
      EXPECT_LE(bed.network.now() - start,
                (RoundTripEstimator::kFirstGuess << (2 * lost)) + kGrace);
    }
  }
}

// One in a hundred lost, from the first packet on: no pause that anybody would notice.
TEST_P(RcLiveness, AStreamOnALossyNetworkNeverPauses) {
  constexpr uint64_t kMessages = 40;
  constexpr TimeNs kNoticed = 150 * kMillisecond;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    BedOptions options = LongTimeout();
    options.faults = {.loss = 0.01, .seed = seed};
    Bed bed(options);
    bed.network.keep_record = false;
    TimeNs longest = 0;
    for (uint64_t i = 0; i < kMessages; ++i) PostOne(bed, GetParam(), i);
    for (uint64_t i = 0; i < kMessages; ++i) {
      const TimeNs before = bed.network.now();
      ASSERT_TRUE(bed.Await(bed.a.sends, i + 1));
      longest = std::max(longest, bed.network.now() - before);
    }
    EXPECT_LT(longest, kNoticed);
  }
}

// On a path slower than the first guess the guess gives way: no message is sent again for ever.
TEST(RcSlowPath, ProbesGiveWayToARoundTripThatIsLonger) {
  BedOptions options = LongTimeout();
  options.faults.delay = 60 * kMillisecond;
  Bed bed(options);
  for (uint64_t i = 0; i < 20; ++i) {
    PostOne(bed, WrOpcode::kRdmaWrite, i);
    ASSERT_TRUE(bed.Await(bed.a.sends, i + 1));
  }
  EXPECT_LE(bed.Counter(bed.a, "tail_probes"), 5u);
  const uint64_t probes = bed.Counter(bed.a, "tail_probes");
  const uint64_t again = bed.Counter(bed.a, "retransmitted_packets");
  for (uint64_t i = 20; i < 30; ++i) {
    PostOne(bed, WrOpcode::kRdmaWrite, i);
    ASSERT_TRUE(bed.Await(bed.a.sends, i + 1));
  }
  EXPECT_EQ(bed.Counter(bed.a, "tail_probes"), probes);
  EXPECT_EQ(bed.Counter(bed.a, "retransmitted_packets"), again);
}

INSTANTIATE_TEST_SUITE_P(Operations, RcLiveness,
                         testing::Values(WrOpcode::kRdmaRead, WrOpcode::kRdmaWrite, WrOpcode::kSend,
                                         WrOpcode::kRdmaWriteWithImm, WrOpcode::kFetchAdd),
                         [](const auto& test) {
                           switch (test.param) {
                             case WrOpcode::kRdmaRead:
                               return "Read";
                             case WrOpcode::kRdmaWrite:
                               return "Write";
                             case WrOpcode::kSend:
                               return "Send";
                             case WrOpcode::kRdmaWriteWithImm:
                               return "WriteWithImm";
                             default:
                               return "FetchAdd";
                           }
                         });

}  // namespace
}  // namespace rdmad::soft
