// The example programs as a user runs them: each on a daemon of its own, by their command lines.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/unique_fd.h"
#include "tests/integration/testbed.h"
#include "tests/support/child_process.h"
#include "tests/support/file.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"

namespace rdmad::testing {
namespace {

class ExamplesTest : public LoopbackTest {
 protected:
  void SetUp() override {
    ASSERT_OK(StartDaemon(0, {.log_level = "info"}));
    ASSERT_OK(StartDaemon(1, {.log_level = "info"}));
  }

  static std::string Example(const std::string& name) { return Runfile("client/examples/" + name); }
  std::string InFolder(const std::string& name) const { return folder_.path() + "/" + name; }
  static bool Exists(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0;
  }

  // Starts a server of daemon 1 that says "listening on ADDRESS"; returns that address.
  std::string StartServer(std::vector<std::string> argv, ProcessOptions options = {}) {
    options.output_file = InFolder("server.log");
    options.environment.push_back("RDMAD_RUN_DIR=" + Daemon(1).run_dir());
    absl::StatusOr<ChildProcess> child = ChildProcess::Start(argv, options);
    EXPECT_OK(child);
    server_.emplace(std::move(child).value());
    const std::string marker = "listening on ";
    EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
      const std::string output = ServerOutput();
      const size_t at = output.find(marker);
      return (at != std::string::npos && output.find('\n', at) != std::string::npos) ||
             !server_->IsRunning();
    })) << ServerOutput();
    const std::string output = ServerOutput();
    const size_t at = output.find(marker);
    if (at == std::string::npos) {
      ADD_FAILURE() << output;
      return "";
    }
    return output.substr(at + marker.size(), output.find('\n', at) - at - marker.size());
  }
  std::string ServerOutput() const { return ReadFile(InFolder("server.log")); }
  ExitStatus ServerExit() {
    const std::optional<ExitStatus> exit = server_->Wait(Slow(absl::Seconds(20)));
    EXPECT_TRUE(exit.has_value()) << "the server does not end: " << ServerOutput();
    return exit.value_or(ExitStatus{.code = -1});
  }

  // Runs a client of daemon 0.
  ProgramResult RunClient(std::vector<std::string> argv) {
    ProcessOptions options;
    options.environment.push_back("RDMAD_RUN_DIR=" + Daemon(0).run_dir());
    absl::StatusOr<ProgramResult> result = RunProgram(argv, options, Slow(absl::Seconds(60)));
    EXPECT_OK(result);
    return result.ok() ? *result : ProgramResult{.exit = {.code = -1}, .output = ""};
  }

  // A file of `bytes` random bytes.
  std::string MakeFile(size_t bytes) {
    std::mt19937_64 random(bytes);
    std::string text(bytes, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const std::string path = InFolder("original");
    EXPECT_TRUE(WriteFile(path, text));
    return path;
  }

  TempDir folder_;
  std::optional<ChildProcess> server_;
};

TEST_F(ExamplesTest, HelloGoesThereAndBack) {
  ProcessOptions options;
  options.output_file = InFolder("server.log");
  options.environment.push_back("RDMAD_RUN_DIR=" + Daemon(1).run_dir());
  const std::string address = WithPort(Ipv4(1), 7471);
  ASSERT_OK_AND_ASSIGN(ChildProcess server,
                       ChildProcess::Start({Example("hello"), "server", address}, options));
  ProgramResult client;
  ASSERT_TRUE(Eventually(absl::Seconds(10), [&] {
    client = RunClient({Example("hello"), "client", address});
    return client.ok();  // not before the server listens
  })) << client.output;
  EXPECT_EQ(client.output, "client: got \"hello, RDMA\"\n");
  const std::optional<ExitStatus> exit = server.Wait(Slow(absl::Seconds(10)));
  ASSERT_TRUE(exit.has_value());
  EXPECT_TRUE(exit->ok()) << exit->ToString();
  EXPECT_EQ(ServerOutput(), "server: got \"hello, RDMA\"\n");
}

