#include "daemon/control/list_cursor.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_testing.h"

namespace rdmad::control {
namespace {

TEST(ListCursor, ComesBackFromItsPage) {
  for (const ListCursor& cursor :
       {ListCursor{}, ListCursor{1, 0}, ListCursor{0x0102030405060708, 0xfffefdfc},
        ListCursor{UINT64_MAX, UINT32_MAX}}) {
    ASSERT_OK_AND_ASSIGN(const ListCursor again, ParsePage(ToPage(cursor)));
    EXPECT_EQ(again, cursor);
  }
}

TEST(ListCursor, NoPageIsTheBeginning) {
  ASSERT_OK_AND_ASSIGN(const ListCursor cursor, ParsePage(""));
  EXPECT_EQ(cursor, ListCursor());
}

TEST(ListCursor, BytesOfAnotherLengthAreNoPage) {
  const std::string page = ToPage({7, 8});
  for (const std::string& bytes :
       {page.substr(1), page + "x", std::string("x"), std::string(4000, 'x')}) {
    EXPECT_EQ(ParsePage(bytes).status().code(), absl::StatusCode::kInvalidArgument)
        << bytes.size();
  }
}

}  // namespace
}  // namespace rdmad::control
