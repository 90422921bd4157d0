// Starting and stopping rdmad: what it refuses, what it says, what it leaves behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/control/daemon_bed.h"

namespace rdmad::testing {
namespace {

bool Exists(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0;
}

// Nothing that a daemon opens at the start; for those that must not get that far.
std::string Config(const TempDir& temp, const std::string& more = "") {
  std::string path = temp.path() + "/rdmad.toml";
  EXPECT_TRUE(WriteFile(
      path, absl::StrCat("[metrics]\naddress = \"off\"\n[soft]\nenabled = false\n", more)));
  return path;
}

// A start that fails: exit status, and one line on stderr.
void ExpectRefusal(const std::vector<std::string>& arguments, int exit_code,
                   const std::vector<std::string>& words) {
  const ProgramResult result = RunDaemon(arguments);
  EXPECT_EQ(result.exit.code, exit_code) << result.output;
  const std::vector<std::string> lines = ErrorLines(result.output);
  ASSERT_EQ(lines.size(), 1u) << result.output;
  for (const std::string& word : words) EXPECT_TRUE(Has(lines[0], word)) << lines[0];
}

// ---- flags and configuration

TEST(RdmadFlags, Version) {
  const ProgramResult result = RunDaemon({"--version"});
  EXPECT_EQ(result.exit.code, 0);
  EXPECT_EQ(result.output.rfind("rdmad ", 0), 0u);
}

TEST(RdmadFlags, HelpNamesTheFlags) {
  const ProgramResult result = RunDaemon({"--help"});
  EXPECT_EQ(result.exit.code, 0);
  for (const char* flag : {"--config", "--run-dir", "--check", "--version", "--log-level"}) {
    EXPECT_TRUE(Has(result.output, flag)) << flag;
  }
}

TEST(RdmadFlags, MistakesAreUsageErrors) {
  ExpectRefusal({"--nonsense"}, 2, {"--nonsense", "--help"});
  ExpectRefusal({"--run-dir"}, 2, {"--run-dir"});
  ExpectRefusal({"--run-dir", ""}, 2, {"--run-dir", "must not be empty"});
  ExpectRefusal({"--log-level", "loud"}, 2, {"loud", "trace, debug"});
}

TEST(RdmadCheck, GoodConfiguration) {
  const TempDir temp;
  const ProgramResult result = RunDaemon({"--check", "--config", Config(temp)});
  EXPECT_EQ(result.exit.code, 0);
  EXPECT_TRUE(Has(result.output, "rdmad.toml: good")) << result.output;
}

// No RDMA device here, so nothing of its needs is told; huge pages matter to every device.
TEST(RdmadCheck, TellsWhatTheHostLacks) {
  const ProgramResult result = RunDaemon({"--check"});
  EXPECT_EQ(result.exit.code, 0);
  const bool none = Has(ReadFile("/proc/meminfo"), "HugePages_Total:       0");
  EXPECT_EQ(Has(result.output, "note: huge pages: none reserved"), none) << result.output;
  if (!std::filesystem::exists("/dev/infiniband")) {
    EXPECT_FALSE(Has(result.output, "memlock")) << result.output;
  }
}

// (The first may be a library's, which takes one before main().)
TEST(RdmadStart, ClosedStandardDescriptorsAreNotGivenToOthers) {
  const TempDir temp;
  const std::string socket = temp.path() + "/run/rdmad.sock";
  const absl::StatusOr<ProgramResult> result = RunProgram(
      {"/bin/sh", "-c",
       Runfile("daemon/rdmad") + " --run-dir " + temp.path() + "/run --config " + Config(temp) +
           " <&- >&- 2>&- & until [ -S " + socket + " ]; do sleep 0.1; done;" +
           " readlink /proc/$!/fd/1 /proc/$!/fd/2; kill $!; wait $!"},
      {}, Slow(absl::Seconds(60)));
  ASSERT_OK(result);
  EXPECT_EQ(result->output, "/dev/null\n/dev/null\n");
}

TEST(RdmadStart, SaysOnceThatThereIsNoRdmaDevice) {
  if (std::filesystem::exists("/dev/infiniband")) GTEST_SKIP() << "this host has RDMA devices";
  DaemonProcess daemon(OwnDaemon());
  ASSERT_OK(daemon.Start());
  const std::string log = daemon.Log();
  const size_t first = log.find("no RDMA device on this host");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("no RDMA device on this host", first + 1), std::string::npos) << log;
}

TEST(RdmadCheck, ExampleConfiguration) {
  EXPECT_EQ(RunDaemon({"--check", "--config", Runfile("config/rdmad.toml")}).exit.code, 0);
}

TEST(RdmadCheck, TellsOfASessionsLimitThatItsUserIsNotAllowed) {
  const TempDir temp;
  const ProgramResult result =
      RunDaemon({"--check", "--config", Config(temp, "[user_limits]\nmax_cm_ids = 5\n")});
  EXPECT_EQ(result.exit.code, 0);
  EXPECT_TRUE(Has(result.output,
                  "note: user_limits.max_cm_ids = 5: less than session_limits.max_cm_ids = 16384"))
      << result.output;
}

TEST(RdmadConfig, MistakeIsToldWithItsPlace) {
  const TempDir temp;
  const std::string config = Config(temp, "[engine]\nspin_uss = 1\n");
  ExpectRefusal({"--check", "--config", config}, 2,
                {config + ":6:1: ", "spin_uss", "did you mean \"spin_us\""});
  ExpectRefusal({"--config", config, "--run-dir", temp.path()}, 2, {config + ":6:1: "});
  EXPECT_FALSE(Exists(temp.path() + "/rdmad.lock"));
}

TEST(RdmadConfig, EachMistakeHasItsLine) {
  const TempDir temp;
  const ProgramResult result =
      RunDaemon({"--check", "--config", Config(temp, "[engine]\nx = 1\ny = 2\n")});
  EXPECT_EQ(ErrorLines(result.output).size(), 2u) << result.output;
}

TEST(RdmadConfig, UnknownUserIsTold) {
  const TempDir temp;
  const std::string config = Config(temp, "[policy]\nallow_users = [\"root\", \"no-such-user\"]\n");
  ExpectRefusal({"--check", "--config", config}, 2, {config + ":", "no user \"no-such-user\""});
}

TEST(RdmadConfig, MissingFileIsTold) {
  ExpectRefusal({"--config", "/nonexistent/rdmad.toml"}, 2, {"/nonexistent/rdmad.toml"});
}

// ---- the run directory

TEST(RdmadRunDir, OverLongPath) {
  ExpectRefusal({"--run-dir", "/tmp/" + std::string(100, 'a')}, 2, {"shorter --run-dir"});
}

TEST(RdmadRunDir, WritableByOthers) {
  const TempDir temp;
  chmod(temp.path().c_str(), 0777);
  ExpectRefusal({"--config", Config(temp), "--run-dir", temp.path()}, 1,
                {temp.path(), "chmod go-w"});
}

TEST(RdmadRunDir, NoRightToWriteThere) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  const TempDir temp;
  chmod(temp.path().c_str(), 0755);
  ASSERT_EQ(mkdir((temp.path() + "/run").c_str(), 0755), 0);
  // Somebody else must be able to run the program.
  const std::string program = temp.path() + "/rdmad";
  ASSERT_TRUE(WriteFile(program, ReadFile(Runfile("daemon/rdmad"))));
  chmod(program.c_str(), 0755);
  ProcessOptions nobody;
  nobody.uid = 65534;
  absl::StatusOr<ProgramResult> result =
      RunProgram({program, "--run-dir", temp.path() + "/run"}, nobody);
  ASSERT_OK(result);
  EXPECT_EQ(result->exit.code, 1);
  EXPECT_TRUE(Has(result->output, "no right to write there")) << result->output;
}

