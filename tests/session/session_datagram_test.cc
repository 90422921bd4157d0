// Address handles, memory windows, events of devices, and the order in which all goes.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "daemon/session/session.h"
#include "tests/session/session_bed.h"

namespace rdmad::session {
namespace {

using absl::StatusCode;

v1::DestroyAhRequest DestroyAh(Handle ah) {
  v1::DestroyAhRequest request;
  request.set_ah(ah);
  return request;
}
v1::DeallocMwRequest DeallocMw(Handle mw) {
  v1::DeallocMwRequest request;
  request.set_mw(mw);
  return request;
}

class SessionDatagram : public ::testing::Test {
 protected:
  SessionDatagram() { bed_.Open(); }
  SessionBed bed_;
};

// ---- address handles

TEST_F(SessionDatagram, AddressReachesTheDeviceAsItWasGiven) {
  v1::CreateAhRequest request = SessionBed::AhRequest(bed_.MakePd(), 7);
  request.mutable_attr()->set_sgid_index(3);
  request.mutable_attr()->set_flow_label(0xfffff);
  request.mutable_attr()->set_hop_limit(9);
  request.mutable_attr()->set_traffic_class(106);
  ASSERT_TRUE(bed_.Call(&Session::CreateAh, request).ok());
  const device::AddressVector& av = bed_.device.last_av;
  EXPECT_EQ(av.dest, IpAddress::FromV4(10, 0, 0, 7));
  EXPECT_EQ(av.sgid_index, 3u);
  EXPECT_EQ(av.flow_label, 0xfffffu);
  EXPECT_EQ(av.hop_limit, 9);
  EXPECT_EQ(av.traffic_class, 106);
  EXPECT_TRUE(av.is_global);
  EXPECT_EQ(av.dlid, 0);
}

TEST_F(SessionDatagram, OnInfinibandALidIsAddressEnough) {
  v1::CreateAhRequest request = SessionBed::AhRequest(bed_.MakePd(), 7);
  request.mutable_attr()->clear_dest_gid();
  request.mutable_attr()->set_no_grh(true);
  request.mutable_attr()->set_dlid(0xffff);
  request.mutable_attr()->set_service_level(15);
  request.mutable_attr()->set_src_path_bits(127);
  ASSERT_TRUE(bed_.Call(&Session::CreateAh, request).ok());
  const device::AddressVector& av = bed_.device.last_av;
  EXPECT_FALSE(av.is_global);
  EXPECT_EQ(av.dlid, 0xffff);
  EXPECT_EQ(av.service_level, 15);
  EXPECT_EQ(av.src_path_bits, 127);
}

TEST_F(SessionDatagram, MalformedAddressesAreRefused) {
  const Handle pd = bed_.MakePd();
  const auto refused = [&](const std::function<void(v1::AddressHandleAttr*)>& spoil) {
    v1::CreateAhRequest request = SessionBed::AhRequest(pd);
    spoil(request.mutable_attr());
    return bed_.Call(&Session::CreateAh, request).status.code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto* attr) { attr->clear_dest_gid(); }));
  EXPECT_TRUE(refused([](auto* attr) { attr->set_dest_gid(std::string(15, 'x')); }));
  EXPECT_TRUE(refused([](auto* attr) { attr->set_dest_gid(std::string(17, 'x')); }));
  EXPECT_TRUE(refused([](auto* attr) { attr->set_flow_label(1u << 20); }));
  EXPECT_TRUE(refused([](auto* attr) { attr->set_hop_limit(256); }));
  EXPECT_TRUE(refused([](auto* attr) { attr->set_traffic_class(256); }));
  EXPECT_TRUE(refused([](auto* attr) { attr->set_dlid(0x10000); }));
  EXPECT_TRUE(refused([](auto* attr) { attr->set_service_level(16); }));
  EXPECT_TRUE(refused([](auto* attr) { attr->set_src_path_bits(128); }));
  EXPECT_EQ(bed_.session->Counts().ahs(), 0u);
}

TEST_F(SessionDatagram, SlotHandlesAreUniqueAndNotZero) {
  const Handle pd = bed_.MakePd();
  std::set<uint32_t> numbers;
  for (int i = 0; i < 100; ++i) {
    numbers.insert(bed_.Call(&Session::CreateAh, SessionBed::AhRequest(pd)).reply.slot_handle());
  }
  EXPECT_EQ(numbers.size(), 100u);
  EXPECT_FALSE(numbers.contains(0));
}

