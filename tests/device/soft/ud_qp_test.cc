// Datagram QPs: what arrives, what does not, and what a sender hears, on the wire and within one
// daemon.
#include "daemon/device/soft/ud_qp.h"

#include <gtest/gtest.h>

#include <cstring>

#include "proto/shm/completion_queue.h"
#include "tests/device/soft/ud_bed.h"

namespace rdmad::soft {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpResult;
using device::QpState;
using device::WcStatus;
using device::WrOpcode;

constexpr uint32_t kGrh = wire::kGrhBytes;

class UdTest : public ::testing::TestWithParam<Path> {
 protected:
  static UdBed::Options Options() { return {.path = GetParam()}; }
};
RDMAD_ON_BOTH_PATHS(UdTest);

TEST_P(UdTest, AMessageArrivesBehindAnIpv4HeaderAtOffset20) {
  UdBed bed(Options());
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  ASSERT_EQ(bed.Recv(9, 1000, 500), PostResult::kOk);
  ASSERT_EQ(bed.Send(5, 301), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_EQ(bed.a.sends.all[0].wr_id, 5u);
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
  EXPECT_EQ(bed.a.sends.all[0].wqe_count, 1u);
  const device::Wc& wc = bed.b.receives.all[0];
  EXPECT_EQ(wc.wr_id, 9u);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.opcode, device::WcOpcode::kRecv);
  EXPECT_EQ(wc.flags, shm::kCqeGrh | shm::kCqeRecvQueue);
  EXPECT_EQ(wc.byte_len, kGrh + 301);
  EXPECT_EQ(wc.src_qpn, bed.a.qp->qpn());
  EXPECT_EQ(wc.qpn, bed.b.qp->qpn());
  EXPECT_EQ(wc.qp_cookie, bed.b.qp->qpn() * 100);
  EXPECT_EQ(std::memcmp(&bed.b.memory[1000 + kGrh], bed.a.memory.data(), 301), 0);
  const auto* ip = reinterpret_cast<const uint8_t*>(&bed.b.memory[1000 + wire::kGrhIpv4Offset]);
  EXPECT_EQ(ip[0], 0x45);
  EXPECT_EQ(ip[1], 0x20);  // traffic class
  EXPECT_EQ(ip[8], 7);     // TTL
  EXPECT_EQ(ip[9], 17);    // UDP
  const uint8_t addresses[] = {10, 0, 0, 1, 10, 0, 0, 2};
  EXPECT_EQ(std::memcmp(ip + 12, addresses, 8), 0);
  EXPECT_EQ(bed.network.sent().size(), GetParam() == Path::kWire ? 1u : 0u);
}

TEST_P(UdTest, OverIpv6TheHeaderIsTheGrh) {
  UdBed::Options options = Options();
  options.ipv6 = true;
  UdBed bed(options);
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  ASSERT_EQ(bed.Recv(9, 0, 500), PostResult::kOk);
  ASSERT_EQ(bed.Send(5, 4), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  wire::Grh grh;
  std::memcpy(&grh, bed.b.memory.data(), sizeof(grh));
  EXPECT_EQ(grh.version_class_flow_be[0] >> 4, 6);
  EXPECT_EQ(grh.next_header, 17);
  EXPECT_EQ(grh.hop_limit, 7);
  EXPECT_EQ(std::memcmp(grh.source_gid, bed.a.address.gid().data(), 16), 0);
  EXPECT_EQ(std::memcmp(grh.destination_gid, bed.b.address.gid().data(), 16), 0);
}

TEST_P(UdTest, ImmediateAndSolicitedArriveAndNumbersCountUp) {
  UdBed bed(Options());
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  const device::Sge sge = bed.a.Sge(0, 0);
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(bed.Recv(i, i * 100, kGrh), PostResult::kOk);
    device::SendWr wr = bed.Wr(i, i == 0 ? nullptr : &sge);
    wr.opcode = WrOpcode::kSendWithImm;
    wr.flags |= shm::kWorkSolicited;
    wr.imm_be = 0xa1b2c3d4;
    ASSERT_EQ(bed.a.qp->PostSend(wr, bed.network.now()), PostResult::kOk);
  }
  ASSERT_TRUE(bed.Await(bed.b.receives, 3));
  for (const device::Wc& wc : bed.b.receives.all) {
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_EQ(wc.flags, shm::kCqeGrh | shm::kCqeRecvQueue | shm::kCqeWithImm);
    EXPECT_EQ(wc.imm_be, 0xa1b2c3d4);
    EXPECT_TRUE(wc.solicited);
    EXPECT_EQ(wc.byte_len, kGrh);
  }
  EXPECT_EQ(bed.a.qp->Query().sq_psn, 1u);  // 0xfffffe and three on
  if (GetParam() == Path::kWire) {
    EXPECT_EQ(bed.network.sent()[2].fields.psn, wire::Psn(0));
  }
}

TEST_P(UdTest, TheQkeyDecidesAndTheHighBitStandsForTheSendersOwn) {
  UdBed bed(Options());
  bed.ToRts(bed.a, 0x1234);
  bed.ToRts(bed.b, 0x1234);
  ASSERT_EQ(bed.Recv(1, 0, 500), PostResult::kOk);
  device::SendWr wr = bed.Wr(1, nullptr);
  wr.remote_qkey = 0x1235;
  ASSERT_EQ(bed.a.qp->PostSend(wr, bed.network.now()), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  bed.network.RunUntilQuiet();
  EXPECT_TRUE(bed.b.receives.all.empty());
  EXPECT_EQ(bed.Counter(bed.b, "drop_bad_qkey"), 1u);
  wr.remote_qkey = 0x80010000;
  ASSERT_EQ(bed.a.qp->PostSend(wr, bed.network.now()), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
}

TEST_P(UdTest, WithoutAReceiveAMessageIsDroppedAndTheSenderKnowsNothing) {
  UdBed bed(Options());
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  ASSERT_EQ(bed.Send(5, 10), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  bed.network.RunUntilQuiet();
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
  EXPECT_EQ(bed.Counter(bed.b, "drop_no_receive"), 1u);
}

TEST_P(UdTest, AReceiveThatIsTooShortStaysForOneThatFits) {
  UdBed bed(Options());
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  ASSERT_EQ(bed.Recv(1, 0, kGrh + 99), PostResult::kOk);
  ASSERT_EQ(bed.Send(5, 100), PostResult::kOk);
  ASSERT_EQ(bed.Send(6, 99), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_EQ(bed.b.receives.all[0].byte_len, kGrh + 99);
  EXPECT_EQ(bed.Counter(bed.b, "drop_receive_too_short"), 1u);
  EXPECT_EQ(bed.b.qp->Query().state, QpState::kRts);
}

TEST_P(UdTest, AnSrqsReceiveThatIsTooShortFailsAndEndsTheQp) {
  UdBed::Options options = Options();
  options.srq = true;
  UdBed bed(options);
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  ASSERT_EQ(bed.Recv(1, 0, kGrh + 100), PostResult::kOk);
  ASSERT_EQ(bed.Recv(2, 0, kGrh + 99), PostResult::kOk);
  ASSERT_EQ(bed.Recv(3, 0, kGrh + 99), PostResult::kOk);
  ASSERT_EQ(bed.Send(5, 100), PostResult::kOk);
  ASSERT_EQ(bed.Send(6, 100), PostResult::kOk);
  ASSERT_EQ(bed.Send(7, 99), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 3));
  bed.network.RunUntilQuiet();
  ASSERT_EQ(bed.b.receives.all.size(), 2u);
  EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kSuccess);
  EXPECT_EQ(bed.b.receives.all[0].qpn, bed.b.qp->qpn());
  EXPECT_EQ(bed.b.receives.all[1].status, WcStatus::kLocLenErr);
  EXPECT_EQ(bed.b.receives.all[1].wr_id, 2u);
  EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
  EXPECT_EQ(bed.b.events->Count(AsyncEventType::kQpLastWqeReached), 1u);
}

TEST_P(UdTest, AReceiveWithABadKeyFailsAndEndsTheQp) {
  UdBed bed(Options());
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  const device::Sge sge{Endpoint::kIova, 500, bed.b.mr->lkey() + 1};
  ASSERT_EQ(bed.b.qp->PostRecv({.wr_id = 1, .sges = {&sge, 1}}, 0), PostResult::kOk);
  ASSERT_EQ(bed.Send(5, 10), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kLocProtErr);
  EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
}

struct BadSend {
  const char* name;
  WcStatus status;
  void (*spoil)(UdBed& bed, device::SendWr& wr, device::Sge& sge, const device::Ah* foreign);
};
const BadSend kBadSends[] = {
    {"length", WcStatus::kLocLenErr,
     [](UdBed&, device::SendWr&, device::Sge& sge, const device::Ah*) { sge.length_bytes = 1025; }},
    {"no handle", WcStatus::kLocQpOpErr,
     [](UdBed&, device::SendWr& wr, device::Sge&, const device::Ah*) { wr.ah = nullptr; }},
    {"another PD's handle", WcStatus::kLocQpOpErr,
     [](UdBed&, device::SendWr& wr, device::Sge&, const device::Ah* foreign) { wr.ah = foreign; }},
    {"the engine's verdict", WcStatus::kLocQpOpErr,
     [](UdBed&, device::SendWr& wr, device::Sge&, const device::Ah*) {
       wr.verdict = WcStatus::kLocQpOpErr;
     }},
    {"key", WcStatus::kLocProtErr,
     [](UdBed&, device::SendWr&, device::Sge& sge, const device::Ah*) { ++sge.lkey; }},
};

TEST_P(UdTest, ASendThatFailsHereStopsTheSendQueueAloneUntilItIsSetGoingAgain) {
  for (const BadSend& bad : kBadSends) {
    SCOPED_TRACE(bad.name);
    UdBed bed(Options());
    bed.ToRts(bed.a);
    bed.ToRts(bed.b);
    ASSERT_EQ(bed.Recv(1, 0, 2000), PostResult::kOk);
    ASSERT_EQ(bed.Recv(2, 0, 2000), PostResult::kOk);
    ASSERT_EQ(bed.Send(1, 1024), PostResult::kOk);
    const auto foreign = bed.MakeAh(bed.b, bed.b.address);
    device::Sge sge = bed.a.Sge(0, 10);
    device::SendWr wr = bed.Wr(2, &sge);
    bad.spoil(bed, wr, sge, foreign.get());
    ASSERT_EQ(bed.a.qp->PostSend(wr, bed.network.now()), PostResult::kOk);
    ASSERT_EQ(bed.Send(3, 10), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, 3));
    EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
    EXPECT_EQ(bed.a.sends.all[1].status, bad.status);
    EXPECT_EQ(bed.a.sends.all[2].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(bed.a.qp->Query().state, QpState::kSqe);
    ASSERT_EQ(bed.Send(4, 10), PostResult::kOk);
    ASSERT_EQ(bed.a.sends.all.size(), 4u);
    EXPECT_EQ(bed.a.sends.all[3].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(bed.a.sends.all[3].wqe_count, 4u);
    bed.Move(bed.a, QpState::kRts);
    ASSERT_EQ(bed.Send(5, 10), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.b.receives, 2));
    EXPECT_EQ(bed.a.sends.all[4].status, WcStatus::kSuccess);
  }
}

TEST_P(UdTest, OperationsOfConnectedQpsAreRefused) {
  UdBed bed(Options());
  bed.ToRts(bed.a);
  for (const WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead, WrOpcode::kCompareSwap,
                                WrOpcode::kSendWithInv, WrOpcode::kBindMw}) {
    device::SendWr wr = bed.Wr(1, nullptr);
    wr.opcode = opcode;
    EXPECT_EQ(bed.a.qp->PostSend(wr, 0), PostResult::kBadOpcode);
  }
}

TEST_P(UdTest, TheHandleIsTakenOverWithThePost) {
  UdBed bed(Options());
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  ASSERT_EQ(bed.Recv(1, 0, 500), PostResult::kOk);
  ASSERT_EQ(bed.Send(1, 10), PostResult::kOk);
  bed.ah.reset();
  EXPECT_TRUE(bed.Await(bed.b.receives, 1));
}

TEST_P(UdTest, InlineDataComesFromTheRing) {
  UdBed bed(Options());
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  ASSERT_EQ(bed.Recv(1, 0, 500), PostResult::kOk);
  const char text[] = "inline data in two pieces";
  device::SendWr wr = bed.Wr(1, nullptr);
  wr.flags |= shm::kWorkInline;
  const auto bytes = std::as_bytes(std::span(text));
  wr.inline_data.pieces = {bytes.first(10), bytes.subspan(10)};
  wr.inline_bytes = sizeof(text);
  ASSERT_EQ(bed.a.qp->PostSend(wr, 0), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_STREQ(reinterpret_cast<const char*>(&bed.b.memory[kGrh]), text);
}

TEST_P(UdTest, AQpSendsToItself) {
  UdBed bed(Options());
  bed.ToRts(bed.b);
  const auto ah = bed.MakeAh(bed.b, bed.b.address);
  ASSERT_EQ(bed.Recv(1, 0, 500), PostResult::kOk);
  device::SendWr wr = bed.Wr(1, nullptr);
  wr.ah = ah.get();
  ASSERT_EQ(bed.b.qp->PostSend(wr, bed.network.now()), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_EQ(bed.b.receives.all[0].src_qpn, bed.b.qp->qpn());
  EXPECT_EQ(bed.b.sends.all.size(), 1u);
}

TEST_P(UdTest, DrainingKeepsWhatIsPostedAndSaysSo) {
  UdBed bed(Options());
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  ASSERT_EQ(bed.Recv(1, 0, 500), PostResult::kOk);
  bed.Move(bed.a, QpState::kSqd);
  bed.network.RunUntilQuiet();
  EXPECT_EQ(bed.a.events->Count(AsyncEventType::kSqDrained), 0u) << "nobody has asked";
  bed.Move(bed.a, QpState::kRts);
  device::QpAttr attr;
  attr.mask = device::kQpAttrState | device::kQpAttrEnSqdAsyncNotify;
  attr.state = QpState::kSqd;
  attr.en_sqd_async_notify = true;
  ASSERT_EQ(bed.a.qp->Modify(attr, bed.network.now()), device::QpResult::kOk);
  ASSERT_EQ(bed.Send(1, 10), PostResult::kOk);
  bed.network.RunUntilQuiet();
  EXPECT_TRUE(bed.a.sends.all.empty());
  EXPECT_EQ(bed.a.events->Count(AsyncEventType::kSqDrained), 1u);
  bed.Move(bed.a, QpState::kRts);
  EXPECT_TRUE(bed.Await(bed.b.receives, 1));
}

TEST_P(UdTest, ErrorFlushesBothQueuesAndResetForgets) {
  UdBed bed(Options());
  bed.ToRts(bed.b);
  ASSERT_EQ(bed.Recv(1, 0, 500), PostResult::kOk);
  bed.Move(bed.b, QpState::kErr);
  ASSERT_EQ(bed.Recv(2, 0, 500), PostResult::kOk);
  ASSERT_EQ(bed.b.receives.all.size(), 2u);
  EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kWrFlushErr);
  bed.Move(bed.b, QpState::kReset);
  EXPECT_EQ(bed.b.qp->Query().qkey, 0u);
  EXPECT_EQ(bed.Recv(3, 0, 500), PostResult::kWrongState);
  bed.ToRts(bed.b);
  EXPECT_EQ(bed.Recv(3, 0, 500), PostResult::kOk);
}

TEST_P(UdTest, NothingIsReceivedBeforeRtr) {
  UdBed bed(Options());
  bed.ToRts(bed.a);
  bed.ToInit(bed.b);
  ASSERT_EQ(bed.Recv(1, 0, 500), PostResult::kOk);
  ASSERT_EQ(bed.Send(1, 10), PostResult::kOk);
  bed.network.RunUntilQuiet();
  EXPECT_EQ(bed.Counter(bed.b, "drop_bad_state"), 1u);
}

TEST_P(UdTest, AQkeyOfTheManagementIsNotForApplications) {
  UdBed bed(Options());
  device::QpAttr attr;
  attr.mask =
      device::kQpAttrState | device::kQpAttrPkeyIndex | device::kQpAttrPort | device::kQpAttrQkey;
  attr.state = QpState::kInit;
  attr.qkey = wire::kGsiQkey.value();
  EXPECT_EQ(bed.a.qp->Modify(attr, 0), QpResult::kBadValue);
  EXPECT_EQ(bed.a.qp->Query().state, QpState::kReset);
}

TEST(UdWire, SendsToOnePeerGoAsOneBatchAndABlockedOneGoesOn) {
  UdBed bed({});
  bed.ToRts(bed.a);
  bed.ToRts(bed.b);
  bed.network.take_at_most = 3;
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_EQ(bed.Recv(i, i * 200, 200), PostResult::kOk);
    ASSERT_EQ(bed.Send(i, 100), PostResult::kOk);
  }
  ASSERT_TRUE(bed.Await(bed.b.receives, 8));
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(bed.a.sends.all[i].wr_id, i);
    EXPECT_EQ(bed.b.receives.all[i].wr_id, i);
  }
  EXPECT_EQ(bed.Counter(bed.a, "tx_packets"), 8u);
  EXPECT_EQ(bed.Counter(bed.a, "tx_blocked"), 2u);
}

TEST(UdWire, PacketsOfConnectedTransportsAreNotForIt) {
  UdBed bed({});
  bed.ToRts(bed.b);
  ASSERT_EQ(bed.Recv(1, 0, 500), PostResult::kOk);
  wire::PacketFields fields;
  fields.opcode = wire::Opcode::kRcSendOnly;
  fields.dest_qpn = wire::Qpn(bed.b.qp->qpn());
  bed.network.Inject({bed.a.address, bed.b.address}, fields);
  bed.network.RunUntilQuiet();
  EXPECT_EQ(bed.Counter(bed.b, "drop_wrong_transport"), 1u);
}

TEST(SoftAh, ChecksItsVector) {
  SoftPd pd;
  const SourceLookup source = [](uint32_t index, SourceAddress* out) {
    *out = {IpAddress::FromV4(10, 0, 0, 1), device::Mtu::k1024};
    return index == 3;
  };
  const auto create = [&](const char* dest, uint32_t index) {
    return SoftAh::Create(
        pd, {.dest = *IpAddress::Parse(dest), .sgid_index = index, .hop_limit = 0}, source);
  };
  EXPECT_TRUE(absl::IsInvalidArgument(create("10.0.0.2", 2).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(create("::1", 3).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(create("0.0.0.0", 3).status()));
  // A LID is InfiniBand's: alone it is no address, beside one of no account.
  device::AddressVector infiniband{.dest = *IpAddress::Parse("10.0.0.2"), .sgid_index = 3, .dlid = 7};
  EXPECT_TRUE(SoftAh::Create(pd, infiniband, source).ok());
  infiniband.is_global = false;
  EXPECT_TRUE(absl::IsInvalidArgument(SoftAh::Create(pd, infiniband, source).status()));
  const auto good = create("239.1.2.3", 3);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ((*good)->flow().hop_limit, 64);
  EXPECT_EQ((*good)->mtu_bytes(), 1024u);
}

}  // namespace
}  // namespace rdmad::soft
