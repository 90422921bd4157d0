#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/event_channel.h"
#include "client/sdk/qp_attr.h"
#include "client/sdk/queue_pair.h"
#include "client/sdk/status_errno.h"
#include "client/sdk/status_macros.h"
#include "rdmad/cm.h"

namespace rdmad {
namespace {

namespace rpc = sdk::rpc;
using sdk::IdState;

uint32_t Milliseconds(absl::Duration timeout) {
  const int64_t ms = absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1)));
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 1, INT32_MAX));
}

// `pair`: the id's, or none.
v1::ConnParam ToProto(const ConnParam& param, const QueuePair& pair) {
  const bool has_srq = pair && pair.state()->srq() != nullptr;
  v1::ConnParam out;
  out.set_private_data(param.private_data.data(), param.private_data.size());
  out.set_responder_resources(param.responder_resources);
  out.set_initiator_depth(param.initiator_depth);
  out.set_flow_control(param.flow_control);
  out.set_retry_count(param.retry_count);
  out.set_rnr_retry_count(param.rnr_retry_count);
  out.set_min_rnr_timer(param.min_rnr_timer);
  out.set_srq(param.srq || has_srq);
  out.set_qpn(param.qpn);
  out.set_qkey(param.qkey);
  if (const std::optional<QpType> type = pair ? pair.type() : param.qp_type; type.has_value()) {
    out.set_qp_type(static_cast<uint32_t>(*type));
  }
  return out;
}

void Learn(IdState& state, const v1::IdState& known) {
  const std::lock_guard lock(state.mutex);
  if (known.local().family() != 0) state.local = sdk::FromProto(known.local());
  if (known.peer().family() != 0) state.peer = sdk::FromProto(known.peer());
  if (known.device_index() != shm::kNoDevice) state.device_index = known.device_index();
}

template <typename Method>
absl::Status CallForId(const IdState& state, const Method& method, typename Method::Request request) {
  request.set_id(state.handle);
  return state.session->Call(method, request).status();
}

// The ids of connect requests that nobody has read belong to the channel that their request is read from.
void MoveRequests(sdk::Session& session, sdk::EventChannelState& from, const sdk::EventChannelState& to,
                  std::vector<shm::CmEvent>* unread) {
  const size_t count = unread->size();
  for (size_t i = 0; i < count; ++i) {
    if ((*unread)[i].type != static_cast<uint32_t>(CmEventType::kConnectRequest)) continue;
    v1::MigrateIdRequest request;
    request.set_id((*unread)[i].id_handle);
    request.set_channel(to.handle());
    // It fails only with the session, which ends all events.
    if (!session.Call(rpc::kMigrateId, request).ok()) return;
    const std::vector<shm::CmEvent> later = from.MoveRequestAway(request.id());
    unread->insert(unread->end(), later.begin(), later.end());
  }
}

}  // namespace

CmId::CmId(std::shared_ptr<sdk::IdState> state, void* context) noexcept : state_(std::move(state)), context_(context) {
  const std::lock_guard lock(state_->mutex);
  state_->owner = this;
}

absl::StatusOr<std::unique_ptr<CmId>> sdk::MakeId(const std::shared_ptr<EventChannelState>& channel,
                                                  PortSpace port_space) {
  v1::CreateIdRequest request;
  request.set_channel(channel->handle());
  request.set_port_space(static_cast<uint32_t>(port_space));
  SDK_ASSIGN_OR_RETURN(const v1::CreateIdReply reply, channel->session()->Call(rpc::kCreateId, request));
  auto state = std::make_shared<IdState>(channel->session(), reply.id(), port_space);
  state->channel = channel;
  channel->AddId(state, 0);
  return std::make_unique<CmId>(std::move(state), nullptr);
}

absl::StatusOr<std::unique_ptr<CmId>> CmId::Create(const Client& client, EventChannel* channel, PortSpace port_space,
                                                   void* context) {
  std::shared_ptr<sdk::EventChannelState> channel_state;
  if (channel != nullptr) {
    channel_state = channel->state();
  } else {
    SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::Session> session, client.state()->Live());
    SDK_ASSIGN_OR_RETURN(channel_state, sdk::EventChannelState::Create(session));
  }
  SDK_ASSIGN_OR_RETURN(std::unique_ptr<CmId> id, sdk::MakeId(channel_state, port_space));
  id->state_->sync = channel == nullptr;
  id->context_ = context;
  return id;
}

