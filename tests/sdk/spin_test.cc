#include "client/sdk/spin.h"

#include <gtest/gtest.h>

namespace rdmad::sdk {
namespace {

TEST(SpinPolicy, AFruitfulWaitGrowsTheWindowUpToTheMaximum) {
  SpinPolicy policy;
  EXPECT_EQ(policy.WindowNs(0), 20'000);
  for (const int64_t window_ns : {40'000, 50'000, 50'000}) {
    policy.OnWaited(SpinPolicy::kMaxNs);
    EXPECT_EQ(policy.WindowNs(0), window_ns);
  }
}

TEST(SpinPolicy, WaitingInVainShrinksItToNothing) {
  SpinPolicy policy;
  for (const int64_t window_ns : {10'000, 5'000, 2'500, 0, 0}) {
    policy.OnWaited(SpinPolicy::kMaxNs + 1);
    EXPECT_EQ(policy.WindowNs(0), window_ns);
  }
}

TEST(SpinPolicy, ItComesBackFromNothing) {
  SpinPolicy policy;
  for (int i = 0; i < 10; ++i) policy.OnWaited(1'000'000);
  for (const int64_t window_ns : {2'000, 4'000, 8'000}) {
    policy.OnWaited(30'000);
    EXPECT_EQ(policy.WindowNs(0), window_ns);
  }
}

TEST(SpinPolicy, AfterALostYieldThereIsNoSpinningForFiftyTimesAsLong) {
  struct {
    int64_t lost_ns;
    int64_t rest_ns;
  } const cases[] = {{200'001, 10'000'050},
                     {3'000'000, 150'000'000},
                     {40'000'000, 2'000'000'000},
                     {int64_t{1} << 60, 2'000'000'000}};
  for (const auto& test : cases) {
    SCOPED_TRACE(test.lost_ns);
    SpinPolicy policy;
    const int64_t back_ns = 1'000'000 + test.lost_ns;
    policy.OnYielded(1'000'000, back_ns);
    EXPECT_EQ(policy.WindowNs(back_ns), 0);
    EXPECT_EQ(policy.WindowNs(back_ns + test.rest_ns - 1), 0);
    EXPECT_EQ(policy.WindowNs(back_ns + test.rest_ns), 20'000);
  }
}

TEST(SpinPolicy, AShortYieldIsNotLost) {
  SpinPolicy policy;
  policy.OnYielded(1'000'000, 1'000'000 + SpinPolicy::kLostYieldNs);
  EXPECT_EQ(policy.WindowNs(1'200'001), 20'000);
}

TEST(SpinBeforeSleep, ReturnsWhatItFinds) {
  SpinPolicy policy;
  int polls = 0;
  EXPECT_EQ(SpinBeforeSleep(policy, SpinClockNs(), [&] { return ++polls == 3 ? 7u : 0u; }), 7u);
  EXPECT_EQ(polls, 3);
}

TEST(SpinBeforeSleep, DoesNotLookWhenThePolicyWantsToSleep) {
  SpinPolicy policy;
  for (int i = 0; i < 10; ++i) policy.OnWaited(1'000'000);
  int polls = 0;
  EXPECT_EQ(SpinBeforeSleep(policy, SpinClockNs(), [&] { return ++polls, 0u; }), 0u);
  EXPECT_EQ(polls, 0);
}

TEST(SpinBeforeSleep, GivesUpWhenTheWindowIsOver) {
  SpinPolicy policy;
  const int64_t start_ns = SpinClockNs();
  EXPECT_EQ(SpinBeforeSleep(policy, start_ns, [] { return size_t{0}; }), 0u);
  EXPECT_GE(SpinClockNs() - start_ns, 20'000);
}

}  // namespace
}  // namespace rdmad::sdk