TEST(RdmadRunDir, FileInTheWayOfASocketIsLeftAlone) {
  for (const char* name : {"attach.sock", "rdmad.sock"}) {
    const TempDir temp;
    ASSERT_TRUE(WriteFile(temp.path() + "/" + name, "mine"));
    ExpectRefusal({"--config", Config(temp), "--run-dir", temp.path()}, 1,
                  {name, "a regular file"});
    EXPECT_EQ(ReadFile(temp.path() + "/" + name), "mine");
  }
}

TEST(RdmadRunDir, SecondDaemonLeavesTheFirstAlone) {
  DaemonProcess daemon(OwnDaemon());
  ASSERT_OK(daemon.Start());
  ASSERT_OK_AND_ASSIGN(const RawClient client, RawClient::Attach(daemon.run_dir()));
  ExpectRefusal({"--config", daemon.config_file(), "--run-dir", daemon.run_dir()}, 1,
                {"another rdmad", absl::StrCat("pid ", daemon.pid()), daemon.run_dir()});
  EXPECT_OK(StatusBy(client));
  EXPECT_OK(RawClient::Attach(daemon.run_dir()));
}

TEST(RdmadRunDir, KilledDaemonsSocketsAreReplaced) {
  DaemonProcess daemon(OwnDaemon());
  ASSERT_OK(daemon.Start());
  daemon.Kill();
  EXPECT_TRUE(Exists(daemon.run_dir() + "/attach.sock"));
  ASSERT_OK(daemon.Start());
  EXPECT_OK(RawClient::Attach(daemon.run_dir()));
}

