// The calls of soft_cm_endpoint.h that begin, answer and end connections, and the QP attributes
// that come of them.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/soft/cm/cm_request.h"
#include "daemon/device/soft/cm/sidr_request.h"
#include "daemon/device/soft/cm/soft_cm_endpoint.h"

namespace rdmad::soft {
namespace {

absl::Status CheckPrivateData(const char* call, size_t bytes, size_t limit) {
  if (bytes <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": private_data_bytes=", bytes, " limit=", limit));
}

}  // namespace

absl::Status SoftCmEndpoint::CheckConnect(const device::ConnParam& param,
                                          size_t private_data_limit) const {
  if (state_ != State::kRouteResolved) return WrongState("connect");
  RD_RETURN_IF_ERROR(CheckPrivateData("connect", param.private_data.size(), private_data_limit));
  if (manager_->directory_->FindByAddress(local_.ip) == device_) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("connect: device=", device_->name(), " has lost ", local_.ToString()));
}

absl::Status SoftCmEndpoint::Connect(const device::ConnParam& param) {
  if (is_datagram()) return ConnectDatagram(param);
  RD_RETURN_IF_ERROR(CheckConnect(param, wire::kReqAppBytes));
  if (param.qp_type == device::QpType::kUd) {
    return absl::InvalidArgumentError("connect: a UD queue pair needs the UDP port space");
  }
  manager_->Enter();
  CmFacts facts;
  facts.flow.local = local_.ip;
  facts.flow.remote = peer_.ip;
  facts.flow.traffic_class = tos_;
  facts.sgid_index = SgidIndexOf(*device_, local_.ip);
  facts.node_guid = device_->attr().node_guid;
  facts.path_mtu = manager_->PathMtu(*device_, local_.ip, peer_.ip);
  facts.qp_type = param.qp_type.value_or(device::QpType::kRc);
  facts.local_qpn = wire::Qpn(param.qpn);
  facts.responder_resources = param.responder_resources;
  facts.initiator_depth = param.initiator_depth;
  facts.retry_count = std::min<uint8_t>(param.retry_count, 7);
  facts.rnr_retry_count = std::min<uint8_t>(param.rnr_retry_count, 7);
  // Of the path; to wait for ever says nothing about that.
  facts.ack_timeout =
      BoundedAckTimeout(ack_timeout_.value_or(0), manager_->options_.local_ack_timeout);
  RD_ASSIGN_OR_RETURN(connection_, manager_->AddConnection(CmState::kReqSent, facts, device_, id_));
  state_ = State::kConnected;
  connection_->Start(
      MakeReq(connection_->facts(), param, space_, local_, peer_, manager_->options_));
  return absl::OkStatus();
}

absl::Status SoftCmEndpoint::Establish() {
  if (connection_ == nullptr) return WrongState("establish");
  manager_->Enter();
  return connection_->Establish();
}

absl::Status SoftCmEndpoint::Accept(const device::ConnParam& param) {
  if (is_datagram()) {
    wire::CmSidrRep rep;
    rep.qpn = wire::Qpn(param.qpn);
    rep.qkey = wire::Qkey(param.qkey != 0 ? param.qkey : qkey_);
    RD_RETURN_IF_ERROR(AnswerDatagram("accept", rep, param.private_data));
    qkey_ = rep.qkey.value();
    return absl::OkStatus();
  }
  if (connection_ == nullptr) return WrongState("accept");
  RD_RETURN_IF_ERROR(CheckPrivateData("accept", param.private_data.size(), wire::kRepPrivateBytes));
  manager_->Enter();
  return connection_->Accept(param);
}

absl::Status SoftCmEndpoint::Reject(std::span<const uint8_t> private_data) {
  if (is_datagram()) {
    wire::CmSidrRep rep;
    rep.status = wire::SidrStatus::kRejected;
    return AnswerDatagram("reject", rep, private_data);
  }
  if (connection_ == nullptr) return WrongState("reject");
  RD_RETURN_IF_ERROR(CheckPrivateData("reject", private_data.size(), wire::kRejPrivateBytes));
  manager_->Enter();
  return connection_->Reject(private_data);
}

absl::Status SoftCmEndpoint::Disconnect() {
  if (is_datagram() || state_ != State::kConnected) return WrongState("disconnect");
  if (connection_ == nullptr) return absl::OkStatus();  // over already
  manager_->Enter();
  return connection_->Disconnect();
}

