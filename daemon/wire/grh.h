// The 40 bytes in front of the data of a received UD message: the Global Routing Header.
//
// A verbs program posts a UD receive with 40 bytes to spare and finds there who sent the message.
// In RoCEv2 no GRH is on the wire; the receiver makes these bytes from the IP header:
//   IPv6: the IPv6 header itself, which has the GRH's layout.
//   IPv4: 20 bytes whose content is not defined (zero here), then the IPv4 header.
// So a program tells the two apart, and ibv_init_ah_from_wc(3) and the like find the addresses.
// Source: RoCEv2 Annex A17, "UD completion"; IBTA vol. 1, Global Routing Header; RFC 791; RFC 8200.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/base/ip_address.h"

namespace rdmad::wire {

inline constexpr size_t kGrhBytes = 40;
inline constexpr size_t kGrhIpv4Offset = 20;

// The layout for IPv6 and InfiniBand; network order, any alignment.
struct Grh {
  uint8_t version_class_flow_be[4];  // IP version:4 | traffic class:8 | flow label:20
  uint8_t payload_length_be[2];      // bytes after this header; RoCEv2: the UDP length
  uint8_t next_header;               // 17, UDP
  uint8_t hop_limit;
  uint8_t source_gid[16];
  uint8_t destination_gid[16];
};
static_assert(sizeof(Grh) == kGrhBytes && alignof(Grh) == 1);
static_assert(offsetof(Grh, source_gid) == 8);

// What is known of the packet. The socket tells the traffic class and the hop limit or TTL if asked
// (IP_RECVTOS, IP_RECVTTL, IPV6_RECVTCLASS, IPV6_RECVHOPLIMIT).
struct GrhFields {
  IpAddress source{};
  IpAddress destination{};
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 64;
  uint32_t flow_label = 0;       // IPv6: 20 bits
  uint16_t ipv4_id = 0;          // IPv4: identification, 0 if not known
  size_t udp_payload_bytes = 0;  // ICRC included
};

// Writes what a receiver puts in front of the data. The family is that of `destination`. On IPv4
// the header checksum is right.
void BuildReceivedGrh(const GrhFields& fields, std::span<uint8_t, kGrhBytes> out) noexcept;

}  // namespace rdmad::wire
