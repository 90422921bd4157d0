#include "daemon/device/soft/udp_peer.h"

#include <netinet/in.h>

#include "daemon/base/socket_address.h"
#include "daemon/device/soft/udp_socket.h"

namespace rdmad::soft {

UdpPeer::UdpPeer(const Flow& flow, uint16_t port) noexcept {
  // A link-local peer is on the link of the address that we send from, whatever the caller knew.
  const IpAddress remote = flow.remote.is_link_local() && flow.remote.scope_id() == 0
                               ? flow.remote.WithScope(flow.local.scope_id())
                               : flow.remote;
  address_bytes_ = SocketAddress{remote, port}.ToSockaddr(&address_);
  const bool is_v4 = flow.local.is_v4();
  if (const int tos = flow.traffic_class | flow.ecn; tos != 0) {
    is_v4 ? AddControl(IPPROTO_IP, IP_TOS, tos) : AddControl(IPPROTO_IPV6, IPV6_TCLASS, tos);
  }
  // 0 means "not given", as in an address vector that nobody filled.
  if (flow.hop_limit != kDefaultHopLimit && flow.hop_limit != 0) {
    is_v4 ? AddControl(IPPROTO_IP, IP_TTL, flow.hop_limit)
          : AddControl(IPPROTO_IPV6, IPV6_HOPLIMIT, flow.hop_limit);
  }
  if (!is_v4 && flow.flow_label != 0) {
    AddControl(IPPROTO_IPV6, kIpv6FlowInfo, static_cast<int>(htonl(flow.flow_label & 0xfffff)));
  }
}

void UdpPeer::AddControl(int level, int type, int value) noexcept {
  control_bytes_ += PutControl(control_.data() + control_bytes_, level, type, value);
}

size_t UdpPeer::CopyControl(std::span<std::byte, kMaxControlBytes> out) const noexcept {
  if (control_bytes_ != 0) std::memcpy(out.data(), control_.data(), control_bytes_);
  return control_bytes_;
}

}  // namespace rdmad::soft
