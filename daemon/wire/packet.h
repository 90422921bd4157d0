// One RoCEv2 packet, as the UDP payload that a socket sends and receives:
//
//   BTH | extension headers of the opcode | payload | 0..3 pad bytes | ICRC (4 bytes)
//   `-- header, at most 40 bytes --------'            `-- trailer, at most 7 bytes
//
// Everything but the payload is small, so a sender writes header and trailer into two small buffers
// and leaves the payload where it is (three or more iovecs). A receiver gets a `PacketView` in host
// order whose spans point into its buffer. Parsing checks the form alone: lengths, pad, version, a
// known opcode. It neither checks the ICRC (icrc.h) nor anything that depends on a QP (P_Key, PSN,
// sizes against the path MTU).
//
// Thread: any; all functions are pure. Nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/wire/ids.h"
#include "daemon/wire/opcode.h"

namespace rdmad::wire {

inline constexpr uint16_t kRoceUdpPort = 4791;
inline constexpr size_t kIcrcBytes = 4;
inline constexpr size_t kMaxPadBytes = 3;
inline constexpr size_t kMaxTrailerBytes = kMaxPadBytes + kIcrcBytes;
inline constexpr size_t kMinPacketBytes = kBthBytes + kIcrcBytes;
inline constexpr size_t kMaxPacketBytes = kMaxHeaderBytes + kMaxMtuBytes + kMaxTrailerBytes;

// The header fields in host order. Only those that the opcode has (InfoOf(opcode).headers) are read
// when building or written when parsing; the others keep their defaults.
struct PacketFields {
  // BTH
  Opcode opcode = Opcode::kRcSendOnly;
  bool solicited = false;
  bool mig_req = false;  // rxe sends 0, NICs send 1; receivers accept both
  bool ack_req = false;
  bool fecn = false;
  bool becn = false;
  PKey pkey = kDefaultPKey;
  Qpn dest_qpn{};
  Psn psn{};

  struct {
    uint64_t va = 0;
    Rkey rkey{};
    uint32_t dma_length_bytes = 0;
  } reth{};
  struct {
    Qkey qkey{};
    Qpn src_qpn{};
  } deth{};
  struct {
    uint8_t syndrome = 0;  // see aeth.h
    Msn msn{};
  } aeth{};
  struct {
    uint64_t va = 0;
    Rkey rkey{};
    uint64_t swap_or_add = 0;
    uint64_t compare = 0;
  } atomic{};
  uint64_t atomic_original = 0;  // AtomicAckETH
  uint32_t imm = 0;              // ImmDt as a number; verbs' imm_data is htonl(imm)
  Rkey invalidate_rkey{};        // IETH
};

// A parsed packet. The spans point into the caller's buffer and live as long as it does.
struct PacketView : PacketFields {
  uint8_t pad_bytes = 0;
  uint32_t icrc = 0;                      // as sent: to be compared with what icrc.h computes
  std::span<const uint8_t> payload{};     // without pad
  std::span<const uint8_t> icrc_input{};  // the UDP payload up to the ICRC

  [[nodiscard]] const OpcodeInfo& info() const noexcept { return InfoOf(opcode); }
};

// Why a packet was dropped before any QP saw it. kNone means that it was not.
enum class DropReason : uint8_t {
  kNone,
  kTooShort,       // no room for BTH and ICRC, or for the opcode's headers
  kTooLong,        // more payload than any path MTU allows
  kNotWordSized,   // a RoCE packet is a multiple of four bytes
  kBadVersion,     // transport header version is not 0
  kUnknownOpcode,  // reserved, or of a transport that we do not speak
  kBadPad,         // pad count without payload to pad, or more pad than bytes
  kBadPayload,     // payload after an opcode that has none, or a CNP of the wrong size
};

[[nodiscard]] const char* DropReasonName(DropReason reason) noexcept;

// Parses a whole UDP payload. On kNone fills `*out`; otherwise `*out` is unspecified and must not
// be used.
[[nodiscard]] DropReason ParsePacket(std::span<const uint8_t> udp_payload,
                                     PacketView* out) noexcept;

// What ParseHeaders finds about a packet whose payload lies elsewhere.
struct PacketShape {
  uint8_t header_bytes = 0;
  uint8_t pad_bytes = 0;
  uint16_t payload_bytes = 0;  // starts at header_bytes; pad and ICRC follow it
};

// The same for a packet of `udp_payload_bytes` that a scattered read has laid into several places:
// `head` is its beginning and must hold at least min(udp_payload_bytes - 4, kMaxHeaderBytes) bytes,
// else kTooShort.
[[nodiscard]] DropReason ParseHeaders(std::span<const uint8_t> head, size_t udp_payload_bytes,
                                      PacketFields* fields, PacketShape* shape) noexcept;

[[nodiscard]] constexpr size_t PadBytes(size_t payload_bytes) noexcept {
  return (0 - payload_bytes) & 3;
}

// Size of the UDP payload of a packet: what UDP_SEGMENT takes and what every function of icrc.h
// wants to know.
[[nodiscard]] constexpr size_t UdpPayloadBytes(Opcode opcode, size_t payload_bytes) noexcept {
  return InfoOf(opcode).header_bytes + payload_bytes + PadBytes(payload_bytes) + kIcrcBytes;
}

// Writes BTH and extension headers of a packet that will carry `payload_bytes`, and returns their
// length, InfoOf(fields.opcode).header_bytes. `fields.opcode` must be a named enumerator.
size_t BuildHeaders(const PacketFields& fields, size_t payload_bytes,
                    std::span<uint8_t, kMaxHeaderBytes> out) noexcept;

// Writes what follows the payload: pad bytes (zero) and the ICRC. `crc` is the ICRC over everything
// up to and including the payload; the pad's share is added here. Returns the length, 4..7.
size_t BuildTrailer(size_t payload_bytes, uint32_t crc,
                    std::span<uint8_t, kMaxTrailerBytes> out) noexcept;

}  // namespace rdmad::wire