TEST(RdmadRunDir, OtherFilesInItStay) {
  DaemonProcess daemon(OwnDaemon());
  ASSERT_EQ(mkdir(daemon.run_dir().c_str(), 0700), 0);
  ASSERT_TRUE(WriteFile(daemon.run_dir() + "/notes", "mine"));
  ASSERT_OK(daemon.Start());
  ASSERT_OK(daemon.Terminate());
  EXPECT_EQ(ReadFile(daemon.run_dir() + "/notes"), "mine");
}

TEST(RdmadRunDir, FullDiskIsToldAndNothingIsLeft) {
  // Not a byte may be written: the lock file's pid is the first thing that is.
  const TempDir temp;
  ProcessOptions options;
  options.max_file_bytes = 1;
  const ProgramResult result =
      RunDaemon({"--config", Config(temp), "--run-dir", temp.path()}, options);
  EXPECT_NE(result.exit.code, 0) << result.output;
  EXPECT_FALSE(Exists(temp.path() + "/attach.sock"));
}

// ---- the end

TEST(RdmadStop, SigtermEndsSessionsAndRemovesSockets) {
  DaemonProcess daemon(OwnDaemon());
  ASSERT_OK(daemon.Start());
  ASSERT_OK_AND_ASSIGN(const RawClient client, RawClient::Attach(daemon.run_dir()));
  v1::AllocPdReply pd;
  ASSERT_OK(
      client.Call(client.verbs(), &v1::VerbsService::Stub::AllocPd, v1::AllocPdRequest(), &pd));
  daemon.SendSignal(SIGTERM);
  std::array<char, 16> nothing{};
  EXPECT_EQ(recv(client.socket(), nothing.data(), nothing.size(), 0), 0)
      << "the attach socket hangs up";
  ASSERT_OK(daemon.Terminate());  // which asks again: that changes nothing
  EXPECT_FALSE(Exists(daemon.run_dir() + "/attach.sock"));
  EXPECT_FALSE(Exists(daemon.run_dir() + "/rdmad.sock"));
}

TEST(RdmadStop, StartsAgainAtOnce) {
  DaemonProcess daemon(OwnDaemon());
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(daemon.Start());
    ASSERT_OK(daemon.Terminate());
  }
}

// ---- reload

