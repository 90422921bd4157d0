#include "daemon/device/wake_fd.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

namespace rdmad::device {
namespace {

bool AddTo(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<WakeFd> WakeFd::Create(int watched_fd) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return absl::ErrnoToStatus(errno, "cm: epoll_create1");
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return absl::ErrnoToStatus(errno, "cm: eventfd");
  if (!AddTo(epoll.get(), event.get()) || (watched_fd >= 0 && !AddTo(epoll.get(), watched_fd))) {
    return absl::ErrnoToStatus(errno, "cm: epoll_ctl");
  }
  return WakeFd(std::move(epoll), std::move(event));
}

absl::Status WakeFd::Watch(int fd) {
  if (AddTo(epoll_.get(), fd)) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "cm: epoll_ctl");
}

void WakeFd::Kick() noexcept {
  if (std::exchange(kicked_, true)) return;
  const uint64_t one = 1;
  // It can fail only if the counter is full, and then the descriptor is readable anyway.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));
}

void WakeFd::Clear() noexcept {
  if (!std::exchange(kicked_, false)) return;
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof(count));
}

}  // namespace rdmad::device
