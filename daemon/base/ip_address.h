// An IPv4 or IPv6 address without a port, as a small value.
//
// It is kept in the form of a RoCEv2 GID: sixteen bytes, IPv4 as ::ffff:a.b.c.d (Annex A17; RFC
// 4291, 2.5.5.2). So GID and address are the same thing, and an IPv4-mapped IPv6 address *is* the
// IPv4 address. A link-local IPv6 address means something only on one interface, whose index is
// `scope_id`; it is part of the value but not of the GID. The default value is ::, which is also an
// empty GID.
//
// Thread: any. Copies freely; nothing allocates but ToString and Parse.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace rdmad {

using Gid = std::array<uint8_t, 16>;

class IpAddress {
 public:
  constexpr IpAddress() = default;

  // `host_order`: 127.0.0.1 is 0x7f000001.
  static constexpr IpAddress FromV4(uint32_t host_order) noexcept;
  static constexpr IpAddress FromV4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) noexcept;
  // Network order. The scope is dropped unless the address is link-local.
  static constexpr IpAddress FromV6(const Gid& bytes, uint32_t scope_id = 0) noexcept;
  static constexpr IpAddress FromGid(const Gid& gid, uint32_t scope_id = 0) noexcept {
    return FromV6(gid, scope_id);
  }
  static constexpr IpAddress AnyV4() noexcept { return FromV4(0); }
  static constexpr IpAddress AnyV6() noexcept { return IpAddress(); }

  // "192.0.2.1", "2001:db8::1", "fe80::1%eth0", "fe80::1%3". No brackets, no port, no host names.
  // Errors: InvalidArgument (not an address, unknown interface, scope on an address that has none).
  static absl::StatusOr<IpAddress> Parse(const std::string& text);

  [[nodiscard]] constexpr bool is_v4() const noexcept;
  [[nodiscard]] constexpr bool is_v6() const noexcept { return !is_v4(); }
  // 0.0.0.0 or ::
  [[nodiscard]] constexpr bool is_any() const noexcept;
  // 127.0.0.0/8 or ::1
  [[nodiscard]] constexpr bool is_loopback() const noexcept;
  // 224.0.0.0/4 or ff00::/8
  [[nodiscard]] constexpr bool is_multicast() const noexcept;
  // fe80::/10, and ff02::/16 (link-local multicast): the addresses that need a scope. IPv4's
  // 169.254.0.0/16 does not.
  [[nodiscard]] constexpr bool is_link_local() const noexcept;

  // Host order; 0 for IPv6.
  [[nodiscard]] constexpr uint32_t v4() const noexcept;
  [[nodiscard]] constexpr const Gid& bytes() const noexcept { return bytes_; }
  [[nodiscard]] constexpr const Gid& gid() const noexcept { return bytes_; }
  [[nodiscard]] constexpr uint32_t scope_id() const noexcept { return scope_id_; }
  // The same address on another interface; unchanged if it is not link-local.
  [[nodiscard]] constexpr IpAddress WithScope(uint32_t scope_id) const noexcept {
    return FromV6(bytes_, scope_id);
  }

  // As Parse takes it; the scope as a number.
  [[nodiscard]] std::string ToString() const;

  friend constexpr bool operator==(const IpAddress&, const IpAddress&) = default;
  friend constexpr auto operator<=>(const IpAddress&, const IpAddress&) = default;

  [[nodiscard]] size_t Hash() const noexcept;

  template <typename H>
  friend H AbslHashValue(H state, const IpAddress& address) {
    return H::combine(std::move(state), address.bytes_, address.scope_id_);
  }

 private:
  Gid bytes_{};
  uint32_t scope_id_ = 0;
};

constexpr IpAddress IpAddress::FromV4(uint32_t host_order) noexcept {
  return FromV4(static_cast<uint8_t>(host_order >> 24), static_cast<uint8_t>(host_order >> 16),
                static_cast<uint8_t>(host_order >> 8), static_cast<uint8_t>(host_order));
}

constexpr IpAddress IpAddress::FromV4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) noexcept {
  IpAddress address;
  address.bytes_ = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
  return address;
}

constexpr IpAddress IpAddress::FromV6(const Gid& bytes, uint32_t scope_id) noexcept {
  IpAddress address;
  address.bytes_ = bytes;
  if (address.is_link_local()) address.scope_id_ = scope_id;
  return address;
}

constexpr bool IpAddress::is_v4() const noexcept {
  for (size_t i = 0; i < 10; ++i) {
    if (bytes_[i] != 0) return false;
  }
  return bytes_[10] == 0xff && bytes_[11] == 0xff;
}

constexpr bool IpAddress::is_any() const noexcept {
  return *this == AnyV4() || *this == AnyV6();
}

constexpr bool IpAddress::is_loopback() const noexcept {
  if (is_v4()) return bytes_[12] == 127;
  return bytes_ == Gid{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
}

constexpr bool IpAddress::is_multicast() const noexcept {
  return is_v4() ? bytes_[12] >> 4 == 0xe : bytes_[0] == 0xff;
}

constexpr bool IpAddress::is_link_local() const noexcept {
  return (bytes_[0] == 0xfe && (bytes_[1] & 0xc0) == 0x80) ||
         (bytes_[0] == 0xff && (bytes_[1] & 0x0f) == 0x02);
}

constexpr uint32_t IpAddress::v4() const noexcept {
  if (!is_v4()) return 0;
  return uint32_t{bytes_[12]} << 24 | uint32_t{bytes_[13]} << 16 | uint32_t{bytes_[14]} << 8 |
         bytes_[15];
}

}  // namespace rdmad

template <>
struct std::hash<rdmad::IpAddress> {
  size_t operator()(const rdmad::IpAddress& address) const noexcept { return address.Hash(); }
};
