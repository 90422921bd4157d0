#pragma once

#include <sched.h>

#include <cstddef>

namespace rdmad::sdk {

// Tells the processor that this is a loop that waits.
inline void CpuRelax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Calls poll() a few times, then once more after it let others run: what waits for another process must not keep it
// from running when there are fewer processors than processes. Returns what poll() found, or 0.
template <typename Poll>
size_t SpinAndYield(Poll&& poll) noexcept(noexcept(poll())) {
  constexpr int kSpins = 32;
  for (int spin = 0; spin < kSpins; ++spin) {
    if (const size_t found = poll(); found != 0) return found;
    CpuRelax();
  }
  ::sched_yield();
  return poll();
}

}  // namespace rdmad::sdk
