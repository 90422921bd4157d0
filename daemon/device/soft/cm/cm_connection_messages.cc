// The handlers of cm_connection.h: one per state, what each message means there.
#include <algorithm>
#include <utility>

#include "daemon/device/soft/cm/cm_connection.h"
#include "daemon/device/soft/cm/cm_event.h"

namespace rdmad::soft {
namespace {

using wire::CmMessageKind;
using wire::RejReason;

constexpr int64_t kLongestMraNs = 70'000'000'000;  // rdma_cm asks for 69 s

// The MTU that a peer proposes instead, 0 if it proposes none. It stands where a REQ has it, in the
// upper half of the byte; a lower half is understood as well.
uint8_t ProposedMtu(const wire::CmRej& rej) {
  if (rej.info_bytes == 0) return 0;
  const uint8_t upper = rej.info[0] >> 4;
  return upper != 0 ? upper : rej.info[0];
}

}  // namespace

void CmConnection::OnMessage(const wire::CmMessage& message) {
  switch (state_) {
    case CmState::kReqSent:
      return InReqSent(message);
    case CmState::kRepRcvd:
      return InRepRcvd(message);
    case CmState::kReqRcvd:
      return InReqRcvd(message);
    case CmState::kRepSent:
      return InRepSent(message);
    case CmState::kEstablished:
      return InEstablished(message);
    case CmState::kDreqSent:
      return InDreqSent(message);
    case CmState::kTimewait:
      return InTimewait(message);
    case CmState::kRejected:
      return InRejected(message);
    case CmState::kClosed:
      return;
  }
}

void CmConnection::InReqSent(const wire::CmMessage& message) {
  if (const auto* rep = std::get_if<wire::CmRep>(&message)) {
    OnRep(*rep);
  } else if (const auto* rej = std::get_if<wire::CmRej>(&message)) {
    OnRejOfReq(*rej);
  } else if (const auto* mra = std::get_if<wire::CmMra>(&message)) {
    if (mra->message == CmMessageKind::kReq) OnMra(*mra);
  } else if (const auto* dreq = std::get_if<wire::CmDreq>(&message)) {
    // The peer has accepted and gone again; its REP was lost.
    facts_.remote_id = dreq->local_comm_id;
    SendDrep();
    EmitPlain(device::CmEventType::kRejected, static_cast<int>(RejReason::kConsumerDefined));
    MoveTo(CmState::kClosed);
  }
}

void CmConnection::InRepRcvd(const wire::CmMessage& message) {
  if (std::holds_alternative<wire::CmRep>(message)) {
    SendMra(CmMessageKind::kRep);  // our owner still moves its QP
  } else if (const auto* rej = std::get_if<wire::CmRej>(&message)) {
    EmitRejected(*rej);
    MoveTo(CmState::kClosed);
  } else if (std::holds_alternative<wire::CmDreq>(message)) {
    SendDrep();
    EmitPlain(device::CmEventType::kRejected, static_cast<int>(RejReason::kConsumerDefined));
    MoveTo(CmState::kClosed);
  }
}

void CmConnection::InReqRcvd(const wire::CmMessage& message) {
  if (std::holds_alternative<wire::CmReq>(message)) {
    SendMra(CmMessageKind::kReq);
    host_->SetTimer(*this, host_->now() + options_.request_ttl_ns);
  } else if (const auto* rej = std::get_if<wire::CmRej>(&message)) {
    OnWithdrawn(*rej);
  }
}

void CmConnection::InRepSent(const wire::CmMessage& message) {
  if (std::holds_alternative<wire::CmReq>(message)) {
    Repeat();
  } else if (std::holds_alternative<wire::CmRtu>(message)) {
    MoveTo(CmState::kEstablished);
  } else if (const auto* rej = std::get_if<wire::CmRej>(&message)) {
    OnWithdrawn(*rej);
  } else if (const auto* mra = std::get_if<wire::CmMra>(&message)) {
    if (mra->message == CmMessageKind::kRep) OnMra(*mra);
  } else if (std::holds_alternative<wire::CmDreq>(message)) {
    SendDrep();
    MoveTo(CmState::kTimewait);
  }
}

void CmConnection::InEstablished(const wire::CmMessage& message) {
  if (std::holds_alternative<wire::CmRep>(message)) {
    SendRtu();  // the last one was lost
  } else if (std::holds_alternative<wire::CmDreq>(message)) {
    SendDrep();
    MoveTo(CmState::kTimewait);
  } else if (std::holds_alternative<wire::CmRej>(message)) {
    MoveTo(CmState::kTimewait);  // the peer never heard our RTU and gave up
  }
}

void CmConnection::InDreqSent(const wire::CmMessage& message) {
  if (std::holds_alternative<wire::CmDrep>(message)) {
    MoveTo(CmState::kTimewait);
  } else if (std::holds_alternative<wire::CmDreq>(message)) {
    SendDrep();  // both sides at once: each answers, none waits
    MoveTo(CmState::kTimewait);
  } else if (std::holds_alternative<wire::CmReq>(message)) {
    SendOnce(MakeRej(CmMessageKind::kReq, RejReason::kConsumerDefined));
  }
}

void CmConnection::InTimewait(const wire::CmMessage& message) {
  if (std::holds_alternative<wire::CmDreq>(message)) {
    SendDrep();
  } else if (std::holds_alternative<wire::CmReq>(message)) {
    SendOnce(MakeRej(CmMessageKind::kReq, RejReason::kConsumerDefined));
  }
}

void CmConnection::InRejected(const wire::CmMessage& message) {
  if (!std::holds_alternative<wire::CmReq>(message)) return;
  Repeat();
  host_->SetTimer(*this, host_->now() + options_.rejected_ns);
}

void CmConnection::OnRep(const wire::CmRep& rep) {
  facts_.remote_id = rep.local_comm_id;
  facts_.remote_qpn = rep.local_qpn;
  facts_.remote_psn = rep.starting_psn;
  facts_.responder_resources = rep.initiator_depth;
  facts_.initiator_depth = rep.responder_resources;
  facts_.rnr_retry_count = rep.rnr_retry_count;
  const uint8_t with_peer = AckTimeoutCode(facts_.ack_timeout, rep.target_ack_delay);
  facts_.ack_timeout = BoundedAckTimeout(with_peer, options_.local_ack_timeout);
  host_->OnRemoteQpn(*this);
  MoveTo(CmState::kRepRcvd);

  device::CmEvent event = MakeCmEvent(device::CmEventType::kConnectResponse);
  event.path_mtu = facts_.path_mtu;
  event.param.private_data.assign(rep.private_data.begin(), rep.private_data.end());
  event.param.responder_resources = rep.initiator_depth;
  event.param.initiator_depth = rep.responder_resources;
  event.param.flow_control = rep.end_to_end_flow_control ? 1 : 0;
  event.param.rnr_retry_count = rep.rnr_retry_count;
  event.param.srq = rep.srq;
  event.param.qpn = rep.local_qpn.value();
  host_->Emit(*this, std::move(event));
}

void CmConnection::OnRejOfReq(const wire::CmRej& rej) {
  if (rej.reason == RejReason::kStaleConnection && stale_refusals_ < options_.max_stale_retries) {
    OnStaleRefusal();
    return;
  }
  const uint8_t proposed = ProposedMtu(rej);
  const bool smaller = proposed >= static_cast<uint8_t>(device::Mtu::k256) &&
                       proposed < static_cast<uint8_t>(facts_.path_mtu);
  if (rej.reason != RejReason::kInvalidMtu || !smaller) {
    EmitRejected(rej);
    MoveTo(CmState::kClosed);
    return;
  }
  // Ask again for what the peer can take. The MTU only shrinks, so this ends; a late REJ of the old
  // REQ names the old id.
  std::optional<wire::CmReq> req = RenamedReq();
  if (!req) return;
  facts_.path_mtu = static_cast<device::Mtu>(proposed);
  req->path_mtu = proposed;
  Start(*req);
}

// The application has done nothing wrong, and the peer ends what is in the way.
void CmConnection::OnStaleRefusal() {
  const std::optional<wire::CmReq> req = RenamedReq();
  if (!req) return;
  Keep(*req);
  asks_later_ = true;
  host_->SetTimer(*this, host_->now() + (options_.first_stale_retry_ns << stale_refusals_++));
}

std::optional<wire::CmReq> CmConnection::RenamedReq() {
  wire::MadHeader header;
  wire::CmMessage kept;
  if (wire::ParseCmMessage(kept_, &header, &kept) != wire::MadDropReason::kNone) return std::nullopt;
  wire::CmReq req = std::get<wire::CmReq>(kept);
  host_->Rename(*this);
  facts_.transaction_id = (facts_.transaction_id & ~uint64_t{0xffffffff}) | facts_.local_id.value();
  req.local_comm_id = facts_.local_id;
  return req;
}

void CmConnection::OnWithdrawn(const wire::CmRej& rej) {
  EmitRejected(rej);
  // A REQ that was overtaken by the REJ must not come up as a new request.
  wire::BuildCmMad(facts_.transaction_id, MakeRej(CmMessageKind::kReq, RejReason::kConsumerDefined),
                   kept_);
  MoveTo(CmState::kRejected);
}

void CmConnection::OnMra(const wire::CmMra& mra) {
  const int64_t service_ns = std::min(wire::CmTimeout(mra.service_timeout).count(), kLongestMraNs);
  host_->SetTimer(*this, host_->now() + std::max(service_ns, retry_delay_ns_));
}

}  // namespace rdmad::soft
