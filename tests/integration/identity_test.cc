// Case 39: who is calling? Only the kernel's word counts. Needs root, to be several users.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/testbed.h"
#include "tests/support/file.h"
#include "tests/support/raw_client.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"

namespace rdmad::testing {
namespace {

constexpr uid_t kMember = 1;        // "daemon"
constexpr uid_t kOutsider = 65534;  // "nobody"
constexpr char kPolicy[] =
    "[policy]\nallow_users = [\"1\"]\nallow_groups = []\n[user_limits]\nmax_pds = 3\n";

class IdentityTest : public LoopbackTest {
 protected:
  void SetUp() override {
    if (::getuid() != 0) GTEST_SKIP() << "needs root";
    // Others cannot reach what Bazel has built.
    program_ = folder_.path() + "/other_user";
    std::filesystem::copy_file(Runfile("tests/integration/other_user"), program_);
    ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
    ASSERT_EQ(::chmod(program_.c_str(), 0755), 0);
    ASSERT_OK(StartDaemon(0, {.more_config = kPolicy}));
    const std::filesystem::path parent = std::filesystem::path(Daemon(0).run_dir()).parent_path();
    ASSERT_EQ(::chmod(parent.c_str(), 0755), 0);
    const absl::StatusOr<std::string> probe = Run(kMember, {"attach"});
    if (absl::IsInvalidArgument(probe.status())) GTEST_SKIP() << "there is only one user here";
  }

