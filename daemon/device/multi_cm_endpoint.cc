#include "daemon/device/multi_cm_endpoint.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"

namespace rdmad::device {
namespace {

// Managers give out ephemeral ports without knowing of each other; each attempt tries another port.
constexpr int kPortAttempts = 8;

// A manager that cannot take part, which is no error while another one can.
bool CannotServe(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsUnavailable(status) || absl::IsUnimplemented(status);
}

IpAddress LoopbackOf(const IpAddress& wildcard) {
  if (wildcard.is_v4()) return IpAddress::FromV4(127, 0, 0, 1);
  return IpAddress::FromV6({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1});
}

}  // namespace

MultiCmEndpoint::MultiCmEndpoint(MultiConnectionManager* manager, PortSpace space,
                                 CmEventSink* sink)
    : manager_(manager), space_(space), sink_(sink) {}

MultiCmEndpoint::~MultiCmEndpoint() = default;

absl::StatusOr<CmEndpoint*> MultiCmEndpoint::Decided(const char* call) const {
  if (parts_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(call, ": state=", state_name()));
  }
  return parts_.front()->endpoint.get();
}

absl::StatusOr<std::unique_ptr<MultiCmEndpoint::Part>> MultiCmEndpoint::MakePart(
    ConnectionManager* manager) {
  auto part = std::make_unique<Part>(this, manager);
  part->endpoint = manager->CreateEndpoint(space_, part.get());
  for (const Option& option : options_) {
    RD_RETURN_IF_ERROR(part->endpoint->SetOption(option.name, option.value));
  }
  return part;
}

absl::StatusOr<ConnectionManager*> MultiCmEndpoint::ManagerOf(const char* call,
                                                              const SocketAddress& local) const {
  ConnectionManager* const manager = manager_->ManagerOf(local.ip);
  if (manager != nullptr) return manager;
  // What is wrong with an address that no device can have, the managers know.
  if (local.ip.is_link_local() && local.ip.scope_id() == 0) return manager_->managers().back();
  return absl::NotFoundError(absl::StrCat(call, ": no device has ", local.ToString()));
}

// ---- addresses ----

absl::Status MultiCmEndpoint::BindAddr(const SocketAddress& local) {
  if (!parts_.empty())
    return parts_.front()->endpoint->BindAddr(local);  // it says that it is bound
  if (local.ip.is_any()) {
    RD_ASSIGN_OR_RETURN(parts_, BindAll(local));
    return absl::OkStatus();
  }
  RD_ASSIGN_OR_RETURN(ConnectionManager* const manager, ManagerOf("bind_addr", local));
  RD_ASSIGN_OR_RETURN(std::unique_ptr<Part> part, MakePart(manager));
  RD_RETURN_IF_ERROR(part->endpoint->BindAddr(local));
  parts_.push_back(std::move(part));
  return absl::OkStatus();
}

absl::StatusOr<MultiCmEndpoint::Parts> MultiCmEndpoint::BindAll(const SocketAddress& wildcard) {
  Parts clashes;  // kept until the end, so that each attempt gets another port
  absl::StatusOr<Parts> bound = TryBindAll(wildcard, &clashes);
  for (int i = 1; i < kPortAttempts && wildcard.port == 0 && absl::IsAlreadyExists(bound.status());
       ++i) {
    bound = TryBindAll(wildcard, &clashes);
  }
  return bound;
}

absl::StatusOr<MultiCmEndpoint::Parts> MultiCmEndpoint::TryBindAll(const SocketAddress& wildcard,
                                                                   Parts* clash) {
  Parts parts;
  absl::Status first_refusal;
  SocketAddress local = wildcard;
  for (ConnectionManager* manager : manager_->managers()) {
    absl::StatusOr<std::unique_ptr<Part>> part = MakePart(manager);
    const absl::Status bound = part.ok() ? (*part)->endpoint->BindAddr(local) : part.status();
    if (bound.ok()) {
      local.port = (*part)->endpoint->local().port;
      parts.push_back(*std::move(part));
    } else if (CannotServe(bound)) {
      first_refusal.Update(bound);
    } else {
      std::move(parts.begin(), parts.end(), std::back_inserter(*clash));
      return bound;
    }
  }
  if (parts.empty()) return first_refusal;
  return parts;
}

