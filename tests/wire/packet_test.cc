#include "daemon/wire/packet.h"

#include <array>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/wire/aeth.h"
#include "daemon/wire/icrc.h"
#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

// Header, payload and trailer in one piece, as a receiver gets it.
std::vector<uint8_t> Build(const PacketFields& fields, std::vector<uint8_t> payload) {
  const IcrcFlow flow(IpAddress::FromV4(10, 0, 0, 1), IpAddress::FromV4(10, 0, 0, 2), 4791, 4791);
  std::array<uint8_t, kMaxHeaderBytes> head;
  std::array<uint8_t, kMaxTrailerBytes> tail;
  const size_t head_bytes = BuildHeaders(fields, payload.size(), head);
  const size_t size = UdpPayloadBytes(fields.opcode, payload.size());
  uint32_t crc = flow.Begin(size, std::span(head).first(head_bytes));
  crc = IcrcUpdate(crc, payload);
  const size_t tail_bytes = BuildTrailer(payload.size(), crc, tail);
  std::vector<uint8_t> packet(head.begin(), head.begin() + static_cast<ptrdiff_t>(head_bytes));
  packet.insert(packet.end(), payload.begin(), payload.end());
  packet.insert(packet.end(), tail.begin(), tail.begin() + static_cast<ptrdiff_t>(tail_bytes));
  EXPECT_EQ(packet.size(), size);
  EXPECT_EQ(flow.Compute(std::span(packet).first(packet.size() - 4)),
            LoadIcrc(std::span(packet).last<4>()));
  return packet;
}

// A packet of zeros but for opcode and flags, of the given size.
std::vector<uint8_t> Raw(Opcode opcode, size_t bytes, uint8_t flags = 0) {
  std::vector<uint8_t> packet(bytes);
  packet[0] = static_cast<uint8_t>(opcode);
  packet[1] = flags;
  return packet;
}

DropReason Parse(const std::vector<uint8_t>& packet) {
  PacketView view;
  return ParsePacket(packet, &view);
}

TEST(Packet, WriteOnlyWithImmediateOnTheWire) {
  PacketFields fields;
  fields.opcode = Opcode::kRcWriteOnlyImm;
  fields.solicited = true;
  fields.ack_req = true;
  fields.pkey = PKey(0x8123);
  fields.dest_qpn = Qpn(0x456789);
  fields.psn = Psn(0xabcdef);
  fields.reth = {0x0102030405060708, Rkey(0x11121314), 2};
  fields.imm = 0x21222324;
  const std::vector<uint8_t> packet = Build(fields, {0xd0, 0xd1});
  const std::vector<uint8_t> kExpected = {
      0x0b, 0xa0, 0x81, 0x23, 0x00, 0x45, 0x67, 0x89, 0x80, 0xab, 0xcd, 0xef,              // BTH
      1,    2,    3,    4,    5,    6,    7,    8,    0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2,  // RETH
      0x21, 0x22, 0x23, 0x24,                                                              // ImmDt
      0xd0, 0xd1, 0,    0};  // payload, pad
  ASSERT_EQ(packet.size(), kExpected.size() + 4);
  EXPECT_TRUE(std::equal(kExpected.begin(), kExpected.end(), packet.begin()));
}