TEST_F(SessionDatagram, SlotHandleIsFreeOnlyAfterTheEngineLetGo) {
  const Handle pd = bed_.MakePd();
  const auto first = bed_.Call(&Session::CreateAh, SessionBed::AhRequest(pd));
  const auto going = bed_.Start(&Session::DestroyAh, DestroyAh(first.reply.ah()));
  const auto second = bed_.Start(&Session::CreateAh, SessionBed::AhRequest(pd));
  bed_.Settle();
  const auto third = bed_.Call(&Session::CreateAh, SessionBed::AhRequest(pd));
  EXPECT_TRUE(going->ok());
  EXPECT_NE(second->reply.slot_handle(), first.reply.slot_handle());
  EXPECT_EQ(third.reply.slot_handle(), first.reply.slot_handle());
  EXPECT_NE(third.reply.ah(), first.reply.ah());
}

TEST_F(SessionDatagram, AddressHandleThatTheDeviceRefusesGivesItsNumberBack) {
  const Handle pd = bed_.MakePd();
  bed_.device.refusal = absl::InvalidArgumentError("no such sgid_index");
  EXPECT_EQ(bed_.Call(&Session::CreateAh, SessionBed::AhRequest(pd)).status.code(),
            StatusCode::kInvalidArgument);
  bed_.device.refusal = absl::OkStatus();
  EXPECT_EQ(bed_.Call(&Session::CreateAh, SessionBed::AhRequest(pd)).reply.slot_handle(), 1u);
}

TEST_F(SessionDatagram, PdInUseByAnAddressHandleStays) {
  v1::DeallocPdRequest request;
  request.set_pd(bed_.MakePd());
  const Handle ah = bed_.Call(&Session::CreateAh, SessionBed::AhRequest(request.pd())).reply.ah();
  const auto refused = bed_.Call(&Session::DeallocPd, request);
  EXPECT_EQ(refused.status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Mentions(refused.status, HandleText(HandleKind::kAh, ah))) << refused.status;
  EXPECT_TRUE(bed_.Call(&Session::DestroyAh, DestroyAh(ah)).ok());
  EXPECT_TRUE(bed_.Call(&Session::DeallocPd, request).ok());
}

// ---- memory windows

TEST_F(SessionDatagram, WindowsHaveKeysOfTheirOwn) {
  const Handle pd = bed_.MakePd();
  const auto one = bed_.Call(&Session::AllocMw, SessionBed::MwRequest(pd));
  const auto other = bed_.Call(&Session::AllocMw, SessionBed::MwRequest(pd));
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_NE(one.reply.rkey(), other.reply.rkey());
  EXPECT_EQ(bed_.session->Counts().mws(), 2u);
  EXPECT_TRUE(bed_.Call(&Session::DeallocMw, DeallocMw(one.reply.mw())).ok());
  EXPECT_EQ(bed_.Call(&Session::DeallocMw, DeallocMw(one.reply.mw())).status.code(),
            StatusCode::kNotFound);
}

TEST_F(SessionDatagram, WindowsOfOtherTypesAreRefused) {
  const Handle pd = bed_.MakePd();
  EXPECT_EQ(bed_.Call(&Session::AllocMw, SessionBed::MwRequest(pd, 1)).status.code(),
            StatusCode::kUnimplemented);
  for (uint32_t type : {0u, 3u, UINT32_MAX}) {
    EXPECT_EQ(bed_.Call(&Session::AllocMw, SessionBed::MwRequest(pd, type)).status.code(),
              StatusCode::kInvalidArgument)
        << type;
  }
}

TEST_F(SessionDatagram, PdInUseByAWindowStays) {
  v1::DeallocPdRequest request;
  request.set_pd(bed_.MakePd());
  const Handle mw = bed_.Call(&Session::AllocMw, SessionBed::MwRequest(request.pd())).reply.mw();
  const auto refused = bed_.Call(&Session::DeallocPd, request);
  EXPECT_TRUE(Mentions(refused.status, HandleText(HandleKind::kMw, mw))) << refused.status;
}

// ---- quotas