absl::StatusOr<std::unique_ptr<CmId>> CmId::CreateEp(const Client& client, const AddrInfo& info,
                                                     const ProtectionDomain* pd, const QpInit* init) {
  constexpr absl::Duration kTimeout = absl::Seconds(2);  // that of librdmacm
  SDK_ASSIGN_OR_RETURN(std::unique_ptr<CmId> id, Create(client, nullptr, info.port_space));
  if (info.passive) {
    SDK_RETURN_IF_ERROR(id->BindAddr(info.src));
    if (pd != nullptr) id->ep_pd_ = *pd;
    if (init != nullptr) {
      id->ep_init_ = *init;
      id->ep_init_->type = info.qp_type;
    }
    return id;
  }
  SDK_RETURN_IF_ERROR(id->ResolveAddr(info.src, info.dst, kTimeout));
  SDK_RETURN_IF_ERROR(id->ResolveRoute(kTimeout));
  if (init != nullptr) {
    QpInit typed = *init;
    typed.type = info.qp_type;
    SDK_RETURN_IF_ERROR(id->CreateQp(pd, typed));
  }
  return id;
}

CmId::~CmId() {
  DestroyId().IgnoreError();
  const std::lock_guard lock(state_->mutex);
  state_->owner = nullptr;
}

absl::Status CmId::DestroyId() {
  std::shared_ptr<sdk::EventChannelState> channel;
  {
    const std::lock_guard lock(state_->mutex);
    channel = std::move(state_->channel);
  }
  if (channel == nullptr) return absl::OkStatus();  // destroyed already
  event_ = nullptr;
  v1::DestroyIdRequest request;
  request.set_id(state_->handle);
  const absl::StatusOr<v1::DestroyIdReply> reply = state_->session->Call(rpc::kDestroyId, request);
  // If the call failed, nothing is known of what was reported: then all is assumed to have been read.
  channel->RemoveId(*state_, reply.ok() ? reply->events_reported() : state_->events());
  state_->WaitForAcks();
  DestroyQp();
  return reply.ok() || !state_->session->alive() ? absl::OkStatus() : reply.status();
}

absl::Status CmId::Migrate(EventChannel* channel) {
  std::shared_ptr<sdk::EventChannelState> from;
  uint32_t generation = 0;
  {
    const std::lock_guard lock(state_->mutex);
    from = state_->channel;
    generation = state_->generation;
  }
  if (from == nullptr) return absl::FailedPreconditionError("migrate_id: the id was destroyed");
  std::shared_ptr<sdk::EventChannelState> to;
  if (channel != nullptr) {
    to = channel->state();
  } else {
    SDK_ASSIGN_OR_RETURN(to, sdk::EventChannelState::Create(state_->session));
  }
  if (to->session() != state_->session) {
    return absl::InvalidArgumentError("migrate_id: id and channel are of different sessions");
  }
  if (to != from) {
    // The new channel must know the id before the daemon writes there.
    to->AddId(state_, generation + 1);
    v1::MigrateIdRequest request;
    request.set_id(state_->handle);
    request.set_channel(to->handle());
    const absl::StatusOr<v1::MigrateIdReply> reply = state_->session->Call(rpc::kMigrateId, request);
    if (!reply.ok()) {
      to->MoveIdAway(*state_, state_->events());
      return reply.status();
    }
    std::vector<shm::CmEvent> unread = from->MoveIdAway(*state_, reply->events_reported());
    state_->WaitForAcks();
    for (shm::CmEvent& event : unread) event.generation = reply->generation();
    MoveRequests(*state_->session, *from, *to, &unread);
    {
      const std::lock_guard lock(state_->mutex);
      state_->generation = reply->generation();
      state_->channel = to;
    }
    to->AddPending(unread);
  }
  const std::lock_guard lock(state_->mutex);
  state_->sync = channel == nullptr;
  return absl::OkStatus();
}

absl::Status CmId::Complete(CmEventType expected) { return Complete(expected, sdk::Deadline::Infinite()); }