// Every field gets a value of its own; those that the opcode lacks must come back as they were
// before.
TEST(Packet, EveryOpcodeComesBackAsItWasBuilt) {
  PacketFields fields;
  fields.mig_req = true;
  fields.fecn = true;
  fields.becn = true;
  fields.dest_qpn = Qpn(0x010203);
  fields.psn = Psn(0xfffffe);
  fields.reth = {0x1111111111111111, Rkey(0x22222222), 0x33333333};
  fields.deth = {Qkey(0x44444444), Qpn(0x555555)};
  fields.aeth = {NakSyndrome(NakCode::kInvalidRequest), Msn(0x666666)};
  fields.atomic = {0x7777777777777777, Rkey(0x88888888), 0x9999999999999999, 0xaaaaaaaaaaaaaaaa};
  fields.atomic_original = 0xbbbbbbbbbbbbbbbb;
  fields.imm = 0xcccccccc;
  fields.invalidate_rkey = Rkey(0xdddddddd);
  for (int byte = 0; byte < 256; ++byte) {
    const OpcodeInfo& info = InfoOf(static_cast<uint8_t>(byte));
    if (!info.known()) continue;
    SCOPED_TRACE(info.name);
    fields.opcode = static_cast<Opcode>(byte);
    const size_t payload_bytes = info.min_payload_bytes != 0 ? info.min_payload_bytes
                                 : info.has_payload()        ? 5
                                                             : 0;
    const std::vector<uint8_t> packet = Build(fields, std::vector<uint8_t>(payload_bytes, 0xee));
    PacketView view;
    ASSERT_EQ(ParsePacket(packet, &view), DropReason::kNone);
    EXPECT_EQ(view.opcode, fields.opcode);
    EXPECT_FALSE(view.solicited);
    EXPECT_TRUE(view.mig_req && view.fecn && view.becn);
    EXPECT_FALSE(view.ack_req);
    EXPECT_EQ(view.pkey, kDefaultPKey);
    EXPECT_EQ(view.dest_qpn, fields.dest_qpn);
    EXPECT_EQ(view.psn, fields.psn);
    EXPECT_EQ(view.payload.size(), payload_bytes);
    EXPECT_EQ(view.pad_bytes, PadBytes(payload_bytes));
    const bool reth = info.has(kHasReth);
    EXPECT_EQ(view.reth.va, reth ? fields.reth.va : 0);
    EXPECT_EQ(view.reth.rkey, reth ? fields.reth.rkey : Rkey());
    EXPECT_EQ(view.reth.dma_length_bytes, reth ? fields.reth.dma_length_bytes : 0);
    const bool deth = info.has(kHasDeth);
    EXPECT_EQ(view.deth.qkey, deth ? fields.deth.qkey : Qkey());
    EXPECT_EQ(view.deth.src_qpn, deth ? fields.deth.src_qpn : Qpn());
    const bool aeth = info.has(kHasAeth);
    EXPECT_EQ(view.aeth.syndrome, aeth ? fields.aeth.syndrome : 0);
    EXPECT_EQ(view.aeth.msn, aeth ? fields.aeth.msn : Msn());
    const bool atomic = info.has(kHasAtomicEth);
    EXPECT_EQ(view.atomic.va, atomic ? fields.atomic.va : 0);
    EXPECT_EQ(view.atomic.rkey, atomic ? fields.atomic.rkey : Rkey());
    EXPECT_EQ(view.atomic.swap_or_add, atomic ? fields.atomic.swap_or_add : 0);
    EXPECT_EQ(view.atomic.compare, atomic ? fields.atomic.compare : 0);
    EXPECT_EQ(view.atomic_original, info.has(kHasAtomicAckEth) ? fields.atomic_original : 0);
    EXPECT_EQ(view.imm, info.has(kHasImmDt) ? fields.imm : 0);
    EXPECT_EQ(view.invalidate_rkey, info.has(kHasIeth) ? fields.invalidate_rkey : Rkey());
  }
}

TEST(Packet, PayloadIsPaddedToWords) {
  const struct {
    size_t payload_bytes, pad;
  } kCases[] = {{0, 0}, {1, 3}, {2, 2}, {3, 1}, {4, 0}, {5, 3}, {255, 1}, {4095, 1}, {4096, 0}};
  for (const auto& c : kCases) {
    const std::vector<uint8_t> packet = Build({}, std::vector<uint8_t>(c.payload_bytes, 0x77));
    PacketView view;
    ASSERT_EQ(ParsePacket(packet, &view), DropReason::kNone) << c.payload_bytes;
    EXPECT_EQ(view.payload.size(), c.payload_bytes);
    EXPECT_EQ(view.pad_bytes, c.pad);
    EXPECT_EQ(packet.size(), 12 + c.payload_bytes + c.pad + 4);
    EXPECT_EQ(view.payload.data(), packet.data() + 12);
    EXPECT_EQ(view.icrc_input.size(), packet.size() - 4);
  }
}

