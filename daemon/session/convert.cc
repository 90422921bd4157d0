#include "daemon/session/convert.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/status_macros.h"
#include "proto/shm/event.h"

namespace rdmad::session {
namespace {

using device::QpAttr;

constexpr uint32_t kMaxPsn = (1u << 24) - 1;
constexpr uint32_t kMaxQpn = (1u << 24) - 1;

absl::Status OutOfRange(const char* field, uint64_t value, uint64_t most) {
  return absl::InvalidArgumentError(absl::StrCat(field, "=", value, ": allowed are 0 to ", most));
}

// Stores `value` in a field of any width if it is at most `most`.
template <typename T>
absl::Status Take(const char* field, uint32_t value, uint32_t most, T* out) {
  static_assert(std::is_unsigned_v<T>);
  if (value > most) return OutOfRange(field, value, most);
  *out = static_cast<T>(value);
  return absl::OkStatus();
}

// The high bit marks the QKeys of the fabric's managers, the CM's for one. A real HCA trusts
// whoever opened it, and that is the daemon.
absl::Status TakeQkey(uint32_t value, uint32_t* out) {
  constexpr uint32_t kControlled = 0x80000000;
  if ((value & kControlled) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "qkey=%#x: the high bit marks keys of the fabric's managers", value));
  }
  *out = value;
  return absl::OkStatus();
}

absl::StatusOr<device::Mtu> MtuFromMessage(uint32_t value) {
  if (value < 1 || value > 5) {
    return absl::InvalidArgumentError(
        absl::StrCat("path_mtu=", value, ": allowed are 1 (256) to 5 (4096)"));
  }
  return static_cast<device::Mtu>(value);
}

}  // namespace

absl::StatusOr<SocketAddress> FromMessage(const v1::SocketAddress& message, const char* field) {
  SocketAddress address;
  if (message.port() > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": port=", message.port(), " is over 65535"));
  }
  address.port = static_cast<uint16_t>(message.port());
  const std::string& bytes = message.addr();
  const auto byte = [&bytes](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  if (message.family() == 0 && bytes.empty()) return SocketAddress();
  if (message.family() == 4 && bytes.size() == 4) {
    address.ip = IpAddress::FromV4(byte(0), byte(1), byte(2), byte(3));
    return address;
  }
  if (message.family() == 6 && bytes.size() == 16) {
    Gid raw;
    std::copy(bytes.begin(), bytes.end(), raw.begin());
    address.ip = IpAddress::FromV6(raw, message.scope_id());
    return address;
  }
  return absl::InvalidArgumentError(absl::StrCat(field, ": family=", message.family(), " with ",
                                                 bytes.size(),
                                                 " bytes; allowed are 4 with 4 and 6 with 16"));
}

absl::StatusOr<device::ConnParam> FromMessage(const v1::ConnParam& message) {
  device::ConnParam param;
  if (message.private_data().size() > shm::kMaxCmPrivateData) {
    return OutOfRange("private_data bytes", message.private_data().size(), shm::kMaxCmPrivateData);
  }
  param.private_data.assign(message.private_data().begin(), message.private_data().end());
  RD_RETURN_IF_ERROR(
      Take("responder_resources", message.responder_resources(), 255, &param.responder_resources));
  RD_RETURN_IF_ERROR(
      Take("initiator_depth", message.initiator_depth(), 255, &param.initiator_depth));
  RD_RETURN_IF_ERROR(Take("flow_control", message.flow_control(), 255, &param.flow_control));
  // The wire has three bits for each; librdmacm cuts larger values down to 7.
  param.retry_count = static_cast<uint8_t>(std::min(message.retry_count(), 7u));
  param.rnr_retry_count = static_cast<uint8_t>(std::min(message.rnr_retry_count(), 7u));
  RD_RETURN_IF_ERROR(Take("min_rnr_timer", message.min_rnr_timer(), 31, &param.min_rnr_timer));
  param.srq = message.srq();
  RD_RETURN_IF_ERROR(Take("qpn", message.qpn(), kMaxQpn, &param.qpn));
  RD_RETURN_IF_ERROR(TakeQkey(message.qkey(), &param.qkey));
  if (message.qp_type() != 0) {
    RD_ASSIGN_OR_RETURN(param.qp_type, QpTypeFromMessage(message.qp_type()));
  }
  return param;
}

absl::StatusOr<IpAddress> GidFromMessage(const std::string& bytes, const char* field) {
  Gid gid;
  if (bytes.size() != gid.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", bytes.size(), " bytes; a GID has ", gid.size()));
  }
  std::copy(bytes.begin(), bytes.end(), gid.begin());
  return IpAddress::FromGid(gid);
}

