#include "daemon/device/verbs/verbs_cm_endpoint.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"

namespace rdmad::verbs {
namespace {

using device::CmEventType;

// What is wrong in the network, not in the call: rdma_resolve_addr may say it at once, others hear
// it as an event.
bool IsNetworkError(int error) noexcept {
  switch (error) {
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case ETIMEDOUT:
    case ENODEV:
    case EADDRNOTAVAIL:
    case ECONNREFUSED:
    case EACCES:
    case ENODATA:
      return true;
    default:
      return false;
  }
}

bool NeedsScope(const IpAddress& ip) noexcept {
  return ip.is_link_local() && ip.scope_id() == 0;
}

absl::Status NoScope(const char* call, const SocketAddress& address) {
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": ", address.ToString(), " needs an interface (scope id)"));
}

}  // namespace

VerbsCmEndpoint::VerbsCmEndpoint(VerbsConnectionManager* manager, device::PortSpace space,
                                 device::CmEventSink* sink)
    : manager_(manager), space_(space), sink_(sink) {
  manager_->Register(this);
  if (manager_->channel_ == nullptr) {
    unusable_ = absl::UnavailableError("create_id: this host has no RDMA device yet");
    deferred_.emplace();
    return;
  }
  unusable_ = MakeId();
}

absl::Status VerbsCmEndpoint::MakeId() {
  if (rdma_create_id(manager_->channel_.get(), &id_, this, static_cast<rdma_port_space>(space_)) ==
      0) {
    return absl::OkStatus();
  }
  id_ = nullptr;
  return CmStatus(errno, Einval::kArgument, "create_id");
}

VerbsCmEndpoint::VerbsCmEndpoint(VerbsConnectionManager* manager, rdma_cm_id* id,
                                 uint32_t remote_qpn)
    : manager_(manager),
      space_(static_cast<device::PortSpace>(id->ps)),
      id_(id),
      state_(State::kReqRcvd),
      remote_qpn_(remote_qpn) {
  manager_->Register(this);
  id_->context = this;  // it came with the listener's
  manager_->Anchor(*id_);
}

VerbsCmEndpoint::~VerbsCmEndpoint() {
  manager_->Unregister(this);
  if (id_ != nullptr) rdma_destroy_id(id_);
}

const char* VerbsCmEndpoint::Name(State state) noexcept {
  switch (state) {
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
    case State::kReqSent:
      return "req_sent";
    case State::kRepRcvd:
      return "rep_rcvd";
    case State::kReqRcvd:
      return "req_rcvd";
    case State::kRepSent:
      return "rep_sent";
    case State::kEstablished:
      return "established";
    case State::kDreqSent:
      return "dreq_sent";
    case State::kTimewait:
      return "timewait";
    case State::kRejected:
      return "rejected";
    case State::kClosed:
      return "closed";
    case State::kRemoved:
      return "removed";
  }
  return "unknown";
}

const char* VerbsCmEndpoint::state_name() const noexcept {
  return Name(state_);
}

// ---- errors ----

std::string VerbsCmEndpoint::Describe(const char* call) const {
  return absl::StrCat(call, ": local=", local().ToString(), " peer=", peer().ToString());
}

absl::Status VerbsCmEndpoint::WrongState(const char* call) const {
  return absl::FailedPreconditionError(absl::StrCat(Describe(call), " state=", state_name()));
}

absl::Status VerbsCmEndpoint::Require(const char* call, State state) const {
  RD_RETURN_IF_ERROR(unusable_);
  return state_ == state ? absl::OkStatus() : WrongState(call);
}

absl::Status VerbsCmEndpoint::Failed(const char* call, Einval einval) const {
  const int error = errno;
  return CmStatus(error, einval, absl::StrCat(Describe(call), " state=", state_name()));
}

absl::Status VerbsCmEndpoint::CheckPrivateData(const char* call, size_t bytes, size_t limit) const {
  if (bytes <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": private_data_bytes=", bytes, " limit=", limit));
}

// ---- addresses ----

absl::Status VerbsCmEndpoint::BindAddr(const SocketAddress& local) {
  if (deferred_) return DeferBind(local);
  RD_RETURN_IF_ERROR(Require("bind_addr", State::kIdle));
  return Bind(local);
}

absl::Status VerbsCmEndpoint::Bind(const SocketAddress& local) {
  if (NeedsScope(local.ip)) return NoScope("bind_addr", local);
  // The kernel may know a device that the daemon does not serve.
  if (!local.ip.is_any() && !manager_->Serves(local.ip)) {
    return absl::NotFoundError(absl::StrCat("bind_addr: no device has ", local.ToString()));
  }
  sockaddr_storage name{};
  local.ToSockaddr(&name);
  if (rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&name)) != 0) {
    // The address is there. So the kernel says that the port stands in its way: one of the two that
    // want it is the wildcard.
    const int error = errno == EADDRNOTAVAIL && local.port != 0 ? EADDRINUSE : errno;
    return CmStatus(error, Einval::kArgument, absl::StrCat("bind_addr: local=", local.ToString()));
  }
  manager_->Anchor(*id_);
  state_ = State::kBound;
  return absl::OkStatus();
}

