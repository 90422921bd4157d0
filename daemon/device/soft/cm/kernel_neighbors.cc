#include "daemon/device/soft/cm/kernel_neighbors.h"

#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>

#include "daemon/base/socket_address.h"

namespace rdmad::soft {
namespace {

constexpr uint16_t kDiscardPort = 9;
constexpr size_t kMessageBytes = 1024;  // more than any route or neighbour takes

// IPv4 in its own four bytes, IPv6 in sixteen.
std::span<const uint8_t> AddressBytes(const IpAddress& address) {
  const std::span<const uint8_t> all(address.bytes());
  return address.is_v4() ? all.last(4) : all;
}

std::optional<IpAddress> ToAddress(std::span<const uint8_t> bytes, uint32_t scope_id) {
  if (bytes.size() == 4) return IpAddress::FromV4(bytes[0], bytes[1], bytes[2], bytes[3]);
  Gid gid;
  if (bytes.size() != gid.size()) return std::nullopt;
  std::copy(bytes.begin(), bytes.end(), gid.begin());
  return IpAddress::FromV6(gid, scope_id);
}

uint8_t FamilyOf(const IpAddress& address) {
  return address.is_v4() ? AF_INET : AF_INET6;
}

// A netlink message: header, the fixed part that belongs to its type, attributes.
template <typename Fixed>
class Message {
 public:
  Message(uint16_t type, const Fixed& fixed) {
    header_.nlmsg_type = type;
    header_.nlmsg_flags = NLM_F_REQUEST;
    header_.nlmsg_len = NLMSG_LENGTH(sizeof(Fixed));
    std::memcpy(bytes_.data() + NLMSG_HDRLEN, &fixed, sizeof(fixed));
  }

  void Add(uint16_t type, std::span<const uint8_t> value) {
    rtattr attribute{};
    attribute.rta_type = type;
    attribute.rta_len = static_cast<uint16_t>(RTA_LENGTH(value.size()));
    uint8_t* const end = bytes_.data() + NLMSG_ALIGN(header_.nlmsg_len);
    std::memcpy(end, &attribute, sizeof(attribute));
    std::copy(value.begin(), value.end(), end + RTA_LENGTH(0));
    header_.nlmsg_len =
        static_cast<uint32_t>(NLMSG_ALIGN(header_.nlmsg_len) + RTA_ALIGN(attribute.rta_len));
  }
  void Add(uint16_t type, uint32_t value) {
    Add(type, {reinterpret_cast<const uint8_t*>(&value), sizeof(value)});
  }

  std::span<const uint8_t> Finish() {
    std::memcpy(bytes_.data(), &header_, sizeof(header_));
    return {bytes_.data(), header_.nlmsg_len};
  }

 private:
  nlmsghdr header_{};
  std::array<uint8_t, 128> bytes_{};
};

// The answer to a request for one object.
class Answer {
 public:
  // Sends the request and takes the kernel's answer, which is there when send(2) returns. False:
  // none came, or an error.
  bool Ask(int netlink, std::span<const uint8_t> request, uint16_t expected_type) {
    // What a late answer to an earlier question may have left.
    while (::recv(netlink, bytes_.data(), bytes_.size(), MSG_DONTWAIT) > 0) {
    }
    if (::send(netlink, request.data(), request.size(), 0) < 0) return Fail(errno);
    const ssize_t got = ::recv(netlink, bytes_.data(), bytes_.size(), MSG_DONTWAIT);
    if (got < static_cast<ssize_t>(sizeof(nlmsghdr))) return Fail(EIO);
    nlmsghdr header;
    std::memcpy(&header, bytes_.data(), sizeof(header));
    if (header.nlmsg_len > static_cast<size_t>(got)) return Fail(EIO);
    size_ = header.nlmsg_len;
    if (header.nlmsg_type == expected_type) return true;
    if (header.nlmsg_type != NLMSG_ERROR || size_ < NLMSG_LENGTH(sizeof(int))) return Fail(EIO);
    int error;
    std::memcpy(&error, bytes_.data() + NLMSG_HDRLEN, sizeof(error));
    return Fail(-error);
  }

  [[nodiscard]] int error() const noexcept { return error_; }

  template <typename Fixed>
  [[nodiscard]] Fixed Get() const {
    Fixed fixed{};
    if (size_ >= NLMSG_LENGTH(sizeof(fixed))) {
      std::memcpy(&fixed, bytes_.data() + NLMSG_HDRLEN, sizeof(fixed));
    }
    return fixed;
  }

