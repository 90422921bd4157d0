#include "daemon/wire/icrc_id.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/icrc_reference.h"

namespace rdmad::wire {
namespace {

constexpr size_t kSizes[] = {16, 20, 40, 92, 280, 1040, 4112, 4136, 65'507};  // UDP payload bytes

const IpAddress kSource = IpAddress::FromV4(192, 0, 2, 1);
const IpAddress kDestination = IpAddress::FromV4(198, 51, 100, 2);

// The ICRC input of a packet of this size, and the true ICRC for an id and a DF bit.
struct Sample {
  explicit Sample(size_t udp_payload_bytes) : input(udp_payload_bytes - 4) {
    std::mt19937 random(static_cast<uint32_t>(udp_payload_bytes));
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
    computed = IcrcFlow(kSource, kDestination, 4791, 4791).Compute(input);
  }

  uint32_t True(uint16_t id, bool dont_fragment) const {
    const size_t total = 20 + 8 + input.size() + 4;
    const std::vector<uint8_t> ip = {0x45,
                                     0,
                                     static_cast<uint8_t>(total >> 8),
                                     static_cast<uint8_t>(total),
                                     static_cast<uint8_t>(id >> 8),
                                     static_cast<uint8_t>(id),
                                     static_cast<uint8_t>(dont_fragment ? 0x40 : 0),
                                     0,
                                     64,
                                     17,
                                     0,
                                     0,
                                     192,
                                     0,
                                     2,
                                     1,
                                     198,
                                     51,
                                     100,
                                     2};
    return testing::ReferenceIcrc(ip, 4791, 4791, input);
  }

  std::vector<uint8_t> input;
  uint32_t computed = 0;
};

constexpr uint16_t kIds[] = {0, 1, 2, 63, 127, 128, 255, 256, 0x1234, 0x8000, 0xfffe, 0xffff};

TEST(IcrcId, TermMovesTheIcrcToAnotherId) {
  for (const size_t bytes : kSizes) {
    const Sample sample(bytes);
    for (const uint16_t id : kIds) {
      EXPECT_EQ(sample.computed ^ IcrcIdTerm(id, bytes), sample.True(id, true))
          << bytes << " " << id;
    }
  }
}

TEST(IcrcId, GsoTermsAreTheIdTerms) {
  for (const size_t bytes : kSizes) {
    const GsoIcrcTerms terms(bytes);
    for (unsigned index = 0; index < 128; ++index) {
      ASSERT_EQ(terms[index], IcrcIdTerm(static_cast<uint16_t>(index), bytes));
      ASSERT_EQ(IcrcForGsoIndex(7, static_cast<uint16_t>(index), bytes), 7 ^ terms[index]);
    }
  }
}

TEST(IcrcId, CheckFindsIdAndDf) {
  for (const size_t bytes : kSizes) {
    const Sample sample(bytes);
    for (const uint16_t id : kIds) {
      for (const bool dont_fragment : {true, false}) {
        const IcrcIdCheck check =
            CheckIcrcUnknownId(sample.True(id, dont_fragment), sample.computed, bytes);
        EXPECT_TRUE(check.good) << bytes << " " << id;
        EXPECT_EQ(check.id, id);
        EXPECT_EQ(check.dont_fragment, dont_fragment);
      }
    }
  }
}

TEST(IcrcId, CheckFindsEveryId) {
  const Sample sample(92);
  for (int id = 0; id <= 0xffff; ++id) {
    const uint32_t received = IcrcForGsoIndex(sample.computed, static_cast<uint16_t>(id), 92);
    const IcrcIdCheck check = CheckIcrcUnknownId(received, sample.computed, 92);
    ASSERT_TRUE(check.good && check.dont_fragment) << id;
    ASSERT_EQ(check.id, id);
  }
}

// Any id and either DF are accepted: 2^17 of 2^32 values.
TEST(IcrcId, RandomDamagePassesOnceIn32768) {
  std::mt19937 random(42);
  int passed = 0;
  constexpr int kTries = 2'000'000;
  for (int i = 0; i < kTries; ++i) passed += CheckIcrcUnknownId(random(), 0, 1040).good ? 1 : 0;
  EXPECT_GT(passed, kTries / 32'768 / 2);
  EXPECT_LT(passed, kTries / 32'768 * 2);
}

// Places of single flipped bits, as byte * 8 + bit, that a full packet's check does not see.
std::vector<size_t> UnseenBits(DfPolicy policy) {
  constexpr size_t kBytes = 4136;
  constexpr size_t kMaskedByte = 4;
  const Sample sample(kBytes);
  const IcrcFlow flow(kSource, kDestination, 4791, 4791);
  std::vector<uint8_t> damaged = sample.input;
  std::vector<size_t> unseen;
  for (size_t bit = 0; bit < 8 * damaged.size(); ++bit) {
    if (bit / 8 == kMaskedByte) continue;
    const auto flip = static_cast<uint8_t>(1 << bit % 8);
    damaged[bit / 8] ^= flip;
    if (IcrcIsGood(flow, sample.computed, flow.Compute(damaged), kBytes, policy)) {
      unseen.push_back(bit);
    }
    damaged[bit / 8] ^= flip;
  }
  for (size_t bit = 0; bit < 32; ++bit) {
    if (IcrcIsGood(flow, sample.computed ^ 1u << bit, sample.computed, kBytes, policy)) {
      unseen.push_back(8 * damaged.size() + bit);
    }
  }
  return unseen;
}

TEST(IcrcId, NoSingleBitErrorInAFullPacketPassesIfDfIsRequired) {
  EXPECT_EQ(UnseenBits(DfPolicy::kRequired), std::vector<size_t>{});
}

TEST(IcrcId, TwoSingleBitErrorsInAFullPacketLookLikeClearDf) {
  EXPECT_EQ(UnseenBits(DfPolicy::kAny), (std::vector<size_t>{173 * 8 + 3, 1834 * 8 + 6}));
}

TEST(IcrcId, Ipv6IsExact) {
  const IcrcFlow v4(kSource, kDestination, 4791, 4791);
  const IcrcFlow v6(*IpAddress::Parse("fd77::1"), *IpAddress::Parse("fd77::2"), 4791, 4791);
  const uint32_t computed = 0x12345678;
  const uint32_t other_id = IcrcForGsoIndex(computed, 5, 92);
  EXPECT_TRUE(IcrcIsGood(v6, computed, computed, 92));
  EXPECT_FALSE(IcrcIsGood(v6, other_id, computed, 92));
  EXPECT_TRUE(IcrcIsGood(v4, computed, computed, 92));
  EXPECT_TRUE(IcrcIsGood(v4, other_id, computed, 92));
  EXPECT_FALSE(IcrcIsGood(v4, computed ^ 1, computed, 92));
}

}  // namespace
}  // namespace rdmad::wire
