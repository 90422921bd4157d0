#include "daemon/control/reload.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rdmad::control {
namespace {

Config Different() {
  Config config;
  config.run_dir = "/other";
  config.log.level = "debug";
  config.metrics.address.reset();
  config.soft.addresses = {IpAddress::FromV4(127, 0, 0, 9)};
  config.engine.spin_us = 1;
  config.policy.allow_users = std::vector<std::string>{"*"};
  config.limits = {1, 1, 1};
  config.session.max_qps = 1;
  config.user.max_qps = 2;
  return config;
}

TEST(Reload, LiveKeysAreTaken) {
  const Config merged = LiveMerge(Config(), Different());
  EXPECT_EQ(merged.log.level, "debug");
  EXPECT_EQ(merged.policy, Different().policy);
  EXPECT_EQ(merged.limits.max_sessions, 1u);
  EXPECT_EQ(merged.session.max_qps, 1u);
  EXPECT_EQ(merged.user.max_qps, 2u);
}

TEST(Reload, OtherKeysStay) {
  const Config merged = LiveMerge(Config(), Different());
  EXPECT_EQ(merged.run_dir, Config().run_dir);
  EXPECT_EQ(merged.metrics, Config().metrics);
  EXPECT_EQ(merged.soft, Config().soft);
  EXPECT_EQ(merged.engine, Config().engine);
  EXPECT_EQ(merged.limits.max_total_pool_bytes, Config().limits.max_total_pool_bytes);
}

TEST(Reload, WhatNeedsARestartIsNamed) {
  EXPECT_EQ(NeedsRestart(Config(), Different()),
            (std::vector<std::string>{"run_dir", "metrics.address", "[soft]", "[engine]",
                                      "limits.max_total_pool_bytes"}));
}

TEST(Reload, NothingNeedsARestartWhenOnlyLiveKeysDiffer) {
  EXPECT_TRUE(NeedsRestart(Config(), LiveMerge(Config(), Different())).empty());
}

// Every difference is either live or named.
TEST(Reload, SameConfigurationIsTheSame) {
  EXPECT_EQ(LiveMerge(Different(), Different()), Different());
  EXPECT_TRUE(NeedsRestart(Different(), Different()).empty());
}

}  // namespace
}  // namespace rdmad::control
