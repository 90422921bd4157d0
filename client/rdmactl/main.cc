// rdmactl: the operator's command line.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "client/rdmactl/bench/command.h"
#include "client/rdmactl/exit_code.h"
#include "client/rdmactl/show.h"
#include "client/sdk/version.h"
#include "rdmad/client.h"

namespace {

using rdmad::rdmactl::BenchCommand;
using rdmad::rdmactl::BenchMetric;
using rdmad::rdmactl::BenchMode;
using rdmad::rdmactl::BenchOptions;

constexpr char kFooter[] =
    "Every command takes --json and then prints one JSON document. A user sees the objects of its\n"
    "own sessions; root and the daemon's user see those of all.\n"
    "\n"
    "Which daemon: --run-dir DIR, else RDMAD_RUN_DIR, else $XDG_RUNTIME_DIR/rdmad if a daemon of\n"
    "the user's runs there, else /run/rdmad.\n"
    "\n"
    "Exit codes:\n"
    "  0  done\n"
    "  1  failed; stderr says why\n"
    "  2  wrong usage\n"
    "  3  no daemon, or it went away\n"
    "  4  not allowed\n"
    "\n"
    "Examples:\n"
    "  rdmactl status\n"
    "  rdmactl --json connections\n"
    "  rdmactl bench                            latency, bandwidth and rate on this host\n"
    "  rdmactl bench --lat --polled --size 256\n"
    "  rdmactl bench --listen :7471             on one host, and on the other:\n"
    "  rdmactl bench --connect 192.0.2.7:7471 --mode write --bw";

constexpr char kBenchFooter[] =
    "Without --listen and --connect both sides run here, as two processes with a session each.\n"
    "Without --lat, --bw and --rate all three are measured: latency and rate with --size (default\n"
    "64), bandwidth with --size (default 1 MiB).\n"
    "\n"
    "What the figures mean:\n"
    "  --lat   one operation at a time. send: until the peer's answer of the same size is there, that\n"
    "          is there and back. write, read: from the post to the completion.\n"
    "  --bw    --depth operations are kept under way, each with a buffer of its own unless --buffers says\n"
    "          otherwise: iperf3, perftest and ucx_perftest use one, which stays in the processor's cache.\n"
    "  --rate  the same, posted in batches, of which the last makes a completion.";

struct BenchArguments {
  BenchCommand command;
  std::string mode = "send";
  uint32_t size_bytes = 0;
  uint32_t depth = 64;
  uint32_t buffers = 0;
  double seconds = 2;
  bool latency = false;
  bool bandwidth = false;
  bool rate = false;
  bool blocking = false;
  bool polled = false;
};

CLI::App* AddBench(CLI::App& app, BenchArguments& arguments) {
  CLI::App* bench = app.add_subcommand("bench", "measure latency, bandwidth and message rate");
  bench->footer(kBenchFooter);
  bench->add_option("--mode", arguments.mode, "the operation to measure")
      ->type_name("MODE")
      ->check(CLI::IsMember(std::vector<std::string>{"send", "write", "read"}))
      ->capture_default_str();
  bench->add_option("--size", arguments.size_bytes, "bytes of one operation")
      ->check(CLI::Range(uint32_t{1}, uint32_t{1} << 30));
  bench->add_option("--depth", arguments.depth, "operations under way with --bw and --rate")
      ->check(CLI::Range(uint32_t{1}, uint32_t{8192}))
      ->capture_default_str();
  bench->add_option("--buffers", arguments.buffers, "buffers that these use in turn (default: as many as --depth)")
      ->check(CLI::Range(uint32_t{1}, uint32_t{8192}));
  bench->add_option("--seconds", arguments.seconds, "how long to measure each figure")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  bench->add_flag("--lat", arguments.latency, "measure latency");
  bench->add_flag("--bw", arguments.bandwidth, "measure bandwidth");
  bench->add_flag("--rate", arguments.rate, "measure operations per second");
  CLI::Option* blocking = bench->add_flag("--blocking", arguments.blocking, "wait by sleeping (default)");
  bench->add_flag("--polled", arguments.polled, "wait by polling")->excludes(blocking);
  CLI::Option* listen =
      bench->add_option("--listen", arguments.command.listen, "serve measurements of others on address:port");
  bench->add_flag("--once", arguments.command.once, "with --listen: end after one measurement");
  CLI::Option* connect = bench->add_option("--connect", arguments.command.connect,
                                           "measure with the rdmactl that listens on address:port");
  connect->excludes(listen);
  bench->add_option("--address", arguments.command.address, "address of the device to use when both sides are here")
      ->excludes(listen)
      ->excludes(connect);
  bench->add_flag("--threads", arguments.command.one_process, "both sides in one process, as two threads");
  return bench;
}

BenchCommand MakeBenchCommand(const BenchArguments& arguments, const rdmad::AttachOptions& attach, bool json) {
  BenchCommand command = arguments.command;
  command.attach = attach;
  command.json = json;
  const std::map<std::string, BenchMode> modes = {
      {"send", BenchMode::kSend}, {"write", BenchMode::kWrite}, {"read", BenchMode::kRead}};
  const bool all = !arguments.latency && !arguments.bandwidth && !arguments.rate;
  const auto add = [&](BenchMetric metric, bool wanted, uint32_t default_bytes) {
    if (!wanted && !all) return;
    BenchOptions options;
    options.mode = modes.at(arguments.mode);
    options.metric = metric;
    options.size_bytes = arguments.size_bytes != 0 ? arguments.size_bytes : default_bytes;
    options.depth = arguments.depth;
    options.buffers = arguments.buffers;
    options.wait = arguments.polled ? rdmad::WaitStyle::kPolled : rdmad::WaitStyle::kBlocking;
    options.duration = absl::Seconds(arguments.seconds);
    command.runs.push_back(options);
  };
  add(BenchMetric::kLatency, arguments.latency, 64);
  add(BenchMetric::kBandwidth, arguments.bandwidth, 1 << 20);
  add(BenchMetric::kRate, arguments.rate, 64);
  return command;
}

// CLI11 says only that a command is missing when a word is none.
const char* UnknownCommand(const CLI::App& app, int argc, char** argv) {
  const bool is_word = argc > 1 && argv[1][0] != '-';
  if (!is_word) return nullptr;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->check_name(argv[1])) return nullptr;
  }
  return argv[1];
}

