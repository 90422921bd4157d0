#include "daemon/session/quota.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_testing.h"

namespace rdmad::session {
namespace {

SessionLimits Small() {
  SessionLimits limits;
  limits.max_qps = 2;
  limits.max_pool_bytes = 1000;
  return limits;
}

TEST(Quota, GivesUpToTheLimitAndNotMore) {
  Quota quota(Small());
  const absl::StatusOr<Charge> one = quota.Take("create_qp", Resource::kQps);
  const absl::StatusOr<Charge> two = quota.Take("create_qp", Resource::kQps);
  ASSERT_OK(one);
  ASSERT_OK(two);
  EXPECT_EQ(quota.Take("create_qp", Resource::kQps).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(quota.in_use(Resource::kQps), 2u);
  EXPECT_EQ(quota.refusals(), 1u);
}

TEST(Quota, RefusalNamesLimitValueAndUse) {
  Quota quota(Small());
  const absl::StatusOr<Charge> held = quota.Take("create_pool", Resource::kPoolBytes, 600);
  ASSERT_OK(held);
  EXPECT_EQ(std::string(quota.Take("create_pool", Resource::kPoolBytes, 500).status().message()),
            "create_pool: over the session's quota: limit=max_pool_bytes value=1000 in_use=600 "
            "asked=500");
}

TEST(Quota, ChargeComesBackWithItsOwner) {
  Quota quota(Small());
  { const absl::StatusOr<Charge> held = quota.Take("create_pool", Resource::kPoolBytes, 1000); }
  EXPECT_EQ(quota.in_use(Resource::kPoolBytes), 0u);
  EXPECT_OK(quota.Take("create_pool", Resource::kPoolBytes, 1000));
}

TEST(Quota, MovedChargeIsGivenBackOnce) {
  Quota quota(Small());
  Charge first = quota.Take("create_qp", Resource::kQps).value();
  Charge second = std::move(first);
  first = Charge();
  EXPECT_EQ(quota.in_use(Resource::kQps), 1u);
  second = Charge();
  EXPECT_EQ(quota.in_use(Resource::kQps), 0u);
}

TEST(Quota, AmountThatWouldWrapIsRefused) {
  Quota quota(Small());
  const absl::StatusOr<Charge> held = quota.Take("create_pool", Resource::kPoolBytes, 1);
  ASSERT_OK(held);
  EXPECT_FALSE(quota.Take("create_pool", Resource::kPoolBytes, UINT64_MAX).ok());
  EXPECT_EQ(quota.in_use(Resource::kPoolBytes), 1u);
}

TEST(HostBudget, BoundsTheSumOfAllSessions) {
  HostBudget budget(100);
  absl::StatusOr<HostBudget::Hold> one = budget.Take("create_pool", 60);
  ASSERT_OK(one);
  const absl::StatusOr<HostBudget::Hold> two = budget.Take("create_pool", 60);
  EXPECT_EQ(
      std::string(two.status().message()),
      "create_pool: over what all sessions together may hold: limit=max_total_pool_bytes value=100 "
      "in_use=60 asked=60");
  *one = HostBudget::Hold();
  EXPECT_EQ(budget.in_use_bytes(), 0u);
}

}  // namespace
}  // namespace rdmad::session
