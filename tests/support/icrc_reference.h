// The ICRC once more, as slowly and as plainly as it can be written: bit by bit, over the raw IP
// header of a packet. Tests compare the fast code in daemon/wire with it. It shares no code with
// that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rdmad::testing {

inline uint32_t ReferenceCrc32(std::span<const uint8_t> bytes) {
  uint32_t crc = 0xffffffff;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
  }
  return ~crc;
}

// `ip_header` as on the wire, of a UDP packet; `udp_payload` without the ICRC.
inline uint32_t ReferenceIcrc(std::span<const uint8_t> ip_header, uint16_t source_port,
                              uint16_t destination_port, std::span<const uint8_t> udp_payload) {
  std::vector<uint8_t> bytes(8, 0xff);
  std::vector<uint8_t> ip(ip_header.begin(), ip_header.end());
  if (ip[0] >> 4 == 4) {
    ip[1] = ip[8] = ip[10] = ip[11] = 0xff;
  } else {
    ip[0] |= 0x0f;
    ip[1] = ip[2] = ip[3] = ip[7] = 0xff;
  }
  bytes.insert(bytes.end(), ip.begin(), ip.end());
  const size_t udp_length = 8 + udp_payload.size() + 4;
  for (const size_t value : {size_t{source_port}, size_t{destination_port}, udp_length}) {
    bytes.push_back(static_cast<uint8_t>(value >> 8));
    bytes.push_back(static_cast<uint8_t>(value));
  }
  bytes.insert(bytes.end(), {0xff, 0xff});
  const size_t bth = bytes.size();
  bytes.insert(bytes.end(), udp_payload.begin(), udp_payload.end());
  bytes[bth + 4] = 0xff;
  return ReferenceCrc32(bytes);
}

}  // namespace rdmad::testing
