// Reading a configuration: what is taken, and how each mistake is told.
#include "daemon/control/config.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace rdmad::control {
namespace {

Config Parse(const std::string& text) {
  absl::StatusOr<Config> config = ParseConfig(text, "test.toml");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : Config();
}

TEST(Config, EmptyFileIsAllDefaults) {
  EXPECT_EQ(Parse(""), Config());
}

TEST(Config, TakesEveryKey) {
  const Config config = Parse(R"(
run_dir = "/run/other"
[log]
level = "debug"
[metrics]
address = "[::1]:9999"
[soft]
enabled = true
addresses = ["127.0.0.2", "::1"]
interfaces = ["eth0"]
[verbs]
enabled = true
devices = ["mlx5_0"]
[engine]
count = 3
spin_us = 7
[policy]
allow_users = ["alice", 1001]
allow_groups = []
[limits]
max_sessions = 10
max_sessions_per_user = 5
max_total_pool_bytes = 1_000_000
[session_limits]
max_qps = 1
max_cqs = 2
max_pds = 3
max_regions = 4
max_pools = 5
max_pool_bytes = 4096
max_region_bytes = 8192
max_cm_ids = 6
max_channels = 7
max_arena_bytes = 1048576
max_srqs = 8
max_ahs = 9
max_mws = 10
max_multicasts = 11
max_pending_requests = 12
[user_limits]
max_qps = 21
max_cqs = 22
max_pds = 23
max_regions = 24
max_pools = 25
max_pool_bytes = 0
max_region_bytes = 9192
max_cm_ids = 26
max_pending_requests = 32
max_channels = 27
max_arena_bytes = 2048576
max_srqs = 28
max_ahs = 29
max_mws = 30
max_multicasts = 31
)");
  Config wanted;
  wanted.run_dir = "/run/other";
  wanted.log.level = "debug";
  wanted.metrics.address = SocketAddress::Parse("[::1]:9999").value();
  wanted.soft.addresses = {IpAddress::Parse("127.0.0.2").value(), IpAddress::Parse("::1").value()};
  wanted.soft.interfaces = {"eth0"};
  wanted.verbs.devices = {"mlx5_0"};
  wanted.engine.count = 3;
  wanted.engine.spin_us = 7;
  wanted.policy.allow_users = std::vector<std::string>{"alice", "1001"};
  wanted.policy.allow_groups = std::vector<std::string>{};
  wanted.limits = {10, 5, 1'000'000};
  wanted.session = {1, 2, 3, 4, 5, 4096, 8192, 6, 12, 7, 1048576, 8, 9, 10, 11};
  wanted.user = {21, 22, 23, 24, 25, 0, 9192, 26, 32, 27, 2048576, 28, 29, 30, 31};
  EXPECT_EQ(config, wanted);
}

TEST(Config, MetricsOff) {
  EXPECT_FALSE(Parse("[metrics]\naddress = \"off\"").metrics.address.has_value());
}

TEST(Config, FewerSessionsLowerTheUnsetLimitPerUser) {
  EXPECT_EQ(Parse("[limits]\nmax_sessions = 3").limits.max_sessions_per_user, 3u);
}

TEST(ConfigNotes, DefaultsHaveNone) {
  EXPECT_TRUE(ConfigNotes(Config()).empty());
}

TEST(ConfigNotes, ALimitOfASessionThatItsUserIsNotAllowedIsTold) {
  const std::vector<std::string> notes =
      ConfigNotes(Parse("[session_limits]\nmax_qps = 40000\n[user_limits]\nmax_cm_ids = 5\n"));
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0].rfind("user_limits.max_qps = 32768: less than session_limits.max_qps = 40000", 0),
            0u)
      << notes[0];
  EXPECT_EQ(notes[1].rfind("user_limits.max_cm_ids = 5: less than", 0), 0u) << notes[1];
}

struct Mistake {
  const char* what;
  const char* text;
  const char* where;  // "line:column"
  std::vector<const char*> words;
};

class ConfigMistake : public ::testing::TestWithParam<Mistake> {};

