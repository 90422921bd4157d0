#include "daemon/wire/aeth.h"

#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

using std::chrono::microseconds;

TEST(Aeth, SyndromesOnTheWire) {
  EXPECT_EQ(AckSyndrome(), 0x1f);
  EXPECT_EQ(AckSyndrome(3), 0x03);
  EXPECT_EQ(RnrNakSyndrome(12), 0x2c);
  EXPECT_EQ(NakSyndrome(NakCode::kPsnSequenceError), 0x60);
  EXPECT_EQ(NakSyndrome(NakCode::kRemoteOperationalError), 0x63);
}

TEST(Aeth, SyndromesComeApartAgain) {
  for (int syndrome = 0; syndrome < 256; ++syndrome) {
    const auto byte = static_cast<uint8_t>(syndrome);
    EXPECT_EQ(static_cast<int>(AckKindOf(byte)), syndrome / 32 % 4);
    EXPECT_EQ(AckCodeOf(byte), syndrome % 32);
  }
}

TEST(Aeth, RnrTimersOfTheSpec) {
  const struct {
    uint8_t code;
    int64_t us;
  } kCases[] = {{0, 655'360}, {1, 10},      {2, 20},       {5, 60},      {12, 640},
                {13, 960},    {20, 10'240}, {30, 327'680}, {31, 491'520}};
  for (const auto& c : kCases) EXPECT_EQ(RnrTimer(c.code), microseconds(c.us)) << int{c.code};
}

TEST(Aeth, RnrTimersGrowFromCodeOne) {
  for (uint8_t code = 2; code < 32; ++code) EXPECT_GT(RnrTimer(code), RnrTimer(code - 1));
  EXPECT_GT(RnrTimer(0), RnrTimer(31));
}

TEST(Aeth, CreditCodes) {
  const struct {
    uint32_t credits;
    uint8_t code;
  } kCases[] = {{0, 0},   {1, 1},   {4, 4},      {5, 4},      {6, 5},         {7, 5},
                {47, 10}, {48, 11}, {32767, 29}, {32768, 30}, {1'000'000, 30}};
  for (const auto& c : kCases) EXPECT_EQ(CreditCodeFor(c.credits), c.code) << c.credits;
}

TEST(Aeth, CreditCountsNeverPromiseTooMuch) {
  for (uint32_t credits = 0; credits < 40'000; ++credits) {
    ASSERT_LE(kCreditCounts[CreditCodeFor(credits)], credits);
  }
}

TEST(Aeth, NakNames) {
  EXPECT_STREQ(NakCodeName(NakCode::kRemoteAccessError), "remote_access_error");
  EXPECT_STREQ(NakCodeName(static_cast<NakCode>(17)), "reserved");
}

}  // namespace
}  // namespace rdmad::wire
