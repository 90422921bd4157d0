// Clients of rdmad that do nothing: what does the daemon cost them, and they the daemon?
//
//   idle_clients --run-dir DIR --clients N                        N processes, each attached
//   idle_clients --run-dir DIR --connections N --address ADDRESS  N connections through the daemon,
//                                                                 from one session to another
//
// Prints one line of JSON when all is there, and stays until its standard input ends. Of
// connections it makes the first, says so, and makes the others when it has read a byte, so that
// what the first one brings for all need not be counted.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rdmad/rdmad.h"

namespace rdmad::bench {
namespace {

struct Options {
  std::string run_dir;
  int clients = 0;
  int connections = 0;
  std::string address;
};

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "idle_clients: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

template <typename T>
T OrFail(absl::StatusOr<T> value) {
  if (!value.ok()) Fail(value.status());
  return std::move(value).value();
}

Client Attach(const Options& options) {
  AttachOptions attach;
  attach.run_dir = options.run_dir;
  attach.name = "idle";
  return OrFail(Client::Attach(attach));
}

void Announce(const char* what, int count) {
  std::printf("{\"bench\": \"idle %s\", \"count\": %d}\n", what, count);
  std::fflush(stdout);
}

void WaitForEndOfInput() {
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

// A child tells through `ready` that it is attached.
[[noreturn]] void IdleChild(const Options& options, int ready) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Client client = Attach(options);
  if (::write(ready, "r", 1) != 1) std::_Exit(1);
  while (true) ::pause();
}

int RunClients(const Options& options) {
  int ready[2];
  if (::pipe(ready) != 0) Fail(absl::ErrnoToStatus(errno, "pipe"));
  std::vector<pid_t> children;
  for (int i = 0; i < options.clients; ++i) {
    const pid_t child = ::fork();
    if (child < 0) Fail(absl::ErrnoToStatus(errno, "fork"));
    if (child == 0) IdleChild(options, ready[1]);
    children.push_back(child);
    // One after the other: a hundred processes that start at once only get in each other's way.
    char byte;
    int status;
    while (::read(ready[0], &byte, 1) != 1) {
    }
    if (::waitpid(child, &status, WNOHANG) != 0) {
      Fail(absl::InternalError("a client ended at once"));
    }
  }
  Announce("clients", options.clients);
  WaitForEndOfInput();
  for (const pid_t child : children) ::kill(child, SIGKILL);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  return 0;
}

int RunConnections(const Options& options) {
  const Client server = Attach(options);
  const Client client = Attach(options);
  // The queues of an endpoint as they are by default; payload is no part of what is measured.
  EndpointOptions endpoint;
  endpoint.max_recv_bytes = 64;
  Listener listener = OrFail(Listener::Listen(server, options.address + ":0", endpoint));
  std::vector<Endpoint> ends;
  const auto connect = [&] {
    Connector connector = OrFail(Connector::Start(client, listener.local_addr(), endpoint));
    std::optional<Endpoint> active;
    std::optional<Endpoint> passive;
    while (!active || !passive) {
      if (!active) active = OrFail(connector.Try());
      if (!passive) passive = OrFail(listener.TryAccept());
      if (!active || !passive) ::usleep(200);
    }
    ends.push_back(std::move(*active));
    ends.push_back(std::move(*passive));
  };
  connect();
  Announce("connections", 1);
  char byte;
  if (::read(STDIN_FILENO, &byte, 1) != 1) return 0;
  for (int i = 1; i < options.connections; ++i) connect();
  Announce("connections", options.connections);
  WaitForEndOfInput();
  return 0;
}

int Usage() {
  std::fprintf(stderr,
               "usage: idle_clients --run-dir DIR --clients N\n"
               "       idle_clients --run-dir DIR --connections N --address ADDRESS\n");
  return 2;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    const char* const value = argv[i + 1];
    if (word == "--run-dir") options.run_dir = value;
    if (word == "--clients") options.clients = std::atoi(value);
    if (word == "--connections") options.connections = std::atoi(value);
    if (word == "--address") options.address = value;
  }
  if (options.run_dir.empty()) return Usage();
  if (options.clients > 0) return RunClients(options);
  if (options.connections > 0 && !options.address.empty()) return RunConnections(options);
  return Usage();
}

}  // namespace
}  // namespace rdmad::bench

int main(int argc, char** argv) {
  return rdmad::bench::Main(argc, argv);
}
