#include "daemon/device/net_monitor.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"

namespace rdmad::device {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

absl::Status Error(const char* what) {
  return absl::ErrnoToStatus(errno, std::string("net_monitor: ") + what);
}

bool Watch(int epoll_fd, int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  return ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<NetMonitor> NetMonitor::Open() {
  UniqueFd netlink(
      ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (!netlink.valid()) return Error("netlink socket");
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (::bind(netlink.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Error("netlink groups");
  }
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer.valid()) return Error("timerfd");
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid() || !Watch(epoll.get(), netlink.get()) || !Watch(epoll.get(), timer.get())) {
    return Error("epoll");
  }
  return NetMonitor(std::move(epoll), std::move(netlink), std::move(timer));
}

bool NetMonitor::Take() {
  // First, or a never-ending burst would put the look off again and again.
  uint64_t expirations;
  const bool due = ::read(timer_fd_.get(), &expirations, sizeof(expirations)) > 0;
  if (TakeMessages() && !due) LookIn(kSettleNs);
  return due;
}

bool NetMonitor::TakeMessages() {
  bool any = false;
  std::array<char, 16384> buffer;
  for (;;) {
    // What does not fit is cut off: nobody reads it.
    const ssize_t bytes = ::recv(netlink_fd_.get(), buffer.data(), buffer.size(), 0);
    if (bytes >= 0) {
      any = true;
    } else if (errno == ENOBUFS) {
      any = true;  // some were lost
    } else if (errno != EINTR) {
      return any;
    }
  }
}

void NetMonitor::LookIn(int64_t ns) {
  itimerspec armed{};
  if (::timerfd_gettime(timer_fd_.get(), &armed) != 0) return;
  const int64_t left = armed.it_value.tv_sec * kNsPerSecond + armed.it_value.tv_nsec;
  if (left != 0 && left <= ns) return;
  ns = std::max<int64_t>(ns, 1);  // 0 would disarm
  const itimerspec next{{}, {ns / kNsPerSecond, ns % kNsPerSecond}};
  ::timerfd_settime(timer_fd_.get(), 0, &next, nullptr);
}

}  // namespace rdmad::device
