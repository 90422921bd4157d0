#include "daemon/session/handle_table.h"

#include <gtest/gtest.h>

#include <set>

namespace rdmad::session {
namespace {

using Table = HandleTable<int, HandleKind::kQp>;

Handle Put(Table& table, int value) {
  return table.Insert(std::make_unique<int>(value)).value();
}

std::string Complaint(const Table& table, Handle handle) {
  return std::string(table.Get(handle).status().message());
}

TEST(HandleTable, FindsWhatWasInserted) {
  Table table;
  const Handle handle = Put(table, 7);
  ASSERT_NE(table.Find(handle), nullptr);
  EXPECT_EQ(*table.Find(handle), 7);
  EXPECT_EQ(table.count(), 1u);
}

TEST(HandleTable, NeverGivesOutZero) {
  Table table;
  EXPECT_NE(Put(table, 1), kNoHandle);
  EXPECT_EQ(table.Find(kNoHandle), nullptr);
}

TEST(HandleTable, StaleHandleDoesNotFindTheSlotsNextOwner) {
  Table table;
  const Handle old = Put(table, 1);
  ASSERT_NE(table.Remove(old), nullptr);
  const Handle fresh = Put(table, 2);
  ASSERT_EQ(HandleSlot(old), HandleSlot(fresh));
  EXPECT_EQ(table.Find(old), nullptr);
  EXPECT_EQ(*table.Find(fresh), 2);
}

TEST(HandleTable, RemoveOfAStaleHandleTouchesNothing) {
  Table table;
  const Handle old = Put(table, 1);
  table.Remove(old);
  const Handle fresh = Put(table, 2);
  EXPECT_EQ(table.Remove(old), nullptr);
  EXPECT_EQ(*table.Find(fresh), 2);
  EXPECT_EQ(table.count(), 1u);
}

TEST(HandleTable, ReusesTheSlotThatIsFreeForLongest) {
  Table table;
  const Handle a = Put(table, 1);
  const Handle b = Put(table, 2);
  table.Remove(a);
  table.Remove(b);
  EXPECT_EQ(HandleSlot(Put(table, 3)), HandleSlot(a));
  EXPECT_EQ(HandleSlot(Put(table, 4)), HandleSlot(b));
}

TEST(HandleTable, WornOutSlotIsNeverUsedAgain) {
  Table table;
  const Handle first = Put(table, 1);
  table.SetGenerationForTest(HandleSlot(first), UINT32_MAX);
  const Handle last = first | Handle{UINT32_MAX} << 32;
  ASSERT_NE(table.Remove(last), nullptr);
  EXPECT_NE(HandleSlot(Put(table, 2)), HandleSlot(first));
  EXPECT_EQ(table.Find(last), nullptr);
  EXPECT_NE(Complaint(table, last).find("destroyed before"), std::string::npos);
}

TEST(HandleTable, SaysWhatIsWrongWithAHandle) {
  Table table;
  const Handle gone = Put(table, 1);
  table.Remove(gone);
  HandleTable<int, HandleKind::kCq> others;
  const Handle cq = others.Insert(std::make_unique<int>(1)).value();

  EXPECT_EQ(table.Get(gone).status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(Complaint(table, gone).find("destroyed before"), std::string::npos);
  EXPECT_NE(Complaint(table, kNoHandle).find("no handle was given"), std::string::npos);
  EXPECT_NE(Complaint(table, cq).find("is of a cq"), std::string::npos);
  EXPECT_NE(Complaint(table, gone + 1).find("no such handle"), std::string::npos);
  // A generation that has not come yet.
  EXPECT_NE(Complaint(table, gone + (Handle{1} << 40)).find("no such handle"), std::string::npos);
  EXPECT_NE(Complaint(table, ~Handle{0}).find("is of a nothing"), std::string::npos);
}

TEST(HandleTable, VisitMayRemoveEverything) {
  Table table;
  for (int i = 0; i < 10; ++i) Put(table, i);
  std::set<int> seen;
  table.ForEach([&](Handle handle, int& value) {
    seen.insert(value);
    table.Remove(handle);
  });
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_EQ(table.count(), 0u);
}

}  // namespace
}  // namespace rdmad::session
