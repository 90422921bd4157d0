// ICRC and the IPv4 identification: sending with an id that is not 0, and checking without knowing
// the id.
//
// A CRC is affine (see gf2.h): packets of one size that differ in the id alone have ICRCs that
// differ by L(id), which is linear in the sixteen bits of the id and depends on nothing but the
// size. With U the UDP length (payload + 8), the id ends 8 * (U + 10) bits before the end of what
// the ICRC covers, so, reading the id's two bytes as a polynomial,
//
//   ICRC(id) = ICRC(0) xor L(id),   L(id) = swap(id) * x^(8 * (U + 12)) mod P.
//
// Sending: packet i of a UDP_SEGMENT batch leaves with id i; its ICRC is ICRC(0) xor L(i). Undoing
// that (when the kernel refuses the batch and packets go one by one) is the same xor.
//
// Checking: v = (received xor ICRC(0)) * x^(-8 * (U + 12)) mod P is swap(id) if the packet is
// intact, so the upper half of v must be zero. Random damage passes once in 65,536, a single
// flipped bit after the id never (nothing shorter than 26 KB hides it).
//
// A peer should set DF, but its packets must not all be lost if it does not: a clear DF adds the
// constant 0x00400000 to v at any size. Accepting 0x0040 in the upper half as well doubles the
// chance of random damage, and there are two bits in a full packet whose flip looks just
// like a clear DF and another id. Who knows that the peer sets DF should require it.
//
// On IPv6 there is no id, and the comparison is exact.
// Source: IBTA vol. 1, ICRC; RFC 791 (identification); measured against the kernel's soft-RoCE.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/wire/icrc.h"

namespace rdmad::wire {

// L(id) for packets of `udp_payload_bytes` (ICRC included).
[[nodiscard]] uint32_t IcrcIdTerm(uint16_t id, size_t udp_payload_bytes) noexcept;

// The ICRC of packet `index` of a UDP_SEGMENT batch, given the one for id 0. IPv4 only: on IPv6
// there is nothing to do.
[[nodiscard]] inline uint32_t IcrcForGsoIndex(uint32_t icrc_id0, uint16_t index,
                                              size_t udp_payload_bytes) noexcept {
  return icrc_id0 ^ IcrcIdTerm(index, udp_payload_bytes);
}

// The terms L(0), L(1), ... of the packets of one batch, for a sender that fills many packets of
// one size: a look-up of a few xors per packet instead of a multiplication.
class GsoIcrcTerms {
 public:
  static constexpr int kIndexBits = 7;  // the kernel segments a batch into at most 128 packets

  explicit GsoIcrcTerms(size_t udp_payload_bytes) noexcept;

  // `index` is below 128.
  [[nodiscard]] uint32_t operator[](unsigned index) const noexcept {
    uint32_t term = 0;
    for (int bit = 0; bit < kIndexBits; ++bit) term ^= basis_[bit] & (0 - (index >> bit & 1));
    return term;
  }

 private:
  std::array<uint32_t, kIndexBits> basis_;
};

// What a check without the id found out. `id` and `dont_fragment` are meaningful only if good.
struct IcrcIdCheck {
  bool good = false;
  bool dont_fragment = true;
  uint16_t id = 0;
};

// IPv4: is `received` the ICRC of the packet for some id and DF? `computed_id0` is what IcrcFlow
// computes.
[[nodiscard]] IcrcIdCheck CheckIcrcUnknownId(uint32_t received, uint32_t computed_id0,
                                             size_t udp_payload_bytes) noexcept;

enum class DfPolicy : uint8_t { kAny, kRequired };

// The receiver's check for either family: exact on IPv6, by CheckIcrcUnknownId on IPv4. `computed`
// is what `flow` says for the packet, with the peer as source.
[[nodiscard]] inline bool IcrcIsGood(const IcrcFlow& flow, uint32_t received, uint32_t computed,
                                     size_t udp_payload_bytes,
                                     DfPolicy policy = DfPolicy::kAny) noexcept {
  if (received == computed) return true;
  if (!flow.is_ipv4()) return false;
  const IcrcIdCheck check = CheckIcrcUnknownId(received, computed, udp_payload_bytes);
  return check.good && (check.dont_fragment || policy == DfPolicy::kAny);
}

}  // namespace rdmad::wire