TEST_P(ConfigMistake, IsOneLineWithPlaceAndCure) {
  const absl::StatusOr<Config> config = ParseConfig(GetParam().text, "test.toml");
  ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(config.status().message());
  EXPECT_EQ(message.rfind(std::string("test.toml:") + GetParam().where + ": ", 0), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const char* word : GetParam().words)
    EXPECT_NE(message.find(word), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigMistake,
    ::testing::Values(
        Mistake{"no TOML", "run_dir = ", "1:11", {}},
        Mistake{"key twice", "run_dir = \"/a\"\nrun_dir = \"/b\"", "2:11", {"run_dir"}},
        Mistake{"unknown key",
                "\nrundir = \"/a\"",
                "2:1",
                {"unknown key \"rundir\"", "did you mean \"run_dir\""}},
        Mistake{"unknown key in table",
                "[metrics]\nadress = \"off\"",
                "2:1",
                {"unknown key \"adress\" in [metrics]", "did you mean \"address\""}},
        Mistake{"unknown key like nothing", "[log]\nxyzzy_plugh = 1", "2:1", {"known here: level"}},
        Mistake{"unknown table", "[session]\nmax_qps = 1", "1:2", {"unknown table [session]"}},
        Mistake{"table is a value", "log = 1", "1:7", {"log must be a table", "[log]"}},
        Mistake{
            "string is a number", "run_dir = 1", "1:11", {"run_dir must be a string", "quotes"}},
        Mistake{"number is a string",
                "[engine]\nspin_us = \"1\"",
                "2:11",
                {"engine.spin_us must be an integer, not a string"}},
        Mistake{"no engine", "[engine]\ncount = 0", "2:9", {"0 is out of range", "1 to 16"}},
        Mistake{"too many engines", "[engine]\ncount = 17", "2:9", {"17 is out of range"}},
        Mistake{"number is a fraction", "[engine]\nspin_us = 1.5", "2:11", {"must be an integer"}},
        Mistake{"bool is a number", "[soft]\nenabled = 1", "2:11", {"must be true or false"}},
        Mistake{"list is a string",
                "[soft]\naddresses = \"127.0.0.2\"",
                "2:13",
                {"must be a list", "[ ]"}},
        Mistake{"list of numbers", "[soft]\naddresses = [1]", "2:14", {"must be strings"}},
        Mistake{
            "negative", "[engine]\nspin_us = -1", "2:11", {"-1 is out of range", "0 to 1000000"}},
        Mistake{
            "too small", "[session_limits]\nmax_qps = 0", "2:11", {"out of range", "1 to 65535"}},
        Mistake{"too large", "[session_limits]\nmax_qps = 65536", "2:11", {"out of range"}},
        Mistake{
            "wraps 32 bits", "[session_limits]\nmax_cqs = 4294967297", "2:11", {"out of range"}},
        Mistake{"relative run_dir", "run_dir = \"run\"", "1:11", {"absolute"}},
        Mistake{"log level", "[log]\nlevel = \"verbose\"", "2:9", {"\"verbose\"", "trace, debug"}},
        Mistake{"metrics without port",
                "[metrics]\naddress = \"127.0.0.1\"",
                "2:11",
                {"127.0.0.1:9464"}},
        Mistake{"no address", "[soft]\naddresses = [\"localhost\"]", "2:14", {"\"localhost\""}},
        Mistake{"wildcard address",
                "[soft]\naddresses = [\"0.0.0.0\"]",
                "2:14",
                {"single host address"}},
        Mistake{"multicast address",
                "[soft]\naddresses = [\"224.0.0.1\"]",
                "2:14",
                {"single host address"}},
        Mistake{"interface", "[soft]\ninterfaces = [\"a/b\"]", "2:15", {"ip link"}},
        Mistake{"off, but with addresses",
                "[soft]\nenabled = false\naddresses = [\"127.0.0.2\"]",
                "3:13",
                {"soft.enabled = false contradicts"}},
        Mistake{"RDMA device", "[verbs]\ndevices = [\"a/b\"]", "2:12", {"ibv_devices"}},
        Mistake{"verbs off, but with devices",
                "[verbs]\nenabled = false\ndevices = [\"mlx5_0\"]",
                "3:11",
                {"verbs.enabled", "remove"}},
        Mistake{"off, but with interfaces",
                "[soft]\nenabled = false\ninterfaces = [\"eth0\"]",
                "3:14",
                {"contradicts"}},
        Mistake{"more per user than in all",
                "[limits]\nmax_sessions = 5\nmax_sessions_per_user = 6",
                "3:25",
                {"max_sessions_per_user = 6 is over limits.max_sessions = 5"}}),
    [](const auto& mistake) {
      std::string name = mistake.param.what;
      for (char& c : name) c = isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

TEST(ConfigMistakes, AllAreToldAtOnceInTheOrderOfTheFile) {
  const absl::StatusOr<Config> config =
      ParseConfig("[session_limits]\nmax_qps = 0\n[log]\nlevel = 3\n[zzzzzz]\n", "test.toml");
  const std::string message(config.status().message());
  const size_t first = message.find("test.toml:2:11: ");
  const size_t second = message.find("\ntest.toml:4:9: ");
  const size_t third = message.find("\ntest.toml:5:2: ");
  EXPECT_EQ(first, 0u) << message;
  EXPECT_LT(second, third) << message;
  EXPECT_NE(third, std::string::npos) << message;
}

TEST(LoadConfig, MissingFileIsNamed) {
  const absl::StatusOr<Config> config = LoadConfig("/nonexistent/rdmad.toml");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(config.status().message()).find("/nonexistent/rdmad.toml"),
            std::string::npos);
}

TEST(LoadConfig, DirectoryIsAnError) {
  EXPECT_FALSE(LoadConfig("/tmp").ok());
}

TEST(LoadConfig, EndlessFileIsAnError) {
  const absl::StatusOr<Config> config = LoadConfig("/dev/zero");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rdmad::control
