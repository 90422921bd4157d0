#include "daemon/control/run_dir.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>

#include "tests/support/file.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"

namespace rdmad::control {
namespace {

using absl::StatusCode;

bool Mentions(const absl::Status& status, const std::string& words) {
  return std::string(status.message()).find(words) != std::string::npos;
}

DaemonIdentity Me(bool system) {
  return {geteuid(), system};
}

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

bool Exists(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0;
}

sockaddr_un Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return address;
}

// A socket bound to `path`; without listen() nobody answers on it.
UniqueFd Bound(const std::string& path, int type) {
  UniqueFd fd(socket(AF_UNIX, type, 0));
  const sockaddr_un address = Address(path);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

bool CanConnect(const std::string& path, int type) {
  const UniqueFd fd(socket(AF_UNIX, type, 0));
  const sockaddr_un address = Address(path);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// ---- where it is

struct Choice {
  const char* flag;
  const char* config;
  RunDirEnvironment environment;
  uid_t uid;
  const char* chosen;  // null: an error
};

TEST(ChooseRunDir, TakesTheFirstThatIsSet) {
  const Choice choices[] = {
      {"/flag", "/config", {"/env", "/systemd", "/xdg"}, 0, "/flag"},
      {"", "/config", {"/env", "/systemd", "/xdg"}, 0, "/env"},
      {"", "/config", {"", "/systemd", "/xdg"}, 0, "/config"},
      {"", "", {"", "/systemd", "/xdg"}, 0, "/systemd"},
      {"", "", {"", "/systemd:/other", ""}, 1000, "/systemd"},
      {"", "", {"", "", "/xdg"}, 0, "/run/rdmad"},
      {"", "", {"", "", "/xdg"}, 1000, "/xdg/rdmad"},
      {"", "", {"", "", ""}, 1000, nullptr},
      {"relative", "", {"", "", ""}, 0, nullptr},
      {"/slashes//", "", {"", "", ""}, 0, "/slashes"},
  };
  for (const Choice& choice : choices) {
    const absl::StatusOr<std::string> path =
        ChooseRunDir(choice.flag, choice.config, choice.environment, {choice.uid, true});
    if (choice.chosen == nullptr) {
      EXPECT_EQ(path.status().code(), StatusCode::kInvalidArgument);
    } else {
      ASSERT_OK(path);
      EXPECT_EQ(*path, choice.chosen);
    }
  }
}

TEST(ChooseRunDir, LongestPathThatASocketAllows) {
  const size_t most = 107 - sizeof("/attach.sock") + 1;
  EXPECT_OK(ChooseRunDir("/" + std::string(most - 1, 'a'), "", {}, Me(true)));
  const auto over = ChooseRunDir("/" + std::string(most, 'a'), "", {}, Me(true));
  EXPECT_EQ(over.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Mentions(over.status(), "shorter")) << over.status();
}

// ---- whose it is

TEST(RunDir, IsMadeWithTheModeOfItsKind) {
  const testing::TempDir temp;
  const mode_t old = umask(077);
  ASSERT_OK(RunDir::Open(temp.path() + "/system", Me(true)));
  umask(old);
  ASSERT_OK(RunDir::Open(temp.path() + "/user", Me(false)));
  EXPECT_EQ(ModeOf(temp.path() + "/system"), 0755u);
  EXPECT_EQ(ModeOf(temp.path() + "/user"), 0700u);
}

TEST(RunDir, SecondDaemonIsToldThePidAndTouchesNothing) {
  const testing::TempDir temp;
  absl::StatusOr<RunDir> first = RunDir::Open(temp.path(), Me(true));
  ASSERT_OK(first);
  ASSERT_OK_AND_ASSIGN(const UniqueFd listener, first->Listen(kRpcSocketName, SOCK_STREAM, 1));
  const absl::StatusOr<RunDir> second = RunDir::Open(temp.path(), Me(true));
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(Mentions(second.status(), "pid " + std::to_string(getpid()))) << second.status();
  EXPECT_TRUE(CanConnect(temp.path() + "/rdmad.sock", SOCK_STREAM));
}

TEST(RunDir, LockGoesWithItsOwner) {
  const testing::TempDir temp;
  { ASSERT_OK(RunDir::Open(temp.path(), Me(true))); }
  EXPECT_OK(RunDir::Open(temp.path(), Me(true)));
}

TEST(RunDir, MissingParentIsNamed) {
  const absl::StatusOr<RunDir> opened = RunDir::Open("/nonexistent/rdmad", Me(true));
  EXPECT_EQ(opened.status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(Mentions(opened.status(), "/nonexistent/rdmad"));
}

TEST(RunDir, FileInItsPlaceIsNoDirectory) {
  const testing::TempDir temp;
  ASSERT_TRUE(testing::WriteFile(temp.path() + "/file", "mine"));
  EXPECT_EQ(RunDir::Open(temp.path() + "/file", Me(true)).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(testing::ReadFile(temp.path() + "/file"), "mine");
}

TEST(RunDir, OthersMustNotWriteThere) {
  const testing::TempDir temp;
  for (mode_t mode : {0777, 0775, 0757}) {
    chmod(temp.path().c_str(), mode);
    const absl::StatusOr<RunDir> opened = RunDir::Open(temp.path(), Me(true));
    EXPECT_EQ(opened.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_TRUE(Mentions(opened.status(), "chmod go-w")) << opened.status();
  }
  EXPECT_FALSE(Exists(temp.path() + "/rdmad.lock"));
}

TEST(RunDir, SomebodyElsesDirectoryIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  const testing::TempDir temp;
  ASSERT_EQ(chown(temp.path().c_str(), 12345, 12345), 0);
  const absl::StatusOr<RunDir> opened = RunDir::Open(temp.path(), Me(true));
  EXPECT_EQ(opened.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Mentions(opened.status(), "uid 12345")) << opened.status();
}

TEST(RunDir, LockThatIsALinkIsNotFollowed) {
  const testing::TempDir temp;
  const testing::TempDir elsewhere;
  ASSERT_TRUE(testing::WriteFile(elsewhere.path() + "/precious", "data"));
  ASSERT_EQ(
      symlink((elsewhere.path() + "/precious").c_str(), (temp.path() + "/rdmad.lock").c_str()), 0);
  EXPECT_FALSE(RunDir::Open(temp.path(), Me(true)).ok());
  EXPECT_EQ(testing::ReadFile(elsewhere.path() + "/precious"), "data");
}

// ---- its sockets

class RunDirSockets : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<RunDir> opened = RunDir::Open(temp_.path(), Me(true));
    ASSERT_OK(opened);
    run_dir_.emplace(*std::move(opened));
    path_ = run_dir_->PathOf(kAttachSocketName);
  }
  absl::Status TryListen() {
    return run_dir_->Listen(kAttachSocketName, SOCK_SEQPACKET, 8).status();
  }

  testing::TempDir temp_;
  std::optional<RunDir> run_dir_;
  std::string path_;
};

TEST_F(RunDirSockets, SystemDaemonsSocketsAreForEverybody) {
  ASSERT_OK(TryListen());
  EXPECT_EQ(ModeOf(path_), 0666u);
}

TEST(RunDir, UsersSocketsAreForTheUser) {
  const testing::TempDir temp;
  absl::StatusOr<RunDir> run_dir = RunDir::Open(temp.path(), Me(false));
  ASSERT_OK(run_dir);
  ASSERT_OK(run_dir->Listen(kRpcSocketName, SOCK_STREAM, 1));
  EXPECT_EQ(ModeOf(temp.path() + "/rdmad.sock"), 0600u);
}

TEST_F(RunDirSockets, StaleSocketIsReplaced) {
  Bound(path_, SOCK_SEQPACKET);
  ASSERT_TRUE(Exists(path_));
  ASSERT_OK_AND_ASSIGN(const UniqueFd listener,
                       run_dir_->Listen(kAttachSocketName, SOCK_SEQPACKET, 8));
  EXPECT_TRUE(CanConnect(path_, SOCK_SEQPACKET));
}

TEST_F(RunDirSockets, SocketOfALivingProgramIsLeftAlone) {
  for (int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    const UniqueFd other = Bound(path_, type);
    ASSERT_EQ(listen(other.get(), 1), 0);
    const absl::Status refused = TryListen();
    EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists);
    EXPECT_TRUE(Mentions(refused, path_)) << refused;
    EXPECT_TRUE(CanConnect(path_, type));
    unlink(path_.c_str());
  }
}

TEST_F(RunDirSockets, WhatIsNoSocketIsLeftAlone) {
  ASSERT_TRUE(testing::WriteFile(path_, "mine"));
  const absl::Status refused = TryListen();
  EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(Mentions(refused, "a regular file")) << refused;
  EXPECT_EQ(testing::ReadFile(path_), "mine");
}

TEST_F(RunDirSockets, LinkIsLeftAloneAndNotFollowed) {
  ASSERT_EQ(symlink("/nonexistent", path_.c_str()), 0);
  EXPECT_TRUE(Mentions(TryListen(), "a symbolic link"));
  EXPECT_TRUE(Exists(path_));
}

TEST_F(RunDirSockets, AreRemovedAtTheEnd) {
  ASSERT_OK(TryListen());
  run_dir_.reset();
  EXPECT_FALSE(Exists(path_));
}

TEST_F(RunDirSockets, AnothersSocketOfTheSameNameIsNotRemoved) {
  // As long as it is open, its inode number is nobody else's.
  ASSERT_OK_AND_ASSIGN(const UniqueFd listener,
                       run_dir_->Listen(kAttachSocketName, SOCK_SEQPACKET, 8));
  ASSERT_EQ(unlink(path_.c_str()), 0);
  const UniqueFd other = Bound(path_, SOCK_SEQPACKET);
  run_dir_.reset();
  EXPECT_TRUE(Exists(path_));
}

}  // namespace
}  // namespace rdmad::control
