#include "daemon/base/ip_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rdmad {
namespace {

absl::Status BadAddress(const std::string& text, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("ip address \"", text, "\": ", why));
}

// An interface index, or the index of a named interface; 0: neither.
uint32_t ScopeOf(const std::string& zone) {
  uint32_t index = 0;
  const auto [end, error] = std::from_chars(zone.data(), zone.data() + zone.size(), index);
  if (error == std::errc() && end == zone.data() + zone.size()) return index;
  return if_nametoindex(zone.c_str());
}

// Both halves of a product, folded: addresses of one network differ only in their last byte, which
// must reach the low bits that hash tables use.
uint64_t Mix(uint64_t value) {
  const unsigned __int128 product =
      static_cast<unsigned __int128>(value ^ 0xd6e8feb86659fd93u) * 0x9e3779b97f4a7c15u;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

absl::StatusOr<IpAddress> IpAddress::Parse(const std::string& text) {
  // inet_pton stops at a NUL, which must not hide what follows it.
  if (text.find('\0') != std::string::npos) return BadAddress("", "contains a zero byte");
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return FromV4(ntohl(v4.s_addr));

  const size_t percent = text.find('%');
  Gid bytes;
  if (inet_pton(AF_INET6, text.substr(0, percent).c_str(), bytes.data()) != 1) {
    return BadAddress(text, "neither IPv4 nor IPv6");
  }
  if (percent == std::string::npos) return FromV6(bytes);
  if (!FromV6(bytes).is_link_local()) return BadAddress(text, "only link-local has an interface");
  const uint32_t scope_id = ScopeOf(text.substr(percent + 1));
  if (scope_id == 0) return BadAddress(text, "no such interface");
  return FromV6(bytes, scope_id);
}

std::string IpAddress::ToString() const {
  char text[INET6_ADDRSTRLEN];
  if (is_v4()) {
    return inet_ntop(AF_INET, bytes_.data() + 12, text, sizeof(text));
  }
  inet_ntop(AF_INET6, bytes_.data(), text, sizeof(text));
  return scope_id_ == 0 ? std::string(text) : absl::StrCat(text, "%", scope_id_);
}

size_t IpAddress::Hash() const noexcept {
  uint64_t high;
  uint64_t low;
  std::memcpy(&high, bytes_.data(), sizeof(high));
  std::memcpy(&low, bytes_.data() + sizeof(high), sizeof(low));
  return static_cast<size_t>(Mix(Mix(high ^ scope_id_) ^ low));
}

}  // namespace rdmad
