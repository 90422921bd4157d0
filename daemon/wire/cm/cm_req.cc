#include "daemon/wire/cm/cm_req.h"

#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

struct PathBytes {
  uint8_t local_lid_be[2];
  uint8_t remote_lid_be[2];
  uint8_t local_gid[16];
  uint8_t remote_gid[16];
  uint8_t flow_label_rate_be[4];  // flow label:20 | reserved:6 | packet rate:6
  uint8_t traffic_class;
  uint8_t hop_limit;
  uint8_t sl_subnet;    // SL:4 | subnet local:1 | reserved:3
  uint8_t ack_timeout;  // local ACK timeout:5 | reserved:3
};
static_assert(sizeof(PathBytes) == 44 && alignof(PathBytes) == 1);

struct ReqBytes {
  uint8_t local_comm_id_be[4];
  uint8_t reserved1[4];
  uint8_t service_id_be[8];
  uint8_t local_ca_guid_be[8];
  uint8_t reserved2[4];
  uint8_t local_qkey_be[4];
  uint8_t local_qpn_be[3];
  uint8_t responder_resources;
  uint8_t local_eecn_be[3];
  uint8_t initiator_depth;
  uint8_t remote_eecn_be[3];
  uint8_t timeout_transport_flow;  // remote CM response timeout:5 | transport:2 | flow control:1
  uint8_t starting_psn_be[3];
  uint8_t timeout_retry;  // local CM response timeout:5 | retry count:3
  uint8_t pkey_be[2];
  uint8_t mtu_rdc_rnr;         // path MTU:4 | RDC exists:1 | RNR retry count:3
  uint8_t cm_retries_srq_ext;  // max CM retries:4 | SRQ:1 | extended transport:3
  PathBytes primary;
  PathBytes alternate;
  uint8_t private_data[kReqPrivateBytes];
};
static_assert(sizeof(ReqBytes) == kMadDataBytes && alignof(ReqBytes) == 1);
static_assert(offsetof(ReqBytes, local_qpn_be) == 32 && offsetof(ReqBytes, primary) == 52);
static_assert(offsetof(ReqBytes, private_data) == 140);

CmPath ParsePath(const PathBytes& bytes) noexcept {
  CmPath path;
  path.local_lid = LoadBe16(bytes.local_lid_be);
  path.remote_lid = LoadBe16(bytes.remote_lid_be);
  std::memcpy(path.local_gid.data(), bytes.local_gid, sizeof(bytes.local_gid));
  std::memcpy(path.remote_gid.data(), bytes.remote_gid, sizeof(bytes.remote_gid));
  const uint32_t flow_label_rate = LoadBe32(bytes.flow_label_rate_be);
  path.flow_label = flow_label_rate >> 12;
  path.packet_rate = flow_label_rate & 0x3f;
  path.traffic_class = bytes.traffic_class;
  path.hop_limit = bytes.hop_limit;
  path.service_level = bytes.sl_subnet >> 4;
  path.subnet_local = (bytes.sl_subnet & 0x08) != 0;
  path.local_ack_timeout = bytes.ack_timeout >> 3;
  return path;
}

void BuildPath(const CmPath& path, PathBytes* bytes) noexcept {
  StoreBe16(bytes->local_lid_be, path.local_lid);
  StoreBe16(bytes->remote_lid_be, path.remote_lid);
  std::memcpy(bytes->local_gid, path.local_gid.data(), sizeof(bytes->local_gid));
  std::memcpy(bytes->remote_gid, path.remote_gid.data(), sizeof(bytes->remote_gid));
  StoreBe32(bytes->flow_label_rate_be, path.flow_label << 12 | (path.packet_rate & 0x3f));
  bytes->traffic_class = path.traffic_class;
  bytes->hop_limit = path.hop_limit;
  bytes->sl_subnet = static_cast<uint8_t>(path.service_level << 4 | (path.subnet_local ? 0x08 : 0));
  bytes->ack_timeout = static_cast<uint8_t>(path.local_ack_timeout << 3);
}

}  // namespace

