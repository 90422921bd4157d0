#include "daemon/device/verbs/multicast_member.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rdmad::verbs {

absl::StatusOr<UniqueFd> JoinOnInterface(const IpAddress& group, uint32_t ifindex) {
  if (!group.is_multicast()) {
    return absl::InvalidArgumentError(
        absl::StrCat("multicast: ", group.ToString(), " is no multicast address"));
  }
  UniqueFd fd(::socket(group.is_v4() ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  int joined = -1;
  if (fd.valid() && group.is_v4()) {
    ip_mreqn request{};
    request.imr_multiaddr.s_addr = htonl(group.v4());
    request.imr_ifindex = static_cast<int>(ifindex);
    joined = ::setsockopt(fd.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof(request));
  } else if (fd.valid()) {
    ipv6_mreq request{};
    std::memcpy(&request.ipv6mr_multiaddr, group.bytes().data(), group.bytes().size());
    request.ipv6mr_interface = ifindex;
    joined = ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof(request));
  }
  if (joined == 0) return fd;
  const int error = errno;
  return absl::ErrnoToStatus(
      error, absl::StrCat("multicast: group=", group.ToString(), " ifindex=", ifindex));
}

}  // namespace rdmad::verbs
