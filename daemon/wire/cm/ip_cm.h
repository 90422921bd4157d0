// The RDMA IP CM service: how a TCP-like port and two IP addresses travel in a CM message.
//
// The port is in the service id, so that a listener is found like any service; the addresses and
// the active side's port stand in a header of 36 bytes at the beginning of the private data of REQ
// and SIDR_REQ. What the application gives as private data follows it, and so has 56 bytes left in
// a REQ and 180 in a SIDR_REQ.
// Source: IBTA vol. 1, Annex A11 (RDMA IP CM Service); rdma_create_id(3) for the port spaces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "daemon/base/ip_address.h"
#include "daemon/wire/cm/cm_req.h"
#include "daemon/wire/cm/cm_sidr.h"

namespace rdmad::wire {

// rdma_cm's port spaces (rdma_port_space). The low byte of TCP and UDP is the IP protocol number.
enum class PortSpace : uint16_t { kTcp = 0x0106, kUdp = 0x0111, kIb = 0x013f };

// An IP CM service id: 0x0000000001, protocol, port. Services of port space IB choose ids of their
// own; this gives the one that rdma_cm uses for a port there.
[[nodiscard]] constexpr uint64_t IpServiceId(PortSpace space, uint16_t port) noexcept {
  return uint64_t{static_cast<uint16_t>(space)} << 16 | port;
}

struct IpService {
  PortSpace space = PortSpace::kTcp;
  uint16_t port = 0;

  friend bool operator==(const IpService&, const IpService&) = default;
};

// The way back; nullopt for a service id of another form.
[[nodiscard]] std::optional<IpService> ParseIpServiceId(uint64_t service_id) noexcept;

inline constexpr size_t kIpCmHeaderBytes = 36;
inline constexpr size_t kReqAppBytes = kReqPrivateBytes - kIpCmHeaderBytes;
inline constexpr size_t kSidrReqAppBytes = kSidrReqPrivateBytes - kIpCmHeaderBytes;
static_assert(kReqAppBytes == 56 && kSidrReqAppBytes == 180);

// Both addresses are of one family. They are as the sender sees them: `source` is the active side.
struct IpCmHeader {
  uint8_t major_version = 0;  // 4 bits
  uint8_t minor_version = 0;  // 4 bits
  uint16_t source_port = 0;
  IpAddress source{};
  IpAddress destination{};

  friend bool operator==(const IpCmHeader&, const IpCmHeader&) = default;
};

// nullopt if the IP version is neither 4 nor 6. The caller checks the major version (0 is the only
// one) and whether the addresses make sense.
[[nodiscard]] std::optional<IpCmHeader> ParseIpCmHeader(
    std::span<const uint8_t, kIpCmHeaderBytes> bytes) noexcept;
// The IP version is that of the destination.
void BuildIpCmHeader(const IpCmHeader& header, std::span<uint8_t, kIpCmHeaderBytes> bytes) noexcept;

}  // namespace rdmad::wire
