// The BTH opcodes that we speak and what each one means: RC, UC, UD and the congestion notification
// packet (CNP).
//
// The opcode byte is transport (3 bits) and operation (5 bits). Everything that a parser, a builder
// or a log line needs to know about an opcode stands in one table row: which extension headers
// follow the BTH, whether payload follows them, its place in a multi-packet message, and which side
// sends it.
// Source: IBTA vol. 1, Base Transport Header (table of opcodes); RoCEv2 Annex A17 (CNP). RD and XRC
// are not spoken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace rdmad::wire {

enum class Opcode : uint8_t {
  kRcSendFirst = 0x00,
  kRcSendMiddle = 0x01,
  kRcSendLast = 0x02,
  kRcSendLastImm = 0x03,
  kRcSendOnly = 0x04,
  kRcSendOnlyImm = 0x05,
  kRcWriteFirst = 0x06,
  kRcWriteMiddle = 0x07,
  kRcWriteLast = 0x08,
  kRcWriteLastImm = 0x09,
  kRcWriteOnly = 0x0a,
  kRcWriteOnlyImm = 0x0b,
  kRcReadRequest = 0x0c,
  kRcReadResponseFirst = 0x0d,
  kRcReadResponseMiddle = 0x0e,
  kRcReadResponseLast = 0x0f,
  kRcReadResponseOnly = 0x10,
  kRcAck = 0x11,
  kRcAtomicAck = 0x12,
  kRcCompareSwap = 0x13,
  kRcFetchAdd = 0x14,
  kRcSendLastInv = 0x16,
  kRcSendOnlyInv = 0x17,
  kUcSendFirst = 0x20,
  kUcSendMiddle = 0x21,
  kUcSendLast = 0x22,
  kUcSendLastImm = 0x23,
  kUcSendOnly = 0x24,
  kUcSendOnlyImm = 0x25,
  kUcWriteFirst = 0x26,
  kUcWriteMiddle = 0x27,
  kUcWriteLast = 0x28,
  kUcWriteLastImm = 0x29,
  kUcWriteOnly = 0x2a,
  kUcWriteOnlyImm = 0x2b,
  kUdSendOnly = 0x64,
  kUdSendOnlyImm = 0x65,
  kCnp = 0x81,
};

enum class Transport : uint8_t { kRc, kUc, kUd, kCnp };

// What the packet asks for or answers.
enum class Operation : uint8_t {
  kSend,
  kWrite,
  kReadRequest,
  kReadResponse,
  kAck,
  kAtomicRequest,
  kAtomicAck,
  kCongestion,
};

// Place of a packet in its message. Requests and answers of one packet are kOnly.
enum class Position : uint8_t { kFirst, kMiddle, kLast, kOnly };

// Extension headers that may follow the BTH, as bits. On the wire they stand in this order.
enum HeaderBit : uint8_t {
  kHasDeth = 1 << 0,
  kHasReth = 1 << 1,
  kHasAtomicEth = 1 << 2,
  kHasAeth = 1 << 3,
  kHasAtomicAckEth = 1 << 4,
  kHasImmDt = 1 << 5,
  kHasIeth = 1 << 6,
};

inline constexpr size_t kBthBytes = 12;
inline constexpr size_t kDethBytes = 8;
inline constexpr size_t kRethBytes = 16;
inline constexpr size_t kAtomicEthBytes = 28;
inline constexpr size_t kAethBytes = 4;
inline constexpr size_t kAtomicAckEthBytes = 8;
inline constexpr size_t kImmDtBytes = 4;
inline constexpr size_t kIethBytes = 4;
inline constexpr size_t kMaxMtuBytes = 4096;     // largest payload that a packet may carry
inline constexpr size_t kCnpReservedBytes = 16;  // a CNP carries exactly so many zero bytes

struct OpcodeInfo {
  const char* name = nullptr;  // e.g. "RC_SEND_ONLY_IMM"; null: not an opcode that we speak
  Transport transport = Transport::kRc;
  Operation operation = Operation::kSend;
  Position position = Position::kOnly;
  uint8_t headers = 0;             // HeaderBit set
  uint8_t header_bytes = 0;        // BTH and extension headers
  uint16_t min_payload_bytes = 0;  // least and most payload (without pad) that is legal at any MTU
  uint16_t max_payload_bytes = 0;

