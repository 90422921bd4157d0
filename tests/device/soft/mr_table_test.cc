#include "daemon/device/soft/mr_table.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/types.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

constexpr uint64_t kPd = 7;
constexpr uint32_t kRead = device::kAccessRemoteRead;
constexpr uint32_t kWrite = device::kAccessRemoteWrite;

class MrTableTest : public testing::Test {
 protected:
  uint32_t Insert(uint64_t iova, uint32_t access = kRead) {
    const uint32_t key = table.keys().Reserve().value();
    table.Insert({memory.data(), memory.size(), iova, kPd, access, key});
    return key;
  }
  std::array<std::byte, 4096> memory;
  MrTable table{4096};
};

TEST_F(MrTableTest, FindsExactlyTheBytesOfTheRegion) {
  struct Case {
    uint64_t iova;
    uint64_t length;
    int64_t offset;  // expected; -1: null
  };
  constexpr uint64_t kBase = 0x10000;
  const uint32_t key = Insert(kBase);
  for (const Case& c :
       {Case{kBase, 4096, 0}, Case{kBase, 0, 0}, Case{kBase + 4095, 1, 4095},
        Case{kBase + 4096, 0, 4096}, Case{kBase + 4096, 1, -1}, Case{kBase + 1, 4096, -1},
        Case{kBase - 1, 1, -1}, Case{kBase - 1, 2, -1}, Case{kBase + 10, UINT64_MAX, -1},
        Case{kBase + 10, UINT64_MAX - 9, -1}, Case{UINT64_MAX, 2, -1}, Case{0, UINT64_MAX, -1}}) {
    SCOPED_TRACE(testing::Message() << c.iova << " + " << c.length);
    std::byte* const found = table.Translate(key, kPd, c.iova, c.length, kRead);
    EXPECT_EQ(found, c.offset < 0 ? nullptr : memory.data() + c.offset);
  }
}

TEST_F(MrTableTest, RegionAtTheEndOfTheAddressSpace) {
  const uint32_t key = Insert(UINT64_MAX - 4095);
  EXPECT_EQ(table.Translate(key, kPd, UINT64_MAX, 1, kRead), memory.data() + 4095);
  EXPECT_EQ(table.Translate(key, kPd, UINT64_MAX, 2, kRead), nullptr);
  EXPECT_EQ(table.Translate(key, kPd, 0, 1, kRead), nullptr);
}

TEST_F(MrTableTest, KeyPdAndRightsMustAllHold) {
  const uint32_t key = Insert(0, kRead | kWrite);
  EXPECT_NE(table.Translate(key, kPd, 0, 1, kRead | kWrite), nullptr);
  EXPECT_NE(table.Translate(key, kPd, 0, 1, 0), nullptr);
  EXPECT_EQ(table.Translate(key, kPd + 1, 0, 1, kRead), nullptr);
  EXPECT_EQ(table.Translate(key, kPd, 0, 1, device::kAccessRemoteAtomic | kRead), nullptr);
  EXPECT_EQ(table.Translate(key ^ 1, kPd, 0, 1, kRead), nullptr);
  EXPECT_EQ(table.Translate(key + 256, kPd, 0, 1, kRead), nullptr);
  EXPECT_EQ(table.Translate(0, kPd, 0, 1, 0), nullptr);
  EXPECT_EQ(table.Translate(0xffffffff, kPd, 0, 1, 0), nullptr);
}

TEST_F(MrTableTest, ReservedKeyIsNothingUntilInsertedAndAfterRemoval) {
  const uint32_t reserved = table.keys().Reserve().value();
  EXPECT_EQ(table.Translate(reserved, kPd, 0, 0, 0), nullptr);
  const uint32_t key = Insert(0);
  table.Remove(key);
  EXPECT_EQ(table.Translate(key, kPd, 0, 1, kRead), nullptr);
}

TEST_F(MrTableTest, KeysAreNotRepeatedForManyRegistrations) {
  std::set<uint32_t> seen;
  for (int i = 0; i < 200'000; ++i) {
    const uint32_t key = table.keys().Reserve().value();
    ASSERT_TRUE(seen.insert(key).second) << "key " << key << " again after " << i;
    table.keys().Release(key);
  }
  uint32_t highest = 0;
  for (const uint32_t key : seen) highest = std::max(highest, key >> 8);
  EXPECT_LT(highest, 1100u) << "one region at a time keeps the table small";
}

TEST(MrTable, FullTableSaysSoAndRecovers) {
  MrTable table(3);
  std::vector<uint32_t> keys;
  for (int i = 0; i < 3; ++i) keys.push_back(table.keys().Reserve().value());
  const auto none = table.keys().Reserve();
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(none.status()));
  EXPECT_EQ(std::string(none.status().message()), "no key left for a region or window, device_max=3");
  table.keys().Release(keys[1]);
  const uint32_t again = table.keys().Reserve().value();
  EXPECT_EQ(again >> 8, keys[1] >> 8);
  EXPECT_NE(again, keys[1]);
}

TEST(SoftMr, RefusesBadRegions) {
  Bed bed;
  std::array<std::byte, 16> memory;
  const auto create = [&](uint64_t iova, uint64_t length, uint32_t access) {
    return SoftMr::Create(*bed.a.transport, bed.a.pd, {memory.data(), length, iova, access})
        .status();
  };
  EXPECT_TRUE(create(0, 16, kRead).ok());
  EXPECT_TRUE(create(UINT64_MAX - 15, 16, kRead).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(create(UINT64_MAX - 14, 16, kRead)));
  EXPECT_TRUE(absl::IsInvalidArgument(create(0, UINT64_MAX, kRead)));
  EXPECT_TRUE(absl::IsInvalidArgument(create(0, 0, kRead)));
  EXPECT_TRUE(absl::IsInvalidArgument(create(0, 16, kWrite)));
  EXPECT_TRUE(absl::IsInvalidArgument(create(0, 16, device::kAccessRemoteAtomic)));
  EXPECT_TRUE(create(0, 16, kWrite | device::kAccessLocalWrite).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(create(0, 16, 1 << 20)));
}

}  // namespace
}  // namespace rdmad::soft
