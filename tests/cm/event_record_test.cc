#include "daemon/cm/event_record.h"

#include <cstring>

#include "gtest/gtest.h"

namespace rdmad::cm {
namespace {

TEST(EventRecord, AddressesSurviveTheRoundTrip) {
  for (const char* text :
       {"10.77.0.1:7174", "0.0.0.0:1", "[fd77::1]:4791", "[fe80::1%3]:1", "[::]:7"}) {
    const SocketAddress address = SocketAddress::Parse(text).value();
    const shm::SocketAddress wire = ToShm(address);
    EXPECT_EQ(wire.family, address.ip.is_v4() ? 4 : 6) << text;
    EXPECT_EQ(FromShm(wire), address) << text;
  }
}

TEST(EventRecord, V4LiesInTheFirstFourBytes) {
  const shm::SocketAddress wire = ToShm(SocketAddress::Parse("10.77.0.1:7174").value());
  EXPECT_EQ(wire.addr[0], 10);
  EXPECT_EQ(wire.addr[3], 1);
  EXPECT_EQ(wire.addr[4], 0);
  EXPECT_EQ(wire.port, 7174);
}

TEST(EventRecord, UnsetAddressHasNoFamily) {
  EXPECT_EQ(ToShm(SocketAddress()).family, 0);
  EXPECT_EQ(FromShm(shm::SocketAddress{}), SocketAddress());
}

TEST(EventRecord, CarriesEveryField) {
  device::CmEvent event;
  event.type = device::CmEventType::kRejected;
  event.status = 28;
  event.path_mtu = device::Mtu::k2048;
  event.param.private_data.assign(196, 7);
  event.param.responder_resources = 1;
  event.param.initiator_depth = 2;
  event.param.flow_control = 1;
  event.param.retry_count = 4;
  event.param.rnr_retry_count = 5;
  event.param.srq = true;
  event.param.qpn = 0x123456;
  event.param.qkey = 0x89abcdef;
  event.param.qp_type = device::QpType::kUc;
  const shm::CmEvent record = ToRecord(event);
  EXPECT_EQ(record.type, 8u);
  EXPECT_EQ(record.status, 28);
  EXPECT_EQ(record.path_mtu, 4);
  EXPECT_EQ(record.private_data_bytes, 196);
  EXPECT_EQ(record.private_data[195], 7);
  EXPECT_EQ(record.private_data[196], 0);
  EXPECT_EQ(record.responder_resources, 1);
  EXPECT_EQ(record.initiator_depth, 2);
  EXPECT_EQ(record.flow_control, 1);
  EXPECT_EQ(record.retry_count, 4);
  EXPECT_EQ(record.rnr_retry_count, 5);
  EXPECT_EQ(record.srq, 1);
  EXPECT_EQ(record.qpn, 0x123456u);
  EXPECT_EQ(record.qp_type, 3);
  EXPECT_EQ(record.qkey, 0x89abcdefu);
}

TEST(EventRecord, CarriesHowADatagramReachesThePeer) {
  device::CmEvent event;
  event.type = device::CmEventType::kMulticastJoin;
  event.av.dest = IpAddress::FromV4(239, 1, 2, 3);
  event.av.sgid_index = 4;
  event.av.flow_label = 5;
  event.av.traffic_class = 6;
  event.av.hop_limit = 7;
  event.multicast_cookie = 0x123456789abcdef0;
  const shm::CmEvent record = ToRecord(event);
  const uint8_t v4[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3};
  EXPECT_EQ(std::memcmp(record.ah_dest_gid, v4, sizeof(v4)), 0);
  EXPECT_EQ(record.ah_sgid_index, 4u);
  EXPECT_EQ(record.ah_flow_label, 5u);
  EXPECT_EQ(record.ah_traffic_class, 6);
  EXPECT_EQ(record.ah_hop_limit, 7);
  EXPECT_EQ(record.multicast_cookie, 0x123456789abcdef0u);

  const Gid v6 = {0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9};
  event.av.dest = IpAddress::FromV6(v6, 3);
  EXPECT_EQ(std::memcmp(ToRecord(event).ah_dest_gid, v6.data(), v6.size()), 0);
}

TEST(EventRecord, CarriesALidWithoutAGid) {
  device::CmEvent event;
  event.type = device::CmEventType::kMulticastJoin;
  event.av.is_global = false;
  event.av.dlid = 0xc001;
  event.av.service_level = 2;
  event.av.src_path_bits = 3;
  const shm::CmEvent record = ToRecord(event);
  EXPECT_EQ(record.ah_no_grh, 1);
  EXPECT_EQ(record.ah_dlid, 0xc001);
  EXPECT_EQ(record.ah_service_level, 2);
  EXPECT_EQ(record.ah_src_path_bits, 3);
}

TEST(EventRecord, WithoutAnAddressThereIsNoAh) {
  device::CmEvent event;
  event.type = device::CmEventType::kEstablished;
  const shm::CmEvent record = ToRecord(event);
  EXPECT_EQ(record.ah_hop_limit, 0);
  EXPECT_EQ(record.ah_sgid_index, 0u);
  EXPECT_EQ(record.ah_no_grh, 0);
}

}  // namespace
}  // namespace rdmad::cm
