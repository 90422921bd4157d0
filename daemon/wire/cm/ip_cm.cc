#include "daemon/wire/cm/ip_cm.h"

#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

struct IpCmBytes {
  uint8_t version;     // major:4 | minor:4
  uint8_t ip_version;  // IP version:4 | reserved:4
  uint8_t source_port_be[2];
  uint8_t source[16];  // IPv4: in the last four bytes, the others zero
  uint8_t destination[16];
};
static_assert(sizeof(IpCmBytes) == kIpCmHeaderBytes && alignof(IpCmBytes) == 1);

constexpr size_t kIpv4Offset = 12;

IpAddress ParseAddress(const uint8_t* bytes, bool v4) noexcept {
  if (v4) return IpAddress::FromV4(LoadBe32(bytes + kIpv4Offset));
  Gid gid;
  std::memcpy(gid.data(), bytes, gid.size());
  return IpAddress::FromV6(gid);
}

void BuildAddress(const IpAddress& address, bool v4, uint8_t* bytes) noexcept {
  if (v4) {
    StoreBe32(bytes + kIpv4Offset, address.v4());
  } else {
    std::memcpy(bytes, address.bytes().data(), address.bytes().size());
  }
}

}  // namespace

std::optional<IpService> ParseIpServiceId(uint64_t service_id) noexcept {
  const uint64_t space = service_id >> 16;
  for (const PortSpace known : {PortSpace::kTcp, PortSpace::kUdp, PortSpace::kIb}) {
    if (space == static_cast<uint16_t>(known)) {
      return IpService{known, static_cast<uint16_t>(service_id)};
    }
  }
  return std::nullopt;
}

std::optional<IpCmHeader> ParseIpCmHeader(
    std::span<const uint8_t, kIpCmHeaderBytes> bytes) noexcept {
  IpCmBytes raw;
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  const uint8_t ip_version = raw.ip_version >> 4;
  if (ip_version != 4 && ip_version != 6) return std::nullopt;
  IpCmHeader header;
  header.major_version = raw.version >> 4;
  header.minor_version = raw.version & 0x0f;
  header.source_port = LoadBe16(raw.source_port_be);
  header.source = ParseAddress(raw.source, ip_version == 4);
  header.destination = ParseAddress(raw.destination, ip_version == 4);
  return header;
}

void BuildIpCmHeader(const IpCmHeader& header,
                     std::span<uint8_t, kIpCmHeaderBytes> bytes) noexcept {
  const bool v4 = header.destination.is_v4();
  IpCmBytes raw{};
  raw.version = static_cast<uint8_t>(header.major_version << 4 | (header.minor_version & 0x0f));
  raw.ip_version = v4 ? 0x40 : 0x60;
  StoreBe16(raw.source_port_be, header.source_port);
  BuildAddress(header.source, v4, raw.source);
  BuildAddress(header.destination, v4, raw.destination);
  std::memcpy(bytes.data(), &raw, sizeof(raw));
}

}  // namespace rdmad::wire
