// The invariant CRC: the last four bytes of every RoCEv2 packet, over all that no router may
// change.
//
// What it covers: eight bytes of ones (the place of an InfiniBand LRH), the IP header, the UDP
// header, and the UDP payload up to the ICRC itself, pad included. Fields that change on the way
// count as ones: IPv4 TOS, TTL and checksum; IPv6 traffic class, flow label and hop limit; the UDP
// checksum; BTH byte 4 (FECN, BECN). The polynomial, the initial value and the final inversion are
// Ethernet's (zlib's crc32); it is sent least significant byte first.
//
// How to use it: an `IcrcFlow` holds the masked headers of one direction between two sockets.
// `Begin` runs over them and the packet's own headers, `IcrcUpdate` over each further piece in
// order, `StoreIcrc` writes the result.
//
//   IcrcFlow flow(local, remote, kRoceUdpPort, kRoceUdpPort);
//   const size_t size = UdpPayloadBytes(fields.opcode, payload.size());
//   const size_t head_bytes = BuildHeaders(fields, payload.size(), head);
//   uint32_t crc = flow.Begin(size, std::span(head).first(head_bytes));
//   crc = IcrcUpdate(crc, payload);                        // once per scatter-gather element
//   const size_t tail_bytes = BuildTrailer(payload.size(), crc, tail);
//
// On IPv4 the ICRC also covers the identification and the DF bit, which a UDP socket does not show.
// Everything here computes for id 0 with DF set, as an unconnected socket with IP_PMTUDISC_DO sends
// single packets; icrc_id.h tells how to move the result to another id when sending, and how to
// check a packet whose id is not known.
//
// Sizes are UDP payload bytes, ICRC included, as sendmsg and recvmsg count them (UDP's own length
// field is 8 more).
// Thread: any; nothing here allocates or keeps state.
// Source: IBTA vol. 1, Data Packet Format, ICRC; RoCEv2 Annex A17, "ICRC"; checked against kernel
// captures.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/base/ip_address.h"

namespace rdmad::wire {

// Continues `crc` over the next bytes of the packet.
[[nodiscard]] uint32_t IcrcUpdate(uint32_t crc, std::span<const uint8_t> bytes) noexcept;

void StoreIcrc(uint32_t crc, std::span<uint8_t, 4> out) noexcept;
[[nodiscard]] uint32_t LoadIcrc(std::span<const uint8_t, 4> bytes) noexcept;

// The masked pseudo headers of packets from one socket to another. Cheap to make (some 10 ns) and
// to copy.
class IcrcFlow {
 public:
  // Source and destination as they stand in the packet: a receiver passes the peer first. Both
  // addresses are of one family, and are the ones on the wire, never the wildcard.
  IcrcFlow(const IpAddress& source, const IpAddress& destination, uint16_t source_port,
           uint16_t destination_port) noexcept;

  // The CRC over the masked headers of a packet of `udp_payload_bytes` and over `head`, the
  // beginning of that packet: the BTH at least, better all of its headers (they are short; one pass
  // is cheaper than two).
  [[nodiscard]] uint32_t Begin(size_t udp_payload_bytes,
                               std::span<const uint8_t> head) const noexcept;

  // The whole ICRC (id 0, DF) of a packet that lies in one piece; `icrc_input` is all of it but the
  // ICRC.
  [[nodiscard]] uint32_t Compute(std::span<const uint8_t> icrc_input) const noexcept;

  [[nodiscard]] bool is_ipv4() const noexcept { return is_ipv4_; }

 private:
  static constexpr size_t kOnesBytes = 8;
  static constexpr size_t kMaxPrefixBytes = kOnesBytes + 40 + 8;

  std::array<uint8_t, kMaxPrefixBytes> prefix_;  // lengths left zero
  uint8_t prefix_bytes_;
  bool is_ipv4_;
};

}  // namespace rdmad::wire
