#include "daemon/cm/cm_id.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/cm/event_record.h"

namespace rdmad::cm {
namespace {

using device::CmEvent;
using device::CmEventType;

constexpr uint32_t kOptionLevelId = 0;  // RDMA_OPTION_ID

// Replaces "as many as the device can" by the number, and refuses more than that.
absl::Status LimitDepth(const char* what, const device::Device* device, uint8_t* depth) {
  const uint32_t limit = device == nullptr ? 0 : device->attr().max_qp_rd_atom;
  if (*depth == kAnyDepth) {
    *depth = static_cast<uint8_t>(std::min<uint32_t>(limit, kAnyDepth));
    return absl::OkStatus();
  }
  if (*depth <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, "=", *depth, " device_max=", limit));
}

}  // namespace

CmId::CmId(device::ConnectionManager* manager, CmIdHost* host, EventChannel* channel,
           uint64_t handle, device::PortSpace port_space)
    : manager_(manager),
      host_(host),
      channel_(channel),
      handle_(handle),
      port_space_(port_space),
      endpoint_(manager->CreateEndpoint(port_space, this)),
      groups_(host, endpoint_.get(), [this](const CmEvent& event) { Report(event); }) {
  channel_->AddUser(handle_, this);
}

CmId::CmId(device::ConnectionManager* manager, CmIdHost* host, EventChannel* channel,
           device::PortSpace port_space, std::unique_ptr<device::CmEndpoint> endpoint)
    : manager_(manager),
      host_(host),
      channel_(channel),
      handle_(0),
      port_space_(port_space),
      endpoint_(std::move(endpoint)),
      groups_(host, endpoint_.get(), [this](const CmEvent& event) { Report(event); }) {
  endpoint_->SetSink(this);
}

CmId::~CmId() {
  if (driver_.qp() != nullptr && !is_datagram()) driver_.MoveToErr();
  if (handle_ == 0) return;
  channel_->RemoveUser(handle_);
  for (const shm::CmEvent& event : channel_->TakeQueued(handle_)) {
    // The client will never hear of these requests.
    if (event.listen_handle != 0) host_->DiscardId(event.id_handle);
  }
}

// ---- calls that the endpoint answers ----

absl::Status CmId::BindAddr(const SocketAddress& local) {
  return endpoint_->BindAddr(local);
}

absl::Status CmId::ResolveAddr(const SocketAddress& local, const SocketAddress& peer,
                               uint32_t timeout_ms) {
  return endpoint_->ResolveAddr(local, peer, timeout_ms);
}

absl::Status CmId::ResolveRoute(uint32_t timeout_ms) {
  return endpoint_->ResolveRoute(timeout_ms);
}

absl::Status CmId::Listen(int backlog) {
  max_backlog_ = backlog <= 0 ? device::kMaxBacklog : std::min(backlog, device::kMaxBacklog);
  return endpoint_->Listen(backlog);
}

absl::Status CmId::Establish() {
  RD_RETURN_IF_ERROR(endpoint_->Establish());
  is_connected_ = true;
  return absl::OkStatus();
}

absl::Status CmId::Reject(std::span<const uint8_t> private_data) {
  LeaveBacklog();
  return endpoint_->Reject(private_data);
}

absl::StatusOr<device::QpAttr> CmId::InitQpAttr(device::QpState state) const {
  return endpoint_->InitQpAttr(state);
}

absl::Status CmId::SetOption(uint32_t level, uint32_t option, std::span<const uint8_t> value) {
  if (level != kOptionLevelId) {
    return absl::UnimplementedError(absl::StrCat("set_option: level=", level));
  }
  return endpoint_->SetOption(option, value);
}

absl::Status CmId::Notify(uint32_t event) {
  if (event != static_cast<uint32_t>(device::AsyncEventType::kCommEst)) {
    return absl::InvalidArgumentError(absl::StrCat("notify: event=", event));
  }
  return endpoint_->NotifyCommEstablished();
}

void CmId::OnQpAsyncEvent(device::AsyncEventType type) {
  // Too late, or on the side that has established already: then it says nothing new.
  if (type == device::AsyncEventType::kCommEst) (void)endpoint_->NotifyCommEstablished();
}

// ---- calls that move the QP ----

void CmId::SetQp(device::Qp* qp, device::QpType type, engine::EngineProxy* engine, Done done) {
  if (driver_.qp() != nullptr) {
    done(absl::FailedPreconditionError("set_qp: the id has a QP"));
    return;
  }
  driver_.Bind(qp, engine);
  qp_type_ = type;
  if (type == device::QpType::kUd) {
    driver_.MoveDatagramQpToRts(device::kUdpQkey, std::move(done));
  } else {
    driver_.MoveToInit(std::move(done));
  }
}