absl::StatusOr<device::AddressVector> FromMessage(const v1::AddressHandleAttr& message) {
  device::AddressVector av;
  av.is_global = !message.no_grh();
  RD_RETURN_IF_ERROR(Take("ah.dlid", message.dlid(), 0xffff, &av.dlid));
  RD_RETURN_IF_ERROR(Take("ah.service_level", message.service_level(), 15, &av.service_level));
  RD_RETURN_IF_ERROR(Take("ah.src_path_bits", message.src_path_bits(), 127, &av.src_path_bits));
  if (!av.is_global) return av;
  RD_ASSIGN_OR_RETURN(av.dest, GidFromMessage(message.dest_gid(), "ah.dest_gid"));
  av.sgid_index = message.sgid_index();
  RD_RETURN_IF_ERROR(Take("ah.flow_label", message.flow_label(), (1u << 20) - 1, &av.flow_label));
  RD_RETURN_IF_ERROR(Take("ah.hop_limit", message.hop_limit(), 255, &av.hop_limit));
  RD_RETURN_IF_ERROR(Take("ah.traffic_class", message.traffic_class(), 255, &av.traffic_class));
  return av;
}

absl::StatusOr<QpAttr> FromMessage(const v1::QpAttr& message, uint32_t mask) {
  if ((mask & ~device::kQpAttrAll) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attr_mask=%#x: unknown bits %#x", mask, mask & ~device::kQpAttrAll));
  }
  QpAttr attr;
  attr.mask = mask;
  const auto has = [mask](uint32_t bit) { return (mask & bit) != 0; };
  if (has(device::kQpAttrState)) {
    RD_ASSIGN_OR_RETURN(attr.state, QpStateFromMessage(message.qp_state()));
  }
  if (has(device::kQpAttrCurState)) {
    RD_ASSIGN_OR_RETURN(attr.current_state, QpStateFromMessage(message.cur_qp_state()));
  }
  if (has(device::kQpAttrPathMtu)) {
    RD_ASSIGN_OR_RETURN(attr.path_mtu, MtuFromMessage(message.path_mtu()));
  }
  if (has(device::kQpAttrAv)) {
    RD_ASSIGN_OR_RETURN(attr.av, FromMessage(message.ah()));
  }
  if (has(device::kQpAttrQkey)) RD_RETURN_IF_ERROR(TakeQkey(message.qkey(), &attr.qkey));
  attr.access_flags = message.access_flags();
  attr.en_sqd_async_notify = message.en_sqd_async_notify();
  struct Field {
    uint32_t bit;
    const char* name;
    uint32_t value;
    uint32_t most;
    uint32_t* out32;
    uint8_t* out8;
  };
  uint32_t pkey_index = 0;
  const Field fields[] = {
      {device::kQpAttrRqPsn, "rq_psn", message.rq_psn(), kMaxPsn, &attr.rq_psn, nullptr},
      {device::kQpAttrSqPsn, "sq_psn", message.sq_psn(), kMaxPsn, &attr.sq_psn, nullptr},
      {device::kQpAttrDestQpn, "dest_qpn", message.dest_qpn(), kMaxQpn, &attr.dest_qpn, nullptr},
      {device::kQpAttrPkeyIndex, "pkey_index", message.pkey_index(), 65535, &pkey_index, nullptr},
      {device::kQpAttrMaxQpRdAtomic, "max_rd_atomic", message.max_rd_atomic(), 255, nullptr,
       &attr.max_rd_atomic},
      {device::kQpAttrMaxDestRdAtomic, "max_dest_rd_atomic", message.max_dest_rd_atomic(), 255,
       nullptr, &attr.max_dest_rd_atomic},
      {device::kQpAttrMinRnrTimer, "min_rnr_timer", message.min_rnr_timer(), 31, nullptr,
       &attr.min_rnr_timer},
      {device::kQpAttrPort, "port_num", message.port_num(), 255, nullptr, &attr.port},
      {device::kQpAttrTimeout, "timeout", message.timeout(), 31, nullptr, &attr.timeout},
      {device::kQpAttrRetryCnt, "retry_cnt", message.retry_count(), 7, nullptr, &attr.retry_count},
      {device::kQpAttrRnrRetry, "rnr_retry", message.rnr_retry(), 7, nullptr, &attr.rnr_retry},
  };
  for (const Field& field : fields) {
    if (!has(field.bit)) continue;
    if (field.value > field.most) return OutOfRange(field.name, field.value, field.most);
    if (field.out32 != nullptr) *field.out32 = field.value;
    if (field.out8 != nullptr) *field.out8 = static_cast<uint8_t>(field.value);
  }
  attr.pkey_index = static_cast<uint16_t>(pkey_index);
  return attr;
}

