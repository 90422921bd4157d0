// A real Prometheus scrapes a live daemon; what it then answers to queries is what happened.
// promtool lints the page.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/testbed.h"
#include "tests/support/file.h"
#include "tests/support/raw_client.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tools.h"

namespace rdmad::testing {
namespace {

// A free port of 127.0.0.1; somebody else could take it until it is used.
int FreePort() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

// The body of an answer to GET `path`; empty if there is none.
std::string HttpGet(int port, const std::string& path) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return "";
  }
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n");
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  char buffer[16384];
  for (ssize_t bytes; (bytes = ::recv(fd.get(), buffer, sizeof(buffer), 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(bytes));
  }
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

std::string UrlEncode(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      result.push_back(c);
    } else {
      absl::StrAppend(&result, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return result;
}

class PrometheusTest : public LoopbackTest {
 protected:
  void SetUp() override {
    // Before the daemon runs: fetching a program may take minutes.
    prometheus_ = FindTool("prometheus");
    promtool_ = FindTool("promtool");
    ASSERT_OK(StartDaemon(0, {.metrics = "127.0.0.1:0", .log_level = "info"}));
    ASSERT_NO_FATAL_FAILURE(FindMetricsPort());
    ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(0), "scraped app"));
    client_ = std::make_unique<Client>(client);
    ASSERT_OK_AND_ASSIGN(Connection connection, ConnectApps(client, client, Ipv4(0)));
    connection_ = std::make_unique<Connection>(std::move(connection));
  }

  // The daemon chose the port itself and says which.
  void FindMetricsPort() {
    ASSERT_OK_AND_ASSIGN(const RawClient observer,
                         RawClient::Attach(Daemon(0).run_dir(), "observer"));
    v1::GetStatusReply status;
    ASSERT_OK(observer.Call(observer.admin(), &v1::AdminService::Stub::GetStatus,
                            v1::GetStatusRequest(), &status));
    const std::string address = status.metrics_address();
    const size_t colon = address.rfind(':');
    ASSERT_EQ(address.substr(0, colon), "127.0.0.1");
    metrics_port_ = std::stoi(address.substr(colon + 1));
  }

  void Exchange(int messages) {
    for (int i = 0; i < messages; ++i) {
      ASSERT_OK(connection_->active.SendCopy("message"));
      ASSERT_OK(connection_->passive.Receive(absl::Seconds(5)));
    }
  }

  // The value of the only series of an instant query; negative if there is none.
  double Query(const std::string& query) {
    const std::string answer = HttpGet(prometheus_port_, "/api/v1/query?query=" + UrlEncode(query));
    // ..."value":[1764500000.123,"42"]...
    const size_t at = answer.find("\"value\":[");
    if (at == std::string::npos) return -1;
    const size_t quote = answer.find('"', at + 9);
    return std::stod(answer.substr(quote + 1));
  }

  absl::StatusOr<std::string> prometheus_;
  absl::StatusOr<std::string> promtool_;
  int metrics_port_ = 0;
  int prometheus_port_ = 0;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(PrometheusTest, ARealPrometheusScrapesWhatHappens) {
  if (!prometheus_.ok()) GTEST_SKIP() << prometheus_.status().message();
  Exchange(100);
  ASSERT_OK_AND_ASSIGN(const Client idle, AttachTo(Daemon(0), "idle app"));
  const TempDir folder;
  ASSERT_TRUE(WriteFile(folder.path() + "/prometheus.yml",
                        absl::StrCat("global:\n  scrape_interval: 250ms\n  scrape_timeout: 200ms\n"
                                     "scrape_configs:\n  - job_name: rdmad\n    static_configs:\n"
                                     "      - targets: [\"127.0.0.1:",
                                     metrics_port_, "\"]\n")));
  prometheus_port_ = FreePort();
  ProcessOptions options;
  options.output_file = folder.path() + "/log";
  ASSERT_OK_AND_ASSIGN(
      ChildProcess prometheus,
      ChildProcess::Start({*prometheus_, "--config.file=" + folder.path() + "/prometheus.yml",
                           "--storage.tsdb.path=" + folder.path() + "/data",
                           absl::StrCat("--web.listen-address=127.0.0.1:", prometheus_port_)},
                          options));
  ASSERT_TRUE(Eventually(absl::Seconds(30), [&] { return Query("up{job=\"rdmad\"}") == 1; }))
      << LastLines(ReadFile(options.output_file), 20);

  // 100 sends and 100 receives, and the same number of completions, at least.
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
    return Query("rdmad_engine_work_requests_total") >= 200;
  })) << Query("rdmad_engine_work_requests_total");
  EXPECT_GE(Query("rdmad_engine_completions_total"), 200);
  EXPECT_EQ(Query("rdmad_sessions"), 2);
  EXPECT_EQ(Query("sum(rdmad_session_objects{client=\"idle app\"})"), 0);
  EXPECT_GE(Query("sum(rdmad_session_objects{client=\"scraped app\"})"),
            4);  // QPs, CM ids and more
  EXPECT_EQ(Query("rdmad_device_port_active{device=\"soft0\"}"), 1);
  EXPECT_EQ(Query("sum(rdmad_device_queue_pairs)"), 2);
  EXPECT_GT(Query("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(Query("sum(rdmad_soft_local_messages_total)"), 100);
  EXPECT_LT(Query("sum(rdmad_soft_local_messages_total)"), 1000);

  // A rate needs two scrapes.
  EXPECT_TRUE(Eventually(absl::Seconds(5),
                         [&] { return Query("rate(process_cpu_seconds_total[1m])") >= 0; }));

  // It follows what goes on.
  const double before = Query("rdmad_engine_work_requests_total");
  Exchange(1000);
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
    return Query("rdmad_engine_work_requests_total") >= before + 2000;
  }));
  connection_.reset();
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
    return Query("sum(rdmad_device_queue_pairs)") == 0;
  })) << Query("sum(rdmad_device_queue_pairs)");
}

