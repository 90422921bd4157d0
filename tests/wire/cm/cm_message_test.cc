#include "daemon/wire/cm/cm_message.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

using MadArray = std::array<uint8_t, kMadBytes>;

template <size_t kBytes>
std::array<uint8_t, kBytes> Counting(uint8_t first) {
  std::array<uint8_t, kBytes> bytes;
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

// Messages in which every field has a value of its own, the largest or nearly so that fits.
CmPath FullPath(uint8_t salt) {
  return {.local_lid = static_cast<uint16_t>(0xa100 + salt),
          .remote_lid = static_cast<uint16_t>(0xa200 + salt),
          .local_gid = Counting<16>(salt),
          .remote_gid = Counting<16>(static_cast<uint8_t>(salt + 16)),
          .flow_label = 0xabcde,
          .packet_rate = 0x3e,
          .traffic_class = 0xa3,
          .hop_limit = 0xa4,
          .service_level = 0x0d,
          .subnet_local = true,
          .local_ack_timeout = 0x1d};
}

CmReq FullReq() {
  CmReq req;
  req.local_comm_id = CommId(0x81020304);
  req.service_id = 0x1112131415161718;
  req.local_ca_guid = 0x2122232425262728;
  req.local_qkey = Qkey(0x31323334);
  req.local_qpn = Qpn(0x414243);
  req.responder_resources = 0x51;
  req.local_eecn = 0x616263;
  req.initiator_depth = 0x71;
  req.remote_eecn = 0x818283;
  req.remote_cm_response_timeout = 0x1e;
  req.transport = CmTransport::kExtended;
  req.end_to_end_flow_control = true;
  req.starting_psn = Psn(0x919293);
  req.local_cm_response_timeout = 0x15;
  req.retry_count = 5;
  req.pkey = PKey(0xa1a2);
  req.path_mtu = 0x0b;
  req.rdc_exists = true;
  req.rnr_retry_count = 6;
  req.max_cm_retries = 0x0c;
  req.srq = true;
  req.extended_transport = 3;
  req.primary = FullPath(0);
  req.alternate = FullPath(0x80);
  req.private_data = Counting<kReqPrivateBytes>(1);
  return req;
}

CmRep FullRep() {
  CmRep rep;
  rep.local_comm_id = CommId(0x81020304);
  rep.remote_comm_id = CommId(0x91020304);
  rep.local_qkey = Qkey(0x31323334);
  rep.local_qpn = Qpn(0x414243);
  rep.local_eecn = 0x616263;
  rep.starting_psn = Psn(0x919293);
  rep.responder_resources = 0x51;
  rep.initiator_depth = 0x71;
  rep.target_ack_delay = 0x1e;
  rep.failover_accepted = 2;
  rep.end_to_end_flow_control = true;
  rep.rnr_retry_count = 5;
  rep.srq = true;
  rep.local_ca_guid = 0x2122232425262728;
  rep.private_data = Counting<kRepPrivateBytes>(2);
  return rep;
}

std::vector<CmMessage> FullMessages() {
  const CommId local(0x81020304);
  const CommId remote(0x91020304);
  CmRej rej;
  rej.local_comm_id = local;
  rej.remote_comm_id = remote;
  rej.message = CmMessageKind::kOther;
  rej.info_bytes = kRejInfoBytes;
  rej.reason = RejReason::kConsumerDefined;
  rej.info = Counting<kRejInfoBytes>(3);
  rej.private_data = Counting<kRejPrivateBytes>(4);
  CmSidrRep sidr_rep;
  sidr_rep.request_id = local;
  sidr_rep.status = SidrStatus::kRedirect;
  sidr_rep.info_bytes = kSidrRepInfoBytes;
  sidr_rep.qpn = Qpn(0x414243);
  sidr_rep.service_id = 0x1112131415161718;
  sidr_rep.qkey = Qkey(0x31323334);
  sidr_rep.info = Counting<kSidrRepInfoBytes>(5);
  sidr_rep.private_data = Counting<kSidrRepPrivateBytes>(6);
  return {
      FullReq(),
      FullRep(),
      rej,
      sidr_rep,
      CmMra{local, remote, CmMessageKind::kRep, 0x1d, Counting<kMraPrivateBytes>(7)},
      CmRtu{local, remote, Counting<kRtuPrivateBytes>(8)},
      CmDreq{local, remote, Qpn(0x414243), Counting<kDreqPrivateBytes>(9)},
      CmDrep{local, remote, Counting<kDrepPrivateBytes>(10)},
      CmSidrReq{local, PKey(0xa1a2), 0x1112131415161718, Counting<kSidrReqPrivateBytes>(11)},
  };
}

MadArray Build(const CmMessage& message, uint64_t transaction_id = 1) {
  MadArray mad;
  mad.fill(0xee);
  BuildCmMad(transaction_id, message, mad);
  return mad;
}

MadDropReason Parse(std::span<const uint8_t> mad) {
  MadHeader header;
  CmMessage message;
  return ParseCmMessage(mad, &header, &message);
}

TEST(CmMessage, EveryFieldComesBack) {
  for (const CmMessage& message : FullMessages()) {
    MadHeader header;
    CmMessage parsed;
    ASSERT_EQ(ParseCmMessage(Build(message, 0xf1f2f3f4f5f6f7f8), &header, &parsed),
              MadDropReason::kNone);
    EXPECT_EQ(parsed, message) << CmAttributeName(AttributeOf(message));
    EXPECT_EQ(header.attribute, AttributeOf(message));
    EXPECT_EQ(header.transaction_id, 0xf1f2f3f4f5f6f7f8u);
  }
}

TEST(CmMessage, DefaultsComeBack) {
  for (const CmMessage& message : {CmMessage(CmReq{}), CmMessage(CmRep{}), CmMessage(CmRej{}),
                                   CmMessage(CmSidrReq{}), CmMessage(CmSidrRep{})}) {
    MadHeader header;
    CmMessage parsed;
    ASSERT_EQ(ParseCmMessage(Build(message), &header, &parsed), MadDropReason::kNone);
    EXPECT_EQ(parsed, message);
  }
}

TEST(CmMessage, ReqOnTheWire) {
  const MadArray mad = Build(FullReq());
  const uint8_t kHeader[24] = {1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x10};
  EXPECT_TRUE(std::equal(kHeader, kHeader + 24, mad.begin()));
  // Up to the end of the primary path's GIDs, by the spec's table of the REQ.
  const uint8_t kFields[56] = {
      0x81, 0x02, 0x03, 0x04, 0,    0,    0,    0,     // local comm id, reserved
      0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,  // service id
      0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,  // CA GUID
      0,    0,    0,    0,    0x31, 0x32, 0x33, 0x34,  // reserved, Q_Key
      0x41, 0x42, 0x43, 0x51, 0x61, 0x62, 0x63, 0x71,  // QPN, resources; EECN, depth
      0x81, 0x82, 0x83, 0xf7, 0x91, 0x92, 0x93, 0xad,  // EECN, 30|3|1; PSN, 21|5
      0xa1, 0xa2, 0xbe, 0xcb, 0xa1, 0x00, 0xa2, 0x00,  // P_Key, 11|1|6, 12|1|3; LIDs
  };
  EXPECT_TRUE(std::equal(kFields, kFields + 56, mad.begin() + 24));
  // The rest of the path: flow label 20, reserved 6, rate 6; class, hops; SL 4, local 1; timeout 5.
  const uint8_t kPathEnd[8] = {0xab, 0xcd, 0xe0, 0x3e, 0xa3, 0xa4, 0xd8, 0xe8};
  EXPECT_TRUE(std::equal(kPathEnd, kPathEnd + 8, mad.begin() + 24 + 88));
  EXPECT_EQ(mad[24 + 96], 0xa1);  // the alternate path
  EXPECT_EQ(mad[24 + 97], 0x80);
  EXPECT_EQ(mad[24 + 140], 1);  // private data
  EXPECT_EQ(mad[255], 92);
}

TEST(CmMessage, RepOnTheWire) {
  const MadArray mad = Build(FullRep());
  const uint8_t kFields[37] = {
      0x81, 0x02, 0x03, 0x04, 0x91, 0x02, 0x03, 0x04,  // comm ids
      0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0,     // Q_Key, QPN
      0x61, 0x62, 0x63, 0,    0x91, 0x92, 0x93, 0,     // EECN, PSN
      0x51, 0x71, 0xf5, 0xb0,                          // resources, depth, 30|2|1, 5|1
      0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,  // CA GUID
      2,                                               // private data
  };
  EXPECT_TRUE(std::equal(kFields, kFields + 37, mad.begin() + 24));
}

TEST(CmMessage, SmallMessagesOnTheWire) {
  const std::vector<CmMessage> messages = FullMessages();
  const auto at = [&messages](size_t index, size_t offset) {
    return Build(messages[index])[24 + offset];
  };
  // REJ: message 2, info length 72, reason, info, private data.
  EXPECT_EQ(at(2, 8), 0x80);
  EXPECT_EQ(at(2, 9), 144);
  EXPECT_EQ(at(2, 11), 28);
  EXPECT_EQ(at(2, 12), 3);
  EXPECT_EQ(at(2, 84), 4);
  // SIDR_REP: status, info length, QPN, service id, Q_Key, info, private data.
  EXPECT_EQ(at(3, 4), 4);
  EXPECT_EQ(at(3, 5), 72);
  EXPECT_EQ(at(3, 8), 0x41);
  EXPECT_EQ(at(3, 12), 0x11);
  EXPECT_EQ(at(3, 20), 0x31);
  EXPECT_EQ(at(3, 24), 5);
  EXPECT_EQ(at(3, 96), 6);
  // MRA: message 1, timeout 29.
  EXPECT_EQ(at(4, 8), 0x40);
  EXPECT_EQ(at(4, 9), 0xe8);
  EXPECT_EQ(at(4, 10), 7);
  // RTU, DREQ, DREP, SIDR_REQ.
  EXPECT_EQ(at(5, 8), 8);
  EXPECT_EQ(at(6, 8), 0x41);
  EXPECT_EQ(at(6, 12), 9);
  EXPECT_EQ(at(7, 8), 10);
  EXPECT_EQ(at(8, 4), 0xa1);
  EXPECT_EQ(at(8, 8), 0x11);
  EXPECT_EQ(at(8, 16), 11);
}

TEST(CmMessage, ValuesWiderThanTheirFieldTouchNoNeighbour) {
  CmReq req;
  req.retry_count = 0xff;
  req.rnr_retry_count = 0xff;
  req.local_cm_response_timeout = 0xff;
  req.max_cm_retries = 0xff;
  req.primary.flow_label = 0xffffffff;
  req.primary.packet_rate = 0xff;
  req.remote_eecn = 0xffffffff;
  MadHeader header;
  CmMessage parsed;
  ASSERT_EQ(ParseCmMessage(Build(req), &header, &parsed), MadDropReason::kNone);
  const CmReq& got = std::get<CmReq>(parsed);
  EXPECT_EQ(got.retry_count, 7);
  EXPECT_EQ(got.rnr_retry_count, 7);
  EXPECT_EQ(got.local_cm_response_timeout, 31);
  EXPECT_EQ(got.max_cm_retries, 15);
  EXPECT_EQ(got.primary.flow_label, 0xfffffu);
  EXPECT_EQ(got.primary.packet_rate, 0x3f);
  EXPECT_EQ(got.remote_eecn, 0xffffffu);
  EXPECT_EQ(got.path_mtu, 0);
  EXPECT_FALSE(got.rdc_exists);
  EXPECT_FALSE(got.srq);
  EXPECT_EQ(got.starting_psn, Psn(0));
  EXPECT_EQ(got.initiator_depth, 0);
}

TEST(CmMessage, OnlyFullMadsAreParsed) {
  const MadArray mad = Build(CmRtu{});
  for (size_t bytes = 0; bytes < kMadBytes; ++bytes) {
    const std::vector<uint8_t> cut(mad.begin(), mad.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_EQ(Parse(cut), MadDropReason::kBadSize);
  }
  std::vector<uint8_t> longer(mad.begin(), mad.end());
  longer.push_back(0);
  EXPECT_EQ(Parse(longer), MadDropReason::kBadSize);
}

TEST(CmMessage, HeadersThatAreNotTheCms) {
  const struct {
    size_t offset;
    uint8_t value;
    MadDropReason reason;
  } kCases[] = {
      {0, 2, MadDropReason::kBadBase},          {1, 0x03, MadDropReason::kNotCm},
      {2, 1, MadDropReason::kBadVersion},       {3, 0x81, MadDropReason::kBadMethod},
      {3, 0x01, MadDropReason::kBadMethod},     {16, 1, MadDropReason::kBadAttribute},
      {17, 0x01, MadDropReason::kBadAttribute}, {17, 0x19, MadDropReason::kBadAttribute},
      {17, 0x1a, MadDropReason::kBadAttribute}, {17, 0xff, MadDropReason::kBadAttribute},
  };
  for (const auto& c : kCases) {
    MadArray mad = Build(CmRtu{});
    mad[c.offset] = c.value;
    EXPECT_EQ(Parse(mad), c.reason) << c.offset << ": " << MadDropReasonName(Parse(mad));
  }
}

TEST(CmMessage, HeaderIsKnownEvenIfTheVersionIsNot) {
  MadArray mad = Build(CmRtu{}, 0x77);
  mad[2] = 3;
  MadHeader header;
  CmMessage message;
  ASSERT_EQ(ParseCmMessage(mad, &header, &message), MadDropReason::kBadVersion);
  EXPECT_EQ(header.class_version, 3);
  EXPECT_EQ(header.transaction_id, 0x77u);
}

TEST(CmMessage, InfoLengthBeyondItsFieldIsRefused) {
  CmRej rej;
  rej.info_bytes = kRejInfoBytes;
  EXPECT_EQ(Parse(Build(rej)), MadDropReason::kNone);
  rej.info_bytes = kRejInfoBytes + 1;
  EXPECT_EQ(Parse(Build(rej)), MadDropReason::kBadField);
  CmSidrRep rep;
  rep.info_bytes = kSidrRepInfoBytes;
  EXPECT_EQ(Parse(Build(rep)), MadDropReason::kNone);
  rep.info_bytes = 255;
  EXPECT_EQ(Parse(Build(rep)), MadDropReason::kBadField);
}

TEST(CmMessage, RandomMadsAreHarmlessAndStable) {
  std::mt19937 random(11);
  for (int round = 0; round < 20'000; ++round) {
    MadArray mad = Build(CmRtu{}, random());
    mad[17] = static_cast<uint8_t>(0x10 + random() % 9);
    for (size_t i = kMadHeaderBytes; i < kMadBytes; ++i) mad[i] = static_cast<uint8_t>(random());
    MadHeader header;
    CmMessage message;
    if (ParseCmMessage(mad, &header, &message) != MadDropReason::kNone) continue;
    const MadArray built = Build(message, header.transaction_id);
    CmMessage again;
    ASSERT_EQ(ParseCmMessage(built, &header, &again), MadDropReason::kNone);
    ASSERT_EQ(again, message);
  }
}

TEST(CmNames, EveryValueHasOne) {
  EXPECT_STREQ(CmAttributeName(CmAttribute::kSidrRep), "SIDR_REP");
  EXPECT_STREQ(CmAttributeName(static_cast<CmAttribute>(0x99)), "UNKNOWN");
  EXPECT_STREQ(RejReasonName(RejReason::kInvalidServiceId), "invalid_service_id");
  EXPECT_STREQ(RejReasonName(RejReason::kConsumerDefined), "consumer_defined");
  EXPECT_STREQ(RejReasonName(RejReason::kInvalidAltFlowLabel), "invalid_alt_flow_label");
  EXPECT_STREQ(RejReasonName(static_cast<RejReason>(0)), "unknown");
  EXPECT_STREQ(RejReasonName(static_cast<RejReason>(34)), "unknown");
  EXPECT_STREQ(SidrStatusName(SidrStatus::kUnsupportedVersion), "unsupported_version");
  EXPECT_STREQ(SidrStatusName(static_cast<SidrStatus>(6)), "unknown");
}

}  // namespace
}  // namespace rdmad::wire
