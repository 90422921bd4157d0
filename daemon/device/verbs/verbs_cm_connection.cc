// Connections of a VerbsCmEndpoint, its options, and what they make of a QP.
#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/verbs_cm_endpoint.h"

namespace rdmad::verbs {
namespace {

// Private data that the messages have room for; the IP CM annex takes 36 bytes of those that begin
// a connection.
constexpr size_t kIpCmBytes = 36;
constexpr size_t kReqBytes = 92 - kIpCmBytes;
constexpr size_t kRepBytes = 196;
constexpr size_t kRejBytes = 148;
constexpr size_t kSidrReqBytes = 216 - kIpCmBytes;
constexpr size_t kSidrRepBytes = 136;

constexpr uint8_t kMaxAckTimeout = 31;

absl::Status CheckOption(uint32_t option, std::span<const uint8_t> value) {
  size_t bytes;
  switch (option) {
    case RDMA_OPTION_ID_TOS:
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      bytes = sizeof(uint8_t);
      break;
    case RDMA_OPTION_ID_REUSEADDR:
    case RDMA_OPTION_ID_AFONLY:
      bytes = sizeof(int);
      break;
    default:
      return absl::UnimplementedError(absl::StrCat("set_option: option=", option));
  }
  if (value.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "set_option: option=", option, " value_bytes=", value.size(), " must_be=", bytes));
  }
  if (option == RDMA_OPTION_ID_ACK_TIMEOUT && value[0] > kMaxAckTimeout) {
    return absl::InvalidArgumentError(
        absl::StrCat("set_option: ack_timeout=", value[0], " limit=", kMaxAckTimeout));
  }
  return absl::OkStatus();
}

}  // namespace

// ---- connection ----

absl::Status VerbsCmEndpoint::Connect(const device::ConnParam& param) {
  RD_RETURN_IF_ERROR(Require("connect", State::kRouteResolved));
  RD_RETURN_IF_ERROR(CheckPrivateData("connect", param.private_data.size(),
                                      is_datagram() ? kSidrReqBytes : kReqBytes));
  if (param.qp_type == device::QpType::kUc) {
    return absl::UnimplementedError("connect: rdma_cm connects RC queue pairs only");
  }
  rdma_conn_param to = ToRdma(param);
  if (rdma_connect(id_, &to) != 0) return Failed("connect", Einval::kArgument);
  state_ = State::kReqSent;
  return absl::OkStatus();
}

absl::Status VerbsCmEndpoint::Establish() {
  RD_RETURN_IF_ERROR(Require("establish", State::kRepRcvd));
  if (rdma_establish(id_) != 0) return Failed("establish", Einval::kState);
  state_ = State::kEstablished;
  return absl::OkStatus();
}

absl::Status VerbsCmEndpoint::Accept(const device::ConnParam& param) {
  RD_RETURN_IF_ERROR(Require("accept", State::kReqRcvd));
  RD_RETURN_IF_ERROR(CheckPrivateData("accept", param.private_data.size(),
                                      is_datagram() ? kSidrRepBytes : kRepBytes));
  if (is_datagram() && param.qkey != 0 && param.qkey != device::kUdpQkey) {
    return absl::UnimplementedError(absl::StrFormat(
        "accept: qkey=%#x: rdma_cm tells the peer %#x, whatever the QP has", param.qkey,
        device::kUdpQkey));
  }
  rdma_conn_param to = ToRdma(param);
  // The peer may have given up; the kernel says so only now.
  if (rdma_accept(id_, &to) != 0) return Failed("accept", Einval::kState);
  state_ = is_datagram() ? State::kEstablished : State::kRepSent;
  return absl::OkStatus();
}

absl::Status VerbsCmEndpoint::Reject(std::span<const uint8_t> private_data) {
  RD_RETURN_IF_ERROR(unusable_);
  if (state_ != State::kReqRcvd && state_ != State::kRepRcvd) return WrongState("reject");
  RD_RETURN_IF_ERROR(
      CheckPrivateData("reject", private_data.size(), is_datagram() ? kSidrRepBytes : kRejBytes));
  if (rdma_reject(id_, private_data.data(), static_cast<uint8_t>(private_data.size())) != 0) {
    return Failed("reject", Einval::kState);
  }
  state_ = state_ == State::kReqRcvd ? State::kRejected : State::kClosed;
  return absl::OkStatus();
}

