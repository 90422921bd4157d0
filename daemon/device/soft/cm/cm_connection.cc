#include "daemon/device/soft/cm/cm_connection.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/device/soft/cm/cm_event.h"

namespace rdmad::soft {

using device::CmEvent;
using device::CmEventType;
using wire::CmMessageKind;
using wire::RejReason;

CmConnection::CmConnection(CmConnectionHost* host, const CmOptions& options, CmState begin,
                           const CmFacts& facts, device::Device* device, OwnerId owner)
    : host_(host),
      options_(options),
      device_(device),
      passive_(begin == CmState::kReqRcvd),
      state_(begin),
      facts_(facts),
      owner_(owner) {}

void CmConnection::MoveTo(CmState next, int status) {
  RD_CHECK(IsLegalMove(state_, next), "the connection's state machine took a wrong turn");
  const CmState from = std::exchange(state_, next);
  host_->SetTimer(*this, device::kNever);
  host_->OnMoved(*this, from);
  switch (next) {
    case CmState::kEstablished:
      // The active side's owner knows: it asked for this.
      if (passive_) EmitPlain(CmEventType::kEstablished);
      break;
    case CmState::kTimewait:
      EmitPlain(CmEventType::kDisconnected, status);
      host_->SetTimer(*this, host_->now() + TimewaitNs());
      break;
    case CmState::kRejected:
      host_->SetTimer(*this, host_->now() + options_.rejected_ns);
      break;
    case CmState::kReqSent:
    case CmState::kRepRcvd:
    case CmState::kReqRcvd:
    case CmState::kRepSent:
    case CmState::kDreqSent:
    case CmState::kClosed:
      break;
  }
}

int64_t CmConnection::TimewaitNs() const noexcept {
  return std::max(options_.timewait_ns, wire::CmTimeout(facts_.ack_timeout).count());
}

absl::Status CmConnection::WrongState(const char* call) const {
  return absl::FailedPreconditionError(absl::StrCat(call, ": state=", CmStateName(state_)));
}

// ---- the owner's wishes ----

void CmConnection::Start(const wire::CmReq& req) {
  SendKept(req);
  StartRetries(options_.max_cm_retries);
}

void CmConnection::AwaitOwner() {
  host_->SetTimer(*this, host_->now() + options_.request_ttl_ns);
}

absl::Status CmConnection::Establish() {
  if (state_ != CmState::kRepRcvd) return WrongState("establish");
  SendRtu();
  MoveTo(CmState::kEstablished);
  return absl::OkStatus();
}

absl::Status CmConnection::Accept(const device::ConnParam& param) {
  if (state_ != CmState::kReqRcvd) return WrongState("accept");
  if (param.qp_type.value_or(facts_.qp_type) != facts_.qp_type) {
    (void)Reject(RejReason::kInvalidTransport, {});
    return absl::InvalidArgumentError(
        absl::StrCat("accept: qp_type=", static_cast<int>(*param.qp_type), " peer_qp_type=",
                     static_cast<int>(facts_.qp_type), " (2: RC, 3: UC): the request is rejected"));
  }
  facts_.local_qpn = wire::Qpn(param.qpn);
  facts_.responder_resources = param.responder_resources;
  facts_.initiator_depth = param.initiator_depth;
  wire::CmRep rep;
  rep.local_comm_id = facts_.local_id;
  rep.remote_comm_id = facts_.remote_id;
  rep.local_qpn = facts_.local_qpn;
  rep.starting_psn = facts_.local_psn;
  rep.responder_resources = param.responder_resources;
  rep.initiator_depth = param.initiator_depth;
  rep.target_ack_delay = options_.target_ack_delay;
  rep.end_to_end_flow_control = param.flow_control != 0;
  rep.rnr_retry_count = std::min<uint8_t>(param.rnr_retry_count, 7);
  rep.srq = param.srq;
  rep.local_ca_guid = facts_.node_guid;
  std::copy(param.private_data.begin(), param.private_data.end(), rep.private_data.begin());
  MoveTo(CmState::kRepSent);
  SendKept(rep);
  StartRetries(options_.max_cm_retries);
  return absl::OkStatus();
}

absl::Status CmConnection::Reject(std::span<const uint8_t> private_data) {
  return Reject(RejReason::kConsumerDefined, private_data);
}

absl::Status CmConnection::Reject(RejReason reason, std::span<const uint8_t> private_data) {
  wire::CmRej rej;
  if (state_ == CmState::kReqRcvd) {
    rej = MakeRej(CmMessageKind::kReq, reason);
  } else if (state_ == CmState::kRepRcvd) {
    rej = MakeRej(CmMessageKind::kRep, reason);
  } else {
    return WrongState("reject");
  }
  std::copy(private_data.begin(), private_data.end(), rej.private_data.begin());
  SendKept(rej);
  // A REP that comes again finds no connection and is rejected for that.
  MoveTo(passive_ ? CmState::kRejected : CmState::kClosed);
  return absl::OkStatus();
}

absl::Status CmConnection::Disconnect() {
  switch (state_) {
    case CmState::kRepSent:
    case CmState::kEstablished:
      SendDreq();
      MoveTo(CmState::kDreqSent);
      StartRetries(options_.max_dreq_retries);
      return absl::OkStatus();
    case CmState::kDreqSent:
    case CmState::kTimewait:
    case CmState::kRejected:
    case CmState::kClosed:
      return absl::OkStatus();
    case CmState::kReqSent:
    case CmState::kRepRcvd:
    case CmState::kReqRcvd:
      break;
  }
  return WrongState("disconnect");
}

absl::Status CmConnection::NotifyCommEstablished() {
  if (state_ == CmState::kEstablished) return absl::OkStatus();
  if (state_ != CmState::kRepSent) return WrongState("notify");
  MoveTo(CmState::kEstablished);
  return absl::OkStatus();
}

void CmConnection::Abandon() {
  owner_ = 0;
  switch (state_) {
    case CmState::kReqSent:
      SendTimeoutRej();
      MoveTo(CmState::kClosed);
      break;
    case CmState::kRepRcvd:
    case CmState::kReqRcvd:
      (void)Reject({});  // fits both states
      break;
    case CmState::kRepSent:
    case CmState::kEstablished:
      (void)Disconnect();  // fits both states
      break;
    case CmState::kDreqSent:
    case CmState::kTimewait:
    case CmState::kRejected:
    case CmState::kClosed:
      break;
  }
}

void CmConnection::Drop() {
  if (state_ != CmState::kClosed) MoveTo(CmState::kClosed);
  owner_ = 0;
}

void CmConnection::OnStale() {
  switch (state_) {
    case CmState::kRepRcvd:
    case CmState::kReqRcvd:
    case CmState::kRepSent:
      EmitPlain(CmEventType::kRejected, static_cast<int>(RejReason::kStaleConnection));
      MoveTo(CmState::kClosed);
      break;
    case CmState::kEstablished:
      MoveTo(CmState::kTimewait);
      break;
    case CmState::kReqSent:
    case CmState::kDreqSent:
    case CmState::kTimewait:
    case CmState::kRejected:
    case CmState::kClosed:
      break;
  }
}

// ---- time ----

void CmConnection::StartRetries(int max_retries) {
  retries_left_ = max_retries;
  retry_delay_ns_ = options_.first_retry_ns;
  host_->SetTimer(*this, host_->now() + retry_delay_ns_);
}

bool CmConnection::Retry() {
  if (retries_left_ == 0) return false;
  --retries_left_;
  retry_delay_ns_ =
      std::min(retry_delay_ns_ * 2, wire::CmTimeout(options_.response_timeout).count());
  host_->SetTimer(*this, host_->now() + retry_delay_ns_);
  Repeat();
  return true;
}

void CmConnection::OnTimer() {
  switch (state_) {
    case CmState::kReqSent:
      if (std::exchange(asks_later_, false)) {
        Repeat();
        StartRetries(options_.max_cm_retries);
        return;
      }
      [[fallthrough]];
    case CmState::kRepSent:
      if (Retry()) return;
      SendTimeoutRej();
      EmitPlain(CmEventType::kUnreachable, -ETIMEDOUT);
      MoveTo(CmState::kClosed);
      return;
    case CmState::kReqRcvd:
      EmitPlain(CmEventType::kUnreachable, -ETIMEDOUT);
      SendOnce(MakeRej(CmMessageKind::kReq, RejReason::kTimeout));
      MoveTo(CmState::kClosed);
      return;
    case CmState::kDreqSent:
      if (!Retry()) MoveTo(CmState::kTimewait, -ETIMEDOUT);
      return;
    case CmState::kTimewait:
      EmitPlain(CmEventType::kTimewaitExit);
      MoveTo(CmState::kClosed);
      return;
    case CmState::kRejected:
      MoveTo(CmState::kClosed);
      return;
    case CmState::kRepRcvd:
    case CmState::kEstablished:
    case CmState::kClosed:
      return;  // no timer here
  }
}

// ---- messages out ----

void CmConnection::Keep(const wire::CmMessage& message) {
  wire::BuildCmMad(facts_.transaction_id, message, kept_);
}

void CmConnection::SendKept(const wire::CmMessage& message) {
  Keep(message);
  Repeat();
}

void CmConnection::SendOnce(const wire::CmMessage& message) {
  Mad mad;
  wire::BuildCmMad(facts_.transaction_id, message, mad);
  host_->SendMad(facts_.flow, mad);
}

void CmConnection::SendRtu() {
  SendOnce(wire::CmRtu{.local_comm_id = facts_.local_id, .remote_comm_id = facts_.remote_id});
}

void CmConnection::SendDreq() {
  // A new exchange, named by who begins it.
  facts_.transaction_id = (facts_.transaction_id & ~uint64_t{0xffffffff}) | facts_.local_id.value();
  SendKept(wire::CmDreq{.local_comm_id = facts_.local_id,
                        .remote_comm_id = facts_.remote_id,
                        .remote_qpn = facts_.remote_qpn});
}

void CmConnection::SendDrep() {
  SendOnce(wire::CmDrep{.local_comm_id = facts_.local_id, .remote_comm_id = facts_.remote_id});
}

void CmConnection::SendMra(CmMessageKind kind) {
  SendOnce(wire::CmMra{.local_comm_id = facts_.local_id,
                       .remote_comm_id = facts_.remote_id,
                       .message = kind,
                       .service_timeout = options_.mra_service_timeout});
}

wire::CmRej CmConnection::MakeRej(CmMessageKind kind, RejReason reason) const {
  wire::CmRej rej;
  // Like the kernel's: a rejected REQ has made no communication id on this side.
  if (kind != CmMessageKind::kReq) rej.local_comm_id = facts_.local_id;
  rej.remote_comm_id = facts_.remote_id;
  rej.message = kind;
  rej.reason = reason;
  return rej;
}

void CmConnection::SendTimeoutRej() {
  // The peer finds its half by our id and GUID, since we may not know its id.
  wire::CmRej rej = MakeRej(CmMessageKind::kOther, RejReason::kTimeout);
  rej.info_bytes = sizeof(facts_.node_guid);
  for (size_t i = 0; i < sizeof(facts_.node_guid); ++i) {
    rej.info[i] = static_cast<uint8_t>(facts_.node_guid >> (56 - 8 * i));
  }
  SendOnce(rej);
}

// ---- events ----

void CmConnection::EmitPlain(CmEventType type, int status) {
  CmEvent event = MakeCmEvent(type, status);
  event.path_mtu = facts_.path_mtu;
  host_->Emit(*this, std::move(event));
}

void CmConnection::EmitRejected(const wire::CmRej& rej) {
  CmEvent event = MakeCmEvent(CmEventType::kRejected, static_cast<int>(rej.reason));
  event.param.private_data.assign(rej.private_data.begin(), rej.private_data.end());
  host_->Emit(*this, std::move(event));
}

bool CmConnection::IsRepetition(const wire::CmReq& req, uint64_t transaction_id) const noexcept {
  // A DREQ of ours gave the exchange a name of its own.
  const bool same_exchange = transaction_id == facts_.transaction_id ||
                             state_ == CmState::kDreqSent || state_ == CmState::kTimewait;
  return passive_ && req.local_comm_id == facts_.remote_id && req.local_qpn == facts_.remote_qpn &&
         req.starting_psn == facts_.remote_psn && same_exchange;
}

}  // namespace rdmad::soft