absl::Status CmId::Complete(CmEventType expected, sdk::Deadline deadline) {
  std::shared_ptr<sdk::EventChannelState> channel;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->sync) return absl::OkStatus();
    channel = state_->channel;
  }
  while (true) {
    event_ = nullptr;
    SDK_ASSIGN_OR_RETURN(std::unique_ptr<sdk::EventRecord> record, channel->GetEvent(deadline));
    event_ = std::make_unique<CmEvent>(std::move(record));
    event_->AckEarly();  // the event stays for the caller to look at, and holds up nobody
    if (event_->type() == expected) return absl::OkStatus();
    if (event_->type() == CmEventType::kTimewaitExit || event_->type() == CmEventType::kAddrChange) continue;
    if (absl::Status status = event_->ToStatus(); !status.ok()) return status;
    return absl::InternalError(absl::StrCat("unexpected event ", EventString(event_->type()), " while waiting for ",
                                            EventString(expected)));
  }
}

absl::Status CmId::SetOption(uint32_t level, uint32_t option, std::span<const std::byte> value) {
  v1::SetOptionRequest request;
  request.set_level(level);
  request.set_option(option);
  request.set_value(value.data(), value.size());
  return CallForId(*state_, rpc::kSetOption, std::move(request));
}

absl::Status CmId::BindAddr(const Address& local) {
  v1::BindAddrRequest request;
  request.set_id(state_->handle);
  *request.mutable_local() = sdk::ToProto(local);
  SDK_ASSIGN_OR_RETURN(const v1::BindAddrReply reply, state_->session->Call(rpc::kBindAddr, request));
  Learn(*state_, reply.state());
  return absl::OkStatus();
}

absl::Status CmId::ResolveAddr(const Address& local, const Address& peer, absl::Duration timeout) {
  v1::ResolveAddrRequest request;
  *request.mutable_local() = sdk::ToProto(local);
  *request.mutable_peer() = sdk::ToProto(peer);
  request.set_timeout_ms(Milliseconds(timeout));
  {
    const std::lock_guard lock(state_->mutex);
    state_->peer = peer;  // for the words of a failure; a success tells it again
  }
  SDK_RETURN_IF_ERROR(CallForId(*state_, rpc::kResolveAddr, std::move(request)));
  return Complete(CmEventType::kAddrResolved);
}

absl::Status CmId::ResolveRoute(absl::Duration timeout) {
  v1::ResolveRouteRequest request;
  request.set_timeout_ms(Milliseconds(timeout));
  SDK_RETURN_IF_ERROR(CallForId(*state_, rpc::kResolveRoute, std::move(request)));
  return Complete(CmEventType::kRouteResolved);
}

absl::Status CmId::Listen(int backlog) {
  v1::ListenRequest request;
  request.set_id(state_->handle);
  request.set_backlog(backlog);
  SDK_ASSIGN_OR_RETURN(const v1::ListenReply reply, state_->session->Call(rpc::kListen, request));
  Learn(*state_, reply.state());
  return absl::OkStatus();
}

absl::Status CmId::Connect(const ConnParam& param) {
  v1::ConnectRequest request;
  const QueuePair pair = qp();
  *request.mutable_param() = ToProto(param, pair);
  SDK_RETURN_IF_ERROR(CallForId(*state_, rpc::kConnect, std::move(request)));
  const bool is_answer_enough = pair || state_->port_space == PortSpace::kUdp;
  return Complete(is_answer_enough ? CmEventType::kEstablished : CmEventType::kConnectResponse);
}

absl::StatusOr<std::unique_ptr<CmId>> CmId::GetRequest(absl::Duration timeout) {
  if (!is_sync()) return absl::FailedPreconditionError("get_request: the id has an event channel; use its GetEvent");
  std::shared_ptr<sdk::EventChannelState> channel;
  {
    const std::lock_guard lock(state_->mutex);
    channel = state_->channel;
  }
  const sdk::Deadline deadline = sdk::Deadline::After(timeout);
  while (true) {
    event_ = nullptr;
    SDK_ASSIGN_OR_RETURN(std::unique_ptr<sdk::EventRecord> record, channel->GetEvent(deadline));
    auto event = std::make_unique<CmEvent>(std::move(record));
    event->AckEarly();
    if (event->type() != CmEventType::kConnectRequest) {
      absl::Status status = event->ToStatus();
      event_ = std::move(event);
      if (!status.ok()) return status;
      continue;
    }
    std::unique_ptr<CmId> id = event->TakeId();
    SDK_RETURN_IF_ERROR(id->Migrate(nullptr));
    if (ep_init_.has_value()) {
      SDK_RETURN_IF_ERROR(id->CreateQp(ep_pd_.has_value() ? &*ep_pd_ : nullptr, *ep_init_));
    }
    id->event_ = std::move(event);
    return id;
  }
}

