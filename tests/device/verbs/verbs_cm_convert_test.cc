#include "daemon/device/verbs/verbs_cm_convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace rdmad::verbs {
namespace {

using device::CmEventType;
using device::ConnParam;

TEST(VerbsCmStatus, CodesAreThoseOfTheInterface) {
  struct Case {
    int error;
    Einval einval;
    absl::StatusCode code;
  };
  constexpr Case kCases[] = {
      {EINVAL, Einval::kArgument, absl::StatusCode::kInvalidArgument},
      {EINVAL, Einval::kState, absl::StatusCode::kFailedPrecondition},
      {EADDRINUSE, Einval::kState, absl::StatusCode::kAlreadyExists},
      {EADDRNOTAVAIL, Einval::kArgument, absl::StatusCode::kNotFound},
      {ENODEV, Einval::kArgument, absl::StatusCode::kNotFound},
      {ENOSYS, Einval::kArgument, absl::StatusCode::kUnimplemented},
      {EOPNOTSUPP, Einval::kArgument, absl::StatusCode::kUnimplemented},
      {ENOMEM, Einval::kArgument, absl::StatusCode::kResourceExhausted},
      {EACCES, Einval::kArgument, absl::StatusCode::kPermissionDenied},
      {ENODATA, Einval::kArgument, absl::StatusCode::kInternal},
  };
  for (const Case& one : kCases) {
    EXPECT_EQ(CmStatus(one.error, one.einval, "call").code(), one.code) << std::strerror(one.error);
  }
}

TEST(VerbsCmStatus, SaysTheCallAndTheReason) {
  EXPECT_EQ(CmStatus(EADDRINUSE, Einval::kState, "bind_addr: local=10.0.0.1:7").message(),
            "bind_addr: local=10.0.0.1:7: Address already in use");
}

TEST(VerbsCmConvert, RetriesAreCutToWhatTheWireHolds) {
  ConnParam param;
  param.retry_count = 8;
  param.rnr_retry_count = 255;
  param.srq = true;
  param.qpn = 0x123456;
  const rdma_conn_param to = ToRdma(param);
  EXPECT_EQ(to.retry_count, 7);
  EXPECT_EQ(to.rnr_retry_count, 7);
  EXPECT_EQ(to.srq, 1);
  EXPECT_EQ(to.qp_num, 0x123456u);
  EXPECT_EQ(to.private_data_len, 0);
}

rdma_cm_event ConnectedEvent(rdma_cm_event_type type, const std::string& data) {
  rdma_cm_event event{};
  event.event = type;
  event.status = 28;
  event.param.conn.private_data = data.data();
  event.param.conn.private_data_len = static_cast<uint8_t>(data.size());
  event.param.conn.responder_resources = 3;
  event.param.conn.qp_num = 0x11;
  return event;
}

TEST(VerbsCmConvert, AnEventIsACopy) {
  std::string data = "data";
  const std::optional<device::CmEvent> event =
      FromRdma(ConnectedEvent(RDMA_CM_EVENT_REJECTED, data), false);
  std::fill(data.begin(), data.end(), 'x');
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->type, CmEventType::kRejected);
  EXPECT_EQ(event->status, 28);
  EXPECT_EQ(event->param.private_data, (std::vector<uint8_t>{'d', 'a', 't', 'a'}));
  EXPECT_EQ(event->param.responder_resources, 3);
  EXPECT_EQ(event->param.qpn, 0x11u);
}

TEST(VerbsCmConvert, ADatagramEventHasOtherParameters) {
  rdma_cm_event raw{};
  raw.event = RDMA_CM_EVENT_ESTABLISHED;
  raw.param.ud.qp_num = 0x22;
  raw.param.ud.qkey = 0x01234567;
  const std::optional<device::CmEvent> event = FromRdma(raw, true);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->param.qpn, 0x22u);
  EXPECT_EQ(event->param.qkey, 0x01234567u);
}

TEST(VerbsCmConvert, ARefusedQuestionBringsTheRefusersData) {
  constexpr uint8_t kData[] = {'f', 'u', 'l', 'l'};
  rdma_cm_event raw{};
  raw.event = RDMA_CM_EVENT_UNREACHABLE;
  raw.status = 2;
  raw.param.ud.private_data = kData;
  raw.param.ud.private_data_len = sizeof(kData);
  const std::optional<device::CmEvent> event = FromRdma(raw, true);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->status, 2);
  EXPECT_EQ(event->param.private_data, (std::vector<uint8_t>{'f', 'u', 'l', 'l'}));
}

