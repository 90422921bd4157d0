// echo_client: sends messages to an echo_server over one or more connections, and checks what comes back.
#include <CLI/CLI.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "rdmad/asio.h"
#include "rdmad/rdmad.h"

namespace {

using boost::asio::awaitable;
using boost::asio::use_awaitable;

struct Options {
  std::string peer;
  uint32_t connections = 1;
  uint64_t count = 1000;
  uint32_t size_bytes = 64;
  double timeout_seconds = 10;
};

struct Totals {
  uint64_t messages = 0;
  absl::Status first_error;
};

// Message `number` of a connection: its number over and over.
void Fill(rdmad::Buffer& buffer, uint64_t number) {
  for (size_t at = 0; at < buffer.size(); at += sizeof(number)) {
    std::memcpy(buffer.data() + at, &number, std::min(sizeof(number), buffer.size() - at));
  }
}

awaitable<absl::Status> Talk(rdmad::AsioEndpoint& endpoint, rdmad::Pool& pool, const Options& options, Totals& totals) {
  for (uint64_t number = 0; number < options.count; ++number) {
    absl::StatusOr<rdmad::Buffer> message = pool.Allocate(options.size_bytes);
    absl::StatusOr<rdmad::Buffer> expected = pool.Allocate(options.size_bytes);
    if (!message.ok() || !expected.ok()) co_return message.ok() ? expected.status() : message.status();
    Fill(*message, number);
    Fill(*expected, number);
    absl::Status sent = co_await endpoint.async_send(std::move(message).value(), use_awaitable);
    if (!sent.ok()) co_return sent;
    absl::StatusOr<rdmad::Buffer> answer = co_await endpoint.async_receive(use_awaitable);
    if (!answer.ok()) co_return answer.status();
    if (answer->text() != expected->text()) co_return absl::DataLossError("the answer differs from what was sent");
    ++totals.messages;
  }
  co_return co_await endpoint.async_flush(use_awaitable);
}

awaitable<void> Run(boost::asio::io_context& loop, const rdmad::Client& client, rdmad::Address peer,
                    const Options& options, rdmad::Pool& pool, Totals& totals) {
  rdmad::EndpointOptions endpoint_options;
  endpoint_options.max_recv_bytes = options.size_bytes;
  endpoint_options.recv_depth = 8;
  endpoint_options.send_depth = 8;
  endpoint_options.connect_timeout = absl::Seconds(options.timeout_seconds);
  absl::StatusOr<rdmad::AsioEndpoint> endpoint =
      co_await rdmad::async_connect(loop.get_executor(), client, peer, endpoint_options, use_awaitable);
  absl::Status status = endpoint.status();
  if (endpoint.ok()) status = co_await Talk(*endpoint, pool, options, totals);
  totals.first_error.Update(status);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "echo_client: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Sends messages to an echo_server and checks the answers.", "echo_client");
  app.footer("Exit codes: 0 all answers were right, 1 failed, 2 wrong usage.");
  rdmad::AttachOptions attach;
  attach.name = "echo_client";
  Options options;
  app.add_option("--run-dir", attach.run_dir, "directory of the daemon's sockets")->envname("RDMAD_RUN_DIR");
  app.add_option("PEER", options.peer, "host:port of the server")->required();
  app.add_option("--connections", options.connections, "how many at a time")
      ->check(CLI::Range(uint32_t{1}, uint32_t{10000}))
      ->capture_default_str();
  app.add_option("--count", options.count, "messages per connection")->capture_default_str();
  app.add_option("--size", options.size_bytes, "bytes of a message")
      ->check(CLI::Range(uint32_t{1}, uint32_t{16} << 20))
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_seconds, "seconds to wait for a connection")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const absl::StatusOr<rdmad::Client> client = rdmad::Client::Attach(attach);
  if (!client.ok()) return Fail(client.status());
  const size_t colon = options.peer.rfind(':');
  if (colon == std::string::npos) {
    std::fprintf(stderr, "echo_client: PEER: expected host:port, got \"%s\"\n", options.peer.c_str());
    return 2;
  }
  absl::StatusOr<rdmad::Address> peer = rdmad::Address::Parse(options.peer);
  if (!peer.ok()) {
    const auto infos = rdmad::GetAddrInfo(options.peer.substr(0, colon), options.peer.substr(colon + 1));
    if (!infos.ok()) return Fail(infos.status());
    peer = infos->front().dst;
  }
  // Each connection has at most a message and what is expected of it, and one that is on its way.
  absl::StatusOr<rdmad::Pool> pool =
      rdmad::Pool::Create(*client, size_t{options.connections} * 4 * (options.size_bytes + 64), {.name = "messages"});
  if (!pool.ok()) return Fail(pool.status());

  boost::asio::io_context loop;
  Totals totals;
  for (uint32_t i = 0; i < options.connections; ++i) {
    boost::asio::co_spawn(loop, Run(loop, *client, *peer, options, *pool, totals), boost::asio::detached);
  }
  const auto start = std::chrono::steady_clock::now();
  loop.run();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("connections=%u messages=%llu bytes_each=%u seconds=%.3f messages_per_s=%.0f\n", options.connections,
              static_cast<unsigned long long>(totals.messages), options.size_bytes, seconds,
              static_cast<double>(totals.messages) / seconds);
  return totals.first_error.ok() ? 0 : Fail(totals.first_error);
}