void CmId::ClearQp() {
  groups_.OnQpGone();
  driver_.Unbind();
}

bool CmId::is_datagram() const noexcept {
  return port_space_ == device::PortSpace::kUdp ||
         (driver_.qp() != nullptr && qp_type_ == device::QpType::kUd);
}

absl::Status CmId::Connect(device::ConnParam param) {
  if (!is_datagram()) RD_RETURN_IF_ERROR(LimitDepths(&param));
  NameQp(&param);
  driver_.SetMinRnrTimer(param.min_rnr_timer);
  return endpoint_->Connect(param);
}

absl::Status CmId::LimitDepths(device::ConnParam* param) const {
  RD_RETURN_IF_ERROR(LimitDepth("responder_resources", device(), &param->responder_resources));
  RD_RETURN_IF_ERROR(LimitDepth("initiator_depth", device(), &param->initiator_depth));
  // Whoever accepts may not have more READs under way than the peer has offered to answer.
  param->initiator_depth = std::min(param->initiator_depth, offered_initiator_depth_);
  return absl::OkStatus();
}

// Of the id's own QP, if it has one, more is known than the application says.
void CmId::NameQp(device::ConnParam* param) const {
  if (driver_.qp() == nullptr) return;
  param->qpn = driver_.qp()->qpn();
  param->qp_type = qp_type_;
}

// The QP takes the QKey that the peer is told before the peer is told it.
void CmId::AcceptDatagram(device::ConnParam param, Done done) {
  if (driver_.qp() == nullptr || param.qkey == 0) {
    done(endpoint_->Accept(param));
    return;
  }
  driver_.SetQkey(param.qkey, [this, param = std::move(param),
                               done = std::move(done)](const absl::Status& set) {
    done(set.ok() ? endpoint_->Accept(param) : set);
  });
}

absl::Status CmId::AcceptAtEndpoint(const device::ConnParam& param) {
  RD_RETURN_IF_ERROR(endpoint_->Accept(param));
  is_connected_ = true;
  return absl::OkStatus();
}

void CmId::Accept(device::ConnParam param, Done done) {
  LeaveBacklog();
  NameQp(&param);
  if (is_datagram()) {
    AcceptDatagram(std::move(param), std::move(done));
    return;
  }
  const absl::Status limited = LimitDepths(&param);
  // The endpoint refuses a QP of another type than the peer's, which cannot be moved.
  const bool fits = param.qp_type.value_or(peer_qp_type_) == peer_qp_type_;
  if (!limited.ok() || driver_.qp() == nullptr || !fits) {
    done(limited.ok() ? AcceptAtEndpoint(param) : limited);
    return;
  }
  driver_.SetMinRnrTimer(param.min_rnr_timer);
  const QpDriver::Depths depths{param.responder_resources, param.initiator_depth};
  driver_.MoveToRts(
      *endpoint_, depths,
      [this, param = std::move(param), done = std::move(done)](const absl::Status& moved) {
        if (!moved.ok()) {
          done(moved);
          return;
        }
        const absl::Status accepted = AcceptAtEndpoint(param);
        if (!accepted.ok()) driver_.MoveToErr();
        done(accepted);
      });
}

void CmId::Disconnect(std::function<void(absl::StatusOr<bool>)> done) {
  const auto disconnect = [this, done = std::move(done)](const absl::Status& /*moved*/) {
    const absl::Status disconnected = endpoint_->Disconnect();
    done(disconnected.ok() ? absl::StatusOr<bool>(is_connected_) : disconnected);
  };
  if (is_datagram()) {
    disconnect(absl::OkStatus());
    return;
  }
  // The QP first, so that the peer's answer finds nothing in flight any more.
  // However that ends (the peer may disconnect meanwhile and move it, too), the connection does.
  driver_.MoveToErr(disconnect);
}

CmId::Migration CmId::Migrate(EventChannel* channel) {
  std::vector<shm::CmEvent> waiting = channel_->TakeQueued(handle_);
  channel_->RemoveUser(handle_);
  Migration migration{events_reported_, ++generation_, {}};
  channel_ = channel;
  channel_->AddUser(handle_, this);
  for (shm::CmEvent& event : waiting) {
    event.generation = generation_;
    channel_->Send(event);
    if (event.listen_handle != 0) migration.requests.push_back(event.id_handle);
  }
  return migration;
}

