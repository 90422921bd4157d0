// The UDP port space in the connection manager: questions to listeners, answers to who asked.
#include <cerrno>
#include <memory>
#include <utility>

#include "daemon/device/soft/cm/cm_event.h"
#include "daemon/device/soft/cm/sidr_request.h"
#include "daemon/device/soft/cm/soft_cm_endpoint.h"
#include "daemon/device/soft/cm/soft_connection_manager.h"

namespace rdmad::soft {

absl::StatusOr<SidrExchange*> SoftConnectionManager::AddSidr(SidrState begin, SidrFacts facts,
                                                             device::Device* device,
                                                             EndpointId owner) {
  if (sidr_.size() >= options_.max_connections) {
    return absl::ResourceExhaustedError("cm: too many service resolutions");
  }
  if (begin == SidrState::kReqSent) {
    facts.request_id = sidr_.UnusedId([this] { return Random(); });
    facts.transaction_id = transaction_base_ | facts.request_id.value();
  }
  return sidr_.Add(std::make_unique<SidrExchange>(this, options_, begin, facts, device, owner));
}

// ---- SidrHost ----

void SoftConnectionManager::SetTimer(SidrExchange& exchange, TimeNs deadline) {
  sidr_.SetTimer(&exchange, deadline);
}

void SoftConnectionManager::Emit(SidrExchange& exchange, device::CmEvent event) {
  if (event.status == -ETIMEDOUT) ++counters_.timeouts;
  if (exchange.owner() != 0) Post(exchange.owner(), std::move(event));
}

void SoftConnectionManager::OnMoved(SidrExchange& exchange, SidrState from) {
  if (from == SidrState::kReqRcvd) OnRequestSettled();
  switch (exchange.state()) {
    case SidrState::kAnswered:
      RememberAnswered(exchange);
      ReleaseOwner(exchange);
      break;
    case SidrState::kClosed:
      sidr_closed_.push_back(&exchange);
      wake_.Kick();
      ReleaseOwner(exchange);
      break;
    case SidrState::kReqSent:
    case SidrState::kReqRcvd:
      break;
  }
}

void SoftConnectionManager::ReleaseOwner(const SidrExchange& exchange) {
  const auto owner = endpoints_.find(exchange.owner());
  if (owner != endpoints_.end()) owner->second->OnSidrOver();
}

void SoftConnectionManager::RememberAnswered(const SidrExchange& exchange) {
  answered_.emplace_back(exchange.facts().flow, exchange.facts().request_id);
  if (answered_.size() <= options_.max_rejected) return;
  SidrExchange* const oldest = sidr_.FindPassive(answered_.front().first, answered_.front().second);
  answered_.pop_front();
  // Those whose time is up have left the table, not this list.
  if (oldest != nullptr && oldest->state() == SidrState::kAnswered) oldest->Drop();
}

// ---- messages ----

void SoftConnectionManager::OnSidrReq(const Flow& flow, uint64_t transaction_id,
                                      const wire::CmSidrReq& req) {
  SidrExchange* const known = sidr_.FindPassive(flow, req.request_id);
  if (known != nullptr) {
    // Another question under an id that is not free yet comes again, and then finds it free.
    if (known->facts().service_id != req.service_id) return;
    ++counters_.repetitions;
    known->OnRepeatedReq();
    return;
  }
  CmRequest request;
  if (const auto status = ReadSidrReq(req, flow, &request)) {
    RefuseSidr(flow, transaction_id, req, *status);
    return;
  }
  const auto listener = ports_.FindListener(request.space, request.local.port, flow.local);
  device::Device* const device = directory_->FindByAddress(flow.local);
  if (!listener || device == nullptr) {
    RefuseSidr(flow, transaction_id, req, wire::SidrStatus::kUnsupportedServiceId);
    return;
  }
  SoftCmEndpoint* const endpoint = endpoints_.at(*listener);
  std::shared_ptr<const void> place = endpoint->TakeBacklogPlace();
  if (place == nullptr) {
    ++counters_.requests_over_backlog;
    return;
  }
  SidrFacts facts;
  facts.request_id = req.request_id;
  facts.transaction_id = transaction_id;
  facts.service_id = req.service_id;
  facts.flow.local = flow.local;
  facts.flow.remote = flow.remote;
  facts.flow.traffic_class = flow.traffic_class;
  facts.sgid_index = SgidIndexOf(*device, flow.local);
  facts.path_mtu = PathMtu(*device, flow.local, flow.remote);
  TakeSidrRequest(request, facts, req, device, endpoint, std::move(place));
}

void SoftConnectionManager::TakeSidrRequest(const CmRequest& request, const SidrFacts& facts,
                                            const wire::CmSidrReq& req, device::Device* device,
                                            SoftCmEndpoint* listener,
                                            std::shared_ptr<const void> place) {
  auto endpoint = std::make_unique<SoftCmEndpoint>(this, listener->space(), nullptr);
  absl::StatusOr<SidrExchange*> added = absl::ResourceExhaustedError("cm: pending requests");
  if (pending_requests_ < options_.max_pending_requests) {
    added = AddSidr(SidrState::kReqRcvd, facts, device, endpoint->id());
  }
  if (!added.ok()) {
    ++counters_.requests_over_limit;
    return;
  }
  SidrExchange* const exchange = *added;
  ++counters_.requests;
  ++pending_requests_;
  exchange->AwaitOwner();
  endpoint->Adopt(exchange, request.local, request.peer);

  device::CmEvent event = MakeCmEvent(device::CmEventType::kConnectRequest);
  event.param = ParamOf(req);
  event.path_mtu = facts.path_mtu;
  event.av = AvOf(facts);
  event.new_endpoint = std::move(endpoint);
  event.backlog_place = std::move(place);
  Post(listener->id(), std::move(event));
}

void SoftConnectionManager::OnSidrRep(const Flow& flow, const wire::CmSidrRep& rep) {
  SidrExchange* const exchange = sidr_.FindActive(rep.request_id);
  if (exchange == nullptr || exchange->state() != SidrState::kReqSent ||
      exchange->facts().flow.remote != flow.remote || exchange->facts().flow.local != flow.local) {
    ++counters_.mads_unmatched;
    return;
  }
  exchange->OnRep(rep);
}

void SoftConnectionManager::RefuseSidr(const Flow& flow, uint64_t transaction_id,
                                       const wire::CmSidrReq& req, wire::SidrStatus status) {
  ++counters_.requests_refused;
  wire::CmSidrRep rep;
  rep.request_id = req.request_id;
  rep.service_id = req.service_id;
  rep.status = status;
  Answer(flow, transaction_id, rep);
}

// ---- Poll() ----

bool SoftConnectionManager::RunSidrTimers(int budget) {
  for (int i = 0; i < budget; ++i) {
    SidrExchange* const due = sidr_.TakeDue(now_);
    if (due == nullptr) return false;
    due->OnTimer();
    if (due->state() == SidrState::kReqSent) ++counters_.retries;
  }
  return true;
}

void SoftConnectionManager::ReapSidr() {
  for (SidrExchange* exchange : sidr_closed_) sidr_.Remove(exchange);
  sidr_closed_.clear();
}

}  // namespace rdmad::soft
