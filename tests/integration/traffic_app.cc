// An application for tests to kill: attaches, makes one connection after the other and runs traffic
// over it.
//
//   traffic_app RUN_DIR listen ADDRESS:PORT SEED     prints "listening PORT", then serves each that
//                                                    connects
//   traffic_app RUN_DIR connect ADDRESS:PORT SEED    prints "connected"; ends with the connection
//   traffic_app RUN_DIR hoard ADDRESS:PORT SEED      as connect; before the traffic it makes one of
//                                                    everything else (hoard.h)
//   traffic_app RUN_DIR lanes ADDRESS SEED           writes to itself on every completion vector,
//   at the
//                                                    same time; prints "running" when all have
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rdmad/rdmad.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/hoard.h"
#include "tests/integration/traffic.h"
#include "tests/integration/wired.h"

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

int UseLanes(const Client& client, const std::string& address) {
  struct Pair {
    WiredEnd from;
    WiredEnd to;
  };
  constexpr uint32_t kBytes = WiredEnd::kMemoryBytes;
  absl::StatusOr<WiredEnd> first = MakeEnd(client, address);
  if (!first.ok()) return Fail(first.status());
  std::vector<Pair> pairs;
  for (uint32_t vector = 0; vector < first->device.num_comp_vectors; ++vector) {
    absl::StatusOr<WiredEnd> from = MakeEnd(client, address, {.comp_vector = vector});
    absl::StatusOr<WiredEnd> to = MakeEnd(client, address, {.comp_vector = vector});
    if (!from.ok() || !to.ok()) return Fail(from.ok() ? to.status() : from.status());
    if (const absl::Status wired = Wire(*from, *to); !wired.ok()) return Fail(wired);
    pairs.push_back({*std::move(from), *std::move(to)});
  }
  for (uint64_t round = 0;; ++round) {
    for (Pair& pair : pairs) {
      for (int i = 0; i < 8; ++i) {
        const absl::Status posted =
            pair.from.qp.PostWrite(round, pair.from.memory.data(), kBytes, &pair.from.region,
                                   kSendSignaled, pair.to.AddressAt(0), pair.to.region.rkey());
        if (!posted.ok()) return Fail(posted);
      }
    }
    for (Pair& pair : pairs) {
      for (int i = 0; i < 8; ++i) {
        const absl::StatusOr<Wc> wc = WaitForWc(pair.from.cq, absl::Seconds(60));
        if (!wc.ok()) return Fail(wc.status());
        if (wc->status != WcStatus::kSuccess) return Fail(absl::InternalError("a write failed"));
      }
    }
    if (round == 0) Say("running");
  }
}

int Main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr,
                 "usage: traffic_app RUN_DIR listen|connect|hoard ADDRESS:PORT SEED\n"
                 "       traffic_app RUN_DIR lanes ADDRESS SEED\n");
    return 2;
  }
  AttachOptions options;
  options.run_dir = argv[1];
  absl::StatusOr<Client> client = Client::Attach(options);
  if (!client.ok()) return Fail(client.status());
  const uint64_t seed = std::strtoull(argv[4], nullptr, 10);
  const std::string role = argv[2];
  if (role == "lanes") return UseLanes(*client, argv[3]);
  return role == "listen" ? Serve(*client, argv[3], seed)
                          : Connect(*client, argv[3], seed, role == "hoard");
}

}  // namespace
}  // namespace rdmad::testing

int main(int argc, char** argv) {
  return rdmad::testing::Main(argc, argv);
}
