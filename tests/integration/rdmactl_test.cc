// rdmactl as an operator runs it: what it prints, as a table and as JSON, and what it ends with.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "proto/rdmad/v1/admin.pb.h"
#include "tests/integration/testbed.h"
#include "tests/support/child_process.h"
#include "tests/support/file.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"

namespace rdmad::testing {
namespace {

class RdmactlTest : public LoopbackTest {
 protected:
  void SetUp() override { ASSERT_OK(StartDaemon(0, {.log_level = "info"})); }

  static ProgramResult Run(std::vector<std::string> arguments, const ProcessOptions& options = {}) {
    arguments.insert(arguments.begin(), Runfile("client/rdmactl/rdmactl"));
    absl::StatusOr<ProgramResult> result = RunProgram(arguments, options, Slow(absl::Seconds(60)));
    EXPECT_OK(result);
    return result.ok() ? *result : ProgramResult{.exit = {.code = -1}, .output = ""};
  }
  ProgramResult Ask(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--run-dir", Daemon(0).run_dir()});
    return Run(std::move(arguments));
  }
  // The answer to `rdmactl --json COMMAND`.
  template <typename Reply>
  Reply AskJson(const std::string& command) {
    const ProgramResult result = Ask({"--json", command});
    EXPECT_TRUE(result.ok()) << result.output;
    Reply reply;
    const auto parsed = google::protobuf::util::JsonStringToMessage(result.output, &reply);
    EXPECT_TRUE(parsed.ok()) << parsed.ToString() << "\n" << result.output;
    return reply;
  }
};

TEST_F(RdmactlTest, StatusShowsTheDaemonInBothForms) {
  const ProgramResult table = Ask({"status"});
  EXPECT_TRUE(table.ok());
  for (const std::string& word :
       {Daemon(0).run_dir(), std::string("ENGINE"), std::string("soft0"), Ipv4(0)}) {
    EXPECT_NE(table.output.find(word), std::string::npos) << word << "\n" << table.output;
  }
  const auto json = AskJson<v1::GetStatusReply>("status");
  EXPECT_EQ(json.run_dir(), Daemon(0).run_dir());
  EXPECT_EQ(json.pid(), static_cast<uint32_t>(Daemon(0).pid()));
  EXPECT_EQ(json.sessions(), 1u);
}

TEST_F(RdmactlTest, ListsShowWhatASessionHolds) {
  ASSERT_OK_AND_ASSIGN(const Client client, AttachTo(Daemon(0), "the app"));
  ASSERT_OK_AND_ASSIGN(const Pool pool, Pool::Create(client, 1 << 20, {.name = "the pool"}));
  ASSERT_OK_AND_ASSIGN(const Connection connection, ConnectApps(client, client, Ipv4(0)));

  const ProgramResult sessions = Ask({"sessions"});
  EXPECT_NE(sessions.output.find("the app"), std::string::npos) << sessions.output;
  const auto sessions_json = AskJson<v1::ListSessionsReply>("sessions");
  ASSERT_EQ(sessions_json.sessions_size(), 2);
  EXPECT_EQ(sessions_json.sessions(0).objects().qps(), 2u);

  const ProgramResult connections = Ask({"connections"});
  EXPECT_NE(connections.output.find(connection.active.local_addr().ToString()), std::string::npos)
      << connections.output;
  EXPECT_NE(connections.output.find("same daemon"), std::string::npos) << connections.output;
  const auto connections_json = AskJson<v1::ListConnectionsReply>("connections");
  EXPECT_GE(connections_json.connections_size(), 2);

  const ProgramResult pools = Ask({"pools"});
  EXPECT_NE(pools.output.find("the pool"), std::string::npos) << pools.output;
  EXPECT_GE(AskJson<v1::ListPoolsReply>("pools").pools_size(), 1);

  const ProgramResult devices = Ask({"devices"});
  EXPECT_NE(devices.output.find("soft0"), std::string::npos) << devices.output;
  EXPECT_EQ(AskJson<v1::ListDevicesReply>("devices").devices_size(), 2);  // IPv4 and IPv6
}

TEST_F(RdmactlTest, AListOfManyPagesIsPrintedAsOne) {
  ASSERT_OK_AND_ASSIGN(const Client client, AttachTo(Daemon(0), "the app"));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<EventChannel> channel, EventChannel::Create(client));
  std::vector<std::unique_ptr<CmId>> ids;
  for (int i = 0; i < 300; ++i) {
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<CmId> id, CmId::Create(client, channel.get()));
    ids.push_back(std::move(id));
  }
  const auto reply = AskJson<v1::ListConnectionsReply>("connections");
  EXPECT_EQ(reply.connections_size(), 300);
  EXPECT_FALSE(reply.has_next_page());
  const ProgramResult table = Ask({"connections"});
  EXPECT_EQ(std::count(table.output.begin(), table.output.end(), '\n'), 301);
}

