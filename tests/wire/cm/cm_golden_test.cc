// Holds the CM messages to those that the kernel exchanged in the captures of tests/data/rxe-pcaps:
// rping, ucmatose, cmtime, udaddy and a rejected connection.

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "daemon/wire/cm/cm_message.h"
#include "daemon/wire/cm/cm_packet.h"
#include "daemon/wire/cm/ip_cm.h"
#include "daemon/wire/icrc_id.h"
#include "daemon/wire/packet.h"
#include "gtest/gtest.h"
#include "tests/support/rxe_captures.h"

namespace rdmad::wire {
namespace {

using testing::RxePacket;
using testing::RxePackets;
using testing::RxePacketsOf;

struct CmCapture {
  RxePacket packet;
  PacketView view;
  MadHeader header;
  CmMessage message;
};

std::vector<CmCapture> CmOf(const std::vector<RxePacket>& packets) {
  std::vector<CmCapture> captures;
  for (const RxePacket& packet : packets) {
    CmCapture capture{packet, {}, {}, {}};
    EXPECT_EQ(ParsePacket(packet.udp.payload, &capture.view), DropReason::kNone);
    if (!IsCmPacket(capture.view)) continue;
    const MadDropReason reason =
        ParseCmMessage(capture.view.payload, &capture.header, &capture.message);
    EXPECT_EQ(reason, MadDropReason::kNone)
        << packet.ToString() << ": " << MadDropReasonName(reason);
    captures.push_back(capture);
  }
  return captures;
}

// The first message of type `Message` in a capture.
template <typename Message>
Message First(const std::string& file) {
  for (const CmCapture& capture : CmOf(RxePacketsOf(file))) {
    if (const auto* message = std::get_if<Message>(&capture.message)) return *message;
  }
  ADD_FAILURE() << "no such message in " << file;
  return {};
}

IpCmHeader IpHeaderOf(const CmReq& req) {
  const auto header = ParseIpCmHeader(std::span(req.private_data).first<kIpCmHeaderBytes>());
  EXPECT_TRUE(header.has_value());
  return header.value_or(IpCmHeader{});
}

TEST(CmGolden, EveryPacketOfQpOneIsACmMessage) {
  size_t for_gsi = 0;
  for (const RxePacket& packet : RxePackets()) {
    PacketView view;
    ASSERT_EQ(ParsePacket(packet.udp.payload, &view), DropReason::kNone);
    for_gsi += view.dest_qpn == kGsiQpn ? 1 : 0;
  }
  EXPECT_EQ(CmOf(RxePackets()).size(), for_gsi);
  EXPECT_EQ(for_gsi, 24u);
}

TEST(CmGolden, MessagesOfEachProgram) {
  const struct {
    const char* file;
    std::string messages;
  } kCases[] = {
      {"rping-1", "REQ REP RTU DREQ DREP"},    {"rping-1-ipv6", "REQ REP RTU DREQ DREP"},
      {"ucmatose-1", "REQ REP RTU DREQ DREP"}, {"cmtime-1", "REQ REP RTU DREQ DREP"},
      {"reject-no-listener", "REQ REJ"},       {"udaddy-1", "SIDR_REQ SIDR_REP"},
  };
  for (const auto& c : kCases) {
    std::string names;
    for (const CmCapture& capture : CmOf(RxePacketsOf(c.file))) {
      names += (names.empty() ? "" : " ") + std::string(CmAttributeName(capture.header.attribute));
    }
    EXPECT_EQ(names, c.messages) << c.file;
  }
}

TEST(CmGolden, BuildsTheSameMadsAgain) {
  for (const CmCapture& capture : CmOf(RxePackets())) {
    std::array<uint8_t, kMadBytes> mad;
    mad.fill(0xee);
    BuildCmMad(capture.header.transaction_id, capture.message, mad);
    EXPECT_TRUE(std::equal(mad.begin(), mad.end(), capture.view.payload.begin(),
                           capture.view.payload.end()))
        << capture.packet.ToString();
  }
}

TEST(CmGolden, BuildsTheSamePacketsAgain) {
  for (const CmCapture& capture : CmOf(RxePackets())) {
    const testing::UdpDatagram& udp = capture.packet.udp;
    const IcrcFlow flow(udp.source, udp.destination, udp.source_port, udp.destination_port);
    std::array<uint8_t, kCmPacketBytes> packet;
    BuildCmPacket(flow, capture.view.psn, capture.view.payload.first<kMadBytes>(), packet);
    // rxe asks for an acknowledgement of MADs, which means nothing for a datagram; we do not.
    EXPECT_TRUE(capture.view.ack_req);
    packet[8] |= 0x80;
    EXPECT_TRUE(std::equal(packet.begin(), packet.end() - 4, udp.payload.begin()))
        << capture.packet.ToString();
    const uint32_t icrc = flow.Compute(std::span(packet).first<kCmPacketBytes - 4>());
    EXPECT_EQ(flow.is_ipv4() ? IcrcForGsoIndex(icrc, udp.ipv4_id, kCmPacketBytes) : icrc,
              capture.view.icrc);
  }
}

TEST(CmGolden, BuiltPacketHasAGoodIcrc) {
  const CmCapture capture = CmOf(RxePacketsOf("rping-1"))[0];
  const IcrcFlow flow(capture.packet.udp.source, capture.packet.udp.destination, 4791, 4791);
  std::array<uint8_t, kCmPacketBytes> packet;
  BuildCmPacket(flow, Psn(9), capture.view.payload.first<kMadBytes>(), packet);
  PacketView view;
  ASSERT_EQ(ParsePacket(packet, &view), DropReason::kNone);
  EXPECT_TRUE(IsCmPacket(view));
  EXPECT_EQ(view.psn, Psn(9));
  EXPECT_EQ(view.deth.src_qpn, kGsiQpn);
  EXPECT_EQ(view.icrc, flow.Compute(view.icrc_input));
}

TEST(CmGolden, ReqOfRping) {
  const auto req = First<CmReq>("rping-1");
  EXPECT_EQ(req.local_comm_id, CommId(0x732385ba));
  EXPECT_EQ(req.service_id, 0x0000000001061c06u);
  EXPECT_EQ(ParseIpServiceId(req.service_id), (IpService{PortSpace::kTcp, 7174}));
  EXPECT_EQ(req.local_ca_guid, 0x3432d3fffee26ce6u);
  EXPECT_EQ(req.local_qkey, Qkey(0));
  EXPECT_EQ(req.local_qpn, Qpn(0x11));
  EXPECT_EQ(req.responder_resources, 1);
  EXPECT_EQ(req.initiator_depth, 1);
  EXPECT_EQ(req.remote_cm_response_timeout, 20);
  EXPECT_EQ(req.transport, CmTransport::kRc);
  EXPECT_FALSE(req.end_to_end_flow_control);
  EXPECT_EQ(req.starting_psn, Psn(0x8d071b));
  EXPECT_EQ(req.local_cm_response_timeout, 20);
  EXPECT_EQ(req.retry_count, 7);
  EXPECT_EQ(req.pkey, kDefaultPKey);
  EXPECT_EQ(req.path_mtu, 5);
  EXPECT_FALSE(req.rdc_exists);
  EXPECT_EQ(req.rnr_retry_count, 7);
  EXPECT_EQ(req.max_cm_retries, 15);
  EXPECT_FALSE(req.srq);
  EXPECT_EQ(req.primary.local_lid, 0xffff);
  EXPECT_EQ(req.primary.remote_lid, 0xffff);
  EXPECT_EQ(IpAddress::FromGid(req.primary.local_gid), IpAddress::FromV4(10, 77, 0, 1));
  EXPECT_EQ(IpAddress::FromGid(req.primary.remote_gid), IpAddress::FromV4(10, 77, 0, 2));
  EXPECT_EQ(req.primary.flow_label, 0x2a2e7u);
  EXPECT_EQ(req.primary.packet_rate, 0);
  EXPECT_EQ(req.primary.hop_limit, 64);
  EXPECT_FALSE(req.primary.subnet_local);
  EXPECT_EQ(req.primary.local_ack_timeout, 19);
  EXPECT_EQ(req.alternate, CmPath{});
}

TEST(CmGolden, ReqCarriesPortAndAddresses) {
  EXPECT_EQ(IpHeaderOf(First<CmReq>("rping-1")),
            (IpCmHeader{.source_port = 0x98ff,
                        .source = IpAddress::FromV4(10, 77, 0, 1),
                        .destination = IpAddress::FromV4(10, 77, 0, 2)}));
  EXPECT_EQ(IpHeaderOf(First<CmReq>("rping-1-ipv6")),
            (IpCmHeader{.source_port = 0xbb5b,
                        .source = *IpAddress::Parse("fd77::1"),
                        .destination = *IpAddress::Parse("fd77::2")}));
}

TEST(CmGolden, IpCmHeadersAreBuiltAgain) {
  for (const char* file : {"rping-1", "rping-1-ipv6", "reject-no-listener"}) {
    const auto req = First<CmReq>(file);
    std::array<uint8_t, kIpCmHeaderBytes> bytes;
    bytes.fill(0xee);
    BuildIpCmHeader(IpHeaderOf(req), bytes);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), req.private_data.begin())) << file;
  }
}

