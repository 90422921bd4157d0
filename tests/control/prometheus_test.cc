// Prometheus itself judges /metrics: promtool lints it, a real server scrapes it, and a query finds
// it.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <iostream>
#include <string>

#include "tests/control/daemon_bed.h"
#include "tests/control/http.h"
#include "tests/support/tools.h"

namespace rdmad::testing {
namespace {

class Prometheus : public ::testing::Test {
 protected:
  void SetUp() override {
    DaemonOptions options = OwnDaemon();
    options.metrics = OwnAddress() + ":0";
    daemon_ = std::make_unique<DaemonProcess>(options);
    ASSERT_OK(daemon_->Start());
    ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Attach(daemon_->run_dir(), "scraped"));
    client_ = std::make_unique<RawClient>(std::move(client));
    ASSERT_OK_AND_ASSIGN(const v1::GetStatusReply status, StatusBy(*client_));
    address_ = status.metrics_address();
  }

  const TempDir temp_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
  std::string address_;
};

// A port that is free now.
uint16_t FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, OwnAddress(1).c_str(), &address.sin_addr);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  socklen_t bytes = sizeof(address);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return ntohs(address.sin_port);
}

TEST_F(Prometheus, PromtoolFindsNothingToSay) {
  const absl::StatusOr<std::string> promtool = FindTool("promtool");
  if (!promtool.ok()) GTEST_SKIP() << promtool.status().message();
  const std::string file = temp_.path() + "/metrics";
  ASSERT_TRUE(WriteFile(file, HttpGet(address_, "/metrics")));
  absl::StatusOr<ProgramResult> result =
      RunProgram({"/bin/sh", "-c", "exec \"$0\" check metrics <\"$1\"", *promtool, file});
  ASSERT_OK(result);
  EXPECT_EQ(result->exit.code, 0) << result->output;
  EXPECT_EQ(result->output, "");
}

TEST_F(Prometheus, ScrapesAndAnswersQueries) {
  const absl::StatusOr<std::string> prometheus = FindTool("prometheus");
  if (!prometheus.ok()) GTEST_SKIP() << prometheus.status().message();
  ASSERT_TRUE(WriteFile(
      temp_.path() + "/prometheus.yml",
      "scrape_configs:\n- job_name: rdmad\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n"
      "  static_configs:\n  - targets: ['" +
          address_ + "']\n"));
  const std::string server = absl::StrCat(OwnAddress(1), ":", FreePort());
  ProcessOptions options;
  options.output_file = temp_.path() + "/log";
  absl::StatusOr<ChildProcess> process = ChildProcess::Start(
      {*prometheus, "--config.file=" + temp_.path() + "/prometheus.yml",
       "--storage.tsdb.path=" + temp_.path() + "/data", "--web.listen-address=" + server},
      options);
  ASSERT_OK(process);
  std::string answer;
  const auto query = [&](const std::string& expression, const std::string& expected) {
    const absl::Time deadline = absl::Now() + Slow(absl::Seconds(30));
    do {
      answer = HttpGet(server, "/api/v1/query?query=" + expression);
      if (Has(answer, expected)) return true;
      absl::SleepFor(absl::Milliseconds(50));
    } while (absl::Now() < deadline);
    return false;
  };
  // "value":[time,"1"]
  EXPECT_TRUE(query("up", ",\"1\"]")) << answer << ReadFile(options.output_file);
  EXPECT_TRUE(query("rdmad_sessions", ",\"1\"]")) << answer;
  EXPECT_TRUE(query("sum(rdmad_session_objects{client=%22scraped%22})", ",\"0\"]")) << answer;
  EXPECT_TRUE(query("rdmad_device_port_active", "\"device\":\"soft0\"")) << answer;
  EXPECT_TRUE(query("rate(process_cpu_seconds_total[1m])", "\"status\":\"success\"")) << answer;
}

}  // namespace
}  // namespace rdmad::testing
