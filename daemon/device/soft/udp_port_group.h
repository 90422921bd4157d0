// The UDP ports of one local address, one per engine, and how a packet finds the right one.
//
// All sockets have the same address and port (SO_REUSEPORT). The kernel asks a small filter of ours
// into which of them a datagram goes: the one of the engine that the low bits of the destination
// QPN name. A datagram that is too short to have one goes to engine 0, which counts it, and MADs (QP
// 1) to whichever these bits say. A batch goes whole where its first packet points (stray_ring.h).
//
// Sharing is for us alone. Three things see to that:
//   - The first socket is bound without SO_REUSEPORT, so it gets the address only if nobody has it,
//     shared or not: a second daemon is refused here, whatever its number of engines.
//   - It and a last one are *guards*: connected to a port of this same address where nobody is, they
//     never get a packet.
//   - Once all are bound the guards give SO_REUSEPORT up, and the kernel lets nobody in beside a
//     socket without it. Two, since it asks only the one that it finds first, and which one that is
//     depends on how it stores them.
// The filter's answer is an index in the order of binding, in which the first guard is 0. A socket
// that is closed would move another into its place, so all are closed together.
//
// With one engine there is one socket, without all of this.
//
// Source: socket(7), SO_REUSEPORT and SO_ATTACH_REUSEPORT_CBPF; Linux, Documentation/networking/
// filter.rst; measured on kernels 6.1 and 6.18.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/soft/udp_port.h"
#include "daemon/device/soft/udp_socket.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

// Thread: control. Owner: SoftPort.
class UdpPortGroup {
 public:
  // `engines`: 1 to QpnAllocator::kEngines. Errors: those of OpenUdpSocket(); Unavailable also if
  // the kernel does not know filters for shared ports.
  static absl::StatusOr<std::unique_ptr<UdpPortGroup>> Open(const IpAddress& local, uint16_t port,
                                                            const UdpSocketOptions& options,
                                                            uint32_t engines);

  [[nodiscard]] UdpPort& port(uint32_t engine) const noexcept { return *ports_[engine]; }
  [[nodiscard]] uint32_t size() const noexcept { return static_cast<uint32_t>(ports_.size()); }

 private:
  UdpPortGroup() = default;

  std::vector<UniqueFd> guards_;
  std::vector<std::unique_ptr<UdpPort>> ports_;
};

}  // namespace rdmad::soft
