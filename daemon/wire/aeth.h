// The syndrome byte of the AETH: what an acknowledgement says, and the two number codes inside it.
//
//   bits 7..5     bits 4..0
//   000 ACK       credit count code
//   001 RNR NAK   timer code
//   011 NAK       NAK code
//
// Bit 7 is reserved (sent 0, ignored by receivers); 010 is reserved. Credit codes and timer codes
// are not linear.
// Source: IBTA vol. 1, ACK Extended Transport Header; tables of credit counts, RNR NAK timer values
// and NAK codes.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace rdmad::wire {

enum class AckKind : uint8_t { kAck = 0, kRnrNak = 1, kReserved = 2, kNak = 3 };

enum class NakCode : uint8_t {
  kPsnSequenceError = 0,
  kInvalidRequest = 1,
  kRemoteAccessError = 2,
  kRemoteOperationalError = 3,
  kInvalidRdRequest = 4,  // RD only
};

inline constexpr uint8_t kNoCreditCount = 0x1f;  // this ACK says nothing about credits

[[nodiscard]] constexpr AckKind AckKindOf(uint8_t syndrome) noexcept {
  return static_cast<AckKind>(syndrome >> 5 & 3);
}

// The low five bits: credit code, RNR timer code or NAK code.
[[nodiscard]] constexpr uint8_t AckCodeOf(uint8_t syndrome) noexcept {
  return syndrome & 0x1f;
}

[[nodiscard]] constexpr uint8_t AckSyndrome(uint8_t credit_code = kNoCreditCount) noexcept {
  return credit_code & 0x1f;
}
[[nodiscard]] constexpr uint8_t RnrNakSyndrome(uint8_t timer_code) noexcept {
  return static_cast<uint8_t>(0x20 | (timer_code & 0x1f));
}
[[nodiscard]] constexpr uint8_t NakSyndrome(NakCode code) noexcept {
  return static_cast<uint8_t>(0x60 | (static_cast<uint8_t>(code) & 0x1f));
}

// Credits by code, 0..30: 0, 1, then steps of half a power of two up to 32768. Code 31 carries no
// count.
inline constexpr std::array<uint16_t, 31> kCreditCounts = {
    0,   1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,  192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};

// The largest code whose count is at most `credits`: a receiver promises no more than it has.
[[nodiscard]] constexpr uint8_t CreditCodeFor(uint32_t credits) noexcept {
  uint8_t code = 0;
  while (code + 1u < kCreditCounts.size() && kCreditCounts[code + 1u] <= credits) ++code;
  return code;
}

// Least wait that an RNR NAK demands, by its timer code. Code 0 is the longest of all.
inline constexpr std::array<std::chrono::nanoseconds, 32> kRnrTimers = [] {
  constexpr std::array<uint32_t, 32> kHundredthsOfMs = {
      65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  std::array<std::chrono::nanoseconds, 32> timers{};
  for (size_t code = 0; code < timers.size(); ++code) {
    timers[code] = std::chrono::nanoseconds(int64_t{kHundredthsOfMs[code]} * 10'000);
  }
  return timers;
}();

[[nodiscard]] constexpr std::chrono::nanoseconds RnrTimer(uint8_t timer_code) noexcept {
  return kRnrTimers[timer_code & 0x1f];
}

[[nodiscard]] constexpr const char* NakCodeName(NakCode code) noexcept {
  switch (code) {
    case NakCode::kPsnSequenceError:
      return "psn_sequence_error";
    case NakCode::kInvalidRequest:
      return "invalid_request";
    case NakCode::kRemoteAccessError:
      return "remote_access_error";
    case NakCode::kRemoteOperationalError:
      return "remote_operational_error";
    case NakCode::kInvalidRdRequest:
      return "invalid_rd_request";
  }
  return "reserved";
}

}  // namespace rdmad::wire