TEST_F(ExamplesTest, GroupHearsWhatIsSaidOnEitherDaemon) {
  const std::string group = "239.47.91.9";
  ASSERT_EQ(StartServer({Example("group"), "listen", Ipv4(1), group, "2"}), group);
  for (const char* text : {"one", "two"}) {
    const ProgramResult said = RunClient({Example("group"), "say", Ipv4(0), group, text});
    EXPECT_TRUE(said.ok()) << said.output;
  }
  EXPECT_TRUE(ServerExit().ok()) << ServerOutput();
  EXPECT_NE(ServerOutput().find(" says: one\n"), std::string::npos) << ServerOutput();
  EXPECT_NE(ServerOutput().find(" says: two\n"), std::string::npos) << ServerOutput();
}

TEST_F(ExamplesTest, EveryExampleHelpsAndRefusesWrongUsage) {
  for (const char* name :
       {"filecopy/filecopy", "echo/echo_server", "echo/echo_client", "group", "hello"}) {
    SCOPED_TRACE(name);
    const ProgramResult help = RunClient({Example(name), "--help"});
    EXPECT_TRUE(help.ok()) << help.output;
    EXPECT_NE(help.output.find("sage:"), std::string::npos) << help.output;
    EXPECT_EQ(RunClient({Example(name)}).exit.code, 2);
    EXPECT_EQ(RunClient({Example(name), "--no-such-flag"}).exit.code, 2);
  }
}

TEST_F(ExamplesTest, FileCopyListsItsModesAndTellsAWrongOneThem) {
  const ProgramResult help = RunClient({Example("filecopy/filecopy"), "send", "--help"});
  EXPECT_NE(help.output.find("--mode MODE:{send,write,read}=write"), std::string::npos)
      << help.output;
  EXPECT_EQ(help.output.find("->"), std::string::npos) << help.output;
  const ProgramResult wrong = RunClient(
      {Example("filecopy/filecopy"), "send", "/etc/passwd", "1.2.3.4:5", "--mode", "teleport"});
  EXPECT_EQ(wrong.exit.code, 2);
  EXPECT_NE(wrong.output.find("--mode: teleport not in {send,write,read}"), std::string::npos)
      << wrong.output;
}

TEST_F(ExamplesTest, FileCopyDoesNotWaitForAFileThatItCouldNotWrite) {
  ASSERT_OK(StartDaemon(0));
  const ProgramResult result = RunClient(
      {Example("filecopy/filecopy"), "recv", WithPort(Ipv4(0), 0), "--output", "/nope/x"});
  EXPECT_EQ(result.exit.code, 1);
  EXPECT_NE(result.output.find("--output: cannot write in /nope/"), std::string::npos)
      << result.output;
}

// What it does before it builds anything; it is not among the tools of the build here and cannot go
// further.
class QuickstartTest : public LoopbackTest {
 protected:
  // Has UDP port 4791 of an address.
  static UniqueFd Occupy(const char* address) {
    UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(4791);
    EXPECT_EQ(::inet_pton(AF_INET, address, &name.sin_addr), 1);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0)
        << address;
    return fd;
  }
  static ProgramResult Quickstart() {
    absl::StatusOr<ProgramResult> result =
        RunProgram({"bash", Runfile("client/examples/quickstart")});
    EXPECT_OK(result);
    return result.ok() ? *result : ProgramResult{};
  }
};

TEST_F(QuickstartTest, SaysInOneLineWhichPortIsTakenBeforeItStartsAnything) {
  const struct {
    const char* bound;
    const char* needed;
  } kCases[] = {{"127.0.0.2", "127.0.0.2"}, {"127.0.0.3", "127.0.0.3"}, {"0.0.0.0", "127.0.0.2"}};
  for (const auto& [bound, needed] : kCases) {
    SCOPED_TRACE(bound);
    const UniqueFd holder = Occupy(bound);
    const ProgramResult result = Quickstart();
    EXPECT_EQ(result.exit.code, 1);
    EXPECT_EQ(result.output.rfind(absl::StrCat("quickstart: UDP port 4791 of ", needed,
                                               " is taken, by a socket on ", bound, ":4791: "),
                                  0),
              0u)
        << result.output;
    EXPECT_NE(result.output.find("end the program"), std::string::npos) << result.output;
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
  }
}

