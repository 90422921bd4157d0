#include "daemon/wire/icrc_id.h"

#include "daemon/wire/gf2.h"

namespace rdmad::wire {
namespace {

constexpr uint32_t kDontFragmentCleared = 0x0040;  // what a clear DF leaves in the upper half of v

// U + 12 for a packet of this many UDP payload bytes: U is 8 more.
constexpr uint32_t TermBytes(size_t udp_payload_bytes) noexcept {
  return static_cast<uint32_t>(udp_payload_bytes) + 8 + 12;
}

constexpr uint16_t SwapBytes(uint32_t value) noexcept {
  return static_cast<uint16_t>((value >> 8 & 0xff) | (value & 0xff) << 8);
}

}  // namespace

uint32_t IcrcIdTerm(uint16_t id, size_t udp_payload_bytes) noexcept {
  if (id == 0) return 0;
  return gf2::Multiply(SwapBytes(id), gf2::PowerOfXBytes(TermBytes(udp_payload_bytes)));
}

GsoIcrcTerms::GsoIcrcTerms(size_t udp_payload_bytes) noexcept {
  for (int bit = 0; bit < kIndexBits; ++bit) {
    basis_[bit] = IcrcIdTerm(static_cast<uint16_t>(1 << bit), udp_payload_bytes);
  }
}

IcrcIdCheck CheckIcrcUnknownId(uint32_t received, uint32_t computed_id0,
                               size_t udp_payload_bytes) noexcept {
  const uint32_t v = gf2::Multiply(received ^ computed_id0,
                                   gf2::InversePowerOfXBytes(TermBytes(udp_payload_bytes)));
  const uint32_t upper = v >> 16;
  IcrcIdCheck result;
  result.good = upper == 0 || upper == kDontFragmentCleared;
  result.dont_fragment = upper == 0;
  result.id = SwapBytes(v);
  return result;
}

}  // namespace rdmad::wire
