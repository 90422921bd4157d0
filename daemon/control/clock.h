// The monotonic clock, read by the control room and handed down as an argument.
#pragma once

#include <chrono>
#include <cstdint>

namespace rdmad::control {

inline int64_t MonotonicNs() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace rdmad::control
