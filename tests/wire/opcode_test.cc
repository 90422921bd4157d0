#include "daemon/wire/opcode.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

// What the spec's opcode table says, written down independently of ours. Flags: F starts a message,
// L ends one, D has payload, R is a response.
struct Expected {
  int opcode;
  const char* name;
  const char* headers;  // in wire order, after the BTH
  const char* flags;
};
constexpr Expected kExpected[] = {
    {0x00, "RC_SEND_FIRST", "", "FD"},
    {0x01, "RC_SEND_MIDDLE", "", "D"},
    {0x02, "RC_SEND_LAST", "", "LD"},
    {0x03, "RC_SEND_LAST_IMM", "imm", "LD"},
    {0x04, "RC_SEND_ONLY", "", "FLD"},
    {0x05, "RC_SEND_ONLY_IMM", "imm", "FLD"},
    {0x06, "RC_WRITE_FIRST", "reth", "FD"},
    {0x07, "RC_WRITE_MIDDLE", "", "D"},
    {0x08, "RC_WRITE_LAST", "", "LD"},
    {0x09, "RC_WRITE_LAST_IMM", "imm", "LD"},
    {0x0a, "RC_WRITE_ONLY", "reth", "FLD"},
    {0x0b, "RC_WRITE_ONLY_IMM", "reth imm", "FLD"},
    {0x0c, "RC_READ_REQUEST", "reth", "FL"},
    {0x0d, "RC_READ_RESPONSE_FIRST", "aeth", "FDR"},
    {0x0e, "RC_READ_RESPONSE_MIDDLE", "", "DR"},
    {0x0f, "RC_READ_RESPONSE_LAST", "aeth", "LDR"},
    {0x10, "RC_READ_RESPONSE_ONLY", "aeth", "FLDR"},
    {0x11, "RC_ACK", "aeth", "FLR"},
    {0x12, "RC_ATOMIC_ACK", "aeth atomicack", "FLR"},
    {0x13, "RC_COMPARE_SWAP", "atomic", "FL"},
    {0x14, "RC_FETCH_ADD", "atomic", "FL"},
    {0x16, "RC_SEND_LAST_INV", "ieth", "LD"},
    {0x17, "RC_SEND_ONLY_INV", "ieth", "FLD"},
    {0x20, "UC_SEND_FIRST", "", "FD"},
    {0x21, "UC_SEND_MIDDLE", "", "D"},
    {0x22, "UC_SEND_LAST", "", "LD"},
    {0x23, "UC_SEND_LAST_IMM", "imm", "LD"},
    {0x24, "UC_SEND_ONLY", "", "FLD"},
    {0x25, "UC_SEND_ONLY_IMM", "imm", "FLD"},
    {0x26, "UC_WRITE_FIRST", "reth", "FD"},
    {0x27, "UC_WRITE_MIDDLE", "", "D"},
    {0x28, "UC_WRITE_LAST", "", "LD"},
    {0x29, "UC_WRITE_LAST_IMM", "imm", "LD"},
    {0x2a, "UC_WRITE_ONLY", "reth", "FLD"},
    {0x2b, "UC_WRITE_ONLY_IMM", "reth imm", "FLD"},
    {0x64, "UD_SEND_ONLY", "deth", "FLD"},
    {0x65, "UD_SEND_ONLY_IMM", "deth imm", "FLD"},
    {0x81, "CNP", "", "FLD"},
};

std::string HeadersOf(const OpcodeInfo& info) {
  std::string text;
  const struct {
    HeaderBit bit;
    const char* name;
  } kNames[] = {{kHasDeth, "deth"},
                {kHasReth, "reth"},
                {kHasAtomicEth, "atomic"},
                {kHasAeth, "aeth"},
                {kHasAtomicAckEth, "atomicack"},
                {kHasImmDt, "imm"},
                {kHasIeth, "ieth"}};
  for (const auto& name : kNames) {
    if (info.has(name.bit)) text += (text.empty() ? "" : " ") + std::string(name.name);
  }
  return text;
}

std::string FlagsOf(const OpcodeInfo& info) {
  std::string text;
  if (info.starts_message()) text += 'F';
  if (info.ends_message()) text += 'L';
  if (info.has_payload()) text += 'D';
  if (info.is_response()) text += 'R';
  return text;
}

TEST(Opcode, TableSaysWhatTheSpecSays) {
  for (const Expected& expected : kExpected) {
    const OpcodeInfo& info = InfoOf(static_cast<uint8_t>(expected.opcode));
    ASSERT_TRUE(info.known()) << expected.name;
    EXPECT_STREQ(info.name, expected.name);
    EXPECT_EQ(HeadersOf(info), expected.headers) << expected.name;
    EXPECT_EQ(FlagsOf(info), expected.flags) << expected.name;
  }
}

TEST(Opcode, EverythingElseIsUnknown) {
  std::set<int> known;
  for (const Expected& expected : kExpected) known.insert(expected.opcode);
  for (int opcode = 0; opcode < 256; ++opcode) {
    EXPECT_EQ(InfoOf(static_cast<uint8_t>(opcode)).known(), known.contains(opcode)) << opcode;
  }
}

TEST(Opcode, TransportFollowsFromTheOpcode) {
  EXPECT_EQ(InfoOf(Opcode::kRcAck).transport, Transport::kRc);
  EXPECT_EQ(InfoOf(Opcode::kUcWriteOnlyImm).transport, Transport::kUc);
  EXPECT_EQ(InfoOf(Opcode::kUdSendOnly).transport, Transport::kUd);
  EXPECT_EQ(InfoOf(Opcode::kCnp).transport, Transport::kCnp);
  for (const Expected& expected : kExpected) {
    if (expected.opcode == 0x81) continue;
    const int bits = expected.opcode >> 5;
    const Transport transport = bits == 0   ? Transport::kRc
                                : bits == 1 ? Transport::kUc
                                            : Transport::kUd;
    EXPECT_EQ(InfoOf(static_cast<uint8_t>(expected.opcode)).transport, transport);
  }
}

TEST(Opcode, HeaderLengths) {
  const struct {
    Opcode opcode;
    size_t bytes;
  } kCases[] = {
      {Opcode::kRcSendMiddle, 12},   {Opcode::kRcSendOnlyImm, 16}, {Opcode::kRcWriteOnly, 28},
      {Opcode::kRcWriteOnlyImm, 32}, {Opcode::kRcAck, 16},         {Opcode::kRcAtomicAck, 24},
      {Opcode::kRcFetchAdd, 40},     {Opcode::kRcSendOnlyInv, 16}, {Opcode::kUdSendOnly, 20},
      {Opcode::kUdSendOnlyImm, 24},  {Opcode::kCnp, 12},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(InfoOf(c.opcode).header_bytes, c.bytes) << OpcodeName(c.opcode);
  }
  EXPECT_EQ(kMaxHeaderBytes, 40u);
}

TEST(Opcode, CnpIsNeitherRequestNorResponse) {
  EXPECT_FALSE(InfoOf(Opcode::kCnp).is_request());
  EXPECT_FALSE(InfoOf(Opcode::kCnp).is_response());
}

TEST(Opcode, UnknownHasAName) {
  EXPECT_STREQ(OpcodeName(static_cast<Opcode>(0xff)), "UNKNOWN_OPCODE");
}

}  // namespace
}  // namespace rdmad::wire
