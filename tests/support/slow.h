// Bounds for tests that measure time: what a sanitizer makes slow may take longer.
#pragma once

#include "absl/time/time.h"

namespace rdmad::testing {

#ifdef RD_SANITIZER
inline constexpr int kSlowness = 6;
#else
inline constexpr int kSlowness = 1;
#endif

// How long something may take that should take `duration` at most.
inline absl::Duration Slow(absl::Duration duration) {
  return duration * kSlowness;
}

// How often to do something that a full run does `count` times.
constexpr int Fewer(int count) {
  return count / kSlowness > 0 ? count / kSlowness : 1;
}

}  // namespace rdmad::testing
