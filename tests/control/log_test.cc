#include "daemon/control/log.h"

#include <gtest/gtest.h>

namespace rdmad::control {
namespace {

TEST(LogLimiter, LetsABurstThroughAndThenOnePerInterval) {
  LogLimiter limiter(3, 1000);
  int64_t now = 5'000'000;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.Allow(now));
  EXPECT_FALSE(limiter.Allow(now));
  EXPECT_FALSE(limiter.Allow(now + 999));
  EXPECT_TRUE(limiter.Allow(now + 1000));
  EXPECT_FALSE(limiter.Allow(now + 1000));
}

TEST(LogLimiter, CountsWhatItHeldBack) {
  LogLimiter limiter(1, 1000);
  EXPECT_TRUE(limiter.Allow(1'000'000));
  EXPECT_EQ(limiter.suppressed(), 0u);
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(limiter.Allow(1'000'001));
  EXPECT_TRUE(limiter.Allow(1'001'000));
  EXPECT_EQ(limiter.suppressed(), 7u);
}

TEST(LogLimiter, LongSilenceGivesNoMoreThanTheBurst) {
  LogLimiter limiter(2, 1000);
  int allowed = 0;
  for (int i = 0; i < 100; ++i) allowed += limiter.Allow(int64_t{1} << 60) ? 1 : 0;
  EXPECT_EQ(allowed, 2);
}

TEST(Printable, ReplacesWhatATerminalWouldObey) {
  EXPECT_EQ(Printable("a\x1b[31mb\nc\x7f\xc3\xa9"), "a?[31mb?c???");
}

TEST(Printable, Cuts) {
  EXPECT_EQ(Printable("abcdef", 3), "abc");
}

TEST(Log, UnknownRoomStillLogs) {
  Log("no-such-room").debug("nothing");
}

TEST(Log, UnknownRoomStillLogsOnceLoggingIsSetUp) {
  InitLogging("info", false);
  EXPECT_EQ(Log("no-such-room").name(), "rdmad");
  EXPECT_EQ(Log("control").name(), "control");
}

}  // namespace
}  // namespace rdmad::control