// The PSN in a REQ or REP is the one that the receiver of the message will send first.
TEST(CmGolden, StartingPsnIsThatOfTheOtherSidesPackets) {
  const auto req = First<CmReq>("rping-1");
  const auto rep = First<CmRep>("rping-1");
  Psn first_of_a{};
  Psn first_of_b{};
  for (const RxePacket& packet : RxePacketsOf("rping-1")) {
    PacketView view;
    ASSERT_EQ(ParsePacket(packet.udp.payload, &view), DropReason::kNone);
    if (view.info().transport != Transport::kRc || !view.info().is_request()) continue;
    Psn& first = packet.udp.source == IpAddress::FromV4(10, 77, 0, 1) ? first_of_a : first_of_b;
    if (first == Psn{}) first = view.psn;
  }
  EXPECT_EQ(rep.starting_psn, first_of_a);
  EXPECT_EQ(req.starting_psn, first_of_b);
}

TEST(CmGolden, RepOfRping) {
  const auto rep = First<CmRep>("rping-1");
  EXPECT_EQ(rep.local_comm_id, CommId(0x702385ba));
  EXPECT_EQ(rep.remote_comm_id, CommId(0x732385ba));
  EXPECT_EQ(rep.local_qkey, Qkey(0));
  EXPECT_EQ(rep.local_qpn, Qpn(0x11));
  EXPECT_EQ(rep.starting_psn, Psn(0x870574));
  EXPECT_EQ(rep.responder_resources, 1);
  EXPECT_EQ(rep.initiator_depth, 1);
  EXPECT_EQ(rep.target_ack_delay, 15);
  EXPECT_EQ(rep.failover_accepted, 0);
  EXPECT_FALSE(rep.end_to_end_flow_control);
  EXPECT_EQ(rep.rnr_retry_count, 7);
  EXPECT_FALSE(rep.srq);
  EXPECT_EQ(rep.local_ca_guid, 0x18cb8efffe9f499fu);
}

