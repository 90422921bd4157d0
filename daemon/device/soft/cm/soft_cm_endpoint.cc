#include "daemon/device/soft/cm/soft_cm_endpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/soft/cm/cm_event.h"
#include "daemon/device/soft/cm/sidr_request.h"
#include "daemon/device/soft/cm/source_address.h"

namespace rdmad::soft {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
// How often the neighbour table is looked at: soon, for a peer that answers, and then not too
// often.
constexpr int64_t kFirstQueryPauseNs = kNsPerMs;
constexpr int64_t kLongestQueryPauseNs = 100 * kNsPerMs;

// rdma_set_option(3), level RDMA_OPTION_ID.
enum : uint32_t {
  kOptionTos = 0,
  kOptionReuseAddr = 1,
  kOptionAfOnly = 2,
  kOptionAckTimeout = 3,
};

absl::StatusOr<uint8_t> ByteOption(std::span<const uint8_t> value, uint8_t limit) {
  if (value.size() != 1 || value[0] > limit) {
    return absl::InvalidArgumentError("set_option: the value is one byte within its limit");
  }
  return value[0];
}

absl::StatusOr<bool> FlagOption(std::span<const uint8_t> value) {
  int flag;
  if (value.size() != sizeof(flag)) {
    return absl::InvalidArgumentError("set_option: the value is an int");
  }
  std::memcpy(&flag, value.data(), sizeof(flag));
  return flag != 0;
}

}  // namespace

SoftCmEndpoint::SoftCmEndpoint(SoftConnectionManager* manager, device::PortSpace space,
                               device::CmEventSink* sink)
    : manager_(manager),
      space_(space),
      id_(manager->Register(this)),
      sink_(sink),
      qkey_(device::kUdpQkey) {}

SoftCmEndpoint::~SoftCmEndpoint() {
  manager_->Enter();
  manager_->Unregister(id_);
  if (connection_ != nullptr) connection_->Abandon();
  if (sidr_ != nullptr) sidr_->Abandon();
}

absl::Status SoftCmEndpoint::WrongState(const char* call) const {
  return absl::FailedPreconditionError(absl::StrCat(call, ": state=", state_name()));
}

const char* SoftCmEndpoint::state_name() const noexcept {
  switch (state_) {
    case State::kIdle:
      return "idle";
    case State::kBound:
      return "bound";
    case State::kAddrQuery:
      return "addr_query";
    case State::kAddrResolved:
      return "addr_resolved";
    case State::kRouteQuery:
      return "route_query";
    case State::kRouteResolved:
      return "route_resolved";
    case State::kListening:
      return "listening";
    case State::kEstablished:
      return "established";
    case State::kConnected:
      if (sidr_ != nullptr) return SidrStateName(sidr_->state());
      return CmStateName(connection_ == nullptr ? CmState::kClosed : connection_->state());
  }
  return "unknown";
}

// ---- addresses ----

absl::Status SoftCmEndpoint::BindAddr(const SocketAddress& local) {
  if (state_ != State::kIdle) return WrongState("bind_addr");
  return Bind(local);
}

absl::Status SoftCmEndpoint::Bind(const SocketAddress& local) {
  device::Device* device = nullptr;
  if (!local.ip.is_any()) {
    if (local.ip.is_link_local() && local.ip.scope_id() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("bind_addr: ", local.ToString(), " needs an interface (scope id)"));
    }
    device = manager_->directory_->FindByAddress(local.ip);
    if (device == nullptr) {
      return absl::NotFoundError(absl::StrCat("bind_addr: no device has ", local.ToString()));
    }
  }
  const device::PortTable::Claim claim{space_, local, reuse_addr_, v6_only_};
  RD_ASSIGN_OR_RETURN(const uint16_t port, manager_->ports_.Bind(id_, claim, manager_->Random()));
  local_ = {local.ip, port};
  device_ = device;
  state_ = State::kBound;
  return absl::OkStatus();
}

