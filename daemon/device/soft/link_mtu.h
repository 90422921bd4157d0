// From an interface's MTU to the path MTU of RoCE, which counts payload alone.
//
// The largest InfiniBand MTU is taken that fits with the largest headers that a packet with full
// payload can have:
//
//   IPv6 40 + UDP 8 + BTH 12 + RETH 16 + ImmDt 4 + ICRC 4 = 84 bytes
//
// (WRITE_ONLY_IMM; UD's DETH is shorter, atomics have no payload; a full payload needs no pad.)
// IPv4's header is 20 bytes shorter, but one port has one MTU for both. So 1500 gives 1024, 4180
// gives 4096, 9000 gives 4096, and below 340 there is no RoCE at all.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/device/types.h"
#include "daemon/wire/opcode.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

inline constexpr uint32_t kLinkOverheadBytes =
    40 + 8 + wire::kBthBytes + wire::kRethBytes + wire::kImmDtBytes + wire::kIcrcBytes;
static_assert(kLinkOverheadBytes == 84);

// Nothing if not even the smallest fits.
[[nodiscard]] constexpr std::optional<device::Mtu> PathMtuOf(
    uint32_t interface_mtu_bytes) noexcept {
  std::optional<device::Mtu> best;
  for (const device::Mtu mtu : {device::Mtu::k256, device::Mtu::k512, device::Mtu::k1024,
                                device::Mtu::k2048, device::Mtu::k4096}) {
    if (device::MtuBytes(mtu) + kLinkOverheadBytes <= interface_mtu_bytes) best = mtu;
  }
  return best;
}

// The largest path MTU that goes both through an interface and a route; `route_mtu_bytes` 0: nothing
// is known of it.
[[nodiscard]] constexpr device::Mtu PathMtuOf(device::Mtu interface_mtu,
                                              uint32_t route_mtu_bytes) noexcept {
  if (route_mtu_bytes == 0) return interface_mtu;
  const device::Mtu route_mtu = PathMtuOf(route_mtu_bytes).value_or(device::Mtu::k256);
  return route_mtu < interface_mtu ? route_mtu : interface_mtu;
}

}  // namespace rdmad::soft