absl::Status CmId::Accept(const ConnParam& param) {
  v1::AcceptRequest request;
  const QueuePair pair = qp();
  *request.mutable_param() = ToProto(param, pair);
  SDK_RETURN_IF_ERROR(CallForId(*state_, rpc::kAccept, std::move(request)));
  if (state_->port_space == PortSpace::kUdp) return absl::OkStatus();  // nothing comes after the answer
  // The daemon has moved the QP before it answered the peer.
  if (pair) pair.state()->set_state(QpState::kRts);
  return Complete(CmEventType::kEstablished);
}

absl::Status CmId::Reject(std::span<const uint8_t> private_data) {
  v1::RejectRequest request;
  request.set_private_data(private_data.data(), private_data.size());
  return CallForId(*state_, rpc::kReject, std::move(request));
}

absl::Status CmId::Establish() { return CallForId(*state_, rpc::kEstablish, {}); }

absl::Status CmId::Notify(uint32_t event) {
  v1::NotifyRequest request;
  request.set_event(event);
  return CallForId(*state_, rpc::kNotify, std::move(request));
}

absl::Status CmId::Disconnect() {
  v1::DisconnectRequest request;
  request.set_id(state_->handle);
  SDK_ASSIGN_OR_RETURN(const v1::DisconnectReply reply, state_->session->Call(rpc::kDisconnect, request));
  if (const QueuePair pair = qp()) pair.state()->OnConnectionOver();
  if (!reply.over()) return Complete(CmEventType::kDisconnected);
  // The peer may have been quicker, and nobody has read that event yet. No other is waited for.
  const absl::Status status = Complete(CmEventType::kDisconnected, sdk::Deadline::Immediate());
  return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
}

absl::Status CmId::JoinMulticast(const Address& group, uint64_t cookie, MulticastJoin join) {
  v1::JoinMulticastRequest request;
  *request.mutable_group() = sdk::ToProto(group);
  request.set_cookie(cookie);
  request.set_join_flags(static_cast<uint32_t>(join));
  SDK_RETURN_IF_ERROR(CallForId(*state_, rpc::kJoinMulticast, std::move(request)));
  return Complete(CmEventType::kMulticastJoin);
}

absl::Status CmId::LeaveMulticast(const Address& group) {
  v1::LeaveMulticastRequest request;
  *request.mutable_group() = sdk::ToProto(group);
  return CallForId(*state_, rpc::kLeaveMulticast, std::move(request));
}

absl::StatusOr<QpAttr> CmId::InitQpAttr(QpState state) const {
  v1::InitQpAttrRequest request;
  request.set_id(state_->handle);
  request.set_qp_state(static_cast<uint32_t>(state));
  SDK_ASSIGN_OR_RETURN(const v1::InitQpAttrReply reply, state_->session->Call(rpc::kInitQpAttr, request));
  QpAttr attr = sdk::FromProto(reply.attr());
  attr.mask = reply.attr_mask();
  return attr;
}

Address CmId::local_addr() const {
  const std::lock_guard lock(state_->mutex);
  return state_->local;
}

Address CmId::peer_addr() const {
  const std::lock_guard lock(state_->mutex);
  return state_->peer;
}

std::optional<uint32_t> CmId::device_index() const {
  const std::lock_guard lock(state_->mutex);
  return state_->device_index;
}

bool CmId::is_sync() const {
  const std::lock_guard lock(state_->mutex);
  return state_->sync;
}

PortSpace CmId::port_space() const noexcept { return state_->port_space; }
uint64_t CmId::handle() const noexcept { return state_->handle; }

}  // namespace rdmad
