#include "daemon/wire/cm/cm_fields.h"

#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(CmTimeout, IsFourMicrosecondsTimesAPowerOfTwo) {
  EXPECT_EQ(CmTimeout(0), nanoseconds(4096));
  EXPECT_EQ(CmTimeout(14), nanoseconds(67'108'864));
  EXPECT_EQ(CmTimeout(20), nanoseconds(4'294'967'296));
  EXPECT_EQ(CmTimeout(31), nanoseconds(8'796'093'022'208));
  EXPECT_EQ(CmTimeout(32), CmTimeout(0));  // five bits
}

TEST(CmTimeout, CodeIsTheSmallestThatIsLongEnough) {
  const struct {
    nanoseconds timeout;
    uint8_t code;
  } kCases[] = {
      {nanoseconds(-1), 0},   {nanoseconds(0), 0},    {nanoseconds(4096), 0},
      {nanoseconds(4097), 1}, {milliseconds(67), 14}, {milliseconds(68), 15},
      {hours(2), 31},         {hours(100), 31},
  };
  for (const auto& c : kCases) EXPECT_EQ(CmTimeoutCode(c.timeout), c.code) << c.timeout.count();
}

}  // namespace
}  // namespace rdmad::wire
