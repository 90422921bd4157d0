#include "daemon/engine/engine_idle.h"

#include <gtest/gtest.h>

namespace rdmad::engine {
namespace {

using device::TimeNs;

constexpr IdleOptions kOptions = {.max_spin_ns = 40'000,
                                  .min_spin_ns = 2'000,
                                  .start_spin_ns = 10'000,
                                  .pause_ns = 1'000,
                                  .lost_yield_ns = 200'000,
                                  .rest_factor = 20,
                                  .max_rest_ns = 8'000'000};

// Work at `now`, then nothing until `gap_ns` later, when there is work again.
void Gap(IdlePolicy& policy, TimeNs& now, TimeNs gap_ns) {
  policy.AfterTurn(now, true);
  policy.AfterTurn(now, false);
  now += gap_ns;
  policy.AfterTurn(now, true);
}

TEST(IdlePolicy, WorkMeansGoOn) {
  IdlePolicy policy(kOptions);
  for (TimeNs now = 0; now < 1'000'000; now += 1000) {
    EXPECT_EQ(policy.AfterTurn(now, true), IdleAction::kContinue);
  }
}

TEST(IdlePolicy, ASpinPausesThenYieldsThenSleeps) {
  IdlePolicy policy(kOptions);
  policy.AfterTurn(0, true);
  struct {
    TimeNs now;
    IdleAction action;
  } const steps[] = {{100, IdleAction::kContinue},   {1'099, IdleAction::kContinue},
                     {1'100, IdleAction::kYield},    {10'099, IdleAction::kYield},
                     {10'100, IdleAction::kSleep},   {50'000, IdleAction::kSleep},
                     {9'000'000, IdleAction::kSleep}};
  for (const auto& step : steps) {
    EXPECT_EQ(policy.AfterTurn(step.now, false), step.action) << step.now;
  }
}

TEST(IdlePolicy, WorkStartsTheSpinAnew) {
  IdlePolicy policy(kOptions);
  policy.AfterTurn(0, false);
  policy.AfterTurn(9'000, true);
  EXPECT_EQ(policy.AfterTurn(9'500, false), IdleAction::kContinue);
  EXPECT_EQ(policy.AfterTurn(20'000, false), IdleAction::kYield);
}

TEST(IdlePolicy, AFruitfulSpinGrowsUpToTheMaximum) {
  IdlePolicy policy(kOptions);
  TimeNs now = 0;
  for (const TimeNs window : {20'000, 40'000, 40'000}) {
    Gap(policy, now, 5'000);
    EXPECT_EQ(policy.window_ns(), window);
  }
}

TEST(IdlePolicy, ASleepThatASpinCouldHaveSavedGrowsItToo) {
  IdlePolicy policy(kOptions);
  TimeNs now = 0;
  Gap(policy, now, 39'000);  // longer than the window, shorter than the maximum
  EXPECT_EQ(policy.window_ns(), 20'000);
}

TEST(IdlePolicy, SpinningInVainShrinksToNothing) {
  IdlePolicy policy(kOptions);
  TimeNs now = 0;
  for (const TimeNs window : {5'000, 2'500, 0, 0}) {
    Gap(policy, now, 1'000'000);
    EXPECT_EQ(policy.window_ns(), window);
  }
  policy.AfterTurn(now, true);
  EXPECT_EQ(policy.AfterTurn(now, false), IdleAction::kSleep) << "at once";
}

TEST(IdlePolicy, ItComesBackFromNothing) {
  IdlePolicy policy(kOptions);
  TimeNs now = 0;
  for (int i = 0; i < 10; ++i) Gap(policy, now, 1'000'000);
  for (const TimeNs window : {2'000, 4'000, 8'000}) {
    Gap(policy, now, 10'000);
    EXPECT_EQ(policy.window_ns(), window);
  }
}

// Idle from `now` on until it yields, and back from the yield `yield_ns` later.
TimeNs Yield(IdlePolicy& policy, TimeNs now, TimeNs yield_ns) {
  policy.AfterTurn(now, true);
  policy.AfterTurn(now, false);
  EXPECT_EQ(policy.AfterTurn(now + kOptions.pause_ns, false), IdleAction::kYield);
  return now + kOptions.pause_ns + yield_ns;
}

TEST(IdlePolicy, AfterALostYieldItSleepsAtOnceForManyTimesAsLong) {
  struct {
    TimeNs lost_ns;
    TimeNs rest_ns;
  } const cases[] = {{200'001, 4'000'020}, {300'000, 6'000'000}, {90'000'000, 8'000'000}};
  for (const auto& test : cases) {
    for (const bool worked : {false, true}) {
      SCOPED_TRACE(::testing::Message() << test.lost_ns << " " << worked);
      IdlePolicy policy(kOptions);
      const TimeNs back = Yield(policy, 0, test.lost_ns);
      policy.AfterTurn(back, worked);
      const auto idle_at = [&](TimeNs now) {
        policy.AfterTurn(now, true);
        return policy.AfterTurn(now, false);
      };
      EXPECT_EQ(idle_at(back + 1), IdleAction::kSleep);
      EXPECT_EQ(idle_at(back + test.rest_ns - 1), IdleAction::kSleep);
      EXPECT_EQ(idle_at(back + test.rest_ns), IdleAction::kContinue);
    }
  }
}

TEST(IdlePolicy, AShortYieldIsNotLost) {
  IdlePolicy policy(kOptions);
  const TimeNs back = Yield(policy, 0, 200'000);
  policy.AfterTurn(back, true);
  EXPECT_EQ(policy.AfterTurn(back, false), IdleAction::kContinue);
}

TEST(IdlePolicy, ALongTurnOrSleepIsNoLostYield) {
  IdlePolicy policy(kOptions);
  policy.AfterTurn(0, true);
  EXPECT_EQ(policy.AfterTurn(0, false), IdleAction::kContinue);
  EXPECT_EQ(policy.AfterTurn(900'000, false), IdleAction::kSleep);
  policy.AfterTurn(8'000'000, true);
  EXPECT_EQ(policy.AfterTurn(8'000'000, false), IdleAction::kContinue);
}

TEST(IdlePolicy, WithoutSpinningItSleepsAtOnce) {
  IdlePolicy policy({.max_spin_ns = 0, .min_spin_ns = 2'000, .start_spin_ns = 10'000});
  policy.AfterTurn(0, true);
  EXPECT_EQ(policy.AfterTurn(1, false), IdleAction::kSleep);
}

}  // namespace
}  // namespace rdmad::engine
