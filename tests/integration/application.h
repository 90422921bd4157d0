// traffic_app as a process of its own, for tests that kill it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/temp_dir.h"

namespace rdmad::testing {

// Thread: the test's main thread (child_process.h).
class Application {
 public:
  // Listens on a free port of `address`; returns once it does. Errors: Internal with its output.
  static absl::StatusOr<Application> Listen(const DaemonProcess& daemon, const std::string& address,
                                            uint64_t seed);
  // Connects; returns at once. `hoards`: has one of every object that traffic does not use, too.
  static absl::StatusOr<Application> Connect(const DaemonProcess& daemon,
                                             const std::string& address, uint16_t port,
                                             uint64_t seed, bool hoards = false);
  // Writes to itself on every completion vector; returns once all have. Errors: Internal with its
  // output.
  static absl::StatusOr<Application> UseLanes(const DaemonProcess& daemon,
                                              const std::string& address);

  [[nodiscard]] uint16_t port() const noexcept { return port_; }
  // What it has printed so far.
  [[nodiscard]] std::string Output() const;
  ChildProcess& process() noexcept { return process_; }
  void Kill() { process_.Kill(); }

 private:
  Application(std::unique_ptr<TempDir> folder, ChildProcess process)
      : folder_(std::move(folder)), process_(std::move(process)) {}
  static absl::StatusOr<Application> Start(const DaemonProcess& daemon, const std::string& role,
                                           const std::string& address, uint64_t seed);

  std::unique_ptr<TempDir> folder_;
  ChildProcess process_;
  uint16_t port_ = 0;
};

}  // namespace rdmad::testing