absl::StatusOr<MultiCmEndpoint::Part*> MultiCmEndpoint::PartOf(ConnectionManager* manager) {
  for (const auto& part : parts_) {
    if (part->manager == manager) return part.get();
  }
  RD_ASSIGN_OR_RETURN(std::unique_ptr<Part> part, MakePart(manager));
  RD_RETURN_IF_ERROR(part->endpoint->BindAddr(local()));
  parts_.push_back(std::move(part));
  return parts_.back().get();
}

absl::Status MultiCmEndpoint::ResolveAddr(const SocketAddress& local, const SocketAddress& peer,
                                          uint32_t timeout_ms) {
  if (parts_.size() == 1) return parts_.front()->endpoint->ResolveAddr(local, peer, timeout_ms);
  // As a destination, the wildcard is this host.
  const IpAddress target = peer.ip.is_any() ? LoopbackOf(peer.ip) : peer.ip;
  if (!parts_.empty()) {
    RD_ASSIGN_OR_RETURN(Part* const chosen, PartOf(manager_->ManagerTowards(target)));
    RD_RETURN_IF_ERROR(chosen->endpoint->ResolveAddr(local, peer, timeout_ms));
    std::erase_if(parts_, [chosen](const auto& one) { return one.get() != chosen; });
    return absl::OkStatus();
  }
  ConnectionManager* manager = nullptr;
  if (local.ip.is_any()) {
    manager = manager_->ManagerTowards(target);
  } else {
    RD_ASSIGN_OR_RETURN(manager, ManagerOf("resolve_addr", local));
  }
  RD_ASSIGN_OR_RETURN(std::unique_ptr<Part> part, MakePart(manager));
  RD_RETURN_IF_ERROR(part->endpoint->ResolveAddr(local, peer, timeout_ms));
  parts_.push_back(std::move(part));
  return absl::OkStatus();
}

absl::Status MultiCmEndpoint::Listen(int backlog) {
  if (parts_.empty()) RD_RETURN_IF_ERROR(BindAddr({IpAddress::AnyV4(), 0}));
  const SocketAddress address = local();
  absl::Status first_refusal;
  for (auto part = parts_.begin(); part != parts_.end();) {
    const absl::Status listening = (*part)->endpoint->Listen(backlog);
    if (listening.ok()) {
      ++part;
      continue;
    }
    first_refusal.Update(listening);
    if (parts_.size() > 1 && CannotServe(listening)) {
      part = parts_.erase(part);
      continue;
    }
    // Those before it listen and cannot be told to stop: begin anew with what was there.
    if (part != parts_.begin()) {
      parts_.clear();
      absl::StatusOr<Parts> bound = BindAll(address);
      if (bound.ok()) parts_ = *std::move(bound);
    }
    return first_refusal;
  }
  return absl::OkStatus();
}

// ---- calls of the one part ----

absl::Status MultiCmEndpoint::ResolveRoute(uint32_t timeout_ms) {
  RD_ASSIGN_OR_RETURN(CmEndpoint* const endpoint, Decided("resolve_route"));
  return endpoint->ResolveRoute(timeout_ms);
}

absl::Status MultiCmEndpoint::Connect(const ConnParam& param) {
  RD_ASSIGN_OR_RETURN(CmEndpoint* const endpoint, Decided("connect"));
  return endpoint->Connect(param);
}

absl::Status MultiCmEndpoint::Establish() {
  RD_ASSIGN_OR_RETURN(CmEndpoint* const endpoint, Decided("establish"));
  return endpoint->Establish();
}

