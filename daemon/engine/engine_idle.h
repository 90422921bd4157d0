// What an engine does after a turn: go on, look again, let others run, or sleep.
//
// Spinning for a while after the last work saves the sleeper's wake-up (some 10 us, and a system
// call for whoever rings the doorbell), but it takes a core from the very clients that are to bring
// the next work. So the time that an engine is ready to spin follows what spinning would have
// gained of late:
//   work came while it spun                         it paid: twice as long next time;
//   work came after it slept, but within max_spin   it would have paid: twice as long next time;
//   work came later than max_spin                   it was in vain: half as long, down to not at
//   all.
// While it spins it yields the core after the first half microsecond, which is what an answer takes
// that a peer on another core writes at once: on a machine with few cores the next doorbell may
// depend on the yield. A yield that takes long shows that somebody with real work has the core. It
// would cost a time slice each time, whereas a sleeper gets the core when it is woken: there is no
// spinning then for many times what was lost.
//
// The clients of the SDK wait by the same rules: client/sdk/spin.h.
//
// Pure: time is an argument. Thread: engine.
#pragma once

#include <algorithm>

#include "daemon/device/types.h"

namespace rdmad::engine {

struct IdleOptions {
  device::TimeNs max_spin_ns = 50'000;
  device::TimeNs min_spin_ns = 2'000;  // shorter windows count as none; also the first step up
  device::TimeNs start_spin_ns = 20'000;
  device::TimeNs pause_ns = 500;  // of each spin: looks again at once before it yields
  device::TimeNs lost_yield_ns =
      200'000;                      // a yield, with the turn after it, that takes longer is one
  device::TimeNs rest_factor = 50;  // how many times as long there is no spinning after one,
  device::TimeNs max_rest_ns = 2'000'000'000;  // but no longer than this
};

enum class IdleAction : uint8_t { kContinue, kYield, kSleep };

class IdlePolicy {
 public:
  explicit IdlePolicy(const IdleOptions& options = {}) noexcept
      : options_(options), window_ns_(std::min(options.start_spin_ns, options.max_spin_ns)) {}

  // After a turn that began at `now`. kSleep is only advice: whoever follows it goes on calling
  // this.
  IdleAction AfterTurn(device::TimeNs now, bool worked) noexcept {
    if (yielded_ && now - yielded_at_ > options_.lost_yield_ns) Rest(now);
    yielded_ = false;
    if (worked) {
      if (idle_) Learn(now - idle_since_);
      idle_ = false;
      return IdleAction::kContinue;
    }
    if (!idle_) {
      idle_ = true;
      idle_since_ = now;
    }
    const device::TimeNs idle_ns = now - idle_since_;
    if (idle_ns >= window_ns_ || now < rest_until_) return IdleAction::kSleep;
    if (idle_ns < options_.pause_ns) return IdleAction::kContinue;
    yielded_ = true;
    yielded_at_ = now;
    return IdleAction::kYield;
  }

  // How long the next spin will be.
  device::TimeNs window_ns() const noexcept { return window_ns_; }

 private:
  void Learn(device::TimeNs gap_ns) noexcept {
    if (gap_ns <= options_.max_spin_ns) {
      window_ns_ = std::min(std::max(2 * window_ns_, options_.min_spin_ns), options_.max_spin_ns);
    } else {
      window_ns_ /= 2;
      if (window_ns_ < options_.min_spin_ns) window_ns_ = 0;
    }
  }

  void Rest(device::TimeNs now) noexcept {
    const device::TimeNs lost_ns =
        std::min(now - yielded_at_, options_.max_rest_ns / options_.rest_factor);
    rest_until_ = now + options_.rest_factor * lost_ns;
  }

  const IdleOptions options_;
  device::TimeNs window_ns_;
  device::TimeNs idle_since_ = 0;
  device::TimeNs yielded_at_ = 0;
  device::TimeNs rest_until_ = 0;
  bool idle_ = false;
  bool yielded_ = false;
};

}  // namespace rdmad::engine
