// One engine's UDP port 4791 of one local address: the socket, its sending half and its receiving
// half, and what they count.
//
// Two threads use the one socket. The engine sends and receives packets; control sends the CM's
// datagrams. Nothing else is shared: each side has its own buffers and counters, and the kernel
// serializes calls on a socket.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/port_list.h"
#include "daemon/device/soft/udp_counters.h"
#include "daemon/device/soft/udp_rx.h"
#include "daemon/device/soft/udp_socket.h"
#include "daemon/device/soft/udp_tx.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

// Thread: see each method. Owner: UdpPortGroup.
class UdpPort {
 public:
  // Thread: control. Errors: those of OpenUdpSocket().
  static absl::StatusOr<std::unique_ptr<UdpPort>> Open(const IpAddress& local,
                                                       uint16_t port = wire::kRoceUdpPort,
                                                       const UdpSocketOptions& options = {});
  // On a socket of OpenUdpSocket()'s kind that is bound already.
  UdpPort(UniqueFd fd, const IpAddress& local, uint16_t port) noexcept;

  // Thread: engine. See PacketTx::Send(); `flow.local` must be local().
  [[nodiscard]] size_t Send(const Flow& flow, std::span<const TxPacket> packets) noexcept {
    return tx_.Send(flow, packets);
  }
  // Thread: engine. See UdpRx::Receive().
  int Receive(UdpRxBuffers& buffers, PacketRx& up, bool* more) noexcept {
    return rx_.Receive(buffers, up, more);
  }

  // Sends one finished packet for QP 1, whose ICRC is for identification 0. False: the kernel would
  // not take it. Thread: control.
  bool SendMadPacket(const Flow& flow, std::span<const uint8_t> udp_payload) noexcept;

  [[nodiscard]] const IpAddress& local() const noexcept { return local_; }
  [[nodiscard]] uint16_t port() const noexcept { return port_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  // Any thread.
  [[nodiscard]] const UdpCounters& counters() const noexcept { return counters_; }
  // Thread: engine, or before it runs.
  [[nodiscard]] UdpTx& tx() noexcept { return tx_; }
  // The data path's. Thread: engine.
  [[nodiscard]] PortLink<UdpPort>& link() noexcept { return link_; }

 private:
  const UniqueFd fd_;
  const IpAddress local_;
  const uint16_t port_;
  UdpCounters counters_;
  UdpRx rx_;
  UdpTx tx_;
  PortLink<UdpPort> link_;
};

}  // namespace rdmad::soft
