#include "daemon/device/soft/cm/sidr_exchange.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/device/soft/cm/cm_event.h"

namespace rdmad::soft {
namespace {

using device::CmEvent;
using device::CmEventType;

bool IsLegal(SidrState from, SidrState to) noexcept {
  switch (from) {
    case SidrState::kReqSent:
    case SidrState::kAnswered:
      return to == SidrState::kClosed;
    case SidrState::kReqRcvd:
      return to == SidrState::kAnswered || to == SidrState::kClosed;
    case SidrState::kClosed:
      return false;
  }
  return false;
}

}  // namespace

const char* SidrStateName(SidrState state) noexcept {
  switch (state) {
    case SidrState::kReqSent:
      return "sidr_req_sent";
    case SidrState::kReqRcvd:
      return "sidr_req_rcvd";
    case SidrState::kAnswered:
      return "sidr_answered";
    case SidrState::kClosed:
      return "closed";
  }
  return "unknown";
}

device::AddressVector AvOf(const SidrFacts& facts) noexcept {
  device::AddressVector av;
  av.dest = facts.flow.remote;
  av.sgid_index = facts.sgid_index;
  av.traffic_class = facts.flow.traffic_class;
  av.hop_limit = facts.flow.hop_limit;
  return av;
}

SidrExchange::SidrExchange(SidrHost* host, const CmOptions& options, SidrState begin,
                           const SidrFacts& facts, device::Device* device, OwnerId owner)
    : host_(host),
      options_(options),
      device_(device),
      passive_(begin == SidrState::kReqRcvd),
      state_(begin),
      facts_(facts),
      owner_(owner) {}

void SidrExchange::MoveTo(SidrState next) {
  RD_CHECK(IsLegal(state_, next), "the SIDR state machine took a wrong turn");
  const SidrState from = std::exchange(state_, next);
  host_->SetTimer(*this, device::kNever);
  host_->OnMoved(*this, from);
}

void SidrExchange::SendKept(const wire::CmMessage& message) {
  wire::BuildCmMad(facts_.transaction_id, message, kept_);
  Repeat();
}

// ---- the owner's wishes ----

void SidrExchange::Start(const wire::CmSidrReq& req) {
  SendKept(req);
  retries_left_ = options_.max_cm_retries;
  retry_delay_ns_ = options_.first_sidr_retry_ns;
  host_->SetTimer(*this, host_->now() + retry_delay_ns_);
}

void SidrExchange::AwaitOwner() {
  host_->SetTimer(*this, host_->now() + options_.request_ttl_ns);
}

absl::Status SidrExchange::Answer(wire::CmSidrRep rep) {
  if (state_ != SidrState::kReqRcvd) {
    return absl::FailedPreconditionError(absl::StrCat("answer: state=", SidrStateName(state_)));
  }
  rep.request_id = facts_.request_id;
  rep.service_id = facts_.service_id;
  SendKept(rep);
  MoveTo(SidrState::kAnswered);
  host_->SetTimer(*this, host_->now() + options_.sidr_answer_ns);
  return absl::OkStatus();
}

void SidrExchange::Abandon() {
  owner_ = 0;
  switch (state_) {
    case SidrState::kReqSent:
      MoveTo(SidrState::kClosed);  // the protocol has no way to take a REQ back
      break;
    case SidrState::kReqRcvd: {
      wire::CmSidrRep rep;
      rep.status = wire::SidrStatus::kRejected;
      (void)Answer(rep);  // fits the state
      break;
    }
    case SidrState::kAnswered:
    case SidrState::kClosed:
      break;
  }
}

void SidrExchange::Drop() {
  if (state_ != SidrState::kClosed) MoveTo(SidrState::kClosed);
  owner_ = 0;
}

// ---- messages and time ----

void SidrExchange::OnRep(const wire::CmSidrRep& rep) {
  if (state_ != SidrState::kReqSent) return;
  CmEvent event = MakeCmEvent(CmEventType::kEstablished);
  event.param.private_data.assign(rep.private_data.begin(), rep.private_data.end());
  event.path_mtu = facts_.path_mtu;
  if (rep.status == wire::SidrStatus::kSuccess) {
    event.param.qpn = rep.qpn.value();
    event.param.qkey = rep.qkey.value();
    event.av = AvOf(facts_);
  } else {
    // rdma_cm has no other event for a refusal; the status is the wire's.
    event.type = CmEventType::kUnreachable;
    event.status = static_cast<int>(rep.status);
  }
  host_->Emit(*this, std::move(event));
  MoveTo(SidrState::kClosed);
}

void SidrExchange::OnRepeatedReq() {
  switch (state_) {
    case SidrState::kReqRcvd:
      // The protocol has no MRA; a peer that gives up finds its answer when it asks anew.
      host_->SetTimer(*this, host_->now() + options_.request_ttl_ns);
      break;
    case SidrState::kAnswered:
      Repeat();
      host_->SetTimer(*this, host_->now() + options_.sidr_answer_ns);
      break;
    case SidrState::kReqSent:
    case SidrState::kClosed:
      break;
  }
}

void SidrExchange::OnTimer() {
  switch (state_) {
    case SidrState::kReqSent:
      if (retries_left_-- > 0) {
        retry_delay_ns_ =
            std::min(retry_delay_ns_ * 2, wire::CmTimeout(options_.response_timeout).count());
        host_->SetTimer(*this, host_->now() + retry_delay_ns_);
        Repeat();
        return;
      }
      host_->Emit(*this, MakeCmEvent(CmEventType::kUnreachable, -ETIMEDOUT));
      MoveTo(SidrState::kClosed);
      return;
    case SidrState::kReqRcvd:
      host_->Emit(*this, MakeCmEvent(CmEventType::kUnreachable, -ETIMEDOUT));
      MoveTo(SidrState::kClosed);
      return;
    case SidrState::kAnswered:
      MoveTo(SidrState::kClosed);
      return;
    case SidrState::kClosed:
      return;
  }
}

}  // namespace rdmad::soft