TEST(Packet, DropsTheWrongForm) {
  const struct {
    std::vector<uint8_t> packet;
    DropReason reason;
    const char* what;
  } kCases[] = {
      {{}, DropReason::kTooShort, "nothing"},
      {std::vector<uint8_t>(12), DropReason::kTooShort, "BTH without ICRC"},
      {Raw(Opcode::kRcSendOnly, 16), DropReason::kNone, "empty send"},
      {Raw(Opcode::kRcSendOnly, 17), DropReason::kNotWordSized, "odd size"},
      {Raw(Opcode::kRcSendOnly, 18), DropReason::kNotWordSized, "half a word"},
      {Raw(Opcode::kRcSendOnly, 16, 0x01), DropReason::kBadVersion, "version 1"},
      {Raw(Opcode::kRcSendOnly, 16, 0x08), DropReason::kBadVersion, "version 8"},
      {Raw(Opcode::kRcSendOnly, 16, 0x10), DropReason::kBadPad, "pad of nothing"},
      {Raw(Opcode::kRcSendOnly, 20, 0x30), DropReason::kNone, "one byte and three of pad"},
      {Raw(Opcode::kRcSendOnly, 12 + 4096 + 4), DropReason::kNone, "full MTU"},
      {Raw(Opcode::kRcSendOnly, 12 + 4100 + 4), DropReason::kTooLong, "over the MTU"},
      {Raw(Opcode::kRcSendOnly, 12 + 4100 + 4, 0x30), DropReason::kTooLong, "over by a byte"},
      {Raw(Opcode::kRcSendOnly, 65'508), DropReason::kTooLong, "huge"},
      {Raw(static_cast<Opcode>(0x15), 64), DropReason::kUnknownOpcode, "reserved opcode"},
      {Raw(static_cast<Opcode>(0x44), 64), DropReason::kUnknownOpcode, "RD"},
      {Raw(static_cast<Opcode>(0xa4), 64), DropReason::kUnknownOpcode, "XRC"},
      {Raw(Opcode::kRcWriteOnly, 28), DropReason::kTooShort, "RETH without ICRC"},
      {Raw(Opcode::kRcWriteOnly, 32), DropReason::kNone, "RETH"},
      {Raw(Opcode::kRcAck, 20), DropReason::kNone, "ack"},
      {Raw(Opcode::kRcAck, 24), DropReason::kBadPayload, "ack with payload"},
      {Raw(Opcode::kRcAck, 20, 0x20), DropReason::kBadPad, "ack with pad"},
      {Raw(Opcode::kRcReadRequest, 36), DropReason::kBadPayload, "read request with payload"},
      {Raw(Opcode::kRcFetchAdd, 40), DropReason::kTooShort, "atomic without ICRC"},
      {Raw(Opcode::kUdSendOnly, 20), DropReason::kTooShort, "datagram without DETH"},
      {Raw(Opcode::kCnp, 32), DropReason::kNone, "CNP"},
      {Raw(Opcode::kCnp, 28), DropReason::kBadPayload, "short CNP"},
      {Raw(Opcode::kCnp, 36), DropReason::kBadPayload, "long CNP"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(Parse(c.packet), c.reason) << c.what << ": " << DropReasonName(Parse(c.packet))
                                         << ", expected " << DropReasonName(c.reason);
  }
}

TEST(Packet, HeadersAloneTellTheShape) {
  PacketFields fields;
  fields.opcode = Opcode::kRcWriteFirst;
  fields.reth = {0x1000, Rkey(7), 12'000};
  const std::vector<uint8_t> packet = Build(fields, std::vector<uint8_t>(1023, 1));
  PacketFields parsed;
  PacketShape shape;
  ASSERT_EQ(ParseHeaders(std::span(packet).first(kMaxHeaderBytes), packet.size(), &parsed, &shape),
            DropReason::kNone);
  EXPECT_EQ(shape.header_bytes, 28);
  EXPECT_EQ(shape.payload_bytes, 1023);
  EXPECT_EQ(shape.pad_bytes, 1);
  EXPECT_EQ(parsed.reth.dma_length_bytes, 12'000u);
}

TEST(Packet, HeadersThatAreNotWholeAreTooShort) {
  PacketFields fields;
  fields.opcode = Opcode::kRcWriteFirst;
  const std::vector<uint8_t> packet = Build(fields, std::vector<uint8_t>(64, 1));
  for (size_t bytes = 0; bytes < 28; ++bytes) {
    const std::vector<uint8_t> head(packet.begin(), packet.begin() + static_cast<ptrdiff_t>(bytes));
    PacketFields parsed;
    PacketShape shape;
    EXPECT_EQ(ParseHeaders(head, packet.size(), &parsed, &shape), DropReason::kTooShort) << bytes;
  }
}

TEST(DropReason, EachHasAName) {
  EXPECT_STREQ(DropReasonName(DropReason::kNone), "none");
  EXPECT_STREQ(DropReasonName(DropReason::kBadPayload), "bad_payload");
  EXPECT_STREQ(DropReasonName(static_cast<DropReason>(99)), "unknown");
}

}  // namespace
}  // namespace rdmad::wire
