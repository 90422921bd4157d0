// How long a requester waits for an acknowledgement.
//
// Two clocks. The *timeout* is the one of verbs: 4.096 us * 2^code, and each time it passes it uses
// up one retry. Codes below some milliseconds ask for more than processes on a busy host can keep,
// so the wait doubles with each retry until it is some tens of milliseconds; longer codes are taken
// as they are. The *probe* is ours: once round trips have been measured, a loss that no NAK will
// report (the last packet, a lost NAK, a retransmission lost again) is noticed after a few of them
// instead of after a timeout, which may be seconds. A probe sends one packet and uses up no retry.
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
  void Reset() noexcept { smoothed_ = 0; }
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
  // The wait before probe number `probe`. Only if known.
  TimeNs ProbeDelay(int probe) const noexcept {
    return (2 * smoothed_ + 4 * deviation_ + kSlack) << probe;
  }

 private:
  // A peer that must be woken, or waits for a core. Short, as a probe too many costs one packet.
  static constexpr TimeNs kSlack = kMillisecond / 2;

  TimeNs smoothed_ = 0;  // 0: no sample yet
  TimeNs deviation_ = 0;
};

}  // namespace rdmad::soft
