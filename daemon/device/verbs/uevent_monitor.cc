#include "daemon/device/verbs/uevent_monitor.h"

#include <linux/netlink.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"

namespace rdmad::verbs {

absl::StatusOr<UeventMonitor> UeventMonitor::Open() {
  UniqueFd fd(
      ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "verbs: uevent socket");
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = 1;  // the kernel's; udev has another
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::ErrnoToStatus(errno, "verbs: uevent socket");
  }
  return UeventMonitor(std::move(fd));
}

bool UeventMonitor::Take() {
  bool about_rdma = false;
  std::array<char, 8192> buffer;
  for (;;) {
    sockaddr_nl from{};
    iovec piece{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_name = &from;
    message.msg_namelen = sizeof(from);
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    const ssize_t bytes = ::recvmsg(fd_.get(), &message, 0);
    if (bytes < 0) {
      if (errno == EINTR) continue;
      return about_rdma || errno == ENOBUFS;  // some were lost: look
    }
    if (from.nl_pid != 0) continue;  // not the kernel
    about_rdma |= IsAboutRdma({buffer.data(), static_cast<size_t>(bytes)});
  }
}

bool IsAboutRdma(std::string_view message) noexcept {
  for (size_t begin = 0; begin < message.size();) {
    const size_t end = std::min(message.find('\0', begin), message.size());
    const std::string_view field = message.substr(begin, end - begin);
    if (field == "SUBSYSTEM=infiniband" || field == "SUBSYSTEM=infiniband_verbs") return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace rdmad::verbs
