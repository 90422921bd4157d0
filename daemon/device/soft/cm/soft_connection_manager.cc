#include "daemon/device/soft/cm/soft_connection_manager.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/soft/cm/soft_cm_endpoint.h"
#include "daemon/device/soft/link_mtu.h"

namespace rdmad::soft {

absl::StatusOr<std::unique_ptr<SoftConnectionManager>> SoftConnectionManager::Create(
    MadIo* io, const DeviceDirectory* directory, CmOptions options) {
  RD_CHECK(options.clock != nullptr, "the connection manager needs a clock");
  RD_ASSIGN_OR_RETURN(device::WakeFd wake, device::WakeFd::Create(io->poll_fd()));
  return std::unique_ptr<SoftConnectionManager>(
      new SoftConnectionManager(io, directory, std::move(options), std::move(wake)));
}

SoftConnectionManager::SoftConnectionManager(MadIo* io, const DeviceDirectory* directory,
                                             CmOptions options, device::WakeFd wake)
    : io_(io),
      directory_(directory),
      options_(std::move(options)),
      wake_(std::move(wake)),
      random_(options_.seed),
      transaction_base_(random_() & ~uint64_t{0xffffffff}),
      ports_(options_.ephemeral_first, options_.ephemeral_last) {}

SoftConnectionManager::~SoftConnectionManager() {
  events_.clear();  // with the endpoints of requests that nobody got to see
  RD_CHECK(endpoints_.empty(), "endpoints are destroyed before their connection manager");
}

std::unique_ptr<device::CmEndpoint> SoftConnectionManager::CreateEndpoint(
    device::PortSpace port_space, device::CmEventSink* sink) {
  return std::make_unique<SoftCmEndpoint>(this, port_space, sink);
}

// ---- for the endpoints ----

SoftConnectionManager::EndpointId SoftConnectionManager::Register(SoftCmEndpoint* endpoint) {
  endpoints_.emplace(++last_endpoint_id_, endpoint);
  return last_endpoint_id_;
}

void SoftConnectionManager::Unregister(EndpointId id) {
  ports_.Release(id);
  endpoints_.erase(id);
}

void SoftConnectionManager::Post(EndpointId endpoint, device::CmEvent event) {
  events_.push_back({endpoint, std::move(event)});
  wake_.Kick();
}

device::Mtu SoftConnectionManager::PathMtu(const device::Device& device, const IpAddress& local,
                                           const IpAddress& peer) const {
  return PathMtuOf(device.QueryPort().active_mtu, directory_->RouteMtuBytes(local, peer));
}

void SoftConnectionManager::SetQueryTimer(EndpointId id, TimeNs deadline) {
  queries_.emplace(deadline, id);
}

absl::StatusOr<CmConnection*> SoftConnectionManager::AddConnection(CmState begin, CmFacts facts,
                                                                   device::Device* device,
                                                                   EndpointId owner) {
  if (connections_.size() >= options_.max_connections) {
    return absl::ResourceExhaustedError("cm: too many connections");
  }
  facts.local_id = connections_.UnusedId([this] { return Random(); });
  facts.local_psn = wire::Psn(static_cast<uint32_t>(Random()));
  if (begin == CmState::kReqSent) {
    facts.transaction_id = transaction_base_ | facts.local_id.value();
  }
  return connections_.Add(
      std::make_unique<CmConnection>(this, options_, begin, facts, device, owner));
}

// ---- CmConnectionHost ----

void SoftConnectionManager::SendMad(const Flow& flow, const Mad& mad) {
  if (io_->IsLocal(flow.remote)) {
    ++counters_.mads_local;
    if (local_mads_.size() >= options_.max_queued_local_mads) return;
    Flow arriving = flow;
    std::swap(arriving.local, arriving.remote);
    local_mads_.push_back({arriving, mad});
    wake_.Kick();
    return;
  }
  ++counters_.mads_sent;
  if (!io_->SendMad(flow, mad)) ++counters_.send_failures;
}

void SoftConnectionManager::SetTimer(CmConnection& connection, TimeNs deadline) {
  connections_.SetTimer(&connection, deadline);
}

void SoftConnectionManager::Emit(CmConnection& connection, device::CmEvent event) {
  if (event.type == device::CmEventType::kUnreachable) ++counters_.timeouts;
  if (connection.owner() != 0) Post(connection.owner(), std::move(event));
}

void SoftConnectionManager::OnMoved(CmConnection& connection, CmState from) {
  const CmState to = connection.state();
  if (from == CmState::kReqRcvd) OnRequestSettled();
  if (to == CmState::kEstablished) ++counters_.established;
  if (to == CmState::kRejected) Remember(connection, options_.max_rejected, &rejected_);
  if (to == CmState::kTimewait) Remember(connection, options_.max_timewait, &timewait_);
  const bool qp_in_use =
      to == CmState::kRepRcvd || to == CmState::kRepSent || to == CmState::kEstablished;
  if (!qp_in_use) connections_.RemoveRemoteQpn(&connection);
  if (to != CmState::kClosed) return;
  closed_.push_back(&connection);
  wake_.Kick();
  const auto owner = endpoints_.find(connection.owner());
  if (owner != endpoints_.end()) owner->second->OnConnectionClosed();
}

void SoftConnectionManager::Remember(const CmConnection& connection, size_t most,
                                     std::deque<wire::CommId>* in_order) {
  in_order->push_back(connection.facts().local_id);
  if (in_order->size() <= most) return;
  CmConnection* oldest = connections_.Find(in_order->front());
  in_order->pop_front();
  // Those whose time is up have left the table, not this list.
  if (oldest != nullptr && oldest->state() == connection.state()) oldest->OnTimer();
}

void SoftConnectionManager::Rename(CmConnection& connection) {
  connections_.Rename(&connection, connections_.UnusedId([this] { return Random(); }));
}

void SoftConnectionManager::OnRemoteQpn(CmConnection& connection) {
  // QP 0 and 1 are nobody's data QP: an application connected without one.
  if (connection.facts().remote_qpn.value() <= 1) return;
  CmConnection* stale = connections_.AddRemoteQpn(&connection);
  if (stale == nullptr || stale == &connection) return;
  ++counters_.stale;
  stale->OnStale();
}

// ---- Poll() ----

void SoftConnectionManager::Poll(TimeNs now) {
  now_ = now;
  wake_.Clear();
  const int budget = options_.poll_budget;
  const bool timers_left = RunTimers(budget);
  const bool sidr_left = RunSidrTimers(budget);
  const bool queries_left = RunQueries(budget);
  const bool mads_left = TakeMads(budget);
  const bool events_left = DeliverEvents(budget);
  Reap();
  // Events that were handled may have caused work that this turn did not get to.
  if (timers_left || sidr_left || queries_left || mads_left || events_left ||
      !local_mads_.empty() || !events_.empty()) {
    wake_.Kick();
  }
}

TimeNs SoftConnectionManager::NextDeadline() const noexcept {
  const TimeNs query = queries_.empty() ? device::kNever : queries_.begin()->first;
  return std::min({query, connections_.NextDeadline(), sidr_.NextDeadline()});
}

bool SoftConnectionManager::RunTimers(int budget) {
  for (int i = 0; i < budget; ++i) {
    CmConnection* due = connections_.TakeDue(now_);
    if (due == nullptr) return false;
    const CmState before = due->state();
    due->OnTimer();
    const bool waits_for_answer =
        before == CmState::kReqSent || before == CmState::kRepSent || before == CmState::kDreqSent;
    if (waits_for_answer && due->state() == before) ++counters_.retries;
  }
  return true;
}

bool SoftConnectionManager::RunQueries(int budget) {
  for (int i = 0; i < budget; ++i) {
    if (queries_.empty() || queries_.begin()->first > now_) return false;
    const EndpointId id = queries_.begin()->second;
    queries_.erase(queries_.begin());
    const auto endpoint = endpoints_.find(id);
    if (endpoint != endpoints_.end()) endpoint->second->OnQueryTimer();
  }
  return true;
}

bool SoftConnectionManager::TakeMads(int budget) {
  int taken = 0;
  ReceivedMad received;
  while (taken < budget && io_->Receive(&received)) {
    ++taken;
    if (received.first_data_of != wire::Qpn()) {
      OnFirstData(received);
      continue;
    }
    ++counters_.mads_received;
    OnMad(received.flow, received.mad);
  }
  for (int i = 0; i < budget && !local_mads_.empty(); ++i) {
    const LocalMad local = local_mads_.front();
    local_mads_.pop_front();
    OnMad(local.flow, local.mad);
  }
  return taken == budget;
}

bool SoftConnectionManager::DeliverEvents(int budget) {
  // Only what is there now: a sink that always causes another event does not hold the loop.
  const size_t count = std::min<size_t>(events_.size(), static_cast<size_t>(budget));
  for (size_t i = 0; i < count; ++i) {
    QueuedEvent queued = std::move(events_.front());
    events_.pop_front();
    // An endpoint that has gone gets nothing; the endpoint of a request inside the event rejects it
    // as it goes.
    const auto endpoint = endpoints_.find(queued.endpoint);
    if (endpoint != endpoints_.end()) endpoint->second->Deliver(std::move(queued.event));
  }
  return !events_.empty();
}

void SoftConnectionManager::Reap() {
  for (CmConnection* connection : closed_) connections_.Remove(connection);
  closed_.clear();
  ReapSidr();
}

// ---- devices and addresses that come and go ----

void SoftConnectionManager::OnDeviceRemoved(device::Device* device) {
  Enter();
  for (const auto& [id, endpoint] : endpoints_) {
    if (endpoint->device() == device) endpoint->OnDeviceRemoved();
  }
  connections_.ForEachOf(device, [](CmConnection& connection) { connection.Drop(); });
  sidr_.ForEachOf(device, [](SidrExchange& exchange) { exchange.Drop(); });
}

void SoftConnectionManager::OnAddressChanged(const IpAddress& address) {
  Enter();
  for (const auto& [id, endpoint] : endpoints_) {
    if (endpoint->local().ip == address) endpoint->OnAddressChanged();
  }
}

}  // namespace rdmad::soft
