#include "daemon/base/socket_address.h"

#include <netinet/in.h>

#include <charconv>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rdmad {
namespace {

absl::Status BadAddress(const std::string& text, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("socket address \"", text, "\": ", why));
}

}  // namespace

absl::StatusOr<SocketAddress> SocketAddress::Parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return BadAddress(text, "no port");
  SocketAddress result;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, result.port);
  if (error != std::errc() || stop != end) return BadAddress(text, "bad port");

  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool has_colons = host.find(':') != std::string::npos;
  if (has_colons != bracketed) return BadAddress(text, "IPv6 goes in brackets, IPv4 does not");
  absl::StatusOr<IpAddress> ip = IpAddress::Parse(host);
  if (!ip.ok()) return ip.status();
  result.ip = *ip;
  return result;
}

std::optional<SocketAddress> SocketAddress::FromSockaddr(const void* address,
                                                         size_t bytes) noexcept {
  sa_family_t family = AF_UNSPEC;
  if (address == nullptr || bytes < offsetof(sockaddr, sa_family) + sizeof(family)) {
    return std::nullopt;
  }
  std::memcpy(&family, static_cast<const char*>(address) + offsetof(sockaddr, sa_family),
              sizeof(family));
  if (family == AF_INET && bytes >= sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, address, sizeof(in));
    return SocketAddress{IpAddress::FromV4(ntohl(in.sin_addr.s_addr)), ntohs(in.sin_port)};
  }
  if (family == AF_INET6 && bytes >= sizeof(sockaddr_in6)) {
    sockaddr_in6 in6;
    std::memcpy(&in6, address, sizeof(in6));
    Gid gid;
    std::memcpy(gid.data(), &in6.sin6_addr, gid.size());
    return SocketAddress{IpAddress::FromV6(gid, in6.sin6_scope_id), ntohs(in6.sin6_port)};
  }
  return std::nullopt;
}

socklen_t SocketAddress::ToSockaddr(sockaddr_storage* out) const noexcept {
  if (ip.is_v6()) return ToSockaddrV6(out);
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  in.sin_addr.s_addr = htonl(ip.v4());
  std::memcpy(out, &in, sizeof(in));
  return sizeof(in);
}

socklen_t SocketAddress::ToSockaddrV6(sockaddr_storage* out) const noexcept {
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(port);
  std::memcpy(&in6.sin6_addr, ip.bytes().data(), ip.bytes().size());
  in6.sin6_scope_id = ip.scope_id();
  std::memcpy(out, &in6, sizeof(in6));
  return sizeof(in6);
}

std::string SocketAddress::ToString() const {
  return ip.is_v4() ? absl::StrCat(ip.ToString(), ":", port)
                    : absl::StrCat("[", ip.ToString(), "]:", port);
}

}  // namespace rdmad
