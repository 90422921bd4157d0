#include "daemon/device/soft/qpn_allocator.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace rdmad::soft {
namespace {

constexpr device::TimeNs kSecond = 1'000'000'000;

TEST(QpnAllocator, LowBitsNameTheEngine) {
  QpnAllocator allocator(1);
  for (uint32_t engine = 0; engine < QpnAllocator::kEngines; ++engine) {
    EXPECT_EQ(*allocator.Allocate(engine, 0) % QpnAllocator::kEngines, engine);
  }
}

TEST(QpnAllocator, SeedDecidesWhereItStarts) {
  EXPECT_NE(*QpnAllocator(1).Allocate(0, 0), *QpnAllocator(2).Allocate(0, 0));
  EXPECT_EQ(*QpnAllocator(1).Allocate(0, 0), *QpnAllocator(1).Allocate(0, 0));
}

TEST(QpnAllocator, FreedNumberDoesNotComeBackBeforeAllOthers) {
  QpnAllocator allocator(3);
  const uint32_t first = *allocator.Allocate(0, 0);
  allocator.Free(first, 0);
  for (int i = 0; i < 1000; ++i) {
    const uint32_t qpn = *allocator.Allocate(0, 100 * kSecond);
    ASSERT_NE(qpn, first);
    allocator.Free(qpn, 100 * kSecond);
  }
}

// All numbers of the two engines that have reserved ones: 0 and 0xffffff (engines 0 and 15), 1
// (engine 1).
TEST(QpnAllocator, GivesOutEveryNumberOnceButTheReserved) {
  for (const uint32_t engine : {0u, 1u, 15u}) {
    QpnAllocator allocator(4);
    std::vector<bool> seen(1 << 24);
    for (uint32_t i = 0; i < QpnAllocator::kNumbersPerEngine - 1; ++i) {
      const auto qpn = allocator.Allocate(engine, 0);
      ASSERT_TRUE(qpn.ok()) << i;
      ASSERT_TRUE(*qpn > 1 && *qpn < 0xffffff) << *qpn;
      ASSERT_FALSE(seen[*qpn]);
      seen[*qpn] = true;
    }
    EXPECT_EQ(allocator.Allocate(engine, 0).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(QpnAllocator, QuarantineEndsAfterFourSeconds) {
  QpnAllocator allocator(5);
  std::vector<uint32_t> all;
  for (auto qpn = allocator.Allocate(2, 0); qpn.ok(); qpn = allocator.Allocate(2, 0)) {
    all.push_back(*qpn);
  }
  allocator.Free(all[7], kSecond);
  EXPECT_FALSE(allocator.Allocate(2, 5 * kSecond - 1).ok());
  const auto qpn = allocator.Allocate(2, 5 * kSecond);
  ASSERT_TRUE(qpn.ok());
  EXPECT_EQ(*qpn, all[7]);
}

TEST(QpnAllocator, CountsWhatIsInUse) {
  QpnAllocator allocator(6);
  const uint32_t a = *allocator.Allocate(0, 0);
  *allocator.Allocate(1, 0);
  EXPECT_EQ(allocator.in_use(), 2u);
  allocator.Free(a, 0);
  EXPECT_EQ(allocator.in_use(), 1u);
}

}  // namespace
}  // namespace rdmad::soft
