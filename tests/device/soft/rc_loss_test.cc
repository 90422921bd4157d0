// RC over a network that loses, repeats and reorders packets: every byte right, every WR one fate,
// in order.
#include <gtest/gtest.h>

#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::WcStatus;
using device::WrOpcode;

constexpr uint32_t kSlotBytes = 16 * 1024;
constexpr uint64_t kWrCount = 120;
constexpr uint64_t kCounterOffset = kWrCount * kSlotBytes;  // a word for fetch-and-add

struct LossCase {
  double loss;
  double duplicate;
  double reorder;
};
void PrintTo(const LossCase& c, std::ostream* os) {
  *os << "loss " << c.loss << " duplicate " << c.duplicate << " reorder " << c.reorder;
}

class RcLoss : public testing::TestWithParam<std::tuple<LossCase, uint64_t>> {};

// A stream of random operations of random sizes, each on memory of its own.
class Workload {
 public:
  Workload(Bed& bed, uint64_t seed) : bed_(bed), random_(seed) {
    bed.Fill(bed.a, 0, kWrCount * kSlotBytes, seed * 2 + 1);
    bed.Fill(bed.b, 0, kWrCount * kSlotBytes, seed * 2 + 2);
    source_ = bed.b.memory;
    std::memset(bed.b.memory.data() + kCounterOffset, 0, 8);
    for (uint64_t i = 0; i < kWrCount; ++i) {
      constexpr WrOpcode kOps[] = {WrOpcode::kSend, WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead,
                                   WrOpcode::kRdmaWriteWithImm, WrOpcode::kFetchAdd};
      plans_.push_back({kOps[random_() % 5], Size()});
    }
  }

  // Posts as long as the queues take more.
  void Post() {
    while (posted_ < kWrCount) {
      const Plan& plan = plans_[posted_];
      const bool atomic = plan.opcode == WrOpcode::kFetchAdd;
      const bool receives =
          plan.opcode == WrOpcode::kSend || plan.opcode == WrOpcode::kRdmaWriteWithImm;
      if (receives && receives_posted_ <= posted_) {
        if (bed_.PostRecv(bed_.b, posted_, posted_ * kSlotBytes, kSlotBytes) != PostResult::kOk) {
          return;
        }
        receives_posted_ = posted_ + 1;
        expected_receives_.push_back(posted_);
      }
      const device::Sge sge = bed_.a.Sge(posted_ * kSlotBytes, atomic ? 8 : plan.bytes);
      device::SendWr wr =
          bed_.Wr(posted_, plan.opcode, &sge, atomic ? kCounterOffset : posted_ * kSlotBytes);
      wr.compare_add = 1;
      if (bed_.Post(bed_.a, wr) != PostResult::kOk) return;
      ++posted_;
    }
  }

  void Verify() {
    ASSERT_EQ(bed_.a.sends.all.size(), kWrCount);
    uint64_t atomics = 0;
    for (uint64_t i = 0; i < kWrCount; ++i) {
      const Plan& plan = plans_[i];
      const device::Wc& wc = bed_.a.sends.all[i];
      ASSERT_EQ(wc.wr_id, i);
      ASSERT_EQ(wc.status, WcStatus::kSuccess) << i;
      if (plan.opcode == WrOpcode::kFetchAdd) {
        uint64_t original;
        std::memcpy(&original, bed_.a.memory.data() + i * kSlotBytes, 8);
        EXPECT_EQ(original, atomics++) << "an atomic was executed twice or not at all";
        continue;
      }
      EXPECT_TRUE(bed_.Same(i * kSlotBytes, i * kSlotBytes, plan.bytes)) << "wr " << i;
      // Behind the message nothing has changed.
      EXPECT_EQ(std::memcmp(bed_.b.memory.data() + i * kSlotBytes + plan.bytes,
                            source_.data() + i * kSlotBytes + plan.bytes, kSlotBytes - plan.bytes),
                0)
          << "wr " << i;
    }
    ASSERT_EQ(bed_.b.receives.all.size(), expected_receives_.size());
    for (size_t i = 0; i < expected_receives_.size(); ++i) {
      EXPECT_EQ(bed_.b.receives.all[i].wr_id, expected_receives_[i]);
      EXPECT_EQ(bed_.b.receives.all[i].byte_len, plans_[expected_receives_[i]].bytes);
    }
  }

 private:
  struct Plan {
    WrOpcode opcode;
    uint32_t bytes;
  };
  uint32_t Size() {
    constexpr uint32_t kEdges[] = {0, 1, 1023, 1024, 1025, 2048, kSlotBytes};
    return random_() % 3 == 0 ? kEdges[random_() % 7]
                              : static_cast<uint32_t>(random_() % kSlotBytes);
  }

