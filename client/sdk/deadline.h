#pragma once

#include <time.h>

#include <algorithm>
#include <compare>

#include "absl/time/time.h"

namespace rdmad::sdk {

// A moment of the monotonic clock until which something may take. Changes of the wall clock do not move it.
class Deadline {
 public:
  // `after` may be infinite; zero or less means that only what is ready now counts.
  static Deadline After(absl::Duration after) noexcept {
    if (after == absl::InfiniteDuration()) return Infinite();
    return Deadline(Clock() + std::max(after, absl::ZeroDuration()));
  }
  static Deadline Infinite() noexcept { return Deadline(absl::InfiniteDuration()); }
  static Deadline Immediate() noexcept { return Deadline(absl::ZeroDuration()); }

  bool infinite() const noexcept { return at_ == absl::InfiniteDuration(); }
  bool immediate() const noexcept { return at_ == absl::ZeroDuration(); }
  // Never negative.
  absl::Duration Left() const noexcept {
    if (infinite()) return at_;
    if (immediate()) return absl::ZeroDuration();
    return std::max(at_ - Clock(), absl::ZeroDuration());
  }
  bool Passed() const noexcept { return !infinite() && Left() == absl::ZeroDuration(); }

  friend bool operator<(const Deadline& a, const Deadline& b) noexcept { return a.at_ < b.at_; }

 private:
  explicit Deadline(absl::Duration at) noexcept : at_(at) {}
  static absl::Duration Clock() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::DurationFromTimespec(now);
  }
  absl::Duration at_;  // since the clock's epoch
};

}  // namespace rdmad::sdk