device::QpCap FromMessage(const v1::QpCap& message) {
  device::QpCap cap;
  cap.max_send_wr = message.max_send_wr();
  cap.max_recv_wr = message.max_recv_wr();
  cap.max_send_sge = message.max_send_sge();
  cap.max_recv_sge = message.max_recv_sge();
  cap.max_inline_bytes = message.max_inline_bytes();
  return cap;
}

absl::StatusOr<device::QpType> QpTypeFromMessage(uint32_t value) {
  if (value < 2 || value > 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("qp_type=", value, ": allowed are 2 (RC), 3 (UC), 4 (UD)"));
  }
  return static_cast<device::QpType>(value);
}

absl::StatusOr<device::QpState> QpStateFromMessage(uint32_t value) {
  if (value > static_cast<uint32_t>(device::QpState::kErr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("qp_state=", value, ": allowed are 0 (RESET) to 6 (ERR)"));
  }
  return static_cast<device::QpState>(value);
}

absl::StatusOr<device::PortSpace> PortSpaceFromMessage(uint32_t value) {
  for (device::PortSpace known :
       {device::PortSpace::kTcp, device::PortSpace::kUdp, device::PortSpace::kIb}) {
    if (value == static_cast<uint32_t>(known)) return known;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("port_space=%#x: allowed are 0x106 (TCP), 0x111 (UDP), 0x13f (IB)", value));
}

void ToMessage(const SocketAddress& address, v1::SocketAddress* message) {
  if (address == SocketAddress()) return;
  const Gid& raw = address.ip.bytes();
  message->set_port(address.port);
  if (address.ip.is_v4()) {
    message->set_family(4);
    message->set_addr(std::string(raw.begin() + 12, raw.end()));
  } else {
    message->set_family(6);
    message->set_addr(std::string(raw.begin(), raw.end()));
    message->set_scope_id(address.ip.scope_id());
  }
}

void ToMessage(const QpAttr& attr, v1::QpAttr* message) {
  message->set_qp_state(static_cast<uint32_t>(attr.state));
  message->set_cur_qp_state(static_cast<uint32_t>(attr.current_state));
  message->set_path_mtu(static_cast<uint32_t>(attr.path_mtu));
  message->set_qkey(attr.qkey);
  message->set_rq_psn(attr.rq_psn);
  message->set_sq_psn(attr.sq_psn);
  message->set_dest_qpn(attr.dest_qpn);
  message->set_access_flags(attr.access_flags);
  v1::AddressHandleAttr* ah = message->mutable_ah();
  const Gid& gid = attr.av.dest.gid();
  ah->set_dest_gid(std::string(gid.begin(), gid.end()));
  ah->set_sgid_index(attr.av.sgid_index);
  ah->set_flow_label(attr.av.flow_label);
  ah->set_hop_limit(attr.av.hop_limit);
  ah->set_traffic_class(attr.av.traffic_class);
  ah->set_dlid(attr.av.dlid);
  ah->set_service_level(attr.av.service_level);
  ah->set_src_path_bits(attr.av.src_path_bits);
  ah->set_no_grh(!attr.av.is_global);
  message->set_pkey_index(attr.pkey_index);
  message->set_max_rd_atomic(attr.max_rd_atomic);
  message->set_max_dest_rd_atomic(attr.max_dest_rd_atomic);
  message->set_min_rnr_timer(attr.min_rnr_timer);
  message->set_port_num(attr.port);
  message->set_timeout(attr.timeout);
  message->set_retry_count(attr.retry_count);
  message->set_rnr_retry(attr.rnr_retry);
  message->set_en_sqd_async_notify(attr.en_sqd_async_notify);
  message->set_sq_draining(attr.sq_draining);
}

void ToMessage(const device::QpCap& cap, v1::QpCap* message) {
  message->set_max_send_wr(cap.max_send_wr);
  message->set_max_recv_wr(cap.max_recv_wr);
  message->set_max_send_sge(cap.max_send_sge);
  message->set_max_recv_sge(cap.max_recv_sge);
  message->set_max_inline_bytes(cap.max_inline_bytes);
}

