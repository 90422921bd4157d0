// The RoCEv2 headers as they lie on the wire: structs of bytes, network order, no padding, any
// alignment. Accessors convert to host order. They are views: a parser checks the length and then
// copies one out of the packet.
//
// The packet of each opcode is the BTH and the extension headers that opcode.h lists for it.
// `packet.h` parses and builds whole packets; use these where a single field matters.
// Source: IBTA vol. 1, Transport Layer, "Transport Headers"; RoCEv2 Annex A17.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/wire/bytes.h"
#include "daemon/wire/ids.h"
#include "daemon/wire/opcode.h"

namespace rdmad::wire {

// Base Transport Header. FECN and BECN share the byte that the ICRC masks, as routers may set them.
struct Bth {
  uint8_t opcode;
  uint8_t flags;  // SE:1 | MigReq:1 | PadCnt:2 | TVer:4
  uint8_t pkey_be[2];
  uint8_t fecn_becn;  // FECN:1 | BECN:1 | reserved:6
  uint8_t dest_qp_be[3];
  uint8_t ack_req;  // AckReq:1 | reserved:7
  uint8_t psn_be[3];

  static constexpr uint8_t kSolicited = 0x80;
  static constexpr uint8_t kMigReq = 0x40;
  static constexpr int kPadShift = 4;
  static constexpr uint8_t kVersionMask = 0x0f;
  static constexpr uint8_t kFecn = 0x80;
  static constexpr uint8_t kBecn = 0x40;
  static constexpr uint8_t kAckReq = 0x80;

  [[nodiscard]] bool solicited() const noexcept { return (flags & kSolicited) != 0; }
  [[nodiscard]] bool mig_req() const noexcept { return (flags & kMigReq) != 0; }
  [[nodiscard]] uint8_t pad() const noexcept { return flags >> kPadShift & 3; }
  [[nodiscard]] uint8_t version() const noexcept { return flags & kVersionMask; }
  [[nodiscard]] bool fecn() const noexcept { return (fecn_becn & kFecn) != 0; }
  [[nodiscard]] bool becn() const noexcept { return (fecn_becn & kBecn) != 0; }
  [[nodiscard]] bool wants_ack() const noexcept { return (ack_req & kAckReq) != 0; }
  [[nodiscard]] PKey pkey() const noexcept { return PKey(LoadBe16(pkey_be)); }
  [[nodiscard]] Qpn dest_qpn() const noexcept { return Qpn(LoadBe24(dest_qp_be)); }
  [[nodiscard]] Psn psn() const noexcept { return Psn(LoadBe24(psn_be)); }
};
static_assert(sizeof(Bth) == kBthBytes && alignof(Bth) == 1 && offsetof(Bth, psn_be) == 9);

// Where the destination QP lies in a UDP payload: what a steering program looks at.
inline constexpr size_t kDestQpOffset = offsetof(Bth, dest_qp_be);
static_assert(kDestQpOffset == 5);

// Datagram Extended Transport Header.
struct Deth {
  uint8_t qkey_be[4];
  uint8_t reserved;
  uint8_t src_qp_be[3];

  [[nodiscard]] Qkey qkey() const noexcept { return Qkey(LoadBe32(qkey_be)); }
  [[nodiscard]] Qpn src_qpn() const noexcept { return Qpn(LoadBe24(src_qp_be)); }
};
static_assert(sizeof(Deth) == kDethBytes && alignof(Deth) == 1);

// RDMA Extended Transport Header.
struct Reth {
  uint8_t va_be[8];
  uint8_t rkey_be[4];
  uint8_t dma_length_be[4];

  [[nodiscard]] uint64_t va() const noexcept { return LoadBe64(va_be); }
  [[nodiscard]] Rkey rkey() const noexcept { return Rkey(LoadBe32(rkey_be)); }
  [[nodiscard]] uint32_t dma_length_bytes() const noexcept { return LoadBe32(dma_length_be); }
};
static_assert(sizeof(Reth) == kRethBytes && alignof(Reth) == 1);

// Atomic Extended Transport Header.
struct AtomicEth {
  uint8_t va_be[8];
  uint8_t rkey_be[4];
  uint8_t swap_or_add_be[8];
  uint8_t compare_be[8];  // FETCH_ADD: ignored

  [[nodiscard]] uint64_t va() const noexcept { return LoadBe64(va_be); }
  [[nodiscard]] Rkey rkey() const noexcept { return Rkey(LoadBe32(rkey_be)); }
  [[nodiscard]] uint64_t swap_or_add() const noexcept { return LoadBe64(swap_or_add_be); }
  [[nodiscard]] uint64_t compare() const noexcept { return LoadBe64(compare_be); }
};
static_assert(sizeof(AtomicEth) == kAtomicEthBytes && alignof(AtomicEth) == 1);

// ACK Extended Transport Header. `aeth.h` explains the syndrome.
struct Aeth {
  uint8_t syndrome;
  uint8_t msn_be[3];

  [[nodiscard]] Msn msn() const noexcept { return Msn(LoadBe24(msn_be)); }
};
static_assert(sizeof(Aeth) == kAethBytes && alignof(Aeth) == 1);

// Atomic ACK Extended Transport Header: the value before the operation.
struct AtomicAckEth {
  uint8_t original_be[8];

  [[nodiscard]] uint64_t original() const noexcept { return LoadBe64(original_be); }
};
static_assert(sizeof(AtomicAckEth) == kAtomicAckEthBytes && alignof(AtomicAckEth) == 1);

// Immediate data. Verbs hands these four bytes through as they are (imm_data is big-endian in
// memory).
struct ImmDt {
  uint8_t imm_be[4];

  [[nodiscard]] uint32_t imm() const noexcept { return LoadBe32(imm_be); }
};
static_assert(sizeof(ImmDt) == kImmDtBytes && alignof(ImmDt) == 1);

// Invalidate Extended Transport Header.
struct Ieth {
  uint8_t rkey_be[4];

  [[nodiscard]] Rkey rkey() const noexcept { return Rkey(LoadBe32(rkey_be)); }
};
static_assert(sizeof(Ieth) == kIethBytes && alignof(Ieth) == 1);

}  // namespace rdmad::wire
