#include "client/sdk/qp_attr.h"

#include <algorithm>
#include <string>

namespace rdmad::sdk {

v1::AddressHandleAttr ToProto(const AddressHandleAttr& attr) {
  v1::AddressHandleAttr proto;
  proto.set_dest_gid(attr.dest_gid.data(), attr.dest_gid.size());
  proto.set_sgid_index(attr.sgid_index);
  proto.set_flow_label(attr.flow_label);
  proto.set_hop_limit(attr.hop_limit);
  proto.set_traffic_class(attr.traffic_class);
  proto.set_dlid(attr.dlid);
  proto.set_service_level(attr.service_level);
  proto.set_src_path_bits(attr.src_path_bits);
  proto.set_no_grh(!attr.is_global);
  return proto;
}

v1::QpAttr ToProto(const QpAttr& attr) {
  v1::QpAttr proto;
  proto.set_qp_state(static_cast<uint32_t>(attr.state));
  proto.set_cur_qp_state(static_cast<uint32_t>(attr.current_state));
  proto.set_path_mtu(static_cast<uint32_t>(attr.path_mtu));
  proto.set_qkey(attr.qkey);
  proto.set_rq_psn(attr.rq_psn);
  proto.set_sq_psn(attr.sq_psn);
  proto.set_dest_qpn(attr.dest_qpn);
  proto.set_access_flags(attr.access_flags);
  *proto.mutable_ah() = ToProto(attr.ah);
  proto.set_pkey_index(attr.pkey_index);
  proto.set_max_rd_atomic(attr.max_rd_atomic);
  proto.set_max_dest_rd_atomic(attr.max_dest_rd_atomic);
  proto.set_min_rnr_timer(attr.min_rnr_timer);
  proto.set_port_num(attr.port_num);
  proto.set_timeout(attr.timeout);
  proto.set_retry_count(attr.retry_count);
  proto.set_rnr_retry(attr.rnr_retry);
  proto.set_en_sqd_async_notify(attr.en_sqd_async_notify);
  return proto;
}

QpAttr FromProto(const v1::QpAttr& proto) {
  QpAttr attr;
  attr.state = static_cast<QpState>(proto.qp_state());
  attr.current_state = static_cast<QpState>(proto.cur_qp_state());
  attr.path_mtu = static_cast<Mtu>(proto.path_mtu());
  attr.qkey = proto.qkey();
  attr.rq_psn = proto.rq_psn();
  attr.sq_psn = proto.sq_psn();
  attr.dest_qpn = proto.dest_qpn();
  attr.access_flags = proto.access_flags();
  const std::string& gid = proto.ah().dest_gid();
  std::copy_n(gid.begin(), std::min(gid.size(), attr.ah.dest_gid.size()), attr.ah.dest_gid.begin());
  attr.ah.sgid_index = proto.ah().sgid_index();
  attr.ah.flow_label = proto.ah().flow_label();
  attr.ah.hop_limit = static_cast<uint8_t>(proto.ah().hop_limit());
  attr.ah.traffic_class = static_cast<uint8_t>(proto.ah().traffic_class());
  attr.ah.dlid = static_cast<uint16_t>(proto.ah().dlid());
  attr.ah.service_level = static_cast<uint8_t>(proto.ah().service_level());
  attr.ah.src_path_bits = static_cast<uint8_t>(proto.ah().src_path_bits());
  attr.ah.is_global = !proto.ah().no_grh();
  attr.pkey_index = static_cast<uint16_t>(proto.pkey_index());
  attr.max_rd_atomic = static_cast<uint8_t>(proto.max_rd_atomic());
  attr.max_dest_rd_atomic = static_cast<uint8_t>(proto.max_dest_rd_atomic());
  attr.min_rnr_timer = static_cast<uint8_t>(proto.min_rnr_timer());
  attr.port_num = static_cast<uint8_t>(proto.port_num());
  attr.timeout = static_cast<uint8_t>(proto.timeout());
  attr.retry_count = static_cast<uint8_t>(proto.retry_count());
  attr.rnr_retry = static_cast<uint8_t>(proto.rnr_retry());
  attr.en_sqd_async_notify = proto.en_sqd_async_notify();
  attr.sq_draining = proto.sq_draining();
  return attr;
}

}  // namespace rdmad::sdk
