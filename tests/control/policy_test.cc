#include "daemon/control/policy.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "daemon/base/unique_fd.h"
#include "tests/support/status_testing.h"

namespace rdmad::control {
namespace {

constexpr uid_t kDaemonUid = 150;
constexpr uid_t kAlice = 4001;
constexpr gid_t kTeam = 5001;

Peer PeerWith(uid_t uid, gid_t gid = 9999, std::vector<gid_t> groups = {}) {
  Peer peer;
  peer.uid = uid;
  peer.gid = gid;
  peer.groups = std::move(groups);
  return peer;
}

Policy Make(const PolicyConfig& config, bool system = true) {
  absl::StatusOr<Policy> policy = Policy::Create(config, {kDaemonUid, system});
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

TEST(Policy, RootAndTheDaemonsUserAlwaysMay) {
  PolicyConfig nobody;
  nobody.allow_users.emplace();
  nobody.allow_groups.emplace();
  const Policy policy = Make(nobody);
  EXPECT_OK(policy.MayAttach(PeerWith(0)));
  EXPECT_OK(policy.MayAttach(PeerWith(kDaemonUid)));
  EXPECT_EQ(policy.MayAttach(PeerWith(kAlice)).code(), absl::StatusCode::kPermissionDenied);
}

TEST(Policy, UsersAreNamedOrNumbered) {
  PolicyConfig config;
  config.allow_users = std::vector<std::string>{"4001", "daemon"};
  const Policy policy = Make(config);
  EXPECT_OK(policy.MayAttach(PeerWith(kAlice)));
  EXPECT_OK(policy.MayAttach(PeerWith(1)));  // daemon
  EXPECT_FALSE(policy.MayAttach(PeerWith(4002)).ok());
}

TEST(Policy, StarIsEverybody) {
  PolicyConfig config;
  config.allow_users = std::vector<std::string>{"*"};
  EXPECT_OK(Make(config).MayAttach(PeerWith(kAlice)));
}

TEST(Policy, PrimaryAndSupplementaryGroupsCount) {
  PolicyConfig config;
  config.allow_groups = std::vector<std::string>{"5001"};
  const Policy policy = Make(config);
  EXPECT_OK(policy.MayAttach(PeerWith(kAlice, kTeam)));
  EXPECT_OK(policy.MayAttach(PeerWith(kAlice, 9999, {7, kTeam})));
  EXPECT_FALSE(policy.MayAttach(PeerWith(kAlice, 9999, {7})).ok());
}

TEST(Policy, UsersOwnDaemonServesNobodyElseByDefault) {
  const Policy policy = Make(PolicyConfig(), /*system=*/false);
  EXPECT_OK(policy.MayAttach(PeerWith(kDaemonUid)));
  EXPECT_FALSE(policy.MayAttach(PeerWith(kAlice, kTeam)).ok());
}

TEST(Policy, UnknownNamesAreErrors) {
  PolicyConfig users;
  users.allow_users = std::vector<std::string>{"nobody-has-this-name"};
  const absl::Status no_user = Policy::Create(users, {0, true}).status();
  EXPECT_EQ(no_user.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(no_user.message()).find("nobody-has-this-name"), std::string::npos);
  PolicyConfig groups;
  groups.allow_groups = std::vector<std::string>{"nobody-has-this-name"};
  EXPECT_FALSE(Policy::Create(groups, {0, true}).ok());
}

TEST(Policy, RefusalSaysWhoAndWhatToDo) {
  const std::string message(Make(PolicyConfig(), false).MayAttach(PeerWith(kAlice)).message());
  EXPECT_NE(message.find("uid 4001"), std::string::npos) << message;
  EXPECT_NE(message.find("[policy]"), std::string::npos) << message;
}

TEST(Policy, PrivilegedAreRootAndTheDaemonsUser) {
  PolicyConfig everybody;
  everybody.allow_users = std::vector<std::string>{"*"};
  const Policy policy = Make(everybody);
  EXPECT_TRUE(policy.IsPrivileged(0));
  EXPECT_TRUE(policy.IsPrivileged(kDaemonUid));
  EXPECT_FALSE(policy.IsPrivileged(kAlice));
}

TEST(PeerOf, IsThisProcessOverASocketpair) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  const UniqueFd a(ends[0]);
  const UniqueFd b(ends[1]);
  const absl::StatusOr<Peer> peer = PeerOf(a.get());
  ASSERT_OK(peer);
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, geteuid());
  EXPECT_EQ(peer->gid, getegid());
  EXPECT_FALSE(CommOf(*peer).empty());
}

}  // namespace
}  // namespace rdmad::control