absl::Status MultiCmEndpoint::Accept(const ConnParam& param) {
  RD_ASSIGN_OR_RETURN(CmEndpoint* const endpoint, Decided("accept"));
  return endpoint->Accept(param);
}

absl::Status MultiCmEndpoint::Reject(std::span<const uint8_t> private_data) {
  RD_ASSIGN_OR_RETURN(CmEndpoint* const endpoint, Decided("reject"));
  return endpoint->Reject(private_data);
}

absl::Status MultiCmEndpoint::Disconnect() {
  RD_ASSIGN_OR_RETURN(CmEndpoint* const endpoint, Decided("disconnect"));
  return endpoint->Disconnect();
}

absl::Status MultiCmEndpoint::NotifyCommEstablished() {
  RD_ASSIGN_OR_RETURN(CmEndpoint* const endpoint, Decided("notify"));
  return endpoint->NotifyCommEstablished();
}

absl::Status MultiCmEndpoint::JoinMulticast(const SocketAddress& group, uint32_t join_flags,
                                            uint64_t cookie) {
  RD_ASSIGN_OR_RETURN(CmEndpoint* const endpoint, Decided("join_multicast"));
  return endpoint->JoinMulticast(group, join_flags, cookie);
}

absl::Status MultiCmEndpoint::LeaveMulticast(const SocketAddress& group) {
  RD_ASSIGN_OR_RETURN(CmEndpoint* const endpoint, Decided("leave_multicast"));
  return endpoint->LeaveMulticast(group);
}

absl::StatusOr<QpAttr> MultiCmEndpoint::InitQpAttr(QpState state) const {
  RD_ASSIGN_OR_RETURN(CmEndpoint* const endpoint, Decided("init_qp_attr"));
  return endpoint->InitQpAttr(state);
}

absl::Status MultiCmEndpoint::SetOption(uint32_t option, std::span<const uint8_t> value) {
  if (!parts_.empty()) {
    absl::Status first_refusal;
    for (const auto& part : parts_) first_refusal.Update(part->endpoint->SetOption(option, value));
    if (!first_refusal.ok() || parts_.size() == 1) return first_refusal;
  } else {
    // Asked of endpoints that nobody will use, so that a wrong option is refused here and not
    // later.
    for (ConnectionManager* manager : manager_->managers()) {
      RD_RETURN_IF_ERROR(manager->CreateEndpoint(space_, nullptr)->SetOption(option, value));
    }
  }
  options_.push_back({option, {value.begin(), value.end()}});
  return absl::OkStatus();
}

// ---- what it is ----

Device* MultiCmEndpoint::device() const noexcept {
  return parts_.empty() ? nullptr : parts_.front()->endpoint->device();
}

SocketAddress MultiCmEndpoint::local() const noexcept {
  return parts_.empty() ? SocketAddress() : parts_.front()->endpoint->local();
}

SocketAddress MultiCmEndpoint::peer() const noexcept {
  return parts_.empty() ? SocketAddress() : parts_.front()->endpoint->peer();
}

const char* MultiCmEndpoint::state_name() const noexcept {
  return parts_.empty() ? "idle" : parts_.front()->endpoint->state_name();
}

uint32_t MultiCmEndpoint::remote_qpn() const noexcept {
  return parts_.empty() ? 0 : parts_.front()->endpoint->remote_qpn();
}

// ---- events ----

void MultiCmEndpoint::OnPartEvent(Part& part, CmEvent event) {
  if (event.type == CmEventType::kDeviceRemoval && parts_.size() > 1) {
    // The others go on serving the wildcard.
    std::erase_if(parts_, [&part](const auto& one) { return one.get() == &part; });
    return;
  }
  // Last: the sink may destroy this.
  if (sink_ != nullptr) sink_->OnCmEvent(std::move(event));
}

}  // namespace rdmad::device