TEST_F(RdmactlTest, VersionWorksWithAndWithoutADaemon) {
  EXPECT_NE(Ask({"version"}).output.find(Daemon(0).run_dir()), std::string::npos);
  EXPECT_EQ(Run({"--version"}).exit.code, 0);
  const TempDir nobody;
  const ProgramResult alone = Run({"--run-dir", nobody.path(), "--wait", "0", "version"});
  EXPECT_TRUE(alone.ok());
  EXPECT_NE(alone.output.find("not reachable"), std::string::npos) << alone.output;
}

TEST_F(RdmactlTest, WithoutADaemonItEndsWithThreeAndSaysWhatToDo) {
  const TempDir nobody;
  for (const char* command : {"status", "devices", "sessions", "connections", "pools", "bench"}) {
    SCOPED_TRACE(command);
    const ProgramResult result = Run({"--run-dir", nobody.path(), "--wait", "0", command});
    EXPECT_EQ(result.exit.code, 3) << result.output;
    EXPECT_NE(result.output.find(nobody.path() + "/attach.sock"), std::string::npos)
        << result.output;
    EXPECT_NE(result.output.find("rdmad --run-dir"), std::string::npos) << result.output;
  }
}

TEST_F(RdmactlTest, RunDirComesFromTheEnvironmentToo) {
  EXPECT_TRUE(Run({"status"}, {.environment = {"RDMAD_RUN_DIR=" + Daemon(0).run_dir()}}).ok());
}

