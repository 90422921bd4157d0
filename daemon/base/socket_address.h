// An IP address and a port: what a sockaddr_in or sockaddr_in6 says, as a small value.
//
// Thread: any. Copies freely; nothing allocates but ToString and Parse.
#pragma once

#include <sys/socket.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"

namespace rdmad {

struct SocketAddress {
  IpAddress ip;
  uint16_t port = 0;  // host order

  // "192.0.2.1:7174", "[2001:db8::1]:7174", "[fe80::1%eth0]:7174". The port is required, 0 allowed.
  // Errors: InvalidArgument.
  static absl::StatusOr<SocketAddress> Parse(const std::string& text);

  // Takes sockaddr_in and sockaddr_in6 of at least their full size; nullopt for anything else. A
  // flow label is dropped.
  static std::optional<SocketAddress> FromSockaddr(const void* address, size_t bytes) noexcept;

  // Writes a sockaddr_in (IPv4) or sockaddr_in6 and returns its size.
  socklen_t ToSockaddr(sockaddr_storage* out) const noexcept;
  // Writes a sockaddr_in6 in either case, IPv4 as ::ffff:a.b.c.d: what a dual-stack socket takes.
  socklen_t ToSockaddrV6(sockaddr_storage* out) const noexcept;

  // As Parse takes it.
  [[nodiscard]] std::string ToString() const;

  friend constexpr bool operator==(const SocketAddress&, const SocketAddress&) = default;
  friend constexpr auto operator<=>(const SocketAddress&, const SocketAddress&) = default;

  template <typename H>
  friend H AbslHashValue(H state, const SocketAddress& address) {
    return H::combine(std::move(state), address.ip, address.port);
  }
};

}  // namespace rdmad

template <>
struct std::hash<rdmad::SocketAddress> {
  size_t operator()(const rdmad::SocketAddress& address) const noexcept {
    return address.ip.Hash() ^ address.port * size_t{0x9e3779b97f4a7c15u};
  }
};