TEST(SessionDatagramQuota, EachLimitIsKeptAndNamed) {
  SessionLimits limits;
  limits.max_ahs = limits.max_mws = limits.max_multicasts = 1;
  SessionBed bed(limits);
  bed.Open();
  const Handle pd = bed.MakePd();
  const Handle qp = bed.MakeUdQp(pd, bed.MakeCq());
  bed.Call(&Session::CreateAh, SessionBed::AhRequest(pd));
  bed.Call(&Session::AllocMw, SessionBed::MwRequest(pd));
  bed.Call(&Session::AttachMulticast, SessionBed::AttachRequest(qp, 1));
  const std::pair<const char*, absl::Status> refused[] = {
      {"max_ahs", bed.Call(&Session::CreateAh, SessionBed::AhRequest(pd)).status},
      {"max_mws", bed.Call(&Session::AllocMw, SessionBed::MwRequest(pd)).status},
      {"max_multicasts",
       bed.Call(&Session::AttachMulticast, SessionBed::AttachRequest(qp, 2)).status},
  };
  for (const auto& [limit, status] : refused) {
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << limit;
    EXPECT_TRUE(Mentions(status, std::string("limit=") + limit + " value=1 in_use=1")) << status;
  }
  const auto session = bed.Call(&Session::GetSession, v1::GetSessionRequest());
  EXPECT_EQ(session.reply.limits().max_ahs(), 1u);
  EXPECT_EQ(session.reply.limits().max_srqs(), SessionLimits().max_srqs);
}

// ---- devices

TEST_F(SessionDatagram, DeviceEventsReachWhoHasItOpen) {
  bed_.session->OnDeviceEvent(0, device::AsyncEventType::kPortErr);
  EXPECT_TRUE(bed_.ReadAsync().empty()) << "it uses no device yet";
  bed_.MakePd();
  bed_.session->OnDeviceEvent(0, device::AsyncEventType::kGidChange);
  bed_.session->OnDeviceEvent(1, device::AsyncEventType::kGidChange);
  const std::vector<shm::AsyncEvent> events = bed_.ReadAsync();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].type, 18u);
  EXPECT_EQ(events[0].handle, 0u) << "the device's index";
}

TEST_F(SessionDatagram, DeviceSaysAllThatItCan) {
  device::DeviceAttr& attr = bed_.device.mutable_attr();
  attr.max_srq = 1;
  attr.max_srq_wr = 2;
  attr.max_srq_sge = 3;
  attr.max_ah = 4;
  attr.max_mw = 5;
  attr.max_mcast_groups = 6;
  attr.max_mcast_qps = 7;
  attr.atomic_capability = 2;
  const auto outcome = bed_.Call(&Session::QueryDevices, v1::QueryDevicesRequest());
  ASSERT_EQ(outcome.reply.devices_size(), 1);
  const v1::Device& device = outcome.reply.devices(0);
  EXPECT_EQ(device.max_srq(), 1u);
  EXPECT_EQ(device.max_srq_wr(), 2u);
  EXPECT_EQ(device.max_srq_sge(), 3u);
  EXPECT_EQ(device.max_ah(), 4u);
  EXPECT_EQ(device.max_mw(), 5u);
  EXPECT_EQ(device.max_mcast_groups(), 6u);
  EXPECT_EQ(device.max_mcast_qps(), 7u);
  EXPECT_EQ(device.atomic_capability(), 2u);
}

