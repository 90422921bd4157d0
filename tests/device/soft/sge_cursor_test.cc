#include "daemon/device/soft/sge_cursor.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

namespace rdmad::soft {
namespace {

constexpr uint64_t kPd = 3;
constexpr uint64_t kIova = 1 << 20;

class SgeCursorTest : public ::testing::Test {
 protected:
  SgeCursorTest() : key(table.keys().Reserve().value()) {
    table.Insert({memory.data(), memory.size(), kIova, kPd, device::kAccessLocalWrite, key});
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7);
  }
  device::Sge At(uint64_t offset, uint32_t bytes) const { return {kIova + offset, bytes, key}; }

  MrTable table{16};
  const uint32_t key;
  std::array<std::byte, 1000> memory;
};

TEST_F(SgeCursorTest, WalksRunByRunAndSkipsEmptyEntries) {
  const device::Sge sges[] = {At(0, 0), At(100, 10), At(0, 0), At(200, 5), At(0, 0)};
  const SgeList list{sges, kPd, 0, false};
  SgeCursor cursor;
  auto run = cursor.Next(list, table, 4);
  EXPECT_EQ(run.data(), memory.data() + 100);
  EXPECT_EQ(run.size(), 4u);
  run = cursor.Next(list, table, 100);
  EXPECT_EQ(run.data(), memory.data() + 104);
  EXPECT_EQ(run.size(), 6u);
  run = cursor.Next(list, table, 100);
  EXPECT_EQ(run.data(), memory.data() + 200);
  EXPECT_EQ(run.size(), 5u);
  EXPECT_TRUE(cursor.Next(list, table, 1).empty());
}

TEST_F(SgeCursorTest, SeeksToAnyByte) {
  const device::Sge sges[] = {At(100, 10), At(0, 0), At(200, 5)};
  const SgeList list{sges, kPd, 0, false};
  for (uint64_t offset = 0; offset < 15; ++offset) {
    SgeCursor cursor;
    cursor.Seek(list, offset);
    const auto run = cursor.Next(list, table, 1);
    ASSERT_EQ(run.size(), 1u);
    EXPECT_EQ(run.data(), memory.data() + (offset < 10 ? 100 + offset : 190 + offset));
  }
  SgeCursor cursor;
  cursor.Seek(list, 15);
  EXPECT_TRUE(cursor.Next(list, table, 1).empty());
}

TEST_F(SgeCursorTest, KeyIsCheckedForEveryRun) {
  const device::Sge sges[] = {At(0, 100)};
  const SgeList list{sges, kPd, 0, false};
  SgeCursor cursor;
  EXPECT_FALSE(cursor.Next(list, table, 10).empty());
  table.Remove(key);
  EXPECT_TRUE(cursor.Next(list, table, 10).empty());
}

TEST_F(SgeCursorTest, CopyTellsWhichSideFailed) {
  const device::Sge good[] = {At(0, 10)};
  const device::Sge bad[] = {{kIova, 10, key ^ 1}};
  const SgeList good_list{good, kPd, 0, false};
  const SgeList bad_list{bad, kPd, 0, false};
  SgeCursor a, b;
  EXPECT_EQ(CopyBetween(bad_list, a, good_list, b, 10, false, table), CopyResult::kSourceError);
  a = b = {};
  EXPECT_EQ(CopyBetween(good_list, a, bad_list, b, 10, false, table), CopyResult::kTargetError);
  a = b = {};
  EXPECT_EQ(CopyBetween(good_list, a, good_list, b, 11, false, table), CopyResult::kSourceError);
}

TEST_F(SgeCursorTest, CopiesBetweenAnyTwoListsInAnySlices) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto cut = [&](uint64_t base) {
      std::vector<device::Sge> sges;
      for (uint32_t left = 400, at = 0; left > 0;) {
        const auto bytes = std::min<uint32_t>(left, static_cast<uint32_t>(random() % 90));
        sges.push_back(At(base + at, bytes));
        at += bytes;
        left -= bytes;
      }
      return sges;
    };
    const auto from = cut(0);
    const auto to = cut(500);
    const SgeList source{from, kPd, 0, false};
    const SgeList target{to, kPd, device::kAccessLocalWrite, false};
    for (size_t i = 0; i < 400; ++i) memory[i] = static_cast<std::byte>(random());
    SgeCursor a, b;
    for (uint32_t left = 400; left > 0;) {
      const auto bytes = std::min<uint32_t>(left, 1 + static_cast<uint32_t>(random() % 150));
      left -= bytes;
      ASSERT_EQ(CopyBetween(source, a, target, b, bytes, left == 0, table), CopyResult::kOk);
    }
    EXPECT_EQ(std::memcmp(memory.data(), memory.data() + 500, 400), 0);
  }
}

TEST(CopyLastByteLast, CopiesAllEvenIfTheAreasOverlap) {
  for (const int shift : {-3, -1, 0, 1, 3}) {
    std::array<std::byte, 64> memory;
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i);
    CopyLastByteLast(memory.data() + 20 + shift, memory.data() + 20, 10);
    for (size_t i = 0; i < 10; ++i) {
      EXPECT_EQ(memory[20 + static_cast<size_t>(shift) + i], static_cast<std::byte>(20 + i));
    }
  }
}

}  // namespace
}  // namespace rdmad::soft