TEST_F(RdmactlTest, StrangersEndWithFour) {
  if (::getuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  // A copy, since others may not be allowed to look into the folder of the build.
  const TempDir folder;
  const std::string program = folder.path() + "/rdmactl";
  std::filesystem::copy_file(Runfile("client/rdmactl/rdmactl"), program);
  for (const std::string& path : {folder.path(), program}) {
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  }
  ASSERT_OK_AND_ASSIGN(
      const ProgramResult result,
      RunProgram({program, "--run-dir", Daemon(0).run_dir(), "--wait", "0", "status"},
                 {.uid = 65534}, Slow(absl::Seconds(60))));
  EXPECT_EQ(result.exit.code, 4) << result.output;
}

TEST_F(RdmactlTest, WrongUsageEndsWithTwoAndNamesTheWord) {
  EXPECT_EQ(Run({}).exit.code, 2);
  const ProgramResult unknown = Run({"frobnicate"});
  EXPECT_EQ(unknown.exit.code, 2);
  EXPECT_NE(unknown.output.find("frobnicate"), std::string::npos) << unknown.output;
  EXPECT_EQ(Run({"status", "--frobnicate"}).exit.code, 2);
  EXPECT_EQ(Run({"bench", "--mode", "teleport"}).exit.code, 2);
  EXPECT_EQ(Run({"bench", "--size", "0"}).exit.code, 2);
  EXPECT_EQ(Run({"bench", "--polled", "--blocking"}).exit.code, 2);
  EXPECT_EQ(Run({"bench", "--listen", ":1", "--connect", "1.2.3.4:5"}).exit.code, 2);
}

TEST_F(RdmactlTest, HelpListsChoicesAndAWrongOneIsToldThem) {
  const ProgramResult help = Run({"bench", "--help"});
  EXPECT_NE(help.output.find("--mode MODE:{send,write,read}=send"), std::string::npos)
      << help.output;
  EXPECT_EQ(help.output.find("->"), std::string::npos) << help.output;
  const ProgramResult wrong = Run({"bench", "--mode", "teleport"});
  EXPECT_EQ(wrong.exit.code, 2);
  EXPECT_NE(wrong.output.find("--mode: teleport not in {send,write,read}"), std::string::npos)
      << wrong.output;
}

TEST_F(RdmactlTest, HelpExplainsCommandsAndExitCodes) {
  const ProgramResult help = Run({"--help"});
  EXPECT_TRUE(help.ok());
  for (const char* word : {"status", "bench", "Exit codes", "RDMAD_RUN_DIR"}) {
    EXPECT_NE(help.output.find(word), std::string::npos) << word;
  }
  EXPECT_NE(Run({"bench", "--help"}).output.find("--polled"), std::string::npos);
}

TEST_F(RdmactlTest, BenchMeasuresEveryModeByItself) {
  for (const char* mode : {"send", "write", "read"}) {
    SCOPED_TRACE(mode);
    const ProgramResult result = Ask({"--json", "bench", "--mode", mode, "--seconds", "0.05"});
    EXPECT_TRUE(result.ok()) << result.output;
    for (const char* metric : {"latency", "bandwidth", "rate"}) {
      EXPECT_NE(
          result.output.find(std::string("\"metric\": \"") + metric + "\", \"mode\": \"" + mode),
          std::string::npos)
          << result.output;
    }
    EXPECT_NE(result.output.find("\"p999_us\": "), std::string::npos);
  }
  EXPECT_TRUE(Ask({"bench", "--threads", "--polled", "--lat", "--seconds", "0.05"}).ok());
}

TEST_F(RdmactlTest, BenchTakesAsManyBuffersAsItIsTold) {
  const auto window = [this](const std::string& mode, std::vector<std::string> more) {
    std::vector<std::string> words = {"--json",  "bench", "--bw",      "--mode", mode,
                                      "--depth", "4",     "--seconds", "0.05"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = Ask(words);
    EXPECT_TRUE(result.ok()) << result.output;
    return result.output;
  };
  for (const char* mode : {"send", "write", "read"}) {
    SCOPED_TRACE(mode);
    EXPECT_THAT(window(mode, {"--buffers", "1"}), ::testing::HasSubstr("\"buffers\": 1,"));
  }
  EXPECT_THAT(window("write", {}), ::testing::HasSubstr("\"buffers\": 4,"));
  // More than operations under way would never all be in use.
  EXPECT_THAT(window("write", {"--buffers", "9"}), ::testing::HasSubstr("\"buffers\": 4,"));
}

TEST_F(RdmactlTest, BenchMeasuresBetweenTwoDaemons) {
  ASSERT_OK(StartDaemon(1, {.log_level = "info"}));
  const TempDir folder;
  ProcessOptions options;
  options.output_file = folder.path() + "/log";
  ASSERT_OK_AND_ASSIGN(
      ChildProcess server,
      ChildProcess::Start({Runfile("client/rdmactl/rdmactl"), "--run-dir", Daemon(1).run_dir(),
                           "bench", "--listen", WithPort(Ipv4(1), 7471), "--once"},
                          options));
  ASSERT_TRUE(Eventually(absl::Seconds(10), [&] {
    return ReadFile(options.output_file).find("listening") != std::string::npos;
  }));
  const ProgramResult client = Ask({"bench", "--connect", WithPort(Ipv4(1), 7471), "--lat",
                                    "--seconds", "0.1", "--size", "1000"});
  EXPECT_TRUE(client.ok()) << client.output;
  const std::optional<ExitStatus> exit = server.Wait(Slow(absl::Seconds(10)));
  ASSERT_TRUE(exit.has_value());
  EXPECT_TRUE(exit->ok()) << ReadFile(options.output_file);
}

}  // namespace
}  // namespace rdmad::testing
