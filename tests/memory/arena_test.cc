#include "daemon/memory/arena.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/memory/queue_layout.h"
#include "proto/shm/completion_queue.h"
#include "proto/shm/work_queue.h"

namespace rdmad::memory {
namespace {

ArenaAllocation AllocateOrDie(ArenaSet& set, uint64_t bytes) {
  const absl::StatusOr<ArenaAllocation> allocation = set.Allocate(bytes);
  EXPECT_TRUE(allocation.ok()) << allocation.status();
  return *allocation;
}

TEST(ArenaSet, AnEmptySetCostsNothing) {
  const ArenaSet set;
  EXPECT_EQ(set.arena_count(), 0u);
  EXPECT_EQ(set.reserved_bytes(), 0u);
}

TEST(ArenaSet, AllocationsAreAlignedBehindTheHeader) {
  ArenaSet set;
  for (const uint64_t bytes : {1u, 127u, 128u, 129u, 8320u}) {
    const ArenaAllocation allocation = AllocateOrDie(set, bytes);
    EXPECT_EQ(allocation.offset % kArenaAlignBytes, 0u) << bytes;
    EXPECT_GE(allocation.offset, sizeof(shm::SegmentHeader)) << bytes;
    EXPECT_GE(allocation.bytes, bytes);
  }
}

TEST(ArenaSet, IdsAreNeverReused) {
  ArenaSetOptions options;
  options.first_arena_bytes = options.max_arena_bytes = 64 << 10;
  ArenaSet set(options);
  const ArenaAllocation first = AllocateOrDie(set, 60 << 10);
  const ArenaAllocation second = AllocateOrDie(set, 60 << 10);
  EXPECT_EQ(first.arena_id, 1u);
  EXPECT_EQ(second.arena_id, 2u);
  set.Free(first);
  set.Free(second);
  // The same arenas serve again: a client that has them mapped needs no other descriptor.
  const ArenaAllocation again = AllocateOrDie(set, 60 << 10);
  EXPECT_EQ(again.arena_id, 1u);
  EXPECT_EQ(again.arena_fd, first.arena_fd);
}

TEST(ArenaSet, TheArenaHasItsHeader) {
  ArenaSet set;
  const ArenaAllocation allocation = AllocateOrDie(set, 1000);
  const auto& header =
      *reinterpret_cast<const shm::SegmentHeader*>(allocation.addr - allocation.offset);
  EXPECT_TRUE(shm::IsValidHeader(header, shm::SegmentKind::kArena, allocation.arena_bytes));
  EXPECT_EQ(allocation.arena_bytes, 256u * 1024);
}

TEST(ArenaSet, ArenasDoubleUpToTheLargest) {
  ArenaSetOptions options;
  options.first_arena_bytes = 64 << 10;
  options.max_arena_bytes = 256 << 10;
  ArenaSet set(options);
  std::map<uint64_t, uint64_t> sizes;
  for (int i = 0; i < 24; ++i) {
    const ArenaAllocation allocation = AllocateOrDie(set, 40 << 10);
    sizes[allocation.arena_id] = allocation.arena_bytes;
  }
  const std::map<uint64_t, uint64_t> expected = {{1, 64 << 10},  {2, 128 << 10}, {3, 256 << 10},
                                                 {4, 256 << 10}, {5, 256 << 10}, {6, 256 << 10}};
  EXPECT_EQ(sizes, expected);
}

TEST(ArenaSet, AHugeRequestGetsAnArenaOfItsOwn) {
  ArenaSet set;
  const ArenaAllocation huge = AllocateOrDie(set, 20 << 20);
  EXPECT_GE(huge.arena_bytes, 20u << 20);
  EXPECT_LT(huge.arena_bytes, (20u << 20) + 8192);
  const ArenaAllocation small = AllocateOrDie(set, 40 << 10);
  EXPECT_EQ(small.arena_bytes, 256u * 1024) << "the doubling is not disturbed";
}

TEST(ArenaSet, TheLargestRequestOfOrdinaryArenasFits) {
  ArenaSet set;
  EXPECT_EQ(AllocateOrDie(set, (16 << 20) - 128).arena_bytes, 16u << 20);
}

TEST(ArenaSet, MemoryFollowsUseInSmallSteps) {
  ArenaSet set;
  std::vector<ArenaAllocation> queues;
  for (int i = 0; i < 100; ++i) queues.push_back(AllocateOrDie(set, 8320));
  EXPECT_GE(set.reserved_bytes(), set.used_bytes());
  // A step and the lost rest of each arena at most.
  EXPECT_LE(set.reserved_bytes(), set.used_bytes() + set.arena_count() * (16384 + 8320));
  struct stat info {};
  ASSERT_EQ(fstat(queues.back().arena_fd, &info), 0);
  EXPECT_LT(static_cast<uint64_t>(info.st_blocks) * 512, queues.back().arena_bytes);
}

TEST(ArenaSet, AnEmptyArenaGivesItsMemoryBack) {
  ArenaSet set;
  const ArenaAllocation first = AllocateOrDie(set, 100000);
  const ArenaAllocation second = AllocateOrDie(set, 100000);
  set.Free(first);
  EXPECT_GT(set.reserved_bytes(), 100000u);
  set.Free(second);
  EXPECT_EQ(set.reserved_bytes(), 4096u) << "the header's page";
  EXPECT_EQ(set.arena_count(), 1u);
}

TEST(ArenaSet, WhatIsFreedIsReusedAndZeroed) {
  ArenaSet set;
  const ArenaAllocation keep = AllocateOrDie(set, 1024);
  const ArenaAllocation first = AllocateOrDie(set, 4096);
  std::memset(first.addr, 0xff, first.bytes);
  set.Free(first);
  std::memset(first.addr, 0xee, first.bytes);  // the client can still write there
  const ArenaAllocation again = AllocateOrDie(set, 4096);
  EXPECT_EQ(again.arena_id, first.arena_id);
  EXPECT_EQ(again.offset, first.offset);
  EXPECT_TRUE(std::all_of(again.addr, again.addr + again.bytes,
                          [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_NE(keep.offset, again.offset);
}

TEST(ArenaSet, TheLimitNamesLimitUseAndRequest) {
  ArenaSetOptions options;
  options.limit_bytes = 100 << 10;
  ArenaSet set(options);
  AllocateOrDie(set, 64 << 10);
  const absl::Status status = set.Allocate(40 << 10).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  const std::string text = status.ToString();
  for (const char* part : {"max_arena_bytes=102400", "current_bytes=81920", "asked_bytes=40960"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(ArenaSet, ARefusedRequestLeavesNoArenaBehind) {
  ArenaSetOptions options;
  options.limit_bytes = 20 << 10;
  ArenaSet set(options);
  EXPECT_TRUE(absl::IsResourceExhausted(set.Allocate(19 << 10).status()));
  EXPECT_EQ(set.arena_count(), 0u);
  EXPECT_EQ(set.reserved_bytes(), 0u);
}

TEST(ArenaSet, FreedMemoryCountsNoMoreAgainstTheLimit) {
  ArenaSetOptions options;
  options.limit_bytes = 100 << 10;
  ArenaSet set(options);
  for (int i = 0; i < 50; ++i) set.Free(AllocateOrDie(set, 80 << 10));
}

TEST(ArenaSet, AbsurdSizesAreRefused) {
  ArenaSet set;
  EXPECT_TRUE(absl::IsInvalidArgument(set.Allocate(0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(set.Allocate(UINT64_MAX).status()));
}

TEST(ArenaSet, TenThousandQueuePairsNeedFewDescriptors) {
  ArenaSetOptions options;
  options.limit_bytes = 1ull << 30;
  ArenaSet set(options);
  const uint64_t queue_bytes = shm::WorkQueueBytes(WorkQueueSlots(16, 4, 64));
  for (int i = 0; i < 10000; ++i) {
    for (const uint64_t bytes : {queue_bytes, queue_bytes, shm::CqBytes(CqEntries(32))}) {
      const absl::StatusOr<ArenaAllocation> allocation = set.Allocate(bytes);
      ASSERT_TRUE(allocation.ok()) << allocation.status();
    }
  }
  EXPECT_LE(set.arena_count(), 12u);
  EXPECT_LT(set.reserved_bytes() / 10000, 7168u);
}

// Random sizes and lifetimes: nothing overlaps, nothing leaks, everything merges again.
TEST(ArenaSet, RandomUseNeverOverlapsAndEndsEmpty) {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    ArenaSetOptions options;
    options.first_arena_bytes = 64 << 10;
    options.max_arena_bytes = 512 << 10;
    ArenaSet set(options);
    std::vector<ArenaAllocation> live;
    std::map<std::byte*, uint64_t> ranges;
    uint64_t live_bytes = 0;
    for (int step = 0; step < 3000; ++step) {
      if (!live.empty() && random() % 100 < 48) {
        const size_t victim = random() % live.size();
        ranges.erase(live[victim].addr);
        live_bytes -= live[victim].bytes;
        set.Free(live[victim]);
        live[victim] = live.back();
        live.pop_back();
      } else {
        const ArenaAllocation allocation = AllocateOrDie(set, 1 + random() % 20000);
        const auto next = ranges.lower_bound(allocation.addr);
        if (next != ranges.end()) {
          ASSERT_LE(allocation.addr + allocation.bytes, next->first);
        }
        if (next != ranges.begin()) {
          ASSERT_LE(std::prev(next)->first + std::prev(next)->second, allocation.addr);
        }
        std::memset(allocation.addr, 0xff, allocation.bytes);
        ranges[allocation.addr] = allocation.bytes;
        live_bytes += allocation.bytes;
        live.push_back(allocation);
      }
      ASSERT_EQ(set.used_bytes(), live_bytes);
    }
    for (const ArenaAllocation& allocation : live) set.Free(allocation);
    EXPECT_EQ(set.used_bytes(), 0u);
    EXPECT_EQ(set.reserved_bytes(), set.arena_count() * 4096);
    EXPECT_EQ(AllocateOrDie(set, (64 << 10) - 128).arena_id, 1u) << "merged to one free extent";
  }
}

TEST(ArenaSetDeathTest, FreeingTwiceIsABugOfOurs) {
  ArenaSet set;
  AllocateOrDie(set, 4096);
  const ArenaAllocation allocation = AllocateOrDie(set, 1024);
  set.Free(allocation);
  EXPECT_DEATH(set.Free(allocation), "nothing is freed twice");
}

}  // namespace
}  // namespace rdmad::memory
