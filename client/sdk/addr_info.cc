#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/sdk/status_errno.h"
#include "client/sdk/status_macros.h"
#include "rdmad/cm.h"

namespace rdmad {

absl::StatusOr<std::vector<AddrInfo>> GetAddrInfo(const std::string& node, const std::string& service,
                                                  const AddrInfoHints& hints) {
  if (node.empty() && service.empty()) return absl::InvalidArgumentError("getaddrinfo: neither node nor service given");
  // getaddrinfo(3) takes larger numbers modulo 65536.
  if (uint32_t port; absl::SimpleAtoi(service, &port) && port > UINT16_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("getaddrinfo: port ", service, ": allowed are 0 to 65535"));
  }
  addrinfo request{};
  request.ai_family = hints.family == 4 ? AF_INET : hints.family == 6 ? AF_INET6 : AF_UNSPEC;
  request.ai_socktype = hints.port_space == PortSpace::kUdp ? SOCK_DGRAM : SOCK_STREAM;
  request.ai_flags = (hints.passive ? AI_PASSIVE : 0) | (hints.numeric_host ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(node.empty() ? nullptr : node.c_str(), service.empty() ? nullptr : service.c_str(),
                                  &request, &found);
  const std::string what = absl::StrCat("getaddrinfo: node=\"", node, "\" service=\"", service, "\"");
  if (error == EAI_SYSTEM) return sdk::ErrnoToStatus(errno, what);
  if (error != 0) return absl::NotFoundError(absl::StrCat(what, ": ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);

  std::vector<AddrInfo> infos;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const absl::StatusOr<Address> address = Address::FromSockaddr(entry->ai_addr, entry->ai_addrlen);
    if (!address.ok()) continue;
    AddrInfo info;
    info.passive = hints.passive;
    info.port_space = hints.port_space;
    info.qp_type = hints.port_space == PortSpace::kUdp ? QpType::kUd : QpType::kRc;
    (hints.passive ? info.src : info.dst) = *address;
    infos.push_back(info);
  }
  if (infos.empty()) return absl::NotFoundError(absl::StrCat(what, ": no IP address"));
  return infos;
}

}  // namespace rdmad
