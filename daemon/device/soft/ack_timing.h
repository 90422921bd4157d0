// How long a requester waits for an acknowledgement.
//
// Two clocks. The *timeout* is the one of verbs: 4.096 us * 2^code, and each time it passes it uses
// up one retry. Codes below some milliseconds ask for more than processes on a busy host can keep,
// so the wait doubles with each retry until it is some tens of milliseconds; longer codes are taken
// as they are. The *probe* is ours: a loss that no NAK will report (the last packet, a lost NAK, a
// retransmission lost again) is noticed after a few round trips instead of after a timeout, which
// may be seconds. A probe sends one packet and uses up no retry. The wait for the next one doubles,
// so that a connection goes on within about as long as the network was away, or the timeout if that
// is less.
//
// As long as no round trip has been measured, a guess stands for the wait. It keeps what it has
// grown to: a probe spoils the measurement of what it repeats, so on a path that is slower than the
// guess there would never be one.
//
// Source: IBTA vol. 1, Reliable Service, "Transport Timer"; RFC 6298 for the estimator.
#pragma once

#include <algorithm>
#include <cstdint>

#include "daemon/device/types.h"

namespace rdmad::soft {

using device::kNever;
using device::TimeNs;

inline constexpr TimeNs kMillisecond = 1'000'000;

// The wait for try number `attempt` (0 is the first); kNever for code 0.
constexpr TimeNs AckTimeout(uint8_t code, int attempt) noexcept {
  if (code == 0) return kNever;
  const TimeNs configured = TimeNs{4096} << (code & 31);
  const TimeNs patience = (2 * kMillisecond) << std::min(attempt, 5);
  return std::max(configured, patience);
}
static_assert(AckTimeout(14, 0) == 67'108'864 && AckTimeout(14, 7) == 67'108'864);
static_assert(AckTimeout(1, 0) == 2 * kMillisecond && AckTimeout(1, 7) == 64 * kMillisecond);

class RoundTripEstimator {
 public:
  void Reset() noexcept {
    smoothed_ = 0;
    guess_ = kFirstGuess;
  }
  bool known() const noexcept { return smoothed_ != 0; }

  void OnSample(TimeNs sample) noexcept {
    sample = std::max<TimeNs>(sample, 1);
    if (!known()) {
      smoothed_ = sample;
      deviation_ = sample / 2;
      return;
    }
    const TimeNs error = sample > smoothed_ ? sample - smoothed_ : smoothed_ - sample;
    deviation_ += (error - deviation_) / 4;
    smoothed_ = std::max<TimeNs>(1, smoothed_ + (sample - smoothed_) / 8);
  }

  TimeNs smoothed() const noexcept { return smoothed_; }
  // The wait before probe number `probe` since the last sign of life.
  TimeNs ProbeDelay(int probe) const noexcept {
    if (!known()) return guess_;
    return (2 * smoothed_ + 4 * deviation_ + kSlack) << std::min(probe, kMostDoublings);
  }
  void OnProbe() noexcept {
    if (!known()) guess_ = std::min(2 * guess_, kFirstGuess << kMostDoublings);
  }

  static constexpr TimeNs kFirstGuess = 20 * kMillisecond;

 private:
  static constexpr int kMostDoublings = 10;
  // A peer that must be woken, or waits for a core. Short, as a probe too many costs one packet.
  static constexpr TimeNs kSlack = kMillisecond / 2;

  TimeNs smoothed_ = 0;  // 0: no sample yet
  TimeNs deviation_ = 0;
  TimeNs guess_ = kFirstGuess;
};

}  // namespace rdmad::soft