void ToMessage(const device::PortAttr& port, const std::vector<uint16_t>& pkeys, v1::Port* message) {
  message->set_phys_state(static_cast<uint32_t>(port.phys_state));
  message->set_active_width(port.rate.width);
  message->set_active_speed(port.rate.speed);
  message->set_gid_table_length(port.gid_table_length);
  message->set_cap_flags(port.cap_flags);
  message->set_cap_flags2(port.cap_flags2);
  message->set_bad_pkey_count(port.bad_pkey_count);
  message->set_qkey_violation_count(port.qkey_violation_count);
  message->set_sm_lid(port.sm_lid);
  message->set_sm_sl(port.sm_sl);
  message->set_subnet_timeout(port.subnet_timeout);
  message->set_init_type_reply(port.init_type_reply);
  message->set_max_vl_num(port.max_vl_num);
  message->set_flags(port.flags);
  for (const uint16_t pkey : pkeys) message->add_pkeys(pkey);
}

void ToMessage(uint32_t index, const device::Device& device, v1::Device* message) {
  const device::DeviceAttr& attr = device.attr();
  const device::PortAttr port = device.QueryPort();
  message->set_index(index);
  message->set_name(device.name());
  message->set_kind(device.kind());
  message->set_netdev(device.netdev());
  message->set_node_guid(attr.node_guid);
  message->set_port_state(static_cast<uint32_t>(port.state));
  message->set_active_mtu(static_cast<uint32_t>(port.active_mtu));
  message->set_max_mtu(static_cast<uint32_t>(attr.max_mtu));
  for (const device::GidEntry& entry : device.Gids()) {
    v1::Gid* gid = message->add_gids();
    gid->set_index(entry.index);
    const Gid& raw = entry.address.gid();
    gid->set_raw(std::string(raw.begin(), raw.end()));
    gid->set_text(entry.address.ToString());
    gid->set_type(static_cast<uint32_t>(entry.type));
    gid->set_interface_index(entry.interface_index);
  }
  message->set_max_qp(attr.max_qp);
  message->set_max_qp_wr(attr.max_qp_wr);
  message->set_max_sge(attr.max_sge);
  message->set_max_inline_bytes(attr.max_inline_bytes);
  message->set_max_cq(attr.max_cq);
  message->set_max_cqe(attr.max_cqe);
  message->set_max_mr(attr.max_mr);
  message->set_max_mr_bytes(attr.max_mr_bytes);
  message->set_max_msg_bytes(attr.max_msg_bytes);
  message->set_max_qp_rd_atom(attr.max_qp_rd_atom);
  message->set_max_pd(attr.max_pd);
  message->set_max_srq(attr.max_srq);
  message->set_max_srq_wr(attr.max_srq_wr);
  message->set_max_srq_sge(attr.max_srq_sge);
  message->set_max_ah(attr.max_ah);
  message->set_max_mw(attr.max_mw);
  message->set_max_mcast_groups(attr.max_mcast_groups);
  message->set_max_mcast_qps(attr.max_mcast_qps);
  message->set_atomic_capability(attr.atomic_capability);
  message->set_num_comp_vectors(attr.num_comp_vectors);
  message->set_link_layer(static_cast<uint32_t>(port.link_layer));
  message->set_lid(port.lid);
  message->set_lmc(port.lmc);
  message->set_fw_ver(attr.fw_ver);
  message->set_sys_image_guid(attr.sys_image_guid);
  message->set_page_size_cap(attr.page_size_cap);
  message->set_vendor_id(attr.vendor_id);
  message->set_vendor_part_id(attr.vendor_part_id);
  message->set_hw_ver(attr.hw_ver);
  message->set_device_cap_flags(attr.cap_flags);
  message->set_max_sge_rd(attr.max_sge_rd);
  message->set_max_res_rd_atom(attr.max_res_rd_atom);
  message->set_max_qp_init_rd_atom(attr.max_qp_init_rd_atom);
  message->set_max_total_mcast_qps(attr.max_total_mcast_qps);
  message->set_max_pkeys(attr.max_pkeys);
  message->set_local_ca_ack_delay(attr.local_ca_ack_delay);
  ToMessage(port, device.Pkeys(), message->mutable_port());
}

const char* QpStateName(device::QpState state) noexcept {
  switch (state) {
    case device::QpState::kReset:
      return "RESET";
    case device::QpState::kInit:
      return "INIT";
    case device::QpState::kRtr:
      return "RTR";
    case device::QpState::kRts:
      return "RTS";
    case device::QpState::kSqd:
      return "SQD";
    case device::QpState::kSqe:
      return "SQE";
    case device::QpState::kErr:
      return "ERR";
  }
  return "?";
}

}  // namespace rdmad::session
