#include "daemon/device/soft/gid_table.h"

#include "gtest/gtest.h"

namespace rdmad::soft {
namespace {

SourceAddress Source(uint8_t last, device::Mtu mtu = device::Mtu::k1024) {
  return {IpAddress::FromV4(10, 0, 0, last), mtu};
}

TEST(GidTable, IndexOfTheOthersStaysWhenOneGoes) {
  GidTable table;
  EXPECT_EQ(table.Add(Source(1)), 0u);
  EXPECT_EQ(table.Add(Source(2)), 1u);
  EXPECT_EQ(table.Add(Source(3)), 2u);
  table.Remove(1);
  SourceAddress out;
  EXPECT_FALSE(table.Lookup(1, &out));
  ASSERT_TRUE(table.Lookup(2, &out));
  EXPECT_EQ(out.address, Source(3).address);
  EXPECT_EQ(table.List().size(), 2u);
  EXPECT_EQ(table.Find(Source(3).address), 2u);
  EXPECT_EQ(table.Find(Source(2).address), std::nullopt);
}

TEST(GidTable, FreedIndexIsUsedAgain) {
  GidTable table;
  table.Add(Source(1));
  table.Add(Source(2));
  table.Remove(0);
  EXPECT_EQ(table.Add(Source(9)), 0u);
}

TEST(GidTable, AnAddressThatComesBackGetsItsIndexBack) {
  GidTable table;
  table.Add(Source(1));
  table.Add(Source(2));
  table.Remove(0);
  table.Remove(1);
  EXPECT_EQ(table.Add(Source(2, device::Mtu::k4096)), 1u);
  EXPECT_EQ(table.Add(Source(1)), 0u);
}

TEST(GidTable, AnIndexInUseIsNotGivenToAnotherAddress) {
  GidTable table;
  table.Add(Source(1));
  {
    GidUse use(table);
    SourceAddress out;
    ASSERT_TRUE(use.Take(0, &out));
    EXPECT_EQ(out.address, Source(1).address);
    table.Remove(0);
    EXPECT_EQ(table.Add(Source(9)), 1u);
    EXPECT_EQ(table.Add(Source(1)), 0u) << "its own address may have it";
    table.Remove(0);
  }
  EXPECT_EQ(table.Add(Source(8)), 0u);
}

TEST(GidTable, AUserUsesOneIndexAtATime) {
  GidTable table;
  table.Add(Source(1));
  table.Add(Source(2));
  GidUse use(table);
  SourceAddress out;
  ASSERT_TRUE(use.Take(0, &out));
  ASSERT_TRUE(use.Take(1, &out));
  EXPECT_FALSE(use.Take(7, &out));
  EXPECT_FALSE(use.Take(GidTable::kCapacity, &out));
  table.Remove(0);
  table.Remove(1);
  EXPECT_EQ(table.Add(Source(9)), 0u);
  EXPECT_EQ(table.Add(Source(8)), 2u) << "1 is still in use";
}

TEST(GidTable, UpdateChangesTheMtuInPlace) {
  GidTable table;
  table.Add(Source(1));
  table.Update(0, Source(1, device::Mtu::k4096));
  SourceAddress out;
  ASSERT_TRUE(table.Lookup(0, &out));
  EXPECT_EQ(out.max_mtu, device::Mtu::k4096);
}

TEST(GidTable, FullTableSaysSo) {
  GidTable table;
  for (uint32_t i = 0; i < GidTable::kCapacity; ++i)
    ASSERT_EQ(table.Add(Source(static_cast<uint8_t>(i))), i);
  EXPECT_EQ(table.Add(Source(1)), std::nullopt);
}

TEST(GidTable, IndexOutOfRangeIsNotInUse) {
  GidTable table;
  SourceAddress out;
  EXPECT_FALSE(table.Lookup(GidTable::kCapacity, &out));
  EXPECT_FALSE(table.Lookup(0xffffffff, &out));
}

}  // namespace
}  // namespace rdmad::soft
