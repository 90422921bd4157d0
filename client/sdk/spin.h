// How whoever waits for another process spins, and for how long before it sleeps.
//
// A sleeper costs a wake-up: two system calls and, if a core slept meanwhile, some tens of us in a
// virtual machine. So even a wait that blocks first looks for a while whether what it waits for
// comes at once, and gives way meanwhile to whoever else wants the core: there may be fewer cores
// than processes. SpinPolicy says for how long.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmad::sdk {

// Tells the processor that this is a loop that waits.
inline void CpuRelax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline int64_t SpinClockNs() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Calls poll() a few times, then once more after it let others run: what waits for another process
// must not keep it from running when there are fewer processors than processes. Returns what poll()
// found, or 0.
template <typename Poll>
size_t SpinAndYield(Poll&& poll) noexcept(noexcept(poll())) {
  // Some 200 ns, about what a yield costs: more only delays whom this waits for, if that needs the
  // core.
  constexpr int kSpins = 4;
  for (int spin = 0; spin < kSpins; ++spin) {
    if (const size_t found = poll(); found != 0) return found;
    CpuRelax();
  }
  ::sched_yield();
  return poll();
}

// How long a wait should spin before it sleeps; the daemon's engine has the same rules
// (daemon/engine/engine_idle.h).
//   What was waited for came within kMaxNs: spinning pays, or would have: twice as long next time.
//   It came later: half as long, down to not at all.
//   A yield took longer than kLostYieldNs: somebody with real work had the core, and will have it
//   again. Spinning would cost a time slice each time, whereas a sleeper gets the core when it is
//   woken. So there is no spinning for kRestFactor times what was lost: at most some 2 % of the
//   time is lost that way.
// Times are arguments. Thread: any; an update that is lost to another thread costs no more than a
// spin.
class SpinPolicy {
 public:
  static constexpr int64_t kMaxNs = 50'000;
  static constexpr int64_t kMinNs = 2'000;  // shorter windows count as none; also the first step up
  static constexpr int64_t kStartNs = 20'000;
  static constexpr int64_t kLostYieldNs = 200'000;
  static constexpr int64_t kRestFactor = 50;
  static constexpr int64_t kMaxRestNs = 2'000'000'000;

  // For a wait that begins at `now_ns`; 0: sleep at once.
  int64_t WindowNs(int64_t now_ns) const noexcept {
    return now_ns < rest_until_ns_.load(std::memory_order_relaxed)
               ? 0
               : window_ns_.load(std::memory_order_relaxed);
  }
  // A wait took this long, spinning and sleeping.
  void OnWaited(int64_t waited_ns) noexcept {
    int64_t window_ns = window_ns_.load(std::memory_order_relaxed);
    if (waited_ns <= kMaxNs) {
      window_ns = std::min(std::max(2 * window_ns, kMinNs), kMaxNs);
    } else {
      window_ns /= 2;
      if (window_ns < kMinNs) window_ns = 0;
    }
    window_ns_.store(window_ns, std::memory_order_relaxed);
  }
  // A yield, with the looks before it, took from `before_ns` to `after_ns`.
  void OnYielded(int64_t before_ns, int64_t after_ns) noexcept {
    const int64_t took_ns = after_ns - before_ns;
    if (took_ns <= kLostYieldNs) return;
    const int64_t rest_ns = kRestFactor * std::min(took_ns, kMaxRestNs / kRestFactor);
    rest_until_ns_.store(after_ns + rest_ns, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> window_ns_{kStartNs};
  std::atomic<int64_t> rest_until_ns_{0};
};

// Calls poll() until it finds something or the policy wants to sleep. Returns what poll() found, or
// 0.
template <typename Poll>
size_t SpinBeforeSleep(SpinPolicy& policy, int64_t start_ns,
                       Poll&& poll) noexcept(noexcept(poll())) {
  const int64_t end_ns = start_ns + policy.WindowNs(start_ns);
  for (int64_t now_ns = start_ns; now_ns < end_ns;) {
    const size_t found = SpinAndYield(poll);
    const int64_t after_ns = SpinClockNs();
    policy.OnYielded(now_ns, after_ns);
    if (found != 0) return found;
    now_ns = after_ns;
  }
  return 0;
}

}  // namespace rdmad::sdk
