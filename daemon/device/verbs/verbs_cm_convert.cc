#include "daemon/device/verbs/verbs_cm_convert.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/device/verbs/qp_attr.h"

namespace rdmad::verbs {
namespace {

constexpr uint8_t kMaxRetries = 7;  // three bits on the wire

static_assert(static_cast<uint32_t>(RDMA_CM_EVENT_TIMEWAIT_EXIT) ==
                  static_cast<uint32_t>(device::CmEventType::kTimewaitExit) &&
              static_cast<uint32_t>(RDMA_CM_EVENT_REJECTED) ==
                  static_cast<uint32_t>(device::CmEventType::kRejected));

std::vector<uint8_t> PrivateData(const void* data, uint8_t bytes) {
  if (data == nullptr) return {};
  const auto* const first = static_cast<const uint8_t*>(data);
  return {first, first + bytes};
}

bool CarriesConnParam(rdma_cm_event_type type) noexcept {
  switch (type) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
    case RDMA_CM_EVENT_ESTABLISHED:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DISCONNECTED:
      return true;
    default:
      return false;
  }
}

// A question that is refused is UNREACHABLE, and may bring the refuser's data.
bool CarriesUdParam(rdma_cm_event_type type) noexcept {
  return type == RDMA_CM_EVENT_CONNECT_REQUEST || type == RDMA_CM_EVENT_ESTABLISHED ||
         type == RDMA_CM_EVENT_UNREACHABLE;
}

bool IsMulticast(rdma_cm_event_type type) noexcept {
  return type == RDMA_CM_EVENT_MULTICAST_JOIN || type == RDMA_CM_EVENT_MULTICAST_ERROR;
}

}  // namespace

absl::Status CmStatus(int error, Einval einval, const std::string& what) {
  const std::string message = absl::StrCat(what, ": ", std::generic_category().message(error));
  switch (error) {
    case EINVAL:
      return einval == Einval::kArgument ? absl::InvalidArgumentError(message)
                                         : absl::FailedPreconditionError(message);
    case EISCONN:
    case ENOTCONN:
      return absl::FailedPreconditionError(message);
    case EADDRINUSE:
      return absl::AlreadyExistsError(message);
    case ENODEV:
    case EADDRNOTAVAIL:
      return absl::NotFoundError(message);
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
      return absl::UnimplementedError(message);
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    default:
      return absl::InternalError(message);
  }
}

rdma_conn_param ToRdma(const device::ConnParam& param) {
  rdma_conn_param to{};
  to.private_data = param.private_data.data();
  to.private_data_len =
      static_cast<uint8_t>(std::min<size_t>(param.private_data.size(), UINT8_MAX));
  to.responder_resources = param.responder_resources;
  to.initiator_depth = param.initiator_depth;
  to.flow_control = param.flow_control;
  to.retry_count = std::min(param.retry_count, kMaxRetries);
  to.rnr_retry_count = std::min(param.rnr_retry_count, kMaxRetries);
  to.srq = param.srq ? 1 : 0;
  to.qp_num = param.qpn;
  return to;
}

device::ConnParam FromRdma(const rdma_conn_param& param) {
  device::ConnParam to;
  to.private_data = PrivateData(param.private_data, param.private_data_len);
  to.responder_resources = param.responder_resources;
  to.initiator_depth = param.initiator_depth;
  to.flow_control = param.flow_control;
  to.retry_count = param.retry_count;
  to.rnr_retry_count = param.rnr_retry_count;
  to.srq = param.srq != 0;
  to.qpn = param.qp_num;
  return to;
}

device::ConnParam FromRdma(const rdma_ud_param& param) {
  device::ConnParam to;
  to.private_data = PrivateData(param.private_data, param.private_data_len);
  to.qpn = param.qp_num;
  to.qkey = param.qkey;
  return to;
}

uint32_t EventType(const rdma_cm_event& event) noexcept {
  static_assert(sizeof(event.event) == sizeof(uint32_t));
  uint32_t type;
  std::memcpy(&type, &event.event, sizeof(type));
  return type;
}

std::optional<device::CmEvent> FromRdma(const rdma_cm_event& event, bool datagram) {
  if (EventType(event) > RDMA_CM_EVENT_TIMEWAIT_EXIT) return std::nullopt;
  device::CmEvent to;
  to.type = static_cast<device::CmEventType>(event.event);
  to.status = event.status;
  const rdma_ud_param& ud = event.param.ud;
  if (datagram && CarriesUdParam(event.event)) {
    to.param = FromRdma(ud);
    // A request does not say: the answer goes to where it came from.
    if (ud.ah_attr.is_global != 0 || ud.ah_attr.dlid != 0) to.av = FromIbv(ud.ah_attr);
  }
  if (IsMulticast(event.event)) {
    // librdmacm puts the caller's context here.
    to.multicast_cookie = reinterpret_cast<uintptr_t>(ud.private_data);
    if (event.event == RDMA_CM_EVENT_MULTICAST_JOIN) {
      to.param.qpn = ud.qp_num;
      to.param.qkey = ud.qkey;
      to.av = FromIbv(ud.ah_attr);
    }
  }
  if (!datagram && CarriesConnParam(event.event)) to.param = FromRdma(event.param.conn);
  return to;
}

device::QpAttr FromRdma(const ibv_qp_attr& attr, int mask, uint32_t peer_scope_id) {
  device::QpAttr to = FromIbv(attr, static_cast<uint32_t>(mask));
  if ((mask & IBV_QP_AV) == 0) return to;
  to.av.dest = to.av.dest.WithScope(peer_scope_id);
  return to;
}

SocketAddress FromRdma(const sockaddr* address) {
  return SocketAddress::FromSockaddr(address, sizeof(sockaddr_storage)).value_or(SocketAddress());
}

}  // namespace rdmad::verbs
