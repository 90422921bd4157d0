// /metrics of the running daemon.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/control/daemon_bed.h"
#include "tests/control/http.h"

namespace rdmad::testing {
namespace {

class MetricsEndpoint : public ::testing::Test {
 protected:
  void Start() {
    DaemonOptions options = OwnDaemon();
    options.metrics = OwnAddress() + ":0";
    daemon_ = std::make_unique<DaemonProcess>(options);
    ASSERT_OK(daemon_->Start());
    ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Attach(daemon_->run_dir(), "we\"ird"));
    client_ = std::make_unique<RawClient>(std::move(client));
    ASSERT_OK_AND_ASSIGN(const v1::GetStatusReply status, StatusBy(*client_));
    address_ = status.metrics_address();
    ASSERT_NE(address_, "");
  }
  std::string Scrape() {
    const std::string answer = Exchange(address_, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(answer.rfind("HTTP/1.1 200 OK\r\n", 0), 0u) << answer.substr(0, 200);
    return answer.substr(answer.find("\r\n\r\n") + 4);
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
  std::string address_;
};

TEST_F(MetricsEndpoint, ShowsDaemonEngineDeviceAndSession) {
  Start();
  const std::string text = Scrape();
  EXPECT_TRUE(Has(text, "\nrdmad_sessions 1\n")) << text;
  EXPECT_TRUE(Has(text, "\nrdmad_engine_wakeups_total{engine=\"0\"} ")) << text;
  EXPECT_TRUE(Has(text, "\nrdmad_engine_sessions{engine=\"0\"} ")) << text;
  EXPECT_TRUE(Has(text, "\nrdmad_device_port_active{device=\"soft0\"} 1\n")) << text;
  EXPECT_TRUE(
      Has(text, "rdmad_session_objects{session=\"1\",client=\"we\\\"ird\",kind=\"qp\"} 0\n"))
      << text;
  const std::string user = absl::StrCat("uid=\"", geteuid(), "\"");
  EXPECT_TRUE(Has(text, "\nrdmad_user_sessions{" + user + "} 1\n")) << text;
  EXPECT_TRUE(Has(text, "\nrdmad_user_quota_in_use{" + user + ",limit=\"max_qps\"} 0\n")) << text;
  EXPECT_FALSE(Has(text, "rdmad_user_quota_limit{" + user)) << "the daemon's own user";
  EXPECT_TRUE(Has(text, "\nprocess_open_fds ")) << text;
}

// What `promtool check metrics` would say, where it is not installed: names, types and help texts.
TEST_F(MetricsEndpoint, FollowsTheConventions) {
  Start();
  std::istringstream lines(Scrape());
  std::set<std::string> with_help;
  std::set<std::string> with_type;
  std::set<std::string> series;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, what, name, rest;
    if (line.rfind("# ", 0) == 0) {
      words >> hash >> what >> name;
      std::getline(words, rest);
      if (what == "HELP") {
        EXPECT_TRUE(with_help.insert(name).second) << "twice: " << line;
        EXPECT_GT(rest.size(), 10u) << line;
      } else if (what == "TYPE") {
        EXPECT_TRUE(with_type.insert(name).second) << "twice: " << line;
        EXPECT_EQ(rest == " counter", name.size() > 6 && name.substr(name.size() - 6) == "_total")
            << line;
      }
      continue;
    }
    const std::string key = line.substr(0, line.rfind(' '));
    EXPECT_TRUE(series.insert(key).second) << "twice: " << line;
    const std::string metric = key.substr(0, key.find('{'));
    EXPECT_TRUE(with_help.contains(metric) && with_type.contains(metric)) << line;
    EXPECT_TRUE(metric.rfind("rdmad_", 0) == 0 || metric.rfind("process_", 0) == 0) << line;
    for (const char* unit : {"_ns", "_us", "_ms", "_kb", "_pct"})
      EXPECT_FALSE(Has(metric + "_", std::string(unit) + "_")) << line;
  }
  EXPECT_GT(series.size(), 50u);
}

TEST_F(MetricsEndpoint, ObjectsAppearAndGo) {
  Start();
  v1::AllocPdReply pd;
  ASSERT_OK(
      client_->Call(client_->verbs(), &v1::VerbsService::Stub::AllocPd, v1::AllocPdRequest(), &pd));
  EXPECT_TRUE(Has(Scrape(), "kind=\"pd\"} 1\n"));
  client_->HangUp();
  EXPECT_TRUE(Soon([&] { return Has(Scrape(), "\nrdmad_sessions 0\n"); }));
  EXPECT_FALSE(Has(Scrape(), "session=\"1\""));
}

TEST_F(MetricsEndpoint, NonsenseAndIdlersDoNotKeepAScrapeOut) {
  Start();
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 10; ++i) idle.push_back(ConnectTo(address_));
  EXPECT_TRUE(Has(Exchange(address_, "nonsense\r\n\r\n"), "400 Bad Request"));
  EXPECT_TRUE(Has(Exchange(address_, "GET /other HTTP/1.1\r\n\r\n"), "404 Not Found"));
  EXPECT_EQ(Exchange(address_, std::string(20'000, 'x')), "") << "a head without end is cut off";
  EXPECT_TRUE(Has(Scrape(), "rdmad_build_info"));
}

TEST_F(MetricsEndpoint, TheOldestIdlersGoWhenThereAreTooManyAndTheOthersTimeOut) {
  Start();
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 40; ++i) idle.push_back(ConnectTo(address_));
  EXPECT_TRUE(Has(Scrape(), "rdmad_build_info")) << "at once, while 16 are silent";
  char byte = 0;
  EXPECT_EQ(recv(idle.front().get(), &byte, 1, 0), 0);
  EXPECT_EQ(recv(idle.back().get(), &byte, 1, 0), 0);  // after some seconds
}

TEST(MetricsPort, TakenPortIsToldAndRdmadRunsWithout) {
  const UniqueFd other(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, OwnAddress().c_str(), &address.sin_addr);
  ASSERT_EQ(bind(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(other.get(), 1), 0);
  socklen_t bytes = sizeof(address);
  getsockname(other.get(), reinterpret_cast<sockaddr*>(&address), &bytes);

  DaemonOptions options = OwnDaemon();
  options.metrics = absl::StrCat(OwnAddress(), ":", ntohs(address.sin_port));
  DaemonProcess daemon(options);
  ASSERT_OK(daemon.Start());
  const std::string log = daemon.Log();
  EXPECT_TRUE(Has(log, "error control: running without metrics: metrics on " + options.metrics))
      << log;
  EXPECT_TRUE(Has(log, "metrics.address")) << log;
  ASSERT_OK_AND_ASSIGN(const RawClient client, RawClient::Attach(daemon.run_dir()));
  ASSERT_OK_AND_ASSIGN(const v1::GetStatusReply status, StatusBy(client));
  EXPECT_EQ(status.metrics_address(), "");
}

}  // namespace
}  // namespace rdmad::testing
