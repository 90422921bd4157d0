#include "daemon/session/quota.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "daemon/session/user_quota.h"
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

TEST(UserQuota, BoundsTheSumOfItsSessions) {
  UserQuota user(1000, Small());
  Quota one(SessionLimits(), &user);
  Quota two(SessionLimits(), &user);
  const absl::StatusOr<Charge> first = one.Take("create_qp", Resource::kQps);
  absl::StatusOr<Charge> second = two.Take("create_qp", Resource::kQps);
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_EQ(std::string(one.Take("create_qp", Resource::kQps).status().message()),
            "create_qp: over what all sessions of the user together may hold: "
            "limit=user_limits.max_qps value=2 in_use=2 asked=1 uid=1000; end sessions of theirs, "
            "or raise it in rdmad.toml");
  EXPECT_EQ(one.in_use(Resource::kQps), 1u) << "what was refused is not charged";
  EXPECT_EQ(one.refusals(), 1u);
  EXPECT_EQ(user.refusals(), 1u);
  *second = Charge();
  EXPECT_EQ(user.in_use(Resource::kQps), 1u);
  EXPECT_OK(one.Take("create_qp", Resource::kQps));
}

TEST(UserQuota, ASessionsOwnLimitIsAskedFirst) {
  UserQuota user(1000, Small());
  SessionLimits less = Small();
  less.max_qps = 1;
  Quota quota(less, &user);
  const absl::StatusOr<Charge> held = quota.Take("create_qp", Resource::kQps);
  const absl::Status refused = quota.Take("create_qp", Resource::kQps).status();
  EXPECT_NE(std::string(refused.message()).find("the session's quota"), std::string::npos);
  EXPECT_EQ(user.in_use(Resource::kQps), 1u);
  EXPECT_EQ(user.refusals(), 0u);
}

TEST(UserQuota, ALowerLimitTakesNothingAway) {
  UserQuota user(1000, Small());
  Quota quota(SessionLimits(), &user);
  absl::StatusOr<Charge> one = quota.Take("create_qp", Resource::kQps);
  absl::StatusOr<Charge> two = quota.Take("create_qp", Resource::kQps);
  SessionLimits lower = Small();
  lower.max_qps = 1;
  user.SetLimits(lower);
  EXPECT_FALSE(quota.Take("create_qp", Resource::kQps).ok());
  *one = Charge();
  EXPECT_FALSE(quota.Take("create_qp", Resource::kQps).ok());
  *two = Charge();
  EXPECT_OK(quota.Take("create_qp", Resource::kQps));
}

TEST(UserQuota, WithoutLimitsItOnlyCounts) {
  UserQuota user(0, std::nullopt);
  Quota quota(SessionLimits(), &user);
  const absl::StatusOr<Charge> held =
      quota.Take("register_region", Resource::kRegionBytes, uint64_t{64} << 30);
  ASSERT_OK(held);
  EXPECT_EQ(user.in_use(Resource::kRegionBytes), uint64_t{64} << 30);
}

TEST(UserQuota, DefaultsAllowEachSessionItsOwn) {
  for (size_t i = 0; i < kResourceCount; ++i) {
    const auto resource = static_cast<Resource>(i);
    const uint64_t of_user = LimitOf(DefaultUserLimits(), resource);
    if (resource == Resource::kPoolBytes) continue;  // depends on the host
    EXPECT_GE(of_user, LimitOf(SessionLimits(), resource)) << LimitName(resource);
  }
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
