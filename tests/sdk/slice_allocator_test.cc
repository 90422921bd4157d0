#include "client/sdk/slice_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace rdmad::sdk {
namespace {

TEST(SliceAllocator, SlicesAreAlignedAndApart) {
  SliceAllocator allocator(4096);
  const std::optional<size_t> a = allocator.Allocate(1);
  const std::optional<size_t> b = allocator.Allocate(65);
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_EQ(*a % 64, 0u);
  EXPECT_EQ(*b % 64, 0u);
  EXPECT_EQ(allocator.free_bytes(), 4096u - 64 - 128);
}

TEST(SliceAllocator, GivesAllOfItAndNoMore) {
  SliceAllocator allocator(1024);
  EXPECT_TRUE(allocator.Allocate(1024).has_value());
  EXPECT_FALSE(allocator.Allocate(1).has_value());
}

TEST(SliceAllocator, AbsurdSizesAreRefused) {
  SliceAllocator allocator(1024);
  EXPECT_FALSE(allocator.Allocate(SIZE_MAX).has_value());
  EXPECT_FALSE(allocator.Allocate(SIZE_MAX - 62).has_value());
  EXPECT_FALSE(allocator.Allocate(1025).has_value());
}

TEST(SliceAllocator, FreedSlicesMergeIntoOneAgain) {
  SliceAllocator allocator(64 * 100);
  std::vector<size_t> offsets;
  for (int i = 0; i < 100; ++i) offsets.push_back(*allocator.Allocate(64));
  // Every second one first, so that nothing has a free neighbour at first.
  for (int i = 0; i < 100; i += 2) allocator.Free(offsets[static_cast<size_t>(i)], 64);
  EXPECT_FALSE(allocator.Allocate(128).has_value());
  for (int i = 1; i < 100; i += 2) allocator.Free(offsets[static_cast<size_t>(i)], 64);
  EXPECT_EQ(allocator.LargestFree(), 6400u);
  EXPECT_TRUE(allocator.Allocate(6400).has_value());
}

TEST(SliceAllocator, RandomUseNeverOverlapsAndLosesNothing) {
  constexpr size_t kBytes = 1 << 20;
  constexpr uint32_t kSeed = 20240607;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  SliceAllocator allocator(kBytes);
  std::map<size_t, size_t> taken;  // offset -> asked
  for (int step = 0; step < 20000; ++step) {
    if (taken.empty() || random() % 5 < 3) {
      const size_t size = random() % 4 == 0 ? 1 + random() % 20000 : 64u << (random() % 6);
      const std::optional<size_t> offset = allocator.Allocate(size);
      if (!offset.has_value()) continue;
      const size_t end = *offset + SliceAllocator::Rounded(size);
      ASSERT_LE(end, kBytes);
      const auto next = taken.lower_bound(*offset);
      if (next != taken.end()) {
        ASSERT_LE(end, next->first);
      }
      if (next != taken.begin()) {
        const auto previous = std::prev(next);
        ASSERT_LE(previous->first + SliceAllocator::Rounded(previous->second), *offset);
      }
      taken.emplace(*offset, size);
    } else {
      auto victim = taken.begin();
      std::advance(victim, random() % taken.size());
      allocator.Free(victim->first, victim->second);
      taken.erase(victim);
    }
  }
  for (const auto& [offset, size] : taken) allocator.Free(offset, size);
  EXPECT_EQ(allocator.free_bytes(), kBytes);
  EXPECT_EQ(allocator.LargestFree(), kBytes);
}

}  // namespace
}  // namespace rdmad::sdk
