// Holds parser, builder and ICRC to every packet that the kernel's soft-RoCE put on the wire: the
// captures of tests/data/rxe-pcaps, and what their README says of them.

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "daemon/wire/aeth.h"
#include "daemon/wire/icrc.h"
#include "daemon/wire/icrc_id.h"
#include "daemon/wire/packet.h"
#include "gtest/gtest.h"
#include "tests/support/icrc_reference.h"
#include "tests/support/rxe_captures.h"

namespace rdmad::wire {
namespace {

using testing::RxePacket;
using testing::RxePackets;
using testing::RxePacketsOf;

constexpr Psn kPsnA{0x000100};  // first PSN of op.py's side A
constexpr Psn kPsnB{0xfffffe};  // of its side B, so that it wraps at once

PacketView Parse(const RxePacket& packet) {
  PacketView view;
  const DropReason reason = ParsePacket(packet.udp.payload, &view);
  EXPECT_EQ(reason, DropReason::kNone) << packet.ToString() << ": " << DropReasonName(reason);
  return view;
}

IcrcFlow FlowOf(const RxePacket& packet) {
  return IcrcFlow(packet.udp.source, packet.udp.destination, packet.udp.source_port,
                  packet.udp.destination_port);
}

// Side A is 10.77.0.1 or fd77::1.
bool FromA(const RxePacket& packet) {
  return packet.udp.source.bytes()[15] == 1;
}

// "A:RC_WRITE_ONLY B:RC_ACK", with the NAK kinds that the README gives.
std::string Describe(const RxePacket& packet) {
  const PacketView view = Parse(packet);
  std::string text = FromA(packet) ? "A:" : "B:";
  if (view.opcode == Opcode::kRcAck && AckKindOf(view.aeth.syndrome) == AckKind::kRnrNak) {
    return text + "RNR(" + std::to_string(AckCodeOf(view.aeth.syndrome)) + ")";
  }
  if (view.opcode == Opcode::kRcAck && AckKindOf(view.aeth.syndrome) == AckKind::kNak) {
    return text + "NAK(" + NakCodeName(static_cast<NakCode>(AckCodeOf(view.aeth.syndrome))) + ")";
  }
  return text + OpcodeName(view.opcode);
}

std::string DescribeFile(const std::string& file) {
  std::string text;
  for (const RxePacket& packet : RxePacketsOf(file)) {
    text += (text.empty() ? "" : " ") + Describe(packet);
  }
  return text;
}

TEST(Golden, AllCapturesAreHere) {
  std::map<std::string, int> files;
  for (const RxePacket& packet : RxePackets()) ++files[packet.file];
  EXPECT_EQ(files.size(), testing::kRxeCaptureFiles);
  EXPECT_EQ(RxePackets().size(), testing::kRxeCapturePackets);
}

TEST(Golden, SlowReferenceAgrees) {
  for (const RxePacket& packet : RxePackets()) {
    const PacketView view = Parse(packet);
    EXPECT_EQ(testing::ReferenceIcrc(packet.udp.ip_header, packet.udp.source_port,
                                     packet.udp.destination_port, view.icrc_input),
              view.icrc)
        << packet.ToString();
  }
}

TEST(Golden, IcrcAgreesByTheTrueId) {
  for (const RxePacket& packet : RxePackets()) {
    const PacketView view = Parse(packet);
    const uint32_t computed = FlowOf(packet).Compute(view.icrc_input);
    const uint32_t expected =
        packet.udp.source.is_v4()
            ? IcrcForGsoIndex(computed, packet.udp.ipv4_id, packet.udp.payload.size())
            : computed;
    EXPECT_EQ(view.icrc, expected) << packet.ToString();
  }
}

TEST(Golden, IcrcAgreesWithoutTheId) {
  int ids_found = 0;
  for (const RxePacket& packet : RxePackets()) {
    const PacketView view = Parse(packet);
    const IcrcFlow flow = FlowOf(packet);
    const uint32_t computed = flow.Compute(view.icrc_input);
    EXPECT_TRUE(
        IcrcIsGood(flow, view.icrc, computed, packet.udp.payload.size(), DfPolicy::kRequired))
        << packet.ToString();
    if (!packet.udp.source.is_v4()) continue;
    const IcrcIdCheck check = CheckIcrcUnknownId(view.icrc, computed, packet.udp.payload.size());
    EXPECT_TRUE(check.good) << packet.ToString();
    EXPECT_EQ(check.id, packet.udp.ipv4_id) << packet.ToString();
    EXPECT_EQ(check.dont_fragment, packet.udp.dont_fragment) << packet.ToString();
    ++ids_found;
  }
  EXPECT_EQ(ids_found, 141);
}

TEST(Golden, BuildsTheSameBytesAgain) {
  for (const RxePacket& packet : RxePackets()) {
    const PacketView view = Parse(packet);
    std::array<uint8_t, kMaxHeaderBytes> head;
    const size_t head_bytes = BuildHeaders(view, view.payload.size(), head);
    ASSERT_EQ(UdpPayloadBytes(view.opcode, view.payload.size()), packet.udp.payload.size());

    const IcrcFlow flow = FlowOf(packet);
    uint32_t crc = flow.Begin(packet.udp.payload.size(), std::span(head).first(head_bytes));
    crc = IcrcUpdate(crc, view.payload);
    std::array<uint8_t, kMaxTrailerBytes> tail;
    const size_t tail_bytes = BuildTrailer(view.payload.size(), crc, tail);
    if (flow.is_ipv4()) {
      const auto icrc = std::span<uint8_t, 4>(tail.data() + tail_bytes - 4, 4);
      StoreIcrc(IcrcForGsoIndex(LoadIcrc(icrc), packet.udp.ipv4_id, packet.udp.payload.size()),
                icrc);
    }

    std::vector<uint8_t> built(head.begin(), head.begin() + static_cast<ptrdiff_t>(head_bytes));
    built.insert(built.end(), view.payload.begin(), view.payload.end());
    built.insert(built.end(), tail.begin(), tail.begin() + static_cast<ptrdiff_t>(tail_bytes));
    EXPECT_TRUE(std::equal(built.begin(), built.end(), packet.udp.payload.begin(),
                           packet.udp.payload.end()))
        << packet.ToString();
  }
}

TEST(Golden, PacketsAreTheOnesOfTheReadme) {
  const struct {
    const char* file;
    const char* packets;
  } kCases[] = {
      {"write-256", "A:RC_WRITE_ONLY B:RC_ACK"},
      {"write-multi", "A:RC_WRITE_FIRST A:RC_WRITE_MIDDLE A:RC_WRITE_LAST B:RC_ACK"},
      {"write-imm", "A:RC_WRITE_ONLY_IMM B:RC_ACK"},
      {"write-imm-multi", "A:RC_WRITE_FIRST A:RC_WRITE_MIDDLE A:RC_WRITE_LAST_IMM B:RC_ACK"},
      {"read-256", "A:RC_READ_REQUEST B:RC_READ_RESPONSE_ONLY"},
      {"read-multi",
       "A:RC_READ_REQUEST B:RC_READ_RESPONSE_FIRST B:RC_READ_RESPONSE_MIDDLE "
       "B:RC_READ_RESPONSE_LAST"},
      {"read-3x-multi",
       "A:RC_READ_REQUEST B:RC_READ_RESPONSE_FIRST B:RC_READ_RESPONSE_MIDDLE "
       "B:RC_READ_RESPONSE_LAST "
       "A:RC_READ_REQUEST B:RC_READ_RESPONSE_FIRST B:RC_READ_RESPONSE_MIDDLE "
       "B:RC_READ_RESPONSE_LAST "
       "A:RC_READ_REQUEST B:RC_READ_RESPONSE_FIRST B:RC_READ_RESPONSE_MIDDLE "
       "B:RC_READ_RESPONSE_LAST"},
      {"send-256", "A:RC_SEND_ONLY B:RC_ACK"},
      {"send-odd-pad", "A:RC_SEND_ONLY B:RC_ACK"},
      {"send-multi", "A:RC_SEND_FIRST A:RC_SEND_MIDDLE A:RC_SEND_LAST B:RC_ACK"},
      {"send-3", "A:RC_SEND_ONLY B:RC_ACK A:RC_SEND_ONLY B:RC_ACK A:RC_SEND_ONLY B:RC_ACK"},
      {"send-imm", "A:RC_SEND_ONLY_IMM B:RC_ACK"},
      {"zero-length",
       "A:RC_SEND_ONLY B:RC_ACK A:RC_WRITE_ONLY B:RC_ACK A:RC_READ_REQUEST "
       "B:RC_READ_RESPONSE_ONLY"},
      {"atomic-cas", "A:RC_COMPARE_SWAP B:RC_ATOMIC_ACK"},
      {"atomic-faa", "A:RC_FETCH_ADD B:RC_ATOMIC_ACK"},
      {"bad-rkey-write", "A:RC_WRITE_ONLY B:NAK(remote_access_error)"},
      {"bad-rkey-read", "A:RC_READ_REQUEST B:NAK(remote_access_error)"},
      {"out-of-bounds-write", "A:RC_WRITE_ONLY B:NAK(remote_access_error)"},
      {"short-recv", "A:RC_SEND_ONLY B:NAK(remote_operational_error)"},
      {"rnr-then-ok", "A:RC_SEND_ONLY B:RNR(12) A:RC_SEND_ONLY B:RC_ACK"},
      {"rnr-exhausted",
       "A:RC_SEND_ONLY B:RNR(12) A:RC_SEND_ONLY B:RNR(12) A:RC_SEND_ONLY B:RNR(12) A:RC_SEND_ONLY "
       "B:RNR(12)"},
      {"nak-psn",
       "A:RC_SEND_ONLY B:NAK(psn_sequence_error) A:RC_SEND_ONLY A:RC_SEND_ONLY A:RC_SEND_ONLY"},
      {"no-such-qp", "A:RC_SEND_ONLY A:RC_SEND_ONLY A:RC_SEND_ONLY A:RC_SEND_ONLY"},
      {"ud-send", "A:UD_SEND_ONLY"},
      {"ud-send-imm", "A:UD_SEND_ONLY_IMM"},
      {"uc-send", "A:UC_SEND_FIRST A:UC_SEND_MIDDLE A:UC_SEND_LAST"},
      {"uc-write", "A:UC_WRITE_FIRST A:UC_WRITE_MIDDLE A:UC_WRITE_LAST"},
      {"ipv6-write-multi", "A:RC_WRITE_FIRST A:RC_WRITE_MIDDLE A:RC_WRITE_LAST B:RC_ACK"},
      {"ipv6-ud", "A:UD_SEND_ONLY"},
      {"mw-bind-write", "A:RC_WRITE_ONLY B:RC_ACK"},
      {"mckey", "A:UD_SEND_ONLY_IMM A:UD_SEND_ONLY_IMM A:UD_SEND_ONLY_IMM"},
      {"rping-1",
       "A:UD_SEND_ONLY B:UD_SEND_ONLY A:UD_SEND_ONLY A:RC_SEND_ONLY B:RC_ACK B:RC_READ_REQUEST "
       "A:RC_READ_RESPONSE_ONLY B:RC_SEND_ONLY A:RC_ACK A:RC_SEND_ONLY B:RC_ACK B:RC_WRITE_ONLY "
       "A:RC_ACK "
       "B:RC_SEND_ONLY A:RC_ACK A:UD_SEND_ONLY B:UD_SEND_ONLY"},
  };
  for (const auto& c : kCases) EXPECT_EQ(DescribeFile(c.file), c.packets) << c.file;
}

TEST(Golden, MessageSizesAndPad) {
  const struct {
    const char* file;
    std::vector<size_t> payload_bytes;
  } kCases[] = {
      {"write-256", {256, 0}},
      {"write-multi", {4096, 4096, 1808, 0}},
      {"write-imm", {300, 0}},
      {"read-multi", {0, 4096, 4096, 1808}},
      {"send-odd-pad", {255, 0}},
      {"zero-length", {0, 0, 0, 0, 0, 0}},
      {"atomic-cas", {0, 0}},
      {"ud-send", {200}},
      {"ud-send-imm", {4096}},
      {"mw-bind-write", {100, 0}},
      {"ipv6-write-multi", {4096, 4096, 1808, 0}},
  };
  for (const auto& c : kCases) {
    std::vector<size_t> sizes;
    for (const RxePacket& packet : RxePacketsOf(c.file)) {
      const PacketView view = Parse(packet);
      sizes.push_back(view.payload.size());
      EXPECT_EQ(view.pad_bytes, PadBytes(view.payload.size()));
    }
    EXPECT_EQ(sizes, c.payload_bytes) << c.file;
  }
  EXPECT_EQ(Parse(RxePacketsOf("send-odd-pad")[0]).pad_bytes, 1);
}

TEST(Golden, PayloadIsWhatTheBuffersHeld) {
  // A's buffer: 00 01 02 ... ff, repeated; B's: bb.
  for (const char* file : {"write-multi", "send-multi", "uc-send", "ipv6-write-multi"}) {
    size_t offset = 0;
    for (const RxePacket& packet : RxePacketsOf(file)) {
      for (const uint8_t byte : Parse(packet).payload) {
        ASSERT_EQ(byte, offset % 256) << file << " at " << offset;
        ++offset;
      }
    }
    EXPECT_EQ(offset, 10'000u) << file;
  }
  for (const RxePacket& packet : RxePacketsOf("read-multi")) {
    for (const uint8_t byte : Parse(packet).payload) ASSERT_EQ(byte, 0xbb);
  }
}

TEST(Golden, FixedFieldsOfRxe) {
  for (const RxePacket& packet : RxePackets()) {
    const PacketView view = Parse(packet);
    SCOPED_TRACE(packet.ToString());
    EXPECT_EQ(view.pkey, kDefaultPKey);
    EXPECT_FALSE(view.mig_req || view.fecn || view.becn);
    if (view.info().transport == Transport::kUc || view.info().position == Position::kFirst ||
        view.info().position == Position::kMiddle) {
      EXPECT_FALSE(view.ack_req);
    } else if (view.info().transport == Transport::kRc && view.info().is_request()) {
      EXPECT_TRUE(view.ack_req);
    } else if (view.info().transport == Transport::kUd) {
      EXPECT_EQ(view.ack_req, view.dest_qpn == kGsiQpn);
    }
    if (view.opcode == Opcode::kRcAck && AckKindOf(view.aeth.syndrome) == AckKind::kAck) {
      EXPECT_EQ(view.aeth.syndrome, AckSyndrome());
    }
  }
}

TEST(Golden, PsnsRunOnAndWrap) {
  const std::vector<RxePacket> packets = RxePacketsOf("send-3");
  for (size_t i = 0; i < packets.size(); ++i) {
    const PacketView view = Parse(packets[i]);
    EXPECT_EQ(view.psn, kPsnA + static_cast<uint32_t>(i / 2)) << i;
    if (view.opcode == Opcode::kRcAck) {
      EXPECT_EQ(view.aeth.msn, Msn(static_cast<uint32_t>(i / 2 + 1)));
    }
    EXPECT_EQ(view.solicited, i == 4) << i;
  }
  // rping's B reads and writes: requests and responses share the requester's PSN.
  EXPECT_EQ(Parse(RxePacketsOf("nak-psn")[0]).psn, kPsnA + 5);
  EXPECT_EQ(Parse(RxePacketsOf("nak-psn")[1]).psn, kPsnA);
  EXPECT_EQ(kPsnB + 2, Psn(0));
}

TEST(Golden, ReadRequestsTakeOnePsnPerResponsePacket) {
  const std::vector<RxePacket> packets = RxePacketsOf("read-3x-multi");
  for (size_t i = 0; i < packets.size(); ++i) {
    const PacketView view = Parse(packets[i]);
    const uint32_t read = static_cast<uint32_t>(i / 4);
    const uint32_t response = i % 4 == 0 ? 0 : static_cast<uint32_t>(i % 4 - 1);
    EXPECT_EQ(view.psn, kPsnA + 3 * read + response) << i;
    if (i % 4 == 0) {
      EXPECT_EQ(view.reth.dma_length_bytes, 9000u);
    }
  }
}

TEST(Golden, ExtensionHeaders) {
  const PacketView write = Parse(RxePacketsOf("write-multi")[0]);
  EXPECT_EQ(write.reth.dma_length_bytes, 10'000u);
  EXPECT_NE(write.reth.rkey, Rkey(0));
  EXPECT_NE(write.reth.va, 0u);

  const PacketView swap = Parse(RxePacketsOf("atomic-cas")[0]);
  EXPECT_EQ(swap.atomic.compare, 5u);
  EXPECT_EQ(swap.atomic.swap_or_add, 0x1122334455667788u);
  EXPECT_EQ(Parse(RxePacketsOf("atomic-cas")[1]).atomic_original, 5u);

  const PacketView add = Parse(RxePacketsOf("atomic-faa")[0]);
  EXPECT_EQ(add.atomic.swap_or_add, 0x100u);
  EXPECT_EQ(Parse(RxePacketsOf("atomic-faa")[1]).atomic_original, 5u);

  EXPECT_EQ(Parse(RxePacketsOf("write-imm")[0]).imm, 0x78563412u);
  EXPECT_EQ(Parse(RxePacketsOf("write-imm-multi")[2]).imm, 0x78563412u);
  EXPECT_EQ(Parse(RxePacketsOf("send-imm")[0]).imm, 0x01efcdabu);

  const PacketView datagram = Parse(RxePacketsOf("ud-send")[0]);
  EXPECT_EQ(datagram.deth.qkey, Qkey(0x11111111));
  const PacketView multicast = Parse(RxePacketsOf("mckey")[0]);
  EXPECT_EQ(multicast.dest_qpn, kMulticastQpn);
  EXPECT_EQ(multicast.deth.qkey, Qkey(0x01234567));
}

TEST(Golden, UdpSourcePortFollowsFromTheQpns) {
  // What the README says of rxe's choice, for the datagrams of QP 1.
  for (const RxePacket& packet : RxePackets()) {
    if (Parse(packet).dest_qpn != kGsiQpn) continue;
    EXPECT_EQ(packet.udp.source_port, 55'410) << packet.ToString();
  }
}

}  // namespace
}  // namespace rdmad::wire