  absl::StatusOr<std::string> Run(uid_t uid, const std::vector<std::string>& arguments) {
    ProcessOptions options;
    options.uid = uid;
    std::vector<std::string> argv = {program_, Daemon(0).run_dir()};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    absl::StatusOr<ProgramResult> result = RunProgram(argv, options);
    if (!result.ok()) return result.status();
    return result->output;
  }

  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  const TempDir folder_;
  std::string program_;
};

TEST_F(IdentityTest, AnOutsiderCannotAttachAndIsLogged) {
  ASSERT_OK_AND_ASSIGN(const std::string output, Run(kOutsider, {"attach"}));
  EXPECT_TRUE(Has(output, "attach PERMISSION_DENIED")) << output;
  // The message says what would let them in, the log who it was.
  EXPECT_TRUE(Has(output, "[policy]")) << output;
  const std::string log = Daemon(0).Log();
  EXPECT_TRUE(Has(log, absl::StrCat("uid=", kOutsider))) << log;
  EXPECT_TRUE(Has(log, "pid=")) << log;
}

TEST_F(IdentityTest, AMemberAttachesAndSeesItsUsersSessionsAlone) {
  ASSERT_OK_AND_ASSIGN(Client root_app, AttachTo(Daemon(0)));
  ASSERT_OK_AND_ASSIGN(const std::string output, Run(kMember, {"attach"}));
  EXPECT_TRUE(Has(output, "attach OK")) << output;
  EXPECT_TRUE(Has(output, "privileged 0")) << output;
  EXPECT_TRUE(Has(output, absl::StrCat("sees ", kMember, " ", kMember, "\n"))) << output;
}

TEST_F(IdentityTest, RootSeesEverySession) {
  ASSERT_OK_AND_ASSIGN(const RawClient root, RawClient::Attach(Daemon(0).run_dir()));
  ASSERT_OK_AND_ASSIGN(Client other, AttachTo(Daemon(0)));
  v1::ListSessionsReply sessions;
  ASSERT_OK(root.Call(root.admin(), &v1::AdminService::Stub::ListSessions, {}, &sessions));
  EXPECT_EQ(sessions.sessions_size(), 2);
}

TEST_F(IdentityTest, AUsersSessionsShareTheUsersLimitsAndRootHasNone) {
  ASSERT_OK_AND_ASSIGN(const std::string output, Run(kMember, {"hoard"}));
  EXPECT_TRUE(Has(output, "made 3\nhoard RESOURCE_EXHAUSTED\n")) << output;
  EXPECT_TRUE(Has(output, absl::StrCat("limit=user_limits.max_pds value=3 in_use=3 asked=1 uid=",
                                       kMember, "; ")))
      << output;
  EXPECT_TRUE(Has(output, absl::StrCat("user ", kMember, " sessions 2 refused 1 pds 3 of 3\n")))
      << output;
  EXPECT_FALSE(Has(output, "user 0")) << output;

  ASSERT_OK_AND_ASSIGN(const RawClient root, RawClient::Attach(Daemon(0).run_dir()));
  for (int i = 0; i < 5; ++i) {
    v1::AllocPdReply pd;
    EXPECT_OK(root.Call(root.verbs(), &v1::VerbsService::Stub::AllocPd, {}, &pd));
  }
  v1::GetStatusReply status;
  ASSERT_OK(root.Call(root.admin(), &v1::AdminService::Stub::GetStatus, {}, &status));
  ASSERT_GE(status.users_size(), 1);
  EXPECT_EQ(status.users(0).uid(), 0u);
  EXPECT_FALSE(status.users(0).quotas(0).has_value());
}

TEST_F(IdentityTest, AStolenTokenIsOfNoUseToAnotherUser) {
  ASSERT_OK_AND_ASSIGN(RawClient victim, RawClient::Attach(Daemon(0).run_dir()));
  const std::string token = absl::BytesToHexString(victim.token());
  for (const uid_t thief : {kMember, kOutsider}) {
    ASSERT_OK_AND_ASSIGN(const std::string output, Run(thief, {"call", token}));
    EXPECT_FALSE(Has(output, "call OK")) << output;
  }
  ASSERT_OK_AND_ASSIGN(const std::string output, Run(kMember, {"call", token}));
  EXPECT_TRUE(Has(output, "call PERMISSION_DENIED")) << output;
  const std::string log = Daemon(0).Log();
  EXPECT_TRUE(Has(log, absl::StrCat("caller_uid=", kMember))) << log;
  EXPECT_FALSE(Has(log, token));
  // The session goes on.
  v1::GetSessionReply reply;
  EXPECT_OK(victim.Call(victim.session(), &v1::SessionService::Stub::GetSession, {}, &reply));
}

TEST_F(IdentityTest, TheSocketsOfAUsersOwnDaemonAreClosedToOthers) {
  // A daemon of the member's own, in a folder of its own.
  const TempDir folder;
  ASSERT_EQ(::chown(folder.path().c_str(), kMember, kMember), 0);
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  const std::string daemon_program = folder_.path() + "/rdmad";
  std::filesystem::copy_file(Runfile("daemon/rdmad"), daemon_program);
  ASSERT_EQ(::chmod(daemon_program.c_str(), 0755), 0);
  const std::string config = folder_.path() + "/config";
  ASSERT_TRUE(WriteFile(
      config,
      absl::StrCat("[metrics]\naddress = \"off\"\n[soft]\naddresses = [\"", Ipv4(1), "\"]\n")));
  ASSERT_EQ(::chmod(config.c_str(), 0644), 0);
  ProcessOptions options;
  options.uid = 1000;  // an account of a person; needs no name
  ASSERT_EQ(::chown(folder.path().c_str(), options.uid, options.uid), 0);
  options.output_file = folder_.path() + "/log";
  const std::string run_dir = folder.path() + "/run";
  ASSERT_OK_AND_ASSIGN(
      ChildProcess own,
      ChildProcess::Start({daemon_program, "--config", config, "--run-dir", run_dir}, options));
  ASSERT_TRUE(Eventually(absl::Seconds(10), [&] {
    struct stat info {};
    return ::stat((run_dir + "/rdmad.sock").c_str(), &info) == 0;
  })) << ReadFile(options.output_file);
  ProcessOptions other;
  other.uid = kMember;
  ASSERT_OK_AND_ASSIGN(const ProgramResult result,
                       RunProgram({program_, run_dir, "attach"}, other));
  EXPECT_TRUE(Has(result.output, "attach PERMISSION_DENIED")) << result.output;
  // Root may.
  AttachOptions attach;
  attach.run_dir = run_dir;
  EXPECT_OK(Client::Attach(attach));
}

}  // namespace
}  // namespace rdmad::testing
