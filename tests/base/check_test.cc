#include "daemon/base/check.h"

#include <string>

#include "gtest/gtest.h"

namespace rdmad {
namespace {

TEST(Check, PassesOverATrueExpressionEvaluatingItOnce) {
  int evaluated = 0;
  RD_CHECK(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckDeathTest, PrintsFileLineAndExpression) {
  EXPECT_DEATH(RD_CHECK(1 + 1 == 3),
               "tests/base/check_test.cc:[0-9]+: check failed: 1 \\+ 1 == 3\n");
}

TEST(CheckDeathTest, PrintsTheMessageAfterTheExpression) {
  EXPECT_DEATH(RD_CHECK(false, "rings are whole"), "check failed: false: rings are whole\n");
}

TEST(CheckDeathTest, ExpressionLongerThanTheBufferStillAborts) {
  const std::string expression(5000, 'x');
  EXPECT_DEATH(CheckFailed("file.cc", 1, expression.c_str()), "file.cc:1: check failed: xxxx");
}

TEST(CheckDeathTest, WorksAsAnExpression) {
  const auto checked = [](bool ok) { return RD_CHECK(ok), 7; };
  EXPECT_EQ(checked(true), 7);
  EXPECT_DEATH(checked(false), "check failed: ok");
}

#ifdef NDEBUG
TEST(Dcheck, IsNotEvaluatedInReleaseBuilds) {
  int evaluated = 0;
  RD_DCHECK(++evaluated == 100, "never looked at");
  EXPECT_EQ(evaluated, 0);
}
#else
TEST(DcheckDeathTest, AbortsInWorkingBuilds) {
  EXPECT_DEATH(RD_DCHECK(false, "hot"), "check failed: false: hot");
}
#endif

}  // namespace
}  // namespace rdmad
