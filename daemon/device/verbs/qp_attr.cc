#include "daemon/device/verbs/qp_attr.h"

#include <algorithm>
#include <cstring>

namespace rdmad::verbs {
namespace {

using device::QpAttr;

static_assert(uint32_t{device::kQpAttrAv} == uint32_t{IBV_QP_AV} &&
              uint32_t{device::kQpAttrEnSqdAsyncNotify} == uint32_t{IBV_QP_EN_SQD_ASYNC_NOTIFY} &&
              uint32_t{device::kQpAttrDestQpn} == uint32_t{IBV_QP_DEST_QPN} &&
              uint32_t{device::kQpAttrMinRnrTimer} == uint32_t{IBV_QP_MIN_RNR_TIMER} &&
              uint32_t{device::kQpAttrMaxDestRdAtomic} == uint32_t{IBV_QP_MAX_DEST_RD_ATOMIC});
static_assert(static_cast<int>(device::QpState::kErr) == IBV_QPS_ERR &&
              static_cast<int>(device::Mtu::k4096) == IBV_MTU_4096);

}  // namespace

device::AddressVector FromIbv(const ibv_ah_attr& ah) noexcept {
  device::AddressVector av;
  Gid gid;
  std::memcpy(gid.data(), ah.grh.dgid.raw, gid.size());
  av.dest = IpAddress::FromGid(gid);
  av.sgid_index = ah.grh.sgid_index;
  av.traffic_class = ah.grh.traffic_class;
  av.hop_limit = ah.grh.hop_limit;
  av.flow_label = ah.grh.flow_label;
  av.dlid = ah.dlid;
  av.service_level = ah.sl;
  av.src_path_bits = ah.src_path_bits;
  av.is_global = ah.is_global != 0;
  return av;
}

ibv_ah_attr ToIbv(const device::AddressVector& av, uint8_t port) noexcept {
  ibv_ah_attr ah{};
  std::memcpy(ah.grh.dgid.raw, av.dest.gid().data(), av.dest.gid().size());
  // The field is that wide; a larger index is one that no port has.
  ah.grh.sgid_index = static_cast<uint8_t>(std::min<uint32_t>(av.sgid_index, 255));
  ah.grh.traffic_class = av.traffic_class;
  ah.grh.hop_limit = av.hop_limit;
  ah.grh.flow_label = av.flow_label;
  ah.dlid = av.dlid;
  ah.sl = av.service_level;
  ah.src_path_bits = av.src_path_bits;
  ah.is_global = av.is_global ? 1 : 0;
  ah.port_num = port;
  return ah;
}

QpAttr FromIbv(const ibv_qp_attr& attr, uint32_t mask) noexcept {
  QpAttr out;
  out.mask = mask & device::kQpAttrAll;
  out.state = static_cast<device::QpState>(attr.qp_state);
  out.current_state = static_cast<device::QpState>(attr.cur_qp_state);
  out.path_mtu = static_cast<device::Mtu>(attr.path_mtu);
  out.qkey = attr.qkey;
  out.rq_psn = attr.rq_psn;
  out.sq_psn = attr.sq_psn;
  out.dest_qpn = attr.dest_qp_num;
  out.access_flags = attr.qp_access_flags;
  out.av = FromIbv(attr.ah_attr);
  out.pkey_index = attr.pkey_index;
  out.max_rd_atomic = attr.max_rd_atomic;
  out.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  out.min_rnr_timer = attr.min_rnr_timer;
  out.port = 1;
  out.timeout = attr.timeout;
  out.retry_count = attr.retry_cnt;
  out.rnr_retry = attr.rnr_retry;
  out.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
  out.sq_draining = attr.sq_draining != 0;
  return out;
}

void ToIbv(const QpAttr& attr, uint8_t port, ibv_qp_attr* out, int* mask) noexcept {
  *out = {};
  out->qp_state = static_cast<ibv_qp_state>(attr.state);
  out->cur_qp_state = static_cast<ibv_qp_state>(attr.current_state);
  out->path_mtu = static_cast<ibv_mtu>(attr.path_mtu);
  out->qkey = attr.qkey;
  out->rq_psn = attr.rq_psn;
  out->sq_psn = attr.sq_psn;
  out->dest_qp_num = attr.dest_qpn;
  out->qp_access_flags = attr.access_flags;
  out->ah_attr = ToIbv(attr.av, port);
  out->pkey_index = attr.pkey_index;
  out->max_rd_atomic = attr.max_rd_atomic;
  out->max_dest_rd_atomic = attr.max_dest_rd_atomic;
  out->min_rnr_timer = attr.min_rnr_timer;
  out->port_num = port;
  out->timeout = attr.timeout;
  out->retry_cnt = attr.retry_count;
  out->rnr_retry = attr.rnr_retry;
  out->en_sqd_async_notify = attr.en_sqd_async_notify ? 1 : 0;
  *mask = static_cast<int>(attr.mask & device::kQpAttrAll);
}

}  // namespace rdmad::verbs
