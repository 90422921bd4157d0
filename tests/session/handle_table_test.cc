#include "daemon/session/handle_table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "daemon/session/list_budget.h"

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

TEST(HandleTable, AVisitInPartsLooksAtFewSlotsAtATime) {
  Table table;
  std::vector<Handle> handles;
  for (int i = 0; i < 10'000; ++i) handles.push_back(Put(table, i));
  for (int i = 0; i < 9'999; ++i) table.Remove(handles[i]);  // slots without objects cost, too
  uint32_t slot = 0;
  std::vector<int> seen;
  for (int parts = 1;; ++parts) {
    const uint32_t before = slot;
    ListBudget budget;
    const bool all = table.ForEachFrom(&slot, &budget, [&](Handle, int& value) {
      budget.Entry();
      seen.push_back(value);
    });
    ASSERT_LE(slot - before, 2048u);
    if (all) break;
    ASSERT_LT(parts, 10);
  }
  EXPECT_EQ(seen, std::vector<int>{9'999});
}

TEST(HandleTable, AVisitInPartsSeesWhatStaysOnceWhateverComesAndGoes) {
  Table table;
  std::vector<Handle> stay;
  std::vector<Handle> go;
  for (int i = 0; i < 1000; ++i) (i % 3 == 0 ? go : stay).push_back(Put(table, i));
  std::map<Handle, int> seen;
  uint32_t slot = 0;
  bool all = false;
  for (int parts = 0; !all; ++parts) {
    ASSERT_LT(parts, 100);
    ListBudget budget;
    size_t entries = 0;
    all = table.ForEachFrom(&slot, &budget, [&](Handle handle, int&) {
      budget.Entry();
      ++seen[handle];
      ++entries;
    });
    EXPECT_LE(entries, ListBudget::kMostEntries);
    // Slots become free behind the visit and before it, and are used again.
    for (int i = 0; i < 40 && !go.empty(); ++i) {
      table.Remove(i % 2 == 0 ? go.front() : go.back());
      go.erase(i % 2 == 0 ? go.begin() : go.end() - 1);
      Put(table, -1);
    }
  }
  for (const Handle handle : stay) EXPECT_EQ(seen[handle], 1) << handle;
  for (const auto& [handle, times] : seen) EXPECT_EQ(times, 1) << handle;
}

}  // namespace
}  // namespace rdmad::session
