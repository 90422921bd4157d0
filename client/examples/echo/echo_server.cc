// echo_server: sends every message back, to many clients at a time, on one thread with Boost.Asio.
#include <CLI/CLI.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include "rdmad/asio.h"
#include "rdmad/rdmad.h"

namespace {

using boost::asio::awaitable;
using boost::asio::use_awaitable;

struct Totals {
  uint64_t clients = 0;
  uint64_t messages = 0;
  uint64_t bytes = 0;
};

awaitable<void> Echo(rdmad::AsioEndpoint endpoint, Totals& totals, bool verbose) {
  const std::string peer = endpoint.endpoint().peer_addr().ToString();
  if (verbose) std::fprintf(stderr, "echo_server: %s connected\n", peer.c_str());
  absl::Status status;
  while (status.ok()) {
    absl::StatusOr<rdmad::Buffer> message = co_await endpoint.async_receive(use_awaitable);
    if (!message.ok()) {
      status = message.status();
      break;
    }
    ++totals.messages;
    totals.bytes += message->size();
    status = co_await endpoint.async_send(std::move(message).value(), use_awaitable);
  }
  if (!rdmad::IsClosed(status)) {
    std::fprintf(stderr, "echo_server: %s: %s\n", peer.c_str(), std::string(status.message()).c_str());
  } else if (verbose) {
    std::fprintf(stderr, "echo_server: %s closed\n", peer.c_str());
  }
}

awaitable<void> Accept(rdmad::AsioListener& listener, Totals& totals, bool verbose, absl::Status* result) {
  while (true) {
    absl::StatusOr<rdmad::AsioEndpoint> endpoint = co_await listener.async_accept(use_awaitable);
    if (endpoint.ok()) {
      ++totals.clients;
      boost::asio::co_spawn(listener.get_executor(), Echo(std::move(endpoint).value(), totals, verbose),
                            boost::asio::detached);
    } else if (absl::IsUnavailable(endpoint.status())) {
      // The daemon has not come back yet; the listener looks for it again.
      std::fprintf(stderr, "echo_server: %s\n", std::string(endpoint.status().message()).c_str());
    } else {
      *result = endpoint.status();
      co_return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Sends every message back to its sender; serves any number of clients.", "echo_server");
  app.footer("Ends on SIGINT or SIGTERM with exit code 0 and says how much it has echoed.\n"
             "Exit codes: 0 ended by a signal, 1 failed, 2 wrong usage.");
  rdmad::AttachOptions attach;
  attach.name = "echo_server";
  std::string address;
  bool verbose = false;
  rdmad::EndpointOptions options;
  app.add_option("--run-dir", attach.run_dir, "directory of the daemon's sockets")->envname("RDMAD_RUN_DIR");
  app.add_option("ADDRESS", address, "address:port to listen on, for example 127.0.0.2:7471 or :7471")->required();
  app.add_option("--max-message", options.max_recv_bytes, "longest message, in bytes")
      ->check(CLI::Range(uint32_t{1}, uint32_t{16} << 20))
      ->capture_default_str();
  app.add_option("--receives", options.recv_depth, "receives kept posted per client")
      ->check(CLI::Range(uint32_t{1}, uint32_t{4096}))
      ->capture_default_str();
  app.add_flag("--verbose", verbose, "say who comes and goes");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  absl::Status result;
  const absl::StatusOr<rdmad::Client> client = rdmad::Client::Attach(attach);
  absl::StatusOr<rdmad::Listener> listener =
      client.ok() ? rdmad::Listener::Listen(*client, address, options) : client.status();
  if (!listener.ok()) {
    std::fprintf(stderr, "echo_server: %s\n", std::string(listener.status().message()).c_str());
    return 1;
  }
  std::fprintf(stderr, "echo_server: listening on %s\n", listener->local_addr().ToString().c_str());

  boost::asio::io_context loop;
  rdmad::AsioListener acceptor(loop.get_executor(), std::move(listener).value());
  Totals totals;
  boost::asio::signal_set signals(loop, SIGINT, SIGTERM);
  signals.async_wait([&loop](const boost::system::error_code&, int) { loop.stop(); });
  boost::asio::co_spawn(loop, Accept(acceptor, totals, verbose, &result), [&loop](std::exception_ptr) { loop.stop(); });
  loop.run();
  std::printf("clients=%llu messages=%llu bytes=%llu\n", static_cast<unsigned long long>(totals.clients),
              static_cast<unsigned long long>(totals.messages), static_cast<unsigned long long>(totals.bytes));
  if (result.ok()) return 0;
  std::fprintf(stderr, "echo_server: %s\n", std::string(result.message()).c_str());
  return 1;
}