// ---- events ----

void CmId::OnCmEvent(CmEvent event) {
  switch (event.type) {
    case CmEventType::kConnectRequest:
      OnConnectRequest(std::move(event));
      return;
    case CmEventType::kConnectResponse:
      OnConnectResponse(std::move(event));
      return;
    case CmEventType::kRejected:
    case CmEventType::kConnectError:
    case CmEventType::kDisconnected:
    case CmEventType::kDeviceRemoval:
      LeaveBacklog();
      is_connected_ = false;
      if (!is_datagram()) driver_.MoveToErr();
      break;
    case CmEventType::kUnreachable:  // which leaves the QP where it is, as in librdmacm
      is_connected_ = false;
      break;
    case CmEventType::kMulticastJoin:
      groups_.OnJoined(handle_, driver_.qp() != nullptr, std::move(event));
      return;
    case CmEventType::kMulticastError:
      groups_.OnError(handle_, std::move(event));
      return;
    case CmEventType::kAddrResolved:
    case CmEventType::kAddrError:
    case CmEventType::kRouteResolved:
    case CmEventType::kRouteError:
    case CmEventType::kEstablished:
    case CmEventType::kAddrChange:
    case CmEventType::kTimewaitExit:
      break;
  }
  Report(event);
}

std::shared_ptr<const void> CmId::TakeBacklogPlace() {
  return backlog_.use_count() - 1 < max_backlog_ ? backlog_ : nullptr;
}

void CmId::OnConnectRequest(CmEvent event) {
  std::unique_ptr<CmId> id(
      new CmId(manager_, host_, channel_, port_space_, std::move(event.new_endpoint)));
  id->backlog_place_ =
      event.backlog_place != nullptr ? std::move(event.backlog_place) : TakeBacklogPlace();
  // Nobody reads this channel any more, or nobody keeps up with it: the request ends here, which
  // rejects it. The soft device has dropped it before; the kernel hands everything over, since it
  // counts only what we have not fetched yet, which is nothing.
  if (channel_->broken() || id->backlog_place_ == nullptr) return;
  id->offered_initiator_depth_ = event.param.initiator_depth;
  CmId* const added = id.get();
  const absl::StatusOr<uint64_t> handle = host_->AdoptId(std::move(id), *this);
  if (!handle.ok()) return;
  added->handle_ = *handle;
  if (!is_datagram()) {
    added->peer_qp_type_ = event.param.qp_type.value_or(device::QpType::kRc);
    event.param.qp_type = added->peer_qp_type_;
  }
  channel_->AddUser(*handle, added);
  Report(event, *added, handle_);
}

void CmId::OnConnectResponse(CmEvent event) {
  if (driver_.qp() == nullptr) {
    Report(event);
    return;
  }
  driver_.MoveToRts(*endpoint_, QpDriver::Depths(),
                    [this, shared = std::make_shared<CmEvent>(std::move(event))](
                        const absl::Status& moved) { OnMovedToRts(moved, *shared); });
}

void CmId::OnMovedToRts(const absl::Status& moved, CmEvent& event) {
  if (absl::IsCancelled(moved))
    return;  // what cut the move short has been reported, or the id goes
  if (!moved.ok()) {
    driver_.MoveToErr();
    (void)endpoint_->Reject({});  // fails if the peer was quicker, which says as much
    event.type = CmEventType::kConnectError;
    event.status = -EINVAL;
    Report(event);
    return;
  }
  // It fails if the peer has given up in the meantime: that event is on its way.
  if (!Establish().ok()) return;
  event.type = CmEventType::kEstablished;
  Report(event);
}

// ---- multicast ----

absl::Status CmId::JoinMulticast(const SocketAddress& group, uint32_t join_flags, uint64_t cookie) {
  return groups_.Join(group, join_flags, cookie);
}

absl::Status CmId::LeaveMulticast(const SocketAddress& group) {
  return groups_.Leave(handle_, group);
}

void CmId::Report(const CmEvent& event, const CmId& subject, uint64_t listen_handle) {
  shm::CmEvent record = ToRecord(event);
  record.id_handle = subject.handle_;
  record.listen_handle = listen_handle;
  record.generation = generation_;
  record.device_index = host_->DeviceIndex(subject.device());
  record.local = ToShm(subject.local());
  record.peer = ToShm(subject.peer());
  channel_->Send(record);
}

}  // namespace rdmad::cm
