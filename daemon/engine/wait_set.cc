#include "daemon/engine/wait_set.h"

#include <sys/epoll.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace rdmad::engine {
namespace {

constexpr int kMaxEvents = 64;
constexpr device::TimeNs kNsPerSecond = 1'000'000'000;
constexpr device::TimeNs kNsPerMs = 1'000'000;

// Rounded up, so that a wait never ends before its time.
int Milliseconds(device::TimeNs timeout_ns) {
  if (timeout_ns == device::kNever) return -1;
  const device::TimeNs ms = timeout_ns / kNsPerMs + (timeout_ns % kNsPerMs != 0 ? 1 : 0);
  return static_cast<int>(std::min<device::TimeNs>(ms, INT_MAX));
}

}  // namespace

WaitSet::WaitSet() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

bool WaitSet::Add(int fd, uint32_t events, Waitable* waitable) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.ptr = waitable;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

bool WaitSet::Modify(int fd, uint32_t events, Waitable* waitable) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.ptr = waitable;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0;
}

void WaitSet::Remove(int fd) noexcept {
  // Not there: fine, it was refused or has hung up before.
  static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr));
}

int WaitSet::Wait(device::TimeNs timeout_ns) noexcept {
  epoll_event events[kMaxEvents];
  int count = -1;
  bool precise = has_nanoseconds_ && timeout_ns != 0 && timeout_ns != device::kNever;
  if (precise) {
    const timespec timeout = {static_cast<time_t>(timeout_ns / kNsPerSecond),
                              static_cast<long>(timeout_ns % kNsPerSecond)};
    count = ::epoll_pwait2(epoll_.get(), events, kMaxEvents, &timeout, nullptr);
    if (count < 0 && errno == ENOSYS) precise = has_nanoseconds_ = false;
  }
  if (!precise) {
    count = ::epoll_wait(epoll_.get(), events, kMaxEvents, Milliseconds(timeout_ns));
  }
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr != nullptr) {
      static_cast<Waitable*>(events[i].data.ptr)->OnReady(events[i].events);
    }
  }
  return std::max(count, 0);
}

}  // namespace rdmad::engine
