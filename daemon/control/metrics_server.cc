#include "daemon/control/metrics_server.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/completion_condition.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"

namespace rdmad::control {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause{100};

std::string Answer(const char* status, const std::string& type, const std::string& body,
                   bool with_body) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", type,
                      "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n",
                      with_body ? body : std::string());
}

}  // namespace

std::string HttpAnswer(const std::string& request_head, const std::function<std::string()>& text) {
  const std::string line = request_head.substr(0, request_head.find("\r\n"));
  const size_t first = line.find(' ');
  const size_t second = line.find(' ', first + 1);
  if (first == std::string::npos || second == std::string::npos ||
      line.compare(second + 1, 7, "HTTP/1.") != 0) {
    return Answer("400 Bad Request", "text/plain", "not an HTTP/1 request\n", true);
  }
  const std::string method = line.substr(0, first);
  const std::string target = line.substr(first + 1, second - first - 1);
  const std::string path = target.substr(0, target.find('?'));
  if (method != "GET" && method != "HEAD") {
    return Answer("405 Method Not Allowed", "text/plain", "GET /metrics\n", true);
  }
  const bool with_body = method == "GET";
  if (path == "/metrics")
    return Answer("200 OK", "text/plain; version=0.0.4; charset=utf-8", text(), with_body);
  return Answer("404 Not Found", "text/plain", "rdmad has its metrics at /metrics\n", with_body);
}

// One connection: reads a head, writes an answer, closes. Kept alive by what it waits for.
class MetricsServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, std::function<std::string()> text)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), text_(std::move(text)) {}

  void Start() {
    timer_.expires_after(std::chrono::seconds(kTimeoutSeconds));
    timer_.async_wait([weak = weak_from_this()](const error_code& error) {
      const std::shared_ptr<Connection> self = weak.lock();
      if (!error && self != nullptr) self->Close();
    });
    boost::asio::async_read_until(socket_, boost::asio::dynamic_buffer(head_, kMaxRequestBytes),
                                  "\r\n\r\n",
                                  [self = shared_from_this()](const error_code& error, size_t) {
                                    // Also when the head is too long: the connection just ends.
                                    if (error) return self->Close();
                                    self->Write();
                                  });
  }

  void Close() {
    timer_.cancel();
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

 private:
  void Write() {
    answer_ = HttpAnswer(head_, text_);
    boost::asio::async_write(
        socket_, boost::asio::buffer(answer_),
        [self = shared_from_this()](const error_code&, size_t) { self->Close(); });
  }

  tcp::socket socket_;
  boost::asio::steady_timer timer_;
  const std::function<std::string()> text_;
  std::string head_;
  std::string answer_;
};

MetricsServer::MetricsServer(boost::asio::io_context& loop, std::function<std::string()> text)
    : acceptor_(loop), pause_(loop), text_(std::move(text)) {}

MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    boost::asio::io_context& loop, const SocketAddress& address,
    std::function<std::string()> text) {
  std::unique_ptr<MetricsServer> server(new MetricsServer(loop, std::move(text)));
  RD_RETURN_IF_ERROR(server->Listen(address));
  server->Accept();
  return server;
}

absl::Status MetricsServer::Listen(const SocketAddress& address) {
  tcp::endpoint endpoint;
  sockaddr_storage raw;
  const socklen_t bytes = address.ToSockaddr(&raw);
  endpoint.resize(bytes);
  std::memcpy(endpoint.data(), &raw, bytes);
  error_code error;
  const auto failed = [&](const char* step) {
    return absl::UnavailableError(
        absl::StrCat("metrics on ", address.ToString(), ": ", step, ": ", error.message(),
                     "; free the address or set metrics.address in rdmad.toml"));
  };
  acceptor_.open(endpoint.protocol(), error);
  if (error) return failed("open");
  acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  acceptor_.bind(endpoint, error);
  if (error) return failed("bind");
  acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  if (error) return failed("listen");
  const tcp::endpoint bound = acceptor_.local_endpoint(error);
  if (error) return failed("local_endpoint");
  address_ = SocketAddress::FromSockaddr(bound.data(), bound.size()).value_or(address);
  return absl::OkStatus();
}

void MetricsServer::Accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    // The acceptor was closed, and this object with it.
    if (error == boost::asio::error::operation_aborted) return;
    if (error) {
      // No descriptor left: asking again at once would spin.
      pause_.expires_after(kAcceptPause);
      pause_.async_wait([this](const error_code& stopped) {
        if (!stopped) Accept();
      });
      return;
    }
    Serve(std::move(socket));
    Accept();
  });
}

void MetricsServer::Serve(tcp::socket socket) {
  connections_.remove_if([](const std::weak_ptr<Connection>& one) { return one.expired(); });
  // Who connects and says nothing must not keep others out.
  if (connections_.size() >= kMaxConnections) {
    if (const std::shared_ptr<Connection> oldest = connections_.front().lock()) oldest->Close();
    connections_.pop_front();
  }
  auto connection = std::make_shared<Connection>(std::move(socket), text_);
  connections_.push_back(connection);
  connection->Start();
}

}  // namespace rdmad::control
