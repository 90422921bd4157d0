// Keys that several engines share: regions that are in all their tables, windows that are bound in
// one.
#include "daemon/device/soft/mr_keys.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "daemon/device/soft/mr_table.h"
#include "daemon/device/types.h"

namespace rdmad::soft {
namespace {

constexpr uint64_t kPd = 7;
constexpr uint64_t kQpOfA = kQpScopeBit | 1;
constexpr uint64_t kQpOfB = kQpScopeBit | 2;
constexpr uint64_t kIova = 0x1000;
constexpr uint32_t kRead = device::kAccessRemoteRead;

// Engines 0 and 1, each with a region of the same key, and with the same window.
class MrKeysTest : public ::testing::Test {
 protected:
  MrKeysTest() {
    a.ShareKeys(keys, 0);
    b.ShareKeys(keys, 1);
    region = keys->Reserve().value();
    const MrEntry entry{.host_addr = memory.data(),
                        .length_bytes = memory.size(),
                        .iova = kIova,
                        .pd_id = kPd,
                        .access = kRead | device::kAccessMwBind,
                        .key = region};
    a.Insert(entry);
    b.Insert(entry);
    window = keys->Reserve().value();
    keys->MakeWindow(window);
    a.InsertWindow(window, kPd);
    b.InsertWindow(window, kPd);
  }

  WindowBind Bind(uint32_t key) const {
    return {.key = key, .lkey = region, .iova = kIova, .length_bytes = 16, .access = kRead};
  }
  static bool Opens(const MrTable& table, uint32_t key, uint64_t qp) {
    return table.Translate(key, kPd + 1, kIova, 16, kRead, qp) != nullptr;
  }

  std::shared_ptr<MrKeys> keys = std::make_shared<MrKeys>(16);
  MrTable a{16};
  MrTable b{16};
  std::array<std::byte, 64> memory;
  uint32_t region;
  uint32_t window;
};

TEST_F(MrKeysTest, ARegionIsTheSameEverywhereAndGoesFromEachByItself) {
  for (const MrTable* table : {&a, &b}) {
    EXPECT_EQ(table->Translate(region, kPd, kIova + 3, 4, kRead), memory.data() + 3);
  }
  a.Remove(region);
  EXPECT_EQ(a.Translate(region, kPd, kIova, 4, kRead), nullptr);
  EXPECT_EQ(b.Translate(region, kPd, kIova, 4, kRead), memory.data());
}

TEST_F(MrKeysTest, AWindowOpensOnlyOnTheEngineThatBoundIt) {
  ASSERT_TRUE(a.BindWindow(Bind(window + 1), kPd, kQpOfA));
  EXPECT_TRUE(Opens(a, window + 1, kQpOfA));
  EXPECT_FALSE(Opens(b, window + 1, kQpOfA));
  EXPECT_FALSE(Opens(b, window + 1, kQpOfB));
}

TEST_F(MrKeysTest, AWindowIsBoundOnceOnWhicheverEngine) {
  ASSERT_TRUE(a.BindWindow(Bind(window + 1), kPd, kQpOfA));
  EXPECT_FALSE(b.BindWindow(Bind(window + 2), kPd, kQpOfB));
  EXPECT_FALSE(b.BindWindow({.key = window + 2}, kPd, kQpOfB)) << "nor freed by another";
  EXPECT_FALSE(b.InvalidateWindow(window + 1, kQpOfB));
  EXPECT_TRUE(Opens(a, window + 1, kQpOfA)) << "and stays what it was";
}

TEST_F(MrKeysTest, AWindowThatIsFreeAgainCanBeBoundByTheOtherEngineUnderAnotherKey) {
  ASSERT_TRUE(a.BindWindow(Bind(window + 1), kPd, kQpOfA));
  ASSERT_TRUE(a.InvalidateWindow(window + 1, kQpOfA));
  EXPECT_FALSE(b.BindWindow(Bind(window + 1), kPd, kQpOfB)) << "the key that was just taken back";
  ASSERT_TRUE(b.BindWindow(Bind(window + 2), kPd, kQpOfB));
  EXPECT_TRUE(Opens(b, window + 2, kQpOfB));
  EXPECT_FALSE(Opens(a, window + 1, kQpOfA));
  ASSERT_TRUE(b.BindWindow({.key = window + 3}, kPd, kQpOfB)) << "length 0 frees it";
  EXPECT_TRUE(a.BindWindow(Bind(window + 4), kPd, kQpOfA));
}

TEST_F(MrKeysTest, ABindThatFailsLeavesTheWindowToOthers) {
  WindowBind too_long = Bind(window + 1);
  too_long.length_bytes = memory.size() + 1;
  EXPECT_FALSE(a.BindWindow(too_long, kPd, kQpOfA));
  EXPECT_TRUE(b.BindWindow(Bind(window + 1), kPd, kQpOfB));
}

TEST_F(MrKeysTest, TheKeyThatGoesBackIsTheLastOne) {
  ASSERT_TRUE(b.BindWindow(Bind(window + 9), kPd, kQpOfB));
  a.RemoveWindow(window);
  b.RemoveWindow(window);
  EXPECT_EQ(keys->LastKeyOf(window), window + 9);
}

// For the thread sanitizer, and for the promise: one of two that try at the same time.
TEST_F(MrKeysTest, OfTwoEnginesThatBindAtOnceOneHasIt) {
  std::atomic<int> ready{0};
  std::array<int, 2> won{};
  const auto run = [&](int engine, MrTable& table, uint64_t qp) {
    for (uint32_t round = 0; round < 2000; ++round) {
      ready.fetch_add(1);
      while (ready.load() < static_cast<int>(2 * (round + 1))) std::this_thread::yield();
      // Keys of this engine alone: a bind fails only because the other one has it.
      const uint32_t key =
          (window & ~0xffu) | (2 * (round % 100) + 1 + static_cast<uint32_t>(engine));
      if (!table.BindWindow(Bind(key), kPd, qp)) continue;
      ++won[static_cast<size_t>(engine)];
      EXPECT_TRUE(Opens(table, key, qp));
      EXPECT_TRUE(table.InvalidateWindow(key, qp));
    }
  };
  std::thread other([&] { run(1, b, kQpOfB); });
  run(0, a, kQpOfA);
  other.join();
  EXPECT_GE(won[0] + won[1], 2000) << "who fails, fails for the other one that has it";
  EXPECT_TRUE(a.BindWindow(Bind((window & ~0xffu) | 250), kPd, kQpOfA)) << "free in the end";
}

}  // namespace
}  // namespace rdmad::soft
