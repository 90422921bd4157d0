#include "daemon/wire/packet.h"

#include <cstring>

#include "daemon/base/check.h"
#include "daemon/wire/bytes.h"
#include "daemon/wire/headers.h"
#include "daemon/wire/icrc.h"

namespace rdmad::wire {
namespace {

// Copies the header at `*at` out of the packet and steps over it. The caller has checked the
// length.
template <typename Header>
Header Take(const uint8_t** at) noexcept {
  Header header;
  std::memcpy(&header, *at, sizeof(header));
  *at += sizeof(header);
  return header;
}

template <typename Header>
void Put(uint8_t** at, const Header& header) noexcept {
  std::memcpy(*at, &header, sizeof(header));
  *at += sizeof(header);
}

void ReadBth(const Bth& bth, PacketFields* fields) noexcept {
  fields->opcode = static_cast<Opcode>(bth.opcode);
  fields->solicited = bth.solicited();
  fields->mig_req = bth.mig_req();
  fields->ack_req = bth.wants_ack();
  fields->fecn = bth.fecn();
  fields->becn = bth.becn();
  fields->pkey = bth.pkey();
  fields->dest_qpn = bth.dest_qpn();
  fields->psn = bth.psn();
}

void ReadExtensions(const uint8_t* at, uint8_t headers, PacketFields* fields) noexcept {
  if (headers & kHasDeth) {
    const auto deth = Take<Deth>(&at);
    fields->deth = {deth.qkey(), deth.src_qpn()};
  }
  if (headers & kHasReth) {
    const auto reth = Take<Reth>(&at);
    fields->reth = {reth.va(), reth.rkey(), reth.dma_length_bytes()};
  }
  if (headers & kHasAtomicEth) {
    const auto atomic = Take<AtomicEth>(&at);
    fields->atomic = {atomic.va(), atomic.rkey(), atomic.swap_or_add(), atomic.compare()};
  }
  if (headers & kHasAeth) {
    const auto aeth = Take<Aeth>(&at);
    fields->aeth = {aeth.syndrome, aeth.msn()};
  }
  if (headers & kHasAtomicAckEth) fields->atomic_original = Take<AtomicAckEth>(&at).original();
  if (headers & kHasImmDt) fields->imm = Take<ImmDt>(&at).imm();
  if (headers & kHasIeth) fields->invalidate_rkey = Take<Ieth>(&at).rkey();
}

}  // namespace

const char* DropReasonName(DropReason reason) noexcept {
  switch (reason) {
    case DropReason::kNone:
      return "none";
    case DropReason::kTooShort:
      return "too_short";
    case DropReason::kTooLong:
      return "too_long";
    case DropReason::kNotWordSized:
      return "not_word_sized";
    case DropReason::kBadVersion:
      return "bad_version";
    case DropReason::kUnknownOpcode:
      return "unknown_opcode";
    case DropReason::kBadPad:
      return "bad_pad";
    case DropReason::kBadPayload:
      return "bad_payload";
  }
  return "unknown";
}

DropReason ParseHeaders(std::span<const uint8_t> head, size_t udp_payload_bytes,
                        PacketFields* fields, PacketShape* shape) noexcept {
  if (udp_payload_bytes < kMinPacketBytes || head.size() < kBthBytes) return DropReason::kTooShort;
  if (udp_payload_bytes > kMaxPacketBytes) return DropReason::kTooLong;
  if (udp_payload_bytes % 4 != 0) return DropReason::kNotWordSized;
  const uint8_t* at = head.data();
  const Bth bth = Take<Bth>(&at);
  if (bth.version() != 0) return DropReason::kBadVersion;
  const OpcodeInfo& info = InfoOf(bth.opcode);
  if (!info.known()) return DropReason::kUnknownOpcode;
  if (udp_payload_bytes < info.header_bytes + kIcrcBytes) return DropReason::kTooShort;
  if (head.size() < info.header_bytes) return DropReason::kTooShort;

  const size_t padded_bytes = udp_payload_bytes - info.header_bytes - kIcrcBytes;
  const uint8_t pad = bth.pad();
  // The padded payload is word-sized, so any pad count fits unless there is nothing at all.
  if (pad > padded_bytes) return DropReason::kBadPad;
  const size_t payload_bytes = padded_bytes - pad;
  if (payload_bytes > kMaxMtuBytes) return DropReason::kTooLong;
  if (payload_bytes < info.min_payload_bytes || payload_bytes > info.max_payload_bytes) {
    return DropReason::kBadPayload;
  }

  ReadBth(bth, fields);
  ReadExtensions(at, info.headers, fields);
  *shape = {info.header_bytes, pad, static_cast<uint16_t>(payload_bytes)};
  return DropReason::kNone;
}

DropReason ParsePacket(std::span<const uint8_t> udp_payload, PacketView* out) noexcept {
  PacketShape shape;
  const DropReason reason = ParseHeaders(udp_payload, udp_payload.size(), out, &shape);
  if (reason != DropReason::kNone) return reason;
  out->pad_bytes = shape.pad_bytes;
  out->payload = udp_payload.subspan(shape.header_bytes, shape.payload_bytes);
  out->icrc_input = udp_payload.first(udp_payload.size() - kIcrcBytes);
  out->icrc = LoadIcrc(udp_payload.last<kIcrcBytes>());
  return DropReason::kNone;
}

size_t BuildHeaders(const PacketFields& fields, size_t payload_bytes,
                    std::span<uint8_t, kMaxHeaderBytes> out) noexcept {
  const OpcodeInfo& info = InfoOf(fields.opcode);
  RD_DCHECK(info.known());
  uint8_t* at = out.data();

  Bth bth{};
  bth.opcode = static_cast<uint8_t>(fields.opcode);
  bth.flags = static_cast<uint8_t>((fields.solicited ? Bth::kSolicited : 0) |
                                   (fields.mig_req ? Bth::kMigReq : 0) |
                                   PadBytes(payload_bytes) << Bth::kPadShift);
  StoreBe16(bth.pkey_be, static_cast<uint16_t>(fields.pkey.value()));
  bth.fecn_becn =
      static_cast<uint8_t>((fields.fecn ? Bth::kFecn : 0) | (fields.becn ? Bth::kBecn : 0));
  StoreBe24(bth.dest_qp_be, fields.dest_qpn.value());
  bth.ack_req = fields.ack_req ? Bth::kAckReq : 0;
  StoreBe24(bth.psn_be, fields.psn.value());
  Put(&at, bth);

  if (info.has(kHasDeth)) {
    Deth deth{};
    StoreBe32(deth.qkey_be, fields.deth.qkey.value());
    StoreBe24(deth.src_qp_be, fields.deth.src_qpn.value());
    Put(&at, deth);
  }
  if (info.has(kHasReth)) {
    Reth reth;
    StoreBe64(reth.va_be, fields.reth.va);
    StoreBe32(reth.rkey_be, fields.reth.rkey.value());
    StoreBe32(reth.dma_length_be, fields.reth.dma_length_bytes);
    Put(&at, reth);
  }
  if (info.has(kHasAtomicEth)) {
    AtomicEth atomic;
    StoreBe64(atomic.va_be, fields.atomic.va);
    StoreBe32(atomic.rkey_be, fields.atomic.rkey.value());
    StoreBe64(atomic.swap_or_add_be, fields.atomic.swap_or_add);
    StoreBe64(atomic.compare_be, fields.atomic.compare);
    Put(&at, atomic);
  }
  if (info.has(kHasAeth)) {
    Aeth aeth;
    aeth.syndrome = fields.aeth.syndrome;
    StoreBe24(aeth.msn_be, fields.aeth.msn.value());
    Put(&at, aeth);
  }
  if (info.has(kHasAtomicAckEth)) {
    AtomicAckEth ack;
    StoreBe64(ack.original_be, fields.atomic_original);
    Put(&at, ack);
  }
  if (info.has(kHasImmDt)) {
    ImmDt immdt;
    StoreBe32(immdt.imm_be, fields.imm);
    Put(&at, immdt);
  }
  if (info.has(kHasIeth)) {
    Ieth ieth;
    StoreBe32(ieth.rkey_be, fields.invalidate_rkey.value());
    Put(&at, ieth);
  }
  return static_cast<size_t>(at - out.data());
}

size_t BuildTrailer(size_t payload_bytes, uint32_t crc,
                    std::span<uint8_t, kMaxTrailerBytes> out) noexcept {
  const size_t pad = PadBytes(payload_bytes);
  std::memset(out.data(), 0, pad);
  if (pad != 0) crc = IcrcUpdate(crc, out.first(pad));
  StoreIcrc(crc, std::span<uint8_t, kIcrcBytes>(out.data() + pad, kIcrcBytes));
  return pad + kIcrcBytes;
}

}  // namespace rdmad::wire
