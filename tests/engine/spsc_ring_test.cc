#include "daemon/engine/spsc_ring.h"

#include <gtest/gtest.h>

#include <thread>

namespace rdmad::engine {
namespace {

TEST(SpscRing, KeepsOrderThroughManyWraps) {
  SpscRing<uint64_t> ring(4);
  uint64_t out = 0;
  for (uint64_t i = 0; i < 1000; i += 2) {
    ASSERT_TRUE(ring.Push(i));
    ASSERT_TRUE(ring.Push(i + 1));
    ASSERT_TRUE(ring.Pop(out));
    EXPECT_EQ(out, i);
    ASSERT_TRUE(ring.Pop(out));
    EXPECT_EQ(out, i + 1);
  }
}

TEST(SpscRing, FullRefusesAndChangesNothing) {
  SpscRing<int> ring(2);
  EXPECT_EQ(ring.FreeSlots(), 2u);
  EXPECT_TRUE(ring.Push(1));
  EXPECT_TRUE(ring.Push(2));
  EXPECT_FALSE(ring.Push(3));
  EXPECT_EQ(ring.FreeSlots(), 0u);
  int out = 0;
  EXPECT_TRUE(ring.Pop(out));
  EXPECT_EQ(out, 1);
  EXPECT_TRUE(ring.Push(3));
}

TEST(SpscRing, EmptyHasNothingToPop) {
  SpscRing<int> ring(1);
  int out = 7;
  EXPECT_TRUE(ring.Empty());
  EXPECT_FALSE(ring.Pop(out));
  EXPECT_EQ(out, 7);
  EXPECT_TRUE(ring.Push(1));
  EXPECT_FALSE(ring.Empty());
}

TEST(SpscRing, TwoThreadsLoseNothing) {
  struct Item {
    uint64_t number;
    uint64_t copies[4];
  };
  constexpr uint64_t kCount = 300000;
  SpscRing<Item> ring(64);
  std::thread producer([&ring] {
    for (uint64_t i = 0; i < kCount;) {
      if (ring.Push({i, {i, i, i, i}})) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  uint64_t expected = 0;
  bool whole = true;
  while (expected < kCount) {
    Item item;
    if (!ring.Pop(item)) {
      std::this_thread::yield();
      continue;
    }
    for (const uint64_t copy : item.copies) whole = whole && copy == expected;
    whole = whole && item.number == expected;
    ++expected;
  }
  producer.join();
  EXPECT_TRUE(whole);
}

TEST(SpscRingDeathTest, CapacityIsAPowerOfTwo) {
  EXPECT_DEATH(SpscRing<int>(3), "has_single_bit");
}

}  // namespace
}  // namespace rdmad::engine
