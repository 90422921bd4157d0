#include "daemon/device/soft/net_config.h"

#include <linux/if_addr.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netlink/addr.h>
#include <netlink/cache.h>
#include <netlink/errno.h>
#include <netlink/netlink.h>
#include <netlink/route/addr.h>
#include <netlink/route/link.h>
#include <netlink/socket.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/socket_address.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::soft {
namespace {

struct FreeSocket {
  void operator()(nl_sock* socket) const noexcept { nl_socket_free(socket); }
};
struct FreeCache {
  void operator()(nl_cache* cache) const noexcept { nl_cache_free(cache); }
};
using NlSocket = std::unique_ptr<nl_sock, FreeSocket>;
using NlCache = std::unique_ptr<nl_cache, FreeCache>;

absl::Status NetlinkError(const char* what, int error) {
  return absl::UnavailableError(absl::StrCat("net_config: ", what, ": ", nl_geterror(error)));
}

absl::StatusOr<NlSocket> Connect() {
  NlSocket socket(nl_socket_alloc());
  if (socket == nullptr) return NetlinkError("netlink socket", -NLE_NOMEM);
  if (const int error = nl_connect(socket.get(), NETLINK_ROUTE); error < 0) {
    return NetlinkError("netlink socket", error);
  }
  return socket;
}

NetInterface ToInterface(rtnl_link* link) {
  NetInterface result;
  result.index = static_cast<uint32_t>(rtnl_link_get_ifindex(link));
  if (const char* name = rtnl_link_get_name(link); name != nullptr) result.name = name;
  const unsigned flags = rtnl_link_get_flags(link);
  result.up = (flags & IFF_UP) != 0;
  result.running = result.up && (flags & IFF_RUNNING) != 0;
  result.loopback = (flags & IFF_LOOPBACK) != 0;
  result.mtu_bytes = rtnl_link_get_mtu(link);
  if (nl_addr* mac = rtnl_link_get_addr(link); mac != nullptr) {
    const auto* bytes = static_cast<const uint8_t*>(nl_addr_get_binary_addr(mac));
    result.mac.assign(bytes, bytes + nl_addr_get_len(mac));
  }
  return result;
}

std::optional<NetAddress> ToAddress(rtnl_addr* entry, uint32_t interface_index) {
  nl_addr* local = rtnl_addr_get_local(entry);
  if (local == nullptr) return std::nullopt;
  const auto* bytes = static_cast<const uint8_t*>(nl_addr_get_binary_addr(local));
  NetAddress result;
  if (nl_addr_get_family(local) == AF_INET && nl_addr_get_len(local) == 4) {
    result.address = IpAddress::FromV4(bytes[0], bytes[1], bytes[2], bytes[3]);
  } else if (nl_addr_get_family(local) == AF_INET6 && nl_addr_get_len(local) == 16) {
    Gid gid;
    std::memcpy(gid.data(), bytes, gid.size());
    result.address = IpAddress::FromV6(gid, interface_index);
  } else {
    return std::nullopt;
  }
  const unsigned flags = rtnl_addr_get_flags(entry);
  result.prefix_bits = static_cast<uint8_t>(rtnl_addr_get_prefixlen(entry));
  result.tentative = ((flags & IFA_F_TENTATIVE) != 0 && (flags & IFA_F_OPTIMISTIC) == 0) ||
                     (flags & IFA_F_DADFAILED) != 0;
  result.duplicate = (flags & IFA_F_DADFAILED) != 0;
  result.deprecated = (flags & IFA_F_DEPRECATED) != 0;
  return result;
}

absl::Status ReadLinks(nl_sock* socket, std::vector<NetInterface>* interfaces) {
  nl_cache* raw = nullptr;
  if (const int error = rtnl_link_alloc_cache(socket, AF_UNSPEC, &raw); error < 0) {
    return NetlinkError("reading interfaces", error);
  }
  const NlCache cache(raw);
  for (nl_object* object = nl_cache_get_first(raw); object != nullptr;
       object = nl_cache_get_next(object)) {
    // libnl's objects begin with their common part; its own macros cast the same way.
    interfaces->push_back(ToInterface(reinterpret_cast<rtnl_link*>(object)));
  }
  return absl::OkStatus();
}

absl::Status ReadAddresses(nl_sock* socket, std::vector<NetInterface>* interfaces) {
  nl_cache* raw = nullptr;
  if (const int error = rtnl_addr_alloc_cache(socket, &raw); error < 0) {
    return NetlinkError("reading addresses", error);
  }
  const NlCache cache(raw);
  for (nl_object* object = nl_cache_get_first(raw); object != nullptr;
       object = nl_cache_get_next(object)) {
    auto* entry = reinterpret_cast<rtnl_addr*>(object);
    const auto index = static_cast<uint32_t>(rtnl_addr_get_ifindex(entry));
    const auto owner =
        std::find_if(interfaces->begin(), interfaces->end(),
                     [index](const NetInterface& one) { return one.index == index; });
    // An interface may have come between the two readings.
    if (owner == interfaces->end()) continue;
    if (const auto address = ToAddress(entry, index)) owner->addresses.push_back(*address);
  }
  return absl::OkStatus();
}

}  // namespace

