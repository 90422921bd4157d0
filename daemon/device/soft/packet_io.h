// Between the sans-I/O transport and whatever carries its packets: UDP sockets, the simulator, a test.
//
// The transport hands down packets as header fields plus payload slices; building the bytes, padding and ICRC is the
// carrier's work, so that the simulator may skip it. The carrier reads the payload once: the application may be writing to
// it. Going up, the carrier has already parsed the packet and checked its ICRC.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/base/ip_address.h"
#include "daemon/device/types.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

using device::TimeNs;

// The ECN bits of an IP header that matter here. Source: RFC 3168.
inline constexpr uint8_t kEcnMask = 3;
inline constexpr uint8_t kNotEct = 0;  // a congested router drops it
inline constexpr uint8_t kEct0 = 2;    // it may mark it instead
inline constexpr uint8_t kEcnCe = 3;   // it has: "congestion experienced"

// The two ends of a packet as seen from here.
struct Flow {
  IpAddress local;
  IpAddress remote;
  uint8_t traffic_class = 0;  // without the ECN bits
  uint8_t ecn = kNotEct;
  uint8_t hop_limit = 64;
  uint32_t flow_label = 0;  // IPv6; 0: the kernel's choice

  friend bool operator==(const Flow&, const Flow&) = default;
};

struct TxPacket {
  wire::PacketFields fields;         // what BuildHeaders() takes
  std::span<const iovec> payload;    // slices in order; readable until Send() returns
  uint32_t payload_bytes = 0;
};

// What a carrier can send at once at most, in bytes of UDP payload: a UDP datagram, or a batch of
// UDP_SEGMENT.
inline constexpr uint32_t kMaxTxMessageBytes = 65507;  // 65,535 less IPv4 and UDP headers

// Thread: engine.
class PacketTx {
 public:
  virtual ~PacketTx() = default;
  // Sends `packets` in order to one peer. Returns how many were taken; fewer than all means that the path is full right
  // now and the caller must try the rest in a later turn. A packet the network loses afterwards counts as taken.
  [[nodiscard]] virtual size_t Send(const Flow& flow, std::span<const TxPacket> packets) noexcept = 0;
};

}  // namespace rdmad::soft
