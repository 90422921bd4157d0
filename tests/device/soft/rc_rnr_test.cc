// Receiver not ready: how often and how long a sender waits (CASES 30).
#include <gtest/gtest.h>

#include "daemon/wire/aeth.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::WcStatus;
using device::WrOpcode;

constexpr TimeNs kSecond = 1'000'000'000;

bool IsRnrNak(const FakeNetwork::Sent& sent) {
  return sent.fields.opcode == wire::Opcode::kRcAck &&
         wire::AckKindOf(sent.fields.aeth.syndrome) == wire::AckKind::kRnrNak;
}

uint64_t RnrWaits(Bed& bed, Path path) {
  return path == Path::kLocal ? bed.Counter(bed.a, "local_rnr_waits")
                              : bed.network.CountSent(IsRnrNak);
}

class RcRnr : public PathTest {};
RDMAD_ON_BOTH_PATHS(RcRnr);

TEST_P(RcRnr, FiniteRetriesFailAfterThatManyWaitsOfTheTimersLength) {
  for (const uint8_t retries : {0, 1, 3}) {
    for (const uint8_t code : {1, 12, 31, 0}) {
      SCOPED_TRACE(testing::Message() << "rnr_retry " << int{retries} << " code " << int{code});
      BedOptions options = Options();
      options.rnr_retry = retries;
      options.min_rnr_timer = code;
      Bed bed(options);
      const device::Sge sge = bed.a.Sge(0, 64);
      const TimeNs start = bed.network.now();
      ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
      ASSERT_TRUE(bed.Await(bed.a.sends, 1));
      EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kRnrRetryExcErr);
      const TimeNs waited = bed.network.now() - start;
      const TimeNs timer = wire::RnrTimer(code).count();
      EXPECT_GE(waited, retries * timer);
      EXPECT_LT(waited, retries * timer + kSecond / 1000);
      EXPECT_EQ(RnrWaits(bed, GetParam()), retries + 1u);
      EXPECT_EQ(bed.Counter(bed.a, "rnr_retry_exhausted"), 1u);
      EXPECT_NE(bed.b.qp->Query().state, device::QpState::kErr);
      if (GetParam() == Path::kWire) {
        std::vector<TimeNs> tries;
        for (const auto& sent : bed.network.sent()) {
          if (sent.fields.opcode == wire::Opcode::kRcSendOnly) tries.push_back(sent.time);
        }
        ASSERT_EQ(tries.size(), retries + 1u);
        for (size_t i = 1; i < tries.size(); ++i) EXPECT_GE(tries[i] - tries[i - 1], timer);
      }
    }
  }
}

TEST_P(RcRnr, SevenWaitsForEverAndUsesNoTransportRetries) {
  BedOptions options = Options();
  options.rnr_retry = 7;
  options.min_rnr_timer = 12;  // 0.64 ms
  options.retry_count = 0;
  Bed bed(options);
  bed.Fill(bed.a, 0, 3000);
  const device::Sge sge = bed.a.Sge(0, 3000);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  bed.network.Pass(3 * kSecond);
  EXPECT_TRUE(bed.a.sends.all.empty());
  EXPECT_GT(RnrWaits(bed, GetParam()), 3000u);
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 3000), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1, kSecond));
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
  EXPECT_TRUE(bed.Same(0, 0, 3000));
  EXPECT_EQ(bed.Counter(bed.a, "timeouts"), 0u);
}

TEST_P(RcRnr, DeliveryRenewsTheRetries) {
  BedOptions options = Options();
  options.rnr_retry = 1;
  options.min_rnr_timer = 20;  // 10 ms
  Bed bed(options);
  const device::Sge sge = bed.a.Sge(0, 64);
  for (uint64_t i = 1; i <= 5; ++i) {
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, WrOpcode::kSend, &sge)), PostResult::kOk);
    bed.network.Pass(5'000'000);
    ASSERT_EQ(bed.PostRecv(bed.b, i, 0, 64), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, i));
    ASSERT_EQ(bed.a.sends.all.back().status, WcStatus::kSuccess) << i;
  }
}

TEST_P(RcRnr, WriteWithImmediateWaitsForAReceiveToo) {
  BedOptions options = Options();
  options.min_rnr_timer = 12;
  Bed bed(options);
  bed.Fill(bed.a, 0, 5000);
  const device::Sge sge = bed.a.Sge(0, 5000);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWriteWithImm, &sge)), PostResult::kOk);
  bed.network.Pass(10'000'000);
  EXPECT_TRUE(bed.a.sends.all.empty());
  ASSERT_EQ(bed.b.qp->PostRecv({.wr_id = 1, .sges = {}}, bed.network.now()), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  ASSERT_EQ(bed.b.receives.all.size(), 1u);
  EXPECT_EQ(bed.b.receives.all[0].byte_len, 5000u);
  EXPECT_TRUE(bed.Same(0, 0, 5000));
}

TEST_P(RcRnr, WrsBehindTheOneThatWaitsKeepTheirOrder) {
  BedOptions options = Options();
  options.min_rnr_timer = 12;
  Bed bed(options);
  const device::Sge sge = bed.a.Sge(0, 2000);
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, i % 3 == 0 ? WrOpcode::kRdmaRead : WrOpcode::kSend, &sge)),
              PostResult::kOk);
  }
  uint64_t receives = 0;
  while (bed.a.sends.all.size() < 20 && receives < 100) {
    bed.network.Pass(1'000'000);
    ASSERT_EQ(bed.PostRecv(bed.b, ++receives, 0, 2000), PostResult::kOk);
  }
  ASSERT_EQ(bed.a.sends.all.size(), 20u);
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(bed.a.sends.all[i].wr_id, i + 1);
    EXPECT_EQ(bed.a.sends.all[i].status, WcStatus::kSuccess);
  }
  for (size_t i = 0; i < bed.b.receives.all.size(); ++i) {
    EXPECT_EQ(bed.b.receives.all[i].wr_id, i + 1);
  }
}

// On the local path the receive itself ends the wait: with timer code 0 it would be 655 ms.
TEST(RcRnrLocal, PostedReceiveWakesTheSenderAtOnce) {
  BedOptions options;
  options.path = Path::kLocal;
  options.min_rnr_timer = 0;
  Bed bed(options);
  const device::Sge sge = bed.a.Sge(0, 64);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  bed.network.Pass(1'000'000);
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 64), PostResult::kOk);
  EXPECT_TRUE(bed.Await(bed.a.sends, 1, 100'000));
}

TEST(RcRnrWire, RnrSurvivesLossAndRepetition) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    BedOptions options;
    options.faults = {.loss = 0.05, .duplicate = 0.1, .reorder = 0.1, .seed = seed};
    options.min_rnr_timer = 12;
    Bed bed(options);
    const device::Sge sge = bed.a.Sge(0, 2500);
    for (uint64_t i = 1; i <= 30; ++i) {
      ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, WrOpcode::kSend, &sge)), PostResult::kOk);
    }
    for (uint64_t i = 1; i <= 30; ++i) {
      bed.network.Pass(400'000);
      ASSERT_EQ(bed.PostRecv(bed.b, i, 0, 2500), PostResult::kOk);
    }
    ASSERT_TRUE(bed.Await(bed.a.sends, 30));
    EXPECT_EQ(bed.b.receives.all.size(), 30u);
  }
}

}  // namespace
}  // namespace rdmad::soft