bool NetInterface::Has(const IpAddress& address) const noexcept {
  if (loopback && address.is_v4() && address.is_loopback()) return true;
  return std::any_of(addresses.begin(), addresses.end(),
                     [&address](const NetAddress& one) { return one.address == address; });
}

absl::StatusOr<std::vector<NetInterface>> ReadInterfaces() {
  RD_ASSIGN_OR_RETURN(const NlSocket socket, Connect());
  std::vector<NetInterface> interfaces;
  RD_RETURN_IF_ERROR(ReadLinks(socket.get(), &interfaces));
  RD_RETURN_IF_ERROR(ReadAddresses(socket.get(), &interfaces));
  std::sort(interfaces.begin(), interfaces.end(),
            [](const NetInterface& a, const NetInterface& b) { return a.index < b.index; });
  return interfaces;
}

const NetInterface* FindInterface(const std::vector<NetInterface>& interfaces,
                                  const IpAddress& address) {
  const auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                  [&address](const NetInterface& one) { return one.Has(address); });
  return found == interfaces.end() ? nullptr : &*found;
}

absl::StatusOr<KernelRoute> KernelRouteTo(const IpAddress& dest,
                                          const std::optional<IpAddress>& from) {
  const std::string where = absl::StrCat("route to ", dest.ToString());
  if (dest.is_any()) return absl::InvalidArgumentError(absl::StrCat(where, ": not a destination"));
  if (dest.is_link_local() && dest.scope_id() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": a link-local address needs its interface (address%interface)"));
  }
  const UniqueFd fd(::socket(dest.is_v4() ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, where);
  sockaddr_storage name;
  socklen_t bytes = 0;
  if (from.has_value()) {
    bytes = SocketAddress{*from, 0}.ToSockaddr(&name);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), bytes) != 0) {
      return absl::NotFoundError(absl::StrCat(where, " from ", from->ToString(), ": ",
                                              std::generic_category().message(errno)));
    }
  }
  // Connecting a UDP socket only looks up the route. The port means nothing.
  bytes = SocketAddress{dest, 9}.ToSockaddr(&name);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), bytes) != 0) {
    return absl::NotFoundError(absl::StrCat(where, ": ", std::generic_category().message(errno)));
  }
  bytes = sizeof(name);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &bytes) != 0) {
    return absl::ErrnoToStatus(errno, where);
  }
  const auto source = SocketAddress::FromSockaddr(&name, bytes);
  if (!source.has_value()) return absl::InternalError(absl::StrCat(where, ": no source address"));
  KernelRoute route;
  route.source = source->ip.is_link_local() && source->ip.scope_id() == 0
                     ? source->ip.WithScope(dest.scope_id())
                     : source->ip;
  int mtu_bytes = 0;
  bytes = sizeof(mtu_bytes);
  const int got = dest.is_v4() ? ::getsockopt(fd.get(), IPPROTO_IP, IP_MTU, &mtu_bytes, &bytes)
                               : ::getsockopt(fd.get(), IPPROTO_IPV6, IPV6_MTU, &mtu_bytes, &bytes);
  if (got == 0 && mtu_bytes > 0) route.mtu_bytes = static_cast<uint32_t>(mtu_bytes);
  return route;
}

absl::StatusOr<IpAddress> KernelSourceAddressFor(const IpAddress& dest) {
  RD_ASSIGN_OR_RETURN(const KernelRoute route, KernelRouteTo(dest));
  return route.source;
}

}  // namespace rdmad::soft