TEST(RdmadReload, PolicyAndLogLevelChangeLive) {
  DaemonProcess daemon(OwnDaemon("[session_limits]\nmax_pds = 5\n"));
  ASSERT_OK(daemon.Start());
  std::string text = ReadFile(daemon.config_file());
  text.replace(text.find("max_pds = 5"), 11, "max_pds = 1");
  ASSERT_TRUE(WriteFile(daemon.config_file(), text));
  daemon.SendSignal(SIGHUP);
  ASSERT_TRUE(Soon([&] { return Has(daemon.Log(), "reloaded config="); }));
  ASSERT_OK_AND_ASSIGN(const RawClient client, RawClient::Attach(daemon.run_dir()));
  v1::AllocPdReply pd;
  EXPECT_OK(
      client.Call(client.verbs(), &v1::VerbsService::Stub::AllocPd, v1::AllocPdRequest(), &pd));
  EXPECT_EQ(client.Call(client.verbs(), &v1::VerbsService::Stub::AllocPd, v1::AllocPdRequest(), &pd)
                .code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(RdmadReload, WrongFileChangesNothingAndIsTold) {
  DaemonProcess daemon(OwnDaemon());
  ASSERT_OK(daemon.Start());
  ASSERT_TRUE(WriteFile(daemon.config_file(), "nonsense = 1\n"));
  daemon.SendSignal(SIGHUP);
  ASSERT_TRUE(Soon([&] { return Has(daemon.Log(), "reload refused, nothing changed: "); }));
  EXPECT_TRUE(Has(daemon.Log(), "rdmad.toml:1:1: unknown key"));
  EXPECT_OK(RawClient::Attach(daemon.run_dir()));
}

TEST(RdmadReload, KeysThatNeedARestartAreNamed) {
  DaemonProcess daemon(OwnDaemon());
  ASSERT_OK(daemon.Start());
  ASSERT_TRUE(
      WriteFile(daemon.config_file(), ReadFile(daemon.config_file()) + "[engine]\nspin_us = 3\n"));
  daemon.SendSignal(SIGHUP);
  EXPECT_TRUE(Soon([&] { return Has(daemon.Log(), "[engine] changes only with a restart"); }));
}

// ---- systemd

// The datagrams that sd_notify(3) sends.
class NotifySocket {
 public:
  NotifySocket()
      : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)), path_(temp_.path() + "/notify") {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    const timeval limit{20, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  std::string Next() {
    std::array<char, 4096> text{};
    const ssize_t bytes = recv(fd_.get(), text.data(), text.size(), 0);
    return bytes > 0 ? std::string(text.data(), static_cast<size_t>(bytes)) : "nothing";
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const TempDir temp_;
  const UniqueFd fd_;
  const std::string path_;
};

TEST(RdmadSystemd, TellsWhatItDoes) {
  const TempDir temp;
  NotifySocket notify;
  ProcessOptions options;
  options.environment = {"NOTIFY_SOCKET=" + notify.path()};
  absl::StatusOr<ChildProcess> daemon = ChildProcess::Start(
      {Runfile("daemon/rdmad"), "--config", Config(temp), "--run-dir", temp.path()}, options);
  ASSERT_OK(daemon);
  EXPECT_EQ(notify.Next().rfind("READY=1\n", 0), 0u);
  daemon->Signal(SIGHUP);
  EXPECT_EQ(notify.Next().rfind("RELOADING=1\nMONOTONIC_USEC=", 0), 0u);
  EXPECT_EQ(notify.Next().rfind("READY=1\n", 0), 0u);
  daemon->Signal(SIGTERM);
  EXPECT_EQ(notify.Next().rfind("STOPPING=1\n", 0), 0u);
  EXPECT_TRUE(daemon->Wait(Slow(absl::Seconds(10)))->ok());
}

TEST(RdmadSystemd, FeedsTheWatchdogAtHalfItsInterval) {
  const TempDir temp;
  NotifySocket notify;
  ProcessOptions options;
  options.environment = {"NOTIFY_SOCKET=" + notify.path(), "WATCHDOG_USEC=400000"};
  absl::StatusOr<ChildProcess> daemon = ChildProcess::Start(
      {Runfile("daemon/rdmad"), "--config", Config(temp), "--run-dir", temp.path()}, options);
  ASSERT_OK(daemon);
  EXPECT_EQ(notify.Next().rfind("READY=1\n", 0), 0u);
  EXPECT_EQ(notify.Next(), "WATCHDOG=1");
  const absl::Time first = absl::Now();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(notify.Next(), "WATCHDOG=1");
  EXPECT_GE(absl::Now() - first, absl::Milliseconds(500));
  EXPECT_LE(absl::Now() - first, Slow(absl::Milliseconds(1200)));
}

// Binds both sockets, passes them on as systemd does, and becomes rdmad.
constexpr char kActivate[] = R"(
import os, socket, sys
run, rdmad, config = sys.argv[1:4]
sockets = []
for name, kind in (("rdmad.sock", socket.SOCK_STREAM), ("attach.sock", socket.SOCK_SEQPACKET)):
    s = socket.socket(socket.AF_UNIX, kind)
    s.bind(run + "/" + name)
    s.listen(16)
    sockets.append(s.detach())
saved = [os.dup2(fd, 20 + i) for i, fd in enumerate(sockets)]
for i, fd in enumerate(saved):
    os.dup2(fd, 3 + i)
    os.close(fd)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2")
os.execv(rdmad, [rdmad, "--config", config, "--run-dir", run])
)";

TEST(RdmadSystemd, ServesSocketsThatItWasGivenAndLeavesThemBehind) {
  const TempDir temp;
  NotifySocket notify;
  ProcessOptions options;
  options.environment = {"NOTIFY_SOCKET=" + notify.path()};
  absl::StatusOr<ChildProcess> daemon = ChildProcess::Start(
      {"/usr/bin/python3", "-c", kActivate, temp.path(), Runfile("daemon/rdmad"), Config(temp)},
      options);
  ASSERT_OK(daemon);
  ASSERT_EQ(notify.Next().rfind("READY=1\n", 0), 0u);
  ASSERT_OK_AND_ASSIGN(const RawClient client, RawClient::Attach(temp.path()));
  EXPECT_OK(StatusBy(client));
  daemon->Signal(SIGTERM);
  EXPECT_TRUE(daemon->Wait(Slow(absl::Seconds(10)))->ok());
  // They are systemd's, which holds them open for the next start.
  EXPECT_TRUE(Exists(temp.path() + "/attach.sock"));
  EXPECT_TRUE(Exists(temp.path() + "/rdmad.sock"));
}

}  // namespace
}  // namespace rdmad::testing
