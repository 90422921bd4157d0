#include "daemon/device/soft/multicast_port.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/socket_address.h"
#include "daemon/base/status_macros.h"

// Newer than some C libraries' headers.
#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

namespace rdmad::soft {
namespace {

// For messages.
std::string NameOf(uint32_t interface_index) {
  char name[IF_NAMESIZE];
  return ::if_indextoname(interface_index, name) != nullptr
             ? name
             : absl::StrCat("interface ", interface_index);
}

absl::Status Failed(int error, const IpAddress& group, const std::string& netdev,
                    const char* step) {
  const std::string text = absl::StrCat("multicast group ", group.ToString(), " on ", netdev, ": ",
                                        step, ": ", std::generic_category().message(error));
  if (error == EADDRINUSE) return absl::AlreadyExistsError(text);
  if (error == ENOBUFS) {
    return absl::ResourceExhaustedError(
        absl::StrCat(text, " (net.ipv4.igmp_max_memberships, net.core.optmem_max)"));
  }
  return absl::UnavailableError(text);
}

template <typename T>
bool Set(int fd, int level, int name, const T& value) noexcept {
  return ::setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

bool Join(int fd, const IpAddress& group, uint32_t interface_index) noexcept {
  if (group.is_v4()) {
    ip_mreqn request{};
    request.imr_multiaddr.s_addr = htonl(group.v4());
    request.imr_ifindex = static_cast<int>(interface_index);
    return Set(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, request);
  }
  ipv6_mreq request{};
  std::memcpy(&request.ipv6mr_multiaddr, group.bytes().data(), sizeof(request.ipv6mr_multiaddr));
  request.ipv6mr_interface = interface_index;
  return Set(fd, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, request);
}

}  // namespace

absl::StatusOr<UniqueFd> OpenMulticastSocket(const IpAddress& group, uint32_t interface_index,
                                             uint16_t udp_port, const UdpSocketOptions& options) {
  if (!group.is_multicast()) {
    return absl::InvalidArgumentError(
        absl::StrCat("multicast group ", group.ToString(), ": not a multicast address"));
  }
  const std::string netdev = NameOf(interface_index);
  RD_ASSIGN_OR_RETURN(UniqueFd fd, MakeUdpSocket(group.is_v4(), group.ToString(), options));
  const auto failed = [&](const char* step) { return Failed(errno, group, netdev, step); };
  if (!Set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1)) return failed("SO_REUSEADDR");
  // A membership of IPv6 says nothing about the interface by which a datagram came in.
  if (!Set(fd.get(), SOL_SOCKET, SO_BINDTOIFINDEX, static_cast<int>(interface_index))) {
    if (errno != ENODEV) return failed("SO_BINDTOIFINDEX");
    return absl::NotFoundError(
        absl::StrCat("multicast group ", group.ToString(), ": ", netdev, " has gone"));
  }
  // A packet at a time, so that it is known to how many members a message is to go.
  if (!Set(fd.get(), IPPROTO_UDP, UDP_GRO, 0)) return failed("UDP_GRO");
  // Else the memberships of every process of the host would count as this socket's.
  const bool own = group.is_v4() ? Set(fd.get(), IPPROTO_IP, IP_MULTICAST_ALL, 0)
                                 : Set(fd.get(), IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
  if (!own) return failed("MULTICAST_ALL");
  sockaddr_storage address;
  const socklen_t bytes =
      SocketAddress{group.WithScope(interface_index), udp_port}.ToSockaddr(&address);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    return failed("bind");
  }
  if (!Join(fd.get(), group, interface_index)) return failed("join");
  return fd;
}

absl::StatusOr<std::unique_ptr<MulticastPort>> MulticastPort::Open(const IpAddress& group,
                                                                   uint32_t interface_index,
                                                                   uint16_t udp_port,
                                                                   const UdpSocketOptions& options,
                                                                   UdpCounters* counters) {
  RD_ASSIGN_OR_RETURN(UniqueFd fd, OpenMulticastSocket(group, interface_index, udp_port, options));
  return std::unique_ptr<MulticastPort>(
      new MulticastPort(std::move(fd), group, udp_port, counters));
}

MulticastPort::MulticastPort(UniqueFd fd, const IpAddress& group, uint16_t udp_port,
                             UdpCounters* counters)
    : fd_(std::move(fd)), address_(group), rx_(fd_.get(), address_, udp_port, counters) {}

int MulticastPort::Receive(UdpRxBuffers& buffers, PacketRx& up, bool* more) noexcept {
  int received = 0;
  group_.BeginTurn();
  if (group_.has_held()) {
    up.OnPacket(group_.held_flow(), group_.held());
    received = 1;
  }
  if (group_.has_held()) {
    *more = true;
    return received;
  }
  const size_t budget = group_.deliveries_left();
  const size_t messages =
      std::clamp<size_t>(budget / std::max<size_t>(group_.size(), 1), 1, UdpRxBuffers::kMessages);
  received += rx_.Receive(buffers, up, more, messages);
  *more |= group_.has_held();
  return received;
}

}  // namespace rdmad::soft
