// The receiving half of a UDP port: what the socket yields, split into packets, checked, and handed
// up.
//
// One recvmmsg fills several 64 KiB buffers. Each holds one packet, or a batch of equal ones that
// UDP_GRO (or the sender's UDP_SEGMENT, on one host) kept together; the control message says how
// long each is. A packet goes up only if its form is right and its ICRC is: on IPv4 the peer's
// identification is not known, so the ICRC is checked for "right for some identification"
// (wire/icrc_id.h), on IPv6 exactly. Everything else is counted by reason and dropped.
//
// Peers send from any UDP port, but this daemon from one, which it alone has at its addresses. A
// datagram from an address of ours and another port is forged by a user of this host, who would so
// reach QPs and connections of others; the kernel lets nobody forge what comes from elsewhere.
//
// Thread: engine. Owner: UdpPort; the buffers belong to the data path, whose ports share them.
// Nothing allocates after construction.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "daemon/base/ip_address.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/udp_counters.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

// Takes what was received. The packet's spans are valid during the call.
// `flow.traffic_class` and `flow.flow_label` are the peer's; `flow.ecn` and `flow.hop_limit` what
// routers have left of the peer's.
class PacketRx {
 public:
  virtual ~PacketRx() = default;
  virtual void OnPacket(const Flow& flow, const wire::PacketView& packet) noexcept = 0;
  // Whether the address is this daemon's.
  [[nodiscard]] virtual bool IsOwn(const IpAddress& address) const noexcept = 0;
};

// What one recvmmsg writes to. One per data path: at most one port receives at a time.
class UdpRxBuffers {
 public:
  static constexpr size_t kMessages = 32;
  static constexpr size_t kMessageBytes = 65536;  // more than any UDP payload

  UdpRxBuffers();

  // recvmmsg on `fd` for at most `count` messages. Returns its result, -1 with errno included.
  int Receive(int fd, size_t count) noexcept;

  // Of message `index` of the last Receive().
  [[nodiscard]] const mmsghdr& header(size_t index) const noexcept { return headers_[index]; }
  [[nodiscard]] std::span<const uint8_t> bytes(size_t index) const noexcept;

 private:
  static constexpr size_t kControlBytes = 128;

  std::unique_ptr<uint8_t[]>
      memory_;  // not touched before it is needed: small packets use a page each
  size_t used_ = kMessages;
  std::array<mmsghdr, kMessages> headers_{};
  std::array<iovec, kMessages> iovecs_;
  std::array<sockaddr_storage, kMessages> sources_;
  alignas(cmsghdr) std::array<std::array<std::byte, kControlBytes>, kMessages> controls_;
};

class UdpRx {
 public:
  // Packets that arrive on `fd` are for `local` and `port`. `fd` and `counters` outlive this
  // object.
  UdpRx(int fd, const IpAddress& local, uint16_t port, UdpCounters* counters) noexcept;

  // One recvmmsg, of at most `max_messages`. Returns the messages received, 0 if there was nothing;
  // `*more` tells that the socket may hold more.
  int Receive(UdpRxBuffers& buffers, PacketRx& up, bool* more,
              size_t max_messages = UdpRxBuffers::kMessages) noexcept;

 private:
  void OnMessage(const mmsghdr& header, std::span<const uint8_t> bytes, PacketRx& up) noexcept;

  const int fd_;
  const IpAddress local_;
  const uint16_t port_;
  UdpCounters* const counters_;
  size_t limit_ = UdpRxBuffers::kMessages;  // messages per system call
};

}  // namespace rdmad::soft
