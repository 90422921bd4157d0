#include "daemon/device/soft/udp_port.h"

#include <sys/socket.h>

#include <utility>

#include "daemon/base/status_macros.h"
#include "daemon/device/soft/udp_peer.h"

namespace rdmad::soft {

absl::StatusOr<std::unique_ptr<UdpPort>> UdpPort::Open(const IpAddress& local, uint16_t port,
                                                       const UdpSocketOptions& options) {
  RD_ASSIGN_OR_RETURN(UniqueFd fd, OpenUdpSocket(local, port, options));
  return std::make_unique<UdpPort>(std::move(fd), local, port);
}

UdpPort::UdpPort(UniqueFd fd, const IpAddress& local, uint16_t port) noexcept
    : fd_(std::move(fd)),
      local_(local),
      port_(port),
      rx_(fd_.get(), local_, port_, &counters_),
      tx_(fd_.get(), port_, &counters_) {}

bool UdpPort::SendMadPacket(const Flow& flow, std::span<const uint8_t> udp_payload) noexcept {
  const UdpPeer peer(flow, port_);
  alignas(cmsghdr) std::array<std::byte, UdpPeer::kMaxControlBytes> control;
  sockaddr_storage address = peer.address();
  // sendmsg does not write to what it sends, but iovec has no const.
  iovec piece = {const_cast<uint8_t*>(udp_payload.data()), udp_payload.size()};
  msghdr header{};
  header.msg_name = &address;
  header.msg_namelen = peer.address_bytes();
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_controllen = peer.CopyControl(control);
  if (header.msg_controllen != 0) header.msg_control = control.data();
  const bool sent = ::sendmsg(fd_.get(), &header, MSG_DONTWAIT) >= 0;
  (sent ? counters_.mad_tx_packets : counters_.mad_tx_failed).Add();
  return sent;
}

}  // namespace rdmad::soft