TEST_F(SessionDatagram, DeviceAndPortSayWhatTheyAre) {
  device::DeviceAttr& attr = bed_.device.mutable_attr();
  attr.fw_ver = "1.2.3";
  attr.sys_image_guid = 1;
  attr.page_size_cap = 2;
  attr.vendor_id = 3;
  attr.vendor_part_id = 4;
  attr.hw_ver = 5;
  attr.cap_flags = 6;
  attr.max_sge_rd = 7;
  attr.max_res_rd_atom = 8;
  attr.max_qp_init_rd_atom = 9;
  attr.max_total_mcast_qps = 10;
  attr.max_pkeys = 11;
  attr.local_ca_ack_delay = 12;
  device::PortAttr& of_port = bed_.device.port;
  of_port.state = device::PortState::kArmed;
  of_port.phys_state = device::PhysState::kTraining;
  of_port.link_layer = device::LinkLayer::kInfiniband;
  of_port.rate = {2, 16};
  of_port.gid_table_length = 13;
  of_port.cap_flags = 14;
  of_port.cap_flags2 = 15;
  of_port.bad_pkey_count = 16;
  of_port.qkey_violation_count = 17;
  of_port.lid = 18;
  of_port.sm_lid = 19;
  of_port.lmc = 20;
  of_port.sm_sl = 21;
  of_port.subnet_timeout = 22;
  of_port.init_type_reply = 23;
  of_port.max_vl_num = 24;
  of_port.flags = 25;
  const auto outcome = bed_.Call(&Session::QueryDevices, v1::QueryDevicesRequest());
  ASSERT_EQ(outcome.reply.devices_size(), 1);
  const v1::Device& device = outcome.reply.devices(0);
  EXPECT_EQ(device.port_state(), 3u);
  EXPECT_EQ(device.fw_ver(), "1.2.3");
  const v1::Port& port = device.port();
  EXPECT_EQ((std::vector<uint64_t>{
                device.sys_image_guid(), device.page_size_cap(), device.vendor_id(),
                device.vendor_part_id(), device.hw_ver(), device.device_cap_flags(),
                device.max_sge_rd(), device.max_res_rd_atom(), device.max_qp_init_rd_atom(),
                device.max_total_mcast_qps(), device.max_pkeys(), device.local_ca_ack_delay(),
                port.gid_table_length(), port.cap_flags(), port.cap_flags2(),
                port.bad_pkey_count(), port.qkey_violation_count(), device.lid(), port.sm_lid(),
                device.lmc(), port.sm_sl(), port.subnet_timeout(), port.init_type_reply(),
                port.max_vl_num(), port.flags()}),
            (std::vector<uint64_t>{1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13,
                                   14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25}));
  EXPECT_EQ(port.phys_state(), 4u);
  EXPECT_EQ(device.link_layer(), 1u);
  EXPECT_EQ(port.active_width(), 2u);
  EXPECT_EQ(port.active_speed(), 16u);
  ASSERT_EQ(port.pkeys_size(), 1);
  EXPECT_EQ(port.pkeys(0), 0xffffu);
}

// ---- the end

TEST_F(SessionDatagram, UsersGoBeforeWhatTheyUse) {
  const Handle pd = bed_.MakePd();
  bed_.Call(&Session::CreateAh, SessionBed::AhRequest(pd));
  bed_.Call(&Session::AllocMw, SessionBed::MwRequest(pd));
  v1::CreateQpRequest qp = SessionBed::UdQpRequest(pd, bed_.MakeCq());
  qp.set_srq(bed_.MakeSrq(pd));
  const Handle made = bed_.Call(&Session::CreateQp, qp).reply.qp();
  bed_.Call(&Session::AttachMulticast, SessionBed::AttachRequest(made));
  std::vector<std::string> retired;
  bed_.path.retired = &retired;
  bed_.Close();
  EXPECT_EQ(retired, (std::vector<std::string>{"multicast", "mw", "qp", "srq", "ah"}));
}

TEST_F(SessionDatagram, EndInEveryPhaseAnswersAll) {
  const Handle pd = bed_.MakePd();
  const Handle qp = bed_.MakeUdQp(pd, bed_.MakeCq());
  const Handle ah = bed_.Call(&Session::CreateAh, SessionBed::AhRequest(pd)).reply.ah();
  const Handle mw = bed_.Call(&Session::AllocMw, SessionBed::MwRequest(pd)).reply.mw();
  bed_.Call(&Session::AttachMulticast, SessionBed::AttachRequest(qp, 1));
  const auto made_ah = bed_.Start(&Session::CreateAh, SessionBed::AhRequest(pd));
  const auto made_mw = bed_.Start(&Session::AllocMw, SessionBed::MwRequest(pd));
  const auto attached = bed_.Start(&Session::AttachMulticast, SessionBed::AttachRequest(qp, 2));
  const auto gone_ah = bed_.Start(&Session::DestroyAh, DestroyAh(ah));
  const auto gone_mw = bed_.Start(&Session::DeallocMw, DeallocMw(mw));
  const auto detached = bed_.Start(&Session::DetachMulticast, SessionBed::DetachRequest(qp, 1));
  // Waits for the detach, and then finds that the session has ended.
  const auto again = bed_.Start(&Session::AttachMulticast, SessionBed::AttachRequest(qp, 1));
  bed_.Close();
  for (const absl::Status& status :
       {made_ah->status, made_mw->status, attached->status, again->status}) {
    EXPECT_EQ(status.code(), StatusCode::kCancelled) << status;
  }
  EXPECT_EQ(made_ah->answers + made_mw->answers + attached->answers + again->answers, 4);
  EXPECT_TRUE(gone_ah->ok());
  EXPECT_TRUE(gone_mw->ok());
  EXPECT_TRUE(detached->ok());
}

}  // namespace
}  // namespace rdmad::session