  Bed& bed_;
  std::mt19937_64 random_;
  std::vector<Plan> plans_;
  std::vector<std::byte> source_;
  std::vector<uint64_t> expected_receives_;
  uint64_t posted_ = 0;
  uint64_t receives_posted_ = 0;
};

TEST_P(RcLoss, EveryByteArrivesAndEveryWrHasOneFate) {
  const auto& [loss_case, seed] = GetParam();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  BedOptions options;
  options.faults = {.loss = loss_case.loss,
                    .duplicate = loss_case.duplicate,
                    .reorder = loss_case.reorder,
                    .seed = seed};
  options.psn_a = 0xffff80;  // wraps on the way
  options.rd_atomic = static_cast<uint8_t>(1 + seed % 4);
  Bed bed(options);
  Workload workload(bed, seed);
  ASSERT_TRUE(bed.network.RunUntil([&] {
    workload.Post();
    return bed.a.sends.all.size() >= kWrCount;
  })) << "stuck at "
      << bed.a.sends.all.size();
  bed.network.RunUntilQuiet();
  workload.Verify();
}

INSTANTIATE_TEST_SUITE_P(Faults, RcLoss,
                         testing::Combine(testing::Values(LossCase{0, 0, 0}, LossCase{0.01, 0, 0},
                                                          LossCase{0.01, 0.01, 0.02},
                                                          LossCase{0.05, 0.05, 0.05},
                                                          LossCase{0, 0.3, 0}, LossCase{0, 0, 0.3},
                                                          LossCase{0.1, 0.1, 0.1}),
                                          testing::Range<uint64_t>(1, 25)));

// A long transfer: loss slows it down in proportion, and the packets sent stay within a fixed
// bound.
class RcBulkLoss : public testing::TestWithParam<std::tuple<double, WrOpcode>> {};

TEST_P(RcBulkLoss, MovesOnAndSendsAtMostThreeTimesThePackets) {
  const auto [loss, opcode] = GetParam();
  constexpr uint64_t kMessages = 16;
  constexpr uint32_t kBytes = 1 << 20;
  constexpr uint64_t kNeeded = kMessages * kBytes / 1024;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    BedOptions options;
    options.faults = {.loss = loss, .seed = seed};
    Bed bed(options);
    bed.network.keep_record = false;
    bed.Fill(opcode == WrOpcode::kRdmaRead ? bed.b : bed.a, 0, kBytes, seed);
    const device::Sge sge = bed.a.Sge(0, kBytes);
    for (uint64_t i = 0; i < kMessages; ++i) {
      if (opcode == WrOpcode::kSend) {
        ASSERT_EQ(bed.PostRecv(bed.b, i, 0, kBytes), PostResult::kOk);
      }
      ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, opcode, &sge)), PostResult::kOk);
    }
    const TimeNs start = bed.network.now();
    ASSERT_TRUE(bed.Await(bed.a.sends, kMessages)) << bed.a.sends.all.size();
    const double seconds = static_cast<double>(bed.network.now() - start) / 1e9;
    for (const device::Wc& wc : bed.a.sends.all) ASSERT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_TRUE(bed.Same(0, 0, kBytes));
    const uint64_t sent = bed.Counter(bed.a, "tx_packets") + bed.Counter(bed.b, "tx_packets");
    if (loss <= 0.01) {
      EXPECT_LT(sent, 3 * kNeeded);
    }
    // 16 MiB; at 20 us of round trip even 5 % loss leaves tens of MB/s.
    EXPECT_LT(seconds, loss == 0 ? 0.1 : loss <= 0.01 ? 0.7 : 3.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Loss, RcBulkLoss,
                         testing::Combine(testing::Values(0.0, 0.01, 0.05),
                                          testing::Values(WrOpcode::kSend, WrOpcode::kRdmaWrite,
                                                          WrOpcode::kRdmaRead)));

// The network takes a few packets at a time and the rest later.
TEST(RcBackpressure, NothingIsLostOrRepeatedWhenTheNetworkTakesLess) {
  for (const size_t take : {1, 3, 61}) {
    SCOPED_TRACE(take);
    Bed bed;
    bed.network.take_at_most = take;
    bed.Fill(bed.a, 0, 300'000);
    bed.Fill(bed.b, 500'000, 300'000);
    const device::Sge out = bed.a.Sge(0, 300'000);
    const device::Sge in = bed.a.Sge(500'000, 300'000);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &out, 0)), PostResult::kOk);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(2, WrOpcode::kRdmaRead, &in, 500'000)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, 2));
    EXPECT_TRUE(bed.Same(0, 0, 300'000));
    EXPECT_TRUE(bed.Same(500'000, 500'000, 300'000));
    EXPECT_EQ(bed.Counter(bed.a, "retransmitted_packets"), 0u);
    EXPECT_GT(bed.Counter(bed.a, "tx_blocked") + bed.Counter(bed.b, "tx_blocked"), 0u);
  }
}

}  // namespace
}  // namespace rdmad::soft