TEST(VerbsCmConvert, ADatagramEventSaysHowThePeerIsReached) {
  const IpAddress peer = IpAddress::FromV4(192, 0, 2, 9);
  rdma_cm_event raw{};
  raw.event = RDMA_CM_EVENT_ESTABLISHED;
  raw.param.ud.ah_attr.is_global = 1;
  raw.param.ud.ah_attr.grh.sgid_index = 3;
  std::memcpy(raw.param.ud.ah_attr.grh.dgid.raw, peer.gid().data(), peer.gid().size());
  const std::optional<device::CmEvent> event = FromRdma(raw, true);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->av.dest, peer);
  EXPECT_EQ(event->av.sgid_index, 3u);
}

TEST(VerbsCmConvert, OnInfinibandThePeerIsReachedByItsLid) {
  for (const rdma_cm_event_type type : {RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_MULTICAST_JOIN}) {
    rdma_cm_event raw{};
    raw.event = type;
    raw.param.ud.ah_attr.dlid = 0xc001;
    raw.param.ud.ah_attr.sl = 2;
    raw.param.ud.ah_attr.src_path_bits = 1;
    const std::optional<device::CmEvent> event = FromRdma(raw, true);
    ASSERT_TRUE(event.has_value());
    EXPECT_FALSE(event->av.is_global);
    EXPECT_EQ(event->av.dlid, 0xc001);
    EXPECT_EQ(event->av.service_level, 2);
    EXPECT_EQ(event->av.src_path_bits, 1);
  }
}

TEST(VerbsCmConvert, AMulticastEventHasTheCookieForItsPrivateData) {
  rdma_cm_event raw{};
  raw.event = RDMA_CM_EVENT_MULTICAST_JOIN;
  raw.param.ud.private_data = reinterpret_cast<void*>(uintptr_t{0xfeed});
  raw.param.ud.private_data_len = 8;
  raw.param.ud.qp_num = 0xffffff;
  raw.param.ud.qkey = 0x01234567;
  std::optional<device::CmEvent> event = FromRdma(raw, true);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->multicast_cookie, 0xfeedu);
  EXPECT_EQ(event->param.qpn, 0xffffffu);
  EXPECT_EQ(event->param.qkey, 0x01234567u);
  EXPECT_TRUE(event->param.private_data.empty());
  raw.event = RDMA_CM_EVENT_MULTICAST_ERROR;
  event = FromRdma(raw, true);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->multicast_cookie, 0xfeedu);
  EXPECT_EQ(event->param.qpn, 0u);
}

TEST(VerbsCmConvert, ParametersOfEventsThatCarryNoneAreNotRead) {
  const std::string data = "not sent";
  const std::optional<device::CmEvent> event =
      FromRdma(ConnectedEvent(RDMA_CM_EVENT_ADDR_RESOLVED, data), false);
  ASSERT_TRUE(event.has_value());
  EXPECT_TRUE(event->param.private_data.empty());
  EXPECT_EQ(event->param.qpn, 0u);
}

TEST(VerbsCmConvert, AnEventOfALaterKernelIsNone) {
  rdma_cm_event raw{};
  const uint32_t later = RDMA_CM_EVENT_TIMEWAIT_EXIT + 1;
  std::memcpy(&raw.event, &later, sizeof(later));
  EXPECT_EQ(FromRdma(raw, false), std::nullopt);
}

TEST(VerbsCmConvert, ALinkLocalPeerKeepsItsScopeAndThePortIsOurOne) {
  const IpAddress peer =
      IpAddress::FromV6({0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9}, 4);
  ibv_qp_attr attr{};
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 2;
  std::memcpy(attr.ah_attr.grh.dgid.raw, peer.gid().data(), peer.gid().size());
  const device::QpAttr to = FromRdma(attr, IBV_QP_STATE | IBV_QP_AV, 4);
  EXPECT_EQ(to.av.dest, peer);
  EXPECT_EQ(to.port, 1);
}

TEST(VerbsCmConvert, AnUnknownFamilyIsNoAddress) {
  sockaddr_storage none{};
  EXPECT_EQ(FromRdma(reinterpret_cast<const sockaddr*>(&none)), SocketAddress());
}

}  // namespace
}  // namespace rdmad::verbs
