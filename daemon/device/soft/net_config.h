// What this host's network looks like at one moment: interfaces, their addresses, MTUs and states;
// and which address the kernel would send from.
//
// Nothing here needs a privilege, and nothing sends a packet. Watching for changes is
// net_monitor.h's. Thread: any. Source: rtnetlink(7), netdevice(7).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"

namespace rdmad::soft {

struct NetAddress {
  IpAddress address;  // link-local ones with their interface as scope
  uint8_t prefix_bits = 0;
  bool tentative =
      false;  // duplicate address detection runs, or has found a duplicate: it cannot be bound
  bool duplicate = false;   // and it has found one
  bool deprecated = false;  // old connections only

  friend bool operator==(const NetAddress&, const NetAddress&) = default;
};

struct NetInterface {
  uint32_t index = 0;
  std::string name;
  bool up = false;       // by the administrator's will
  bool running = false;  // and with a carrier
  bool loopback = false;
  uint32_t mtu_bytes = 0;
  std::vector<uint8_t> mac;  // link-layer address; empty or zero if it has none
  std::vector<NetAddress> addresses;

  // Loopback has all of 127.0.0.0/8, whatever is configured.
  [[nodiscard]] bool Has(const IpAddress& address) const noexcept;
};

// All interfaces of the network namespace of the calling thread, by index.
// Errors: Unavailable (netlink does not answer; says why).
absl::StatusOr<std::vector<NetInterface>> ReadInterfaces();

// Null if none has it.
const NetInterface* FindInterface(const std::vector<NetInterface>& interfaces,
                                  const IpAddress& address);

struct KernelRoute {
  IpAddress source;        // from which the kernel would send, its scope included
  uint32_t mtu_bytes = 0;  // of IP packets: the interface's, or what the route or the path says; 0: unknown
};
// The kernel's way to `dest`: of all, or if given of those from `source`.
// Errors: InvalidArgument (unspecified, or link-local without scope), NotFound (no route),
// Unavailable.
absl::StatusOr<KernelRoute> KernelRouteTo(const IpAddress& dest,
                                          const std::optional<IpAddress>& source = std::nullopt);

// The address from which the kernel would send to `dest`, its scope included.
// Errors: InvalidArgument (unspecified, or link-local without scope), NotFound (no route),
// Unavailable.
absl::StatusOr<IpAddress> KernelSourceAddressFor(const IpAddress& dest);

}  // namespace rdmad::soft
