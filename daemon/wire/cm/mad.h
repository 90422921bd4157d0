// The management datagram (MAD): the 256 bytes that carry every CM message between two QP 1s.
//
//   common header, 24 bytes | message, 232 bytes, zero-filled
//
// The communication manager's class has one method, Send; the attribute id names the message.
// Requests and replies share a transaction id, which a retransmission repeats.
// Source: IBTA vol. 1, Management Model (MAD format, common header); Communication Management
// (attributes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace rdmad::wire {

inline constexpr size_t kMadBytes = 256;
inline constexpr size_t kMadHeaderBytes = 24;
inline constexpr size_t kMadDataBytes = kMadBytes - kMadHeaderBytes;

using MadIn = std::span<const uint8_t, kMadBytes>;
using MadOut = std::span<uint8_t, kMadBytes>;
// What follows the header: the CM message itself.
using MadDataIn = std::span<const uint8_t, kMadDataBytes>;
using MadDataOut = std::span<uint8_t, kMadDataBytes>;

inline constexpr uint8_t kMadBaseVersion = 1;
inline constexpr uint8_t kMadClassCm = 0x07;
inline constexpr uint8_t kCmClassVersion = 2;
inline constexpr uint8_t kMadMethodSend = 0x03;

enum class CmAttribute : uint16_t {
  kClassPortInfo = 0x0001,
  kReq = 0x0010,
  kMra = 0x0011,
  kRej = 0x0012,
  kRep = 0x0013,
  kRtu = 0x0014,
  kDreq = 0x0015,
  kDrep = 0x0016,
  kSidrReq = 0x0017,
  kSidrRep = 0x0018,
  kLap = 0x0019,
  kApr = 0x001a,
};

// Name for logs: "REQ", "SIDR_REP", ...; "UNKNOWN" for other values.
[[nodiscard]] const char* CmAttributeName(CmAttribute attribute) noexcept;

// The common header in host order. The defaults are what every CM message has.
struct MadHeader {
  uint8_t base_version = kMadBaseVersion;
  uint8_t mgmt_class = kMadClassCm;
  uint8_t class_version = kCmClassVersion;
  uint8_t method = kMadMethodSend;
  uint16_t status = 0;
  uint16_t class_specific = 0;
  uint64_t transaction_id = 0;
  CmAttribute attribute = CmAttribute::kReq;
  uint32_t attribute_modifier = 0;

  friend bool operator==(const MadHeader&, const MadHeader&) = default;
};

[[nodiscard]] MadHeader ParseMadHeader(MadIn mad) noexcept;
// Writes the header's 24 bytes and leaves the others alone.
void BuildMadHeader(const MadHeader& header, MadOut mad) noexcept;

// A CM message that is well-formed but not for us is answered (unknown version: REJ) or dropped;
// the caller decides.
enum class MadDropReason : uint8_t {
  kNone,
  kBadSize,       // not 256 bytes
  kBadBase,       // base version is not 1
  kNotCm,         // another management class
  kBadVersion,    // CM class version is not 2
  kBadMethod,     // not Send
  kBadAttribute,  // not a message that we know
  kBadField,      // a length inside the message exceeds its field
};

[[nodiscard]] const char* MadDropReasonName(MadDropReason reason) noexcept;

// Checks size and header for a CM message of a known attribute.
[[nodiscard]] MadDropReason CheckCmMad(std::span<const uint8_t> mad, MadHeader* header) noexcept;

}  // namespace rdmad::wire