absl::Status SoftCmEndpoint::NotifyCommEstablished() {
  if (connection_ == nullptr) return WrongState("notify");
  manager_->Enter();
  return connection_->NotifyCommEstablished();
}

// ---- QP attributes ----

absl::StatusOr<device::QpAttr> SoftCmEndpoint::InitQpAttr(device::QpState state) const {
  if (is_datagram()) return DatagramQpAttr(state);
  const uint8_t min_rnr_timer = manager_->options_.min_rnr_timer;
  if (connection_ == nullptr) {
    // Before there is a connection a QP can be initialized, without rights for the peer.
    if (device_ == nullptr || state_ == State::kConnected || state != device::QpState::kInit) {
      return WrongState("init_qp_attr");
    }
    RD_ASSIGN_OR_RETURN(device::QpAttr attr, MakeQpAttr(CmFacts(), state, min_rnr_timer));
    attr.access_flags = 0;
    return attr;
  }
  switch (connection_->state()) {
    case CmState::kReqSent:
      if (state != device::QpState::kInit) return WrongState("init_qp_attr");
      [[fallthrough]];
    case CmState::kRepRcvd:
    case CmState::kReqRcvd:
    case CmState::kRepSent:
    case CmState::kEstablished: {
      absl::StatusOr<device::QpAttr> attr = MakeQpAttr(connection_->facts(), state, min_rnr_timer);
      if (attr.ok() && ack_timeout_) attr->timeout = *ack_timeout_;
      return attr;
    }
    case CmState::kDreqSent:
    case CmState::kTimewait:
    case CmState::kRejected:
    case CmState::kClosed:
      break;
  }
  return WrongState("init_qp_attr");
}

// ---- port space UDP ----

absl::Status SoftCmEndpoint::ConnectDatagram(const device::ConnParam& param) {
  RD_RETURN_IF_ERROR(CheckConnect(param, wire::kSidrReqAppBytes));
  if (peer_.ip.is_multicast()) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect: ", peer_.ToString(), " is a group, which answers no request"));
  }
  manager_->Enter();
  SidrFacts facts;
  facts.service_id = wire::IpServiceId(wire::PortSpace::kUdp, peer_.port);
  facts.flow.local = local_.ip;
  facts.flow.remote = peer_.ip;
  facts.flow.traffic_class = tos_;
  facts.sgid_index = SgidIndexOf(*device_, local_.ip);
  facts.path_mtu = manager_->PathMtu(*device_, local_.ip, peer_.ip);
  RD_ASSIGN_OR_RETURN(sidr_, manager_->AddSidr(SidrState::kReqSent, facts, device_, id_));
  state_ = State::kConnected;
  sidr_->Start(MakeSidrReq(sidr_->facts(), param.private_data, local_, peer_));
  return absl::OkStatus();
}

absl::Status SoftCmEndpoint::AnswerDatagram(const char* call, const wire::CmSidrRep& rep,
                                            std::span<const uint8_t> private_data) {
  if (sidr_ == nullptr || !sidr_->is_passive()) return WrongState(call);
  RD_RETURN_IF_ERROR(CheckPrivateData(call, private_data.size(), wire::kSidrRepPrivateBytes));
  manager_->Enter();
  wire::CmSidrRep whole = rep;
  std::copy(private_data.begin(), private_data.end(), whole.private_data.begin());
  RD_RETURN_IF_ERROR(sidr_->Answer(whole));
  if (rep.status == wire::SidrStatus::kSuccess) state_ = State::kEstablished;
  return absl::OkStatus();
}

absl::StatusOr<device::QpAttr> SoftCmEndpoint::DatagramQpAttr(device::QpState state) const {
  if (device_ == nullptr) return WrongState("init_qp_attr");
  device::QpAttr attr;
  attr.state = state;
  switch (state) {
    case device::QpState::kInit:
      attr.mask = device::kQpAttrState | device::kQpAttrPkeyIndex | device::kQpAttrPort |
                  device::kQpAttrQkey;
      attr.qkey = qkey_;
      return attr;
    case device::QpState::kRtr:
      attr.mask = device::kQpAttrState;
      return attr;
    case device::QpState::kRts:
      attr.mask = device::kQpAttrState | device::kQpAttrSqPsn;
      return attr;
    case device::QpState::kReset:
    case device::QpState::kSqd:
    case device::QpState::kSqe:
    case device::QpState::kErr:
      break;
  }
  return absl::InvalidArgumentError("init_qp_attr: only INIT, RTR and RTS have attributes");
}

}  // namespace rdmad::soft