  [[nodiscard]] constexpr bool known() const noexcept { return name != nullptr; }
  [[nodiscard]] constexpr bool has(HeaderBit header) const noexcept {
    return (headers & header) != 0;
  }
  [[nodiscard]] constexpr bool has_payload() const noexcept { return max_payload_bytes != 0; }
  [[nodiscard]] constexpr bool starts_message() const noexcept {
    return position == Position::kFirst || position == Position::kOnly;
  }
  [[nodiscard]] constexpr bool ends_message() const noexcept {
    return position == Position::kLast || position == Position::kOnly;
  }
  // Sent by a responder to a requester (RC only); everything else but the CNP is a request.
  [[nodiscard]] constexpr bool is_response() const noexcept {
    return operation == Operation::kReadResponse || operation == Operation::kAck ||
           operation == Operation::kAtomicAck;
  }
  [[nodiscard]] constexpr bool is_request() const noexcept {
    return !is_response() && operation != Operation::kCongestion;
  }
};

namespace opcode_detail {

constexpr uint8_t HeaderBytes(uint8_t headers) {
  size_t bytes = kBthBytes;
  if (headers & kHasDeth) bytes += kDethBytes;
  if (headers & kHasReth) bytes += kRethBytes;
  if (headers & kHasAtomicEth) bytes += kAtomicEthBytes;
  if (headers & kHasAeth) bytes += kAethBytes;
  if (headers & kHasAtomicAckEth) bytes += kAtomicAckEthBytes;
  if (headers & kHasImmDt) bytes += kImmDtBytes;
  if (headers & kHasIeth) bytes += kIethBytes;
  return static_cast<uint8_t>(bytes);
}

constexpr OpcodeInfo Row(const char* name, Transport transport, Operation operation,
                         Position position, uint8_t headers, size_t min_payload_bytes,
                         size_t max_payload_bytes) {
  return {name,
          transport,
          operation,
          position,
          headers,
          HeaderBytes(headers),
          static_cast<uint16_t>(min_payload_bytes),
          static_cast<uint16_t>(max_payload_bytes)};
}

// A packet that carries part of a message. That first and middle packets must be full and last ones
// not empty is the transport's business: it answers with a NAK.
constexpr OpcodeInfo Data(const char* name, Transport transport, Operation operation,
                          Position position, uint8_t headers = 0) {
  return Row(name, transport, operation, position, headers, 0, kMaxMtuBytes);
}

constexpr OpcodeInfo Bare(const char* name, Operation operation, uint8_t headers) {
  return Row(name, Transport::kRc, operation, Position::kOnly, headers, 0, 0);
}

constexpr std::array<OpcodeInfo, 256> MakeTable() {
  using enum Opcode;
  using enum Operation;
  using enum Position;
  constexpr auto kRc = Transport::kRc;
  constexpr auto kUc = Transport::kUc;
  constexpr auto kUd = Transport::kUd;
  std::array<OpcodeInfo, 256> table{};
  const auto at = [&table](Opcode opcode) -> OpcodeInfo& {
    return table[static_cast<uint8_t>(opcode)];
  };

  at(kRcSendFirst) = Data("RC_SEND_FIRST", kRc, kSend, kFirst);
  at(kRcSendMiddle) = Data("RC_SEND_MIDDLE", kRc, kSend, kMiddle);
  at(kRcSendLast) = Data("RC_SEND_LAST", kRc, kSend, kLast);
  at(kRcSendLastImm) = Data("RC_SEND_LAST_IMM", kRc, kSend, kLast, kHasImmDt);
  at(kRcSendOnly) = Data("RC_SEND_ONLY", kRc, kSend, kOnly);
  at(kRcSendOnlyImm) = Data("RC_SEND_ONLY_IMM", kRc, kSend, kOnly, kHasImmDt);
  at(kRcWriteFirst) = Data("RC_WRITE_FIRST", kRc, kWrite, kFirst, kHasReth);
  at(kRcWriteMiddle) = Data("RC_WRITE_MIDDLE", kRc, kWrite, kMiddle);
  at(kRcWriteLast) = Data("RC_WRITE_LAST", kRc, kWrite, kLast);
  at(kRcWriteLastImm) = Data("RC_WRITE_LAST_IMM", kRc, kWrite, kLast, kHasImmDt);
  at(kRcWriteOnly) = Data("RC_WRITE_ONLY", kRc, kWrite, kOnly, kHasReth);
  at(kRcWriteOnlyImm) = Data("RC_WRITE_ONLY_IMM", kRc, kWrite, kOnly, kHasReth | kHasImmDt);
  at(kRcSendLastInv) = Data("RC_SEND_LAST_INV", kRc, kSend, kLast, kHasIeth);
  at(kRcSendOnlyInv) = Data("RC_SEND_ONLY_INV", kRc, kSend, kOnly, kHasIeth);
  at(kRcReadResponseFirst) = Data("RC_READ_RESPONSE_FIRST", kRc, kReadResponse, kFirst, kHasAeth);
  at(kRcReadResponseMiddle) = Data("RC_READ_RESPONSE_MIDDLE", kRc, kReadResponse, kMiddle);
  at(kRcReadResponseLast) = Data("RC_READ_RESPONSE_LAST", kRc, kReadResponse, kLast, kHasAeth);
  at(kRcReadResponseOnly) = Data("RC_READ_RESPONSE_ONLY", kRc, kReadResponse, kOnly, kHasAeth);
  at(kRcReadRequest) = Bare("RC_READ_REQUEST", kReadRequest, kHasReth);
  at(kRcAck) = Bare("RC_ACK", kAck, kHasAeth);
  at(kRcAtomicAck) = Bare("RC_ATOMIC_ACK", kAtomicAck, kHasAeth | kHasAtomicAckEth);
  at(kRcCompareSwap) = Bare("RC_COMPARE_SWAP", kAtomicRequest, kHasAtomicEth);
  at(kRcFetchAdd) = Bare("RC_FETCH_ADD", kAtomicRequest, kHasAtomicEth);

  at(kUcSendFirst) = Data("UC_SEND_FIRST", kUc, kSend, kFirst);
  at(kUcSendMiddle) = Data("UC_SEND_MIDDLE", kUc, kSend, kMiddle);
  at(kUcSendLast) = Data("UC_SEND_LAST", kUc, kSend, kLast);
  at(kUcSendLastImm) = Data("UC_SEND_LAST_IMM", kUc, kSend, kLast, kHasImmDt);
  at(kUcSendOnly) = Data("UC_SEND_ONLY", kUc, kSend, kOnly);
  at(kUcSendOnlyImm) = Data("UC_SEND_ONLY_IMM", kUc, kSend, kOnly, kHasImmDt);
  at(kUcWriteFirst) = Data("UC_WRITE_FIRST", kUc, kWrite, kFirst, kHasReth);
  at(kUcWriteMiddle) = Data("UC_WRITE_MIDDLE", kUc, kWrite, kMiddle);
  at(kUcWriteLast) = Data("UC_WRITE_LAST", kUc, kWrite, kLast);
  at(kUcWriteLastImm) = Data("UC_WRITE_LAST_IMM", kUc, kWrite, kLast, kHasImmDt);
  at(kUcWriteOnly) = Data("UC_WRITE_ONLY", kUc, kWrite, kOnly, kHasReth);
  at(kUcWriteOnlyImm) = Data("UC_WRITE_ONLY_IMM", kUc, kWrite, kOnly, kHasReth | kHasImmDt);

  at(kUdSendOnly) = Data("UD_SEND_ONLY", kUd, kSend, kOnly, kHasDeth);
  at(kUdSendOnlyImm) = Data("UD_SEND_ONLY_IMM", kUd, kSend, kOnly, kHasDeth | kHasImmDt);

  at(Opcode::kCnp) = Row("CNP", Transport::kCnp, Operation::kCongestion, kOnly, 0,
                         kCnpReservedBytes, kCnpReservedBytes);
  return table;
}

}  // namespace opcode_detail

inline constexpr std::array<OpcodeInfo, 256> kOpcodeTable = opcode_detail::MakeTable();

// The table row of any opcode byte; a row that is not known() for one that we do not speak.
[[nodiscard]] constexpr const OpcodeInfo& InfoOf(uint8_t opcode_byte) noexcept {
  return kOpcodeTable[opcode_byte];
}
[[nodiscard]] constexpr const OpcodeInfo& InfoOf(Opcode opcode) noexcept {
  return kOpcodeTable[static_cast<uint8_t>(opcode)];
}

// Name for logs; never null.
[[nodiscard]] constexpr const char* OpcodeName(Opcode opcode) noexcept {
  const OpcodeInfo& info = InfoOf(opcode);
  return info.known() ? info.name : "UNKNOWN_OPCODE";
}

// Bytes of the longest BTH and extension headers of any opcode: the size of a header buffer.
inline constexpr size_t kMaxHeaderBytes = [] {
  size_t most = 0;
  for (const OpcodeInfo& info : kOpcodeTable) {
    if (info.header_bytes > most) most = info.header_bytes;
  }
  return most;
}();
static_assert(kMaxHeaderBytes == kBthBytes + kAtomicEthBytes);

}  // namespace rdmad::wire
