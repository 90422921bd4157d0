// Membership in one multicast group on one interface: a socket, and the QPs that what it yields is
// for.
//
// The device's other sockets are bound to its unicast addresses and never see a group's datagrams,
// so each group has a socket of its own, bound to the group's address. It shares that address and
// port with anybody who wants to (SO_REUSEADDR): each such socket gets a copy, hence several
// daemons on one host hear a group. It takes what comes in by its own interface alone. While the
// socket is open, the kernel is a member and says so by IGMP or MLD.
//
// The datagrams that this daemon itself sends to the group come back by the kernel's loopback
// (IP_MULTICAST_LOOP, on by default) to all members of the host, and by no other way, so everybody
// gets one copy.
//
// Thread: control creates and destroys it; the engine does the rest. Owner: its attachments,
// together.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/soft/multicast_group.h"
#include "daemon/device/soft/port_list.h"
#include "daemon/device/soft/udp_counters.h"
#include "daemon/device/soft/udp_rx.h"
#include "daemon/device/soft/udp_socket.h"

namespace rdmad::soft {

class MulticastPort {
 public:
  // `counters` outlives the port and belongs to the engine that drives it.
  // Errors: those of OpenMulticastSocket().
  static absl::StatusOr<std::unique_ptr<MulticastPort>> Open(const IpAddress& group,
                                                             uint32_t interface_index,
                                                             uint16_t udp_port,
                                                             const UdpSocketOptions& options,
                                                             UdpCounters* counters);

  MulticastGroup& group() noexcept { return group_; }
  const IpAddress& address() const noexcept { return address_; }
  int fd() const noexcept { return fd_.get(); }
  // As UdpRx::Receive(), but delivers to at most MulticastGroup::kDeliveriesPerTurn members, or one
  // packet; goes on with that one before it takes another.
  int Receive(UdpRxBuffers& buffers, PacketRx& up, bool* more) noexcept;
  // The data path's. Thread: engine.
  PortLink<MulticastPort>& link() noexcept { return link_; }

 private:
  MulticastPort(UniqueFd fd, const IpAddress& group, uint16_t udp_port, UdpCounters* counters);

  const UniqueFd fd_;
  const IpAddress address_;
  UdpRx rx_;
  MulticastGroup group_;
  PortLink<MulticastPort> link_;
};

// Opens a socket that receives what is sent to `group` and `udp_port` on an interface, which may
// change its name, and joins. Errors: InvalidArgument (no multicast address), NotFound (no such
// interface), AlreadyExists (somebody has the port and does not share it), ResourceExhausted (too
// many memberships), Unavailable (the kernel refuses; says why). Thread: any.
absl::StatusOr<UniqueFd> OpenMulticastSocket(const IpAddress& group, uint32_t interface_index,
                                             uint16_t udp_port, const UdpSocketOptions& options);

}  // namespace rdmad::soft
