// Reads capture files for tests: classic pcap, Ethernet, little-endian, microseconds, as tcpdump
// writes them here.
//
// Gives back frames, and from a frame the UDP datagram in it with the IP fields that the ICRC
// covers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/ip_address.h"

namespace rdmad::testing {

struct PcapFrame {
  double time_s = 0;
  std::vector<uint8_t> bytes;  // from the Ethernet header on
};

// All frames of a file, in order. Anything unexpected (no such file, other format, cut short) ends
// the program with a message: a test cannot go on without its data.
std::vector<PcapFrame> ReadPcap(const std::string& path);

// Every .pcap file of a folder, sorted.
std::vector<std::string> ListPcaps(const std::string& folder);

// A UDP datagram and how it travelled. Spans point into the frame.
struct UdpDatagram {
  IpAddress source;
  IpAddress destination;
  uint16_t source_port = 0;
  uint16_t destination_port = 0;
  uint16_t ipv4_id = 0;
  bool dont_fragment = false;
  std::span<const uint8_t> ip_header{};
  std::span<const uint8_t> payload{};
};

// nullopt if the frame is not UDP over IPv4 or IPv6 (no VLANs, no IPv6 extension headers) or its
// lengths disagree.
std::optional<UdpDatagram> UdpOf(const PcapFrame& frame);

}  // namespace rdmad::testing
