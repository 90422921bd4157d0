#include "daemon/base/status_macros.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace rdmad {
namespace {

absl::Status Sequence(absl::Status first, bool* reached_end) {
  RD_RETURN_IF_ERROR(std::move(first));
  *reached_end = true;
  return absl::OkStatus();
}

absl::StatusOr<int> AddOne(absl::StatusOr<int> input) {
  RD_ASSIGN_OR_RETURN(const int value, std::move(input));
  return value + 1;
}

absl::StatusOr<std::unique_ptr<int>> MakePair(int first, int second) {
  RD_ASSIGN_OR_RETURN(auto left,
                      absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(first)));
  RD_ASSIGN_OR_RETURN(auto right,
                      absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(second)));
  *left += *right;
  return left;
}

TEST(ReturnIfError, OkGoesOn) {
  bool reached_end = false;
  EXPECT_TRUE(Sequence(absl::OkStatus(), &reached_end).ok());
  EXPECT_TRUE(reached_end);
}

TEST(ReturnIfError, ErrorIsReturnedUnchanged) {
  bool reached_end = false;
  const absl::Status error = absl::NotFoundError("open: path=x");
  EXPECT_EQ(Sequence(error, &reached_end), error);
  EXPECT_FALSE(reached_end);
}

TEST(ReturnIfError, StandsAloneAfterIfAndElse) {
  const auto pick = [](bool first) -> absl::Status {
    if (first)
      RD_RETURN_IF_ERROR(absl::AbortedError("first"));
    else
      RD_RETURN_IF_ERROR(absl::InternalError("second"));
    return absl::OkStatus();
  };
  EXPECT_EQ(pick(true), absl::AbortedError("first"));
  EXPECT_EQ(pick(false), absl::InternalError("second"));
}

TEST(AssignOrReturn, ValueIsAssigned) {
  EXPECT_EQ(*AddOne(41), 42);
}

TEST(AssignOrReturn, ErrorIsReturnedUnchanged) {
  const absl::Status error = absl::ResourceExhaustedError("limit=1");
  EXPECT_EQ(AddOne(error).status(), error);
}

TEST(AssignOrReturn, MoveOnlyValuesTwiceInOneScope) {
  const auto sum = MakePair(2, 3);
  ASSERT_TRUE(sum.ok());
  EXPECT_EQ(**sum, 5);
}

}  // namespace
}  // namespace rdmad