absl::Status SoftCmEndpoint::ResolveAddr(const SocketAddress& local, const SocketAddress& peer,
                                         uint32_t timeout_ms) {
  if (state_ != State::kIdle && state_ != State::kBound) return WrongState("resolve_addr");
  if (peer.ip.is_link_local() && peer.ip.scope_id() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("resolve_addr: ", peer.ToString(), " needs an interface (scope id)"));
  }
  if (state_ == State::kIdle) {
    // Unset means any address of the peer's family.
    SocketAddress from = local;
    if (from == SocketAddress()) from.ip = peer.ip.is_v4() ? IpAddress::AnyV4() : IpAddress();
    RD_RETURN_IF_ERROR(Bind(from));
  }
  const bool covers = local_.ip.is_v4() == peer.ip.is_v4() || local_.ip == IpAddress::AnyV6();
  if (!covers) {
    return absl::InvalidArgumentError(absl::StrCat("resolve_addr: ", local_.ToString(), " and ",
                                                   peer.ToString(), " are of different families"));
  }
  manager_->Enter();
  state_ = State::kAddrQuery;
  source_ = ChooseSource(*manager_->directory_, local_.ip, peer, space_);
  Neighbors* const neighbors = manager_->options_.neighbors;
  if (source_.error != 0 || neighbors == nullptr || source_.peer.ip.is_multicast() ||
      manager_->io_->IsLocal(source_.peer.ip) ||
      neighbors->Query(source_.peer.ip) == NeighborState::kReachable) {
    FinishAddrQuery(source_.error);
    return absl::OkStatus();
  }
  neighbors->Solicit(source_.local, source_.peer.ip);
  query_deadline_ = manager_->now() + int64_t{timeout_ms} * kNsPerMs;
  query_pause_ns_ = kFirstQueryPauseNs;
  manager_->SetQueryTimer(id_, std::min(query_deadline_, manager_->now() + query_pause_ns_));
  return absl::OkStatus();
}

void SoftCmEndpoint::OnQueryTimer() {
  if (state_ != State::kAddrQuery) return;
  switch (manager_->options_.neighbors->Query(source_.peer.ip)) {
    case NeighborState::kReachable:
      FinishAddrQuery(0);
      return;
    case NeighborState::kFailed:
      FinishAddrQuery(-EHOSTUNREACH);
      return;
    case NeighborState::kUnknown:
      break;
  }
  if (manager_->now() >= query_deadline_) {
    FinishAddrQuery(-ETIMEDOUT);
    return;
  }
  query_pause_ns_ = std::min(query_pause_ns_ * 2, kLongestQueryPauseNs);
  manager_->SetQueryTimer(id_, std::min(query_deadline_, manager_->now() + query_pause_ns_));
}

void SoftCmEndpoint::FinishAddrQuery(int error) {
  const auto type =
      error == 0 ? device::CmEventType::kAddrResolved : device::CmEventType::kAddrError;
  manager_->Post(id_, MakeCmEvent(type, error));
}

absl::Status SoftCmEndpoint::ResolveRoute(uint32_t /*timeout_ms*/) {
  if (state_ != State::kAddrResolved) return WrongState("resolve_route");
  manager_->Enter();
  state_ = State::kRouteQuery;
  const int error = RouteErrno();
  device::CmEvent event = MakeCmEvent(
      error == 0 ? device::CmEventType::kRouteResolved : device::CmEventType::kRouteError, error);
  event.path_mtu = manager_->PathMtu(*device_, local_.ip, peer_.ip);
  manager_->Post(id_, std::move(event));
  return absl::OkStatus();
}

// What was found when the address was resolved may not be there any more.
int SoftCmEndpoint::RouteErrno() const {
  if (manager_->directory_->FindByAddress(local_.ip) != device_) return -ENODEV;
  return ChooseSource(*manager_->directory_, local_.ip, peer_, space_).error;
}

absl::Status SoftCmEndpoint::Listen(int) {
  if (state_ == State::kIdle) {
    RD_RETURN_IF_ERROR(Bind({IpAddress::AnyV4(), 0}));
  }
  if (state_ != State::kBound) return WrongState("listen");
  RD_RETURN_IF_ERROR(manager_->ports_.Listen(id_));
  state_ = State::kListening;
  return absl::OkStatus();
}

// ---- options ----
// What may still be set when is rdma_cm's rule.

