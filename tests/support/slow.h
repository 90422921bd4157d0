// Bounds for tests that measure time: what a sanitizer or an emulated processor makes slow may take
// longer.
#pragma once

#include <cstdlib>

#include "absl/time/time.h"

namespace rdmad::testing {

// AddressSanitizer keeps what is freed for a while: how much memory a process has says nothing there.
// What nobody freed, it tells by itself.
#ifdef RD_SANITIZER
inline constexpr bool kMemoryGoesBack = false;
#else
inline constexpr bool kMemoryGoesBack = true;
#endif

// How many times slower than a release on the machine's own processor. RDMAD_TEST_SLOWNESS says it
// where it cannot be known here: in an emulated guest (tests/vm).
inline int ReadSlowness() {
#ifdef RD_SANITIZER
  constexpr int kBuild = 6;
#else
  constexpr int kBuild = 1;
#endif
  const char* text = ::getenv("RDMAD_TEST_SLOWNESS");
  const int machine = text == nullptr ? 1 : std::atoi(text);
  return machine > kBuild ? machine : kBuild;
}
inline const int kSlowness = ReadSlowness();

// How long something may take that should take `duration` at most.
inline absl::Duration Slow(absl::Duration duration) {
  return duration * kSlowness;
}

// How often to do something that a full run does `count` times.
inline int Fewer(int count) {
  return count / kSlowness > 0 ? count / kSlowness : 1;
}

}  // namespace rdmad::testing
