// Answers GET /metrics over HTTP/1.1, on the control thread.
//
// prometheus-cpp's own server (civetweb) wakes up every two seconds for nothing and throws when its
// port is taken; its data model and text format are used (metrics.h), its server is not. One
// request per connection; what is not a short GET or HEAD gets an error; slow and surplus
// connections are dropped.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/base/socket_address.h"

namespace rdmad::control {

class MetricsServer {
 public:
  static constexpr size_t kMaxConnections = 16;
  static constexpr size_t kMaxRequestBytes = 8192;
  static constexpr int kTimeoutSeconds = 5;  // of a connection's whole life

  // `text` gives the body, each time. Errors: Unavailable (the address is taken or not this host's;
  // says which).
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(boost::asio::io_context& loop,
                                                              const SocketAddress& address,
                                                              std::function<std::string()> text);
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  ~MetricsServer();

  // As bound: with the port that the kernel chose if 0 was asked.
  [[nodiscard]] const SocketAddress& address() const noexcept { return address_; }

 private:
  class Connection;

  MetricsServer(boost::asio::io_context& loop, std::function<std::string()> text);
  absl::Status Listen(const SocketAddress& address);
  void Accept();
  void Serve(boost::asio::ip::tcp::socket socket);

  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  const std::function<std::string()> text_;
  SocketAddress address_;
  std::list<std::weak_ptr<Connection>> connections_;  // the oldest first; some have ended
};

// The answer to what stands before the empty line of a request: status line, headers and body.
// Exposed for tests.
std::string HttpAnswer(const std::string& request_head, const std::function<std::string()>& text);

}  // namespace rdmad::control