TEST_F(QuickstartTest, DoesNotMindThePortOfOtherAddresses) {
  const UniqueFd holder = Occupy("127.0.0.9");
  const ProgramResult result = Quickstart();
  EXPECT_NE(result.output.find("what the build needs"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("taken"), std::string::npos) << result.output;
}

struct CopyCase {
  const char* mode;
  size_t bytes;
  int chunk_bytes;
};

class FileCopyTest : public ExamplesTest, public ::testing::WithParamInterface<CopyCase> {};

TEST_P(FileCopyTest, BytesArriveWhole) {
  const CopyCase& copy = GetParam();
  const std::string file = MakeFile(copy.bytes);
  const std::string address = StartServer(
      {Example("filecopy/filecopy"), "recv", WithPort(Ipv4(1), 0), "--output", InFolder("copy")});
  const ProgramResult sent =
      RunClient({Example("filecopy/filecopy"), "--json", "send", file, address, "--mode", copy.mode,
                 "--chunk", absl::StrCat(copy.chunk_bytes), "--depth", "4"});
  EXPECT_TRUE(sent.ok()) << sent.output;
  EXPECT_TRUE(ServerExit().ok()) << ServerOutput();
  EXPECT_EQ(ReadFile(InFolder("copy")), ReadFile(file));
  EXPECT_FALSE(Exists(InFolder("copy.part")));
  EXPECT_NE(sent.output.find(absl::StrCat("\"bytes\": ", copy.bytes, ",")), std::string::npos)
      << sent.output;
}

INSTANTIATE_TEST_SUITE_P(
    Modes, FileCopyTest,
    ::testing::Values(CopyCase{"send", 0, 1000}, CopyCase{"send", 1, 1000},
                      CopyCase{"send", 100'000, 1000}, CopyCase{"send", 3'000'001, 65536},
                      CopyCase{"write", 0, 1000}, CopyCase{"write", 1000, 1000},
                      CopyCase{"write", 1001, 1000}, CopyCase{"write", 3'000'001, 65536},
                      CopyCase{"read", 0, 1000}, CopyCase{"read", 4001, 1000},
                      CopyCase{"read", 3'000'001, 65536}),
    [](const auto& copy_info) {
      return absl::StrCat(copy_info.param.mode, "_", copy_info.param.bytes, "_by_",
                          copy_info.param.chunk_bytes);
    });

TEST_F(ExamplesTest, FileCopyWhoseSenderIsKilledLeavesNothing) {
  const std::string file = MakeFile(64'000'000);
  const std::string address = StartServer(
      {Example("filecopy/filecopy"), "recv", WithPort(Ipv4(1), 0), "--output", InFolder("copy")});
  ProcessOptions options;
  options.environment.push_back("RDMAD_RUN_DIR=" + Daemon(0).run_dir());
  options.output_file = InFolder("sender.log");
  ASSERT_OK_AND_ASSIGN(ChildProcess sender,
                       ChildProcess::Start({Example("filecopy/filecopy"), "send", file, address,
                                            "--chunk", "4096", "--depth", "2"},
                                           options));
  ASSERT_TRUE(Eventually(absl::Seconds(10), [&] { return Exists(InFolder("copy.part")); }));
  sender.Kill();
  EXPECT_EQ(ServerExit().code, 1) << ServerOutput();
  EXPECT_FALSE(Exists(InFolder("copy")));
  EXPECT_FALSE(Exists(InFolder("copy.part")));
}

class FullDiskTest : public ExamplesTest, public ::testing::WithParamInterface<const char*> {
 protected:
  // Copies a file that does not fit; both sides are to say why: of copy.part, `reason`.
  void CopyInVain(size_t bytes, const ProcessOptions& receiver, const std::string& reason) {
    const std::string file = MakeFile(bytes);
    const std::string address = StartServer(
        {Example("filecopy/filecopy"), "recv", WithPort(Ipv4(1), 0), "--output", InFolder("copy")},
        receiver);
    const ProgramResult sent =
        RunClient({Example("filecopy/filecopy"), "send", file, address, "--mode", GetParam(),
                   "--chunk", "10000", "--depth", "1000"});
    EXPECT_EQ(sent.exit.code, 1);
    EXPECT_EQ(ServerExit().code, 1);
    EXPECT_NE(sent.output.find("the receiver gave up: "), std::string::npos) << sent.output;
    for (const std::string& said : {sent.output, ServerOutput()}) {
      EXPECT_NE(said.find("copy.part: "), std::string::npos) << said;
      EXPECT_NE(said.find(reason), std::string::npos) << said;
    }
    EXPECT_FALSE(Exists(InFolder("copy")));
    EXPECT_FALSE(Exists(InFolder("copy.part")));
  }
};

TEST_P(FullDiskTest, FileCopyToAFullDiskFailsOnBothSidesAndLeavesNothing) {
  ProcessOptions full;
  full.max_file_bytes = 500'000;
  CopyInVain(1'000'000, full, "room for 1000000 bytes");
}

// /dev/full has no room to set aside, so that the receiver gives up when chunks are under way: in
// the one-sided modes the sender is told that there are slots for all of them and does not wait for
// a word.
TEST_P(FullDiskTest, FileCopyToADiskThatFillsUpFailsOnBothSidesAndLeavesNothing) {
  ASSERT_EQ(::symlink("/dev/full", InFolder("copy.part").c_str()), 0);
  CopyInVain(10'000'000, {}, "write: No space left on device");
}

INSTANTIATE_TEST_SUITE_P(Modes, FullDiskTest, ::testing::Values("send", "write", "read"),
                         [](const auto& mode) { return std::string(mode.param); });

TEST_F(ExamplesTest, FileCopyNamesWhatIsWrong) {
  EXPECT_NE(RunClient({Example("filecopy/filecopy"), "send", "/no/such/file", WithPort(Ipv4(1), 1)})
                .output.find("/no/such/file"),
            std::string::npos);
  EXPECT_NE(RunClient({Example("filecopy/filecopy"), "send", "/tmp", WithPort(Ipv4(1), 1)})
                .output.find("not a regular file"),
            std::string::npos);
  const ProgramResult nobody =
      RunClient({Example("filecopy/filecopy"), "send", MakeFile(10), WithPort(Ipv4(1), 1)});
  EXPECT_EQ(nobody.exit.code, 1);
  EXPECT_NE(nobody.output.find("nobody listens"), std::string::npos) << nobody.output;
}

TEST_F(ExamplesTest, EchoServerServesManyAndEndsInOrder) {
  const std::string address =
      StartServer({Example("echo/echo_server"), WithPort(Ipv4(1), 0), "--receives", "4"});
  const ProgramResult client =
      RunClient({Example("echo/echo_client"), address, "--connections", absl::StrCat(Fewer(60)),
                 "--count", "20", "--size", "1000", "--timeout", absl::StrCat(20 * kSlowness)});
  EXPECT_TRUE(client.ok()) << client.output;
  server_->Signal(SIGTERM);
  EXPECT_TRUE(ServerExit().ok()) << ServerOutput();
  EXPECT_NE(ServerOutput().find(absl::StrCat("clients=", Fewer(60), " messages=", 20 * Fewer(60))),
            std::string::npos)
      << ServerOutput();
}

TEST_F(ExamplesTest, EchoServerSurvivesItsDaemon) {
  const std::string address = StartServer({Example("echo/echo_server"), WithPort(Ipv4(1), 7472)});
  ASSERT_TRUE(RunClient({Example("echo/echo_client"), address, "--count", "10"}).ok());
  Daemon(1).Kill();
  ASSERT_OK(Daemon(1).Start());
  ProgramResult client;
  EXPECT_TRUE(
      Eventually(absl::Seconds(10),
                 [&] {
                   client = RunClient({Example("echo/echo_client"), address, "--count", "10"});
                   return client.ok();
                 }))
      << client.output << ServerOutput();
  EXPECT_TRUE(server_->IsRunning());
}

}  // namespace
}  // namespace rdmad::testing
