#include "daemon/wire/grh.h"

#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

constexpr size_t kIpv4Bytes = 20;
constexpr size_t kUdpBytes = 8;
constexpr uint8_t kProtocolUdp = 17;

// RFC 1071, over a header whose checksum field is zero.
uint16_t Ipv4Checksum(const uint8_t* header) noexcept {
  uint32_t sum = 0;
  for (size_t i = 0; i < kIpv4Bytes; i += 2) sum += LoadBe16(header + i);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

void BuildIpv4(const GrhFields& fields, uint8_t* ip) noexcept {
  ip[0] = 0x45;
  ip[1] = fields.traffic_class;
  StoreBe16(ip + 2, static_cast<uint16_t>(kIpv4Bytes + kUdpBytes + fields.udp_payload_bytes));
  StoreBe16(ip + 4, fields.ipv4_id);
  ip[6] = 0x40;  // DF
  ip[8] = fields.hop_limit;
  ip[9] = kProtocolUdp;
  StoreBe32(ip + 12, fields.source.v4());
  StoreBe32(ip + 16, fields.destination.v4());
  StoreBe16(ip + 10, Ipv4Checksum(ip));
}

void BuildIpv6(const GrhFields& fields, uint8_t* out) noexcept {
  Grh grh{};
  StoreBe32(grh.version_class_flow_be,
            6u << 28 | uint32_t{fields.traffic_class} << 20 | (fields.flow_label & 0xfffff));
  StoreBe16(grh.payload_length_be, static_cast<uint16_t>(kUdpBytes + fields.udp_payload_bytes));
  grh.next_header = kProtocolUdp;
  grh.hop_limit = fields.hop_limit;
  std::memcpy(grh.source_gid, fields.source.gid().data(), sizeof(grh.source_gid));
  std::memcpy(grh.destination_gid, fields.destination.gid().data(), sizeof(grh.destination_gid));
  std::memcpy(out, &grh, sizeof(grh));
}

}  // namespace

void BuildReceivedGrh(const GrhFields& fields, std::span<uint8_t, kGrhBytes> out) noexcept {
  std::memset(out.data(), 0, out.size());
  if (fields.destination.is_v4()) {
    BuildIpv4(fields, out.data() + kGrhIpv4Offset);
  } else {
    BuildIpv6(fields, out.data());
  }
}

}  // namespace rdmad::wire
