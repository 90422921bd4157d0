#include "daemon/device/verbs/qp_attr.h"

#include <gtest/gtest.h>

namespace rdmad::verbs {
namespace {

TEST(QpAttr, GoesThereAndBackUnchanged) {
  device::QpAttr attr;
  attr.mask = device::kQpAttrState | device::kQpAttrAv | device::kQpAttrPathMtu |
              device::kQpAttrDestQpn | device::kQpAttrMinRnrTimer;
  attr.state = device::QpState::kRtr;
  attr.path_mtu = device::Mtu::k4096;
  attr.dest_qpn = 0x123456;
  attr.rq_psn = 0xabcdef;
  attr.min_rnr_timer = 12;
  attr.max_dest_rd_atomic = 16;
  attr.av.dest = IpAddress::FromV4(10, 0, 0, 1);
  attr.av.sgid_index = 3;
  attr.av.traffic_class = 0x20;
  attr.av.hop_limit = 63;
  attr.av.flow_label = 0x12345;

  ibv_qp_attr hw;
  int mask = 0;
  ToIbv(attr, 1, &hw, &mask);
  const device::QpAttr back = FromIbv(hw, static_cast<uint32_t>(mask));

  EXPECT_EQ(back.mask, attr.mask);
  EXPECT_EQ(back.state, attr.state);
  EXPECT_EQ(back.path_mtu, attr.path_mtu);
  EXPECT_EQ(back.dest_qpn, attr.dest_qpn);
  EXPECT_EQ(back.rq_psn, attr.rq_psn);
  EXPECT_EQ(back.min_rnr_timer, attr.min_rnr_timer);
  EXPECT_EQ(back.max_dest_rd_atomic, attr.max_dest_rd_atomic);
  EXPECT_EQ(back.av.dest, attr.av.dest);
  EXPECT_EQ(back.av.sgid_index, attr.av.sgid_index);
  EXPECT_EQ(back.av.traffic_class, attr.av.traffic_class);
  EXPECT_EQ(back.av.hop_limit, attr.av.hop_limit);
  EXPECT_EQ(back.av.flow_label, attr.av.flow_label);
  EXPECT_EQ(hw.ah_attr.is_global, 1);
  EXPECT_EQ(hw.ah_attr.port_num, 1);
}

TEST(QpAttr, AnAddressOfInfinibandGoesThereAndBackUnchanged) {
  for (const bool is_global : {false, true}) {
    device::AddressVector av;
    av.is_global = is_global;
    av.dlid = 0xabcd;
    av.service_level = 5;
    av.src_path_bits = 3;
    const ibv_ah_attr hw = ToIbv(av, 1);
    EXPECT_EQ(hw.dlid, 0xabcd);
    EXPECT_EQ(hw.sl, 5);
    EXPECT_EQ(hw.src_path_bits, 3);
    EXPECT_EQ(hw.is_global, is_global ? 1 : 0);
    const device::AddressVector back = FromIbv(hw);
    EXPECT_EQ(back.dlid, av.dlid);
    EXPECT_EQ(back.service_level, av.service_level);
    EXPECT_EQ(back.src_path_bits, av.src_path_bits);
    EXPECT_EQ(back.is_global, is_global);
  }
}

TEST(QpAttr, OurOnePortIsTheHardwaresOwnNumber) {
  device::QpAttr attr;
  attr.mask = device::kQpAttrPort | device::kQpAttrAv;
  ibv_qp_attr hw;
  int mask = 0;
  ToIbv(attr, 2, &hw, &mask);
  EXPECT_EQ(hw.port_num, 2);
  EXPECT_EQ(hw.ah_attr.port_num, 2);
  EXPECT_EQ(FromIbv(hw, static_cast<uint32_t>(mask)).port, 1);
}

TEST(QpAttr, BitsThatWeDoNotKnowAreLeftOut) {
  ibv_qp_attr hw{};
  EXPECT_EQ(FromIbv(hw, IBV_QP_STATE | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE).mask,
            uint32_t{device::kQpAttrState});
}

TEST(QpAttr, AGidIndexThatNoPortHasStaysOne) {
  device::QpAttr attr;
  attr.av.sgid_index = 256;  // would be 0 in eight bits
  ibv_qp_attr hw;
  int mask = 0;
  ToIbv(attr, 1, &hw, &mask);
  EXPECT_EQ(hw.ah_attr.grh.sgid_index, 255);
}

}  // namespace
}  // namespace rdmad::verbs
