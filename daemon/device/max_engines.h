// How many engines a daemon may have: the soft device names the engine of a QP in so many values of
// the low bits of its number.
#pragma once

#include <cstdint>

namespace rdmad::device {

inline constexpr uint32_t kMaxEngines = 16;

}  // namespace rdmad::device
