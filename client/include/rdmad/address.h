// An IP address and port.
#pragma once

#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace rdmad {

// What a sockaddr_in or sockaddr_in6 says, as a small value. Thread: any.
struct Address {
  uint8_t family = 0;                 // 0: none, 4 or 6
  uint16_t port = 0;                  // host order; 0: any
  uint32_t scope_id = 0;              // interface of a link-local IPv6 address
  std::array<uint8_t, 16> bytes = {};  // network order; IPv4 in the first four

  // "192.0.2.1:7471", "[2001:db8::1]:7471", "[fe80::1%eth0]:7471", ":7471" (any IPv4 address), or without a port (then
  // 0). Names are for GetAddrInfo. Errors: InvalidArgument, with the text and what was expected.
  static absl::StatusOr<Address> Parse(const std::string& text);
  // Errors: InvalidArgument (another family than AF_INET and AF_INET6, or too short).
  static absl::StatusOr<Address> FromSockaddr(const sockaddr* address, size_t bytes);

  // Writes a sockaddr_in or sockaddr_in6 and returns its size; 0 without an address.
  socklen_t ToSockaddr(sockaddr_storage* out) const noexcept;
  // As Parse takes it; "-" without an address.
  std::string ToString() const;
  bool IsAny() const noexcept;

  friend constexpr bool operator==(const Address&, const Address&) = default;
  friend constexpr auto operator<=>(const Address&, const Address&) = default;
};

}  // namespace rdmad