TEST(CmGolden, OneTransactionFromReqToDrep) {
  const std::vector<CmCapture> captures = CmOf(RxePacketsOf("rping-1"));
  for (const CmCapture& capture : captures) {
    EXPECT_EQ(capture.header.transaction_id, 0x00000002ba852373u);
    EXPECT_EQ(capture.header.status, 0);
  }
  const auto rtu = First<CmRtu>("rping-1");
  EXPECT_EQ(rtu.local_comm_id, CommId(0x732385ba));
  EXPECT_EQ(rtu.remote_comm_id, CommId(0x702385ba));
  const auto dreq = First<CmDreq>("rping-1");
  EXPECT_EQ(dreq.local_comm_id, CommId(0x732385ba));
  EXPECT_EQ(dreq.remote_comm_id, CommId(0x702385ba));
  EXPECT_EQ(dreq.remote_qpn, Qpn(0x11));
  const auto drep = First<CmDrep>("rping-1");
  EXPECT_EQ(drep.local_comm_id, CommId(0x702385ba));
  EXPECT_EQ(drep.remote_comm_id, CommId(0x732385ba));
}

TEST(CmGolden, RejWhenNobodyListens) {
  const auto req = First<CmReq>("reject-no-listener");
  EXPECT_EQ(ParseIpServiceId(req.service_id), (IpService{PortSpace::kTcp, 9998}));
  const auto rej = First<CmRej>("reject-no-listener");
  EXPECT_EQ(rej.local_comm_id, CommId(0));
  EXPECT_EQ(rej.remote_comm_id, req.local_comm_id);
  EXPECT_EQ(rej.message, CmMessageKind::kReq);
  EXPECT_EQ(rej.reason, RejReason::kInvalidServiceId);
  EXPECT_EQ(rej.info_bytes, 0);
}

TEST(CmGolden, SidrOfUdaddy) {
  const auto req = First<CmSidrReq>("udaddy-1");
  EXPECT_EQ(req.request_id, CommId(0x7e2385ba));
  EXPECT_EQ(req.pkey, kDefaultPKey);
  EXPECT_EQ(ParseIpServiceId(req.service_id), (IpService{PortSpace::kUdp, 7174}));
  EXPECT_EQ(ParseIpCmHeader(std::span(req.private_data).first<kIpCmHeaderBytes>()),
            (IpCmHeader{.source_port = 0xb692,
                        .source = IpAddress::FromV4(10, 77, 0, 1),
                        .destination = IpAddress::FromV4(10, 77, 0, 2)}));
  const auto rep = First<CmSidrRep>("udaddy-1");
  EXPECT_EQ(rep.request_id, req.request_id);
  EXPECT_EQ(rep.status, SidrStatus::kSuccess);
  EXPECT_EQ(rep.qpn, Qpn(0x14));
  EXPECT_EQ(rep.service_id, req.service_id);
  EXPECT_EQ(rep.qkey, Qkey(0x01234567));
}

}  // namespace
}  // namespace rdmad::wire
