#include "rdmad/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rdmad {
namespace {

absl::Status BadAddress(const std::string& text, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("address: \"", text, "\": ", what,
                                                 "; expected 192.0.2.1:7471, [2001:db8::1]:7471 or :7471"));
}

// "fe80::1%eth0" or "fe80::1%2".
bool ParseV6(std::string host, Address* out) {
  if (const size_t percent = host.find('%'); percent != std::string::npos) {
    const std::string scope = host.substr(percent + 1);
    host.resize(percent);
    out->scope_id = ::if_nametoindex(scope.c_str());
    if (out->scope_id == 0 && !absl::SimpleAtoi(scope, &out->scope_id)) return false;
  }
  out->family = 6;
  return ::inet_pton(AF_INET6, host.c_str(), out->bytes.data()) == 1;
}

bool ParseHost(const std::string& host, bool bracketed, Address* out) {
  if (bracketed) return ParseV6(host, out);
  if (host.empty()) {
    out->family = 4;  // any
    return true;
  }
  if (::inet_pton(AF_INET, host.c_str(), out->bytes.data()) == 1) {
    out->family = 4;
    return true;
  }
  return ParseV6(host, out);
}

}  // namespace

absl::StatusOr<Address> Address::Parse(const std::string& text) {
  if (text.empty()) return BadAddress(text, "empty");
  std::string host = text;
  std::string port;
  bool has_port = false;
  const bool bracketed = text.front() == '[';
  if (bracketed) {
    const size_t close = text.find(']');
    if (close == std::string::npos) return BadAddress(text, "no closing bracket");
    host = text.substr(1, close - 1);
    const std::string rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') return BadAddress(text, "something other than a port behind the bracket");
    has_port = !rest.empty();
    if (has_port) port = rest.substr(1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    const size_t colon = text.find(':');
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
  }
  Address address;
  if (!ParseHost(host, bracketed, &address)) return BadAddress(text, "not an IP address");
  uint32_t number = 0;
  const bool digits = !port.empty() && std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (has_port && (!digits || !absl::SimpleAtoi(port, &number) || number > 65535)) {
    return BadAddress(text, "the port is not a number from 0 to 65535");
  }
  address.port = static_cast<uint16_t>(number);
  return address;
}

absl::StatusOr<Address> Address::FromSockaddr(const sockaddr* sockaddr_in_or_6, size_t size_bytes) {
  Address address;
  if (sockaddr_in_or_6 != nullptr && size_bytes >= sizeof(sockaddr_in) && sockaddr_in_or_6->sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, sockaddr_in_or_6, sizeof(in));
    address.family = 4;
    address.port = ntohs(in.sin_port);
    std::memcpy(address.bytes.data(), &in.sin_addr, 4);
    return address;
  }
  if (sockaddr_in_or_6 != nullptr && size_bytes >= sizeof(sockaddr_in6) && sockaddr_in_or_6->sa_family == AF_INET6) {
    sockaddr_in6 in6;
    std::memcpy(&in6, sockaddr_in_or_6, sizeof(in6));
    address.family = 6;
    address.port = ntohs(in6.sin6_port);
    address.scope_id = in6.sin6_scope_id;
    std::memcpy(address.bytes.data(), &in6.sin6_addr, 16);
    return address;
  }
  return absl::InvalidArgumentError(absl::StrCat("address: not a sockaddr_in or sockaddr_in6: bytes=", size_bytes));
}

socklen_t Address::ToSockaddr(sockaddr_storage* out) const noexcept {
  std::memset(out, 0, sizeof(*out));
  if (family == 4) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, bytes.data(), 4);
    std::memcpy(out, &in, sizeof(in));
    return sizeof(in);
  }
  if (family == 6) {
    sockaddr_in6 in6{};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(port);
    in6.sin6_scope_id = scope_id;
    std::memcpy(&in6.sin6_addr, bytes.data(), 16);
    std::memcpy(out, &in6, sizeof(in6));
    return sizeof(in6);
  }
  return 0;
}

std::string Address::ToString() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family == 4) {
    ::inet_ntop(AF_INET, bytes.data(), text, sizeof(text));
    return absl::StrCat(text, ":", port);
  }
  if (family == 6) {
    ::inet_ntop(AF_INET6, bytes.data(), text, sizeof(text));
    std::string scope;
    if (scope_id != 0) {
      char name[IF_NAMESIZE];
      scope = absl::StrCat("%", ::if_indextoname(scope_id, name) != nullptr ? std::string(name)
                                                                            : std::to_string(scope_id));
    }
    return absl::StrCat("[", text, scope, "]:", port);
  }
  return "-";
}

bool Address::IsAny() const noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

}  // namespace rdmad