absl::Status VerbsCmEndpoint::Disconnect() {
  RD_RETURN_IF_ERROR(unusable_);
  switch (state_) {
    case State::kRepSent:
      // The kernel sends no DREQ before the RTU, so that is waited for; see OnReported().
      state_ = State::kDreqSent;
      return absl::OkStatus();
    case State::kEstablished:
      if (is_datagram()) return WrongState("disconnect");
      break;
    case State::kDreqSent:
    case State::kTimewait:
    case State::kRejected:
    case State::kClosed:
      return absl::OkStatus();  // over already
    case State::kIdle:
    case State::kBound:
    case State::kAddrQuery:
    case State::kAddrResolved:
    case State::kRouteQuery:
    case State::kRouteResolved:
    case State::kListening:
    case State::kReqSent:
    case State::kRepRcvd:
    case State::kReqRcvd:
    case State::kRemoved:
      return WrongState("disconnect");
  }
  if (rdma_disconnect(id_) != 0) return Failed("disconnect", Einval::kState);
  state_ = State::kDreqSent;
  return absl::OkStatus();
}

absl::Status VerbsCmEndpoint::NotifyCommEstablished() {
  RD_RETURN_IF_ERROR(unusable_);
  if (state_ == State::kEstablished) return absl::OkStatus();
  if (state_ != State::kRepSent) return WrongState("notify");
  // EISCONN: the RTU was quicker, and its event is on its way. So is that of this notification.
  if (rdma_notify(id_, IBV_EVENT_COMM_EST) != 0 && errno != EISCONN) {
    return Failed("notify", Einval::kState);
  }
  return absl::OkStatus();
}

absl::Status VerbsCmEndpoint::SetOption(uint32_t option, std::span<const uint8_t> value) {
  RD_RETURN_IF_ERROR(CheckOption(option, value));
  if (deferred_) {
    DeferOption(option, value);
    return absl::OkStatus();
  }
  RD_RETURN_IF_ERROR(unusable_);
  return SetKernelOption(option, value);
}

absl::Status VerbsCmEndpoint::SetKernelOption(uint32_t option, std::span<const uint8_t> value) {
  std::array<uint8_t, sizeof(int)> copy{};  // librdmacm's argument is not const
  std::copy(value.begin(), value.end(), copy.begin());
  if (rdma_set_option(id_, RDMA_OPTION_ID, static_cast<int>(option), copy.data(), value.size()) !=
      0) {
    return Failed("set_option", Einval::kState);
  }
  return absl::OkStatus();
}

// ---- QP attributes ----

absl::StatusOr<device::QpAttr> VerbsCmEndpoint::InitQpAttr(device::QpState state) const {
  RD_RETURN_IF_ERROR(unusable_);
  return is_datagram() ? DatagramQpAttr(state) : KernelQpAttr(state);
}

absl::StatusOr<device::QpAttr> VerbsCmEndpoint::DatagramQpAttr(device::QpState state) const {
  if (state == device::QpState::kInit) return KernelQpAttr(state);
  if (context() == nullptr) return WrongState("init_qp_attr");
  device::QpAttr attr;
  attr.mask = device::kQpAttrState;
  attr.state = state;
  if (state == device::QpState::kRts) attr.mask |= device::kQpAttrSqPsn;
  return attr;
}

absl::StatusOr<device::QpAttr> VerbsCmEndpoint::KernelQpAttr(device::QpState state) const {
  ibv_qp_attr attr{};
  attr.qp_state = static_cast<ibv_qp_state>(state);
  int mask = 0;
  if (rdma_init_qp_attr(id_, &attr, &mask) != 0) return Failed("init_qp_attr", Einval::kState);
  return FromRdma(attr, mask, peer().ip.scope_id());
}

device::Mtu VerbsCmEndpoint::path_mtu() const {
  if (id_ == nullptr) return device::Mtu::k1024;
  if (state_ == State::kRouteResolved && id_->route.num_paths > 0) {
    return static_cast<device::Mtu>(id_->route.path_rec[0].mtu);
  }
  const absl::StatusOr<device::QpAttr> attr = InitQpAttr(device::QpState::kRtr);
  if (!attr.ok() || (attr->mask & device::kQpAttrPathMtu) == 0) return device::Mtu::k1024;
  return attr->path_mtu;
}

}  // namespace rdmad::verbs