absl::Status VerbsCmEndpoint::ResolveAddr(const SocketAddress& local, const SocketAddress& peer,
                                          uint32_t timeout_ms) {
  RD_RETURN_IF_ERROR(unusable_);
  if (state_ != State::kIdle && state_ != State::kBound) return WrongState("resolve_addr");
  if (NeedsScope(peer.ip)) return NoScope("resolve_addr", peer);
  if (state_ == State::kIdle && local != SocketAddress()) RD_RETURN_IF_ERROR(Bind(local));
  sockaddr_storage name{};
  peer.ToSockaddr(&name);
  const int timeout = static_cast<int>(std::min<uint32_t>(timeout_ms, INT32_MAX));
  if (rdma_resolve_addr(id_, nullptr, reinterpret_cast<sockaddr*>(&name), timeout) == 0) {
    state_ = State::kAddrQuery;
    return absl::OkStatus();
  }
  const int error = errno;
  if (!IsNetworkError(error)) {
    return CmStatus(
        error, Einval::kArgument,
        absl::StrCat("resolve_addr: local=", this->local().ToString(), " peer=", peer.ToString()));
  }
  state_ = State::kAddrQuery;
  device::CmEvent event;
  event.type = CmEventType::kAddrError;
  event.status = -error;
  manager_->Post(this, std::move(event));
  return absl::OkStatus();
}

absl::Status VerbsCmEndpoint::ResolveRoute(uint32_t timeout_ms) {
  RD_RETURN_IF_ERROR(Require("resolve_route", State::kAddrResolved));
  const int timeout = static_cast<int>(std::min<uint32_t>(timeout_ms, INT32_MAX));
  if (rdma_resolve_route(id_, timeout) != 0) return Failed("resolve_route", Einval::kState);
  state_ = State::kRouteQuery;
  return absl::OkStatus();
}

absl::Status VerbsCmEndpoint::Listen(int backlog) {
  if (deferred_) return DeferListen(backlog);
  RD_RETURN_IF_ERROR(unusable_);
  if (state_ == State::kIdle) RD_RETURN_IF_ERROR(Bind({IpAddress::AnyV4(), 0}));
  if (state_ != State::kBound) return WrongState("listen");
  if (rdma_listen(id_, backlog) != 0) return Failed("listen", Einval::kState);
  state_ = State::kListening;
  return absl::OkStatus();
}

// ---- what it is bound to ----

device::Device* VerbsCmEndpoint::device() const noexcept {
  const ibv_context* const used = context();
  if (used == nullptr) return nullptr;
  return manager_->finder_->FindPort(ibv_get_device_name(used->device), id_->port_num);
}

SocketAddress VerbsCmEndpoint::local() const noexcept {
  return id_ == nullptr ? local_ : FromRdma(rdma_get_local_addr(id_));
}

SocketAddress VerbsCmEndpoint::peer() const noexcept {
  return id_ == nullptr ? peer_ : FromRdma(rdma_get_peer_addr(id_));
}

// ---- for the manager ----

void VerbsCmEndpoint::ReleaseRemoved() {
  if (id_ == nullptr) return;
  unusable_ = absl::UnavailableError(absl::StrCat(
      "the RDMA device was removed: local=", local().ToString(), " peer=", peer().ToString()));
  local_ = local();
  peer_ = peer();
  rdma_destroy_id(std::exchange(id_, nullptr));
  groups_.clear();
  state_ = State::kRemoved;
}

void VerbsCmEndpoint::Deliver(device::CmEvent event) {
  if (state_ == State::kRemoved && event.type != CmEventType::kDeviceRemoval) return;
  if (!OnReported(&event)) return;
  // Last: the sink may destroy this.
  if (sink_ != nullptr) sink_->OnCmEvent(std::move(event));
}

bool VerbsCmEndpoint::OnReported(device::CmEvent* event) {
  switch (event->type) {
    case CmEventType::kAddrResolved:
      OnAddrResolved(event);
      break;
    case CmEventType::kAddrError:
      state_ = State::kBound;
      break;
    case CmEventType::kRouteResolved:
      state_ = State::kRouteResolved;
      event->path_mtu = path_mtu();
      break;
    case CmEventType::kRouteError:
      state_ = State::kAddrResolved;
      break;
    case CmEventType::kConnectResponse:
      state_ = State::kRepRcvd;
      remote_qpn_ = event->param.qpn;
      event->path_mtu = path_mtu();
      break;
    case CmEventType::kEstablished:
      if (state_ == State::kDreqSent) (void)rdma_disconnect(id_);
      if (state_ != State::kRepSent && state_ != State::kReqSent) return false;
      state_ = State::kEstablished;
      if (is_datagram()) {
        remote_qpn_ = event->param.qpn;
        event->av.dest = event->av.dest.WithScope(peer().ip.scope_id());
      } else {
        event->path_mtu = path_mtu();
      }
      break;
    case CmEventType::kDisconnected:
      // Answers the peer's DREQ; does nothing if it was the peer that answered.
      (void)rdma_disconnect(id_);
      state_ = State::kTimewait;
      break;
    case CmEventType::kRejected:
    case CmEventType::kConnectError:
    case CmEventType::kUnreachable:
    case CmEventType::kTimewaitExit:
      state_ = State::kClosed;
      break;
    case CmEventType::kMulticastJoin:
    case CmEventType::kMulticastError:
      return OnMulticast(event);
    case CmEventType::kDeviceRemoval:  // released already
    case CmEventType::kConnectRequest:
    case CmEventType::kAddrChange:
      break;
  }
  return true;
}

void VerbsCmEndpoint::OnAddrResolved(device::CmEvent* event) {
  manager_->Anchor(*id_);
  // The kernel may have chosen a device that the daemon does not serve.
  if (device() != nullptr) {
    state_ = State::kAddrResolved;
    return;
  }
  event->type = CmEventType::kAddrError;
  event->status = -ENODEV;
  // The kernel's id is resolved, so there is no way to begin anew.
  state_ = State::kClosed;
}

}  // namespace rdmad::verbs
