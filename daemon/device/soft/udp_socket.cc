#include "daemon/device/soft/udp_socket.h"

#include <ifaddrs.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>

#include <cerrno>
#include <span>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/socket_address.h"
#include "daemon/device/soft/port_holder.h"
#include "daemon/base/status_macros.h"

// Newer than some C libraries' headers.
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef UDP_NO_CHECK6_RX
#define UDP_NO_CHECK6_RX 102
#endif

namespace rdmad::soft {
namespace {

std::string ErrorText(int error) {
  return std::generic_category().message(error);
}

bool SetInt(int fd, int level, int name, int value) noexcept {
  return ::setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

struct IntOption {
  int level;
  int name;
  int value;
  const char* text;
};

constexpr IntOption kIpv4Options[] = {
    {IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO, "IP_MTU_DISCOVER"},
    {IPPROTO_IP, IP_TTL, kDefaultHopLimit, "IP_TTL"},
    {IPPROTO_IP, IP_MULTICAST_TTL, kDefaultHopLimit, "IP_MULTICAST_TTL"},
    {IPPROTO_IP, IP_TOS, 0, "IP_TOS"},
    {IPPROTO_IP, IP_RECVTOS, 1, "IP_RECVTOS"},
    {IPPROTO_IP, IP_RECVTTL, 1, "IP_RECVTTL"},
    {IPPROTO_UDP, UDP_GRO, 1, "UDP_GRO"},
};

constexpr IntOption kIpv6Options[] = {
    {IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY"},
    {IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO, "IPV6_MTU_DISCOVER"},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, kDefaultHopLimit, "IPV6_UNICAST_HOPS"},
    {IPPROTO_IPV6, IPV6_MULTICAST_HOPS, kDefaultHopLimit, "IPV6_MULTICAST_HOPS"},
    {IPPROTO_IPV6, IPV6_TCLASS, 0, "IPV6_TCLASS"},
    {IPPROTO_IPV6, IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS"},
    {IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1, "IPV6_RECVHOPLIMIT"},
    {IPPROTO_IPV6, kIpv6FlowInfo, 1, "IPV6_FLOWINFO"},
    {IPPROTO_UDP, UDP_NO_CHECK6_RX, 1, "UDP_NO_CHECK6_RX"},
    {IPPROTO_UDP, UDP_GRO, 1, "UDP_GRO"},
};

absl::Status SetAll(int fd, std::span<const IntOption> options, const std::string& where) {
  for (const IntOption& option : options) {
    if (SetInt(fd, option.level, option.name, option.value)) continue;
    const int error = errno;
    return absl::UnavailableError(absl::StrCat("udp_socket: ", where,
                                               ": this kernel refuses socket option ", option.text,
                                               ": ", ErrorText(error)));
  }
  return absl::OkStatus();
}

// The forced form may exceed net.core.{r,w}mem_max but needs CAP_NET_ADMIN; the plain one is cut to
// the limit.
void SetBuffer(int fd, int forced_name, int name, uint32_t bytes) noexcept {
  // The kernel doubles the value for its own overhead.
  const int value = static_cast<int>(bytes / 2);
  if (!SetInt(fd, SOL_SOCKET, forced_name, value)) SetInt(fd, SOL_SOCKET, name, value);
}

// The index of the interface that has an IPv6 address; 0 if none has.
int InterfaceOf(const IpAddress& local) noexcept {
  if (local.scope_id() != 0) return static_cast<int>(local.scope_id());
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return 0;
  int index = 0;
  for (const ifaddrs* one = list; one != nullptr && index == 0; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET6) continue;
    const auto found = SocketAddress::FromSockaddr(one->ifa_addr, sizeof(sockaddr_in6));
    if (found.has_value() && found->ip == local) {
      index = static_cast<int>(::if_nametoindex(one->ifa_name));
    }
  }
  ::freeifaddrs(list);
  return index;
}

absl::Status BindError(int error, const IpAddress& local, uint16_t port) {
  const std::string where = absl::StrCat("UDP port ", port, " on ", local.ToString());
  switch (error) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(PortHolderAdvice(where, port));
    case EADDRNOTAVAIL:
      return absl::NotFoundError(
          absl::StrCat("cannot bind ", where, ": no interface of this host has the address"));
    case ENODEV:
    case EINVAL:
      return absl::NotFoundError(absl::StrCat(
          "cannot bind ", where, ": a link-local address needs its interface (address%interface)"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(absl::StrCat("not allowed to bind ", where));
    default:
      return absl::UnavailableError(absl::StrCat("cannot bind ", where, ": ", ErrorText(error)));
  }
}

}  // namespace

absl::StatusOr<UniqueFd> MakeUdpSocket(bool is_v4, const std::string& where,
                                       const UdpSocketOptions& options) {
  UniqueFd fd(
      ::socket(is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP));
  if (!fd.valid()) {
    const int error = errno;
    return absl::UnavailableError(
        absl::StrCat("udp_socket: ", where, ": cannot make a socket: ", ErrorText(error)));
  }
  const absl::Status set =
      is_v4 ? SetAll(fd.get(), kIpv4Options, where) : SetAll(fd.get(), kIpv6Options, where);
  if (!set.ok()) return set;
  SetBuffer(fd.get(), SO_RCVBUFFORCE, SO_RCVBUF, options.receive_buffer_bytes);
  SetBuffer(fd.get(), SO_SNDBUFFORCE, SO_SNDBUF, options.send_buffer_bytes);
  return fd;
}

absl::Status BindUdpSocket(int fd, const IpAddress& local, uint16_t port) {
  sockaddr_storage address;
  const socklen_t bytes = SocketAddress{local, port}.ToSockaddr(&address);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    return BindError(errno, local, port);
  }
  // For IPv4 the source address, to which the socket is bound, decides by itself.
  if (local.is_v6()) SetInt(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, InterfaceOf(local));
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> OpenUdpSocket(const IpAddress& local, uint16_t port,
                                       const UdpSocketOptions& options) {
  RD_ASSIGN_OR_RETURN(UniqueFd fd, MakeUdpSocket(local.is_v4(),
                                                 SocketAddress{local, port}.ToString(), options));
  RD_RETURN_IF_ERROR(BindUdpSocket(fd.get(), local, port));
  return fd;
}

uint64_t SocketDrops(int fd) noexcept {
  uint32_t values[SK_MEMINFO_VARS] = {};
  socklen_t bytes = sizeof(values);
  if (::getsockopt(fd, SOL_SOCKET, SO_MEMINFO, values, &bytes) != 0) return 0;
  return bytes > SK_MEMINFO_DROPS * sizeof(uint32_t) ? values[SK_MEMINFO_DROPS] : 0;
}

}  // namespace rdmad::soft