TEST_F(PrometheusTest, PromtoolFindsNothingToComplainAbout) {
  if (!promtool_.ok()) GTEST_SKIP() << promtool_.status().message();
  Exchange(10);
  const TempDir folder;
  const std::string page = HttpGet(metrics_port_, "/metrics");
  ASSERT_NE(page.find("rdmad_build_info"), std::string::npos) << page;
  ASSERT_TRUE(WriteFile(folder.path() + "/page", page));
  ASSERT_OK_AND_ASSIGN(
      const ProgramResult result,
      RunProgram(
          {"bash", "-c", absl::StrCat(*promtool_, " check metrics <", folder.path(), "/page")}));
  EXPECT_TRUE(result.ok()) << result.output;
  EXPECT_EQ(result.output, "");
}

// Labels come from bounded sets: what clients choose must not make series without end.
TEST_F(PrometheusTest, ManyClientsDoNotMakeManySeries) {
  const auto lines = [&] {
    const std::string page = HttpGet(metrics_port_, "/metrics");
    return std::count(page.begin(), page.end(), '\n');
  };
  const auto before = lines();
  for (int i = 0; i < 200; ++i) ASSERT_OK(AttachTo(Daemon(0), absl::StrCat("client ", i)));
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return lines() <= before + 20; }))
      << before << " lines before, now " << lines();
}

// Case 40: the port of the metrics is taken.
TEST_F(PrometheusTest, ATakenPortIsNamedAndNeverACrash) {
  DaemonProcess second(
      {.addresses = {Ipv4(1)}, .metrics = absl::StrCat("127.0.0.1:", metrics_port_)});
  const absl::Status status = second.Start();
  if (status.ok()) {
    // It runs without metrics and says so.
    EXPECT_NE(second.Log().find(absl::StrCat(metrics_port_)), std::string::npos) << second.Log();
  } else {
    EXPECT_NE(status.ToString().find("exit code"), std::string::npos) << status;
    EXPECT_NE(status.ToString().find(absl::StrCat(metrics_port_)), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace rdmad::testing