int Finish(const absl::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "rdmactl: %s\n", std::string(status.message()).c_str());
  return rdmad::rdmactl::ExitCodeOf(status);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Shows what the RDMA daemon rdmad does, and measures it.", "rdmactl");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("rdmactl ") + rdmad::sdk::kVersion);
  app.require_subcommand(1);
  app.fallthrough();
  app.get_formatter()->column_width(30);
  rdmad::AttachOptions attach;
  attach.name = "rdmactl";
  double wait_seconds = 1;
  bool json = false;
  app.add_option("--run-dir", attach.run_dir, "directory of the daemon's sockets")
      ->envname("RDMAD_RUN_DIR")
      ->type_name("DIR");
  app.add_option("--wait", wait_seconds, "seconds to wait for a daemon that is not there yet")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  app.add_flag("--json", json, "print JSON");

  using Show = absl::Status (*)(const rdmad::Client&, bool);
  const std::map<CLI::App*, Show> shows = {
      {app.add_subcommand("status", "the daemon at a glance: uptime, objects, engines, devices"),
       &rdmad::rdmactl::ShowStatus},
      {app.add_subcommand("devices", "RDMA devices: addresses, state, limits, counters"),
       &rdmad::rdmactl::ShowDevices},
      {app.add_subcommand("sessions", "attached applications and what they hold"), &rdmad::rdmactl::ShowSessions},
      {app.add_subcommand("connections", "CM ids: state, both ends, QP"), &rdmad::rdmactl::ShowConnections},
      {app.add_subcommand("pools", "shared memory of the sessions"), &rdmad::rdmactl::ShowPools},
  };
  BenchArguments bench_arguments;
  CLI::App* bench = AddBench(app, bench_arguments);
  CLI::App* version = app.add_subcommand("version", "versions of this program, the protocol and the daemon");
  for (CLI::App* command : app.get_subcommands(nullptr)) command->fallthrough();
  if (const char* unknown = UnknownCommand(app, argc, argv); unknown != nullptr) {
    std::fprintf(stderr, "rdmactl: no such command: %s\nRun with --help for more information.\n", unknown);
    return rdmad::rdmactl::kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? rdmad::rdmactl::kOk : rdmad::rdmactl::kUsage;
  }
  attach.deadline = absl::Seconds(wait_seconds);

  if (version->parsed()) return Finish(rdmad::rdmactl::ShowVersion(attach, json));
  if (bench->parsed()) return Finish(rdmad::rdmactl::RunBench(MakeBenchCommand(bench_arguments, attach, json)));
  const absl::StatusOr<rdmad::Client> client = rdmad::Client::Attach(attach);
  if (!client.ok()) return Finish(client.status());
  for (const auto& [command, show] : shows) {
    if (command->parsed()) return Finish(show(*client, json));
  }
  return rdmad::rdmactl::kUsage;
}
