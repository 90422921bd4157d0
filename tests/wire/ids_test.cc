#include "daemon/wire/ids.h"

#include <type_traits>
#include <unordered_set>

#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

TEST(WireId, IsCutToItsWidth) {
  EXPECT_EQ(Qpn(0x12345678).value(), 0x345678u);
  EXPECT_EQ(PKey(0x1ffff).value(), 0xffffu);
  EXPECT_EQ(Rkey(0xffffffff).value(), 0xffffffffu);
}

TEST(WireId, KindsDoNotMix) {
  static_assert(!std::is_convertible_v<uint32_t, Qpn>);
  static_assert(!std::is_convertible_v<Qpn, Rkey>);
  static_assert(!std::is_constructible_v<Rkey, Qpn>);
  static_assert(!std::is_convertible_v<Psn, Msn>);
}

TEST(WireId, Hashes) {
  std::unordered_set<Qpn> set = {Qpn(1), Qpn(2), Qpn(1)};
  EXPECT_EQ(set.size(), 2u);
}

TEST(PKey, MatchNeedsOnePartitionAndAFullMember) {
  const struct {
    uint32_t a, b;
    bool match;
  } kCases[] = {
      {0xffff, 0xffff, true},  {0xffff, 0x7fff, true}, {0x7fff, 0x7fff, false},
      {0x8001, 0x8002, false}, {0x8001, 0x0001, true}, {0x8000, 0x8000, false},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(PKeysMatch(PKey(c.a), PKey(c.b)), c.match) << std::hex << c.a << " " << c.b;
    EXPECT_EQ(PKeysMatch(PKey(c.b), PKey(c.a)), c.match);
  }
}

TEST(Psn, Wraps) {
  EXPECT_EQ(Psn(0xffffff) + 1, Psn(0));
  EXPECT_EQ(Psn(0xfffffe) + 5, Psn(3));
  EXPECT_EQ(Psn(0) - 1, Psn(0xffffff));
  Psn psn(0xffffff);
  EXPECT_EQ(++psn, Psn(0));
  psn += 0x1000001;
  EXPECT_EQ(psn, Psn(1));
}

TEST(Psn, SignedDistance) {
  const struct {
    uint32_t a, b;
    int32_t distance;
  } kCases[] = {
      {5, 5, 0},
      {6, 5, 1},
      {5, 6, -1},
      {0, 0xffffff, 1},
      {0xffffff, 0, -1},
      {0x7fffff, 0, 0x7fffff},
      {0x800000, 0, -0x800000},
      {0, 0x800000, -0x800000},
      {0x800001, 0, -0x7fffff},
      {3, 0xfffffe, 5},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(Psn(c.a) - Psn(c.b), c.distance) << std::hex << c.a << " - " << c.b;
    EXPECT_EQ(Psn(c.b) + static_cast<uint32_t>(c.distance), Psn(c.a));
    EXPECT_EQ(IsBefore(Psn(c.a), Psn(c.b)), c.distance < 0);
    EXPECT_EQ(IsAfter(Psn(c.a), Psn(c.b)), c.distance > 0);
  }
}

TEST(Psn, ForwardDistanceIsNeverNegative) {
  EXPECT_EQ(ForwardDistance(Psn(5), Psn(5)), 0u);
  EXPECT_EQ(ForwardDistance(Psn(0xffffff), Psn(1)), 2u);
  EXPECT_EQ(ForwardDistance(Psn(1), Psn(0)), 0xffffffu);
}

}  // namespace
}  // namespace rdmad::wire
