// What the metrics server answers to the head of a request.
#include <gtest/gtest.h>

#include <string>

#include "daemon/control/metrics_server.h"

namespace rdmad::control {
namespace {

std::string Answer(const std::string& head) {
  return HttpAnswer(head + "\r\n\r\n", [] { return std::string("metric 1\n"); });
}

TEST(HttpAnswer, GetMetrics) {
  const std::string answer = Answer("GET /metrics HTTP/1.1\r\nHost: a");
  EXPECT_EQ(answer.rfind("HTTP/1.1 200 OK\r\n", 0), 0u);
  EXPECT_NE(answer.find("\r\nContent-Type: text/plain; version=0.0.4"), std::string::npos);
  EXPECT_NE(answer.find("\r\nContent-Length: 9\r\n"), std::string::npos);
  EXPECT_NE(answer.find("\r\n\r\nmetric 1\n"), std::string::npos);
}

TEST(HttpAnswer, QueryIsIgnored) {
  EXPECT_NE(Answer("GET /metrics?x=1 HTTP/1.0").find("200 OK"), std::string::npos);
}

TEST(HttpAnswer, HeadHasNoBody) {
  const std::string answer = Answer("HEAD /metrics HTTP/1.1");
  EXPECT_NE(answer.find("Content-Length: 9"), std::string::npos);
  EXPECT_EQ(answer.substr(answer.size() - 4), "\r\n\r\n");
}

TEST(HttpAnswer, ElsewhereIsNotFound) {
  for (const char* head :
       {"GET / HTTP/1.1", "GET /metricsx HTTP/1.1", "GET /../metrics HTTP/1.1"}) {
    EXPECT_NE(Answer(head).find("404 Not Found"), std::string::npos) << head;
  }
}

TEST(HttpAnswer, OtherMethodsAreNotAllowed) {
  EXPECT_NE(Answer("POST /metrics HTTP/1.1").find("405 "), std::string::npos);
}

TEST(HttpAnswer, NonsenseIsABadRequest) {
  for (const char* head : {"", " ", "GET", "GET /metrics", "GET /metrics SMTP", "\x01\x02\x03",
                           "  HTTP/2.0", "PRI * HTTP/2.0"}) {
    EXPECT_NE(Answer(head).find("400 Bad Request"), std::string::npos) << head;
  }
}

}  // namespace
}  // namespace rdmad::control