  // Empty: there is no such attribute.
  [[nodiscard]] std::span<const uint8_t> Attribute(size_t fixed_bytes, uint16_t type) const {
    size_t at = NLMSG_SPACE(fixed_bytes);
    while (at + sizeof(rtattr) <= size_) {
      rtattr attribute;
      std::memcpy(&attribute, bytes_.data() + at, sizeof(attribute));
      if (attribute.rta_len < sizeof(attribute) || at + attribute.rta_len > size_) break;
      if (attribute.rta_type == type) {
        return {bytes_.data() + at + RTA_LENGTH(0), attribute.rta_len - RTA_LENGTH(0)};
      }
      at += RTA_ALIGN(attribute.rta_len);
    }
    return {};
  }

 private:
  bool Fail(int error) noexcept {
    error_ = error;
    return false;
  }

  std::array<uint8_t, kMessageBytes> bytes_{};
  size_t size_ = 0;
  int error_ = 0;
};

struct NextHop {
  uint32_t interface_index;
  IpAddress address;
};

// nullopt: there is none on any link (the peer is on this host), or the kernel does not say.
std::optional<NextHop> FindNextHop(int netlink, const IpAddress& peer) {
  rtmsg fixed{};
  fixed.rtm_family = FamilyOf(peer);
  fixed.rtm_dst_len = static_cast<uint8_t>(AddressBytes(peer).size() * 8);
  Message<rtmsg> request(RTM_GETROUTE, fixed);
  request.Add(RTA_DST, AddressBytes(peer));
  if (peer.scope_id() != 0) request.Add(RTA_OIF, peer.scope_id());
  Answer answer;
  if (!answer.Ask(netlink, request.Finish(), RTM_NEWROUTE)) return std::nullopt;
  if (answer.Get<rtmsg>().rtm_type != RTN_UNICAST) return std::nullopt;
  const auto interface = answer.Attribute(sizeof(rtmsg), RTA_OIF);
  NextHop hop{0, peer};
  if (interface.size() != sizeof(hop.interface_index)) return std::nullopt;
  std::memcpy(&hop.interface_index, interface.data(), sizeof(hop.interface_index));
  const auto gateway = answer.Attribute(sizeof(rtmsg), RTA_GATEWAY);
  if (!gateway.empty()) {
    const auto address = ToAddress(gateway, hop.interface_index);
    if (!address) return std::nullopt;
    hop.address = *address;
  }
  return hop;
}

// Whether hosts on the interface are found by asking for their link-layer addresses.
bool HasLinkLayerAddresses(uint32_t interface_index) {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  if (!socket || ::if_indextoname(interface_index, request.ifr_name) == nullptr) return false;
  if (::ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0) return false;
  return (request.ifr_flags & (IFF_NOARP | IFF_LOOPBACK | IFF_POINTOPOINT)) == 0;
}

}  // namespace

KernelNeighbors::KernelNeighbors()
    : netlink_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)) {}

NeighborState KernelNeighbors::Query(const IpAddress& peer) {
  if (!netlink_ || peer.is_loopback()) return NeighborState::kReachable;
  const auto hop = FindNextHop(netlink_.get(), peer);
  if (!hop || !HasLinkLayerAddresses(hop->interface_index)) {
    return NeighborState::kReachable;
  }
  ndmsg fixed{};
  fixed.ndm_family = FamilyOf(hop->address);
  fixed.ndm_ifindex = static_cast<int>(hop->interface_index);
  Message<ndmsg> request(RTM_GETNEIGH, fixed);
  request.Add(NDA_DST, AddressBytes(hop->address));
  Answer answer;
  if (!answer.Ask(netlink_.get(), request.Finish(), RTM_NEWNEIGH)) {
    // A kernel before 5.0 knows the whole table only.
    return answer.error() == ENOENT ? NeighborState::kUnknown : NeighborState::kReachable;
  }
  constexpr unsigned kKnown =
      NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;
  const unsigned state = answer.Get<ndmsg>().ndm_state;
  if ((state & kKnown) != 0) return NeighborState::kReachable;
  return (state & NUD_FAILED) != 0 ? NeighborState::kFailed : NeighborState::kUnknown;
}

void KernelNeighbors::Solicit(const IpAddress& local, const IpAddress& peer) {
  const UniqueFd socket(::socket(FamilyOf(peer), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return;
  sockaddr_storage name;
  socklen_t bytes = SocketAddress{local, 0}.ToSockaddr(&name);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), bytes) != 0) return;
  bytes = SocketAddress{peer, kDiscardPort}.ToSockaddr(&name);
  // Whether it gets out shows in the neighbour table.
  (void)::sendto(socket.get(), nullptr, 0, 0, reinterpret_cast<const sockaddr*>(&name), bytes);
}

}  // namespace rdmad::soft