CmReq ParseCmReq(MadDataIn data) noexcept {
  ReqBytes bytes;
  std::memcpy(&bytes, data.data(), sizeof(bytes));
  CmReq req;
  req.local_comm_id = CommId(LoadBe32(bytes.local_comm_id_be));
  req.service_id = LoadBe64(bytes.service_id_be);
  req.local_ca_guid = LoadBe64(bytes.local_ca_guid_be);
  req.local_qkey = Qkey(LoadBe32(bytes.local_qkey_be));
  req.local_qpn = Qpn(LoadBe24(bytes.local_qpn_be));
  req.responder_resources = bytes.responder_resources;
  req.local_eecn = LoadBe24(bytes.local_eecn_be);
  req.initiator_depth = bytes.initiator_depth;
  req.remote_eecn = LoadBe24(bytes.remote_eecn_be);
  req.remote_cm_response_timeout = bytes.timeout_transport_flow >> 3;
  req.transport = static_cast<CmTransport>(bytes.timeout_transport_flow >> 1 & 3);
  req.end_to_end_flow_control = (bytes.timeout_transport_flow & 1) != 0;
  req.starting_psn = Psn(LoadBe24(bytes.starting_psn_be));
  req.local_cm_response_timeout = bytes.timeout_retry >> 3;
  req.retry_count = bytes.timeout_retry & 7;
  req.pkey = PKey(LoadBe16(bytes.pkey_be));
  req.path_mtu = bytes.mtu_rdc_rnr >> 4;
  req.rdc_exists = (bytes.mtu_rdc_rnr & 0x08) != 0;
  req.rnr_retry_count = bytes.mtu_rdc_rnr & 7;
  req.max_cm_retries = bytes.cm_retries_srq_ext >> 4;
  req.srq = (bytes.cm_retries_srq_ext & 0x08) != 0;
  req.extended_transport = bytes.cm_retries_srq_ext & 7;
  req.primary = ParsePath(bytes.primary);
  req.alternate = ParsePath(bytes.alternate);
  std::memcpy(req.private_data.data(), bytes.private_data, kReqPrivateBytes);
  return req;
}

void BuildCmReq(const CmReq& req, MadDataOut data) noexcept {
  ReqBytes bytes{};
  StoreBe32(bytes.local_comm_id_be, req.local_comm_id.value());
  StoreBe64(bytes.service_id_be, req.service_id);
  StoreBe64(bytes.local_ca_guid_be, req.local_ca_guid);
  StoreBe32(bytes.local_qkey_be, req.local_qkey.value());
  StoreBe24(bytes.local_qpn_be, req.local_qpn.value());
  bytes.responder_resources = req.responder_resources;
  StoreBe24(bytes.local_eecn_be, req.local_eecn);
  bytes.initiator_depth = req.initiator_depth;
  StoreBe24(bytes.remote_eecn_be, req.remote_eecn);
  bytes.timeout_transport_flow = static_cast<uint8_t>(
      req.remote_cm_response_timeout << 3 | (static_cast<uint8_t>(req.transport) & 3) << 1 |
      (req.end_to_end_flow_control ? 1 : 0));
  StoreBe24(bytes.starting_psn_be, req.starting_psn.value());
  bytes.timeout_retry =
      static_cast<uint8_t>(req.local_cm_response_timeout << 3 | (req.retry_count & 7));
  StoreBe16(bytes.pkey_be, static_cast<uint16_t>(req.pkey.value()));
  bytes.mtu_rdc_rnr = static_cast<uint8_t>(req.path_mtu << 4 | (req.rdc_exists ? 0x08 : 0) |
                                           (req.rnr_retry_count & 7));
  bytes.cm_retries_srq_ext = static_cast<uint8_t>(req.max_cm_retries << 4 | (req.srq ? 0x08 : 0) |
                                                  (req.extended_transport & 7));
  BuildPath(req.primary, &bytes.primary);
  BuildPath(req.alternate, &bytes.alternate);
  std::memcpy(bytes.private_data, req.private_data.data(), kReqPrivateBytes);
  std::memcpy(data.data(), &bytes, sizeof(bytes));
}

}  // namespace rdmad::wire
