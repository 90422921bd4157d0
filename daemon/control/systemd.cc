#include "daemon/control/systemd.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

#include <cstring>
#include <ctime>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/run_dir.h"

namespace rdmad::control {
namespace {

// The last part of the path that a Unix socket is bound to.
std::string BoundName(int fd) {
  sockaddr_un address{};
  socklen_t bytes = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "";
  const std::string path(address.sun_path, strnlen(address.sun_path, sizeof(address.sun_path)));
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

absl::StatusOr<ActivatedSockets> TakeActivatedSockets() {
  ActivatedSockets sockets;
  const int count = sd_listen_fds(/*unset_environment=*/1);
  if (count < 0)
    return absl::FailedPreconditionError("sd_listen_fds: LISTEN_FDS or LISTEN_PID makes no sense");
  for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + count; ++fd) {
    UniqueFd owned(fd);
    const std::string name = BoundName(fd);
    const int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    if (name == kAttachSocketName && sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, nullptr, 0) > 0) {
      sockets.attach = std::move(owned);
    } else if (name == kRpcSocketName && sd_is_socket_unix(fd, SOCK_STREAM, 1, nullptr, 0) > 0) {
      sockets.rpc = std::move(owned);
    } else {
      return absl::FailedPreconditionError(
          absl::StrCat("socket activation: descriptor ", fd, " (\"", name, "\") is neither ",
                       kAttachSocketName, " (ListenSequentialPacket=) nor ", kRpcSocketName,
                       " (ListenStream=); correct rdmad.socket"));
    }
  }
  return sockets;
}

void NotifyReady(const std::string& status) {
  sd_notify(0, absl::StrCat("READY=1\nSTATUS=", status).c_str());
}

void NotifyReloading() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_us = int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
  sd_notify(0, absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", now_us).c_str());
}

void NotifyStopping() {
  sd_notify(0, "STOPPING=1\nSTATUS=ending sessions");
}

void NotifyWatchdog() {
  sd_notify(0, "WATCHDOG=1");
}

std::optional<std::chrono::microseconds> WatchdogInterval() {
  uint64_t limit_us = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/0, &limit_us) <= 0 || limit_us < 2)
    return std::nullopt;
  return std::chrono::microseconds(limit_us / 2);
}

}  // namespace rdmad::control
