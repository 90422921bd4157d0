#include "daemon/cm/event_record.h"

#include <algorithm>
#include <cstring>

namespace rdmad::cm {
namespace {

constexpr size_t kIpv4Offset = 12;  // of the IPv4 address in the mapped form
constexpr size_t kIpv4Bytes = 4;

}  // namespace

shm::SocketAddress ToShm(const SocketAddress& address) noexcept {
  shm::SocketAddress out{};
  if (address == SocketAddress()) return out;
  out.family = address.ip.is_v4() ? 4 : 6;
  out.port = address.port;
  out.scope_id = address.ip.scope_id();
  const Gid& bytes = address.ip.bytes();
  if (address.ip.is_v4()) {
    std::memcpy(out.addr, bytes.data() + kIpv4Offset, kIpv4Bytes);
  } else {
    std::memcpy(out.addr, bytes.data(), bytes.size());
  }
  return out;
}

SocketAddress FromShm(const shm::SocketAddress& address) noexcept {
  if (address.family == 4) {
    return {IpAddress::FromV4(address.addr[0], address.addr[1], address.addr[2], address.addr[3]),
            address.port};
  }
  if (address.family != 6) return {};
  Gid gid;
  std::memcpy(gid.data(), address.addr, gid.size());
  return {IpAddress::FromV6(gid, address.scope_id), address.port};
}

shm::CmEvent ToRecord(const device::CmEvent& event) noexcept {
  shm::CmEvent record{};
  record.type = static_cast<uint32_t>(event.type);
  record.status = event.status;
  record.responder_resources = event.param.responder_resources;
  record.initiator_depth = event.param.initiator_depth;
  record.flow_control = event.param.flow_control;
  record.retry_count = event.param.retry_count;
  record.rnr_retry_count = event.param.rnr_retry_count;
  record.srq = event.param.srq ? 1 : 0;
  record.path_mtu = static_cast<uint8_t>(event.path_mtu);
  record.qpn = event.param.qpn;
  record.qkey = event.param.qkey;
  record.qp_type = event.param.qp_type ? static_cast<uint8_t>(*event.param.qp_type) : 0;
  if (event.av.dest != IpAddress() || !event.av.is_global) {
    const Gid& gid = event.av.dest.gid();
    std::memcpy(record.ah_dest_gid, gid.data(), gid.size());
    record.ah_sgid_index = event.av.sgid_index;
    record.ah_flow_label = event.av.flow_label;
    record.ah_traffic_class = event.av.traffic_class;
    record.ah_hop_limit = event.av.hop_limit;
    record.ah_no_grh = event.av.is_global ? 0 : 1;
    record.ah_dlid = event.av.dlid;
    record.ah_service_level = event.av.service_level;
    record.ah_src_path_bits = event.av.src_path_bits;
  }
  record.multicast_cookie = event.multicast_cookie;
  // No CM message carries more than 196 bytes, so nothing is cut here.
  const size_t bytes = std::min<size_t>(event.param.private_data.size(), UINT8_MAX);
  record.private_data_bytes = static_cast<uint8_t>(bytes);
  std::copy_n(event.param.private_data.begin(), bytes, record.private_data);
  return record;
}

}  // namespace rdmad::cm
