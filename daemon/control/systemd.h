// The talk with systemd: sockets that it opened for us, "ready", "stopping", and the watchdog.
//
// All of it does nothing outside of systemd. Thread: control. Source: sd_listen_fds(3),
// sd_notify(3), sd_watchdog_enabled(3).
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::control {

// Listening sockets of rdmad.socket. Each may be there or not; rdmad opens what is not.
struct ActivatedSockets {
  UniqueFd attach;  // SOCK_SEQPACKET, <run>/attach.sock
  UniqueFd rpc;     // SOCK_STREAM, <run>/rdmad.sock
};

// Takes the descriptors that systemd passed, and the environment that announces them. Once, before
// any thread starts. Errors: FailedPrecondition (a descriptor that is neither of the two; says what
// to correct in the unit).
absl::StatusOr<ActivatedSockets> TakeActivatedSockets();

void NotifyReady(const std::string& status);
void NotifyReloading();
void NotifyStopping();
void NotifyWatchdog();

// How often NotifyWatchdog() must be called: half of the unit's WatchdogSec. Empty: no watchdog.
std::optional<std::chrono::microseconds> WatchdogInterval();

}  // namespace rdmad::control
