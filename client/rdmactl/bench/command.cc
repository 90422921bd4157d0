#include "client/rdmactl/bench/command.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/rdmactl/bench/session.h"
#include "client/rdmactl/table.h"

namespace rdmad::rdmactl {
namespace {

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

const char* WaitName(WaitStyle wait) { return wait == WaitStyle::kPolled ? "polled" : "blocking"; }

std::string JsonOf(const BenchResult& result) {
  const BenchOptions& options = result.options;
  std::string text = absl::StrCat(
      "{\"metric\": \"", BenchMetricName(options.metric), "\", \"mode\": \"", BenchModeName(options.mode),
      "\", \"wait\": \"", WaitName(options.wait), "\", \"size_bytes\": ", options.size_bytes,
      ", \"operations\": ", result.operations, ", \"seconds\": ", Fixed(result.seconds, 6));
  if (options.metric == BenchMetric::kLatency) {
    absl::StrAppend(&text, ", \"round_trip\": ", options.mode == BenchMode::kSend ? "true" : "false",
                    ", \"min_us\": ", Fixed(result.min_us, 3), ", \"p50_us\": ", Fixed(result.p50_us, 3),
                    ", \"p90_us\": ", Fixed(result.p90_us, 3), ", \"p99_us\": ", Fixed(result.p99_us, 3),
                    ", \"p999_us\": ", Fixed(result.p999_us, 3), ", \"max_us\": ", Fixed(result.max_us, 3));
    absl::StrAppend(&text, ", \"mean_us\": ", Fixed(result.mean_us, 3));
  } else {
    absl::StrAppend(&text, ", \"depth\": ", options.depth, ", \"buffers\": ", options.window_buffers(),
                    ", \"per_second\": ", Fixed(result.per_second(), 1),
                    ", \"mbytes_per_s\": ", Fixed(result.mbytes_per_second(), 1),
                    ", \"ns_per_operation\": ", Fixed(result.mean_us * 1000, 1));
  }
  return text + "}";
}

void PrintJson(const std::vector<BenchResult>& results) {
  std::string text;
  for (const BenchResult& result : results) absl::StrAppend(&text, text.empty() ? "[\n " : ",\n ", JsonOf(result));
  std::printf("%s\n]\n", text.c_str());
}

void PrintTables(const std::vector<BenchResult>& results) {
  Table latency({"LATENCY", "WAIT", "BYTES", "MIN us", "P50 us", "P90 us", "P99 us", "P99.9 us", "MAX us", "SAMPLES"});
  Table flow({"THROUGHPUT", "WAIT", "BYTES", "DEPTH", "MB/s", "OPS/s", "ns/OP"});
  for (const BenchResult& result : results) {
    const BenchOptions& options = result.options;
    const std::string size = std::to_string(options.size_bytes);
    if (options.metric == BenchMetric::kLatency) {
      const std::string name =
          absl::StrCat(BenchModeName(options.mode), options.mode == BenchMode::kSend ? " there and back" : "");
      latency.Add({name, WaitName(options.wait), size, Fixed(result.min_us, 2), Fixed(result.p50_us, 2),
                   Fixed(result.p90_us, 2), Fixed(result.p99_us, 2), Fixed(result.p999_us, 2), Fixed(result.max_us, 2),
                   std::to_string(result.operations)});
    } else {
      flow.Add({absl::StrCat(BenchModeName(options.mode), " ", BenchMetricName(options.metric)), WaitName(options.wait),
                size, std::to_string(options.depth), Fixed(result.mbytes_per_second(), 1),
                Fixed(result.per_second(), 0), Fixed(result.mean_us * 1000, 0)});
    }
  }
  if (!latency.empty()) std::printf("%s%s", latency.ToString().c_str(), flow.empty() ? "" : "\n");
  if (!flow.empty()) std::printf("%s", flow.ToString().c_str());
}

absl::Status Measure(const BenchCommand& command, const Client& client, const Address& peer) {
  std::vector<BenchResult> results;
  for (const BenchOptions& run : command.runs) {
    absl::StatusOr<BenchResult> result = RunBenchClient(client, peer, run);
    if (!result.ok()) return result.status();
    results.push_back(std::move(result).value());
  }
  command.json ? PrintJson(results) : PrintTables(results);
  return absl::OkStatus();
}

absl::StatusOr<Address> FirstAddress(const Client& client) {
  absl::StatusOr<std::vector<DeviceInfo>> devices = client.GetDevices();
  if (!devices.ok()) return devices.status();
  for (const DeviceInfo& device : *devices) {
    for (const Gid& gid : device.gids) {
      const bool v6 = gid.text.find(':') != std::string::npos;
      absl::StatusOr<Address> address = Address::Parse(v6 ? "[" + gid.text + "]:0" : gid.text + ":0");
      if (address.ok()) return address;
    }
  }
  return absl::NotFoundError("bench: the daemon has no device with an address; see `rdmactl devices`");
}

// The serving side, in a child process or thread: writes its address, or why there is none, into `report`.
void ServeHere(const BenchCommand& command, int report) {
  const auto say = [report](const std::string& line) {
    const std::string text = line + "\n";
    if (::write(report, text.data(), text.size()) < 0) std::perror("bench: write");
  };
  AttachOptions attach = command.attach;
  attach.name = "rdmactl bench server";
  const absl::StatusOr<Client> client = Client::Attach(attach);
  absl::Status status = client.status();
  if (status.ok()) {
    absl::StatusOr<Address> address =
        command.address.empty() ? FirstAddress(*client) : Address::Parse(command.address);
    status = address.status();
    if (status.ok()) {
      status = ServeBench(*client, *address, false, [&say](const Address& bound) { say(bound.ToString()); });
    }
  }
  say(absl::StrCat("!", std::string(status.message())));
}

absl::StatusOr<Address> ReadReport(int report) {
  std::string line;
  char c = 0;
  while (::read(report, &c, 1) == 1 && c != '\n') line += c;
  if (line.empty()) return absl::InternalError("bench: the serving side ended at once");
  if (line.front() == '!') return absl::InternalError(line.substr(1));
  return Address::Parse(line);
}

absl::Status MeasureHere(const BenchCommand& command, int report) {
  absl::StatusOr<Client> client = Client::Attach(command.attach);
  if (!client.ok()) return client.status();
  const absl::StatusOr<Address> peer = ReadReport(report);
  return peer.ok() ? Measure(command, *client, *peer) : peer.status();
}

absl::Status RunInTwoProcesses(const BenchCommand& command) {
  int report[2];
  if (::pipe(report) != 0) return absl::ErrnoToStatus(errno, "bench: pipe");
  // Before anything attaches: a gRPC channel does not survive a fork.
  const pid_t child = ::fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "bench: fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(report[0]);
    ServeHere(command, report[1]);
    ::_exit(1);
  }
  ::close(report[1]);
  const absl::Status status = MeasureHere(command, report[0]);
  ::close(report[0]);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return status;
}

absl::Status RunInTwoThreads(const BenchCommand& command) {
  int report[2];
  if (::pipe(report) != 0) return absl::ErrnoToStatus(errno, "bench: pipe");
  // Serves until the process ends.
  std::thread([command, fd = report[1]] { ServeHere(command, fd); }).detach();
  return MeasureHere(command, report[0]);
}

absl::Status Listen(const BenchCommand& command) {
  absl::StatusOr<Address> address = Address::Parse(command.listen);
  if (!address.ok()) return address.status();
  absl::StatusOr<Client> client = Client::Attach(command.attach);
  if (!client.ok()) return client.status();
  return ServeBench(*client, *address, command.once, [](const Address& bound) {
    std::fprintf(stderr, "bench: listening on %s\n", bound.ToString().c_str());
  });
}

absl::Status Connect(const BenchCommand& command) {
  absl::StatusOr<Address> peer = Address::Parse(command.connect);
  if (!peer.ok()) return peer.status();
  absl::StatusOr<Client> client = Client::Attach(command.attach);
  return client.ok() ? Measure(command, *client, *peer) : client.status();
}

}  // namespace

absl::Status RunBench(const BenchCommand& command) {
  if (!command.listen.empty()) return Listen(command);
  if (!command.connect.empty()) return Connect(command);
  return command.one_process ? RunInTwoThreads(command) : RunInTwoProcesses(command);
}

}  // namespace rdmad::rdmactl
