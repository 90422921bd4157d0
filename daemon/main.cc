// rdmad: wiring only. Reads flags, configuration and environment, builds the devices and the
// engines, and lets the control room run them.
//
// Exit status: 0 after an orderly end (or a good --check), 1 if it could not run, 2 for a wrong
// flag or configuration. Each error is one line on stderr that says what, where and what to do.

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/status_macros.h"
#include "daemon/control/config.h"
#include "daemon/control/daemon.h"
#include "daemon/control/log.h"
#include "daemon/control/policy.h"
#include "daemon/control/run_dir.h"
#include "daemon/control/systemd.h"
#include "daemon/control/version.h"
#include "daemon/host_notes.h"
#include "daemon/memory/bus_guard.h"
#include "daemon/stack.h"

namespace rdmad {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Flags {
  std::string config_file;
  std::string run_dir;
  std::string log_level;
  bool check = false;
};

std::string FromEnvironment(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? value : "";
}

// One line of its own for each line of the status.
int Fail(const absl::Status& status, int exit_code) {
  std::string text(status.message());
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    fprintf(stderr, "rdmad: %s\n", text.substr(begin, end - begin).c_str());
    begin = end + 1;
  }
  return exit_code;
}

// Each session costs a handful of descriptors, so take all that may be had.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int Serve(const Flags& flags, const control::Config& config, control::DaemonIdentity identity) {
  absl::StatusOr<control::ActivatedSockets> activated = control::TakeActivatedSockets();
  if (!activated.ok()) return Fail(activated.status(), kExitFailed);
  const control::RunDirEnvironment environment{FromEnvironment("RDMAD_RUN_DIR"),
                                               FromEnvironment("RUNTIME_DIRECTORY"),
                                               FromEnvironment("XDG_RUNTIME_DIR")};
  absl::StatusOr<std::string> path =
      control::ChooseRunDir(flags.run_dir, config.run_dir, environment, identity);
  if (!path.ok()) return Fail(path.status(), kExitUsage);
  absl::StatusOr<control::RunDir> run_dir = control::RunDir::Open(*path, identity);
  if (!run_dir.ok()) return Fail(run_dir.status(), kExitFailed);

  RaiseFileLimit();
  signal(SIGPIPE, SIG_IGN);
  if (!memory::InstallBusGuard())
    return Fail(absl::ErrnoToStatus(errno, "cannot guard against SIGBUS"), kExitFailed);
  Stack stack;
  if (absl::Status built = stack.Build(config); !built.ok()) return Fail(built, kExitFailed);
  // Not before: libibverbs reads its environment, which the stack sets, when it is first asked.
  for (const std::string& note : HostNotes(config)) control::Log("control").info("{}", note);

  control::DaemonOptions options;
  options.config = config;
  options.config_file = flags.config_file;
  options.identity = identity;
  options.activated = *std::move(activated);
  options.log_level_fixed = !flags.log_level.empty();
  control::Daemon daemon(std::move(options), *std::move(run_dir), &stack.inventory());
  stack.Start();
  const absl::Status outcome = daemon.Run();
  const int exit_code = outcome.ok() ? kExitOk : Fail(outcome, kExitFailed);
  if (!daemon.drained()) _exit(exit_code);
  stack.Stop();
  return exit_code;
}

int Main(int argc, char** argv) {
  Flags flags;
  const auto not_empty = [](const std::string& value) {
    return value.empty() ? std::string("must not be empty") : std::string();
  };
  CLI::App app("rdmad: RDMA as a service of the host", "rdmad");
  app.add_option("--config", flags.config_file,
                 "configuration file (TOML); without it, built-in defaults")
      ->type_name("FILE")
      ->check(not_empty);
  app.add_option("--run-dir", flags.run_dir, "directory of the sockets; also RDMAD_RUN_DIR")
      ->type_name("DIR")
      ->check(not_empty);
  app.add_option("--log-level", flags.log_level,
                 "trace, debug, info, warn, error or off; over the file's")
      ->type_name("LEVEL");
  app.add_flag("--check", flags.check,
               "check the configuration, and whether the host is fit for it, and exit");
  app.set_version_flag("--version", std::string("rdmad ") + control::kVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return Fail(absl::InvalidArgumentError(std::string(error.what()) + "; see rdmad --help"),
                kExitUsage);
  }
  if (!flags.log_level.empty() && !control::IsLogLevel(flags.log_level)) {
    return Fail(
        absl::InvalidArgumentError("--log-level: \"" + flags.log_level +
                                   "\" is no level; use trace, debug, info, warn, error or off"),
        kExitUsage);
  }
  control::Config config;
  if (!flags.config_file.empty()) {
    absl::StatusOr<control::Config> loaded = control::LoadConfig(flags.config_file);
    if (!loaded.ok()) return Fail(loaded.status(), kExitUsage);
    config = *std::move(loaded);
  }
  if (!flags.log_level.empty()) config.log.level = flags.log_level;
  const control::DaemonIdentity identity = control::DaemonIdentity::OfThisProcess();
  if (absl::StatusOr<control::Policy> policy = control::Policy::Create(config.policy, identity);
      !policy.ok()) {
    return Fail(policy.status(), kExitUsage);
  }
  if (flags.check) {
    printf("%s: good\n",
           flags.config_file.empty() ? "built-in configuration" : flags.config_file.c_str());
    for (const std::string& note : control::ConfigNotes(config)) printf("note: %s\n", note.c_str());
    for (const std::string& note : HostNotes(config)) printf("note: %s\n", note.c_str());
    return kExitOk;
  }
  control::InitLogging(config.log.level, !FromEnvironment("JOURNAL_STREAM").empty());
  return Serve(flags, config, identity);
}

}  // namespace
}  // namespace rdmad

int main(int argc, char** argv) {
  // Where they are closed, the next file would be taken for them, and the log go there.
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) return rdmad::kExitFailed;
  }
  return rdmad::Main(argc, argv);
}
