// An application for tests to kill: attaches, makes one connection after the other and runs traffic
// over it.
//
//   traffic_app RUN_DIR listen ADDRESS:PORT SEED     prints "listening PORT", then serves each that
//                                                    connects
//   traffic_app RUN_DIR connect ADDRESS:PORT SEED    prints "connected"; ends with the connection
//   traffic_app RUN_DIR hoard ADDRESS:PORT SEED      as connect; before the traffic it makes one of
//                                                    everything else (hoard.h)
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include "rdmad/rdmad.h"
#include "tests/integration/hoard.h"
#include "tests/integration/traffic.h"

namespace rdmad::testing {
namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "traffic_app: %s\n", status.ToString().c_str());
  return 1;
}

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int Serve(const Client& client, const std::string& address, uint64_t seed) {
  absl::StatusOr<Listener> listener = Listener::Listen(client, address);
  if (!listener.ok()) return Fail(listener.status());
  Say("listening " + std::to_string(listener->local_addr().port));
  const std::atomic<bool> stop{false};
  while (true) {
    absl::StatusOr<Endpoint> endpoint = listener->Accept();
    if (!endpoint.ok()) return Fail(endpoint.status());
    const absl::Status status = RunTraffic(client, *endpoint, {.seed = seed}, stop);
    if (absl::IsDataLoss(status)) return Fail(status);
  }
}

int Connect(const Client& client, const std::string& peer, uint64_t seed, bool hoards) {
  absl::StatusOr<Endpoint> endpoint = Endpoint::Connect(client, peer);
  if (!endpoint.ok()) return Fail(endpoint.status());
  Say("connected");
  std::optional<Hoard> hoard;
  if (hoards) {
    absl::StatusOr<Hoard> made = MakeHoard(client, endpoint->local_addr());
    if (!made.ok()) return Fail(made.status());
    hoard.emplace(std::move(made).value());
  }
  const std::atomic<bool> stop{false};
  const absl::Status status = RunTraffic(client, *endpoint, {.seed = seed}, stop);
  return status.ok() ? 0 : Fail(status);
}

int Main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: traffic_app RUN_DIR listen|connect|hoard ADDRESS:PORT SEED\n");
    return 2;
  }
  AttachOptions options;
  options.run_dir = argv[1];
  absl::StatusOr<Client> client = Client::Attach(options);
  if (!client.ok()) return Fail(client.status());
  const uint64_t seed = std::strtoull(argv[4], nullptr, 10);
  const std::string role = argv[2];
  return role == "listen" ? Serve(*client, argv[3], seed)
                          : Connect(*client, argv[3], seed, role == "hoard");
}

}  // namespace
}  // namespace rdmad::testing

int main(int argc, char** argv) {
  return rdmad::testing::Main(argc, argv);
}