absl::Status SoftCmEndpoint::SetOption(uint32_t option, std::span<const uint8_t> value) {
  switch (option) {
    case kOptionTos: {
      RD_ASSIGN_OR_RETURN(tos_, ByteOption(value, 0xff));
      return absl::OkStatus();
    }
    case kOptionReuseAddr: {
      RD_ASSIGN_OR_RETURN(const bool reuse, FlagOption(value));
      return SetReuseAddr(reuse);
    }
    case kOptionAfOnly: {
      RD_ASSIGN_OR_RETURN(const bool only, FlagOption(value));
      return SetV6Only(only);
    }
    case kOptionAckTimeout: {
      if (is_datagram()) {
        return absl::InvalidArgumentError("set_option: datagrams have no ACK timeout");
      }
      RD_ASSIGN_OR_RETURN(ack_timeout_, ByteOption(value, 31));
      return absl::OkStatus();
    }
    default:
      return absl::UnimplementedError(absl::StrCat("set_option: option=", option));
  }
}

absl::Status SoftCmEndpoint::SetReuseAddr(bool reuse) {
  if (state_ != State::kIdle && (!reuse || state_ == State::kListening)) {
    return WrongState("set_option");
  }
  reuse_addr_ = reuse;
  manager_->ports_.SetOptions(id_, reuse_addr_, v6_only_);
  return absl::OkStatus();
}

absl::Status SoftCmEndpoint::SetV6Only(bool only) {
  if (state_ != State::kIdle && state_ != State::kBound) return WrongState("set_option");
  v6_only_ = only;
  manager_->ports_.SetOptions(id_, reuse_addr_, v6_only_);
  return absl::OkStatus();
}

// ---- for the manager ----

void SoftCmEndpoint::Adopt(CmConnection* connection, const SocketAddress& local,
                           const SocketAddress& peer) {
  connection_ = connection;
  device_ = connection->device();
  local_ = local;
  peer_ = peer;
  remote_qpn_ = connection->facts().remote_qpn.value();
  state_ = State::kConnected;
}

void SoftCmEndpoint::Adopt(SidrExchange* exchange, const SocketAddress& local,
                           const SocketAddress& peer) {
  sidr_ = exchange;
  device_ = exchange->device();
  local_ = local;
  peer_ = peer;
  state_ = State::kConnected;
}

void SoftCmEndpoint::Deliver(device::CmEvent event) {
  switch (event.type) {
    // The answers to a query; the endpoint may have lost its device, and the query with it.
    case device::CmEventType::kAddrResolved:
      if (state_ != State::kAddrQuery) return;
      TakeSource(&event);
      break;
    case device::CmEventType::kAddrError:
      if (state_ != State::kAddrQuery) return;
      state_ = State::kBound;
      break;
    case device::CmEventType::kRouteResolved:
      if (state_ != State::kRouteQuery) return;
      state_ = State::kRouteResolved;
      break;
    case device::CmEventType::kRouteError:
      if (state_ != State::kRouteQuery) return;
      state_ = State::kAddrResolved;  // it may try again
      break;
    case device::CmEventType::kConnectResponse:
      remote_qpn_ = event.param.qpn;
      break;
    case device::CmEventType::kEstablished:
      if (!is_datagram()) break;
      if (state_ != State::kConnected || device_ == nullptr) return;  // the device has gone
      remote_qpn_ = event.param.qpn;
      state_ = State::kEstablished;
      break;
    case device::CmEventType::kMulticastJoin:
      if (!TakeJoined(event)) return;
      break;
    default:
      break;
  }
  if (sink_ != nullptr) sink_->OnCmEvent(std::move(event));
}

void SoftCmEndpoint::TakeSource(device::CmEvent* event) {
  // Not the device that the query began with: it may have gone since.
  device_ = manager_->directory_->FindByAddress(source_.local);
  if (device_ == nullptr) {
    *event = MakeCmEvent(device::CmEventType::kAddrError, -ENODEV);
    state_ = State::kBound;
    return;
  }
  local_.ip = source_.local;
  peer_ = source_.peer;
  state_ = State::kAddrResolved;
}

void SoftCmEndpoint::OnConnectionClosed() {
  connection_ = nullptr;
}

void SoftCmEndpoint::OnDeviceRemoved() {
  device_ = nullptr;
  memberships_.clear();
  // A listener stays: its address may come back with another device.
  if (state_ != State::kBound && state_ != State::kListening) state_ = State::kConnected;
  manager_->Post(id_, MakeCmEvent(device::CmEventType::kDeviceRemoval));
}

void SoftCmEndpoint::OnAddressChanged() {
  if (device_ == nullptr) return;  // it has heard of worse
  manager_->Post(id_, MakeCmEvent(device::CmEventType::kAddrChange));
}

}  // namespace rdmad::soft
