// Waiting for descriptors with a deadline.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>

#include "absl/time/time.h"
#include "client/sdk/deadline.h"

namespace rdmad::sdk {

enum class WaitResult : uint8_t {
  kReadable,  // or hung up: reading tells
  kTimeout,
  kError,  // see errno
};

// Waits until one of `fds` (events set by the caller) is ready. Signals do not end the wait.
inline WaitResult WaitAny(std::span<pollfd> fds, Deadline deadline) noexcept {
  while (true) {
    timespec left{};
    timespec* timeout = nullptr;
    if (!deadline.infinite()) {
      left = absl::ToTimespec(deadline.Left());
      timeout = &left;
    }
    const int ready = ::ppoll(fds.data(), fds.size(), timeout, nullptr);
    if (ready > 0) return WaitResult::kReadable;
    if (ready == 0) return WaitResult::kTimeout;
    if (errno != EINTR) return WaitResult::kError;
  }
}

inline WaitResult WaitReadable(int fd, Deadline deadline) noexcept {
  pollfd poll_fd{fd, POLLIN, 0};
  return WaitAny({&poll_fd, 1}, deadline);
}

}  // namespace rdmad::sdk
