#include "daemon/device/soft/send_window.h"

#include <gtest/gtest.h>

namespace rdmad::soft {
namespace {

constexpr uint32_t kMtu = 1024;
constexpr uint32_t kCost = kMtu + kPacketOverheadBytes;

SendWindow Fresh(uint32_t initial = 64 * kCost, uint32_t max = 1024 * kCost) {
  SendWindow window;
  window.Reset(initial, max, kMtu);
  return window;
}

TEST(SendWindow, DoublesPerRoundTripUntilTheFirstCongestion) {
  SendWindow window = Fresh();
  window.OnAcked(window.limit(), window.limit());
  EXPECT_EQ(window.limit(), 128 * kCost);
}

TEST(SendWindow, CongestionTakesThreeTenthsAndThenItGrowsByTwoPacketsPerRoundTrip) {
  SendWindow window = Fresh(100 * kCost);
  window.OnCongestion();
  EXPECT_EQ(window.limit(), 70 * kCost);
  for (int i = 0; i < 70; ++i) window.OnAcked(kCost, window.limit());
  EXPECT_NEAR(window.limit(), 72 * kCost, kCost / 2);
}

TEST(SendWindow, NeverFallsBelowFourPackets) {
  SendWindow window = Fresh();
  for (int i = 0; i < 100; ++i) window.OnCongestion();
  EXPECT_EQ(window.limit(), 4 * kCost);
  EXPECT_EQ(Fresh(1, 1).limit(), 4 * kCost);
}

TEST(SendWindow, NeverExceedsItsMaximum) {
  SendWindow window = Fresh();
  for (int i = 0; i < 100; ++i) window.OnAcked(window.limit(), window.limit());
  EXPECT_EQ(window.limit(), 1024 * kCost);
}

TEST(SendWindow, UnusedWindowDoesNotGrow) {
  SendWindow window = Fresh();
  for (int i = 0; i < 100; ++i) window.OnAcked(kCost, kCost);
  EXPECT_EQ(window.limit(), 64 * kCost);
}

TEST(SendWindow, SilenceAllowsOnePacketUntilTheNextAnswer) {
  SendWindow window = Fresh();
  window.OnSilence();
  EXPECT_EQ(window.limit(), kCost);
  window.OnAcked(kCost, kCost);
  EXPECT_EQ(window.limit(), 64 * kCost);
}

}  // namespace
}  // namespace rdmad::soft
