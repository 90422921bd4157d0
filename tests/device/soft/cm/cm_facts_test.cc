#include "daemon/device/soft/cm/cm_facts.h"

#include "gtest/gtest.h"

namespace rdmad::soft {
namespace {

using device::QpState;

CmFacts Facts() {
  CmFacts facts;
  facts.flow.local = IpAddress::FromV4(10, 0, 0, 1);
  facts.flow.remote = IpAddress::FromV4(10, 0, 0, 2);
  facts.flow.traffic_class = 0x20;
  facts.sgid_index = 3;
  facts.path_mtu = device::Mtu::k2048;
  facts.remote_qpn = wire::Qpn(0x22);
  facts.local_psn = wire::Psn(0x111111);
  facts.remote_psn = wire::Psn(0x222222);
  facts.responder_resources = 5;
  facts.initiator_depth = 6;
  facts.retry_count = 7;
  facts.rnr_retry_count = 4;
  facts.ack_timeout = 16;
  return facts;
}

// Masks of ibv_qp_attr_mask as rdma_init_qp_attr gives them for RC.
TEST(CmFacts, InitAttributes) {
  const device::QpAttr attr = MakeQpAttr(Facts(), QpState::kInit, 0).value();
  EXPECT_EQ(attr.mask, 0x39u) << "state, access flags, P_Key index, port";
  EXPECT_EQ(attr.state, QpState::kInit);
  EXPECT_EQ(attr.pkey_index, 0);
  EXPECT_EQ(attr.port, 1);
  EXPECT_EQ(attr.access_flags, 0xeu) << "remote write, read and atomic";
}

TEST(CmFacts, NoResponderResourcesNoReadsFromThePeer) {
  CmFacts facts = Facts();
  facts.responder_resources = 0;
  EXPECT_EQ(MakeQpAttr(facts, QpState::kInit, 0)->access_flags, 0x2u);
}

TEST(CmFacts, RtrAttributes) {
  const device::QpAttr attr = MakeQpAttr(Facts(), QpState::kRtr, 9).value();
  EXPECT_EQ(attr.mask, 0x129181u)
      << "state, av, path MTU, RQ PSN, min RNR timer, max dest rd atomic, dest QPN";
  EXPECT_EQ(attr.av.dest, IpAddress::FromV4(10, 0, 0, 2));
  EXPECT_EQ(attr.av.sgid_index, 3u);
  EXPECT_EQ(attr.av.traffic_class, 0x20);
  EXPECT_EQ(attr.path_mtu, device::Mtu::k2048);
  EXPECT_EQ(attr.dest_qpn, 0x22u);
  EXPECT_EQ(attr.rq_psn, 0x111111u);
  EXPECT_EQ(attr.max_dest_rd_atomic, 5);
  EXPECT_EQ(attr.min_rnr_timer, 9);
}

TEST(CmFacts, RtsAttributes) {
  const device::QpAttr attr = MakeQpAttr(Facts(), QpState::kRts, 0).value();
  EXPECT_EQ(attr.mask, 0x12e01u) << "state, timeout, retry count, RNR retry, max rd atomic, SQ PSN";
  EXPECT_EQ(attr.sq_psn, 0x222222u);
  EXPECT_EQ(attr.timeout, 16);
  EXPECT_EQ(attr.retry_count, 7);
  EXPECT_EQ(attr.rnr_retry, 4);
  EXPECT_EQ(attr.max_rd_atomic, 6);
}

TEST(CmFacts, OtherStatesHaveNoAttributes) {
  for (const QpState state : {QpState::kReset, QpState::kSqd, QpState::kSqe, QpState::kErr}) {
    EXPECT_EQ(MakeQpAttr(Facts(), state, 0).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(CmFacts, AckTimeoutIsTheSumRoundedUp) {
  const struct {
    uint8_t path, delay, sum;
  } kCases[] = {
      {19, 15, 19},  // rdma_cm's defaults
      {16, 12, 16}, {16, 15, 17}, {15, 16, 17}, {16, 16, 17}, {14, 15, 16}, {0, 0, 1}, {31, 31, 31},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(AckTimeoutCode(c.path, c.delay), c.sum) << int{c.path} << " " << int{c.delay};
  }
}

TEST(CmFacts, AskedForAckTimeoutIsKeptSane) {
  EXPECT_EQ(BoundedAckTimeout(0, 16), 16) << "0 would be for ever";
  EXPECT_EQ(BoundedAckTimeout(1, 16), 1);
  EXPECT_EQ(BoundedAckTimeout(19, 16), 19);
  EXPECT_EQ(BoundedAckTimeout(31, 16), 22);
}

}  // namespace
}  // namespace rdmad::soft
