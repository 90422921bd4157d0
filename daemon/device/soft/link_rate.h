// How fast an interface is, and how a port of verbs says that.
//
// Thread: any. Source: netdevice(7); IBTA vol. 1, PortInfo, LinkWidthActive and LinkSpeedActive.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/device/types.h"

namespace rdmad::soft {

// Of this network namespace, as its driver says; 0: it does not (loopback), or there is no such
// one.
[[nodiscard]] uint32_t InterfaceMbps(const std::string& netdev) noexcept;

// As adapters of that speed say it. Between two, the faster; over all, the fastest.
[[nodiscard]] device::LinkRate LinkRateOf(uint32_t mbps) noexcept;

}  // namespace rdmad::soft
