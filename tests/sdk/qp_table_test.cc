#include "client/sdk/qp_table.h"

#include <gtest/gtest.h>

#include <set>

namespace rdmad::sdk {
namespace {

// The table never looks into what it points to.
QueuePairState* Fake(uintptr_t number) { return reinterpret_cast<QueuePairState*>(number); }

TEST(QpTable, FindsWhatWasSet) {
  QpTable table;
  const uint32_t a = table.Reserve();
  const uint32_t b = table.Reserve();
  ASSERT_NE(a, b);
  table.Set(a, Fake(16));
  EXPECT_EQ(table.Find(a), Fake(16));
  EXPECT_EQ(table.Find(b), nullptr);
}

TEST(QpTable, CookieZeroIsNobody) {
  QpTable table;
  EXPECT_EQ(table.Find(0), nullptr);
  EXPECT_NE(table.Reserve(), 0u);
  EXPECT_EQ(table.Find(0), nullptr);
}

TEST(QpTable, OldCookieDoesNotFindTheSlotsNextOwner) {
  QpTable table;
  const uint32_t old_cookie = table.Reserve();
  table.Set(old_cookie, Fake(16));
  table.Remove(old_cookie);
  const uint32_t new_cookie = table.Reserve();
  table.Set(new_cookie, Fake(32));
  EXPECT_EQ(old_cookie & 0xfffff, new_cookie & 0xfffff);
  EXPECT_EQ(table.Find(old_cookie), nullptr);
  EXPECT_EQ(table.Find(new_cookie), Fake(32));
}

TEST(QpTable, HoldsManyAcrossChunks) {
  QpTable table;
  std::set<uint32_t> cookies;
  for (uintptr_t i = 1; i <= 5000; ++i) {
    const uint32_t cookie = table.Reserve();
    table.Set(cookie, Fake(i * 16));
    cookies.insert(cookie);
  }
  EXPECT_EQ(cookies.size(), 5000u);
  for (const uint32_t cookie : cookies) EXPECT_NE(table.Find(cookie), nullptr);
}

TEST(QpTable, NumbersNeverGivenOutFindNobody) {
  QpTable table;
  table.Set(table.Reserve(), Fake(16));
  EXPECT_EQ(table.Find(0xfffff), nullptr);
  EXPECT_EQ(table.Find(0xffffffff), nullptr);
}

}  // namespace
}  // namespace rdmad::sdk
