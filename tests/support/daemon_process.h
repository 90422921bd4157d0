// The real daemon, started by a test as an operator would: with a configuration, in a run directory
// of its own.
//
//   DaemonProcess daemon({.addresses = {"127.0.0.2"}});
//   ASSERT_OK(daemon.Start());
//   ASSERT_OK_AND_ASSIGN(Client client, Client::Attach({.run_dir = daemon.run_dir()}));
//
// When the object goes, the daemon is terminated, which must end it with exit code 0; one that died
// by itself before fails the test, too. If the test has failed by then, the end of the daemon's log
// is printed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"

namespace rdmad::testing {

class NetNamespace;

struct DaemonOptions {
  // Of the soft device; at least one of either, unless there are verbs devices.
  std::vector<std::string> addresses = {};
  std::vector<std::string> interfaces = {};
  // Names of verbs devices, which then are the only ones. Empty: all there are beside the soft ones,
  // which is none on most hosts.
  std::vector<std::string> verbs_devices = {};
  // Where it runs; null: this process's network. Must outlive the DaemonProcess.
  const NetNamespace* network = nullptr;
  std::string metrics = "off";  // or address:port
  std::string log_level = "debug";
  std::string more_config = "";  // TOML tables that stand behind the generated ones
  std::vector<std::string> environment = {};
};

// What the process holds, from /proc.
struct ProcessUse {
  uint64_t rss_bytes = 0;
  uint64_t shared_bytes = 0;  // the part of it that is shared memory (RssShmem)
  int descriptors = 0;
  int threads = 0;
  int64_t voluntary_switches = 0;  // of all threads
  absl::Duration cpu;              // user and system, of all threads

  // Errors: NotFound (no such process).
  static absl::StatusOr<ProcessUse> Of(pid_t pid);
};

// Thread: the test's main thread.
class DaemonProcess {
 public:
  explicit DaemonProcess(DaemonOptions options);
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // Returns when the daemon has said READY=1 (sd_notify). Errors: Internal with the daemon's last
  // words. May be called again after the daemon has ended.
  absl::Status Start();
  // kill -9, and waits until it is gone.
  void Kill();
  // SIGTERM. Errors: Internal unless it ends with exit code 0 within `timeout`.
  absl::Status Terminate(absl::Duration timeout = absl::Seconds(10));

  [[nodiscard]] const std::string& run_dir() const noexcept { return run_dir_; }
  [[nodiscard]] std::string config_file() const { return folder_.path() + "/rdmad.toml"; }
  [[nodiscard]] std::string log_file() const { return folder_.path() + "/log"; }
  [[nodiscard]] std::string Log() const;
  [[nodiscard]] pid_t pid() const { return child_ ? child_->pid() : -1; }
  [[nodiscard]] bool IsRunning() { return child_ && child_->IsRunning(); }
  [[nodiscard]] absl::StatusOr<ProcessUse> Use() const { return ProcessUse::Of(pid()); }
  void SendSignal(int signal) { child_->Signal(signal); }

 private:
  absl::Status WaitUntilReady(int notify_fd);

  const DaemonOptions options_;
  const TempDir folder_;
  const std::string run_dir_;
  std::optional<ChildProcess> child_;
};

}  // namespace rdmad::testing
