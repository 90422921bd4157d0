// Fields that several CM messages share: communication ids, timeouts, which message another one
// speaks about.
//
// Source: IBTA vol. 1, Communication Management, "Message Field Details".
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "daemon/wire/ids.h"

namespace rdmad::wire {

// Names one side's half of a connection attempt; unique per sender until its time-wait is over.
using CommId = WireId<struct CommIdTag, 32>;

// Which message a MRA or a REJ answers.
enum class CmMessageKind : uint8_t {
  kReq = 0,
  kRep = 1,
  kOther = 2,  // REJ: no message (a timeout, say). MRA: LAP
  kReserved = 3,
};

// A five-bit timeout code is 4.096 us * 2^code: 0 is 4 us, 20 some 4.3 s, 31 some 2.4 hours. (As
// the local ACK timeout of a QP, 0 means for ever; that is for the caller to know.)
[[nodiscard]] constexpr std::chrono::nanoseconds CmTimeout(uint8_t code) noexcept {
  return std::chrono::nanoseconds(int64_t{4096} << (code & 0x1f));
}

// The smallest code whose timeout is at least `timeout`; 31 if there is none.
[[nodiscard]] constexpr uint8_t CmTimeoutCode(std::chrono::nanoseconds timeout) noexcept {
  uint8_t code = 0;
  while (code < 31 && CmTimeout(code) < timeout) ++code;
  return code;
}

}  // namespace rdmad::wire
